//! Launches of kernels that do not fit the device together.

use std::sync::Arc;

use cuda_driver_sys::CUresult;

use super::{Calls, Gate, SOON, driver};
use crate::error::{Error, Result};
use crate::gpu::{Company, Context, Device, Hooks, Room, Stream};
use crate::outcome::Outcome;
use crate::sync::{AtomicBool, AtomicUsize, Ordering};

mod at_once;

/// Room of a device that runs ten blocks at once.
fn room(company: &Company, blocks: u32) -> Room {
    let room = company.reserve("test", (blocks, 10), false, None).unwrap();
    room.confirm();
    room
}

/// Rooms of one company.
fn rooms<const N: usize>(context: &Context, blocks: [u32; N]) -> [Room; N] {
    let company = context.new_company();
    blocks.map(|blocks| room(&company, blocks))
}

/// Streams of the library's own and of somebody else's, alive and dropped, while their work goes on.
#[test]
fn a_crowded_launch_stands_behind_those_of_streams_whose_handles_are_gone() {
    for (own, dropped) in [(true, false), (true, true), (false, false), (false, true)] {
        let calls = Arc::new(Calls::default());
        let context = Context::new(&Device::new(&driver().with_hooks(calls.clone()), 6).unwrap()).unwrap();
        let rooms = rooms(&context, [6, 6]);
        let owner = Stream::new(&context).unwrap();
        // SAFETY: the owner's stream is alive until the end.
        let wrapped = || unsafe { Stream::from_raw(&context, owner.handle()) };
        let first = if own { Stream::new(&context).unwrap() } else { wrapped() };
        rooms[0].stand_behind_others(&first, false).unwrap();
        // Stands for a launch that has not ended.
        let gate = Gate::close(&first);
        let first = (!dropped).then_some(first);
        let second = Stream::new(&context).unwrap();
        rooms[1].stand_behind_others(&second, false).unwrap();
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
    let company = context.new_company();
    let reserve = || room(&company, 5);
    let rooms = [reserve(), reserve()];
    rooms[0].stand_behind_others(&streams[0], false).unwrap();
    rooms[1].stand_behind_others(&streams[1], false).unwrap();
    assert_eq!(calls.of("cuStreamWaitEvent"), 0, "both fit");
    let third = reserve();
    third.stand_behind_others(&streams[1], false).unwrap();
    assert_eq!(calls.of("cuStreamWaitEvent"), 1, "the first kernel may still have its blocks on the device");
    third.stand_behind_others(&streams[1], false).unwrap();
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
        let rooms = rooms(&context, [6, 6]);
        let (first, second) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
        rooms[0].stand_behind_others(&first, false).unwrap();
        let gate = Gate::close(&first);
        let first = (!dropped).then_some(first);
        calls.1.store(1, Ordering::Relaxed);
        rooms[1].stand_behind_others(&second, false).unwrap_err();
        assert!(second.is_idle().unwrap(), "{function}: nothing stands before it yet");
        rooms[1].stand_behind_others(&second, false).unwrap();
        assert!(!second.is_idle().unwrap(), "{function}: it stands behind the first launch");
        gate.open();
        second.synchronize(SOON).unwrap();
        drop(first);
        context.settle();
    }
}

/// Only an event of ours still stands for its work.
#[test]
fn a_crowded_launch_stands_behind_the_work_of_a_stream_that_its_owner_has_destroyed() {
    let context = Context::new(&Device::new(&driver(), 6).unwrap()).unwrap();
    let rooms = rooms(&context, [6, 6]);
    let second = Stream::new(&context).unwrap();
    let (table, mut raw) = (*context.driver().table(), std::ptr::null_mut());
    let _entered = context.enter().unwrap();
    // SAFETY: `raw` is a live output.
    assert_eq!(unsafe { (table.cuStreamCreate)(&raw mut raw, 1) }, CUresult::CUDA_SUCCESS);
    // SAFETY: destroyed below, once the wrapper is gone.
    let first = unsafe { Stream::from_raw(&context, raw) };
    rooms[0].stand_behind_others(&first, false).unwrap();
    let gate = Gate::close(&first);
    drop(first);
    // SAFETY: nobody uses the handle any more.
    assert_eq!(unsafe { (table.cuStreamDestroy_v2)(raw) }, CUresult::CUDA_SUCCESS);
    rooms[1].stand_behind_others(&second, false).unwrap();
    assert!(!second.is_idle().unwrap(), "the first launch has not ended");
    gate.open();
    second.synchronize(SOON).unwrap();
    context.settle();
}

