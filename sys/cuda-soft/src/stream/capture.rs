//! Stream capture: work that becomes nodes of a graph instead of being done.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;

use cuda_driver_sys::{CUresult, CUstreamCaptureMode as Mode};
use parking_lot::Mutex;

use super::graph::{Graph, GraphExec, NodeWork};
use super::work::Work;
use super::{Event, EventState, Stream};
use crate::machine::Result;

/// One capture sequence: from the stream where it began to all that joined it through events.
#[derive(Debug)]
pub(crate) struct Capture {
    /// A number that no other capture of this process has.
    pub(crate) id: u64,
    /// The handle of the graph that it makes.
    pub(crate) graph: u64,
    origin: u64,
    mode: Mode,
    thread: ThreadId,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    valid: bool,
    over: bool,
    nodes: Vec<NodeWork>,
    /// The graph, until the capture is over: events outlive it and must not keep what the graph holds.
    into: Option<Arc<Graph>>,
    /// Per stream: itself, and the nodes its next one comes after.
    streams: HashMap<u64, (Arc<Stream>, Vec<usize>)>,
}

/// All captures in progress.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    active: Mutex<Vec<Arc<Capture>>>,
    begun: AtomicU64,
}

thread_local! {
    static THREAD_MODE: Cell<Mode> = const { Cell::new(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL) };
}

/// `cuThreadExchangeStreamCaptureMode`.
pub(crate) fn exchange_thread_mode(mode: Mode) -> Mode {
    THREAD_MODE.replace(mode)
}

