//! How streams and kernels wait for a connection that no device executes: words in pinned memory.

use std::sync::Arc;

use super::waits::{Awaited, Lent, WaitStreams, Waits};
use super::words::{LINE, Line, Words};
use crate::abort::AbortWord;
use crate::error::Result;
use crate::gpu::Event;
use crate::sync::{Mutex, Ordering, lock};

/// Bytes of the count, behind which the abort word lies.
const COUNT: usize = size_of::<u64>();

/// The word by which kernels that wait for signals of one connection learn that none will come.
#[derive(Debug)]
pub(crate) struct KernelAbort {
    word: AbortWord,
    device_ptr: u64,
}

impl KernelAbort {
    /// Tells the kernels to leave. What they are to be told must have been stored before.
    pub(crate) fn raise(&self) {
        self.word.raise();
    }

    /// The address of the word for kernels.
    pub(crate) fn device_ptr(&self) -> u64 {
        self.device_ptr
    }
}

/// A count that streams can wait for, the abort word of kernels, and what waits for streams.
pub(super) struct Completion {
    word: Arc<Line>,
    kernels: Arc<KernelAbort>,
    streams: Arc<WaitStreams>,
    /// The streams that wait for the count, until it reaches the number beside each.
    waiting: Mutex<Vec<(Lent, u64)>>,
    waits: Waits,
}

impl Completion {
    pub(super) fn new(words: &Words, streams: &Arc<WaitStreams>) -> Result<Self> {
        const { assert!(COUNT + size_of::<u64>() <= LINE) };
        let word = words.line()?;
        // SAFETY: the line has room for a word behind the count.
        let abort = unsafe { word.host_ptr().add(COUNT) }.cast::<u32>();
        // SAFETY: aligned, in a line that the `Arc` keeps for this connection alone; the host accesses it through this word only.
        let abort = unsafe { AbortWord::from_ptr(abort, word.clone()) };
        let kernels = Arc::new(KernelAbort { word: abort, device_ptr: word.device_ptr() + COUNT as u64 });
        let (streams, waiting) = (streams.clone(), Mutex::default());
        Ok(Self { word, kernels, waits: Waits::new(streams.clone()), streams, waiting })
    }

    /// The abort word of kernels that wait for signals of the connection.
    pub(super) fn kernels(&self) -> &Arc<KernelAbort> {
        &self.kernels
    }

    /// Puts `event` behind the moment at which `count` is reached. Call [`reach`](Self::reach) afterwards with the count so far.
    pub(super) fn record(&self, event: &Event, count: u64) -> Result<()> {
        // Not locked meanwhile: the service thread, which says what is reached, must not wait for the driver.
        let known = lock(&self.waiting).pop();
        let (lent, before) = match known {
            Some(known) => known,
            None => (self.streams.lend()?, 0),
        };
        let waits = lent.stream.wait_value64(&self.word.slice(COUNT), count);
        let recorded = waits.and_then(|()| event.record(&lent.stream));
        lock(&self.waiting).push((lent, before.max(count)));
        recorded
    }

    /// `count` has been reached.
    pub(super) fn reach(&self, count: u64) {
        if let Ok(word) = self.word.memory().and_then(|line| line.word64(0)) {
            word.fetch_max(count, Ordering::AcqRel);
        }
        lock(&self.waiting).retain(|(_, last)| *last > count);
    }

    /// A point behind the work before `event`, for operations that wait for it.
    pub(super) fn behind(&self, event: &Event) -> Result<Awaited> {
        self.waits.behind(event)
    }

    /// Nothing will be reached any more, and no signal will come: streams and kernels must not wait for ever. Call it after the
    /// reason has been stored.
    pub(super) fn release(&self) {
        self.reach(i64::MAX as u64);
        self.kernels.raise();
    }
}
