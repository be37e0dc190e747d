//! Graphs hold everything that captured work uses, on whichever stream it was enqueued and whoever began the capture.

mod asked;
mod foreign;
mod unknown;

use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

use cuda_driver_sys::CUresult;

use super::{Address, Gate, SOON, context, driver, eventually};
use crate::ErrorKind;
use crate::gpu::{CaptureMode, Context, Device, Event, GpuBuffer, GraphExec, Hooks, KeepAlive, Stream};

/// Two streams, an event to fork from the first to the second, and one to join the first again.
pub(super) struct Pair {
    pub(super) origin: Stream,
    pub(super) joined: Stream,
    pub(super) fork: Event,
    pub(super) join: Event,
}

impl Pair {
    pub(super) fn new(context: &Context) -> Self {
        let [origin, joined] = [0, 1].map(|_| Stream::new(context).unwrap());
        let [fork, join] = [0, 1].map(|_| Event::new(context).unwrap());
        Self { origin, joined, fork, join }
    }

    pub(super) fn fork(&self) -> crate::Result<()> {
        self.fork.record(&self.origin)?;
        self.joined.wait_event(&self.fork)
    }

    pub(super) fn join(&self) -> crate::Result<()> {
        self.join.record(&self.joined)?;
        self.origin.wait_event(&self.join)
    }

    /// A graph that the joined stream's fill of `buffer` with 7 went into.
    fn captured_fill(&self, buffer: &Arc<GpuBuffer>) -> GraphExec {
        let capture = |_: &Stream| {
            self.fork()?;
            self.joined.fill(&buffer.slice(..)?, 7)?;
            self.join()
        };
        GraphExec::capture(&self.origin, CaptureMode::ThreadLocal, capture).unwrap()
    }

    /// Gives both streams every occasion to drop what they retain.
    fn settle(&self) {
        self.joined.synchronize(SOON).unwrap();
        self.origin.synchronize(SOON).unwrap();
        self.origin.context().reap();
    }
}

pub(super) fn buffer(context: &Context) -> (Arc<GpuBuffer>, Weak<GpuBuffer>, Address) {
    let buffer = Arc::new(GpuBuffer::new(context, 4096).unwrap());
    let (weak, address) = (Arc::downgrade(&buffer), Address::of(&buffer));
    (buffer, weak, address)
}

pub(super) fn is_gone(context: &Context, weak: &Weak<GpuBuffer>, address: &Address) {
    eventually("the release of what a graph held", || {
        context.reap();
        weak.upgrade().is_none() && !address.is_mapped()
    });
}

#[test]
fn a_graph_holds_what_a_stream_retains_that_joined_its_capture() {
    let context = context(0);
    let pair = Pair::new(&context);
    let (buffer, weak, address) = buffer(&context);
    let graph = pair.captured_fill(&buffer);
    drop(buffer);
    pair.settle();
    assert!(address.is_mapped(), "the graph is going to write there");
    let seen = weak.upgrade().unwrap();
    graph.launch(&pair.origin).unwrap();
    pair.origin.synchronize(SOON).unwrap();
    let mut bytes = [0_u8; 4096];
    seen.download(0, &mut bytes, SOON).unwrap();
    assert_eq!(bytes, [7; 4096]);
    drop((seen, graph));
    pair.settle();
    is_gone(&context, &weak, &address);
}

#[test]
fn a_launch_under_way_keeps_what_a_dropped_graph_held() {
    let context = context(4);
    let pair = Pair::new(&context);
    let (buffer, weak, address) = buffer(&context);
    let graph = pair.captured_fill(&buffer);
    drop(buffer);
    let gate = Gate::close(&pair.origin);
    graph.launch(&pair.origin).unwrap();
    drop(graph);
    pair.joined.synchronize(SOON).unwrap();
    context.reap();
    assert!(address.is_mapped());
    drop(pair);
    context.reap();
    assert!(address.is_mapped());
    gate.open();
    is_gone(&context, &weak, &address);
}

