//! Shared memory without names: sealed memfd segments, passed from process to process as file descriptors.
//!
//! Nothing appears in `/dev/shm` or `/tmp`, so nothing stays behind after a crash. The seals forbid to shrink or
//! grow a segment, so no peer can make an access to a mapping fail with SIGBUS.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use memmap2::{MmapOptions, MmapRaw};

use crate::error::{Error, ErrorKind, Result};
use crate::volatile::VolatileSlice;

mod published;

pub use published::{Published, View};

/// Seals that every segment must have: without them a peer could shrink the file under a mapping.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// The type of the file system whose pages may run out at the first access.
const HUGETLBFS: u32 = 0x9584_58f6;

/// A piece of memory that several processes map. Others may write to it at any moment.
#[derive(Debug)]
pub struct Segment {
    map: MmapRaw,
    file: File,
}

impl Segment {
    /// A new segment of `len` zero bytes. Memory is taken page by page as it is touched; the size of `/dev/shm`
    /// does not limit it.
    pub fn create(len: usize) -> Result<Self> {
        if len == 0 {
            return Err(Error::usage("memfd", "a segment of 0 bytes is not possible; ask for at least 1"));
        }
        if isize::try_from(len).is_err() {
            return Err(Error::usage("memfd", format!("{len} bytes are more than memory can have")));
        }
        let failed = |error| Error::system("memfd", format!("cannot create a segment of {len} bytes"), error);
        let file = create(len).map_err(failed)?;
        add_seals(&file, SEALS).map_err(failed)?;
        Self::map(file, len)
    }

    /// Maps a segment of `len` bytes that another process created. Refuses a descriptor that is not a memfd of
    /// that size sealed against shrinking.
    pub fn open(fd: OwnedFd, len: usize) -> Result<Self> {
        let file = File::from(fd);
        check_sealed(&file, len)?;
        Self::map(file, len)
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Never: segments have at least one byte.
    pub fn is_empty(&self) -> bool {
        self.map.len() == 0
    }

    /// The bytes.
    pub fn memory(&self) -> VolatileSlice<'_> {
        memory_of(&self.map)
    }

    /// The mapping alone, and the descriptor to pass to another process: who has many segments keeps only mappings.
    pub fn into_parts(self) -> (Mapping, OwnedFd) {
        (Mapping { map: self.map }, self.file.into())
    }

    fn map(file: File, len: usize) -> Result<Self> {
        let map = MmapOptions::new().len(len).map_raw(&file);
        let failed = |error| Error::system("memfd", format!("cannot map a segment of {len} bytes"), error);
        Ok(Self { map: map.map_err(failed)?, file })
    }
}

/// A mapped [`Segment`] whose descriptor is elsewhere or closed.
#[derive(Debug)]
pub struct Mapping {
    map: MmapRaw,
}

impl Mapping {
    /// The bytes.
    pub fn memory(&self) -> VolatileSlice<'_> {
        memory_of(&self.map)
    }
}

impl AsFd for Segment {
    /// The descriptor to pass to another process.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A new memfd of `len` zero bytes without seals.
fn create(len: usize) -> io::Result<File> {
    // SAFETY: the name is a C string; the result is checked before it is used.
    let fd = unsafe { libc::memfd_create(c"aqueduct".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    check(fd)?;
    // SAFETY: the call succeeded, so `fd` is open and belongs to nobody else.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len as u64)?;
    Ok(file)
}

fn add_seals(file: &File, seals: libc::c_int) -> io::Result<()> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }).map(drop)
}

/// `Ok` if an access to a mapping of `len` bytes of `file`, which a peer has made, cannot fail with SIGBUS.
fn check_sealed(file: &File, len: usize) -> Result<()> {
    let refused = |message: String| Err(Error::new(ErrorKind::Remote, "memfd", message));
    // SAFETY: no pointers are passed.
    let seals = check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) }).unwrap_or(0);
    if seals & libc::F_SEAL_SHRINK == 0 {
        return refused(
            "the descriptor received is not shared memory sealed against shrinking; it is not mapped".into(),
        );
    }
    let failed = |error| Error::system("memfd", "cannot examine a segment", error);
    let data = file.metadata().map_err(failed)?;
    if data.len() != len as u64 || len == 0 {
        let size = data.len();
        return refused(format!(
            "a segment of {len} bytes was announced, the descriptor received has {size}"
        ));
    }
    let mut system = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: `system` is a live output.
    check(unsafe { libc::fstatfs(file.as_raw_fd(), system.as_mut_ptr()) }).map_err(failed)?;
    // SAFETY: all-zero is valid, and the call has filled it.
    let system = unsafe { system.assume_init() };
    // The width of the field differs between architectures.
    if system.f_type as u32 == HUGETLBFS {
        return refused("the memory received has huge pages, which may run out; it is not mapped".into());
    }
    Ok(())
}

fn memory_of(map: &MmapRaw) -> VolatileSlice<'_> {
    let ptr = NonNull::new(map.as_mut_ptr()).expect("a mapping is not at address 0");
    // SAFETY: the mapping is readable and writable, cannot shrink (sealed), and lives as long as `map`, which the result
    // borrows. This process only reaches it through such slices.
    unsafe { VolatileSlice::new(ptr, map.len()) }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_share_bytes_and_nobody_can_resize() {
        let a = Segment::create(5000).unwrap();
        let b = Segment::open(a.as_fd().try_clone_to_owned().unwrap(), 5000).unwrap();
        a.memory().write(4990, b"0123456789").unwrap();
        let mut seen = [0; 10];
        b.memory().read(4990, &mut seen).unwrap();
        assert_eq!(&seen, b"0123456789");
        assert!(a.file.set_len(4999).is_err() && b.file.set_len(5001).is_err());
        assert!(b.memory().write(4991, &[0; 10]).is_err());
    }

    #[test]
    fn refuses_other_descriptors_and_sizes() {
        let a = Segment::create(64).unwrap();
        let fd = || a.as_fd().try_clone_to_owned().unwrap();
        assert_eq!(Segment::open(fd(), 65).unwrap_err().kind(), ErrorKind::Remote);
        assert_eq!(Segment::open(fd(), 0).unwrap_err().kind(), ErrorKind::Remote);
        let zero = File::options().read(true).write(true).open("/dev/zero").unwrap();
        assert_eq!(Segment::open(zero.into(), 64).unwrap_err().kind(), ErrorKind::Remote);
        assert_eq!(Segment::create(0).unwrap_err().kind(), ErrorKind::InvalidUsage);
        let too_many = Segment::create(usize::MAX).unwrap_err();
        assert_eq!(too_many.kind(), ErrorKind::InvalidUsage);
        assert!(too_many.message().contains("more than memory can have"), "{too_many}");
        assert_eq!(Segment::create(1 << 60).unwrap_err().kind(), ErrorKind::System);
    }
}
