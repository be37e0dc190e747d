//! Cleanup of ranks that have dropped everything and call no more, by those that still work.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use cuda_driver_sys::CUresult;

use super::memory::FD;
use super::{Gate, SOON, driver};
use crate::gpu::waiting::waiting_for;
use crate::gpu::{Context, Device, Driver, GpuBuffer, Hooks, KeepAlive, PinnedBuffer, Stream};

fn context(driver: &Driver, ordinal: u32) -> Context {
    Context::new(&Device::new(driver, ordinal).unwrap()).unwrap()
}

#[test]
fn a_rank_that_waits_frees_what_waited_for_its_work() {
    let driver = driver();
    let (leaves, stays) = (context(&driver, 0), context(&driver, 1));
    let stream = Stream::new(&stays).unwrap();
    let gate = Gate::close(&stream);
    let device = leaves.device().clone();
    drop(PinnedBuffer::new(&leaves, 64).unwrap());
    assert_eq!(leaves.unreaped(), 1, "the driver would wait for the other device");
    drop(leaves);
    assert!(Context::existing(&device).is_some());
    gate.open();
    stream.synchronize(SOON).unwrap();
    assert!(Context::existing(&device).is_none(), "nobody else would ever free it");
}

#[test]
fn so_it_does_for_a_rank_that_has_loaded_the_driver_itself() {
    let (leaves, stays) = (context(&driver(), 0), context(&driver(), 5));
    let stream = Stream::new(&stays).unwrap();
    let buffers = [(); 2].map(|()| GpuBuffer::with_options(&leaves, 64, FD).unwrap());
    buffers.iter().for_each(|buffer| buffer.allow(stays.device()).unwrap());
    let gate = Gate::close(&stream);
    let device = leaves.device().clone();
    drop(buffers);
    drop(leaves);
    assert!(Context::existing(&device).is_some());
    gate.open();
    stream.synchronize(SOON).unwrap();
    assert!(Context::existing(&device).is_none());
    stream.synchronize(SOON).unwrap();
    assert!(waiting_for(stays.driver()).is_empty(), "waits of this rank cost one load again");
}

/// Memory waits for a stream that was dropped before its work was done, and which the same call cleans up: in whatever order
/// that call comes by the two contexts.
#[test]
fn one_call_cleans_up_a_stream_and_what_waited_for_it() {
    let driver = driver();
    let observer = context(&driver, 7);
    for (memory, works) in [(0, 1), (1, 0)] {
        let (memory, works) = (context(&driver, memory), context(&driver, works));
        let stream = Stream::new(&works).unwrap();
        let gate = Gate::close(&stream);
        let used: KeepAlive = Arc::new(());
        stream.retain(used.clone()).unwrap();
        let devices = [memory.device().clone(), works.device().clone()];
        drop(PinnedBuffer::new(&memory, 64).unwrap());
        drop((stream, memory, works));
        gate.open();
        drop(gate);
        super::eventually("the work's end", || {
            observer.reap();
            Arc::strong_count(&used) == 1
        });
        let left = devices.iter().filter(|device| Context::existing(device).is_some()).count();
        assert_eq!(left, 0, "the same call frees the memory");
    }
}

#[test]
fn threads_that_drop_at_the_same_time_leave_nothing_behind() {
    let driver = driver();
    let contexts = [0, 1, 2, 3].map(|ordinal| context(&driver, ordinal));
    let start = Barrier::new(contexts.len());
    for _ in 0..200 {
        thread::scope(|scope| {
            for context in &contexts {
                let memory = PinnedBuffer::new(context, 64).unwrap();
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    drop(memory);
                });
            }
        });
        assert_eq!(contexts.each_ref().map(Context::unreaped), [0; 4]);
    }
}

/// Lets the work end, and another thread wait for it and clean up, when the thread that drops memory has just seen the work. If
/// that other thread has to wait for this one, as it should, a bounded time passes instead.
struct Ends {
    dropping: ThreadId,
    seen: Mutex<Option<Seen>>,
}

struct Seen {
    gate: Arc<Gate>,
    go: Sender<()>,
    cleaned: Receiver<()>,
}

impl Hooks for Ends {
    fn after(&self, function: &'static str, result: CUresult) {
        let busy = function == "cuStreamQuery" && result == CUresult::CUDA_ERROR_NOT_READY;
        if !busy || thread::current().id() != self.dropping {
            return;
        }
        if let Some(Seen { gate, go, cleaned }) = self.seen.lock().unwrap().take() {
            gate.open();
            go.send(()).unwrap();
            let _ = cleaned.recv_timeout(Duration::from_millis(300));
        }
    }
}

/// Drops `things`, of which the context of `device` is the last, while a stream of `stays` works. `ends` hears of the calls that look.
fn dropped_as_work_ends<T>(ends: &Ends, stays: &Context, device: &Device, things: T) {
    let stream = Stream::new(stays).unwrap();
    // The gate's memory belongs to another driver value, whose calls nobody watches.
    let word = Arc::new(PinnedBuffer::new(&context(&driver(), stays.device().ordinal()), 8).unwrap());
    let gate = Arc::new(Gate { slice: word.slice(..).unwrap(), word });
    stream.wait_value64(&gate.slice, 1).unwrap();
    let (go, went) = channel();
    let (done, cleaned) = channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            went.recv().unwrap();
            stream.synchronize(SOON).unwrap();
            let _ = done.send(());
        });
        *ends.seen.lock().unwrap() = Some(Seen { gate: gate.clone(), go, cleaned });
        drop(things);
    });
    assert!(Context::existing(device).is_none(), "neither the drop nor the wait freed it");
}

#[test]
fn what_is_dropped_as_work_ends_is_not_forgotten() {
    let ends = Arc::new(Ends { dropping: thread::current().id(), seen: Mutex::default() });
    let watched = driver().with_hooks(ends.clone());
    let (leaves, stays) = (context(&watched, 0), context(&watched, 1));
    let memory = PinnedBuffer::new(&leaves, 64).unwrap();
    let device = leaves.device().clone();
    dropped_as_work_ends(&ends, &stays, &device, (memory, leaves));
}

/// The rank that works has not been told yet to look at what waits for it, and does not.
#[test]
fn what_is_dropped_as_work_of_a_rank_with_a_driver_of_its_own_ends_is_not_forgotten() {
    let ends = Arc::new(Ends { dropping: thread::current().id(), seen: Mutex::default() });
    let (leaves, stays) = (context(&driver(), 0), context(&driver().with_hooks(ends.clone()), 5));
    let buffer = GpuBuffer::with_options(&leaves, 64, FD).unwrap();
    buffer.allow(stays.device()).unwrap();
    let device = leaves.device().clone();
    dropped_as_work_ends(&ends, &stays, &device, (buffer, leaves));
}
