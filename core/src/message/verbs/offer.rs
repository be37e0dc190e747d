//! The offer of a queue pair, which each side sends behind its introduction.
#![forbid(unsafe_code)]

use super::PACKET;
use super::credits::RECEIVES;
use crate::rdma::QpAddress;
use crate::wire::{Reader, WireError, WireResult, Writer};

/// Since version 2, a side whose address says that it serves reads gives keys of exposed memory to those who ask.
const VERSION: u16 = 2;

/// A queue pair whose receives are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::message) struct Offer {
    pub(super) address: QpAddress,
}

impl Offer {
    /// Size of the wire form.
    pub(in crate::message) const BYTES: usize = 52;

    /// An offer of the queue pair at `address`.
    #[cfg(feature = "fuzzing")]
    pub(in crate::message) fn of(address: QpAddress) -> Self {
        Self { address }
    }

    /// The wire form: version, bytes of a packet, receives, address.
    pub(in crate::message) fn encode(self) -> [u8; Self::BYTES] {
        let mut w = Writer::new();
        w.u16(VERSION).u32(PACKET as u32).u32(RECEIVES);
        self.address.encode(&mut w);
        let mut out = [0; Self::BYTES];
        out[..w.as_bytes().len()].copy_from_slice(w.as_bytes());
        out
    }

    /// Takes what [`encode`](Self::encode) wrote. Sizes of packets and numbers of receives other than those of this version are
    /// refused.
    pub(in crate::message) fn decode(bytes: &[u8; Self::BYTES]) -> WireResult<Self> {
        let mut r = Reader::new(bytes);
        r.version(VERSION)?;
        if (r.u32()?, r.u32()?) != (PACKET as u32, RECEIVES) {
            return Err(WireError::Invalid { what: "packets of a queue pair" });
        }
        let address = QpAddress::decode(&mut r)?;
        if r.raw(r.remaining())?.iter().any(|byte| *byte != 0) {
            return Err(WireError::Invalid { what: "reserved field of a queue pair" });
        }
        Ok(Self { address })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rdma::{Gid, GidKind};

    proptest! {
        #[test]
        fn offers_round_trip_and_changed_ones_are_others(
            qp_number in 2_u32..1 << 24, psn in 0_u32..1 << 24, lid: u16, last: u8, at in 0usize..Offer::BYTES, change in 1u8..,
        ) {
            let gid = Some((Gid([last | 1; 16]), GidKind::ROCE_V2));
            let offer = Offer { address: QpAddress { qp_number, psn, lid, gid, mtu: 1024, max_read_atomic: 16 } };
            let mut bytes = offer.encode();
            prop_assert_eq!(Offer::decode(&bytes), Ok(offer));
            bytes[at] ^= change;
            if let Ok(other) = Offer::decode(&bytes) {
                prop_assert!(other != offer && other.encode() == bytes);
            }
        }
    }

    /// One that does not know keys would take an answer to a request for one as a breach of the protocol.
    #[test]
    fn offers_of_version_1_are_refused() {
        let gid = Some((Gid([1; 16]), GidKind::ROCE_V2));
        let address = QpAddress { qp_number: 17, psn: 1, lid: 0, gid, mtu: 1024, max_read_atomic: 16 };
        let mut bytes = Offer { address }.encode();
        assert_eq!(bytes[..2], [2, 0]);
        assert!(Offer::decode(&bytes).is_ok());
        bytes[0] = 1;
        assert!(
            matches!(Offer::decode(&bytes), Err(WireError::Version { .. })),
            "{:?}",
            Offer::decode(&bytes)
        );
    }
}
