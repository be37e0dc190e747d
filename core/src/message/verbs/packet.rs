//! The header of a packet.
#![forbid(unsafe_code)]

use super::PACKET;
use crate::error::{Error, ErrorKind, Result};

/// The header, as decoded and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::message) struct Header {
    /// Receives that the sender has posted again.
    pub(in crate::message) returned: u32,
    /// Bytes of the stream behind the header.
    pub(in crate::message) length: u32,
}

impl Header {
    pub(in crate::message) const BYTES: usize = 8;

    pub(in crate::message) fn encode(self) -> [u8; Self::BYTES] {
        (u64::from(self.returned) | u64::from(self.length) << 32).to_le_bytes()
    }

    /// The header of the packet `bytes`, whose length must be what the header says.
    pub(in crate::message) fn decode(bytes: &[u8]) -> Result<Self> {
        let Some(first) = bytes.first_chunk::<{ Self::BYTES }>() else {
            return Err(broken(format!("a packet of {} bytes", bytes.len())));
        };
        let word = u64::from_le_bytes(*first);
        let header = Self { returned: word as u32, length: (word >> 32) as u32 };
        let length = bytes.len() - Self::BYTES;
        if header.length as usize != length {
            return Err(broken(format!("a packet states {} bytes and has {length}", header.length)));
        }
        if header.length == 0 && header.returned == 0 {
            return Err(broken("a packet without a purpose".into()));
        }
        Ok(header)
    }
}

/// Bytes of the stream in a full packet.
pub(super) const PAYLOAD: usize = PACKET - Header::BYTES;

/// The error for a peer that does not keep to the protocol.
#[cold]
pub(super) fn broken(text: String) -> Error {
    Error::new(ErrorKind::Remote, "progress", format!("the peer broke the protocol: {text}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn headers_round_trip_and_others_are_refused(
            returned: u32, length in 0usize..PAYLOAD, noise in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let header = Header { returned, length: length as u32 };
            let mut packet = header.encode().to_vec();
            packet.resize(Header::BYTES + length, 7);
            prop_assert_eq!(Header::decode(&packet).ok(), (returned > 0 || length > 0).then_some(header));
            packet.push(0);
            prop_assert!(Header::decode(&packet).is_err());
            if let Ok(header) = Header::decode(&noise) {
                prop_assert_eq!(&header.encode(), &noise[..Header::BYTES]);
                prop_assert_eq!(header.length as usize, noise.len() - Header::BYTES);
            }
        }
    }
}
