//! Stream capture: work becomes nodes of a graph instead of running.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;

use cuda_driver_sys::{CUresult, CUstreamCaptureMode as Mode};
use parking_lot::{Mutex, MutexGuard};

use super::event::{CaptureId, Event, EventState};
use super::graph::{Graph, Graphs, NodeWork};
use super::op::Op;
use super::user_object::UserObject;
use super::work::Work;
use crate::abi::Result;

/// One capture: the stream where it began, and the streams that joined it through events.
#[derive(Debug)]
pub(crate) struct Capture {
    id: CaptureId,
    /// The handle of the graph that it makes.
    graph: u64,
    origin: u64,
    mode: Mode,
    thread: ThreadId,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    valid: bool,
    nodes: Vec<NodeWork>,
    /// The graph that the capture makes, or `None` once the capture is over.
    graph: Option<Arc<Graph>>,
    /// The streams that take part, by handle.
    streams: HashMap<u64, Joined>,
}

/// A stream in a capture.
#[derive(Debug)]
struct Joined {
    stream: Participant,
    /// The nodes that the stream's next node depends on.
    heads: Vec<usize>,
}

/// A stream, as captures see it.
#[derive(Clone, Debug)]
pub(crate) struct Participant {
    /// The handle of the stream; 0 for the legacy stream.
    pub(crate) handle: u64,
    pub(crate) device: usize,
    capture: Arc<Mutex<Option<Arc<Capture>>>>,
}

/// All captures in progress.
#[derive(Debug)]
pub(crate) struct Captures {
    graphs: Arc<Graphs>,
    active: Mutex<Vec<Arc<Capture>>>,
    last_id: AtomicU64,
}

thread_local! {
    static THREAD_MODE: Cell<Mode> = const { Cell::new(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL) };
}

/// `cuThreadExchangeStreamCaptureMode`.
pub(crate) fn exchange_thread_mode(mode: Mode) -> Mode {
    THREAD_MODE.replace(mode)
}

impl Participant {
    pub(super) fn new(handle: u64, device: usize) -> Self {
        Self { handle, device, capture: Arc::default() }
    }

    pub(crate) fn is_legacy(&self) -> bool {
        self.handle == 0
    }

    /// The capture that the stream takes part in.
    pub(crate) fn capture(&self) -> Option<Arc<Capture>> {
        self.capture.lock().clone()
    }

    fn set_capture(&self, capture: Option<Arc<Capture>>) {
        *self.capture.lock() = capture;
    }
}

impl Captures {
    /// Creates a list without captures. Those that begin later add their graphs to `graphs`.
    pub(crate) fn new(graphs: Arc<Graphs>) -> Self {
        Self { graphs, active: Mutex::default(), last_id: AtomicU64::new(0) }
    }

