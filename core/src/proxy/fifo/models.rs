//! The FIFO under loom: every interleaving, and every value that the model of C++ lets a load see.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::producer::Ring;
use super::ring::Consumer;
use crate::sync::Ordering;

/// What triggers speak of, one cell per trigger: loom fails the model if two accesses could race.
struct Data(Vec<UnsafeCell<u64>>);

// SAFETY: a race on a cell is what loom looks for and reports; it schedules one thread at a time.
unsafe impl Sync for Data {}

impl Data {
    fn new(cells: usize) -> Self {
        Self((0..cells).map(|_| UnsafeCell::new(0)).collect())
    }

    fn write(&self, cell: usize, value: u64) {
        // SAFETY: loom has just checked that no other access is concurrent.
        self.0[cell].with_mut(|at| unsafe { *at = value });
    }

    fn read(&self, cell: usize) -> u64 {
        // SAFETY: as above.
        self.0[cell].with(|at| unsafe { *at })
    }
}

/// How a model runs.
#[derive(Clone, Copy)]
struct Shape {
    producers: usize,
    pushes: usize,
    capacity: u64,
    start: u64,
    /// Most times that a thread is interrupted where it would not have waited.
    preemptions: usize,
    /// The producers' fence.
    commit: Ordering,
    /// If given, each push is waited for with this load, and the cell is used again.
    sync: Option<Ordering>,
}

impl Shape {
    const fn new(producers: usize, pushes: usize, capacity: u64, start: u64) -> Self {
        Self { producers, pushes, capacity, start, preemptions: 2, commit: Ordering::AcqRel, sync: None }
    }

    fn run(self) {
        let mut model = loom::model::Builder::new();
        // Every trigger is ten accesses: more preemptions than this are hours.
        model.preemption_bound = Some(self.preemptions);
        model.check(move || {
            let shared =
                Arc::new((Ring::new(self.capacity, self.start), Data::new(self.producers * self.pushes)));
            let threads: Vec<_> = (0..self.producers)
                .map(|me| {
                    let shared = shared.clone();
                    thread::spawn(move || self.produce(me, &shared.0, &shared.1))
                })
                .collect();
            self.consume(&shared.0, &shared.1);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    fn produce(self, me: usize, ring: &Ring, data: &Data) {
        for push in 0..self.pushes {
            let cell = if self.sync.is_some() { me * self.pushes } else { me * self.pushes + push };
            data.write(cell, push as u64 + 1);
            let position = ring.take();
            let room = loop {
                match ring.room(position) {
                    Some(room) => break room,
                    None => thread::yield_now(),
                }
            };
            ring.commit(&room, [cell as u64, push as u64, 0, me as u64], self.commit);
            if let Some(order) = self.sync {
                while !ring.is_consumed(position, order) {
                    thread::yield_now();
                }
            }
        }
    }

    fn consume(self, ring: &Ring, data: &Data) {
        let mut consumer = Consumer::new(ring);
        let mut next = vec![0; self.producers];
        for _ in 0..self.producers * self.pushes {
            let trigger = loop {
                match consumer.poll() {
                    Some(trigger) => break trigger,
                    None => thread::yield_now(),
                }
            };
            let [cell, push, zero, producer] = trigger.payload();
            let expected = &mut next[producer as usize];
            assert_eq!((push, zero), (*expected, 0), "out of order, twice or torn");
            *expected += 1;
            assert_eq!(data.read(cell as usize), push + 1);
            assert!(consumer.pop());
        }
        assert_eq!(consumer.poll(), None);
    }
}

#[test]
fn loom_fifo_two_producers_push_two_each_through_two_slots() {
    Shape { preemptions: 1, ..Shape::new(2, 2, 2, u64::MAX) }.run();
}

#[test]
fn loom_fifo_one_slot_where_positions_start_over() {
    Shape::new(1, 2, 1, u64::MAX).run();
}

#[test]
fn loom_fifo_data_may_be_used_again_after_sync() {
    Shape { sync: Some(Ordering::Acquire), ..Shape::new(1, 2, 2, 0) }.run();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_fifo_without_the_producers_fence_publishes_nothing() {
    Shape { commit: Ordering::Relaxed, ..Shape::new(1, 1, 2, 0) }.run();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_fifo_a_relaxed_sync_does_not_give_the_data_back() {
    Shape { sync: Some(Ordering::Relaxed), ..Shape::new(1, 2, 2, 0) }.run();
}
