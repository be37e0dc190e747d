//! Ranges of addresses: mapped pages of an object, or reserved for them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

/// A range of this process's addresses, given back when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// A mapping inside a reservation becomes inaccessible again instead of free, and at once when it is unmapped:
    /// the next mapping may already lie there when this is dropped.
    reserved: bool,
    gone: AtomicBool,
}

impl Mapping {
    /// Inaccessible addresses, `align` a power of two, at `hint` if that range happens to be free.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn reserve(len: usize, align: usize, hint: Option<u64>) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        if let Some(hint) = hint.filter(|h| *h != 0 && *h % align as u64 == 0) {
            // SAFETY: NOREPLACE never touches an existing mapping.
            let p = unsafe {
                let flags = flags | libc::MAP_FIXED_NOREPLACE;
                libc::mmap(hint as *mut libc::c_void, len, libc::PROT_NONE, flags, -1, 0)
            };
            if p != libc::MAP_FAILED {
                let got = Self { base: nonnull(p)?, len, reserved: false, gone: AtomicBool::new(false) };
                if got.address() == hint {
                    return Ok(got);
                } // a kernel before 4.17 took the address for a hint: `got` unmaps itself
            }
        }
        let total = len.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new anonymous mapping wherever the kernel likes.
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

    /// Gives the addresses back, once.
    pub(super) fn unmap(&self) {
        if self.gone.swap(true, Ordering::Relaxed) {
            return;
        }
        let p = self.base.as_ptr().cast();
        if self.reserved {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
            // SAFETY: the pages are ours until the reservation is freed, which needs them unmapped first.
            unsafe { libc::mmap(p, self.len, libc::PROT_NONE, flags, -1, 0) };
        } else {
            // SAFETY: the range is ours and nothing refers to it any more.
            unsafe { libc::munmap(p, self.len) };
        }
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Shared pages of a file: at `fixed`, which must be free addresses of a reservation, or anywhere.
    ///
    /// # Errors
    /// The system's.
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
        // SAFETY: a new mapping, or one over pages of a reservation that the caller owns and that are unmapped.
        let p = unsafe { libc::mmap(addr, len, prot, flags, fd.as_raw_fd(), offset) };
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: nonnull(p)?, len, reserved: fixed.is_some(), gone: AtomicBool::new(false) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.unmap();
    }
}

// SAFETY: a mapping is a range of addresses; it has no thread affinity, and reaching the bytes through it is the
// business of whoever does so.
unsafe impl Send for Mapping {}
// SAFETY: as above; the methods only read plain fields.
unsafe impl Sync for Mapping {}

fn trim(start: usize, len: usize) {
    if len != 0 {
        // SAFETY: a part of the mapping just made that its owner does not keep.
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
    fn reservations_are_aligned_and_survive_their_mappings() {
        let r = Mapping::reserve(8 << 20, 4 << 20, None).expect("reserve");
        assert_eq!(r.address() % (4 << 20), 0);
        let a = Object::create(2 << 20, FACTS).expect("create");
        let m = a.map(2 << 20, NonNull::new(r.address() as *mut u8)).expect("map");
        assert_eq!(m.base(), Some(r.address()));
        drop(m);
        let again = Mapping::reserve(8 << 20, 2 << 20, Some(r.address())).expect("reserve");
        assert_ne!(again.address(), r.address(), "the range is still reserved");
        let at = r.address();
        drop(r);
        let hinted = Mapping::reserve(8 << 20, 2 << 20, Some(at)).expect("reserve");
        assert_eq!(hinted.address(), at);
    }
}
