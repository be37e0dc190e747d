//! Bounds of messages over shared memory: a word that two processes bounce, and a copy.

use std::fs::File;
use std::hint::{black_box, spin_loop};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use aqueduct::Deadline;
use aqueduct::internals::shm::{Mapping, Segment};

const BYTES: usize = 4096;
/// Offsets of the words that the measuring process and its partner write: neither in a cache line of the other's, nor in the one
/// that is fetched with it.
const WORDS: [usize; 2] = [0, 256];

/// Looks in vain before a process offers its processor to others: on a busy machine the other process may be waiting for it.
pub(super) const YIELD: u32 = 4096;

/// Two words in memory that two processes share.
pub(super) struct Flags {
    mapping: Mapping,
    /// The last value of both words.
    last: u64,
    deadline: Deadline,
}

impl Flags {
    /// New words, and the descriptor under which the partner finds them.
    pub(super) fn create(deadline: Deadline) -> Result<(Self, OwnedFd)> {
        let (mapping, fd) = Segment::create(BYTES)?.into_parts();
        Ok((Self { mapping, last: 0, deadline }, fd))
    }

    /// The path by which a process of the same user opens `fd` of this one.
    pub(super) fn path(fd: &OwnedFd) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd())
    }

    /// The words that another process has made.
    pub(super) fn open(path: &str, deadline: Deadline) -> Result<Self> {
        let file = File::options().read(true).write(true).open(path).context("the words to bounce")?;
        let (mapping, _) = Segment::open(file.into(), BYTES)?.into_parts();
        Ok(Self { mapping, last: 0, deadline })
    }

    fn words(&self) -> Result<[&AtomicU64; 2]> {
        let memory = self.mapping.memory();
        Ok([memory.word64(WORDS[0])?, memory.word64(WORDS[1])?])
    }

    /// The side that measures; returns the time of each round trip in µs.
    pub(super) fn measure(&mut self, count: u32) -> Result<Vec<f64>> {
        let (first, mut times) = (self.last, Vec::with_capacity(count as usize));
        self.last += u64::from(count);
        let [mine, theirs] = self.words()?;
        for value in first + 1..=self.last {
            let since = Instant::now();
            mine.store(value, Ordering::Release);
            self.wait(theirs, value)?;
            times.push(since.elapsed().as_secs_f64() * 1e6);
        }
        Ok(times)
    }

    /// The other side.
    pub(super) fn serve(&mut self, count: u32) -> Result<()> {
        let first = self.last;
        self.last += u64::from(count);
        let [theirs, mine] = self.words()?;
        for value in first + 1..=self.last {
            self.wait(theirs, value)?;
            mine.store(value, Ordering::Release);
        }
        Ok(())
    }

    fn wait(&self, word: &AtomicU64, value: u64) -> Result<()> {
        let mut idle = 0_u32;
        while word.load(Ordering::Acquire) != value {
            spin_loop();
            idle = idle.wrapping_add(1);
            if idle.is_multiple_of(YIELD) {
                std::thread::yield_now();
                if self.deadline.expired() {
                    bail!("the other process did not answer in shared memory in time");
                }
            }
        }
        Ok(())
    }
}

/// Copies `size` bytes `count` times; the time in µs.
pub(super) fn copies(count: u32, size: usize) -> f64 {
    let (from, mut into) = (vec![7; size], vec![0_u8; size]);
    // Touches the memory before the time counts.
    into.copy_from_slice(black_box(&from));
    let since = Instant::now();
    for _ in 0..count {
        into.copy_from_slice(black_box(&from));
        black_box(&mut into);
    }
    since.elapsed().as_secs_f64() * 1e6
}
