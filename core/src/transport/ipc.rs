//! CudaIpc: a stream per connection, copy engines for data, `cuStreamWriteValue64` for signals.
//!
//! The stream executes in order, and the value write comes with a fence over all earlier work of the stream (CUDA driver
//! API, `CU_STREAM_WRITE_VALUE_DEFAULT`), so the peer that sees the value sees the data. A position in the stream is a
//! number that the stream writes to pinned memory when it gets there: whoever waits for one does not wait for what others
//! enqueue behind it.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::{Backend, Span};
use crate::error::Result;
use crate::gpu::{Context, DeviceSlice, Event, PinnedBuffer, Stream};
use crate::sync::{Mutex, Ordering, lock};

#[derive(Debug)]
pub(crate) struct CudaIpc {
    stream: Stream,
    /// The last mark; under a lock, so that the stream reaches marks in their order.
    marked: Mutex<u64>,
    /// The last mark that the stream has reached.
    reached: Arc<PinnedBuffer>,
}

impl CudaIpc {
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let reached = Arc::new(PinnedBuffer::new(context, size_of::<u64>())?);
        Ok(Self { stream: Stream::new(context)?, marked: Mutex::new(0), reached })
    }
}

impl Backend for CudaIpc {
    fn write(&self, dst: Span<'_>, src: Span<'_>) -> Result<()> {
        self.stream.copy(&dst.device()?, &src.device()?)
    }

    fn read(&self, dst: Span<'_>, src: Span<'_>) -> Result<()> {
        self.stream.copy(&dst.device()?, &src.device()?)
    }

    fn update(&self, dst: Span<'_>, _: u64, value: u64) -> Result<()> {
        // SYNC connection.signal: the fence is part of the write.
        self.stream.write_value64(&dst.device()?, value)
    }

    fn report(&self, word: &DeviceSlice, value: u64) -> Result<bool> {
        // SYNC port.flushed (release): as above.
        self.stream.write_value64(word, value).map(|()| true)
    }

    fn mark(&self) -> Result<u64> {
        let mut marked = lock(&self.marked);
        self.stream.write_value64(&self.reached.slice(..)?, *marked + 1)?;
        *marked += 1;
        Ok(*marked)
    }

    fn is_done(&self, mark: u64) -> Result<bool> {
        if self.reached.memory().word64(0)?.load(Ordering::Acquire) >= mark {
            return Ok(true);
        }
        // Also how a failure of the work is noticed, behind which no mark is reached.
        self.stream.is_idle()
    }

    fn wait_event(&self, event: &Event) -> Result<()> {
        self.stream.wait_event(event)
    }

    fn record_event(&self, event: &Event) -> Result<()> {
        event.record(&self.stream)
    }
}
