//! The FIFO under loom: every interleaving, and every value that the model of C++ lets a load see.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::producer::Ring;
use super::ring::{Consumer, all_popped, end_of_written};
use crate::sync::Ordering;

/// The data that triggers announce, one cell per trigger: loom fails the model if two accesses could race.
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

/// A thread asks for the end of the triggers that fill a ring, while they are popped and others take their slots.
///
/// The triggers lie there when the threads begin, and no thread ever waits: loom cannot finish a model in which one does. Main only
/// joins: loom explores few interleavings of a main thread that does not wait.
fn end_of_full(capacity: u64, start: u64) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let shared = Arc::new((Ring::new(capacity, start), Data::new(1)));
        (0..capacity).for_each(|number| push(&shared.0, number));
        let producer = shared.clone();
        let producer = thread::spawn(move || (0..capacity).for_each(|number| push(&producer.0, number)));
        let consumer = shared.clone();
        let consumer = thread::spawn(move || {
            let (ring, data) = &*consumer;
            let mut consumer = Consumer::new(ring);
            for number in 0..capacity {
                assert_eq!(consumer.poll().map(|trigger| trigger.payload()[0]), Some(number));
                if number == capacity - 1 {
                    data.write(0, 1);
                }
                assert!(consumer.pop());
            }
        });
        let asking = thread::spawn(move || {
            let (ring, data) = &*shared;
            let end = end_of_written(&ring);
            assert!(end.wrapping_sub(start) >= capacity, "a trigger lies behind the end");
            if all_popped(&ring, end) {
                assert_eq!(data.read(0), 1);
            }
        });
        [producer, consumer, asking].into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Pushes a trigger if the ring has room for it.
fn push(ring: &Ring, number: u64) {
    let position = ring.take();
    if let Some(room) = ring.room(position) {
        ring.commit(&room, [number, 0, 0, 0], Ordering::AcqRel);
    }
}

#[test]
fn loom_fifo_no_trigger_lies_behind_the_end_of_written_ones() {
    for (capacity, start) in [(1, 0), (1, u64::MAX), (2, u64::MAX)] {
        end_of_full(capacity, start);
    }
}

/// The part that a model of closing leaves out. Without either of them the model fails.
#[derive(Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    /// Producers that are refused do not take their position back.
    TakingBack,
    /// The consumer regards a ring as drained when it sees no trigger.
    AskingTheHead,
}

/// The host closes the ring while producers push, and drains it.
#[derive(Clone, Copy)]
struct Closing {
    producers: usize,
    pushes: usize,
    capacity: u64,
    start: u64,
    /// Triggers consumed before it is closed.
    before: usize,
    without: Without,
}

impl Closing {
    fn run(self) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(move || {
            let ring = Arc::new(Ring::new(self.capacity, self.start));
            let threads: Vec<_> = (0..self.producers)
                .map(|me| {
                    let ring = ring.clone();
                    thread::spawn(move || self.produce(me, &ring))
                })
                .collect();
            let mut consumer = Consumer::new(&*ring);
            let mut seen = vec![0; self.producers];
            while seen.iter().sum::<u64>() < self.before as u64 {
                if !consume(&mut consumer, &mut seen) {
                    thread::yield_now();
                }
            }
            ring.close();
            match self.without {
                Without::Nothing => {
                    while !ring.is_drained(consumer.position()) {
                        if !consume(&mut consumer, &mut seen) {
                            thread::yield_now();
                        }
                    }
                }
                Without::AskingTheHead => while consume(&mut consumer, &mut seen) {},
                Without::TakingBack => {}
            }
            let accepted: Vec<u64> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            if self.without == Without::TakingBack {
                while consume(&mut consumer, &mut seen) {}
            }
            assert_eq!(seen, accepted, "consumed and accepted");
            assert_eq!(consumer.poll(), None, "more than was accepted");
            assert!(ring.is_drained(consumer.position()), "positions that nobody wrote");
        });
    }

    /// How many of its pushes were accepted.
    fn produce(self, me: usize, ring: &Ring) -> u64 {
        for push in 0..self.pushes {
            let position = ring.take();
            let room = loop {
                match ring.room(position) {
                    Some(room) => break room,
                    // Only here, as in the kernel: a position of a closed ring never has room.
                    None if Ring::is_closed(position) => {
                        if self.without != Without::TakingBack {
                            ring.take_back();
                        }
                        return push as u64;
                    }
                    None => thread::yield_now(),
                }
            };
            ring.commit(&room, [me as u64, push as u64, 0, 0], Ordering::AcqRel);
        }
        self.pushes as u64
    }
}

/// Consumes what is there, each producer's pushes in their order; false if nothing is.
fn consume(consumer: &mut Consumer<&Ring>, seen: &mut [u64]) -> bool {
    let Some(trigger) = consumer.poll() else { return false };
    let [producer, push, ..] = trigger.payload();
    assert_eq!(push, seen[producer as usize], "out of order or twice");
    seen[producer as usize] += 1;
    consumer.pop()
}

const CLOSING: Closing =
    Closing { producers: 2, pushes: 1, capacity: 2, start: 0, before: 0, without: Without::Nothing };

#[test]
fn loom_fifo_closed_while_two_push_loses_nothing() {
    CLOSING.run();
}

#[test]
fn loom_fifo_closed_where_the_lower_half_starts_over() {
    Closing { start: u64::from(u32::MAX), ..CLOSING }.run();
}

#[test]
fn loom_fifo_closed_while_one_waits_for_room() {
    Closing { producers: 1, pushes: 3, capacity: 1, before: 1, ..CLOSING }.run();
}

#[test]
#[should_panic(expected = "positions that nobody wrote")]
fn loom_fifo_a_position_not_taken_back_is_counted() {
    Closing { without: Without::TakingBack, ..CLOSING }.run();
}

#[test]
#[should_panic(expected = "consumed and accepted")]
fn loom_fifo_a_ring_without_triggers_is_not_drained() {
    Closing { without: Without::AskingTheHead, ..CLOSING }.run();
}
