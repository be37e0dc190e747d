//! Memory of one peer that this process has mapped, and how much of it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::placing::Placing;
use super::revocation::copy_valid;
use super::shared::{HEADER, WORDS};
use super::tokens::Token;
use crate::error::{Error, ErrorKind, Result};
use crate::shm::View;
use crate::volatile::VolatileSlice;
use crate::wire::{Reader, Writer};

/// Mappings of one peer that are kept; beyond it, those that were not used for longest are given up.
const MAX_MAPPINGS: usize = 64;
/// Their bytes in all. One mapping is kept in any case.
const MAX_BYTES: usize = 4 << 30;
/// Longer memory is read through its owner: address space is finite, too.
const MAX_LENGTH: u64 = 1 << 40;

/// The place of exposed memory within its descriptor, as its owner tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Bytes of data behind the header.
    pub(super) length: u64,
    /// The word that is cleared when the token is revoked, and its value until then.
    pub(super) word: u32,
    pub(super) serial: u64,
}

impl Place {
    pub(super) const BYTES: usize = 20;

    pub(super) fn encode(self) -> [u8; Self::BYTES] {
        let mut w = Writer::new();
        w.u64(self.length).u32(self.word).u64(self.serial);
        let mut out = [0; Self::BYTES];
        out.copy_from_slice(w.as_bytes());
        out
    }

    /// The counterpart of [`encode`](Self::encode).
    ///
    /// # Errors
    /// `Remote` for other bytes, and for a place that cannot be.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes);
        let place = Self { length: r.u64()?, word: r.u32()?, serial: r.u64()? };
        r.finish()?;
        if place.word >= WORDS || place.serial == super::revocation::REVOKED {
            return Err(Error::new(ErrorKind::Remote, "progress", format!("{place:?} is not possible")));
        }
        Ok(place)
    }
}

/// One exposure of a peer's memory, mapped. Unmapped with the last share in it.
#[derive(Debug)]
pub(super) struct Mapping {
    view: View,
    place: Place,
}

impl Mapping {
    /// Maps the memory at `place`.
    ///
    /// # Errors
    /// `Remote` for a descriptor that is no such memory: then the peer breaks the protocol. Others if this process has no room.
    pub(super) fn open(fd: OwnedFd, place: Place) -> Result<Self> {
        let whole = usize::try_from(place.length).ok().filter(|_| place.length <= MAX_LENGTH);
        let Some(whole) = whole.and_then(|length| length.checked_add(HEADER)) else {
            let text = format!("{} bytes are too many to map", place.length);
            return Err(Error::new(ErrorKind::Exhausted, "read", text));
        };
        Ok(Self { view: View::open(fd, whole)?, place })
    }

    /// Bytes of data.
    pub(super) fn len(&self) -> u64 {
        self.place.length
    }

    fn word(&self) -> Result<u64> {
        self.view.word(self.place.word as usize * size_of::<u64>())
    }

    pub(super) fn is_revoked(&self) -> bool {
        self.word().is_ok_and(|word| word != self.place.serial)
    }

    /// Copies `into.len()` bytes from `offset`, which are within the data. False if the memory is not exposed any more: then `into` may
    /// hold anything.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> Result<bool> {
        let at = place_of(offset)?;
        copy_valid(|| self.word(), self.place.serial, || self.view.read(at, into))
    }

    /// As [`read`](Self::read), to memory that others may read meanwhile.
    pub(super) fn copy(&self, offset: u64, into: &VolatileSlice<'_>) -> Result<bool> {
        let at = place_of(offset)?;
        copy_valid(|| self.word(), self.place.serial, || self.view.copy(at, into))
    }
}

/// Where byte `offset` of the data lies in the mapping.
fn place_of(offset: u64) -> Result<usize> {
    let place = usize::try_from(offset).ok().and_then(|offset| HEADER.checked_add(offset));
    place.ok_or_else(|| Error::usage("read", format!("no mapped memory has a byte {offset}")))
}

/// A copy for the oldest read, made with no lock held.
pub(super) struct Copying {
    pub(super) mapping: Arc<Mapping>,
    pub(super) into: Vec<u8>,
    /// Where the bytes go in place of `into`.
    pub(super) placing: Option<Arc<Placing>>,
    pub(super) offset: u64,
    pub(super) length: usize,
    pub(super) got: usize,
}

impl Copying {
    /// Copies up to `most` bytes. Returns how many, and whether they are valid.
    pub(super) fn step(&mut self, most: usize) -> (usize, Result<bool>) {
        let end = self.length.min(self.got.saturating_add(most));
        let (from, count) = (self.offset + self.got as u64, end - self.got);
        let valid = match &self.placing {
            Some(placing) => placing.bytes(self.got, count).and_then(|bytes| self.mapping.copy(from, &bytes)),
            None => self.mapping.read(from, &mut self.into[self.got..end]),
        };
        self.got = end;
        (count, valid)
    }
}

/// The mappings of one peer's memory, the latest used first.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    all: Vec<(Token, Arc<Mapping>)>,
}

impl Mappings {
    /// The mapping of the memory that `token` stands for. Every byte of the token must be as it was when its owner checked it.
    pub(super) fn get(&mut self, token: &Token) -> Option<Arc<Mapping>> {
        let index = self.all.iter().position(|(known, _)| known == token)?;
        self.all[..=index].rotate_right(1);
        Some(self.all[0].1.clone())
    }

