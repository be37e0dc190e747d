//! Memory that its owner can let processes of the same host map.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use super::lent::Lent;
use super::revocation::{REVOKED, before_writing};
use crate::error::{Error, Result};
use crate::fork::Creator;
use crate::shm::Published;
use crate::sync::raw::{AtomicU64, Ordering};
use crate::sync::{Mutex, lock};
use crate::volatile::VolatileSlice;

/// Bytes in front of the data: a word for each exposure at a time.
pub(super) const HEADER: usize = 4096;
/// Exposures of one piece of memory at a time that peers can map.
pub(super) const WORDS: u32 = (HEADER / size_of::<u64>()) as u32;

/// The number of the next allocation.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Pieces of memory of this process that hold a descriptor.
static HELD: AtomicU64 = AtomicU64::new(0);

/// Memory that processes of the same host and user read without their owner's help: at their first read of it they map it, and
/// from then on they copy from it themselves. [`Messenger::expose`](super::Messenger::expose) it like other memory.
///
/// It is shared, so there are no slices of it: the owner reads and writes by copying, at any time, also while it is
/// exposed. A peer that reads meanwhile gets a mixture. What is written before a message is sent is seen by a peer that
/// reads after it has got the message. Clones are the same memory.
///
/// A peer can never write to it. A peer that was once let read it keeps the memory itself until it unmaps it, which takes about a second
/// after the token was revoked, and longer if it makes no progress or means harm: so give memory of its own to data that others
/// must not see. Each piece holds one file descriptor, up to a quarter of those that the process may open; further ones work
/// alike, but are read through the owner.
#[derive(Clone, Debug)]
pub struct SharedMemory {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    memory: Arc<Published>,
    /// No other allocation of this process has the same.
    allocation: u64,
    holders: Mutex<Vec<Weak<dyn Holder>>>,
    length: usize,
    words: Mutex<Words>,
    /// A forked child shares the memory and must not revoke what its parent exposes.
    creator: Creator,
    /// Declared after the memory, so that its place is given back once the descriptor is closed.
    _place: Option<Place>,
}

/// Whoever keeps something about memory from one exposure to the next.
pub(super) trait Holder: std::fmt::Debug + Send + Sync {
    /// The memory of `allocation` is freed next.
    fn forget(&self, allocation: u64);
}

impl Drop for Inner {
    fn drop(&mut self) {
        // In a forked child, all of that is the parent's.
        if !self.creator.forked() {
            let holders = std::mem::take(&mut *lock(&self.holders));
            holders.iter().filter_map(Weak::upgrade).for_each(|holder| holder.forget(self.allocation));
        }
    }
}

/// The words of the header that are not in use, and the number of the next exposure.
#[derive(Debug)]
struct Words {
    free: Vec<u32>,
    fresh: u32,
    serial: u64,
}

/// A place among the pieces that hold a descriptor.
#[derive(Debug)]
struct Place;

