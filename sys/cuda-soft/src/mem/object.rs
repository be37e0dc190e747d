//! Memory objects: sealed memfds with a control page at their end, and their mappings.
//!
//! The file holds `size` bytes of memory followed by one control page. The control page identifies the object to a
//! process that imports the descriptor, and holds the event count that all processes share. Seals keep the file's size
//! fixed, so that no other process can make accesses here fault by truncating it.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;

use cuda_driver_sys::CUresult;

use super::EventCount;
use super::mapping::Mapping;
use crate::config;

/// Size of the control page: a multiple of every page size in use.
const CONTROL: usize = 64 << 10;
const MAGIC: u64 = u64::from_le_bytes(*b"aqsoft01");
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// The call that created an object, which decides the calls that accept it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAlloc` and module variables. Legacy IPC shares it.
    Plain,
    /// `cuMemCreate`. A file descriptor shares it.
    Physical,
    /// `cuMemHostAlloc`.
    Host,
    /// `cuMulticastCreate`: the table of a team, not memory of a device.
    Multicast,
}

/// Properties stored in the control page, for processes that import the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) kind: Kind,
    /// Ordinal of the device that owns it (0 for host memory).
    pub(crate) device: usize,
    /// `CUmemAllocationHandleType` mask it was created with.
    pub(crate) handle_types: u32,
}

/// A shared memory object. Its memory lives until no process maps it or holds a descriptor.
#[derive(Debug)]
pub(crate) struct Object {
    fd: OwnedFd,
    size: usize,
    facts: Facts,
    control: Mapping,
}

#[repr(C)]
struct Control {
    magic: u64,
    size: u64,
    identity: [u64; 2],
    kind: u32,
    device: u32,
    handle_types: u32,
    _reserved: [u32; 5],
    /// Starts a cache line of its own.
    event_count: EventCount,
}

const _: () = assert!(std::mem::offset_of!(Control, event_count) == 64);

impl Object {
    /// Creates an object of `size` bytes (a multiple of the page size), zeroed.
    ///
    /// # Errors
    /// The system call's error, for instance when descriptors or address space run out.
    pub(crate) fn create(size: usize, facts: Facts) -> io::Result<Arc<Self>> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a NUL-terminated literal.
        let fd = check(unsafe { libc::memfd_create(c"aqueduct-soft".as_ptr(), flags) })?;
        // SAFETY: `memfd_create` has just returned this descriptor, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let total = size.checked_add(CONTROL).ok_or(io::ErrorKind::InvalidInput)?;
        let file = File::from(fd);
        file.set_len(total as u64)?;
        let fd = OwnedFd::from(file);
        // SAFETY: fcntl on a descriptor we own.
        check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
        let control = Mapping::of(&fd, size, CONTROL, None)?;
        let kind = match facts.kind {
            Kind::Plain => 0,
            Kind::Physical => 1,
            Kind::Host => 2,
            Kind::Multicast => 3,
        };
        let contents = Control {
            magic: MAGIC,
            size: size as u64,
            identity: random()?,
            kind,
            device: facts.device as u32,
            handle_types: facts.handle_types,
            _reserved: [0; 5],
            event_count: EventCount::new(),
        };
        // SAFETY: the new page is large and aligned enough, and no other code or process knows it yet.
        unsafe { control.base().cast::<Control>().write(contents) };
        Ok(Arc::new(Self { fd, size, facts, control }))
    }

    /// Fills the beginning of new memory with garbage, if the configuration asks for it (`AQUEDUCT_SOFT_UNKIND`): the driver
    /// promises nothing about it. More than the beginning would touch memory that most programs never use.
    ///
    /// # Errors
    /// The system call's error.
    pub(crate) fn spoil(&self) -> io::Result<()> {
        const MOST: usize = 1 << 20;
        let Some(seed) = config::current().ok().and_then(|config| config.unkind) else { return Ok(()) };
        let mut garbage = vec![0; self.size.min(MOST)];
        fastrand::Rng::with_seed(seed).fill(&mut garbage);
        // SAFETY: `self` owns the descriptor, outlives `file`, and closes it; `file` does not.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(self.fd.as_raw_fd()) });
        file.write_all_at(&garbage, 0)
    }

    /// Opens an object from a descriptor that another process sent.
    ///
    /// # Errors
    /// `InvalidData` if the file is not an object of this driver, or is not sealed against a change of size.
    pub(crate) fn open(fd: OwnedFd) -> io::Result<Arc<Self>> {
        // SAFETY: fcntl on a descriptor we own.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let file = File::from(fd);
        let total = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::InvalidData)?;
        let fd = OwnedFd::from(file);
        let size = total.checked_sub(CONTROL).filter(|s| *s > 0).ok_or(io::ErrorKind::InvalidData)?;
        let control = Mapping::of(&fd, size, CONTROL, None)?;
        // SAFETY: `control` keeps the page mapped, and every bit pattern is a valid `Control`. The creator wrote the
        // fields read here before it shared the descriptor, and nobody writes them again.
        let facts = unsafe {
            let c = control.base().cast::<Control>().as_ptr();
            let kind = match (*c).kind {
                0 => Kind::Plain,
                1 => Kind::Physical,
                2 => Kind::Host,
                3 => Kind::Multicast,
                _ => return Err(io::ErrorKind::InvalidData.into()),
            };
            if (*c).magic != MAGIC || (*c).size != size as u64 {
                return Err(io::ErrorKind::InvalidData.into());
            }
            Facts { kind, device: (*c).device as usize, handle_types: (*c).handle_types }
        };
        Ok(Arc::new(Self { fd, size, facts, control }))
    }

    /// Maps the first `len` bytes, at `fixed` inside a reservation or anywhere. The mapping does not keep the object.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub(crate) fn map(&self, len: usize, fixed: Option<NonNull<u8>>) -> io::Result<Mapping> {
        let len = len.min(self.size);
        match fixed {
            None => Mapping::anywhere(&self.fd, len),
            fixed => Mapping::of(&self.fd, 0, len, fixed),
        }
    }

    /// Size of the memory in bytes, without the control page.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn facts(&self) -> Facts {
        self.facts
    }

    /// A random 128-bit id, the same in every process.
    pub(crate) fn identity(&self) -> [u64; 2] {
        // SAFETY: as in `event_count`; only the creator writes it, before it shares the descriptor.
        unsafe { (*self.control.base().cast::<Control>().as_ptr()).identity }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.fd.as_fd()
    }

    /// The object's event count, valid while `self` lives.
    pub(crate) fn event_count(&self) -> *const EventCount {
        // SAFETY: the field lies in the control page, which stays mapped while `self` lives. No reference to the page
        // is created, because other processes may write it.
        unsafe { &raw const (*self.control.base().cast::<Control>().as_ptr()).event_count }
    }
}

