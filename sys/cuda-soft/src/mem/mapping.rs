//! Address ranges of this process: reserved, or backed by pages of a memory object.
//!
//! With `AQUEDUCT_SOFT_UNKIND` a range that was freed is given out again as soon as one is asked for that fits into it, whatever
//! the kernel would choose: whoever keeps something by the address of memory that is gone then finds other memory there.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::config;

/// A range of this process's addresses. Dropping it unmaps the range.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Whether the range lies inside a reservation. If so, unmapping makes it inaccessible but keeps it reserved.
    reserved: bool,
    /// Whether [`unmap`](Self::unmap) has run. The drop must not run it again: by then the reservation may hold another
    /// mapping at this place.
    gone: AtomicBool,
}

impl Mapping {
    /// Reserves inaccessible addresses, at `hint` if that range is free. `align` is a power of two.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub(crate) fn reserve(len: usize, align: usize, hint: Option<u64>) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        if let Some(hint) = hint.filter(|h| *h != 0 && *h % align as u64 == 0) {
            // SAFETY: MAP_FIXED_NOREPLACE never replaces an existing mapping.
            let p = unsafe {
                let flags = flags | libc::MAP_FIXED_NOREPLACE;
                libc::mmap(hint as *mut libc::c_void, len, libc::PROT_NONE, flags, -1, 0)
            };
            if p != libc::MAP_FAILED {
                let got = Self { base: nonnull(p)?, len, reserved: false, gone: AtomicBool::new(false) };
                if got.address() == hint {
                    return Ok(got);
                }
                // A kernel before 4.17 treats the address as a hint only. Dropping `got` unmaps the wrong range.
            }
        }
        if let Some(base) = FREED.take(len, align, |at| fixed(at, len, libc::PROT_NONE, flags, -1)) {
            return Ok(Self { base: nonnull(base)?, len, reserved: false, gone: AtomicBool::new(false) });
        }
        let total = len.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: creates a new anonymous mapping at an address of the kernel's choice.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), total, libc::PROT_NONE, flags, -1, 0) };
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = p as usize;
        let base = start.next_multiple_of(align);
        trim(start, base - start);
        trim(base + len, start + total - base - len);
        Ok(Self {
            base: nonnull(base as *mut libc::c_void)?,
            len,
            reserved: false,
            gone: AtomicBool::new(false),
        })
    }

    /// Unmaps the range. Later calls do nothing.
    pub(super) fn unmap(&self) {
        if self.gone.swap(true, Ordering::Relaxed) {
            return;
        }
        let p = self.base.as_ptr().cast();
        if self.reserved {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
            // SAFETY: the reservation owns these pages and cannot be freed before they are unmapped.
            unsafe { libc::mmap(p, self.len, libc::PROT_NONE, flags, -1, 0) };
        } else {
            // SAFETY: this mapping owns the range, and the caller has ended all access to it.
            unsafe { libc::munmap(p, self.len) };
            if unkind() {
                FREED.add(p as usize, self.len);
            }
        }
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Maps the first pages of a file anywhere, and where memory was freed if the device is unkind.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub(super) fn anywhere(fd: &OwnedFd, len: usize) -> io::Result<Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        match FREED.take(len, 4096, |at| fixed(at, len, prot, libc::MAP_SHARED, fd.as_raw_fd())) {
            Some(base) => {
                Ok(Self { base: nonnull(base)?, len, reserved: false, gone: AtomicBool::new(false) })
            }
            None => Self::of(fd, 0, len, None),
        }
    }

    /// Maps shared pages of a file, at `fixed` (unmapped addresses of a reservation) or anywhere.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub(super) fn of(
        fd: &OwnedFd,
        offset: usize,
        len: usize,
        fixed: Option<NonNull<u8>>,
    ) -> io::Result<Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let (addr, flags) = match fixed {
            Some(p) => (p.as_ptr().cast(), libc::MAP_SHARED | libc::MAP_FIXED),
            None => (std::ptr::null_mut(), libc::MAP_SHARED),
        };
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: creates a new mapping, or replaces unmapped pages of a reservation that the caller owns.
        let p = unsafe { libc::mmap(addr, len, prot, flags, fd.as_raw_fd(), offset) };
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: nonnull(p)?, len, reserved: fixed.is_some(), gone: AtomicBool::new(false) })
    }
}

/// The ranges that were freed last.
static FREED: Freed = Freed(Mutex::new(Vec::new()));

/// Ranges by address and length, the latest last.
struct Freed(Mutex<Vec<(usize, usize)>>);

