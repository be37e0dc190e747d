//! Host functions in streams. They run one after another on their own thread, so that a slow one, or one that waits for
//! another stream, does not block a device.

use std::ffi::c_void;
use std::sync::mpsc::{Sender, channel};

use cuda_driver_sys::{CUresult, CUstream};
use parking_lot::Mutex;

/// A function of the user and its argument.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HostCall {
    /// From `cuLaunchHostFunc`: not called if the context has a sticky error.
    Function(unsafe extern "C" fn(*mut c_void), *mut c_void),
    /// From `cuStreamAddCallback`: always called, with the sticky error of the context or success.
    Callback(unsafe extern "C" fn(CUstream, CUresult, *mut c_void), CUstream, *mut c_void),
}

// SAFETY: the pointers are only passed to the user's function, which by the API's contract runs on another thread.
unsafe impl Send for HostCall {}
// SAFETY: as above; this code never dereferences them.
unsafe impl Sync for HostCall {}

impl HostCall {
    /// Calls the function, with the state of its context. Returns when it does.
    pub(super) fn run(self, status: CUresult) {
        match self {
            // SAFETY: by the contract of the API, function and argument stay valid until this call.
            Self::Function(f, data) => unsafe {
                if status == CUresult::CUDA_SUCCESS {
                    f(data);
                }
            },
            // SAFETY: as above.
            Self::Callback(f, stream, data) => unsafe { f(stream, status, data) },
        }
    }
}

/// The thread for host functions, which the first call starts.
#[derive(Debug, Default)]
pub(crate) struct HostThread {
    queue: Mutex<Option<Sender<Entry>>>,
}

/// A call, and what goes with it.
type Entry = Box<dyn FnOnce() + Send>;

impl HostThread {
    /// Queues `entry` for the thread.
    pub(super) fn post(&self, entry: impl FnOnce() + Send + 'static) {
        let mut queue = self.queue.lock();
        let sender = queue.get_or_insert_with(|| {
            let (sender, receiver) = channel::<Entry>();
            let body = move || {
                IN_CALLBACK.set(true);
                for entry in receiver {
                    entry();
                }
            };
            // If no thread can be started the receiver is dropped, and every call runs on the posting thread below.
            let _ = std::thread::Builder::new().name("cuda-soft host".to_owned()).spawn(body);
            sender
        });
        if let Err(unsent) = sender.send(Box::new(entry)) {
            drop(queue);
            unsent.0();
        }
    }
}

/// Whether this thread runs host functions, which must not call the driver.
pub(crate) fn in_callback() -> bool {
    IN_CALLBACK.get()
}

thread_local! {
    static IN_CALLBACK: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs `f` like a host function: it must not call the driver.
pub(super) fn as_callback(f: impl FnOnce()) {
    let outer = IN_CALLBACK.replace(true);
    f();
    IN_CALLBACK.set(outer);
}
