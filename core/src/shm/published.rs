//! Memory that one process writes and others can only read.
//!
//! Its maker maps it for writing and then seals it against every further write (`F_SEAL_FUTURE_WRITE`): whoever gets the
//! descriptor can neither write to the file, nor map it for writing, nor lift the seal. A descriptor opened for reading alone
//! would not do: a process of the same user could open the file again, by its name in `/proc/self/fd`, for writing.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use memmap2::{MmapOptions, MmapRaw};

use super::{SEALS, add_seals, check_sealed, create, memory_of};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::raw::{AtomicU64, Ordering};
use crate::volatile::VolatileSlice;

/// The maker's side.
#[derive(Debug)]
pub struct Published {
    map: MmapRaw,
    file: Option<File>,
}

impl Published {
    /// New memory of `len` zero bytes. With `shared`, it can be handed to others, unless the kernel is too old for the seal
    /// (Linux 5.1); otherwise it takes no descriptor.
    pub fn create(len: usize, shared: bool) -> Result<Self> {
        let failed =
            |error| Error::system("memfd", format!("cannot create shared memory of {len} bytes"), error);
        let file = create(len).map_err(failed)?;
        let map = MmapOptions::new().len(len).map_raw(&file).map_err(failed)?;
        // With the mapping made: the seal forbids all later ones that could write.
        let is_sealed = shared && add_seals(&file, SEALS | libc::F_SEAL_FUTURE_WRITE).is_ok();
        Ok(Self { map, file: is_sealed.then_some(file) })
    }

    /// The bytes.
    pub fn memory(&self) -> VolatileSlice<'_> {
        memory_of(&self.map)
    }

    /// The descriptor to hand to readers; `None` if the memory cannot be shared.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(File::as_fd)
    }
}

/// A reader's mapping. The owner may write to the memory at any moment.
#[derive(Debug)]
pub struct View {
    map: MmapRaw,
}

impl View {
    /// Maps `len` bytes that another process has made, for reading.
    ///
    /// # Errors
    /// `Remote` for a descriptor that is not a memfd of that size sealed against shrinking: reading from it could end this process.
    /// `System` if this process has no room for the mapping.
    pub fn open(fd: OwnedFd, len: usize) -> Result<Self> {
        let file = File::from(fd);
        check_sealed(&file, len)?;
        let failed = |error| Error::system("memfd", format!("cannot map {len} bytes of a peer"), error);
        Ok(Self { map: MmapOptions::new().len(len).map_raw_read_only(&file).map_err(failed)? })
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Never: there are no mappings of 0 bytes.
    pub fn is_empty(&self) -> bool {
        self.map.len() == 0
    }

    /// The word of eight bytes at `offset`, as it is now.
    ///
    /// # Errors
    /// `Remote` if it is not within the memory, or not aligned.
    pub fn word(&self, offset: usize) -> Result<u64> {
        if !offset.is_multiple_of(8) || offset.checked_add(8).is_none_or(|end| end > self.len()) {
            return Err(Error::new(ErrorKind::Remote, "memfd", format!("no word lies at offset {offset}")));
        }
        // SAFETY: within the mapping, which lives as long as `self` and cannot shrink (sealed), and aligned, because mappings
        // begin at a page. It is readable only; a relaxed load of eight bytes is allowed there.
        let word = unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(offset).cast()) };
        Ok(word.load(Ordering::Relaxed))
    }

    /// Copies `into.len()` bytes from `offset`. If the owner writes to them meanwhile, the copy is a mixture.
    ///
    /// # Errors
    /// `Remote` if they do not all lie within the memory.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.check(offset, into.len())?;
        // SAFETY: the range lies within the mapping (checked above), which lives as long as `self` and cannot shrink; `into` is
        // exclusive, so the two do not overlap.
        unsafe {
            let from = NonNull::new_unchecked(self.map.as_mut_ptr().add(offset));
            copy(from, NonNull::from(&mut *into).cast(), into.len());
        }
        Ok(())
    }

    /// As [`read`](Self::read), to memory that others may read meanwhile.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn copy(&self, offset: usize, into: &VolatileSlice<'_>) -> Result<()> {
        self.check(offset, into.len())?;
        // SAFETY: the range lies within the mapping (checked above), which lives as long as `self` and cannot shrink. `into` is writable by the
        // contract of its slice, and no part of the mapping, which is another one.
        unsafe {
            let from = NonNull::new_unchecked(self.map.as_mut_ptr().add(offset));
            copy(from, NonNull::new_unchecked(into.as_ptr()), into.len());
        }
        Ok(())
    }

    fn check(&self, offset: usize, length: usize) -> Result<()> {
        if offset.checked_add(length).is_none_or(|end| end > self.len()) {
            let text = format!("offset {offset} + {length} bytes is past the end of {}", self.len());
            return Err(Error::new(ErrorKind::Remote, "memfd", text));
        }
        Ok(())
    }
}

type Memcpy = unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, usize) -> *mut libc::c_void;

/// The C library's copy, at full speed.
static MEMCPY: Memcpy = libc::memcpy;

