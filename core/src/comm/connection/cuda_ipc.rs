//! CudaIpc: a stream per connection, copy engines for data, `cuStreamWriteValue64` for signals.
//!
//! The stream executes in order, and the value write comes with a fence over all earlier work of the stream (CUDA driver
//! API, `CU_STREAM_WRITE_VALUE_DEFAULT`), so the peer that sees the value sees the data.
#![forbid(unsafe_code)]

use super::{Backend, Span};
use crate::error::Result;
use crate::gpu::{Event, Stream};

#[derive(Debug)]
pub(super) struct CudaIpc {
    stream: Stream,
}

impl CudaIpc {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream }
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

    fn mark(&self) -> Result<u64> {
        Ok(0)
    }

    fn is_done(&self, _: u64) -> Result<bool> {
        self.stream.is_idle()
    }

    fn wait_event(&self, event: &Event) -> Result<()> {
        self.stream.wait_event(event)
    }

    fn record_event(&self, event: &Event) -> Result<()> {
        event.record(&self.stream)
    }
}
