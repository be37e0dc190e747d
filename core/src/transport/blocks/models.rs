//! Threads that borrow blocks, under loom: nobody sleeps for ever, and no block has two holders.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use super::*;
use crate::deadline::Deadline;
use crate::sync::{AtomicBool, AtomicUsize, Condvar, Ordering, wait};

/// A thread that sleeps until it is woken.
#[derive(Default)]
struct Sleeper {
    woken: Mutex<bool>,
    wakes: Condvar,
}

impl Wake for Arc<Sleeper> {
    fn wake(&self) {
        *lock(&self.woken) = true;
        self.wakes.notify_all();
    }
}

impl Sleeper {
    fn sleep(&self) {
        let mut woken = lock(&self.woken);
        while !std::mem::take(&mut *woken) {
            woken = wait(&self.wakes, woken, Deadline::after(Duration::from_secs(1)));
        }
    }
}

#[derive(Default)]
struct Holders([AtomicBool; 1]);

/// Borrows the block, and gives it back.
fn borrow(blocks: &Blocks<Arc<Sleeper>>, holders: &Holders, served: &AtomicUsize) {
    let (mut place, sleeper) = (Place::default(), Arc::new(Sleeper::default()));
    let block = loop {
        match blocks.first(&mut place, Some(&sleeper)) {
            Some(block) => break block,
            None => sleeper.sleep(),
        }
    };
    assert!(!holders.0[block].swap(true, Ordering::Relaxed), "it has two holders");
    served.fetch_add(1, Ordering::Relaxed);
    holders.0[block].store(false, Ordering::Relaxed);
    blocks.give([block]);
}

/// One block and three threads, one of which may leave the line.
#[test]
fn loom_blocks_whoever_waits_is_woken_also_if_the_one_before_leaves() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Arc::new((Blocks::new(1), Holders::default(), AtomicUsize::new(0)));
        let others = [(); 2].map(|()| {
            let shared = shared.clone();
            thread::spawn(move || borrow(&shared.0, &shared.1, &shared.2))
        });
        let (mut place, sleeper) = (Place::default(), Arc::new(Sleeper::default()));
        match shared.0.first(&mut place, Some(&sleeper)) {
            Some(block) => shared.0.give([block]),
            None => shared.0.leave(&mut place),
        }
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(shared.2.load(Ordering::Relaxed), 2);
    });
}
