//! Memory objects: sealed memfds with a control page at their end, and their mappings.
//!
//! The file is `size` bytes of memory followed by one control page, which identifies the object to whoever
//! imports the descriptor and holds the doorbell all processes share. The file is sealed against changing its
//! size, so that no other process can make an access here fault.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Doorbell;

/// Bytes of the control page, a multiple of every page size in use.
const CONTROL: usize = 64 << 10;
const MAGIC: u64 = u64::from_le_bytes(*b"aqsoft01");
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// What an object is used for; decides which calls accept it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAlloc`, module globals: shared by legacy IPC.
    Plain,
    /// `cuMemCreate`: shared by file descriptor.
    Physical,
    /// `cuMemHostAlloc`.
    Host,
}

/// The facts an object carries for those who import it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// What it is used for.
    pub(crate) kind: Kind,
    /// Ordinal of the device that owns it (0 for host memory).
    pub(crate) device: usize,
    /// `CUmemAllocationHandleType` mask it was created with.
    pub(crate) handle_types: u32,
}

/// A shared memory object. Its memory lives while any process maps it or holds a descriptor of it.
#[derive(Debug)]
pub(crate) struct Object {
    fd: OwnedFd,
    size: usize,
    facts: Facts,
    control: Mapping,
}

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

/// What stands behind a range of the space: the object, or memory of the user that was registered.
#[derive(Debug)]
pub(crate) enum Backing {
    /// Mapped from an object; the mapping goes before the object.
    Object { mapping: Mapping, object: Arc<Object> },
    /// The user's own memory; other processes that share it do not share this doorbell.
    Borrowed { bell: Arc<Doorbell> },
}

/// A doorbell that may be used without a view: it keeps itself mapped, but not the memory it speaks of.
#[derive(Clone, Debug)]
pub struct Bell(Keeper);

#[derive(Clone, Debug)]
enum Keeper {
    Object(Arc<Object>),
    Own(Arc<Doorbell>),
}

impl std::ops::Deref for Bell {
    type Target = Doorbell;

    fn deref(&self) -> &Doorbell {
        match &self.0 {
            // SAFETY: the control page stays mapped while the object lives, which `self` holds.
            Keeper::Object(object) => unsafe { &*object.bell() },
            Keeper::Own(bell) => bell,
        }
    }
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
    /// On a cache line of its own.
    bell: Doorbell,
}

const _: () = assert!(std::mem::offset_of!(Control, bell) == 64);

impl Object {
    /// Creates an object of `size` bytes (a multiple of the page size), zeroed.
    ///
    /// # Errors
    /// The system's, in particular when descriptors or address space run out.
    pub(crate) fn create(size: usize, facts: Facts) -> io::Result<Arc<Self>> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a NUL-terminated literal.
        let fd = check(unsafe { libc::memfd_create(c"aqueduct-soft".as_ptr(), flags) })?;
        // SAFETY: the descriptor was just made and belongs to nobody else.
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
        };
        let contents = Control {
            magic: MAGIC,
            size: size as u64,
            identity: random()?,
            kind,
            device: facts.device as u32,
            handle_types: facts.handle_types,
            _reserved: [0; 5],
            bell: Doorbell::new(),
        };
        // SAFETY: a fresh page of ours, large and aligned enough, that nobody else knows yet.
        unsafe { control.base.cast::<Control>().write(contents) };
        Ok(Arc::new(Self { fd, size, facts, control }))
    }

    /// Takes over a descriptor that came from another process.
    ///
    /// # Errors
    /// `InvalidData` when it is not an object of this driver, or could shrink under us.
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
        // SAFETY: the page is mapped for as long as `control` lives and every bit pattern is a `Control`; the
        // fields read here are written once, before the descriptor left its creator.
        let facts = unsafe {
            let c = control.base.cast::<Control>().as_ptr();
            let kind = match (*c).kind {
                0 => Kind::Plain,
                1 => Kind::Physical,
                2 => Kind::Host,
                _ => return Err(io::ErrorKind::InvalidData.into()),
            };
            if (*c).magic != MAGIC || (*c).size != size as u64 {
                return Err(io::ErrorKind::InvalidData.into());
            }
            Facts { kind, device: (*c).device as usize, handle_types: (*c).handle_types }
        };
        Ok(Arc::new(Self { fd, size, facts, control }))
    }

    /// Maps the first `len` bytes, at `fixed` inside a reservation of ours or anywhere.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn map(self: &Arc<Self>, len: usize, fixed: Option<NonNull<u8>>) -> io::Result<Backing> {
        let mapping = Mapping::of(&self.fd, 0, len.min(self.size), fixed)?;
        Ok(Backing::Object { mapping, object: Arc::clone(self) })
    }

    /// Bytes of memory, without the control page.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn facts(&self) -> Facts {
        self.facts
    }

    /// 128 random bits that every process sees alike.
    pub(crate) fn identity(&self) -> [u64; 2] {
        // SAFETY: as in `bell`; written once by the creator.
        unsafe { (*self.control.base.cast::<Control>().as_ptr()).identity }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.fd.as_fd()
    }

    fn bell(&self) -> *const Doorbell {
        // SAFETY: within the control page, which stays mapped while `self` lives; made without a reference to the
        // rest of the page, which other processes may write.
        unsafe { &raw const (*self.control.base.cast::<Control>().as_ptr()).bell }
    }
}

