//! Streams and what flows through them.

pub(crate) mod capture;
mod event;
pub(crate) mod graph;
pub(crate) mod host;
pub(crate) mod memory;
pub(crate) mod op;
pub(crate) mod user_object;
pub(crate) mod work;

use std::sync::Arc;

use cuda_driver_sys::CUresult;
use parking_lot::Mutex;

use crate::machine::{Machine, Result};
use capture::Capture;
pub(crate) use event::{Event, EventState};
use op::Op;
use work::Work;

/// One stream: work of one context in order.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Its handle; 0 for the legacy default stream.
    pub(crate) handle: u64,
    pub(crate) device: usize,
    /// `CU_STREAM_NON_BLOCKING` or not.
    pub(crate) non_blocking: bool,
    pub(crate) priority: i32,
    tail: Mutex<Option<Arc<Op>>>,
    capture: Mutex<Option<Arc<Capture>>>,
}

/// The streams of one context.
#[derive(Debug)]
pub(crate) struct Streams {
    legacy: Arc<Stream>,
    /// Held while operations are added, so that the legacy stream's implicit order is the order of the calls.
    order: Mutex<Order>,
}

#[derive(Debug, Default)]
struct Order {
    /// All streams but the legacy one.
    streams: Vec<Arc<Stream>>,
    /// Unfinished work of streams that were destroyed, and whether they were non-blocking.
    orphans: Vec<(bool, Arc<Op>)>,
}

impl Order {
    /// What an operation of the legacy stream waits for.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT` while a blocking stream captures, which ends that capture.
    fn before_legacy(&self) -> Result<Vec<Arc<Op>>> {
        let blocking = || self.streams.iter().filter(|s| !s.non_blocking);
        let mut result = Ok(());
        for capture in blocking().filter_map(|s| s.capture()) {
            capture.invalidate();
            result = Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        result?;
        let orphans =
            self.orphans.iter().filter(|(non_blocking, _)| !non_blocking).map(|(_, op)| Arc::clone(op));
        Ok(blocking().filter_map(|s| s.last()).chain(orphans).collect())
    }
}

impl Stream {
    fn new(handle: u64, device: usize, non_blocking: bool, priority: i32) -> Self {
        Self { handle, device, non_blocking, priority, tail: Mutex::default(), capture: Mutex::default() }
    }

    pub(crate) fn is_legacy(&self) -> bool {
        self.handle == 0
    }

    /// The capture this stream takes part in.
    pub(crate) fn capture(&self) -> Option<Arc<Capture>> {
        self.capture.lock().clone()
    }

    pub(crate) fn set_capture(&self, capture: Option<Arc<Capture>>) {
        *self.capture.lock() = capture;
    }

    /// Adds work, or captures it (then there is no operation yet).
    ///
    /// # Errors
    /// Those of stream capture.
    pub(crate) fn submit(&self, machine: &Machine, work: Work) -> Result<Option<Arc<Op>>> {
        self.submit_after(machine, &[], work)
    }

    /// As [`submit`](Self::submit), after operations of other streams too.
    pub(crate) fn submit_after(
        &self,
        machine: &Machine,
        after: &[Arc<Op>],
        work: Work,
    ) -> Result<Option<Arc<Op>>> {
        if let Some(capture) = self.capture() {
            capture.add(self, work)?;
            return Ok(None);
        }
        self.enqueue(machine, |deps| Op::submit(self.device, deps.iter().chain(after), work)).map(Some)
    }

    /// Adds whatever operations `make` submits after the ones given to it; the one it returns becomes the
    /// stream's last.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT` on the legacy stream while a blocking stream captures.
    pub(crate) fn enqueue(
        &self,
        machine: &Machine,
        make: impl FnOnce(&[Arc<Op>]) -> Arc<Op>,
    ) -> Result<Arc<Op>> {
        let streams = &machine.devices[self.device].streams;
        let order = streams.order.lock();
        let mut deps: Vec<Arc<Op>> = self.last().into_iter().collect();
        if self.is_legacy() {
            deps.extend(order.before_legacy()?);
        } else if !self.non_blocking {
            deps.extend(streams.legacy.last());
        }
        let op = make(&deps);
        *self.tail.lock() = Some(Arc::clone(&op));
        Ok(op)
    }

    /// The last operation, unless it has ended.
    pub(crate) fn last(&self) -> Option<Arc<Op>> {
        let mut tail = self.tail.lock();
        if tail.as_ref().is_some_and(|op| op.is_done()) {
            *tail = None;
        }
        tail.clone()
    }

    /// What a wait for this stream waits for: the legacy stream stands for all blocking streams.
    pub(crate) fn pending(&self, machine: &Machine) -> Result<Vec<Arc<Op>>> {
        let mut ops: Vec<_> = self.last().into_iter().collect();
        if self.is_legacy() {
            ops.extend(machine.devices[self.device].streams.order.lock().before_legacy()?);
        }
        Ok(ops)
    }
}

impl Streams {
    pub(crate) fn new(device: usize) -> Self {
        Self { legacy: Arc::new(Stream::new(0, device, false, 0)), order: Mutex::default() }
    }

    pub(crate) fn legacy(&self) -> &Arc<Stream> {
        &self.legacy
    }

    pub(crate) fn create(&self, machine: &Machine, non_blocking: bool, priority: i32) -> u64 {
        let handle = machine.streams.fresh();
        let stream = Arc::new(Stream::new(handle, self.legacy.device, non_blocking, priority));
        self.order.lock().streams.push(Arc::clone(&stream));
        machine.streams.insert(handle, stream);
        handle
    }

    /// Forgets the stream. Its work goes on, and whatever waits for the context waits for it too.
    pub(crate) fn destroy(&self, stream: &Arc<Stream>) {
        if let Some(capture) = stream.capture() {
            capture.invalidate();
            capture.forget(stream);
        }
        let mut order = self.order.lock();
        order.streams.retain(|s| !Arc::ptr_eq(s, stream));
        order.orphans.retain(|(_, op)| !op.is_done());
        order.orphans.extend(stream.last().map(|op| (stream.non_blocking, op)));
    }

    /// Everything unfinished of the context.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` while one of its streams captures, which ends that capture.
    pub(crate) fn pending(&self) -> Result<Vec<Arc<Op>>> {
        let order = self.order.lock();
        let mut result = Ok(());
        for capture in order.streams.iter().filter_map(|s| s.capture()) {
            capture.invalidate();
            result = Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        result?;
        let live = order.streams.iter().chain([&self.legacy]).filter_map(|s| s.last());
        Ok(live.chain(order.orphans.iter().map(|(_, op)| Arc::clone(op))).collect())
    }

    /// As [`pending`](Self::pending) for calls that wait by the way: captures go on.
    pub(crate) fn in_flight(&self) -> Vec<Arc<Op>> {
        let order = self.order.lock();
        let live = order.streams.iter().chain([&self.legacy]).filter_map(|s| s.last());
        live.chain(order.orphans.iter().map(|(_, op)| Arc::clone(op))).collect()
    }

    /// Ends the life of all streams, when the context goes.
    pub(crate) fn clear(&self) {
        let streams = std::mem::take(&mut self.order.lock().streams);
        for stream in streams {
            if let Some(capture) = stream.capture() {
                capture.invalidate();
                capture.forget(&stream);
            }
        }
    }
}