impl Freed {
    const MOST: usize = 256;

    fn add(&self, base: usize, len: usize) {
        let mut all = self.0.lock();
        if all.len() == Self::MOST {
            all.remove(0);
        }
        all.push((base, len));
    }

    /// Takes `len` bytes from the range freed last of those where they fit and `map` can have them: others may have got the
    /// addresses meanwhile.
    fn take(
        &self,
        len: usize,
        align: usize,
        map: impl Fn(usize) -> Option<*mut libc::c_void>,
    ) -> Option<*mut libc::c_void> {
        let mut all = self.0.lock();
        let mut at = all.len();
        while at > 0 {
            at -= 1;
            let (base, room) = all[at];
            let start = base.next_multiple_of(align);
            if start + len > base + room {
                continue;
            }
            all.remove(at);
            if let Some(mapped) = map(start) {
                if start + len < base + room {
                    all.insert(at, (start + len, base + room - start - len));
                }
                return Some(mapped);
            }
        }
        None
    }
}

/// Whether `AQUEDUCT_SOFT_UNKIND` is set.
fn unkind() -> bool {
    config::current().is_ok_and(|config| config.unkind.is_some())
}

/// Maps `len` bytes at `at`, unless something is there.
fn fixed(at: usize, len: usize, prot: i32, flags: i32, fd: i32) -> Option<*mut libc::c_void> {
    let wanted = std::ptr::without_provenance_mut(at);
    // SAFETY: MAP_FIXED_NOREPLACE never replaces an existing mapping.
    let p = unsafe { libc::mmap(wanted, len, prot, flags | libc::MAP_FIXED_NOREPLACE, fd, 0) };
    if p == libc::MAP_FAILED {
        return None;
    }
    if p.addr() == at {
        return Some(p);
    }
    // A kernel before 4.17 treats the address as a hint only.
    // SAFETY: just mapped, and nobody else knows of it.
    unsafe { libc::munmap(p, len) };
    None
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.unmap();
    }
}

// SAFETY: a mapping is a range of addresses without thread affinity. It gives no access to the bytes; whoever accesses
// them must prove that access sound.
unsafe impl Send for Mapping {}
// SAFETY: as above; all methods take fields by value or change only the atomic.
unsafe impl Sync for Mapping {}

fn trim(start: usize, len: usize) {
    if len != 0 {
        // SAFETY: `reserve` has just created this range and does not keep it.
        unsafe { libc::munmap(start as *mut libc::c_void, len) };
    }
}

fn nonnull(p: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    NonNull::new(p.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::object::{Facts, Kind, Object};

    const FACTS: Facts = Facts { kind: Kind::Physical, device: 0, handle_types: 0 };

    #[test]
    fn what_was_freed_last_and_fits_is_given_out_again() {
        let freed = Freed(Mutex::default());
        let take = |len, align, taken: &[usize]| {
            let map = |at: usize| (!taken.contains(&at)).then(|| std::ptr::without_provenance_mut(at));
            freed.take(len, align, map).map(|p| p.addr())
        };
        assert_eq!(take(1, 1, &[]), None);
        for (base, len) in [(0x10000, 0x4000), (0x20000, 0x1000), (0x31000, 0x8000)] {
            freed.add(base, len);
        }
        assert_eq!(take(0x3000, 1, &[]), Some(0x31000));
        assert_eq!(take(0x4000, 0x2000, &[]), Some(0x34000), "the rest of the same range");
        assert_eq!(take(0x1000, 1, &[0x38000]), Some(0x20000), "somebody else has the last");
        assert_eq!(take(0x4000, 0x10000, &[]), Some(0x10000));
        assert_eq!(take(1, 1, &[]), None);
    }

    #[test]
    fn reservations_are_aligned_and_survive_their_mappings() {
        let r = Mapping::reserve(8 << 20, 4 << 20, None).expect("reserve");
        assert_eq!(r.address() % (4 << 20), 0);
        let a = Object::create(2 << 20, FACTS).expect("create");
        let m = a.map(2 << 20, NonNull::new(r.address() as *mut u8)).expect("map");
        assert_eq!(m.address(), r.address());
        drop(m);
        let again = Mapping::reserve(8 << 20, 2 << 20, Some(r.address())).expect("reserve");
        assert_ne!(again.address(), r.address(), "the range is still reserved");
        let at = r.address();
        drop(r);
        let hinted = Mapping::reserve(8 << 20, 2 << 20, Some(at)).expect("reserve");
        assert_eq!(hinted.address(), at);
    }
}
