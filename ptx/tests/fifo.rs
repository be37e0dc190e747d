//! Kernels push, this thread consumes: everything arrives once and in order through FIFOs far smaller than what is pushed.

mod device;
mod ring;

use crate::device::LaunchShape;
use aqueduct_ptx::abi::{ABORT_RECORD_COMPLETE, LEFT_CLOSED, NO_PEER, Operation, ProxyTrigger};
use aqueduct_ptx::oracle::fifo::Arrivals;
use cuda_driver_sys::CUfunction;
use device::{Args, patience};
use ring::{CLOSED, Ring, word, word32};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A FIFO, the kernel that pushes to it, and what its threads leave with.
struct Queue {
    ring: Ring,
    push: CUfunction,
    status: u64,
}

impl Queue {
    /// An empty FIFO that has carried `start` triggers.
    fn new(capacity: u32, start: u64) -> Self {
        let ring = Ring::new(capacity, start);
        let push = ring.machine.function(0, "fifo", &[], 0);
        Self { status: ring.machine.host(4) as u64, ring, push }
    }

    fn start(&self, blocks: u32, threads: u32, count: u32, cells: u64) {
        let args = Args::default().structure(&self.ring.handle).u32(count).u64(cells).u64(self.status);
        self.ring.machine.launch(0, self.push, LaunchShape { grid: blocks, block: threads }, &args);
    }

    /// The next trigger, once it is there.
    fn next(&mut self) -> ProxyTrigger {
        let since = Instant::now();
        loop {
            if let Some(trigger) = self.ring.poll() {
                return trigger;
            }
            if since.elapsed() > patience() {
                self.ring.machine.abort();
                panic!("trigger {} did not come", self.ring.position);
            }
            std::thread::yield_now();
        }
    }

    /// Consumes what `threads` threads push and calls `seen` with each before it is popped.
    fn consume(&mut self, threads: u32, count: u32, mut seen: impl FnMut(u32, u32)) {
        let mut arrivals = Arrivals::new(threads);
        for number in 0..u64::from(threads) * u64::from(count) {
            let trigger = self.next();
            let (thread, index) = arrivals.take(&trigger).unwrap_or_else(|wrong| {
                self.ring.machine.abort();
                panic!("trigger {number}: {wrong}");
            });
            seen(thread, index);
            self.ring.pop();
        }
        self.ring.machine.finish();
        assert_eq!(arrivals.per_thread(), Some(count));
        assert_eq!(self.ring.poll(), None, "one too many");
        assert_eq!(self.ring.head(), self.ring.position);
        assert_eq!(self.status(), 0);
    }

    /// The tail as pushes know it without asking the host.
    fn copy_of_the_tail(&self) -> u64 {
        let copy = self.ring.machine.read(0, self.ring.handle.tail_cache, 8);
        u64::from_ne_bytes(copy.try_into().expect("eight bytes"))
    }

    fn status(&self) -> u32 {
        word32(self.status).load(Ordering::Acquire)
    }
}

#[test]
fn one_warp_pushes_through_few_slots() {
    for capacity in [1, 2, 8] {
        let mut queue = Queue::new(capacity, 0);
        queue.start(1, 32, 20, 0);
        queue.consume(32, 20, |_, _| {});
        assert_ne!(queue.copy_of_the_tail(), 0, "who waited for room copied the tail");
    }
}

#[test]
fn a_thousand_threads_push_through_sixteen_slots() {
    let mut queue = Queue::new(16, 0);
    queue.start(4, 256, 4, 0);
    queue.consume(1024, 4, |_, _| {});
}

#[test]
fn thousands_of_threads_push_through_four_slots() {
    let mut queue = Queue::new(4, (1 << 32) - 100);
    queue.start(8, 512, 2, 0);
    queue.consume(4096, 2, |_, _| {});
}

#[test]
fn a_trigger_of_zeros_is_one_in_either_lap() {
    // Fresh memory, and slots whose lap bits are set: neither looks like a trigger of zeros.
    for start in [0, 1, 2, 3] {
        let mut queue = Queue::new(2, start);
        assert_eq!(queue.ring.poll(), None);
        queue.start(1, 1, 1, 0);
        assert_eq!(queue.next().payload(), [0; 4]);
        queue.ring.pop();
        assert_eq!(queue.ring.poll(), None, "one, not two");
        queue.ring.machine.finish();
    }
}

