//! Launches of kernels that do not fit the device together.

use std::sync::{Arc, Mutex};

use cuda_driver_sys::CUresult;

use super::{Calls, Gate, SOON, STALL, driver};
use crate::error::{Error, Result};
use crate::gpu::{Context, Device, Hooks, PinnedBuffer, Stream};
use crate::outcome::Outcome;
use crate::sync::{AtomicBool, AtomicUsize, Ordering};

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
        rooms[0].take_turn(&first, None).unwrap();
        // Stands for a launch that has not ended.
        let gate = Gate::close(&first);
        let first = (!dropped).then_some(first);
        let second = Stream::new(&context).unwrap();
        rooms[1].take_turn(&second, None).unwrap();
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
    rooms[0].take_turn(&streams[0], None).unwrap();
    rooms[1].take_turn(&streams[1], None).unwrap();
    assert_eq!(calls.of("cuStreamWaitEvent"), 0, "both fit");
    let third = reserve();
    third.take_turn(&streams[1], None).unwrap();
    assert_eq!(calls.of("cuStreamWaitEvent"), 1, "the first kernel may still have its blocks on the device");
    third.take_turn(&streams[1], None).unwrap();
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
    let functions = ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"];
    for (function, dropped) in functions.into_iter().flat_map(|name| [(name, false), (name, true)]) {
        let calls = Arc::new(Fails(function, AtomicUsize::new(0)));
        let context = Context::new(&Device::new(&driver().with_hooks(calls.clone()), 6).unwrap()).unwrap();
        let rooms = [6, 6].map(|blocks| context.reserve("test", (blocks, 10), false, None).unwrap());
        let (first, second) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
        rooms[0].take_turn(&first, None).unwrap();
        let gate = Gate::close(&first);
        let first = (!dropped).then_some(first);
        calls.1.store(1, Ordering::Relaxed);
        rooms[1].take_turn(&second, None).unwrap_err();
        assert!(second.is_idle().unwrap(), "{function}: nothing stands before it yet");
        rooms[1].take_turn(&second, None).unwrap();
        assert!(!second.is_idle().unwrap(), "{function}: it stands behind the first launch");
        gate.open();
        second.synchronize(SOON).unwrap();
        drop(first);
        context.settle();
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
            let returned = dropped.recv_timeout(STALL).is_ok();
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
    rooms[0].take_turn(&first, None).unwrap();
    let gate = Gate::close(&first);
    drop(first);
    let second = Stream::new(&context).unwrap();
    *drops.memory.lock().unwrap() = Some(PinnedBuffer::new(&context, 64).unwrap());
    rooms[1].take_turn(&second, None).unwrap();
    assert_eq!(drops.returned.load(Ordering::Relaxed), 1, "it waited until the stream was told");
    gate.open();
    second.synchronize(SOON).unwrap();
    context.settle();
}

/// Only an event of ours still stands for its work.
#[test]
fn a_crowded_launch_stands_behind_the_work_of_a_stream_that_its_owner_has_destroyed() {
    let context = Context::new(&Device::new(&driver(), 6).unwrap()).unwrap();
    let rooms = [6, 6].map(|blocks| context.reserve("test", (blocks, 10), false, None).unwrap());
    let second = Stream::new(&context).unwrap();
    let (table, mut raw) = (*context.driver().table(), std::ptr::null_mut());
    let _entered = context.enter().unwrap();
    // SAFETY: `raw` is a live output.
    assert_eq!(unsafe { (table.cuStreamCreate)(&raw mut raw, 1) }, CUresult::CUDA_SUCCESS);
    // SAFETY: destroyed below, once the wrapper is gone.
    let first = unsafe { Stream::from_raw(&context, raw) };
    rooms[0].take_turn(&first, None).unwrap();
    let gate = Gate::close(&first);
    drop(first);
    // SAFETY: nobody uses the handle any more.
    assert_eq!(unsafe { (table.cuStreamDestroy_v2)(raw) }, CUresult::CUDA_SUCCESS);
    rooms[1].take_turn(&second, None).unwrap();
    assert!(!second.is_idle().unwrap(), "the first launch has not ended");
    gate.open();
    second.synchronize(SOON).unwrap();
    context.settle();
}

type Then = Box<dyn FnOnce() + Send>;

/// Counts waits for events, and does something before the next event is made.
#[derive(Default)]
struct Meanwhile {
    waits: AtomicUsize,
    then: Mutex<Option<Then>>,
}

impl Hooks for Meanwhile {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        let then = (function == "cuEventCreate").then(|| self.then.lock().unwrap().take()).flatten();
        if let Some(then) = then {
            then();
        }
        self.waits.fetch_add(usize::from(function == "cuStreamWaitEvent"), Ordering::Relaxed);
        None
    }
}

