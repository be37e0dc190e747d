//! Launches of kernels that do not fit the device together.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cuda_driver_sys::CUresult;

use super::{Calls, Gate, SOON, driver};
use crate::gpu::{Context, Device, Hooks, PinnedBuffer, Stream};
use crate::sync::{AtomicUsize, Ordering};

/// Streams of the library's own and of somebody else's, alive and dropped, while their work goes on.
#[test]
fn a_crowded_launch_stands_behind_those_of_streams_whose_handles_are_gone() {
    for (own, dropped) in [(true, false), (true, true), (false, false), (false, true)] {
        let calls = Arc::new(Calls::default());
        let context = Context::new(&Device::new(&driver().with_hooks(calls.clone()), 6).unwrap()).unwrap();
        let rooms = [6, 6].map(|blocks| context.reserve("test", (blocks, 10), false, None).unwrap());
        let owner = Stream::new(&context).unwrap();
        // SAFETY: the owner's stream is alive until the end.
        let wrapped = || unsafe { Stream::from_raw(&context, owner.handle()) };
        let first = if own { Stream::new(&context).unwrap() } else { wrapped() };
        rooms[0].take_turn(&first).unwrap();
        // Stands for a launch that has not ended.
        let gate = Gate::close(&first);
        let first = (!dropped).then_some(first);
        let second = Stream::new(&context).unwrap();
        rooms[1].take_turn(&second).unwrap();
        let case = format!("own {own}, dropped {dropped}");
        assert_eq!(calls.of("cuStreamWaitEvent"), 1, "{case}");
        assert!(!second.is_idle().unwrap(), "{case}");
        gate.open();
        second.synchronize(SOON).unwrap();
        drop((first, owner));
        context.settle();
    }
}

/// Two kernels fit the device and are launched without an order; then a third one comes, with which it is crowded.
#[test]
fn a_kernel_that_makes_the_device_crowded_stands_behind_all_earlier_launches() {
    let calls = Arc::new(Calls::default());
    let context = Context::new(&Device::new(&driver().with_hooks(calls.clone()), 6).unwrap()).unwrap();
    let streams = [(), ()].map(|()| Stream::new(&context).unwrap());
    let reserve = || context.reserve("test", (5, 10), false, None).unwrap();
    let rooms = [reserve(), reserve()];
    rooms[0].take_turn(&streams[0]).unwrap();
    rooms[1].take_turn(&streams[1]).unwrap();
    assert_eq!(calls.of("cuStreamWaitEvent"), 0, "both fit");
    let third = reserve();
    third.take_turn(&streams[1]).unwrap();
    assert_eq!(calls.of("cuStreamWaitEvent"), 1, "the first kernel may still have its blocks on the device");
    third.take_turn(&streams[1]).unwrap();
    assert_eq!(calls.of("cuStreamWaitEvent"), 1, "nothing was launched elsewhere since");
}

/// Fails the first calls of a function.
struct Fails(&'static str, AtomicUsize);

impl Hooks for Fails {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        let fails = |left: usize| left.checked_sub(1);
        let failed =
            function == self.0 && self.1.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fails).is_ok();
        failed.then_some(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }
}

#[test]
fn a_launch_whose_turn_failed_takes_another() {
    for function in ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"] {
        let calls = Arc::new(Fails(function, AtomicUsize::new(0)));
        let context = Context::new(&Device::new(&driver().with_hooks(calls.clone()), 6).unwrap()).unwrap();
        let rooms = [6, 6].map(|blocks| context.reserve("test", (blocks, 10), false, None).unwrap());
        let (first, second) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
        rooms[0].take_turn(&first).unwrap();
        let gate = Gate::close(&first);
        calls.1.store(1, Ordering::Relaxed);
        rooms[1].take_turn(&second).unwrap_err();
        assert!(second.is_idle().unwrap(), "{function}: nothing stands before it yet");
        rooms[1].take_turn(&second).unwrap();
        assert!(!second.is_idle().unwrap(), "{function}: it stands behind the first launch");
        gate.open();
        second.synchronize(SOON).unwrap();
        first.synchronize(SOON).unwrap();
    }
}

/// Drops memory on another thread while a stream is told to wait, which the driver may delay for as long as that stream's queue is full.
struct Drops {
    memory: Mutex<Option<PinnedBuffer>>,
    returned: AtomicUsize,
}

impl Hooks for Drops {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        if function == "cuStreamWaitEvent"
            && let Some(memory) = self.memory.lock().unwrap().take()
        {
            let (done, dropped) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                drop(memory);
                done.send(()).unwrap();
            });
            let returned = dropped.recv_timeout(Duration::from_secs(5)).is_ok();
            self.returned.store(usize::from(returned), Ordering::Relaxed);
        }
        None
    }
}

#[test]
fn a_drop_does_not_wait_for_a_launch_that_is_held_up() {
    let drops = Arc::new(Drops { memory: Mutex::default(), returned: AtomicUsize::new(0) });
    let context = Context::new(&Device::new(&driver().with_hooks(drops.clone()), 6).unwrap()).unwrap();
    let rooms = [6, 6].map(|blocks| context.reserve("test", (blocks, 10), false, None).unwrap());
    let first = Stream::new(&context).unwrap();
    rooms[0].take_turn(&first).unwrap();
    let gate = Gate::close(&first);
    drop(first);
    let second = Stream::new(&context).unwrap();
    *drops.memory.lock().unwrap() = Some(PinnedBuffer::new(&context, 64).unwrap());
    rooms[1].take_turn(&second).unwrap();
    assert_eq!(drops.returned.load(Ordering::Relaxed), 1, "it waited until the stream was told");
    gate.open();
    second.synchronize(SOON).unwrap();
    context.settle();
}