/// Converts the error of a failed allocation. Each takes a file descriptor, and a lack of those is no lack of memory.
pub(crate) fn refused(why: io::Error) -> CUresult {
    if lacks_descriptors(&why) {
        CUresult::CUDA_ERROR_OPERATING_SYSTEM
    } else {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY
    }
}

/// Whether a call failed because this process or host has no file descriptors left.
pub(crate) fn lacks_descriptors(why: &io::Error) -> bool {
    matches!(why.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

fn random() -> io::Result<[u64; 2]> {
    let mut words = [0u64; 2];
    // SAFETY: the array has room for the 16 bytes.
    let n = unsafe { libc::getrandom(words.as_mut_ptr().cast(), 16, 0) };
    if n == 16 { Ok(words) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const FACTS: Facts = Facts { kind: Kind::Physical, device: 3, handle_types: 1 };

    #[test]
    fn an_imported_descriptor_is_the_same_memory_and_the_same_event_count() {
        let a = Object::create(4 << 20, FACTS).expect("create");
        let b = Object::open(a.fd().try_clone_to_owned().expect("dup")).expect("open");
        assert_eq!((b.size(), b.facts(), b.identity()), (4 << 20, FACTS, a.identity()));
        let (ma, mb) = (a.map(4 << 20, None).expect("map"), b.map(4 << 20, None).expect("map"));
        let (pa, pb) = (ma.address() as *mut u32, mb.address() as *mut u32);
        assert_ne!(pa, pb);
        // SAFETY: both point to the start of live mappings of 4 MiB.
        unsafe {
            pa.add(77).write_volatile(0x1234_5678);
            assert_eq!(pb.add(77).read_volatile(), 0x1234_5678);
            (*a.event_count()).notify();
            assert_eq!((*b.event_count()).sequence(), 1);
        }
    }

    #[test]
    fn size_is_sealed_and_foreign_files_are_refused() {
        let a = Object::create(2 << 20, FACTS).expect("create");
        let file = File::from(a.fd().try_clone_to_owned().expect("dup"));
        assert!(file.set_len(4096).is_err());
        assert!(file.set_len(64 << 20).is_err());
        let foreign = File::open("/proc/self/exe").expect("open");
        assert!(Object::open(foreign.as_fd().try_clone_to_owned().expect("dup")).is_err());
    }
}