    /// Begins a capture. Its graph has a handle from now on.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` on the legacy stream, `CUDA_ERROR_ILLEGAL_STATE` on a stream that
    /// already captures.
    pub(crate) fn begin(&self, stream: &Participant, mode: Mode) -> Result {
        if stream.is_legacy() {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if stream.capture().is_some() {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        let streams = HashMap::from([(stream.handle, Joined { stream: stream.clone(), heads: Vec::new() })]);
        let (handle, graph) = self.graphs.begin();
        let capture = Arc::new(Capture {
            id: CaptureId(self.last_id.fetch_add(1, Ordering::Relaxed) + 1),
            graph: handle,
            origin: stream.handle,
            mode,
            thread: std::thread::current().id(),
            state: Mutex::new(State { valid: true, nodes: Vec::new(), graph: Some(graph), streams }),
        });
        stream.set_capture(Some(Arc::clone(&capture)));
        self.active.lock().push(capture);
        Ok(())
    }

    /// Ends the capture that began on `stream` and returns the handle of its graph.
    ///
    /// # Errors
    /// `CUDA_ERROR_ILLEGAL_STATE` if the stream does not capture, `CUDA_ERROR_STREAM_CAPTURE_UNMATCHED` if the capture
    /// did not begin on it, `_WRONG_THREAD`, `_UNJOINED`, `_INVALIDATED`. The last two end the capture too, and its
    /// graph.
    pub(crate) fn end(&self, stream: &Participant) -> Result<u64> {
        let capture = stream.capture().ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.origin != stream.handle {
            capture.invalidate();
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let relaxed = capture.mode == Mode::CU_STREAM_CAPTURE_MODE_RELAXED;
        if !relaxed && capture.thread != std::thread::current().id() {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        self.close(&capture)
    }

    /// Parts a destroyed stream from its capture, which keeps what the stream has added: whoever ends the capture must
    /// have joined that, as with a stream that lives. If the capture began on the destroyed stream it ends, because no
    /// call could end it any more.
    pub(crate) fn forget(&self, stream: &Participant) {
        let Some(capture) = stream.capture() else { return };
        if capture.origin == stream.handle {
            // An invalid capture leaves no graph.
            capture.invalidate();
            let _ = self.close(&capture);
        } else {
            stream.set_capture(None);
        }
    }

    /// Ends a capture for all its streams, so that no stream joins it any more, and returns the handle of its graph.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_UNJOINED` and `_INVALIDATED`, which remove the graph. `CUDA_ERROR_ILLEGAL_STATE` if
    /// another thread has ended the capture.
    fn close(&self, capture: &Arc<Capture>) -> Result<u64> {
        self.active.lock().retain(|c| !Arc::ptr_eq(c, capture));
        let finished = capture.state.lock().finish(capture.origin);
        let (graph, nodes) = finished.ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        // The lock is released by now: removing a graph may call functions of the user.
        match nodes {
            Ok(nodes) => self.graphs.finish(&graph, nodes),
            Err(code) => {
                self.graphs.abandon(capture.graph);
                return Err(code);
            }
        }
        Ok(capture.graph)
    }

    /// The capture with this id, if it is in progress.
    fn find(&self, id: CaptureId) -> Option<Arc<Capture>> {
        self.active.lock().iter().find(|capture| capture.id == id).cloned()
    }

    /// The operation that the host waits for at `event`, if there is one.
    ///
    /// # Errors
    /// `CUDA_ERROR_CAPTURED_EVENT` if the event was recorded in a capture, which becomes invalid.
    pub(crate) fn pending(&self, event: &Event) -> Result<Option<Arc<Op>>> {
        match event.state() {
            EventState::Unrecorded => Ok(None),
            EventState::Recorded(op) => Ok(Some(op)),
            EventState::Captured(id, _) => {
                if let Some(capture) = self.find(id) {
                    capture.invalidate();
                }
                Err(CUresult::CUDA_ERROR_CAPTURED_EVENT)
            }
        }
    }

    /// Checks that no capture forbids a call that may synchronise implicitly.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`. The captures that forbid the call become invalid.
    pub(crate) fn permit_unsafe_call(&self) -> Result {
        let thread_mode = THREAD_MODE.get();
        if thread_mode == Mode::CU_STREAM_CAPTURE_MODE_RELAXED {
            return Ok(());
        }
        let me = std::thread::current().id();
        let mut result = Ok(());
        for capture in &*self.active.lock() {
            let forbids = match capture.mode {
                Mode::CU_STREAM_CAPTURE_MODE_RELAXED => false,
                Mode::CU_STREAM_CAPTURE_MODE_GLOBAL => {
                    capture.thread == me || thread_mode == Mode::CU_STREAM_CAPTURE_MODE_GLOBAL
                }
                _ => capture.thread == me,
            };
            if forbids {
                capture.invalidate();
                result = Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            }
        }
        result
    }

    /// `cuStreamWaitEvent` on a capturing stream, for an event in `state`.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_MERGE` for an event of another capture, `_ISOLATION` for one that was not captured.
    /// Both make the captures invalid.
    pub(crate) fn wait(&self, capture: &Capture, stream: &Participant, state: EventState) -> Result {
        match state {
            EventState::Captured(id, nodes) if id == capture.id => capture.depend(stream, nodes),
            EventState::Captured(id, _) => {
                if let Some(other) = self.find(id) {
                    other.invalidate();
                }
                capture.invalidate();
                Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE)
            }
            EventState::Unrecorded | EventState::Recorded(_) => {
                capture.invalidate();
                Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
            }
        }
    }

    /// `cuStreamWaitEvent` on a stream outside all captures, for an event of capture `id`: the stream joins the
    /// capture.
    ///
    /// # Errors
    /// `CUDA_ERROR_CAPTURED_EVENT` if the capture is over, `_STREAM_CAPTURE_INVALIDATED` if it is invalid,
    /// `_STREAM_CAPTURE_IMPLICIT` for the legacy stream.
    pub(crate) fn join(&self, id: CaptureId, stream: &Participant, nodes: Vec<usize>) -> Result {
        let capture = self.find(id);
        if stream.is_legacy() {
            if let Some(capture) = capture {
                capture.invalidate();
            }
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        let capture = capture.ok_or(CUresult::CUDA_ERROR_CAPTURED_EVENT)?;
        let mut state = capture.state.lock();
        if state.graph.is_none() {
            return Err(CUresult::CUDA_ERROR_CAPTURED_EVENT);
        }
        if !state.valid {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        state.streams.insert(stream.handle, Joined { stream: stream.clone(), heads: nodes });
        stream.set_capture(Some(Arc::clone(&capture)));
        Ok(())
    }
}

impl Capture {
    /// A number that no other capture of this process has.
    pub(crate) fn id(&self) -> u64 {
        self.id.0
    }

    /// The handle of the graph that it makes.
    pub(crate) fn graph(&self) -> u64 {
        self.graph
    }

    /// Makes the capture invalid: later work in it, and its end, fail.
    pub(crate) fn invalidate(&self) {
        self.state.lock().valid = false;
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.state.lock().valid
    }

    /// Adds a node after the last nodes of the stream.
    pub(crate) fn add(&self, stream: &Participant, work: Work) -> Result {
        let mut state = self.valid_state()?;
        let index = state.nodes.len();
        let Some(joined) = state.streams.get_mut(&stream.handle) else {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        };
        let after = std::mem::replace(&mut joined.heads, vec![index]);
        state.nodes.push(NodeWork { device: stream.device, work, after });
        Ok(())
    }

    /// Adds the nodes of a graph after the last nodes of the stream, and the user objects that the graph holds.
    pub(crate) fn add_graph(
        &self,
        stream: &Participant,
        work: &[NodeWork],
        objects: &[Arc<UserObject>],
    ) -> Result {
        self.add(stream, Work::Marker)?;
        let mut state = self.valid_state()?;
        let base = state.nodes.len();
        for node in work {
            let after = node.after.iter().map(|i| i + base).chain([base - 1]).collect();
            state.nodes.push(NodeWork { after, ..node.clone() });
        }
        if let Some(graph) = &state.graph {
            objects.iter().for_each(|object| graph.retain(Arc::clone(object)));
        }
        let all = (base - 1..state.nodes.len()).collect();
        if let Some(joined) = state.streams.get_mut(&stream.handle) {
            joined.heads = all;
        }
        Ok(())
    }

    /// `cuEventRecord` on a stream of this capture.
    pub(crate) fn record(&self, stream: &Participant, event: &Event) -> Result {
        let state = self.valid_state()?;
        let joined = state.streams.get(&stream.handle);
        let heads = joined.ok_or(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)?.heads.clone();
        event.set(EventState::Captured(self.id, heads));
        Ok(())
    }

    /// Makes the next node of the stream depend on `nodes` too.
    fn depend(&self, stream: &Participant, nodes: Vec<usize>) -> Result {
        let mut state = self.valid_state()?;
        if let Some(Joined { heads, .. }) = state.streams.get_mut(&stream.handle) {
            heads.extend(nodes);
            heads.sort_unstable();
            heads.dedup();
        }
        Ok(())
    }

    fn valid_state(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state.lock();
        if state.valid { Ok(state) } else { Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) }
    }
}

impl State {
    /// Ends the capture for all its streams. Returns the graph, and its nodes or why there are none; `None` if the
    /// capture was over already.
    fn finish(&mut self, origin: u64) -> Option<(Arc<Graph>, Result<Vec<NodeWork>>)> {
        let graph = self.graph.take()?;
        let all_joined = self.all_joined(origin);
        for joined in std::mem::take(&mut self.streams).into_values() {
            joined.stream.set_capture(None);
        }
        let nodes = match (self.valid, all_joined) {
            (false, _) => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
            (true, false) => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED),
            (true, true) => Ok(std::mem::take(&mut self.nodes)),
        };
        Some((graph, nodes))
    }

    /// Whether the end of the origin stream depends on all nodes of the other streams.
    fn all_joined(&self, origin: u64) -> bool {
        let mut reached = vec![false; self.nodes.len()];
        let mut todo = self.streams.get(&origin).map(|joined| joined.heads.clone()).unwrap_or_default();
        while let Some(node) = todo.pop() {
            if !std::mem::replace(&mut reached[node], true) {
                todo.extend(&self.nodes[node].after);
            }
        }
        self.streams.values().all(|joined| joined.heads.iter().all(|n| reached[*n]))
    }
}
