//! Calls of plans with copy engines' blocks while they are enqueued: by several threads, and by a driver that fails in the middle.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cuda_driver_sys::CUresult;

use super::super::super::samples::copies;
use super::super::super::{Block, Element, Op, Plan};
use super::{Driver, LIMIT, Rig, alone, close, everywhere, ranks_on};
use crate::deadline::Deadline;
use crate::error::ErrorKind;
use crate::gpu::Hooks;
use crate::sync::{AtomicBool, Ordering};

const ELEMENTS: usize = 96;

thread_local! {
    /// The name of a thread whose driver calls are noted.
    static NAME: Cell<Option<&'static str>> = const { Cell::new(None) };
    /// This thread's copy of that number fails.
    static FAILS: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Notes what is enqueued, and by whom. The first thread's first copy takes so long that others can come.
#[derive(Default)]
struct Slow {
    enqueued: Mutex<Vec<&'static str>>,
    is_in_the_middle: AtomicBool,
}

impl Slow {
    fn enqueued(&self) -> Vec<&'static str> {
        self.enqueued.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Hooks for Slow {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        let name = NAME.get()?;
        if ["cuEventRecord", "cuStreamWaitEvent", "cuMemcpyAsync", "cuLaunchKernel"].contains(&function) {
            self.enqueued.lock().unwrap_or_else(PoisonError::into_inner).push(name);
        }
        let first = function == "cuMemcpyAsync" && name == "first";
        if first && !self.is_in_the_middle.swap(true, Ordering::AcqRel) {
            let patience = Deadline::after(Duration::from_millis(500));
            while !patience.expired() && self.enqueued().iter().all(|name| *name == "first") {
                std::thread::yield_now();
            }
        }
        None
    }
}

/// Two threads make one call each on one stream: the work of the second stands behind that of the first in all streams.
#[test]
fn calls_of_two_threads_do_not_mix() {
    let _alone = alone();
    let slow = Arc::new(Slow::default());
    let driver = Driver::software(cuda_soft::driver_table()).unwrap().with_hooks(slow.clone());
    let comms = ranks_on(&driver, 2);
    let mut rig = Rig::new(&comms, &copies::all_reduce(2), ELEMENTS, &[None]).unwrap();
    let right = rig.call(ELEMENTS, None).outputs;
    let call = |rank: usize| {
        let shown = &rig.shown.as_ref().unwrap()[rank];
        rig.executors[rank].execute_on(&rig.sides[rank].stream, shown, ELEMENTS, Element::I32, None)
    };
    std::thread::scope(|scope| {
        let threads = ["first", "second"].map(|name| {
            let (slow, call) = (&slow, &call);
            scope.spawn(move || {
                let patience = Deadline::after(LIMIT);
                while name == "second" && !slow.is_in_the_middle.load(Ordering::Acquire) {
                    assert!(!patience.expired(), "the first thread copies nothing");
                    std::thread::yield_now();
                }
                NAME.set(Some(name));
                call(0)
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
    });
    let enqueued = slow.enqueued();
    let turns = enqueued.chunk_by(|one, next| one == next).map(|turn| turn[0]);
    let turns: Vec<&str> = turns.collect();
    // A mixture may wait for ever.
    if turns != ["first", "second"] {
        comms[0].abort("the calls are mixed");
        panic!("the calls are mixed: {enqueued:?}");
    }
    (0..2).for_each(|_| call(1).unwrap());
    for (side, right) in rig.sides.iter().zip(&right) {
        side.stream.synchronize(LIMIT).unwrap();
        let mut seen = vec![0_i32; right.len()];
        side.output.download(0, &mut seen, LIMIT).unwrap();
        assert_eq!(seen, *right);
    }
    drop(rig);
    close(&comms);
}

struct Fails;

impl Hooks for Fails {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        let left = FAILS.get().filter(|_| function == "cuMemcpyAsync")?;
        FAILS.set(left.checked_sub(1));
        (left == 0).then_some(CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)
    }
}

/// An all-gather whose own copy is one block's, on the call's stream, and the copies to peers another one's, which waits for them first.
fn in_two_blocks() -> Plan {
    let mut plan = copies::all_gather(2);
    for rank in &mut plan.ranks {
        let own =
            rank.blocks[0].ops.iter().position(|operation| matches!(operation.op, Op::Move(_))).unwrap();
        let own = rank.blocks[0].ops.remove(own);
        rank.blocks.insert(0, Block { copy_engine: true, ..Block::new(vec![own]) });
    }
    plan
}

/// What was enqueued before the failure still uses the call's memory: the call's stream waits for it, and keeps the memory until then.
#[test]
fn a_call_that_fails_in_the_middle_keeps_what_it_has_begun() {
    let _alone = alone();
    let driver = Driver::software(cuda_soft::driver_table()).unwrap().with_hooks(Arc::new(Fails));
    let comms = ranks_on(&driver, 2);
    let mut rig = Rig::new(&comms, &in_two_blocks(), ELEMENTS, &[None]).unwrap();
    rig.as_simulated(ELEMENTS, None);
    let Rig { executors, sides, shown, .. } = rig;
    let held = Arc::downgrade(&executors[0].inner);
    FAILS.set(Some(1));
    let failed =
        executors[0].execute_on(&sides[0].stream, &shown.as_ref().unwrap()[0], ELEMENTS, Element::I32, None);
    assert_eq!(FAILS.take(), None, "both copies were tried");
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Cuda);
    drop((executors, shown));
    // The peer never comes.
    let waits = sides[0].stream.synchronize(Duration::from_millis(300));
    comms[0].context().reap();
    let kept = held.upgrade().is_some();
    comms[0].abort("no more");
    assert_eq!(
        waits.map_err(|error| error.kind()),
        Err(ErrorKind::Timeout),
        "the stream has left the other one behind"
    );
    assert!(kept, "the other stream's kernel runs on memory that was given up");
    let ended = sides[0].stream.synchronize(LIMIT).unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::Aborted, "{ended}");
    let until = Deadline::from(LIMIT);
    while held.upgrade().is_some() {
        assert!(!until.expired(), "a call that is done holds nothing");
        comms[0].context().reap();
        std::thread::yield_now();
    }
    drop(sides);
    everywhere(&comms, |comm| comm.close(LIMIT));
}