/// Launches that something else orders do not stand behind each other, but behind what was launched without it, and the other way around.
#[test]
fn launches_of_a_company_that_take_turns_stand_behind_others_only() {
    let context = Context::new(&Device::new(&driver(), 6).unwrap()).unwrap();
    let [[room], [other]] = [[11], [1]].map(|blocks| rooms(&context, blocks));
    let [first, second, third] = [(); 3].map(|()| Stream::new(&context).unwrap());
    room.stand_behind_others(&first, false).unwrap();
    let gate = Gate::close(&first);
    for stream in [&second, &third] {
        room.stand_behind_others(stream, true).unwrap();
        assert!(!stream.is_idle().unwrap(), "the launch without a turn has not ended");
    }
    gate.open();
    third.synchronize(SOON).unwrap();

    second.synchronize(SOON).unwrap();
    let gate = Gate::close(&second);
    room.stand_behind_others(&third, true).unwrap();
    assert!(third.is_idle().unwrap(), "it stands behind a launch of its company");
    // Also if the stream of that launch is gone.
    let dropped = Stream::new(&context).unwrap();
    room.stand_behind_others(&dropped, true).unwrap();
    let last = Gate::close(&dropped);
    drop(dropped);
    for _ in 0..2 {
        room.stand_behind_others(&third, true).unwrap();
        assert!(third.is_idle().unwrap(), "it stands behind a dropped stream of its company");
    }
    room.stand_behind_others(&first, false).unwrap();
    gate.open();
    second.synchronize(SOON).unwrap();
    assert!(!first.is_idle().unwrap(), "it does not stand behind a dropped stream of a company");
    last.open();
    first.synchronize(SOON).unwrap();

    // A stream that changes sides: what it had before counts, what it gets now does not.
    let before = Gate::close(&first);
    room.stand_behind_others(&first, true).unwrap();
    let after = Gate::close(&first);
    room.stand_behind_others(&third, true).unwrap();
    assert!(!third.is_idle().unwrap(), "an earlier launch of the stream has not ended");
    before.open();
    third.synchronize(SOON).unwrap();
    other.stand_behind_others(&second, true).unwrap();
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
    let [room] = rooms(&context, [11]);
    let [first, second, third] = [(); 3].map(|()| Stream::new(&context).unwrap());
    room.stand_behind_others(&first, false).unwrap();
    let once: Arc<dyn Outcome> = Arc::new(Once::default());
    first.depend_on(&once);
    room.stand_behind_others(&second, false).unwrap();
    second.synchronize(SOON).unwrap();
    // Also by what a stream had before it came to a company.
    room.stand_behind_others(&first, true).unwrap();
    room.stand_behind_others(&third, true).unwrap();
    third.synchronize(SOON).unwrap();
    first.synchronize(SOON).unwrap_err();
}

/// Whoever waits for a failed stream again is told again, though others have stood behind it meanwhile.
#[test]
fn standing_behind_a_stream_is_no_new_work_of_it() {
    let context = Context::new(&Device::new(&driver(), 6).unwrap()).unwrap();
    let [room] = rooms(&context, [11]);
    let [first, second] = [(); 2].map(|()| Stream::new(&context).unwrap());
    room.stand_behind_others(&first, false).unwrap();
    #[derive(Debug)]
    struct Fails;
    impl Outcome for Fails {
        fn outcome(&self, op: &'static str) -> Result<()> {
            Err(Error::usage(op, "given up"))
        }
    }
    first.depend_on(&(Arc::new(Fails) as Arc<dyn Outcome>));
    first.synchronize(SOON).unwrap_err();
    room.stand_behind_others(&second, false).unwrap();
    second.synchronize(SOON).unwrap();
    first.synchronize(SOON).unwrap_err();
}

