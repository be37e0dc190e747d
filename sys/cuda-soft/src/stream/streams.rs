//! The streams of a context, and the order of the work in them.

use std::sync::Arc;

use cuda_driver_sys::CUresult;
use parking_lot::Mutex;

use super::capture::{Capture, Captures, Participant};
use super::op::Op;
use super::runtime::Runtime;
use super::work::Work;
use crate::abi::Result;
use crate::handles::Handles;

/// One stream of a context.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) device: usize,
    /// Whether it was created with `CU_STREAM_NON_BLOCKING`, and so is not ordered with the legacy stream.
    pub(crate) non_blocking: bool,
    pub(crate) priority: i32,
    /// The stream in captures.
    pub(crate) participant: Participant,
    tail: Mutex<Option<Arc<Op>>>,
}

/// The streams of one context.
#[derive(Debug)]
pub(crate) struct Streams {
    runtime: Arc<Runtime>,
    legacy: Arc<Stream>,
    /// Held while operations are added, so that the implicit order with the legacy stream is the order of the calls.
    order: Mutex<Order>,
}

#[derive(Debug, Default)]
struct Order {
    /// All streams except the legacy stream.
    streams: Vec<Arc<Stream>>,
    /// Unfinished work of destroyed streams, and whether each stream was non-blocking.
    orphans: Vec<(bool, Arc<Op>)>,
}

impl Stream {
    fn new(handle: u64, device: usize, non_blocking: bool, priority: i32) -> Self {
        let participant = Participant::new(handle, device);
        Self { device, non_blocking, priority, participant, tail: Mutex::default() }
    }

    pub(crate) fn is_legacy(&self) -> bool {
        self.participant.is_legacy()
    }

    /// The capture that the stream takes part in.
    pub(crate) fn capture(&self) -> Option<Arc<Capture>> {
        self.participant.capture()
    }

    /// The last operation, unless it has ended. For the race detector it is returned in any case, because later work is
    /// ordered behind it.
    fn last(&self) -> Option<Arc<Op>> {
        let mut tail = self.tail.lock();
        // In this order: an operation that ends between the two questions has its past by then.
        if tail.as_ref().is_some_and(|op| op.ended_at().is_some() && op.past().is_none()) {
            *tail = None;
        }
        tail.clone()
    }
}

impl Streams {
    pub(crate) fn new(runtime: Arc<Runtime>, device: usize) -> Self {
        Self { runtime, legacy: Arc::new(Stream::new(0, device, false, 0)), order: Mutex::default() }
    }

    pub(crate) fn legacy(&self) -> &Arc<Stream> {
        &self.legacy
    }

    /// Creates a stream and returns its handle.
    pub(crate) fn create(&self, handles: &Handles<Stream>, non_blocking: bool, priority: i32) -> u64 {
        let handle = handles.fresh();
        let stream = Arc::new(Stream::new(handle, self.legacy.device, non_blocking, priority));
        self.order.lock().streams.push(Arc::clone(&stream));
        handles.insert(handle, stream);
        handle
    }

    /// Submits work to a stream after all of `after`. Returns its operation, or `None` if the stream captured the work.
    ///
    /// # Errors
    /// The errors of [`Capture::add`] and [`enqueue`](Self::enqueue).
    pub(crate) fn submit(&self, stream: &Stream, after: &[Arc<Op>], work: Work) -> Result<Option<Arc<Op>>> {
        if let Some(capture) = stream.capture() {
            capture.add(&stream.participant, work)?;
            return Ok(None);
        }
        let submit = |deps: &[Arc<Op>]| work.submit(&self.runtime, stream.device, deps.iter().chain(after));
        self.enqueue(stream, submit).map(Some)
    }

