//! Registered memory into which short exposed memory is copied, so that it needs no registration of its own.
//!
//! A copy lives as long as its exposure. Memory that its owner may write to is never copied, so a copy is as good as the memory.
//!
//! Each place is a region by itself, and bytes of earlier copies are cleared: soft-RoCE (Linux 6.1) checks the range of the region and not
//! that of the window, so that a peer may be able to read all of the place that holds its copy.

use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{MmapMut, MmapRaw};

use super::naming::made_up;
use super::regions::Regions;
use crate::error::{Error, Result};
use crate::net::random_bytes;
use crate::rdma::{Access, MemoryRegion, ProtectionDomain};
use crate::sync::{Mutex, lock};
use crate::volatile::VolatileSlice;

/// The longest memory that is copied. Copying so much takes about as long as registering it.
pub(super) const LONGEST: usize = 1 << 20;
/// Lengths of places, and how many there may be of each: 8 MiB and 44 registrations, made as they are needed.
const CLASSES: [(usize, usize); 3] = [(64 << 10, 32), (256 << 10, 8), (LONGEST, 4)];

/// The memory of one device.
#[derive(Debug, Default)]
pub(super) struct Copies {
    classes: [Mutex<Class>; CLASSES.len()],
}

#[derive(Debug, Default)]
struct Class {
    made: usize,
    free: Vec<Place>,
}

#[derive(Debug)]
struct Place {
    /// Given up before `memory`, of which it keeps a share.
    region: MemoryRegion,
    memory: Arc<MmapRaw>,
    length: usize,
    /// Bytes from the beginning that may not be zero.
    dirty: usize,
}

/// A copy. Its place is free when this is dropped: before, nobody may be able to read it any more.
#[derive(Debug)]
pub(in crate::message) struct Held {
    copies: Arc<Copies>,
    class: usize,
    /// There until the drop.
    place: Option<Place>,
    region: MemoryRegion,
}

impl Copies {
    /// A copy of `bytes`, in memory that is registered with `domain` for windows; registrations in `kept` may make room. `None` if there is no room, or if they are too many.
    ///
    /// # Errors
    /// Those of a registration.
    pub(super) fn copy(
        self: &Arc<Self>,
        domain: &ProtectionDomain,
        kept: &Regions,
        bytes: &[u8],
    ) -> Result<Option<Held>> {
        for (class, (length, most)) in CLASSES.into_iter().enumerate() {
            if bytes.len() > length {
                continue;
            }
            let mut state = lock(&self.classes[class]);
            let free = state.free.pop();
            if free.is_none() && state.made == most {
                continue;
            }
            state.made += usize::from(free.is_none());
            drop(state);
            let place = free.map_or_else(|| Place::new(domain, kept, length), Ok);
            let mut place = place.inspect_err(|_| lock(&self.classes[class]).made -= 1)?;
            place.fill(bytes);
            let region = place.region.clone();
            return Ok(Some(Held { copies: self.clone(), class, place: Some(place), region }));
        }
        Ok(None)
    }
}

impl Place {
    fn new(domain: &ProtectionDomain, kept: &Regions, length: usize) -> Result<Self> {
        let failed = |error| Error::system("read", "no memory for copies", error);
        let memory = Arc::new(MmapRaw::from(MmapMut::map_anon(length).map_err(failed)?));
        let named = made_up(memory.as_mut_ptr().addr() as u64, u64::from_le_bytes(random_bytes()?));
        let region = kept.making_room(|| {
            // SAFETY: the mapping stays as long as the share in it that the region keeps, and is accessed through raw pointers only. The
            // device reads what a window shows.
            unsafe { domain.register_as(memory.as_mut_ptr(), length, named, Access::BIND, memory.clone()) }
        })?;
        Ok(Self { region, memory, length, dirty: 0 })
    }

    fn fill(&mut self, bytes: &[u8]) {
        let memory = self.bytes();
        memory.write(0, bytes).expect("places of its class are as long");
        if let Some(rest) = self.dirty.checked_sub(bytes.len()) {
            memory.slice(bytes.len(), rest).expect("within the place").fill(0);
        }
        self.dirty = bytes.len();
    }

    fn bytes(&self) -> VolatileSlice<'_> {
        let start = NonNull::new(self.memory.as_mut_ptr()).expect("a mapping is not at address 0");
        // SAFETY: the mapping has `length` bytes and lives as long as `self`.
        unsafe { VolatileSlice::new(start, self.length) }
    }
}

impl Held {
    /// The region, at whose beginning the copy is.
    pub(super) fn region(&self) -> &MemoryRegion {
        &self.region
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        lock(&self.copies.classes[self.class]).free.extend(self.place.take());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::nic;
    use super::*;

    /// All of the place that holds the copy.
    fn all(held: &Held) -> Vec<u8> {
        let place = held.place.as_ref().unwrap();
        let mut bytes = vec![9; place.length];
        place.bytes().read(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn places_are_given_out_once_and_used_again() {
        let (nic, copies) = (nic("null0"), Arc::new(Copies::default()));
        let copy = |bytes: &[u8]| copies.copy(&nic.domain, &nic.regions, bytes).unwrap();
        let most: usize = CLASSES.iter().map(|(_, most)| most).sum();
        for round in 0..3 {
            let held: Vec<Held> = (0..most).map(|n| copy(&[n as u8; 1000]).unwrap()).collect();
            assert!(copy(&[1]).is_none(), "there are only so many");
            for (n, held) in held.iter().enumerate() {
                let bytes = all(held);
                assert!(bytes[..1000] == [n as u8; 1000] && bytes[1000..].iter().all(|byte| *byte == 0));
            }
            assert_eq!(nic.registrations(), most as u64, "round {round}");
        }
        assert!(copy(&vec![1; LONGEST + 1]).is_none());
    }

    /// The next holder's peer may be able to read all of the place.
    #[test]
    fn nothing_is_left_of_an_earlier_copy() {
        let (nic, copies) = (nic("null0"), Arc::new(Copies::default()));
        for length in [LONGEST, 70_000, 256 << 10, 0, 1, 64 << 10, 3] {
            let held = copies.copy(&nic.domain, &nic.regions, &vec![7; length]).unwrap().unwrap();
            let bytes = all(&held);
            assert!(bytes.len() >= length && bytes[..length].iter().all(|byte| *byte == 7));
            assert!(bytes[length..].iter().all(|byte| *byte == 0), "{length} bytes");
        }
    }

    #[test]
    fn a_place_that_cannot_be_registered_is_tried_again() {
        let (nic, copies) = (nic("null0"), Arc::new(Copies::default()));
        for _ in 0..2 * CLASSES[0].1 {
            crate::rdma::standin::refuse("ibv_reg_mr", libc::ENOMEM);
            assert!(copies.copy(&nic.domain, &nic.regions, &[1]).is_err());
        }
        assert!(copies.copy(&nic.domain, &nic.regions, &[1]).unwrap().is_some());
    }
}