#[test]
fn a_capture_that_fails_lets_go_of_what_every_stream_retained() {
    let context = context(0);
    let pair = Pair::new(&context);
    let (buffer, weak, address) = buffer(&context);
    let failed = GraphExec::capture(&pair.origin, CaptureMode::ThreadLocal, |_| {
        pair.fork()?;
        pair.joined.fill(&buffer.slice(..)?, 7)?;
        pair.origin.fill(&buffer.slice(..)?, 8)
    });
    assert_eq!(failed.unwrap_err().code(), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED.0.cast_signed());
    drop(buffer);
    pair.settle();
    is_gone(&context, &weak, &address);
}

#[test]
fn a_graph_that_another_graph_launches_is_held_by_it() {
    let context = context(0);
    let pair = Pair::new(&context);
    let (buffer, weak, address) = buffer(&context);
    let inner = GraphExec::capture(&pair.origin, CaptureMode::ThreadLocal, |stream| {
        stream.fill(&buffer.slice(..)?, 9)
    })
    .unwrap();
    let outer = GraphExec::capture(&pair.origin, CaptureMode::ThreadLocal, |_| {
        pair.fork()?;
        inner.launch(&pair.joined)?;
        pair.join()
    })
    .unwrap();
    drop((buffer, inner));
    pair.settle();
    assert!(address.is_mapped());
    outer.launch(&pair.joined).unwrap();
    pair.settle();
    assert!(address.is_mapped());
    drop(outer);
    pair.settle();
    is_gone(&context, &weak, &address);
}

#[test]
fn moving_a_graph_to_the_device_keeps_it() {
    let context = context(6);
    let stream = Stream::new(&context).unwrap();
    let probe: KeepAlive = Arc::new(());
    let graph =
        GraphExec::capture(&stream, CaptureMode::ThreadLocal, |stream| stream.retain(probe.clone())).unwrap();
    let gate = Gate::close(&stream);
    graph.upload(&stream).unwrap();
    drop(graph);
    context.reap();
    assert_eq!(Arc::strong_count(&probe), 2, "the stream has not reached the upload");
    gate.open();
    eventually("the release of the graph", || {
        context.reap();
        Arc::strong_count(&probe) == 1
    });
}

/// Stops one thread between the driver's call and what follows it, until the other has ended the capture. If the other
/// has to wait for this one, as it should, a bounded time passes instead.
#[derive(Default)]
struct Between {
    ended: Mutex<Option<bool>>,
    told: Condvar,
}

impl Between {
    fn tell(&self, ended: bool) {
        *self.ended.lock().unwrap() = Some(ended);
        self.told.notify_all();
    }

    fn wait(&self, enough: impl Fn(Option<bool>) -> bool, time: Duration) {
        let guard = self.ended.lock().unwrap();
        drop(self.told.wait_timeout_while(guard, time, |ended| !enough(*ended)).unwrap());
    }
}

impl Hooks for Between {
    fn after(&self, function: &'static str, _: CUresult) {
        if function == "cuMemsetD32Async" {
            self.tell(false);
            self.wait(|ended| ended == Some(true), Duration::from_millis(300));
        }
    }
}

#[test]
fn work_of_another_thread_is_held_by_the_capture_that_it_went_into() {
    let between = Arc::new(Between::default());
    let driver = driver().with_hooks(between.clone());
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let pair = Pair::new(&context);
    let (buffer, weak, address) = buffer(&context);
    let slice = buffer.slice(..).unwrap();
    drop(buffer);
    let graph = std::thread::scope(|scope| {
        let graph = GraphExec::capture(&pair.origin, CaptureMode::Relaxed, |_| {
            pair.fork()?;
            scope.spawn(|| pair.joined.fill_u32(&slice, 7).unwrap());
            between.wait(|ended| ended.is_some(), SOON);
            pair.join()
        });
        between.tell(true);
        graph
    })
    .unwrap();
    drop(slice);
    pair.settle();
    assert!(address.is_mapped(), "the graph is going to write there");
    drop(graph);
    pair.settle();
    is_gone(&context, &weak, &address);
}