#[test]
fn closing_under_load_refuses_what_comes_later_and_loses_nothing() {
    const THREADS: u32 = 256;
    // Full or hardly ever; and positions whose lower half starts over before, while and after it is closed.
    for (capacity, start) in
        [(2, 0), (64, 5), (64, (1 << 32) - 200), (2, (1 << 32) - 700), (1024, (1 << 32) - 10)]
    {
        let mut queue = Queue::new(capacity, start);
        let mut arrivals = Arrivals::new(THREADS);
        let mut consume = |queue: &mut Queue, trigger: &ProxyTrigger| {
            arrivals.take(trigger).unwrap_or_else(|wrong| {
                queue.ring.machine.abort();
                panic!("position {}: {wrong}", queue.ring.position);
            });
            queue.ring.pop();
        };
        queue.start(2, THREADS / 2, u32::MAX, 0);
        for _ in 0..600 {
            let trigger = queue.next();
            consume(&mut queue, &trigger);
        }
        queue.ring.close();
        let since = Instant::now();
        loop {
            if let Some(trigger) = queue.ring.poll() {
                consume(&mut queue, &trigger);
            } else if queue.ring.head() as u32 == queue.ring.position as u32 {
                break;
            }
            if since.elapsed() > patience() {
                queue.ring.machine.abort();
                panic!(
                    "the trigger at {:#x} did not come, the head is {:#x}",
                    queue.ring.position,
                    queue.ring.head()
                );
            }
        }
        // No thread waits: all leave, and none of them has written anything that was not seen.
        queue.ring.machine.finish();
        assert_eq!(queue.status(), LEFT_CLOSED);
        assert_eq!(queue.ring.poll(), None);
        let expected = u64::from(CLOSED) << 32 | queue.ring.position & u64::from(u32::MAX);
        assert_eq!(queue.ring.head(), expected, "every position that was refused was taken back");
    }
}

#[test]
fn every_start_wraps_around() {
    // All places in a lap, in both laps; the last ones carry into the upper half of the head on the way.
    for start in (0..8).chain((1 << 32) - 8..1 << 32) {
        let mut queue = Queue::new(4, start);
        queue.start(1, 32, 1, 0);
        queue.consume(32, 1, |_, _| {});
        assert_eq!(queue.ring.position, start + 32);
    }
}

#[test]
fn what_a_trigger_speaks_of_is_there_and_may_change_after_sync() {
    let mut queue = Queue::new(4, (1 << 32) - 50);
    let cells = queue.ring.machine.host(4 * 64) as u64;
    queue.start(2, 32, 8, cells);
    // A thread that did not wait would have written the cell again.
    queue.consume(64, 8, |thread, index| {
        assert_eq!(word32(cells + 4 * u64::from(thread)).load(Ordering::Relaxed), index + 1);
    });
}

#[test]
fn a_kernel_that_finds_no_room_leaves_when_told_to() {
    let queue = Queue::new(8, 0);
    queue.start(1, 64, 4, 0);
    let since = Instant::now();
    while (0..8).any(|p| !queue.ring.slot(p).iter().all(|word| word.load(Ordering::Acquire) >> 63 == 1)) {
        assert!(since.elapsed() < patience(), "eight triggers fit");
    }
    queue.ring.machine.abort();
    queue.ring.machine.finish();
    assert_eq!(queue.status(), 1);
    let record = queue.ring.machine.record(0);
    assert_eq!(record.state, ABORT_RECORD_COMPLETE);
    assert_eq!((record.operation, record.peer), (Operation::FIFO.0, NO_PEER));
    assert_eq!(record.seen, 0, "nothing was popped");
    // Eight threads got room and push a second time, so 64 wait, and any of them is the first to leave.
    assert!((8..8 + 64).contains(&record.awaited), "waited for room at {}", record.awaited);
    assert_eq!(queue.ring.head(), 8 + 64, "no thread pushes again after it was told to leave");
}

#[test]
fn a_push_that_has_room_does_not_ask_the_host() {
    let queue = Queue::new(8, 100);
    word(queue.ring.handle.tail).store(0, Ordering::Release);
    queue.ring.machine.abort();
    queue.start(1, 1, 1, 0);
    queue.ring.machine.finish();
    assert_eq!(queue.status(), 0, "the copy of the tail shows room");
    assert!(queue.ring.poll().is_some());
}

#[test]
fn a_thread_that_waits_for_a_position_leaves_when_told_to() {
    let queue = Queue::new(64, 0);
    let cells = queue.ring.machine.host(4 * 32) as u64;
    queue.start(1, 32, 2, cells);
    let since = Instant::now();
    while queue.ring.poll().is_none() {
        assert!(since.elapsed() < patience(), "the first trigger did not come");
    }
    queue.ring.machine.abort();
    queue.ring.machine.finish();
    assert_eq!(queue.status(), 1);
    assert_eq!(queue.ring.machine.record(0).operation, Operation::FIFO.0);
    assert_eq!(queue.ring.head(), 32, "no thread pushes again after it was told to leave");
}
