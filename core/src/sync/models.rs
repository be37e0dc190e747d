//! The protocols of `docs/memory-model.md`, with the same orderings, under loom: every interleaving, and every value
//! that a load may legally see. Each comes with a weakened twin that loom must refuse, or the model would prove nothing.
//!
//! Scopes and proxies are outside loom's model: here every thread is of system scope.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::{AtomicU32, AtomicU64, Ordering, fence};

/// Memory that loom watches: an access that could race with another one fails the model.
struct Bytes(UnsafeCell<u32>);

// SAFETY: a race on the cell is what loom looks for and reports; it schedules one thread at a time.
unsafe impl Sync for Bytes {}

impl Bytes {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    fn write(&self, value: u32) {
        // SAFETY: loom has just checked that no other access is concurrent.
        self.0.with_mut(|at| unsafe { *at = value });
    }

    fn read(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|at| unsafe { *at })
    }
}

fn wait(mut done: impl FnMut() -> bool) {
    while !done() {
        thread::yield_now();
    }
}

/// `semaphore.signal`: put, signal; wait, read.
fn signal(release: Ordering, acquire: Ordering) {
    loom::model(move || {
        let shared = Arc::new((Bytes::new(), AtomicU64::new(0)));
        let peer = shared.clone();
        let sender = thread::spawn(move || {
            peer.0.write(7);
            peer.1.store(1, release);
        });
        wait(|| shared.1.load(acquire) >= 1);
        assert_eq!(shared.0.read(), 7);
        sender.join().unwrap();
    });
}