impl Backing {
    /// Memory of the user's: nothing to unmap.
    pub(crate) fn borrowed() -> Self {
        Self::Borrowed { bell: Arc::default() }
    }

    /// The doorbell of the memory; valid while this lives.
    pub(crate) fn bell(&self) -> *const Doorbell {
        match self {
            Self::Object { object, .. } => object.bell(),
            Self::Borrowed { bell } => &raw const **bell,
        }
    }

    /// The doorbell, to keep.
    pub(crate) fn keep_bell(&self) -> Bell {
        Bell(match self {
            Self::Object { object, .. } => Keeper::Object(Arc::clone(object)),
            Self::Borrowed { bell } => Keeper::Own(Arc::clone(bell)),
        })
    }

    /// Makes the addresses inaccessible now, whoever still holds this. Nothing may access them any more.
    pub(crate) fn unmap(&self) {
        if let Self::Object { mapping, .. } = self {
            mapping.unmap();
        }
    }

    /// The object, if there is one.
    pub(crate) fn object(&self) -> Option<&Arc<Object>> {
        match self {
            Self::Object { object, .. } => Some(object),
            Self::Borrowed { .. } => None,
        }
    }

    /// The first address, if mapped by us.
    pub(crate) fn base(&self) -> Option<u64> {
        match self {
            Self::Object { mapping, .. } => Some(mapping.address()),
            Self::Borrowed { .. } => None,
        }
    }
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

    fn unmap(&self) {
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

    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    fn of(fd: &OwnedFd, offset: usize, len: usize, fixed: Option<NonNull<u8>>) -> io::Result<Self> {
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

fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

fn random() -> io::Result<[u64; 2]> {
    let mut words = [0u64; 2];
    // SAFETY: writes at most 16 bytes into the array.
    let n = unsafe { libc::getrandom(words.as_mut_ptr().cast(), 16, 0) };
    if n == 16 { Ok(words) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const FACTS: Facts = Facts { kind: Kind::Physical, device: 3, handle_types: 1 };

    #[test]
    fn an_imported_descriptor_is_the_same_memory_and_the_same_bell() {
        let a = Object::create(4 << 20, FACTS).expect("create");
        let b = Object::open(a.fd().try_clone_to_owned().expect("dup")).expect("open");
        assert_eq!((b.size(), b.facts(), b.identity()), (4 << 20, FACTS, a.identity()));
        let (ma, mb) = (a.map(4 << 20, None).expect("map"), b.map(4 << 20, None).expect("map"));
        let (pa, pb) = (ma.base().expect("base") as *mut u32, mb.base().expect("base") as *mut u32);
        assert_ne!(pa, pb);
        // SAFETY: both point to the start of live mappings of 4 MiB.
        unsafe {
            pa.add(77).write_volatile(0x1234_5678);
            assert_eq!(pb.add(77).read_volatile(), 0x1234_5678);
            (*ma.bell()).ring();
            assert_eq!((*mb.bell()).sequence(), 1);
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
