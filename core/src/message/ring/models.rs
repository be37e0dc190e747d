//! The ring under loom: every interleaving, and every value that the model of C++ lets a load see. The models run the library's
//! own protocol; a storage can weaken one ordering of it, and the model must then fail.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::protocol::{Consumer, Producer, Push, Storage, Violation, Word};
use crate::sync::{AtomicU64, Condvar, Mutex, Ordering, lock};

/// A word of the ring.
enum Cell {
    /// One that both sides access at the same time. If `weak`, release and acquire on it are relaxed.
    Shared { word: AtomicU64, weak: bool },
    /// One of the payload: loom fails the model if two accesses could race.
    Payload(UnsafeCell<u64>),
}

impl Cell {
    fn shared(value: u64, weak: bool) -> Self {
        Self::Shared { word: AtomicU64::new(value), weak }
    }

    fn payload() -> Self {
        Self::Payload(UnsafeCell::new(0))
    }
}

impl Word for Cell {
    fn load(&self, order: Ordering) -> u64 {
        match self {
            Self::Shared { word, weak } => word.load(if *weak { Ordering::Relaxed } else { order }),
            // SAFETY: loom has just checked that no other access is concurrent.
            Self::Payload(cell) => cell.with(|at| unsafe { *at }),
        }
    }

    fn store(&self, value: u64, order: Ordering) {
        match self {
            Self::Shared { word, weak } => word.store(value, if *weak { Ordering::Relaxed } else { order }),
            // SAFETY: as above.
            Self::Payload(cell) => cell.with_mut(|at| unsafe { *at = value }),
        }
    }
}

/// The part of the protocol that a model leaves out.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Without {
    Nothing,
    /// Headers are stored and loaded relaxed.
    Frame,
    /// The head is stored and loaded relaxed.
    Head,
    /// The consumer sleeps without a look at the ring after it has set the sleeping word.
    SecondLook,
    /// The producer sleeps without a look at the head after it has set the full word.
    LookForRoom,
}

struct Memory {
    cells: Vec<[Cell; 4]>,
    head: Cell,
    sleeping: Cell,
    full: Cell,
    producer: Producer,
}

// SAFETY: a race on a cell is what loom looks for and reports; it schedules one thread at a time.
unsafe impl Sync for Memory {}
// SAFETY: numbers belong to no thread.
unsafe impl Send for Memory {}

impl Storage for Memory {
    type Word = Cell;
    const CELL_WORDS: usize = 4;

    fn cells(&self) -> usize {
        self.cells.len()
    }

    fn cell(&self, index: usize) -> &[Cell] {
        &self.cells[index]
    }

    fn head(&self) -> &Cell {
        &self.head
    }

    fn sleeping(&self) -> &Cell {
        &self.sleeping
    }

    fn full(&self) -> &Cell {
        &self.full
    }
}

impl Memory {
    /// A ring of `cells` cells, all read, whose next position is `start`.
    fn new(cells: usize, start: u32, without: Without) -> Self {
        let (lap, laps) = (start / cells as u32, u32::MAX / cells as u32 + 1);
        let cell = |index| {
            // Cells before the start in its lap bear the lap's stamp, the others that of the lap before.
            let stamp = if (index as u32) < start % cells as u32 { lap + 1 } else { lap };
            let header = if start == 0 { 0 } else { u64::from(stamp % laps) << 32 | 1 << 30 };
            let header = Cell::shared(header, without == Without::Frame);
            [header, Cell::payload(), Cell::payload(), Cell::payload()]
        };
        Self {
            cells: (0..cells).map(cell).collect(),
            head: Cell::shared(start.into(), without == Without::Head),
            sleeping: Cell::shared(0, false),
            full: Cell::shared(0, false),
            producer: Producer::new(start),
        }
    }
}

/// The doorbells of both sides, which remember a ring until somebody waits. Loom would abort the process where all threads sleep
/// for ever; so this sees it first.
struct Bells {
    state: Mutex<State>,
    changed: Condvar,
}

/// The state of the doorbells.
struct State {
    /// Whether the consumer's bell has been rung, and the producers'.
    rung: [bool; 2],
    /// Threads that have not ended, and those of them that wait.
    alive: usize,
    waiting: usize,
}

const CONSUMER: usize = 0;
const PRODUCERS: usize = 1;