/// Copies bytes that another process may write meanwhile, or to where others may read.
///
/// A plain copy would promise the compiler that nobody does. So the function is loaded from a place that the compiler must
/// assume to change: it knows nothing of the function called, which may as well copy byte by byte with relaxed atomic loads.
/// The machine code of the C library copes with writers: each byte is one that was there meanwhile.
///
/// # Safety
/// `length` bytes at `from` are readable, as many at `into` writable, and others at most read them. They do not overlap.
unsafe fn copy(from: NonNull<u8>, into: NonNull<u8>, length: usize) {
    // SAFETY: a valid static.
    let memcpy = unsafe { std::ptr::read_volatile(&raw const MEMCPY) };
    // SAFETY: the caller's promise.
    unsafe { memcpy(into.as_ptr().cast(), from.as_ptr().cast(), length) };
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd;

    use super::super::Segment;
    use super::*;

    fn fd(published: &Published) -> OwnedFd {
        published.descriptor().unwrap().try_clone_to_owned().unwrap()
    }

    #[test]
    fn a_reader_sees_what_the_owner_writes_then_and_later() {
        let owner = Published::create(10_000, true).unwrap();
        owner.memory().write(9_990, b"0123456789").unwrap();
        let view = View::open(fd(&owner), 10_000).unwrap();
        let mut seen = [0; 10];
        view.read(9_990, &mut seen).unwrap();
        assert_eq!(&seen, b"0123456789");
        owner.memory().word64(8).unwrap().store(7, Ordering::Relaxed);
        assert_eq!(view.word(8).unwrap(), 7);
        drop(owner);
        view.read(9_991, &mut seen[..9]).unwrap();
        assert_eq!(&seen[..9], b"123456789", "the mapping outlives its owner");
        assert!(view.read(9_991, &mut seen).is_err() && view.read(usize::MAX, &mut seen).is_err());
        assert!(view.read(10_000, &mut []).is_ok() && view.read(10_001, &mut []).is_err());
        assert!(view.word(4).is_err() && view.word(9_999).is_err() && view.word(usize::MAX - 7).is_err());
    }

    /// A reader with the descriptor tries everything that could change the memory.
    #[test]
    fn nobody_but_the_owner_can_write_or_resize() {
        let owner = Published::create(8192, true).unwrap();
        let fd = fd(&owner);
        let mut again =
            File::options().read(true).write(true).open(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
        for file in [&File::from(fd), &again] {
            assert!(MmapOptions::new().len(8192).map_raw(file).is_err(), "mapped for writing");
            assert!(file.set_len(1).is_err() && file.set_len(1 << 20).is_err());
            // SAFETY: no pointers are passed.
            let punched = unsafe {
                let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                libc::fallocate(file.as_raw_fd(), how, 0, 4096)
            };
            assert_eq!(punched, -1, "punched a hole");
            assert!(add_seals(file, libc::F_SEAL_WRITE).is_err(), "sealed it further");
            let map = MmapOptions::new().len(8192).map_raw_read_only(file).unwrap();
            // SAFETY: the mapping is the test's own.
            let made =
                unsafe { libc::mprotect(map.as_mut_ptr().cast(), 8192, libc::PROT_READ | libc::PROT_WRITE) };
            assert_eq!(made, -1, "made writable");
        }
        assert!(again.write_all(b"x").is_err());
        owner.memory().write(0, b"owner").unwrap();
    }

    #[test]
    fn what_could_end_the_reader_is_not_mapped() {
        let owner = Published::create(8192, true).unwrap();
        for len in [0, 1, 8191, 8193, usize::MAX] {
            assert_eq!(View::open(fd(&owner), len).unwrap_err().kind(), ErrorKind::Remote, "{len}");
        }
        let open = create(8192).unwrap();
        let error = View::open(open.into(), 8192).unwrap_err();
        assert!(error.kind() == ErrorKind::Remote && error.message().contains("sealed"), "{error}");
        let zero = File::open("/dev/zero").unwrap();
        assert_eq!(View::open(zero.into(), 8192).unwrap_err().kind(), ErrorKind::Remote);
        // Huge pages may run out at the first access, which is SIGBUS, sealed or not.
        // SAFETY: the name is a C string; the result is checked.
        let huge = unsafe {
            let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB;
            libc::memfd_create(c"huge".as_ptr(), flags)
        };
        if huge >= 0 {
            // SAFETY: just opened.
            let huge = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(huge) };
            huge.set_len(2 << 20).unwrap();
            add_seals(&huge, SEALS).unwrap();
            let error = View::open(huge.try_clone().unwrap().into(), 2 << 20).unwrap_err();
            assert!(error.kind() == ErrorKind::Remote && error.message().contains("huge"), "{error}");
            assert!(Segment::open(huge.into(), 2 << 20).is_err());
        }
    }

    #[test]
    fn memory_that_is_not_shared_has_no_descriptor() {
        let owner = Published::create(100, false).unwrap();
        assert!(owner.descriptor().is_none());
        owner.memory().write(95, b"owner").unwrap();
        assert_eq!(Published::create(1 << 60, true).unwrap_err().kind(), ErrorKind::System);
    }
}
