//! The primary context of a device, shared with the runtime API and every other library of the process.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, Weak};

use cuda_driver_sys::{CUcontext, CUdevice, CUresult, CUstreamCaptureMode};

use super::device::Device;
use super::driver::{Driver, call};
use super::slots::Slots;
use super::status;
use crate::error::{Error, Result};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// A retained primary context. Cheap to clone; everything made in it holds a clone.
///
/// There is one per driver and device: making it twice gives the same one. It is released when the last holder and
/// the last unfinished work are gone.
#[derive(Clone)]
pub struct Context {
    inner: Arc<ContextInner>,
}

/// A context that may be gone.
pub(super) struct WeakContext {
    inner: Weak<ContextInner>,
}

struct ContextInner {
    raw: CUcontext,
    lost: AtomicBool,
    /// Values of the layers above. None of them holds a `Context`, except while work is unfinished.
    slots: Slots,
    device: Device,
}

/// The contexts of one driver that are in use, by device.
#[derive(Default)]
struct Contexts(Mutex<HashMap<CUdevice, Weak<ContextInner>>>);

// SAFETY: `raw` is the only field that is not Send. It is an opaque handle that we never dereference; the driver
// accepts it on any thread.
unsafe impl Send for ContextInner {}
// SAFETY: the handle is never changed after construction, and the driver serialises calls on one context itself.
unsafe impl Sync for ContextInner {}

impl Context {
    /// Retains the primary context of `device`.
    ///
    /// # Errors
    /// A driver error: a device in exclusive mode, no memory left for a context.
    pub fn new(device: &Device) -> Result<Self> {
        let driver = device.driver();
        let mut contexts = lock(&driver.slot::<Contexts>().0);
        if let Some(inner) = contexts.get(&device.raw()).and_then(Weak::upgrade) {
            return Ok(Self { inner });
        }
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a live output; the reference gained is given back once, by `ContextInner::drop`.
        unsafe { call!(driver, cuDevicePrimaryCtxRetain(&raw mut raw, device.raw())) }?;
        let inner = Arc::new(ContextInner {
            raw,
            lost: AtomicBool::new(false),
            slots: Slots::default(),
            device: device.clone(),
        });
        contexts.insert(device.raw(), Arc::downgrade(&inner));
        Ok(Self { inner })
    }

    /// The context of `device`, if it is in use.
    pub(super) fn existing(device: &Device) -> Option<Self> {
        let known = lock(&device.driver().slot::<Contexts>().0);
        Some(Self { inner: known.get(&device.raw())?.upgrade()? })
    }

    /// Every context of `driver` that is in use.
    pub(super) fn all(driver: &Driver) -> Vec<Self> {
        let known = lock(&driver.slot::<Contexts>().0);
        known.values().filter_map(Weak::upgrade).map(|inner| Self { inner }).collect()
    }

    pub(super) fn downgrade(&self) -> WeakContext {
        WeakContext { inner: Arc::downgrade(&self.inner) }
    }

    /// The one value of type `T` that belongs to this context. It is dropped with the context current.
    pub(crate) fn slot<T: Any + Send + Sync + Default>(&self) -> &T {
        self.inner.slots.get()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The driver.
    pub fn driver(&self) -> &Driver {
        self.inner.device.driver()
    }

    /// The driver's handle.
    pub fn raw(&self) -> CUcontext {
        self.inner.raw
    }

    /// Makes this the calling thread's current context until the guard is dropped, which restores the caller's.
    ///
    /// # Errors
    /// In a forked child, or a driver error.
    #[doc(hidden)]
    pub fn enter(&self) -> Result<Entered<'_>> {
        let driver = self.driver();
        let mut current = ptr::null_mut();
        // SAFETY: `current` is a live output.
        unsafe { call!(driver, cuCtxGetCurrent(&raw mut current)) }?;
        let pushed = current != self.inner.raw;
        if pushed {
            // SAFETY: the context is retained for as long as `self` lives, which the guard borrows.
            unsafe { call!(driver, cuCtxPushCurrent_v2(self.inner.raw)) }?;
        }
        Ok(Entered { context: self, pushed, thread: PhantomData })
    }

    /// Free and total bytes of device memory.
    ///
    /// # Errors
    /// A driver error.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are live outputs.
        unsafe { call!(self.driver(), cuMemGetInfo_v2(&raw mut free, &raw mut total)) }?;
        Ok((free, total))
    }

    /// Lets kernels and copies of this context reach plain allocations of `peer`. (Mapped memory has access rights of
    /// its own: [`Mapping::allow`](super::vmm::Mapping::allow).)
    ///
    /// # Errors
    /// A driver error, for example that the GPUs cannot reach each other.
    pub(crate) fn enable_peer_access(&self, peer: &Self) -> Result<()> {
        if Arc::ptr_eq(&self.inner, &peer.inner) {
            return Ok(());
        }
        let _entered = self.enter()?;
        // SAFETY: both contexts are retained by their owners.
        match unsafe { call!(self.driver(), raw cuCtxEnablePeerAccess(peer.raw(), 0)) }? {
            CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            other => Err(self.driver().error("cuCtxEnablePeerAccess", other)),
        }
    }

    /// Whether an error has lost this context: every later call in it fails, and nothing more can be freed.
    pub(crate) fn is_lost(&self) -> bool {
        self.inner.lost.load(Ordering::Relaxed)
    }

    /// Returns `error`, and remembers it if it means that the context is lost.
    pub(crate) fn note(&self, error: Error) -> Error {
        if status::is_sticky(error.code()) && !self.inner.lost.swap(true, Ordering::Relaxed) {
            log::error!("device {}: context lost: {error}", self.device().ordinal());
        }
        error
    }

    /// As [`Context::note`], for a result.
    pub(crate) fn noted<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.note(error))
    }
}

