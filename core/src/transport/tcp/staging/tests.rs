//! What connections borrow, and that it comes back.

use cuda_driver_sys::CUresult;

use super::*;
use crate::deadline::Deadline;
use crate::gpu::{Context, Device, Driver, Hooks, PinnedBuffer};
use crate::sync::{AtomicBool, Ordering};
use crate::transport::tests::{soon, wait_for};

fn context() -> Context {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    Context::new(&Device::new(&driver, 0).unwrap()).unwrap()
}

fn half(blocks: usize) -> Arc<Half> {
    Arc::new(Half::new(&context(), blocks).unwrap())
}

#[test]
fn short_frames_share_a_block_which_goes_back_with_the_last_of_them() {
    let half = half(2);
    let mut staging = Staging::new(half.clone(), None);
    assert_eq!(half.free(), 2, "an idle connection has none");
    let first = staging.take(300).unwrap();
    assert_eq!((staging.take(1), staging.take(BLOCK - 384)), (Some(first + 320), Some(first + 384)));
    assert_eq!(half.free(), 1);
    (0..2).for_each(|_| staging.free_oldest());
    assert!(half.free() == 1, "the third frame has it");
    assert_eq!(staging.take(1), None, "it is not filled again, and the last block is left to others");
    staging.free_oldest();
    assert_eq!(half.free(), 2);
    assert!(staging.take(BLOCK).is_some());
    staging.free_oldest();
    // What is given back at once, and what is used in part.
    let at = staging.take(500).unwrap();
    staging.trim(500, 100);
    assert_eq!((staging.take(64), half.free()), (Some(at + 128), 1));
    staging.trim(64, 0);
    assert_eq!(half.free(), 1);
    staging.trim(100, 0);
    assert_eq!(half.free(), 2);
}

#[test]
fn a_connection_holds_so_many_blocks_and_leaves_one_to_others() {
    let half = half(MOST + 2);
    let (mut one, mut two) = (Staging::new(half.clone(), None), Staging::new(half.clone(), None));
    assert_eq!((0..9).filter(|_| one.take(BLOCK).is_some()).count(), MOST);
    assert!(two.take(BLOCK).is_some() && two.take(BLOCK).is_none() && !two.waits_in_line());
    let mut three = Staging::new(half.clone(), None);
    assert!(three.take(BLOCK).is_some());
    let mut four = Staging::new(half.clone(), None);
    assert!(four.take(8).is_none() && four.waits_in_line());
    two.free_oldest();
    assert!(one.take(1).is_none() && two.take(1).is_none() && four.take(1).is_some());
    drop((one, three, four));
    wait_for("blocks are lost", || half.free() == MOST + 2);
    assert!(two.waits_in_line());
    two.leave();
    assert!(!two.waits_in_line());
}

/// The connection has failed, and its copy is still under way.
#[test]
fn nobody_gets_a_block_before_the_copies_of_its_last_holder_are_done() {
    let half = half(1);
    let context = half.stream().context().clone();
    let word = Arc::new(PinnedBuffer::new(&context, 8).unwrap());
    let (mut failed, mut next) = (Staging::new(half.clone(), None), Staging::new(half.clone(), None));
    failed.take(8).unwrap();
    half.stream().wait_value64(&word.slice(..).unwrap(), 1).unwrap();
    failed.clear();
    let early = (next.take(8), half.free(), next.waits_in_line());
    word.memory().word64(0).unwrap().store(1, Ordering::Release);
    half.stream().synchronize(Deadline::after(std::time::Duration::from_secs(60))).unwrap();
    assert_eq!(early, (None, 0, false), "it looks again by itself: nobody will tell");
    let (mut taken, deadline) = (next.take(8), soon());
    while taken.is_none() && !deadline.expired() {
        taken = next.take(8);
    }
    assert!(taken.is_some());
}

/// A driver that has no memory for further events.
#[derive(Default)]
struct NoEvents(AtomicBool);

impl Hooks for NoEvents {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        let refuses = function == "cuEventCreate" && self.0.load(Ordering::Relaxed);
        refuses.then_some(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }
}

/// Nothing tells when just these copies are done: nobody gets the block before all are, or before there is an event again.
#[test]
fn nobody_gets_a_block_that_is_copied_because_the_driver_has_no_event() {
    let refused = Arc::new(NoEvents::default());
    let driver = Driver::software(cuda_soft::driver_table()).unwrap().with_hooks(refused.clone());
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    for event_comes in [false, true] {
        let half = Arc::new(Half::new(&context, 1).unwrap());
        let words = [(); 2].map(|()| Arc::new(PinnedBuffer::new(&context, 8).unwrap()));
        let wait = |word: &Arc<PinnedBuffer>| {
            half.stream().wait_value64(&word.slice(..).unwrap(), 1).unwrap();
        };
        let reach = |word: &PinnedBuffer| {
            word.memory().word64(0).unwrap().store(1, Ordering::Release);
        };
        let (mut failed, mut next) = (Staging::new(half.clone(), None), Staging::new(half.clone(), None));
        failed.take(8).unwrap();
        wait(&words[0]);
        refused.0.store(true, Ordering::Relaxed);
        failed.clear();
        let early = (next.take(8), half.free(), next.waits_in_line());
        refused.0.store(!event_comes, Ordering::Relaxed);
        let again = half.free();
        if event_comes {
            // Copies of others, which are not waited for.
            wait(&words[1]);
        }
        reach(&words[0]);
        let (mut taken, deadline) = (next.take(8), soon());
        while taken.is_none() && !deadline.expired() {
            taken = next.take(8);
        }
        reach(&words[1]);
        refused.0.store(false, Ordering::Relaxed);
        assert_eq!((early, again), ((None, 0, false), 0), "it looks again by itself: nobody will tell");
        assert!(taken.is_some(), "with an event later: {event_comes}");
    }
    context.settle();
}

#[test]
fn a_connection_that_goes_leaves_the_line_and_parks_nothing() {
    let half = half(2);
    let [mut one, mut two, mut three, mut four] = [(); 4].map(|()| Staging::new(half.clone(), None));
    assert!(one.take(BLOCK).is_some() && two.take(BLOCK).is_some());
    assert!(one.park() && one.park() && !two.park(), "all but one may be parked");
    assert!(three.take(8).is_none() && four.take(8).is_none());
    drop(three);
    drop(one);
    wait_for("it comes back", || half.free() == 1);
    assert!(four.take(8).is_some());
    assert!(two.park());
    two.unpark();
    assert!(four.park());
}