impl Place {
    fn take() -> Option<Self> {
        let most = crate::descriptors::limit() / 4;
        let add = |held: u64| (held < most).then_some(held + 1);
        HELD.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok().map(|_| Self)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        HELD.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SharedMemory {
    /// `length` zero bytes. The system provides them as they are touched.
    ///
    /// # Errors
    /// `System` if there is no room, or no descriptor left.
    pub fn allocate(length: usize) -> Result<Self> {
        // No memory is longer than `isize::MAX` bytes, in whole pages.
        let most = isize::MAX as usize - (1 << 16);
        let Some(whole) = length.checked_add(HEADER).filter(|whole| *whole <= most) else {
            return Err(Error::usage("allocate", format!("{length} bytes are more than memory can have")));
        };
        let place = Place::take();
        if place.is_none() {
            log::debug!(
                "shared memory of {length} bytes is not mapped by peers: too many pieces hold a descriptor"
            );
        }
        let memory = Published::create(whole, place.is_some()).map_err(|error| error.of("allocate"))?;
        let place = place.filter(|_| memory.descriptor().is_some());
        let words = Mutex::new(Words { free: Vec::new(), fresh: 0, serial: REVOKED });
        Ok(Self {
            inner: Arc::new(Inner {
                memory: Arc::new(memory),
                allocation: ALLOCATIONS.fetch_add(1, Ordering::Relaxed),
                holders: Mutex::default(),
                length,
                words,
                creator: Creator::current(),
                _place: place,
            }),
        })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.inner.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it has a descriptor to give to peers of the same host. They map what has one if it is no longer than 1 TiB, and read all
    /// else through its owner.
    pub fn is_mappable(&self) -> bool {
        self.inner.memory.descriptor().is_some()
    }

    /// Copies `into.len()` bytes from `offset`.
    ///
    /// # Errors
    /// `InvalidUsage` for a range past the end.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.data().read(offset, into)
    }

    /// Copies `from` to `offset`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        before_writing();
        self.data().write(offset, from)
    }

    /// Sets every byte to `value`.
    pub fn fill(&self, value: u8) {
        before_writing();
        self.data().fill(value);
    }

    /// The address of its first byte, for calls that fill it, such as those of a device or of the operating system. Valid as long as the
    /// memory. Peers may read it at any moment, so never make a reference of it. After a revocation, tell the processor
    /// with `fence(Ordering::Release)` before writing, or let [`write`](Self::write) do so.
    pub fn as_ptr(&self) -> *mut u8 {
        self.data().as_ptr()
    }

    fn data(&self) -> VolatileSlice<'_> {
        self.inner.memory.memory().slice(HEADER, self.inner.length).expect("behind the header")
    }

    /// `length` bytes at `offset`, for copying there.
    pub(super) fn place(&self, offset: usize, length: usize) -> Result<VolatileSlice<'_>> {
        self.data().slice(offset, length)
    }

    /// The bytes, for sending.
    pub(super) fn lent(&self) -> Lent {
        let address = NonNull::new(self.as_ptr()).expect("memory is not at address 0");
        // SAFETY: the bytes stay mapped at that address as long as the memory, in which the owner given here has a share. They are
        // not stable: others may write to them.
        unsafe { Lent::new(address, self.len(), false, self.inner.clone()) }
    }

    /// The number of the allocation, which no other one of this process has, before or after it.
    pub(super) fn allocation(&self) -> u64 {
        self.inner.allocation
    }

    /// Has `holder` told before the memory is freed.
    pub(super) fn add_holder(&self, holder: &Arc<dyn Holder>) {
        let holder = Arc::downgrade(holder);
        let mut holders = lock(&self.inner.holders);
        holders.retain(|known| known.strong_count() > 0 && !known.ptr_eq(&holder));
        holders.push(holder);
    }

    /// A share in the mapping, but not in the allocation.
    pub(super) fn mapping(&self) -> Arc<Published> {
        self.inner.memory.clone()
    }

    /// Begins to expose it to those who map it. `None` if it cannot be mapped, or is exposed too often.
    pub(super) fn show(&self) -> Option<Shown> {
        self.inner.memory.descriptor()?;
        let mut words = lock(&self.inner.words);
        let index = match words.free.pop() {
            Some(index) => index,
            None if words.fresh < WORDS => {
                words.fresh += 1;
                words.fresh - 1
            }
            None => return None,
        };
        words.serial += 1;
        let shown = Shown { memory: self.clone(), index, serial: words.serial };
        shown.word().store(shown.serial, Ordering::Relaxed);
        Some(shown)
    }
}

/// One exposure of memory to those who map it, until [`revoke`](Self::revoke) or its drop.
#[derive(Debug)]
pub(super) struct Shown {
    memory: SharedMemory,
    /// The word in the header that belongs to it.
    pub(super) index: u32,
    /// The value of the word until it is revoked; no other exposure of this memory has the same.
    pub(super) serial: u64,
}

impl Shown {
    fn word(&self) -> &AtomicU64 {
        let at = self.index as usize * size_of::<u64>();
        self.memory.inner.memory.memory().word64(at).expect("a word of the header")
    }

