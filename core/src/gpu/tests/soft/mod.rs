//! The whole module on the software device.
//!
//! Each test makes a driver value of its own, so contexts and reapers are not shared; tests that block a stream or lose
//! a context use a device of their own, since the software machine is one per process.

mod arguments;
mod captures;
mod drop_order;
mod kernels;
mod launch_order;
mod leaving;
mod memory;
mod multicast;
mod peer;
mod streams;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cuda_driver_sys::CUresult;

use crate::gpu::{Context, Device, DeviceSlice, Driver, GpuBuffer, Hooks, PinnedBuffer, PointerInfo, Stream};
use crate::sync::Ordering;

const SOON: Duration = Duration::from_secs(20);
/// Longer than a busy machine stalls, and shorter than a lane of tests may take.
const STALL: Duration = Duration::from_secs(600);

fn driver() -> Driver {
    Driver::software(cuda_soft::driver_table()).unwrap()
}

fn context(ordinal: u32) -> Context {
    Context::new(&Device::new(&driver(), ordinal).unwrap()).unwrap()
}

/// A stream that waits until told to go on.
struct Gate {
    word: Arc<PinnedBuffer>,
    slice: DeviceSlice,
}

impl Gate {
    fn close(stream: &Stream) -> Self {
        let word = Arc::new(PinnedBuffer::new(stream.context(), 8).unwrap());
        let slice = word.slice(..).unwrap();
        stream.wait_value64(&slice, 1).unwrap();
        assert!(!stream.is_idle().unwrap());
        Self { word, slice }
    }

    fn open(&self) {
        assert_eq!(self.slice.len(), 8);
        self.word.memory().word64(0).unwrap().store(1, Ordering::Release);
    }
}

/// A test that fails leaves no stream waiting: the machine is everybody's.
impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

/// Where a buffer was. By the allocation's number: another test may be given the address once it is free.
struct Address {
    context: Context,
    ptr: u64,
    id: u64,
}

impl Address {
    fn of(buffer: &GpuBuffer) -> Self {
        let (context, ptr) = (buffer.context().clone(), buffer.ptr());
        let id = PointerInfo::of(&context, ptr).unwrap().id;
        assert_ne!(id, 0);
        Self { context, ptr, id }
    }

    fn is_mapped(&self) -> bool {
        PointerInfo::of(&self.context, self.ptr).unwrap().id == self.id
    }
}

/// Polls for what happens in the background.
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{what} did not happen");
}

/// Counts calls by name.
#[derive(Default)]
struct Calls(Mutex<HashMap<&'static str, usize>>);

impl Calls {
    /// How often `function` has succeeded.
    fn of(&self, function: &str) -> usize {
        self.0.lock().unwrap().get(function).copied().unwrap_or_default()
    }
}

impl Hooks for Calls {
    fn after(&self, function: &'static str, result: CUresult) {
        if result == CUresult::CUDA_SUCCESS {
            *self.0.lock().unwrap().entry(function).or_default() += 1;
        }
    }
}