impl Bells {
    fn new(threads: usize) -> Self {
        let state = State { rung: [false; 2], alive: threads, waiting: 0 };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn ring(&self, side: usize) {
        lock(&self.state).rung[side] = true;
        self.changed.notify_all();
    }

    fn wait(&self, side: usize) {
        let mut state = lock(&self.state);
        state.waiting += 1;
        while !state.rung[side] {
            state.check();
            state = self.changed.wait(state).unwrap();
        }
        state.rung[side] = false;
        state.waiting -= 1;
    }

    fn end(&self) {
        let mut state = lock(&self.state);
        state.alive -= 1;
        state.check();
    }
}

impl State {
    fn check(&self) {
        let all = self.alive > 0 && self.waiting == self.alive;
        assert!(!all || self.rung != [false; 2], "a wake-up was lost: all sleep");
    }
}

/// How a model runs.
#[derive(Clone, Copy)]
struct Shape {
    producers: usize,
    /// Frames of each producer; every second one takes two cells if `long`.
    frames: usize,
    long: bool,
    cells: usize,
    start: u32,
    /// Most times that a thread is interrupted where it would not have waited.
    preemptions: usize,
    /// Both sides sleep where they have nothing to do; otherwise they yield.
    sleep: bool,
    without: Without,
}

const SHAPE: Shape = Shape {
    producers: 1,
    frames: 2,
    long: false,
    cells: 4,
    start: 0,
    preemptions: 2,
    sleep: false,
    without: Without::Nothing,
};

impl Shape {
    fn run(self) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(self.preemptions);
        model.check(move || {
            let memory = Memory::new(self.cells, self.start, self.without);
            let shared = Arc::new((memory, Bells::new(self.producers + 1)));
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

    fn produce(self, me: usize, memory: &Memory, bells: &Bells) {
        for frame in 0..self.frames {
            let number = (me * self.frames + frame) as u64;
            // A body in the first cell, or one that also takes a part of a word of the second.
            let body = [(!number).to_ne_bytes(); 2].concat();
            let body = &body[..if self.long && frame % 2 == 1 { 11 } else { 8 }];
            loop {
                match memory.producer.push(memory, |order| [number, order.into()], body).unwrap() {
                    Push::Wake => break bells.ring(CONSUMER),
                    Push::Done => break,
                    Push::Full if self.sleep => {
                        if !memory.producer.arm(memory, body.len()).unwrap()
                            || self.without == Without::LookForRoom
                        {
                            bells.wait(PRODUCERS);
                        }
                    }
                    Push::Full => thread::yield_now(),
                }
            }
        }
        bells.end();
    }

    fn consume(self, memory: &Memory, bells: &Bells) {
        let mut reader = Consumer::new(memory, self.start, usize::MAX);
        let mut next = vec![0; self.producers];
        for order in 0..self.producers * self.frames {
            let ([number, numbered], body) = loop {
                if let Some(frame) = reader.peek(memory).unwrap() {
                    break (frame.prefix, frame.body.to_vec());
                }
                if !self.sleep {
                    thread::yield_now();
                } else if !reader.arm(memory).unwrap() || self.without == Without::SecondLook {
                    bells.wait(CONSUMER);
                }
            };
            let (producer, index) = (number as usize / self.frames, number as usize % self.frames);
            assert_eq!((index, numbered), (next[producer], order as u64), "out of order, twice or torn");
            next[producer] += 1;
            assert_eq!(body.len(), if self.long && index % 2 == 1 { 11 } else { 8 });
            let expected = [(!number).to_ne_bytes(); 2].concat();
            assert_eq!(body, expected[..body.len()], "torn");
            if reader.pop(memory, body.len()) {
                bells.ring(PRODUCERS);
            }
        }
        assert_eq!(reader.peek(memory), Ok(None));
        bells.end();
    }
}

#[test]
fn loom_ring_frames_arrive_once_and_in_order() {
    Shape { preemptions: 3, ..SHAPE }.run();
}

#[test]
fn loom_ring_several_producers() {
    Shape { producers: 2, frames: 1, ..SHAPE }.run();
}

#[test]
fn loom_ring_several_producers_wrap_around_and_want_room() {
    Shape { producers: 2, frames: 3, preemptions: 1, ..SHAPE }.run();
}

#[test]
fn loom_ring_frames_continue_at_the_front_and_want_room() {
    Shape { frames: 4, long: true, start: 3, ..SHAPE }.run();
}

#[test]
fn loom_ring_stamps_and_positions_start_over() {
    Shape { frames: 3, long: true, start: u32::MAX - 1, ..SHAPE }.run();
}

#[test]
fn loom_ring_no_wake_up_is_lost() {
    Shape { sleep: true, preemptions: 3, ..SHAPE }.run();
}

#[test]
fn loom_ring_no_wake_up_is_lost_between_several_producers() {
    Shape { producers: 2, frames: 1, sleep: true, ..SHAPE }.run();
}

#[test]
fn loom_ring_a_producer_that_sleeps_for_room_is_woken() {
    Shape { frames: 6, sleep: true, ..SHAPE }.run();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_ring_a_relaxed_header_publishes_nothing() {
    Shape { without: Without::Frame, ..SHAPE }.run();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_ring_a_relaxed_head_gives_no_cell_back() {
    Shape { frames: 5, without: Without::Head, ..SHAPE }.run();
}

#[test]
#[should_panic(expected = "a wake-up was lost")]
fn loom_ring_a_consumer_must_look_again() {
    Shape { sleep: true, without: Without::SecondLook, ..SHAPE }.run();
}

#[test]
#[should_panic(expected = "a wake-up was lost")]
fn loom_ring_a_producer_must_look_for_room_again() {
    Shape { frames: 6, sleep: true, without: Without::LookForRoom, ..SHAPE }.run();
}

/// A peer stores `header` and `head` at any moment: no step goes wrong beyond a [`Violation`].
#[test]
fn loom_ring_hostile_words_end_the_link() {
    for (header, head) in [(u64::MAX, u64::MAX), (1 << 32 | 1 << 31 | 16, 1), (1 << 32 | 1 << 30, 4)] {
        loom::model(move || {
            let memory = Arc::new(Memory::new(4, 0, Without::Nothing));
            let hostile = memory.clone();
            let peer = thread::spawn(move || {
                hostile.cells[1][0].store(header, Ordering::Relaxed);
                hostile.head.store(head, Ordering::Relaxed);
            });
            let mut reader = Consumer::new(&*memory, 0, usize::MAX);
            for _ in 0..5 {
                let pushed = memory.producer.push(&*memory, |_| [1; 2], &[1; 8]);
                assert!(matches!(pushed, Ok(_) | Err(Violation::Head { .. })), "{pushed:?}");
                let length = reader.peek(&*memory).map(|frame| frame.map(|frame| frame.body.len()));
                match length {
                    Ok(Some(length)) => drop(reader.pop(&*memory, length)),
                    Ok(None) | Err(Violation::Header(_) | Violation::Torn) => {}
                    Err(other) => panic!("{other:?}"),
                }
            }
            peer.join().unwrap();
        });
    }
}
