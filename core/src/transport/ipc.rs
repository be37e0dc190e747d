//! CudaIpc: a stream per connection, copy engines for data, `cuStreamWriteValue64` for signals.
//!
//! The stream executes in order, and the value write comes with a fence over all earlier work of the stream (CUDA driver
//! API, `CU_STREAM_WRITE_VALUE_DEFAULT`), so the peer that sees the value sees the data. A position in the stream is a
//! number that the stream writes to pinned memory when it gets there: whoever waits for one does not wait for what others
//! enqueue behind it. The stream retains the slices of its operations, and with them the memory at both ends, until they are
//! done.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::backend::{Backend, Operation};
use super::endpoint::{EndpointConfig, EndpointWire};
use super::provider::{Draft, Provider};
use super::resources::Resources;
use super::service::{Delivery, Outstanding};
use super::words::Line;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::gpu::{Context, DeviceSlice, Event, Stream};
use crate::setup::key::Key;
use crate::sync::{Mutex, Ordering, lock};

/// Connections over copy engines.
pub(super) struct CopyEngines;

impl Provider for CopyEngines {
    fn offer(&self, resources: &Resources, key: Key, _: &EndpointConfig) -> Result<Box<dyn Draft>> {
        Ok(Box::new(CudaIpc::new(resources, key.peer)?))
    }
}

#[derive(Debug)]
struct CudaIpc {
    queue: Arc<Queue>,
    outstanding: Arc<Outstanding>,
}

/// The stream of a connection. It is made in `setup()`: later a kernel may run that waits for the connection's first operation, and a driver may
/// wait for kernels when it makes a stream.
#[derive(Debug)]
struct Queue {
    peer: u32,
    stream: Stream,
    /// The last mark; under a lock, so that the stream reaches marks in their order.
    marked: Mutex<u64>,
    /// The last mark that the stream has reached.
    reached: Arc<Line>,
}

/// Operations that a dropped connection had not completed. The reaper owns the stream; this only detects that it is
/// done.
#[derive(Debug)]
struct Remainder {
    peer: u32,
    context: Context,
    reached: Arc<Line>,
    mark: u64,
}

impl CudaIpc {
    fn new(resources: &Resources, peer: u32) -> Result<Self> {
        let reached = resources.words.line()?;
        let stream = Stream::new(&resources.context)?;
        let queue = Arc::new(Queue { peer, stream, marked: Mutex::new(0), reached });
        let delivery: Arc<dyn Delivery> = queue.clone();
        resources.outstanding.add(Arc::downgrade(&delivery));
        Ok(Self { queue, outstanding: resources.outstanding.clone() })
    }
}

impl Draft for CudaIpc {
    fn describe(&self) -> Vec<u8> {
        Vec::new()
    }

    fn accept(self: Box<Self>, _: &Resources, _: &EndpointWire, _: Deadline) -> Result<Box<dyn Backend>> {
        Ok(self)
    }
}

impl Queue {
    fn mark(&self) -> Result<u64> {
        let mut marked = lock(&self.marked);
        self.stream.write_value64(&self.reached.slice(size_of::<u64>()), *marked + 1)?;
        *marked += 1;
        Ok(*marked)
    }
}

fn has_reached(word: &Line, mark: u64) -> Result<bool> {
    Ok(word.memory()?.word64(0)?.load(Ordering::Acquire) >= mark)
}

impl Backend for CudaIpc {
    fn post(&self, operation: &Operation<'_>) -> Result<bool> {
        let stream = &self.queue.stream;
        match operation {
            Operation::Write { dst, src } | Operation::Read { dst, src } => {
                stream.copy(&dst.device()?, &src.device()?)?;
            }
            // SYNC connection.signal: the fence is part of the write.
            Operation::Update { dst, value, .. } => stream.write_value64(&dst.device()?, *value)?,
        }
        Ok(true)
    }

    fn report(&self, word: &DeviceSlice, value: u64) -> Result<bool> {
        // SYNC port.flushed (release): as above.
        self.queue.stream.write_value64(word, value).map(|()| true)
    }

    fn mark(&self) -> Result<u64> {
        if self.queue.stream.is_capturing()? {
            let message = "operations of this connection are being captured into a graph and do not run; flush after the capture";
            return Err(Error::usage("flush", message));
        }
        self.queue.mark()
    }

    fn is_done(&self, mark: u64) -> Result<bool> {
        if has_reached(&self.queue.reached, mark)? {
            // Lets go of what the operations held: a peer may be waiting for it.
            self.queue.stream.context().reap();
            return Ok(true);
        }
        // Also notices a failure of the work, behind which no mark is reached.
        self.queue.stream.is_idle()
    }

    fn wait_event(&self, event: &Event) -> Result<()> {
        self.queue.stream.wait_event(event)
    }

    fn record_event(&self, event: &Event) -> Result<()> {
        event.record(&self.queue.stream)
    }
}

impl Drop for CudaIpc {
    fn drop(&mut self) {
        let Queue { peer, stream, reached, .. } = &*self.queue;
        if stream.context().driver().forked() || !matches!(stream.is_idle(), Ok(false)) {
            return;
        }
        match self.queue.mark() {
            Ok(mark) => {
                let (context, reached) = (stream.context().clone(), reached.clone());
                let remainder = Remainder { peer: *peer, context, reached, mark };
                self.outstanding.add_remainder(Arc::new(remainder));
            }
            Err(error) => log::warn!("a dropped connection to rank {peer} cannot be waited for: {error}"),
        }
    }
}

impl Delivery for Queue {
    fn peer(&self) -> u32 {
        self.peer
    }

    fn is_delivered(&self) -> bool {
        // A stream that has failed delivers nothing more; the context says so to every caller.
        self.stream.is_idle().unwrap_or(true)
    }

    fn lost(&self) -> Option<Error> {
        None
    }

    /// The device needs no thread.
    fn is_undelivered(&self) -> bool {
        false
    }
}

impl Delivery for Remainder {
    fn peer(&self) -> u32 {
        self.peer
    }

    fn is_delivered(&self) -> bool {
        self.context.is_lost() || has_reached(&self.reached, self.mark).unwrap_or(true)
    }

    fn lost(&self) -> Option<Error> {
        None
    }

    fn is_undelivered(&self) -> bool {
        false
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
