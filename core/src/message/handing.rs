//! How the memory of a process is handed to a reader of the same host: its descriptors, and the frame that says what they are.
#![forbid(unsafe_code)]

use std::os::fd::AsFd;

use super::device::DESCRIPTION;
use super::exposed::{Exposures, Lending};
use super::mappings::Place;
use super::tokens::Token;
use super::wire::Wire;
use crate::error::{Error, ErrorKind, Result};

/// The body of the frame behind the descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Handed {
    /// Memory of the processor: one descriptor.
    Bytes(Place),
    /// Memory of a device: the descriptor of the page with the word of the exposure, which has no data, then that of the memory.
    Device(Place, Vec<u8>),
    /// Memory of a device, of which only the first descriptor could be handed over: the reader asks for the data.
    Half,
}

impl Handed {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Bytes(place) => place.encode().to_vec(),
            Self::Device(place, description) => [&place.encode()[..], description].concat(),
            Self::Half => Vec::new(),
        }
    }

    /// The counterpart of [`encode`](Self::encode).
    ///
    /// # Errors
    /// `Remote` for other bytes.
    pub(super) fn decode(body: &[u8]) -> Result<Self> {
        let Some((place, description)) = body.split_at_checked(Place::BYTES) else {
            let text = format!("memory was handed over with {} bytes", body.len());
            return if body.is_empty() {
                Ok(Self::Half)
            } else {
                Err(Error::new(ErrorKind::Remote, "progress", text))
            };
        };
        let place = Place::decode(place)?;
        match description.len() {
            0 => Ok(Self::Bytes(place)),
            1..=DESCRIPTION if place.length == 0 => Ok(Self::Device(place, description.to_vec())),
            _ => {
                Err(Error::new(ErrorKind::Remote, "progress", format!("{place:?} is no memory of a device")))
            }
        }
    }
}

/// Hands over the memory of which `token` gives the right to read `length` bytes at `offset`. `None` if the token is not good, or that is not
/// possible now: then the request is answered with the data.
pub(super) fn hand_over(
    exposures: &Exposures,
    (token, offset, length): (&Token, u64, u64),
    wire: &dyn Wire,
) -> Option<Handed> {
    let shown = exposures.map(token, offset, length).ok().flatten()?;
    let place = Place { length: shown.length() as u64, word: shown.index, serial: shown.serial };
    let device = match exposures.lend(token, offset, length).ok()? {
        Lending::Bytes(_) => None,
        Lending::Device(memory) => {
            let exported = memory.export();
            Some(exported.inspect_err(|error| log::debug!("memory is not handed over: {error}")).ok()?)
        }
    };
    if !shown.descriptor().is_some_and(|fd| wire.send_descriptor(fd)) {
        return None;
    }
    Some(match device {
        None => Handed::Bytes(place),
        Some(handle) if wire.send_descriptor(handle.descriptor.as_fd()) => {
            Handed::Device(place, handle.description)
        }
        Some(_) => Handed::Half,
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_handed_over_round_trips_and_nothing_else_is_taken() {
        let place = Place { length: 0, word: 3, serial: 9 };
        for handed in [
            Handed::Half,
            Handed::Bytes(Place { length: 7, ..place }),
            Handed::Device(place, vec![1]),
            Handed::Device(place, vec![2; DESCRIPTION]),
        ] {
            assert_eq!(Handed::decode(&handed.encode()).unwrap(), handed);
        }
        for wrong in [
            Handed::Device(place, vec![2; DESCRIPTION + 1]).encode(),
            Handed::Device(Place { length: 1, ..place }, vec![2]).encode(),
            vec![0; Place::BYTES - 1],
        ] {
            assert_eq!(Handed::decode(&wrong).unwrap_err().kind(), ErrorKind::Remote);
        }
    }

    proptest! {
        #[test]
        fn whatever_is_taken_was_encoded(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(handed) = Handed::decode(&bytes) {
                prop_assert_eq!(handed.encode(), bytes);
            }
        }
    }
}