#[test]
fn keeping_account_of_other_streams_leaves_a_capture_alone() {
    let context = context(4);
    let pair = Pair::new(&context);
    // SAFETY: `pair.joined` outlives the wrapper.
    let wrapped = unsafe { Stream::from_raw(&context, pair.joined.raw()) };
    let gate = Gate::close(&pair.joined);
    wrapped.retain(Arc::new(())).unwrap();
    // Leaves an event to ask for.
    drop(wrapped);
    let graph = GraphExec::capture(&pair.origin, CaptureMode::ThreadLocal, |_| {
        let other = Stream::new(&context)?;
        for _ in 0..100 {
            other.retain(Arc::new(()))?;
        }
        assert!(other.is_idle()?);
        context.reap();
        drop(other);
        pair.origin.retain(Arc::new(()))
    });
    graph.unwrap();
    gate.open();
    pair.settle();
}

#[test]
fn streams_and_events_may_be_dropped_under_a_capture_that_they_joined() {
    let context = context(0);
    let pair = Pair::new(&context);
    let (buffer, weak, address) = buffer(&context);
    let (origin, graph) = {
        let Pair { origin, joined, fork, join } = pair;
        let graph = GraphExec::capture(&origin, CaptureMode::ThreadLocal, |origin| {
            fork.record(origin)?;
            joined.wait_event(&fork)?;
            drop(fork);
            joined.fill(&buffer.slice(..)?, 7)?;
            join.record(&joined)?;
            origin.wait_event(&join)?;
            drop((joined, join, buffer));
            context.reap();
            Ok(())
        });
        (origin, graph.unwrap())
    };
    context.reap();
    assert_eq!(context.unreaped(), 0, "the joined stream is destroyed once the capture is over");
    graph.launch(&origin).unwrap();
    origin.synchronize(SOON).unwrap();
    let mut byte = [0_u8];
    weak.upgrade().unwrap().download(9, &mut byte, SOON).unwrap();
    assert_eq!(byte, [7]);
    drop(graph);
    is_gone(&context, &weak, &address);
}

#[test]
fn a_graph_of_a_lost_context_lets_go_of_what_it_held() {
    let probe: KeepAlive = Arc::new(());
    let context = context(3);
    let stream = Stream::new(&context).unwrap();
    let graph =
        GraphExec::capture(&stream, CaptureMode::ThreadLocal, |stream| stream.retain(probe.clone())).unwrap();
    let sticky = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS.0.cast_signed();
    let error = crate::Error::new(ErrorKind::Cuda, "test", "lost").with_code(sticky);
    drop(context.note(error));
    assert!(context.is_lost());
    drop(graph);
    context.reap();
    assert_eq!(Arc::strong_count(&probe), 1);
}

#[test]
fn a_capture_within_a_capture_is_refused_and_leaves_the_outer_one_alone() {
    let context = context(5);
    let stream = Stream::new(&context).unwrap();
    let (buffer, _, _) = buffer(&context);
    let outer = GraphExec::capture(&stream, CaptureMode::ThreadLocal, |stream| {
        let inner = GraphExec::capture(stream, CaptureMode::ThreadLocal, |_| panic!("it has not begun"));
        let error = inner.map(drop).unwrap_err();
        assert_eq!((error.kind(), error.op()), (ErrorKind::InvalidUsage, "GraphExec::capture"), "{error}");
        assert!(error.message().contains("captured already") && error.code() != 0, "{error}");
        stream.fill(&buffer.slice(..)?, 7)
    });
    let outer = outer.unwrap();
    assert_eq!(outer.nodes(), 1);
    outer.launch(&stream).unwrap();
    stream.synchronize(SOON).unwrap();
}
