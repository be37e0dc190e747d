//! How a stream waits for operations that no device executes: by a counter in pinned memory.

use std::sync::Arc;

use crate::error::Result;
use crate::gpu::{Context, Event, PinnedBuffer, Stream};
use crate::sync::{Mutex, Ordering, lock};

/// A count that streams can wait for. Allocated at the first use.
pub(super) struct Completion {
    context: Context,
    counter: Mutex<Option<Counter>>,
}

struct Counter {
    word: Arc<PinnedBuffer>,
    stream: Stream,
}

impl Completion {
    pub(super) fn new(context: &Context) -> Self {
        Self { context: context.clone(), counter: Mutex::default() }
    }

    /// Puts `event` behind the moment at which `count` is reached.
    pub(super) fn record(&self, event: &Event, count: u64) -> Result<()> {
        let mut counter = lock(&self.counter);
        if counter.is_none() {
            let word = Arc::new(PinnedBuffer::new(&self.context, size_of::<u64>())?);
            *counter = Some(Counter { word, stream: Stream::new(&self.context)? });
        }
        let Some(Counter { word, stream }) = &*counter else { return Ok(()) };
        stream.wait_value64(&word.slice(..)?, count)?;
        event.record(stream)
    }

    /// `count` has been reached.
    pub(super) fn reach(&self, count: u64) {
        if let Some(Counter { word, .. }) = &*lock(&self.counter)
            && let Ok(word) = word.memory().word64(0)
        {
            word.fetch_max(count, Ordering::AcqRel);
        }
    }

    /// Nothing will be reached any more: streams must not wait for ever.
    pub(super) fn release(&self) {
        self.reach(i64::MAX as u64);
    }
}
