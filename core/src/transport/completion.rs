//! How a stream waits for operations that no device executes: by a counter in pinned memory.

use std::sync::Arc;

use crate::error::Result;
use crate::gpu::{Context, Event, PinnedBuffer, Stream};
use crate::sync::Ordering;

/// A count that streams can wait for.
pub(super) struct Completion {
    word: Arc<PinnedBuffer>,
    stream: Stream,
}

impl Completion {
    pub(super) fn new(context: &Context) -> Result<Self> {
        let word = Arc::new(PinnedBuffer::new(context, size_of::<u64>())?);
        Ok(Self { word, stream: Stream::new(context)? })
    }

    /// Puts `event` behind the moment at which `count` is reached.
    pub(super) fn record(&self, event: &Event, count: u64) -> Result<()> {
        self.stream.wait_value64(&self.word.slice(..)?, count)?;
        event.record(&self.stream)
    }

    /// `count` has been reached.
    pub(super) fn reach(&self, count: u64) {
        if let Ok(word) = self.word.memory().word64(0) {
            word.fetch_max(count, Ordering::AcqRel);
        }
    }

    /// Nothing will be reached any more: streams must not wait for ever.
    pub(super) fn release(&self) {
        self.reach(i64::MAX as u64);
    }
}
