//! The bare pushes that `aqueduct perf fifo` compares with.

use crate::device::LaunchShape;
use aqueduct_ptx::oracle::fifo::Arrivals;

use crate::clock::{IMPATIENT, PATIENT, looking_at_the_clock};
use crate::device::Args;
use crate::ring::{Ring, word};
use crate::{WHILE, until};
use std::sync::atomic::Ordering;

/// A FIFO, and the word that becomes 1 if a push was given up.
struct Queue {
    ring: Ring,
    status: u64,
}

impl Queue {
    fn new(capacity: u32, start: u64) -> Self {
        let ring = Ring::new(capacity, start);
        Self { status: ring.machine.alloc(0, 4), ring }
    }

    fn start(&self, shape: LaunchShape, count: u32, patience: u64) {
        let machine = &self.ring.machine;
        let push = looking_at_the_clock(machine, "perf_fifo_bare");
        let handle = &self.ring.handle;
        let args = Args::default().u64(handle.slots).u64(handle.head).u64(handle.tail).u64(handle.tail_cache);
        let args = args.u32(handle.capacity).u32(handle.capacity_log2).u32(count);
        machine.launch(0, push, shape, &args.u64(patience).u64(self.status));
    }

    fn given_up(&self) -> bool {
        self.ring.machine.read(0, self.status, 4) != [0; 4]
    }

    fn copy_of_the_tail(&self) -> u64 {
        let copy = self.ring.machine.read(0, self.ring.handle.tail_cache, 8);
        u64::from_ne_bytes(copy.try_into().expect("eight bytes"))
    }
}

#[test]
fn bare_pushes_arrive_once_and_in_order_through_few_slots() {
    const COUNT: u32 = 4;
    for (start, grid, block) in [(0, 2, 64), ((1 << 32) - 100, 1, 32)] {
        let mut queue = Queue::new(32, start);
        queue.start(LaunchShape { grid, block }, COUNT, PATIENT);
        // All threads find the FIFO full and wait for the host.
        std::thread::sleep(WHILE);
        let mut arrivals = Arrivals::new(grid * block);
        for number in 0..grid * block * COUNT {
            let trigger = until(&queue.ring.machine, "a trigger", || queue.ring.poll());
            arrivals.take(&trigger).unwrap_or_else(|wrong| panic!("trigger {number}: {wrong}"));
            queue.ring.pop();
        }
        queue.ring.machine.finish();
        assert_eq!(arrivals.per_thread(), Some(COUNT));
        assert_eq!(queue.ring.poll(), None, "one too many");
        assert_eq!(queue.ring.head(), queue.ring.position);
        assert!(!queue.given_up());
        assert!(queue.copy_of_the_tail() > start, "who waited copied the tail");
    }
}

#[test]
fn a_bare_push_that_has_room_does_not_ask_the_host() {
    let queue = Queue::new(32, 100);
    word(queue.ring.handle.tail).store(0, Ordering::Release);
    queue.start(LaunchShape { grid: 1, block: 1 }, 1, IMPATIENT);
    queue.ring.machine.finish();
    assert!(!queue.given_up(), "the copy of the tail shows room");
    assert_eq!(queue.ring.poll().expect("a trigger").payload(), [0; 4]);
}

#[test]
fn bare_pushes_that_nobody_takes_are_given_up() {
    let queue = Queue::new(8, 0);
    queue.start(LaunchShape { grid: 2, block: 32 }, 2, IMPATIENT);
    queue.ring.machine.finish();
    assert!(queue.given_up());
    assert_eq!(queue.ring.head(), 8 + 64, "a thread that has given up pushes no more");
}
