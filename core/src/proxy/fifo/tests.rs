//! The protocol against a queue, and the FIFO itself.

use std::collections::VecDeque;

use aqueduct_ptx::abi::{AbortHandle, NO_PEER};
use proptest::prelude::*;

use super::Fifo;
use super::producer::Ring;
use super::ring::{Consumer, all_popped, end_of_written};
use crate::ErrorKind;
use crate::gpu::{Context, Device, Driver};
use crate::sync::Ordering;

fn context() -> Context {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    Context::new(&Device::new(&driver, 0).unwrap()).unwrap()
}

/// One step of a history.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A producer takes a position.
    Take,
    /// The producer of one of the positions taken, this one modulo their number, writes if there is room.
    Commit(usize),
    Poll,
    Pop,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Take),
        4 => any::<usize>().prop_map(Step::Commit),
        2 => Just(Step::Poll),
        3 => Just(Step::Pop),
    ];
    proptest::collection::vec(step, 1..200)
}

/// Runs a history on the ring and on a plain queue of positions, which must agree after each step.
fn compare(capacity: u64, start: u64, steps: &[Step]) {
    let ring = Ring::new(capacity, start);
    let mut consumer = Consumer::new(&ring);
    // Slots in order from the tail: taken positions, and the payload of those that were written.
    let mut queue: VecDeque<Option<[u64; 4]>> = VecDeque::new();
    let (mut tail, mut polled) = (start, false);
    for (serial, &step) in steps.iter().enumerate() {
        match step {
            Step::Take => {
                let position = ring.take();
                assert_eq!(position, tail.wrapping_add(queue.len() as u64));
                queue.push_back(None);
            }
            Step::Commit(pick) => {
                let waiting: Vec<usize> = (0..queue.len()).filter(|&i| queue[i].is_none()).collect();
                if let Some(&at) = (!waiting.is_empty()).then(|| &waiting[pick % waiting.len()]) {
                    let room = ring.room(tail.wrapping_add(at as u64));
                    assert_eq!(room.is_some(), (at as u64) < capacity, "room at {at} behind the tail");
                    if let Some(room) = room {
                        // Now and then all zero.
                        let payload = [0, 1, 2, 3].map(|i| (serial as u64 * (i + 1)) % 7);
                        ring.commit(&room, payload, Ordering::AcqRel);
                        queue[at] = Some(payload);
                    }
                }
            }
            Step::Poll => {
                let trigger = consumer.poll().map(|trigger| trigger.payload());
                assert_eq!(trigger, queue.front().copied().flatten());
                polled |= trigger.is_some();
            }
            Step::Pop => {
                let expected = std::mem::take(&mut polled);
                assert_eq!(consumer.pop(), expected);
                if expected {
                    queue.pop_front();
                    tail = tail.wrapping_add(1);
                }
            }
        }
        // Exactly the popped triggers count as consumed.
        assert_eq!(consumer.position(), tail);
        assert!(!ring.is_consumed(tail, Ordering::Acquire));
        assert!(ring.is_consumed(tail.wrapping_sub(1), Ordering::Acquire));
        let written = queue.iter().rposition(Option::is_some).map_or(0, |last| last as u64 + 1);
        assert_eq!(end_of_written(&&ring), tail.wrapping_add(written));
        assert!(all_popped(&&ring, tail) && !all_popped(&&ring, tail.wrapping_add(1)));
    }
}

proptest! {
    #[test]
    fn the_ring_is_a_bounded_queue(log2 in 0..6_u32, back in 0..200_u64, low in any::<bool>(), steps in steps()) {
        // Around the carry into the upper half of the head, and around a flip of the lap bit in the middle of nowhere.
        let start = if low { (1_u64 << 32) - back } else { (1_u64 << 40) - back };
        compare(1 << log2, start, &steps);
    }
}

#[test]
fn every_start_index_wraps_around() {
    let round = |i: usize| [Step::Take, Step::Commit(0), Step::Poll, Step::Pop][i % 4];
    for capacity in [1, 2, 4, 8] {
        for start in 0..=4 * capacity {
            let one_by_one: Vec<Step> = (0..(12 * capacity as usize)).map(round).collect();
            // Filled to the brim and one more, each time written in reverse.
            let mut full = Vec::new();
            for _ in 0..3 {
                full.extend((0..=capacity).map(|_| Step::Take));
                full.extend((0..=capacity).rev().map(|i| Step::Commit(i as usize)));
                full.extend((0..=capacity).flat_map(|_| [Step::Poll, Step::Pop, Step::Commit(0)]));
            }
            for base in [0, (1 << 32) - 2 * capacity, (1 << 62) - 2 * capacity] {
                compare(capacity, start + base, &one_by_one);
                compare(capacity, start + base, &full);
            }
        }
    }
}

#[test]
fn sizes_that_are_no_power_of_two_are_refused() {
    let context = context();
    for size in [0, 3, 511, 1 << 32] {
        let error = Fifo::new(&context, size).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage);
        assert!(error.to_string().contains(&size.to_string()), "{error}");
    }
    for size in [1, 2, 512] {
        assert_eq!(Fifo::new(&context, size).unwrap().size(), size);
    }
}

#[test]
fn there_is_one_consumer_at_a_time_and_it_pops_what_it_polled() {
    let fifo = Fifo::new(&context(), Fifo::DEFAULT_SIZE).unwrap();
    let mut consumer = fifo.consumer().unwrap();
    assert_eq!(fifo.consumer().unwrap_err().kind(), ErrorKind::InvalidUsage);
    assert_eq!(consumer.poll(), None);
    assert_eq!(consumer.pop().unwrap_err().kind(), ErrorKind::InvalidUsage);
    assert_eq!(consumer.position(), 0);
    drop(consumer);
    assert_eq!(fifo.consumer().unwrap().poll(), None);
}

#[test]
fn the_handle_names_four_places_of_their_own() {
    let fifo = Fifo::new(&context(), 64).unwrap();
    let handle = fifo.device_handle(AbortHandle { word: 1, claim: 2, rank: 3, peer: NO_PEER });
    assert_eq!((handle.capacity, handle.capacity_log2, handle.abort.rank), (64, 6, 3));
    assert_eq!(handle.slots % 32, 0);
    // Each behind the other in its buffer, on a line of its own.
    assert_eq!(handle.slots.checked_sub(handle.tail), Some(128));
    assert_eq!(handle.tail_cache.checked_sub(handle.head), Some(128));
}

#[test]
fn only_a_closed_fifo_can_be_drained() {
    let fifo = Fifo::new(&context(), 8).unwrap();
    let consumer = fifo.consumer().unwrap();
    let soon = || std::time::Duration::from_secs(60);
    assert_eq!(consumer.is_drained(soon()).unwrap_err().kind(), ErrorKind::InvalidUsage);
    fifo.close(soon()).unwrap();
    assert!(consumer.is_drained(soon()).unwrap());
}
