//! Streams that wait for memory, on engines whose threads sleep until they are woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::host::HostThread;
use super::memory::{Compare, MemoryOp, Place};
use super::op::Op;
use super::runtime::Runtime;
use super::work::Work;
use crate::exec::Engine;
use crate::mem::allocation::Allocations;
use crate::mem::backing::Backing;
use crate::mem::{Rights, Space};
use crate::sticky::StickyError;

/// How long a test waits for what must happen.
const LIMIT: Duration = Duration::from_secs(60);

/// A device, and two words that its streams share with the host.
struct Bench {
    runtime: Arc<Runtime>,
    words: Box<[AtomicU64; 2]>,
}

impl Bench {
    fn new() -> Self {
        let words = Box::new([const { AtomicU64::new(0) }; 2]);
        let space = Arc::new(Space::new());
        let rights = Rights::Host { writable: true };
        space.insert(words.as_ptr().expose_provenance() as u64, 16, rights, Arc::new(Backing::borrowed()));
        let runtime = Runtime {
            engine: Engine::that_must_be_woken(1),
            allocations: Arc::new(Allocations::new(Arc::clone(&space))),
            space,
            host: HostThread::default(),
            errors: vec![StickyError::default()],
            services: vec![Arc::default()],
            checker: None,
        };
        Self { runtime: Arc::new(runtime), words }
    }

    /// The address of the first word.
    fn base(&self) -> u64 {
        self.words.as_ptr() as u64
    }

    fn submit(&self, op: MemoryOp) -> Arc<Op> {
        Work::Memory(vec![op]).submit(&self.runtime, 0, [])
    }

    /// Waits until `op` has ended.
    fn ends(&self, op: &Op) -> bool {
        let start = Instant::now();
        while op.ended_at().is_none() && start.elapsed() < LIMIT {
            std::thread::yield_now();
        }
        op.ended_at().is_some()
    }

    /// Has a stream wait until the first word is 7, and waits until it sleeps.
    fn sleeper(&self) -> Arc<Op> {
        let wait = MemoryOp::Wait { addr: self.base(), value: 7, width: 8, compare: Compare::Eq };
        let waiting = self.submit(wait);
        let event_count = self.runtime.space.enter(0).event_count(self.base()).expect("inserted");
        let start = Instant::now();
        while event_count.waiters.load(Ordering::SeqCst) == 0 {
            assert!(waiting.ended_at().is_none() && start.elapsed() < LIMIT, "the stream does not sleep");
            std::thread::yield_now();
        }
        waiting
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Before the words are freed.
        self.runtime.space.remove(self.base());
    }
}

/// Checks that a stream that sleeps until a word is 7 is woken by `op`, which makes it 7.
fn wakes(op: impl FnOnce(u64) -> MemoryOp) {
    let bench = Bench::new();
    let waiting = bench.sleeper();
    let storing = bench.submit(op(bench.base()));
    assert!(
        storing.ended_at().is_some(),
        "so short that it is over at once, and wakes nobody by being queued"
    );
    assert!(bench.ends(&waiting), "the word is {}", bench.words[0].load(Ordering::SeqCst));
}

#[test]
fn a_write_wakes_a_stream_that_waits_for_the_word() {
    wakes(|addr| MemoryOp::Write { addr, value: 7, width: 8 });
}

#[test]
fn a_copy_wakes_a_stream_that_waits_for_a_word_of_it() {
    let src = Place::Staged([7_u64, 7].iter().flat_map(|word| word.to_le_bytes()).collect());
    wakes(|addr| MemoryOp::Copy { dst: Place::Device(addr), src: src.clone(), len: 16 });
    // The host's side of a copy may be memory that streams wait for, as well.
    wakes(|addr| MemoryOp::Copy { dst: Place::Host(addr), src, len: 16 });
}

#[test]
fn a_fill_wakes_a_stream_that_waits_for_a_word_of_it() {
    wakes(|dst| MemoryOp::Fill { dst, value: 7, width: 4, count: 1 });
}
