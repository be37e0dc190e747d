//! Host functions in streams run on a thread of their own, one after the other, so that one that takes long, or
//! waits for another stream, holds up no device.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use cuda_driver_sys::{CUresult, CUstream};
use parking_lot::Mutex;

use super::op::Op;

/// A function of the user's with its argument.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HostCall {
    /// `cuLaunchHostFunc`: not called once the context has failed.
    Function(unsafe extern "C" fn(*mut c_void), *mut c_void),
    /// `cuStreamAddCallback`: always called, with the state of the context.
    Callback(unsafe extern "C" fn(CUstream, CUresult, *mut c_void), CUstream, *mut c_void),
}

// SAFETY: the pointers are values handed back to the user's function, which has agreed to run on another thread.
unsafe impl Send for HostCall {}
// SAFETY: as above; nothing here reads through them.
unsafe impl Sync for HostCall {}

/// The thread, started by its first call.
#[derive(Debug, Default)]
pub(crate) struct HostThread {
    queue: Mutex<Option<Sender<Entry>>>,
}

/// A call, the state of its context, and the operation it is.
type Entry = (HostCall, CUresult, Arc<Op>);

impl HostThread {
    /// Has `call` made; `op` ends after it.
    pub(super) fn post(&self, call: HostCall, status: CUresult, op: Arc<Op>) {
        let mut queue = self.queue.lock();
        let sender = queue.get_or_insert_with(|| {
            let (sender, receiver) = channel::<Entry>();
            let body = move || {
                IN_CALLBACK.set(true);
                for (call, status, op) in receiver {
                    run(call, status);
                    op.end();
                }
            };
            // Without a thread the receiver is gone and every post below runs the call in place.
            let _ = std::thread::Builder::new().name("cuda-soft host".to_owned()).spawn(body);
            sender
        });
        if let Err(unsent) = sender.send((call, status, op)) {
            drop(queue);
            let (call, status, op) = unsent.0;
            run(call, status);
            op.end();
        }
    }
}

/// Whether this thread is inside a host function, where driver calls are not permitted.
pub(crate) fn in_callback() -> bool {
    IN_CALLBACK.get()
}

thread_local! {
    static IN_CALLBACK: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs `f` as a host function runs: driver calls in it are not permitted.
pub(super) fn as_callback(f: impl FnOnce()) {
    let outer = IN_CALLBACK.replace(true);
    f();
    IN_CALLBACK.set(outer);
}

fn run(call: HostCall, status: CUresult) {
    match call {
        // SAFETY: the user passed function and argument for exactly this call and keeps both valid until then.
        HostCall::Function(f, data) => unsafe {
            if status == CUresult::CUDA_SUCCESS {
                f(data);
            }
        },
        // SAFETY: as above.
        HostCall::Callback(f, stream, data) => unsafe { f(stream, status, data) },
    }
}