/// Two communicators on one device, of which each has room for all its own kernels.
#[test]
fn companies_that_fit_by_themselves_stand_behind_each_other_only() {
    let context = Context::new(&Device::new(&driver(), 6).unwrap()).unwrap();
    let (company, [other]) = (context.new_company(), rooms(&context, [6]));
    let [one, two] = [3, 3].map(|blocks| room(&company, blocks));
    let [first, second, third] = [(); 3].map(|()| Stream::new(&context).unwrap());
    one.stand_behind_others(&first, false).unwrap();
    let gate = Gate::close(&first);
    for takes_turns in [false, true] {
        two.stand_behind_others(&second, takes_turns).unwrap();
        assert!(second.is_idle().unwrap(), "both kernels have room, {takes_turns}");
    }
    other.stand_behind_others(&third, false).unwrap();
    assert!(!third.is_idle().unwrap(), "the other company's kernels may take the room");
    gate.open();
    third.synchronize(SOON).unwrap();
    let gate = Gate::close(&third);
    two.stand_behind_others(&second, false).unwrap();
    assert!(!second.is_idle().unwrap(), "this company's kernels may take the room");
    gate.open();
    second.synchronize(SOON).unwrap();

    // One stream for both.
    other.stand_behind_others(&first, false).unwrap();
    let theirs = Gate::close(&first);
    one.stand_behind_others(&first, false).unwrap();
    let own = Gate::close(&first);
    two.stand_behind_others(&second, false).unwrap();
    assert!(!second.is_idle().unwrap(), "the other company's launch on that stream has not ended");
    theirs.open();
    second.synchronize(SOON).unwrap();
    own.open();
    first.synchronize(SOON).unwrap();
    // Without room for its own, it has an order of its own.
    let _more = room(&company, 9);
    let gate = Gate::close(&first);
    two.stand_behind_others(&second, false).unwrap();
    assert!(!second.is_idle().unwrap(), "two kernels of one company may not fit");
    gate.open();
    second.synchronize(SOON).unwrap();
    context.settle();
}

/// Launches of several communicators on one stream are in order as they are.
#[test]
fn companies_that_all_fit_pay_nothing_on_one_stream() {
    let calls = Arc::new(Calls::default());
    let context = Context::new(&Device::new(&driver().with_hooks(calls.clone()), 6).unwrap()).unwrap();
    let all = [(); 2].map(|()| rooms(&context, [2, 2]));
    let [both, own] = [(); 2].map(|()| Stream::new(&context).unwrap());
    all[0][0].stand_behind_others(&own, false).unwrap();
    for _ in 0..3 {
        all.iter().flatten().for_each(|room| room.stand_behind_others(&both, false).unwrap());
    }
    for function in ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"] {
        assert_eq!(calls.of(function), 0, "{function}");
    }
    // From now on it matters whose launches they were, and nobody knows.
    let gate = Gate::close(&both);
    let _more = rooms(&context, [6]);
    all[0][0].stand_behind_others(&own, false).unwrap();
    assert!(!own.is_idle().unwrap(), "there may be a launch of the other company");
    gate.open();
    own.synchronize(SOON).unwrap();
    // Those from now on are known.
    all[0][1].stand_behind_others(&both, false).unwrap();
    let gate = Gate::close(&both);
    all[0][0].stand_behind_others(&own, false).unwrap();
    assert!(own.is_idle().unwrap(), "both have room");
    gate.open();
    both.synchronize(SOON).unwrap();
    context.settle();
}

/// The ranks have not agreed yet: a rank that is ahead of another would order calls that the other one leaves free.
#[test]
fn room_that_is_not_confirmed_orders_nothing() {
    let context = Context::new(&Device::new(&driver(), 6).unwrap()).unwrap();
    let company = context.new_company();
    let [one, two] = [3, 3].map(|blocks| room(&company, blocks));
    let [first, second] = [(); 2].map(|()| Stream::new(&context).unwrap());
    let more = company.reserve("test", (6, 10), false, None).unwrap();
    assert!(company.is_crowded(), "the ranks tell each other");
    one.stand_behind_others(&first, false).unwrap();
    let gate = Gate::close(&first);
    two.stand_behind_others(&second, false).unwrap();
    assert!(second.is_idle().unwrap(), "the new kernel is not launched yet");
    assert!(company.reserve("test", (1, 10), true, None).is_err(), "it counts where room is promised");
    more.confirm();
    two.stand_behind_others(&second, false).unwrap();
    assert!(!second.is_idle().unwrap(), "three kernels do not fit");
    gate.open();
    second.synchronize(SOON).unwrap();
    context.settle();
}