impl WeakContext {
    pub(super) fn upgrade(&self) -> Option<Context> {
        self.inner.upgrade().map(|inner| Context { inner })
    }

    pub(super) fn is(&self, context: &Context) -> bool {
        ptr::eq(self.inner.as_ptr(), Arc::as_ptr(&context.inner))
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", &self.inner.device.ordinal()).finish_non_exhaustive()
    }
}

impl PartialEq for Context {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Context {}

impl Drop for ContextInner {
    fn drop(&mut self) {
        let driver = self.device.driver();
        if driver.forked() {
            return;
        }
        let mut contexts = lock(&driver.slot::<Contexts>().0);
        if contexts.get(&self.device.raw()).is_some_and(|weak| weak.strong_count() == 0) {
            contexts.remove(&self.device.raw());
        }
        drop(contexts);
        let slots = std::mem::take(&mut self.slots);
        if !slots.is_empty() {
            let entered = push(driver, self.raw);
            drop(slots);
            if entered {
                pop(driver, self.raw);
            }
        }
        // SAFETY: gives back the one reference taken in `Context::new`. Nothing made in the context is left: each
        // such object, and each piece of unfinished work in the reaper, holds a `Context`.
        driver.note_drop(unsafe { call!(driver, cuDevicePrimaryCtxRelease_v2(self.device.raw())) });
    }
}

/// The context is current on this thread; dropping this restores what was current before.
#[derive(Debug)]
#[must_use = "the caller's context is restored when this is dropped"]
pub struct Entered<'a> {
    context: &'a Context,
    pushed: bool,
    /// The stack of contexts belongs to the thread: the guard must be dropped where it was made.
    thread: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.pushed {
            pop(self.context.driver(), self.context.raw());
        }
    }
}

fn push(driver: &Driver, raw: CUcontext) -> bool {
    // SAFETY: the caller holds a reference to the context.
    let pushed = unsafe { call!(driver, cuCtxPushCurrent_v2(raw)) };
    let done = pushed.is_ok();
    driver.note_drop(pushed);
    done
}

fn pop(driver: &Driver, expected: CUcontext) {
    let mut popped = ptr::null_mut();
    // SAFETY: `popped` is a live output; the entry on top is the one our push left there.
    let result = unsafe { call!(driver, cuCtxPopCurrent_v2(&raw mut popped)) };
    if result.is_ok() && popped != expected {
        log::error!(
            "the current context was changed inside a library call: expected {expected:p}, found {popped:p}"
        );
    }
    driver.note_drop(result);
}

/// The capture mode of the calling thread, until dropped: which calls it may make while a stream is captured elsewhere.
///
/// A capture in global mode forbids every thread in global mode to allocate, free, load or query an event; in
/// thread-local mode, the capturing thread. This library does so in relaxed mode where the capture is not concerned
/// (CUDA driver API, `cuThreadExchangeStreamCaptureMode`).
#[derive(Debug)]
#[must_use = "the caller's capture mode is restored when this is dropped"]
pub(crate) struct ThreadCaptureMode<'a> {
    driver: &'a Driver,
    previous: CUstreamCaptureMode,
    /// The mode belongs to the thread.
    thread: PhantomData<*const ()>,
}

impl<'a> ThreadCaptureMode<'a> {
    /// Sets it to relaxed.
    ///
    /// # Errors
    /// A driver error.
    pub(crate) fn relaxed(driver: &'a Driver) -> Result<Self> {
        Self::set(driver, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)
    }

    /// Sets it to that of another thread, for which this one works.
    ///
    /// # Errors
    /// A driver error.
    pub(crate) fn set(driver: &'a Driver, mode: CUstreamCaptureMode) -> Result<Self> {
        let mut previous = mode;
        // SAFETY: `previous` is read and written by the call only.
        unsafe { call!(driver, cuThreadExchangeStreamCaptureMode(&raw mut previous)) }?;
        Ok(Self { driver, previous, thread: PhantomData })
    }

    /// The calling thread's mode.
    ///
    /// # Errors
    /// A driver error.
    pub(crate) fn current(driver: &Driver) -> Result<CUstreamCaptureMode> {
        Ok(ThreadCaptureMode::relaxed(driver)?.previous)
    }
}

impl Drop for ThreadCaptureMode<'_> {
    fn drop(&mut self) {
        // SAFETY: as in `new`.
        let result = unsafe { call!(self.driver, cuThreadExchangeStreamCaptureMode(&raw mut self.previous)) };
        self.driver.note_drop(result);
    }
}