    /// Adds the operations that `make` submits to a stream. `make` gets the operations that they depend on and returns
    /// the one that becomes the stream's last.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT` on the legacy stream while a blocking stream captures.
    pub(super) fn enqueue(
        &self,
        stream: &Stream,
        make: impl FnOnce(&[Arc<Op>]) -> Arc<Op>,
    ) -> Result<Arc<Op>> {
        let order = self.order.lock();
        let mut deps: Vec<Arc<Op>> = stream.last().into_iter().collect();
        if stream.is_legacy() {
            deps.extend(order.before_legacy()?);
        } else if !stream.non_blocking {
            deps.extend(self.legacy.last());
        }
        let op = make(&deps);
        *stream.tail.lock() = Some(Arc::clone(&op));
        Ok(op)
    }

    /// The parts of the machine that work in these streams uses.
    pub(super) fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// The unfinished operations of a stream. Those of the legacy stream include the work of all blocking streams.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT` for the legacy stream while a blocking stream captures.
    pub(crate) fn pending_in(&self, stream: &Stream) -> Result<Vec<Arc<Op>>> {
        let mut ops: Vec<_> = stream.last().into_iter().collect();
        if stream.is_legacy() {
            ops.extend(self.order.lock().before_legacy()?);
        }
        Ok(ops)
    }

    /// The capture that a stream takes part in. To ask does not make any capture invalid.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT` for the legacy stream while a blocking stream captures.
    pub(crate) fn capture_of(&self, stream: &Stream) -> Result<Option<Arc<Capture>>> {
        if stream.is_legacy() && self.order.lock().blocking().any(|s| s.capture().is_some()) {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        Ok(stream.capture())
    }

    /// The unfinished operations of the context.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` while one of its streams captures. The capture becomes invalid.
    pub(crate) fn pending(&self) -> Result<Vec<Arc<Op>>> {
        let order = self.order.lock();
        let mut result = Ok(());
        for capture in order.streams.iter().filter_map(|s| s.capture()) {
            capture.invalidate();
            result = Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        result?;
        Ok(order.unfinished(&self.legacy))
    }

    /// Like [`pending`](Self::pending), for calls that wait implicitly: captures stay valid.
    pub(crate) fn in_flight(&self) -> Vec<Arc<Op>> {
        self.order.lock().unfinished(&self.legacy)
    }

    /// Removes a stream. Its work continues, and waits for the context still include it.
    pub(crate) fn destroy(&self, captures: &Captures, stream: &Arc<Stream>) {
        captures.forget(&stream.participant);
        let mut order = self.order.lock();
        order.streams.retain(|s| !Arc::ptr_eq(s, stream));
        order.orphans.retain(|(_, op)| op.ended_at().is_none());
        order.orphans.extend(stream.last().map(|op| (stream.non_blocking, op)));
    }

    /// Removes all streams, when the context is destroyed.
    pub(crate) fn clear(&self, captures: &Captures) {
        let streams = std::mem::take(&mut self.order.lock().streams);
        for stream in streams {
            captures.forget(&stream.participant);
        }
    }
}

impl Order {
    /// The streams that are ordered with the legacy stream.
    fn blocking(&self) -> impl Iterator<Item = &Arc<Stream>> {
        self.streams.iter().filter(|s| !s.non_blocking)
    }

    /// The operations that an operation of the legacy stream waits for.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT` while a blocking stream captures. The capture becomes invalid.
    fn before_legacy(&self) -> Result<Vec<Arc<Op>>> {
        let mut result = Ok(());
        for capture in self.blocking().filter_map(|s| s.capture()) {
            capture.invalidate();
            result = Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        result?;
        let orphans =
            self.orphans.iter().filter(|(non_blocking, _)| !non_blocking).map(|(_, op)| Arc::clone(op));
        Ok(self.blocking().filter_map(|s| s.last()).chain(orphans).collect())
    }

    /// The unfinished operations of all streams.
    fn unfinished(&self, legacy: &Arc<Stream>) -> Vec<Arc<Op>> {
        let live = self.streams.iter().chain([legacy]).filter_map(|s| s.last());
        live.chain(self.orphans.iter().map(|(_, op)| Arc::clone(op))).collect()
    }
}