impl Captures {
    /// Begins a capture into the empty graph `into`, whose handle is `graph`.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` on the legacy stream, `CUDA_ERROR_ILLEGAL_STATE` on a stream that
    /// captures already.
    pub(crate) fn begin(&self, stream: &Arc<Stream>, mode: Mode, graph: u64, into: Arc<Graph>) -> Result {
        if stream.is_legacy() {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if stream.capture().is_some() {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        let streams = HashMap::from([(stream.handle, (Arc::clone(stream), Vec::new()))]);
        let capture = Arc::new(Capture {
            id: 1 + self.begun.fetch_add(1, Ordering::Relaxed),
            graph,
            origin: stream.handle,
            mode,
            thread: std::thread::current().id(),
            state: Mutex::new(State {
                valid: true,
                over: false,
                nodes: Vec::new(),
                into: Some(into),
                streams,
            }),
        });
        stream.set_capture(Some(Arc::clone(&capture)));
        self.active.lock().push(capture);
        Ok(())
    }

    /// Ends the capture that began on `stream`: the handle of its graph, and its nodes or why there are none
    /// (`CUDA_ERROR_STREAM_CAPTURE_UNJOINED` or `_INVALIDATED`).
    ///
    /// # Errors
    /// The capture goes on after `CUDA_ERROR_STREAM_CAPTURE_UNMATCHED` on a stream where it did not begin and after
    /// `_WRONG_THREAD`; `CUDA_ERROR_ILLEGAL_STATE` where nothing is captured.
    pub(crate) fn end(&self, stream: &Stream) -> Result<(u64, Result<Vec<NodeWork>>)> {
        let capture = stream.capture().ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.origin != stream.handle {
            capture.invalidate();
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let relaxed = capture.mode == Mode::CU_STREAM_CAPTURE_MODE_RELAXED;
        if !relaxed && capture.thread != std::thread::current().id() {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        self.active.lock().retain(|c| !Arc::ptr_eq(c, &capture));
        let mut state = capture.state.lock();
        state.over = true;
        state.into = None;
        let joined = state.all_joined(capture.origin);
        for (stream, _) in std::mem::take(&mut state.streams).into_values() {
            stream.set_capture(None);
        }
        let outcome = match (state.valid, joined) {
            (false, _) => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
            (true, false) => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED),
            (true, true) => Ok(std::mem::take(&mut state.nodes)),
        };
        Ok((capture.graph, outcome))
    }

    /// To be asked by calls that a capture forbids because they may synchronise implicitly.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`, which also ends the captures concerned.
    pub(crate) fn permit_unsafe_call(&self) -> Result {
        let thread_mode = THREAD_MODE.get();
        if thread_mode == Mode::CU_STREAM_CAPTURE_MODE_RELAXED {
            return Ok(());
        }
        let me = std::thread::current().id();
        let mut result = Ok(());
        for capture in &*self.active.lock() {
            let concerned = match capture.mode {
                Mode::CU_STREAM_CAPTURE_MODE_RELAXED => false,
                Mode::CU_STREAM_CAPTURE_MODE_GLOBAL => {
                    capture.thread == me || thread_mode == Mode::CU_STREAM_CAPTURE_MODE_GLOBAL
                }
                _ => capture.thread == me,
            };
            if concerned {
                capture.invalidate();
                result = Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            }
        }
        result
    }
}

impl Capture {
    /// Ends its usefulness: what is captured from now on, and its end, fail.
    pub(crate) fn invalidate(&self) {
        self.state.lock().valid = false;
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.state.lock().valid
    }

    /// A stream was destroyed.
    pub(crate) fn forget(&self, stream: &Stream) {
        self.state.lock().streams.remove(&stream.handle);
        stream.set_capture(None);
    }

    /// Adds one node after the stream's last ones.
    pub(crate) fn add(&self, stream: &Stream, work: Work) -> Result {
        let mut state = self.valid_state()?;
        let index = state.nodes.len();
        let Some((_, heads)) = state.streams.get_mut(&stream.handle) else {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        };
        let after = std::mem::replace(heads, vec![index]);
        state.nodes.push(NodeWork { device: stream.device, work, after });
        Ok(())
    }

    /// Adds all nodes of a graph after the stream's last ones.
    pub(crate) fn add_graph(&self, stream: &Stream, graph: &GraphExec) -> Result {
        self.add(stream, Work::Marker)?;
        let mut state = self.valid_state()?;
        let base = state.nodes.len();
        for node in &graph.work {
            let after = node.after.iter().map(|i| i + base).chain([base - 1]).collect();
            state.nodes.push(NodeWork { after, ..node.clone() });
        }
        let into = state.into.iter();
        into.for_each(|into| graph.objects.iter().for_each(|object| into.hold(Arc::clone(object))));
        let all = (base - 1..state.nodes.len()).collect();
        if let Some((_, heads)) = state.streams.get_mut(&stream.handle) {
            *heads = all;
        }
        Ok(())
    }

    /// `cuEventRecord` on a stream of this capture.
    pub(crate) fn record(self: &Arc<Self>, stream: &Stream, event: &Event) -> Result {
        let heads = self.valid_state()?.streams.get(&stream.handle).map(|(_, heads)| heads.clone());
        let heads = heads.ok_or(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)?;
        event.set(EventState::Captured(Arc::clone(self), heads));
        Ok(())
    }

    /// `cuStreamWaitEvent` on a stream of this capture.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_MERGE` for an event of another capture, `_ISOLATION` for one that was not
    /// captured; both end this capture.
    pub(crate) fn wait(self: &Arc<Self>, stream: &Stream, event: &Event) -> Result {
        match event.state() {
            EventState::Captured(other, nodes) if Arc::ptr_eq(&other, self) => {
                let mut state = self.valid_state()?;
                if let Some((_, heads)) = state.streams.get_mut(&stream.handle) {
                    heads.extend(nodes);
                    heads.sort_unstable();
                    heads.dedup();
                }
                Ok(())
            }
            EventState::Captured(other, _) => {
                other.invalidate();
                self.invalidate();
                Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE)
            }
            _ => {
                self.invalidate();
                Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
            }
        }
    }

    /// `cuStreamWaitEvent` on a stream outside: it joins this capture.
    ///
    /// # Errors
    /// `CUDA_ERROR_CAPTURED_EVENT` when the capture is over, `_STREAM_CAPTURE_IMPLICIT` for the legacy stream.
    pub(crate) fn join(self: &Arc<Self>, stream: &Arc<Stream>, nodes: Vec<usize>) -> Result {
        if stream.is_legacy() {
            self.invalidate();
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        let mut state = self.state.lock();
        if state.over {
            return Err(CUresult::CUDA_ERROR_CAPTURED_EVENT);
        }
        if !state.valid {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        state.streams.insert(stream.handle, (Arc::clone(stream), nodes));
        stream.set_capture(Some(Arc::clone(self)));
        Ok(())
    }

    fn valid_state(&self) -> Result<parking_lot::MutexGuard<'_, State>> {
        let state = self.state.lock();
        if state.valid { Ok(state) } else { Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) }
    }
}

impl State {
    /// Whether everything other streams captured comes before the end of the origin.
    fn all_joined(&self, origin: u64) -> bool {
        let mut reached = vec![false; self.nodes.len()];
        let mut todo = self.streams.get(&origin).map(|(_, heads)| heads.clone()).unwrap_or_default();
        while let Some(node) = todo.pop() {
            if !std::mem::replace(&mut reached[node], true) {
                todo.extend(&self.nodes[node].after);
            }
        }
        self.streams.values().all(|(_, heads)| heads.iter().all(|n| reached[*n]))
    }
}