    /// The descriptor to hand to readers.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.memory.inner.memory.descriptor()
    }

    pub(super) fn length(&self) -> usize {
        self.memory.len()
    }

    /// Ends it for all who have mapped the memory. Nothing that is written afterwards is taken for data of this exposure.
    pub(super) fn revoke(&self) {
        if !self.memory.inner.creator.forked() {
            self.word().store(REVOKED, Ordering::Relaxed);
            // Orders the word before later writes of this thread; `write` has a fence for those of others.
            before_writing();
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.revoke();
        lock(&self.memory.inner.words).free.push(self.index);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn word(memory: &SharedMemory, index: u32) -> u64 {
        let words = memory.inner.memory.memory();
        words.word64(index as usize * 8).unwrap().load(Ordering::Relaxed)
    }

    #[test]
    fn the_owner_reads_and_writes_within_bounds() {
        let memory = SharedMemory::allocate(5000).unwrap();
        let mut bytes = [9; 5];
        memory.read(4995, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 5]);
        memory.write(4995, &[1, 2, 3, 4, 5]).unwrap();
        memory.clone().read(4995, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4, 5]);
        assert!(memory.write(4996, &bytes).is_err() && memory.read(usize::MAX, &mut bytes).is_err());
        let shown = memory.show().unwrap();
        memory.fill(0xff);
        assert_eq!(word(&memory, shown.index), shown.serial, "the header is none of the data");
        memory.read(0, &mut bytes).unwrap();
        assert_eq!((bytes, memory.len()), ([0xff; 5], 5000));
        let empty = SharedMemory::allocate(0).unwrap();
        assert!(empty.is_empty() && empty.write(0, &[]).is_ok() && empty.write(0, &[1]).is_err());
        assert!(SharedMemory::allocate(usize::MAX).is_err() && SharedMemory::allocate(1 << 60).is_err());
        let error = SharedMemory::allocate(isize::MAX as usize).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidUsage, "{error}");
    }

    #[test]
    fn no_two_exposures_have_the_same_word_and_number() {
        let memory = SharedMemory::allocate(100).unwrap();
        let (first, second) = (memory.show().unwrap(), memory.show().unwrap());
        assert_ne!(first.index, second.index);
        let (index, serial) = (first.index, first.serial);
        drop(first);
        assert_eq!(word(&memory, index), REVOKED);
        assert_eq!(word(&memory, second.index), second.serial, "another exposure is not touched");
        let third = memory.show().unwrap();
        assert!(third.index == index && third.serial > serial, "the word is used again, its number is not");
        let all: Vec<Shown> = std::iter::from_fn(|| memory.show()).collect();
        assert_eq!(all.len(), WORDS as usize - 2);
        drop(all);
        assert!(memory.show().is_some());
    }

    #[test]
    fn a_forked_child_revokes_nothing() {
        let memory = SharedMemory::allocate(100).unwrap();
        let shown = memory.show().unwrap();
        let (index, serial) = (shown.index, shown.serial);
        // SAFETY: the child drops one value, whose drop does nothing there, and leaves with _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(shown);
            // SAFETY: _exit is async-signal-safe.
            unsafe { libc::_exit(0) };
        }
        let mut status = -1;
        // SAFETY: `child` is ours and `status` is a live output.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, word(&memory, index)), (0, serial));
    }

    #[derive(Debug, Default)]
    struct Noted(Mutex<Vec<u64>>);

    impl Holder for Noted {
        fn forget(&self, allocation: u64) {
            lock(&self.0).push(allocation);
        }
    }

    #[test]
    fn whoever_keeps_something_about_memory_is_told_once_before_it_is_freed() {
        let noted = Arc::new(Noted::default());
        let (holder, gone): (Arc<dyn Holder>, Arc<dyn Holder>) = (noted.clone(), Arc::new(Noted::default()));
        let memory = SharedMemory::allocate(100).unwrap();
        let (allocation, clone) = (memory.allocation(), memory.clone());
        [&holder, &gone, &holder].into_iter().for_each(|holder| memory.add_holder(holder));
        drop((memory, gone));
        assert_eq!(*lock(&noted.0), [0; 0], "a clone is the same memory");
        drop(clone);
        assert_eq!(*lock(&noted.0), [allocation]);
    }
}
