//! Host memory that ranks can register: shared memory without a name.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

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
    registration: OnceLock<Arc<HostRegistration>>,
    /// Held while registering: the driver refuses to register a range twice.
    registering: Mutex<()>,
}

impl HostBuffer {
    /// `len` bytes.
    ///
    /// # Errors
    /// `InvalidUsage` for zero bytes, and for more than `isize::MAX`; an error of the system, for example because the address space
    /// is not that large.
    pub fn new(context: &Context, len: usize) -> Result<Self> {
        Ok(Self::over(context, Segment::create(len)?))
    }

    /// Maps what another process created.
    pub(super) fn open(context: &Context, fd: OwnedFd, len: usize) -> Result<Self> {
        Ok(Self::over(context, Segment::open(fd, len)?))
    }

    fn over(context: &Context, segment: Segment) -> Self {
        let (segment, context) = (Arc::new(segment), context.clone());
        Self { segment, context, registration: OnceLock::new(), registering: Mutex::default() }
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

    /// Opens it to devices, once: of several threads one registers it, and the others wait for the outcome.
    pub(super) fn pin(&self) -> Result<&Arc<HostRegistration>> {
        if let Some(registration) = self.registration.get() {
            return Ok(registration);
        }
        let _registering = lock(&self.registering);
        if let Some(registration) = self.registration.get() {
            return Ok(registration);
        }
        let (at, keep) = (self.memory().as_ptr(), self.segment.clone() as KeepAlive);
        // SAFETY: the mapping lives as long as the segment, which the registration keeps; this process reaches it
        // through volatile slices only.
        let made = unsafe { HostRegistration::new(&self.context, at, self.len(), keep) }?;
        Ok(self.registration.get_or_init(|| Arc::new(made)))
    }

    /// All of it, as seen by this process.
    pub(super) fn whole(self: &Arc<Self>) -> HostSlice {
        let at = NonNull::new(self.memory().as_ptr()).expect("a mapping is not at address 0");
        // SAFETY: the mapping lives as long as the buffer, which the slice keeps.
        unsafe { HostSlice::from_raw(at, self.len(), self.clone()) }
    }

    /// All of it, as seen by devices, if it has been opened to them.
    pub(super) fn device_slice(&self) -> Result<Option<DeviceSlice>> {
        self.registration.get().map(|registration| registration.slice(..)).transpose()
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

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};
    use std::time::Duration;

    use cuda_driver_sys::CUresult;

    use super::*;
    use crate::gpu::{Device, Driver, Hooks};

    /// Makes two threads that both register do so at the same time, and lets the one that succeeds go on only when the
    /// other has been refused. If there is only one, a bounded time passes instead.
    #[derive(Default)]
    struct Both {
        calls: Mutex<(usize, bool)>,
        changed: Condvar,
    }

    impl Both {
        fn change(&self, change: impl FnOnce(&mut (usize, bool)), enough: impl Fn(&(usize, bool)) -> bool) {
            let mut calls = self.calls.lock().unwrap();
            change(&mut calls);
            self.changed.notify_all();
            let time = Duration::from_millis(300);
            drop(self.changed.wait_timeout_while(calls, time, |calls| !enough(calls)).unwrap());
        }
    }

    impl Hooks for Both {
        fn before(&self, function: &'static str) -> Option<CUresult> {
            if function == "cuMemHostRegister_v2" {
                self.change(|calls| calls.0 += 1, |calls| calls.0 == 2);
            }
            None
        }

        fn after(&self, function: &'static str, result: CUresult) {
            match (function, result) {
                ("cuMemHostRegister_v2", CUresult::CUDA_SUCCESS) => self.change(|_| (), |calls| calls.1),
                ("cuMemHostRegister_v2", _) => self.change(|calls| calls.1 = true, |_| true),
                _ => {}
            }
        }
    }

    #[test]
    fn two_threads_that_pin_at_a_time_get_the_same_registration() {
        let both = Arc::new(Both::default());
        let driver = Driver::software(cuda_soft::driver_table()).unwrap().with_hooks(both.clone());
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let buffer = HostBuffer::new(&context, 4096).unwrap();
        let pin = || buffer.pin().map(Arc::as_ptr).map(<*const HostRegistration>::addr);
        let [one, two] = std::thread::scope(|scope| {
            [scope.spawn(pin), scope.spawn(pin)].map(|thread| thread.join().unwrap())
        });
        assert_eq!(one.unwrap(), two.unwrap());
        assert_eq!(both.calls.lock().unwrap().0, 1, "registered once");
    }

    #[test]
    fn after_a_failed_attempt_to_pin_another_one_may_succeed() {
        use crate::fault::{Calls, DriverFault, DriverFaults};

        let register = Calls::Function("cuMemHostRegister_v2".into());
        let first = DriverFault::nth(register, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let driver = Driver::software(cuda_soft::driver_table())
            .unwrap()
            .with_hooks(Arc::new(DriverFaults::new([first])));
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let buffer = HostBuffer::new(&context, 4096).unwrap();
        let refused = CUresult::CUDA_ERROR_OUT_OF_MEMORY.0.cast_signed();
        assert_eq!(buffer.pin().unwrap_err().code(), refused);
        buffer.pin().unwrap();
        assert_eq!(buffer.device_slice().unwrap().unwrap().len(), 4096);
    }
}
