//! Host memory that ranks can register: shared memory without a name.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::gpu::{Context, DeviceSlice, HostRegistration, KeepAlive};
use crate::shm::Segment;
use crate::sync::{Mutex, lock};
use crate::volatile::VolatileSlice;

/// Zeroed host memory in a sealed memfd, which peers on the same host can map.
///
/// Pages are taken as they are touched. It is page-locked and opened to devices when it is first registered for a
/// transport whose devices access it. Peers write it while this process reads: it is reached through
/// [`VolatileSlice`] only.
#[derive(Debug)]
pub struct HostBuffer {
    segment: Arc<Segment>,
    context: Context,
    /// Locked while the driver registers: a range can be registered only once, and whoever comes second gets the first's.
    registration: Mutex<Option<Arc<HostRegistration>>>,
}

impl HostBuffer {
    /// `len` bytes.
    ///
    /// # Errors
    /// `InvalidUsage` for zero bytes; what the system says, for example that the address space is not that large.
    pub fn new(context: &Context, len: usize) -> Result<Self> {
        Ok(Self::over(context, Segment::create(len)?))
    }

    /// Maps what another process created.
    pub(super) fn open(context: &Context, fd: OwnedFd, len: usize) -> Result<Self> {
        Ok(Self::over(context, Segment::open(fd, len)?))
    }

    fn over(context: &Context, segment: Segment) -> Self {
        Self { segment: Arc::new(segment), context: context.clone(), registration: Mutex::default() }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.segment.len()
    }

    /// Never: a buffer has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The context whose devices may access it.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Its bytes.
    pub fn memory(&self) -> VolatileSlice<'_> {
        self.segment.memory()
    }

    /// A descriptor of it for another process.
    pub(super) fn fd(&self) -> Result<OwnedFd> {
        let failed = |error| Error::system("send_memory", "cannot duplicate a file descriptor", error);
        self.segment.as_fd().try_clone_to_owned().map_err(failed)
    }

    /// Opens it to devices, once.
    pub(super) fn pin(&self) -> Result<()> {
        let mut registration = lock(&self.registration);
        if registration.is_some() {
            return Ok(());
        }
        let (at, keep) = (self.memory().as_ptr(), self.segment.clone() as KeepAlive);
        // SAFETY: the mapping lives as long as the segment, which the registration keeps; this process reaches it
        // through volatile slices only.
        let made = unsafe { HostRegistration::new(&self.context, at, self.len(), keep) }?;
        *registration = Some(Arc::new(made));
        Ok(())
    }

    /// All of it, as seen by this process.
    pub(super) fn whole(self: &Arc<Self>) -> HostSlice {
        let at = NonNull::new(self.memory().as_ptr()).expect("a mapping is not at address 0");
        // SAFETY: the mapping lives as long as the buffer, which the slice keeps.
        unsafe { HostSlice::from_raw(at, self.len(), self.clone()) }
    }

    /// All of it, as seen by devices, if it has been opened to them.
    pub(super) fn device_slice(&self) -> Result<Option<DeviceSlice>> {
        lock(&self.registration).as_ref().map(|registration| registration.slice(..)).transpose()
    }
}

/// A range of host memory, with what keeps it mapped.
#[derive(Clone)]
pub(crate) struct HostSlice {
    at: NonNull<u8>,
    len: usize,
    keep: KeepAlive,
}

// SAFETY: an address and a length; the memory belongs to no thread and is accessed through `VolatileSlice`.
unsafe impl Send for HostSlice {}
// SAFETY: as above.
unsafe impl Sync for HostSlice {}

impl HostSlice {
    /// # Safety
    /// `at .. at + len` stays mapped, readable and writable until `keep` is dropped, and this process accesses it only
    /// atomically.
    pub(crate) unsafe fn from_raw(at: NonNull<u8>, len: usize, keep: KeepAlive) -> Self {
        Self { at, len, keep }
    }

    /// The same, keeping `more` alive as well.
    pub(crate) fn keeping(self, more: KeepAlive) -> Self {
        Self { keep: Arc::new((self.keep, more)), ..self }
    }

    pub(crate) fn memory(&self) -> VolatileSlice<'_> {
        // SAFETY: the contract of `from_raw`; `keep` lives as long as `self`.
        unsafe { VolatileSlice::new(self.at, self.len) }
    }

    /// The part `offset .. offset + len`, which the caller has found to be inside.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Self {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "the range was checked");
        // SAFETY: inside an allocation of `self.len` bytes.
        Self { at: unsafe { self.at.add(offset) }, len, keep: self.keep.clone() }
    }
}

impl fmt::Debug for HostSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostSlice({:p}, {} bytes)", self.at, self.len)
    }
}