    /// Keeps `mapping`; gives up those that were revoked, and those not used for longest.
    pub(super) fn add(&mut self, token: Token, mapping: Arc<Mapping>) {
        self.sweep();
        self.all.retain(|(known, _)| *known != token);
        self.all.insert(0, (token, mapping));
        let mut bytes = 0_usize;
        let fits = self.all.iter().take(MAX_MAPPINGS).take_while(|(_, mapping)| {
            bytes = bytes.saturating_add(mapping.view.len());
            bytes <= MAX_BYTES
        });
        let count = fits.count().max(1);
        self.all.truncate(count);
    }

    /// Gives up mappings of memory that is not exposed any more, so that its owner's system gets it back.
    pub(super) fn sweep(&mut self) {
        self.all.retain(|(_, mapping)| !mapping.is_revoked());
    }

    pub(super) fn clear(&mut self) {
        self.all = Vec::new();
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::super::shared::{SharedMemory, Shown};
    use super::*;

    fn token(slot: u32) -> Token {
        Token {
            generation: 1,
            slot,
            age: 0,
            length: 8,
            shared: true,
            device: false,
            secret: [slot as u8; 16],
        }
    }

    fn mapped(memory: &SharedMemory) -> (Shown, Arc<Mapping>) {
        let shown = memory.show().unwrap();
        let place = Place { length: memory.len() as u64, word: shown.index, serial: shown.serial };
        let fd = shown.descriptor().unwrap().try_clone_to_owned().unwrap();
        (shown, Arc::new(Mapping::open(fd, place).unwrap()))
    }

    #[test]
    fn nothing_is_read_after_the_revocation() {
        let memory = SharedMemory::allocate(100).unwrap();
        memory.fill(7);
        let ((shown, mapping), (_other, untouched)) = (mapped(&memory), mapped(&memory));
        let mut bytes = [0; 10];
        assert!(mapping.read(90, &mut bytes).unwrap() && bytes == [7; 10]);
        assert!(mapping.read(91, &mut bytes).is_err(), "past the end");
        drop(shown);
        assert!(mapping.is_revoked() && !mapping.read(90, &mut bytes).unwrap());
        assert!(untouched.read(90, &mut bytes).unwrap(), "the same memory under another token");
    }

    #[test]
    fn as_many_are_kept_as_may_be_and_none_that_was_revoked() {
        let memory = SharedMemory::allocate(8).unwrap();
        let all: Vec<(Shown, Arc<Mapping>)> = (0..70).map(|_| mapped(&memory)).collect();
        let mut mappings = Mappings::default();
        for (slot, (_, mapping)) in all.iter().enumerate().take(MAX_MAPPINGS) {
            mappings.add(token(slot as u32), mapping.clone());
        }
        assert!(mappings.get(&token(0)).is_some(), "used last from now on");
        mappings.add(token(64), all[64].1.clone());
        assert_eq!(mappings.len(), MAX_MAPPINGS);
        assert!(mappings.get(&token(0)).is_some() && mappings.get(&token(1)).is_none());
        for changed in [
            Token { secret: [1; 16], ..token(0) },
            Token { age: 1, ..token(0) },
            Token { length: 9, ..token(0) },
            Token { generation: 2, ..token(0) },
        ] {
            assert!(mappings.get(&changed).is_none(), "{changed:?}");
        }
        drop(all);
        mappings.sweep();
        assert_eq!(mappings.len(), 0);
    }

    #[test]
    fn mappings_take_bounded_address_space() {
        // Pages are not taken before they are touched.
        let all: Vec<SharedMemory> =
            [1 << 30, 3 << 30, 5 << 30].map(|length| SharedMemory::allocate(length).unwrap()).to_vec();
        let mapped: Vec<(Shown, Arc<Mapping>)> = all.iter().map(mapped).collect();
        let mut mappings = Mappings::default();
        mappings.add(token(0), mapped[0].1.clone());
        mappings.add(token(1), mapped[1].1.clone());
        assert_eq!(mappings.len(), 1, "the headers are above the limit");
        mappings.add(token(0), mapped[0].1.clone());
        assert_eq!(mappings.len(), 1);
        mappings.add(token(2), mapped[2].1.clone());
        assert!(mappings.len() == 1 && mappings.get(&token(2)).is_some(), "one is kept in any case");
    }

    #[test]
    fn places_that_cannot_be_are_refused() {
        let memory = SharedMemory::allocate(100).unwrap();
        let shown = memory.show().unwrap();
        let open = |length, word| {
            let fd = shown.descriptor().unwrap().try_clone_to_owned().unwrap();
            Mapping::open(fd, Place { length, word, serial: shown.serial }).map_err(|error| error.kind())
        };
        assert!(open(100, shown.index).is_ok());
        for length in [0, 99, 101] {
            assert_eq!(open(length, shown.index).unwrap_err(), ErrorKind::Remote);
        }
        for length in [u64::MAX, MAX_LENGTH + 1, u64::MAX - HEADER as u64] {
            assert_eq!(open(length, shown.index).unwrap_err(), ErrorKind::Exhausted);
        }
        let place = Place { length: 100, word: WORDS, serial: 1 };
        assert!(Place::decode(&place.encode()).is_err());
        assert!(Place::decode(&Place { word: 0, serial: 0, ..place }.encode()).is_err());
        assert!(Place::decode(&[0; Place::BYTES + 1]).is_err() && Place::decode(&[]).is_err());
    }

    proptest! {
        #[test]
        fn places_round_trip(length: u64, word in 0..WORDS, serial in 1_u64..) {
            let place = Place { length, word, serial };
            prop_assert_eq!(Place::decode(&place.encode()).unwrap(), place);
        }
    }
}