#[test]
fn loom_a_signal_carries_what_was_put() {
    signal(Ordering::Release, Ordering::Acquire);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_relaxed_signal_carries_nothing() {
    signal(Ordering::Relaxed, Ordering::Acquire);
}

/// `packet.word`: two ranks exchange one packet per call, in the half of the region that the epoch's parity picks.
fn packets(halves: u64) {
    const CALLS: u64 = 3;
    fn rank(me: usize, inboxes: &[[AtomicU64; 2]; 2], halves: u64) {
        for epoch in 1..=CALLS {
            let half = (epoch % halves) as usize;
            inboxes[1 - me][half].store(epoch << 32 | (epoch * 10 + me as u64), Ordering::Relaxed);
            let mut word = 0;
            wait(|| {
                word = inboxes[me][half].load(Ordering::Relaxed);
                assert!(word >> 32 <= epoch, "a packet of a later call lies where this call's belongs");
                word >> 32 == epoch
            });
            assert_eq!(word & 0xffff_ffff, epoch * 10 + 1 - me as u64);
        }
    }
    loom::model(move || {
        let inboxes: Arc<[[AtomicU64; 2]; 2]> = Arc::default();
        let peers = inboxes.clone();
        let peer = thread::spawn(move || rank(1, &peers, halves));
        rank(0, &inboxes, halves);
        peer.join().unwrap();
    });
}

#[test]
fn loom_two_halves_keep_the_packets_of_two_calls_apart() {
    packets(2);
}

#[test]
#[should_panic(expected = "a packet of a later call")]
fn loom_one_half_does_not() {
    packets(1);
}

/// `grid.arrive`: every block arrives; the last one signals the peer for all of them.
fn grid(arrive: Ordering) {
    const BLOCKS: u32 = 2;
    #[derive(Clone)]
    struct Shared(Arc<([Bytes; BLOCKS as usize], AtomicU32, AtomicU64)>);
    fn block(Shared(shared): &Shared, index: u32, arrive: Ordering) {
        shared.0[index as usize].write(index + 1);
        if shared.1.fetch_add(1, arrive) + 1 == BLOCKS {
            shared.2.store(1, Ordering::Release);
        }
    }
    loom::model(move || {
        let shared = Shared(Arc::new(([Bytes::new(), Bytes::new()], AtomicU32::new(0), AtomicU64::new(0))));
        let blocks: Vec<_> = (0..BLOCKS)
            .map(|index| {
                let shared = shared.clone();
                thread::spawn(move || block(&shared, index, arrive))
            })
            .collect();
        wait(|| shared.0.2.load(Ordering::Acquire) == 1);
        for index in 0..BLOCKS {
            assert_eq!(shared.0.0[index as usize].read(), index + 1);
        }
        blocks.into_iter().for_each(|block| block.join().unwrap());
    });
}

#[test]
fn loom_the_last_block_signals_for_the_whole_grid() {
    grid(Ordering::AcqRel);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_last_block_that_only_released_does_not() {
    grid(Ordering::Release);
}

/// `grid.barrier`: the last to arrive opens the barrier for the others.
fn barrier(arrive: Ordering, open: Ordering) {
    fn block(shared: &([Bytes; 2], AtomicU32, AtomicU32), me: usize, arrive: Ordering, open: Ordering) {
        shared.0[me].write(me as u32 + 1);
        if shared.1.fetch_add(1, arrive) == 1 {
            shared.2.store(1, open);
        } else {
            wait(|| shared.2.load(Ordering::Acquire) == 1);
        }
        assert_eq!(shared.0[1 - me].read(), 2 - me as u32);
    }
    loom::model(move || {
        let shared = Arc::new(([Bytes::new(), Bytes::new()], AtomicU32::new(0), AtomicU32::new(0)));
        let other = shared.clone();
        let second = thread::spawn(move || block(&other, 1, arrive, open));
        block(&shared, 0, arrive, open);
        second.join().unwrap();
    });
}

#[test]
fn loom_a_grid_barrier_orders_every_block_with_every_other() {
    barrier(Ordering::AcqRel, Ordering::Release);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_barrier_opened_relaxed_does_not() {
    barrier(Ordering::AcqRel, Ordering::Relaxed);
}

/// `grid.barrier`, given up: each of two blocks looks once and then takes its arrival back, unless the count is
/// complete and `careful`. Either both pass or none does, and the counts are back at zero.
fn given_up(careful: bool) {
    const FLIPPED: u32 = 1 << 31;
    /// Whether the block passed.
    fn block(word: &AtomicU32, careful: bool) -> bool {
        if word.fetch_add(1, Ordering::AcqRel) == 1 {
            word.store(FLIPPED, Ordering::Release);
            return true;
        }
        loop {
            let seen = word.load(Ordering::Acquire);
            if seen & FLIPPED != 0 {
                return true;
            }
            if seen == 2 && careful {
                thread::yield_now();
                continue;
            }
            if word.compare_exchange(seen, seen - 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return false;
            }
        }
    }
    loom::model(move || {
        let word = Arc::new(AtomicU32::new(0));
        let other = word.clone();
        let second = thread::spawn(move || block(&other, careful));
        let passed = [block(&word, careful), second.join().unwrap()];
        assert_eq!(passed[0], passed[1], "one block left and the other went on");
        assert_eq!(word.load(Ordering::Acquire) & !FLIPPED, 0, "the next launch begins with a count");
    });
}

#[test]
fn loom_a_grid_barrier_is_given_up_by_all_or_none() {
    given_up(true);
}

#[test]
#[should_panic(expected = "one block left and the other went on")]
fn loom_a_complete_grid_barrier_cannot_be_given_up() {
    given_up(false);
}

/// `abort.record`: of two leaving threads one writes the record; the host reads it only when it is complete.
fn record(publish: Ordering) {
    const WRITING: u32 = 1;
    const COMPLETE: u32 = 2;
    fn leave(shared: &(AtomicU32, [Bytes; 2]), rank: u32, publish: Ordering) {
        if shared.0.compare_exchange(0, WRITING, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            shared.1.iter().for_each(|field| field.write(rank));
            shared.0.store(COMPLETE, publish);
        }
    }
    loom::model(move || {
        let shared = Arc::new((AtomicU32::new(0), [Bytes::new(), Bytes::new()]));
        let threads: Vec<_> = (1..=2)
            .map(|rank| {
                let shared = shared.clone();
                thread::spawn(move || leave(&shared, rank, publish))
            })
            .collect();
        wait(|| shared.0.load(Ordering::Acquire) == COMPLETE);
        assert_eq!(shared.1[0].read(), shared.1[1].read());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn loom_a_complete_record_has_one_writer_and_is_whole() {
    record(Ordering::Release);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_record_published_relaxed_is_not() {
    record(Ordering::Relaxed);
}

/// `turn.position`: a call that asks and the end of the call before come to one position, and the second to come lets the call begin.
fn positions(meet: Ordering) {
    loom::model(move || {
        let shared = Arc::new((Bytes::new(), Bytes::new(), AtomicU32::new(0), AtomicU32::new(0)));
        let end = shared.clone();
        let come = move |shared: &(Bytes, Bytes, AtomicU32, AtomicU32), value: u32| {
            if shared.2.swap(value, meet) != 0 {
                assert_eq!((shared.0.read(), shared.1.read()), (7, 8));
                shared.3.fetch_add(1, Ordering::Relaxed);
            }
        };
        let ends = thread::spawn(move || {
            end.0.write(7);
            come(&end, u32::MAX);
        });
        shared.1.write(8);
        come(&shared, 1);
        ends.join().unwrap();
        assert_eq!(shared.3.load(Ordering::Relaxed), 1, "granted once");
    });
}

#[test]
fn loom_the_second_to_come_to_a_position_grants_it_once() {
    positions(Ordering::AcqRel);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_position_that_was_left_relaxed_tells_nothing() {
    positions(Ordering::Relaxed);
}

/// `abort.word`: the host ends the waits for a word that a kernel clears. The host's value is the last one.
fn cleared(fenced: bool) {
    loom::model(move || {
        // The abort word, and the word for which a stream waits.
        let shared = Arc::new((AtomicU32::new(0), AtomicU32::new(1)));
        let kernel = shared.clone();
        let clears = thread::spawn(move || {
            kernel.1.store(0, Ordering::Relaxed);
            if fenced {
                fence(Ordering::SeqCst);
            }
            if kernel.0.load(Ordering::Relaxed) != 0 {
                kernel.1.store(1, Ordering::Relaxed);
            }
        });
        shared.0.store(1, Ordering::Release);
        if fenced {
            fence(Ordering::SeqCst);
        }
        shared.1.store(1, Ordering::Release);
        clears.join().unwrap();
        assert_eq!(shared.1.load(Ordering::Relaxed), 1, "a stream would wait for ever");
    });
}

#[test]
fn loom_a_cleared_word_keeps_no_stream_waiting_after_an_abort() {
    cleared(true);
}

#[test]
#[should_panic(expected = "a stream would wait for ever")]
fn loom_a_word_cleared_without_a_fence_may() {
    cleared(false);
}