/// Two threads launch at once: the turn that began first ends last.
#[test]
fn a_turn_that_another_has_overtaken_spares_the_next_launch_nothing() {
    let meanwhile = Arc::new(Meanwhile::default());
    let context = Context::new(&Device::new(&driver().with_hooks(meanwhile.clone()), 6).unwrap()).unwrap();
    let reserve = || Arc::new(context.reserve("test", (6, 10), false, None).unwrap());
    let (rooms, streams) = ([reserve(), reserve()], [(); 2].map(|()| Stream::new(&context).unwrap()));
    rooms[0].take_turn(&streams[0], None).unwrap();
    rooms[1].take_turn(&streams[1], None).unwrap();
    let (room, stream) = (rooms[1].clone(), streams[1].clone());
    *meanwhile.then.lock().unwrap() = Some(Box::new(move || room.take_turn(&stream, None).unwrap()));
    rooms[0].take_turn(&streams[0], None).unwrap();
    assert!(meanwhile.then.lock().unwrap().is_none(), "nothing came between");
    let before = meanwhile.waits.load(Ordering::Relaxed);
    rooms[0].take_turn(&streams[0], None).unwrap();
    let waits = meanwhile.waits.load(Ordering::Relaxed) - before;
    assert_eq!(waits, 1, "the launch on the other stream may be on the device");
}

/// Launches that something else orders do not stand behind each other, but behind what was launched without it, and the other way around.
#[test]
fn launches_of_a_company_stand_behind_those_of_others_only() {
    let context = Context::new(&Device::new(&driver(), 6).unwrap()).unwrap();
    let room = context.reserve("test", (11, 10), false, None).unwrap();
    let company = Some(context.new_series());
    let [first, second, third] = [(); 3].map(|()| Stream::new(&context).unwrap());
    room.take_turn(&first, None).unwrap();
    let gate = Gate::close(&first);
    for stream in [&second, &third] {
        room.take_turn(stream, company).unwrap();
        assert!(!stream.is_idle().unwrap(), "the launch outside of the company has not ended");
    }
    gate.open();
    third.synchronize(SOON).unwrap();

    second.synchronize(SOON).unwrap();
    let gate = Gate::close(&second);
    room.take_turn(&third, company).unwrap();
    assert!(third.is_idle().unwrap(), "it stands behind a launch of its company");
    // Also if the stream of that launch is gone.
    let dropped = Stream::new(&context).unwrap();
    room.take_turn(&dropped, company).unwrap();
    let last = Gate::close(&dropped);
    drop(dropped);
    for _ in 0..2 {
        room.take_turn(&third, company).unwrap();
        assert!(third.is_idle().unwrap(), "it stands behind a dropped stream of its company");
    }
    room.take_turn(&first, None).unwrap();
    gate.open();
    second.synchronize(SOON).unwrap();
    assert!(!first.is_idle().unwrap(), "it does not stand behind a dropped stream of a company");
    last.open();
    first.synchronize(SOON).unwrap();

    // A stream that changes sides: what it had before counts, what it gets now does not.
    let before = Gate::close(&first);
    room.take_turn(&first, company).unwrap();
    let after = Gate::close(&first);
    room.take_turn(&third, company).unwrap();
    assert!(!third.is_idle().unwrap(), "an earlier launch of the stream has not ended");
    before.open();
    third.synchronize(SOON).unwrap();
    room.take_turn(&second, Some(context.new_series())).unwrap();
    assert!(!second.is_idle().unwrap(), "two companies stand behind each other");
    after.open();
    second.synchronize(SOON).unwrap();
    first.synchronize(SOON).unwrap();
    context.settle();
}

/// Work that has failed, of which one wait is told.
#[derive(Debug, Default)]
struct Once(AtomicBool);

impl Outcome for Once {
    fn outcome(&self, op: &'static str) -> Result<()> {
        if self.0.swap(true, Ordering::Relaxed) { Ok(()) } else { Err(Error::usage(op, "given up")) }
    }

    fn has_failed(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }
}

/// They follow each other for room: what failed on one stream is told to those who wait for that one.
#[test]
fn a_launch_that_stands_behind_others_takes_along_none_of_their_failures() {
    let context = Context::new(&Device::new(&driver(), 6).unwrap()).unwrap();
    let room = context.reserve("test", (11, 10), false, None).unwrap();
    let [first, second, third] = [(); 3].map(|()| Stream::new(&context).unwrap());
    room.take_turn(&first, None).unwrap();
    let once: Arc<dyn Outcome> = Arc::new(Once::default());
    first.depend_on(&once);
    room.take_turn(&second, None).unwrap();
    second.synchronize(SOON).unwrap();
    // Also by what a stream had before it came to a company.
    let company = Some(context.new_series());
    room.take_turn(&first, company).unwrap();
    room.take_turn(&third, company).unwrap();
    third.synchronize(SOON).unwrap();
    first.synchronize(SOON).unwrap_err();
}

/// Whoever waits for a failed stream again is told again, though others have stood behind it meanwhile.
#[test]
fn standing_behind_a_stream_is_no_new_work_of_it() {
    let context = Context::new(&Device::new(&driver(), 6).unwrap()).unwrap();
    let room = context.reserve("test", (11, 10), false, None).unwrap();
    let [first, second] = [(); 2].map(|()| Stream::new(&context).unwrap());
    room.take_turn(&first, None).unwrap();
    #[derive(Debug)]
    struct Fails;
    impl Outcome for Fails {
        fn outcome(&self, op: &'static str) -> Result<()> {
            Err(Error::usage(op, "given up"))
        }
    }
    first.depend_on(&(Arc::new(Fails) as Arc<dyn Outcome>));
    first.synchronize(SOON).unwrap_err();
    room.take_turn(&second, None).unwrap();
    second.synchronize(SOON).unwrap();
    first.synchronize(SOON).unwrap_err();
}
