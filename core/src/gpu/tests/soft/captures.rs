//! Graphs hold everything that captured work uses, on whichever stream it was enqueued and whoever began the capture.

use std::any::Any;
use std::collections::HashMap;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

use cuda_driver_sys::{CUgraph, CUgraphExec, CUresult, CUstreamCaptureMode};

use super::{Address, Gate, SOON, context, driver, eventually};
use crate::gpu::{CaptureMode, Context, Device, Event, GpuBuffer, GraphExec, Hooks, KeepAlive, Stream};

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
    let context = context(4);
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
fn a_wrapper_that_is_dropped_under_its_owners_capture_leaves_it_alone() {
    let context = context(6);
    let owner = Stream::new(&context).unwrap();
    let (buffer, weak, address) = buffer(&context);
    let early: KeepAlive = Arc::new(());
    let wrap = || {
        // SAFETY: `owner` outlives every wrapper.
        unsafe { Stream::from_raw(&context, owner.raw()) }
    };
    let first = wrap();
    let gate = Gate::close(&owner);
    first.retain(early.clone()).unwrap();
    let foreign = Foreign::capture(&owner, || {
        let second = wrap();
        second.fill(&buffer.slice(..).unwrap(), 4).unwrap();
        drop((first, second));
        context.reap();
    });
    drop(buffer);
    assert_eq!(Arc::strong_count(&early), 2, "work before the capture may still use it");
    gate.open();
    owner.synchronize(SOON).unwrap();
    context.reap();
    assert!(address.is_mapped());
    foreign.destroy();
    is_gone(&context, &weak, &address);
    assert_eq!(context.unreaped(), 0);
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
    let error = crate::Error::new(crate::ErrorKind::Cuda, "test", "lost").with_code(sticky);
    drop(context.note(error));
    assert!(context.is_lost());
    drop(graph);
    context.reap();
    assert_eq!(Arc::strong_count(&probe), 1);
}

/// Counts calls by name.
#[derive(Default)]
struct Calls(Mutex<HashMap<&'static str, usize>>);

impl Hooks for Calls {
    fn after(&self, function: &'static str, result: CUresult) {
        if result == CUresult::CUDA_SUCCESS {
            *self.0.lock().unwrap().entry(function).or_default() += 1;
        }
    }
}

#[test]
fn in_whatever_order_everything_is_dropped_nothing_is_freed_early_and_nothing_is_left() {
    let pairs = [
        ("cuStreamCreate", "cuStreamDestroy_v2"),
        ("cuEventCreate", "cuEventDestroy_v2"),
        ("cuMemCreate", "cuMemRelease"),
        ("cuMemMap", "cuMemUnmap"),
        ("cuMemHostAlloc", "cuMemFreeHost"),
        ("cuGraphInstantiateWithFlags", "cuGraphExecDestroy"),
        ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"),
    ];
    for seed in 0..40_u64 {
        let calls = Arc::new(Calls::default());
        let driver = driver().with_hooks(calls.clone());
        let device = Device::new(&driver, 2).unwrap();
        let observer = Context::new(&device).unwrap();
        let pair = Pair::new(&observer);
        let (buffer, weak, address) = buffer(&observer);
        let gate = Gate::close(&pair.joined);
        pair.joined.fill(&buffer.slice(..).unwrap(), 1).unwrap();
        let graph = GraphExec::capture(&pair.origin, CaptureMode::ThreadLocal, |origin| {
            origin.fill(&buffer.slice(..)?, 2)
        })
        .unwrap();
        graph.launch(&pair.joined).unwrap();
        let Pair { origin, joined, fork, join } = pair;
        let slice = buffer.slice(7..).unwrap();
        let mut all: Vec<Box<dyn Any + Send>> = vec![
            Box::new(origin),
            Box::new(joined),
            Box::new(fork),
            Box::new(join),
            Box::new(graph),
            Box::new(buffer),
            Box::new(slice),
            Box::new(observer.clone()),
        ];
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(random >> 33).unwrap()
        };
        // Half of them on another thread.
        while !all.is_empty() {
            let one = all.swap_remove(next() % all.len());
            if next().is_multiple_of(2) {
                drop(one);
            } else {
                std::thread::spawn(move || drop(one)).join().unwrap();
            }
            observer.reap();
            assert!(
                weak.upgrade().is_some() && address.is_mapped(),
                "seed {seed}: work is waiting to use it"
            );
        }
        gate.open();
        is_gone(&observer, &weak, &address);
        drop((gate, address));
        eventually("the end of everything", || {
            observer.reap();
            observer.unreaped() == 0
        });
        drop(observer);
        let calls = calls.0.lock().unwrap();
        for (make, free) in pairs {
            assert_eq!(calls.get(make), calls.get(free), "seed {seed}: {make} and {free}");
        }
    }
}

#[test]
fn when_nobody_can_say_whether_work_would_be_captured_it_is_not_enqueued_and_nothing_leaks() {
    use crate::fault::{Calls, DriverFault, DriverFaults};

    let ask = Calls::Function("cuStreamGetCaptureInfo_v2".into());
    let fault = DriverFault::nth(ask, 1, CUresult::CUDA_ERROR_UNKNOWN);
    let faults = Arc::new(DriverFaults::new([fault]));
    let context = Context::new(&Device::new(&driver().with_hooks(faults.clone()), 0).unwrap()).unwrap();
    let (stream, buffer) = (Stream::new(&context).unwrap(), Arc::new(GpuBuffer::new(&context, 64).unwrap()));
    let slice = buffer.slice(..).unwrap();
    let before = faults.calls().get("cuMemsetD8Async").copied();
    stream.fill(&slice, 7).unwrap_err();
    assert_eq!(faults.calls().get("cuMemsetD8Async").copied(), before);
    let weak = Arc::downgrade(&buffer);
    drop((slice, buffer));
    assert!(weak.upgrade().is_none());
}

#[test]
fn when_nobody_can_say_whether_work_is_captured_what_it_uses_is_never_freed() {
    use crate::fault::{Calls, DriverFault, DriverFaults};

    for (code, told) in [(CUresult::CUDA_ERROR_UNKNOWN, true), (CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, false)]
    {
        let ask = Calls::Function("cuStreamGetCaptureInfo_v2".into());
        let driver = driver().with_hooks(Arc::new(DriverFaults::new([DriverFault::nth(ask, 1, code)])));
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let stream = Stream::new(&context).unwrap();
        let probe: KeepAlive = Arc::new(());
        // After a failure of earlier work the stream itself reports it, to those who wait for that work.
        assert_eq!(stream.retain(probe.clone()).is_err(), told);
        assert_eq!(Arc::strong_count(&probe), 2);
        stream.synchronize(SOON).unwrap();
        assert_eq!(Arc::strong_count(&probe), if told { 2 } else { 1 });
    }
}
