//! What a graph holds, whichever stream enqueued it and whoever began the capture.

use std::ptr;
use std::sync::{Arc, Condvar, Weak};
use std::time::Duration;

use cuda_driver_sys::{CUgraph, CUgraphExec, CUresult, CUstreamCaptureMode};

use super::{Address, Gate, SOON, context, driver, eventually};
use crate::gpu::{CaptureMode, Context, Device, Event, GpuBuffer, GraphExec, Hooks, KeepAlive, Stream};
use crate::sync::{Mutex, lock};

/// Two streams, an event to fork from the first to the second, and one to join the first again.
struct Pair {
    origin: Stream,
    joined: Stream,
    fork: Event,
    join: Event,
}

impl Pair {
    fn new(context: &Context) -> Self {
        let [origin, joined] = [0, 1].map(|_| Stream::new(context).unwrap());
        let [fork, join] = [0, 1].map(|_| Event::new(context).unwrap());
        Self { origin, joined, fork, join }
    }

    fn fork(&self) -> crate::Result<()> {
        self.fork.record(&self.origin)?;
        self.joined.wait_event(&self.fork)
    }

    fn join(&self) -> crate::Result<()> {
        self.join.record(&self.joined)?;
        self.origin.wait_event(&self.join)
    }

    /// Gives both streams every occasion to drop what they retain.
    fn settle(&self) {
        self.joined.synchronize(SOON).unwrap();
        self.origin.synchronize(SOON).unwrap();
        self.origin.context().reap();
    }
}

fn buffer(context: &Context) -> (Arc<GpuBuffer>, Weak<GpuBuffer>, Address) {
    let buffer = Arc::new(GpuBuffer::new(context, 4096).unwrap());
    let (weak, address) = (Arc::downgrade(&buffer), Address::of(&buffer));
    (buffer, weak, address)
}

fn is_gone(context: &Context, weak: &Weak<GpuBuffer>, address: &Address) {
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
    let graph = GraphExec::capture(&pair.origin, CaptureMode::ThreadLocal, |_| {
        pair.fork()?;
        pair.joined.fill(&buffer.slice(..)?, 7)?;
        pair.join()
    })
    .unwrap();
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
    let context = context(7);
    let pair = Pair::new(&context);
    let (buffer, weak, address) = buffer(&context);
    let graph = GraphExec::capture(&pair.origin, CaptureMode::ThreadLocal, |_| {
        pair.fork()?;
        pair.joined.fill(&buffer.slice(..)?, 7)?;
        pair.join()
    })
    .unwrap();
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

/// A capture begun through the driver's table, as a framework begins it, and the graph made of it.
struct Foreign {
    context: Context,
    graph: CUgraph,
    exec: CUgraphExec,
}

impl Foreign {
    fn capture(stream: &Stream, work: impl FnOnce()) -> Self {
        let context = stream.context().clone();
        let table = *context.driver().table();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let (mut graph, mut exec) = (ptr::null_mut(), ptr::null_mut());
        let _entered = context.enter().unwrap();
        // SAFETY: the stream is alive and the pointers are to locals.
        unsafe {
            assert_eq!((table.cuStreamBeginCapture_v2)(stream.raw(), mode), CUresult::CUDA_SUCCESS);
            work();
            let ended = (table.cuStreamEndCapture)(stream.raw(), &raw mut graph);
            assert_eq!(ended, CUresult::CUDA_SUCCESS);
            let made = (table.cuGraphInstantiateWithFlags)(&raw mut exec, graph, 0);
            assert_eq!(made, CUresult::CUDA_SUCCESS);
        }
        Self { context: context.clone(), graph, exec }
    }

    fn launch(&self, stream: &Stream) {
        let _entered = self.context.enter().unwrap();
        // SAFETY: both handles are alive.
        let launched = unsafe { (self.context.driver().table().cuGraphLaunch)(self.exec, stream.raw()) };
        assert_eq!(launched, CUresult::CUDA_SUCCESS);
    }

    fn destroy(self) {
        let table = self.context.driver().table();
        let _entered = self.context.enter().unwrap();
        // SAFETY: both are ours and destroyed once.
        unsafe {
            assert_eq!((table.cuGraphDestroy)(self.graph), CUresult::CUDA_SUCCESS);
            assert_eq!((table.cuGraphExecDestroy)(self.exec), CUresult::CUDA_SUCCESS);
        }
    }
}

#[test]
fn a_capture_of_somebody_else_holds_what_joined_and_wrapped_streams_retain_as_long_as_its_graph_lives() {
    let context = context(0);
    let pair = Pair::new(&context);
    let (by_joined, weak, address) = buffer(&context);
    let (by_wrapper, wrapped_weak, wrapped_address) = buffer(&context);
    // SAFETY: `pair.origin` outlives the wrapper.
    let wrapped = unsafe { Stream::from_raw(&context, pair.origin.raw()) };
    let foreign = Foreign::capture(&pair.origin, || {
        pair.fork().unwrap();
        pair.joined.fill(&by_joined.slice(..).unwrap(), 5).unwrap();
        wrapped.fill(&by_wrapper.slice(..).unwrap(), 6).unwrap();
        pair.join().unwrap();
    });
    drop((by_joined, by_wrapper));
    pair.settle();
    assert!(address.is_mapped() && wrapped_address.is_mapped());
    foreign.launch(&pair.origin);
    pair.settle();
    let mut bytes = [[0_u8; 1]; 2];
    weak.upgrade().unwrap().download(4095, &mut bytes[0], SOON).unwrap();
    wrapped_weak.upgrade().unwrap().download(4095, &mut bytes[1], SOON).unwrap();
    assert_eq!(bytes, [[5], [6]]);
    foreign.destroy();
    is_gone(&context, &weak, &address);
    is_gone(&context, &wrapped_weak, &wrapped_address);
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
        *lock(&self.ended) = Some(ended);
        self.told.notify_all();
    }

    fn wait(&self, enough: impl Fn(Option<bool>) -> bool, time: Duration) {
        let guard = lock(&self.ended);
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
