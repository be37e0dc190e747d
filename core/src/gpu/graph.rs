//! Graphs: work captured once from a stream and replayed as a whole.

use std::fmt;
use std::ptr;
use std::sync::Arc;

use cuda_driver_sys::{CUgraph, CUgraphExec, CUstreamCaptureMode};

use super::capture;
use super::context::Context;
use super::driver::call;
use super::keep::KeepAlive;
use super::outcomes::{Outcomes, Pending};
use super::stream::Stream;
use crate::error::Result;
use crate::sync::{Mutex, lock};

/// Which calls fail while a capture is on, because they could disturb it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureMode {
    /// Such calls on every thread.
    Global,
    /// Such calls on the capturing thread only.
    #[default]
    ThreadLocal,
    /// None.
    Relaxed,
}

impl CaptureMode {
    fn raw(self) -> CUstreamCaptureMode {
        match self {
            Self::Global => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            Self::ThreadLocal => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            Self::Relaxed => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
        }
    }
}

/// Captured work, ready to be launched any number of times. Cheap to clone.
///
/// It holds everything that streams retained for captured work, until it and its last launch are gone.
#[derive(Clone)]
pub struct GraphExec {
    inner: Arc<ExecInner>,
}

struct ExecInner {
    raw: CUgraphExec,
    nodes: usize,
    /// Executable graphs are not internally synchronised: launches take turns.
    turn: Mutex<()>,
    outcomes: Outcomes,
    #[expect(dead_code, reason = "held, not read: until `raw` is destroyed")]
    held: Vec<KeepAlive>,
    context: Context,
}

// SAFETY: `raw` is the only field that is not Send: an opaque handle, not bound to a thread.
unsafe impl Send for ExecInner {}
// SAFETY: calls on the handle are made one at a time, under `turn`.
unsafe impl Sync for ExecInner {}

impl GraphExec {
    /// Captures what `work` enqueues on `stream`, which does not run, and makes it launchable.
    ///
    /// # Errors
    /// An error of `work`; a driver error, for example because a call cannot be captured. In any case the stream is not
    /// being captured afterwards.
    pub fn capture(
        stream: &Stream,
        mode: CaptureMode,
        work: impl FnOnce(&Stream) -> Result<()>,
    ) -> Result<Self> {
        let context = stream.context();
        let driver = context.driver();
        let _entered = context.enter()?;
        let begin = || {
            stream.may_be_captured();
            let id = capture::begin(driver, stream.handle(), mode.raw())?;
            Ok((id, stream.outcomes().exchange(Pending::default())))
        };
        let capture = Capture { stream, on: Some(context.noted(stream.exclusively(begin))?) };
        work(stream)?;
        // Streams that joined were waited for, so the first one depends on what they depend on.
        let Captured { graph: raw, held, outcomes: captured } = capture.end();
        let graph = Graph { raw: raw?, context };
        let nodes = graph.nodes()?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a live output and the graph is alive; what is made is destroyed once, in `Drop`.
        context.noted(unsafe { call!(driver, cuGraphInstantiateWithFlags(&raw mut raw, graph.raw, 0)) })?;
        let outcomes = Outcomes::default();
        outcomes.exchange(captured);
        let inner =
            ExecInner { raw, nodes, turn: Mutex::default(), outcomes, held, context: context.clone() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Enqueues the whole graph on `stream`, which retains it.
    ///
    /// Nothing is decided by the host, which asks no communicator either: a graph that is launched after
    /// [`close`](crate::comm::Communicator::close) runs all the same, with peers that may be gone. Its kernels that wait leave
    /// two seconds after the close at the latest, and those that a proxy serves at once; a wait for the stream then returns an error. From two
    /// seconds after the close on, every wait does.
    ///
    /// # Errors
    /// A driver error.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        let _turn = lock(&self.inner.turn);
        self.inner.outcomes.begin_again();
        // SAFETY: both handles are alive; what the graph uses lives as long as the graph, which the stream retains.
        let launched = stream.enqueue([self.keep()], || unsafe {
            call!(stream.context().driver(), cuGraphLaunch(self.inner.raw, stream.handle()))
        });
        stream.outcomes().inherit(&self.inner.outcomes);
        launched
    }

    /// Moves the graph's description to the device, so that the first launch is as fast as the others. The stream
    /// retains the graph.
    ///
    /// # Errors
    /// A driver error.
    pub fn upload(&self, stream: &Stream) -> Result<()> {
        let _turn = lock(&self.inner.turn);
        // SAFETY: both handles are alive, and the stream retains the graph until it has been moved.
        stream.enqueue([self.keep()], || unsafe {
            call!(stream.context().driver(), cuGraphUpload(self.inner.raw, stream.handle()))
        })
    }

    fn keep(&self) -> KeepAlive {
        Arc::clone(&self.inner) as KeepAlive
    }

    /// How many kernels, copies and so on it consists of.
    pub fn nodes(&self) -> usize {
        self.inner.nodes
    }
}

impl fmt::Debug for GraphExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExecInner { raw, nodes, .. } = &*self.inner;
        f.debug_struct("GraphExec").field("raw", raw).field("nodes", nodes).finish_non_exhaustive()
    }
}

impl Drop for ExecInner {
    fn drop(&mut self) {
        let driver = self.context.driver();
        if driver.forked() {
            return;
        }
        // SAFETY: ours, destroyed once. A launch still running is retained by its stream, so there is none.
        let destroy = || unsafe { call!(driver, cuGraphExecDestroy(self.raw)) };
        driver.note_drop(self.context.enter().and_then(|_entered| destroy()));
        // Drops the items that the driver has already released with the graph.
        self.context.reap_waiting();
    }
}

/// A capture that is on; ends it also when the work fails or panics.
struct Capture<'a> {
    stream: &'a Stream,
    /// The capture's id, and what work of the stream that runs depends on; taken when the capture ends.
    on: Option<(u64, Pending)>,
}

/// The result of a capture.
struct Captured {
    graph: Result<CUgraph>,
    /// Objects that the captured work uses.
    held: Vec<KeepAlive>,
    /// Outcomes that the captured work depends on.
    outcomes: Pending,
}

impl Capture<'_> {
    fn end(mut self) -> Captured {
        self.finish().expect("a capture ends once: here, or when it is dropped")
    }

    fn finish(&mut self) -> Option<Captured> {
        let (stream, context) = (self.stream, self.stream.context());
        let (id, before) = self.on.take()?;
        let (graph, held) = stream.exclusively(|| capture::end(context.driver(), stream.handle(), id));
        Some(Captured { graph: context.noted(graph), held, outcomes: stream.outcomes().exchange(before) })
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        // The error of `work` is the one to report; ending an invalidated capture fails anyway.
        if let Some(Captured { graph: Ok(raw), held, .. }) = self.finish() {
            drop(Graph { raw, context: self.stream.context() });
            drop(held);
        }
    }
}

/// A graph between capture and instantiation.
struct Graph<'a> {
    raw: CUgraph,
    context: &'a Context,
}

impl Graph<'_> {
    fn nodes(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: `count` is a live output; a null array asks for the number only.
        unsafe { call!(self.context.driver(), cuGraphGetNodes(self.raw, ptr::null_mut(), &raw mut count)) }?;
        Ok(count)
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        if self.raw.is_null() {
            return;
        }
        let driver = self.context.driver();
        // SAFETY: ours, destroyed once; an executable graph made from it does not need it.
        driver.note_drop(unsafe { call!(driver, cuGraphDestroy(self.raw)) });
    }
}
