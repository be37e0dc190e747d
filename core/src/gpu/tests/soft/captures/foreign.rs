//! Captures that this library did not begin: their graphs hold what captured work uses as user objects.

use std::ptr;
use std::sync::Arc;

use cuda_driver_sys::{CUgraph, CUgraphExec, CUresult, CUstreamCaptureMode};

use super::super::{Calls, Gate, SOON, context, driver, eventually};
use super::{Pair, buffer, is_gone};
use crate::fault::{self, DriverFault, DriverFaults};
use crate::gpu::{CaptureMode, Context, Device, GpuBuffer, GraphExec, KeepAlive, Stream};

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

/// The driver refuses to take the first of two, which is leaked. The work that uses both is captured.
#[test]
fn what_follows_an_item_that_a_graph_could_not_be_given_is_held_by_it() {
    let calls = fault::Calls::Function("cuUserObjectCreate".into());
    let first = DriverFault::nth(calls, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let driver = driver().with_hooks(Arc::new(DriverFaults::new([first])));
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let stream = Stream::new(&context).unwrap();
    let buffer = Arc::new(GpuBuffer::new(&context, 64).unwrap());
    let items: [KeepAlive; 2] = [Arc::new(1_u8), Arc::new(2_u8)];
    let weak = items.each_ref().map(Arc::downgrade);
    let foreign = Foreign::capture(&stream, || {
        stream.retain_all(items).unwrap_err();
        stream.fill(&buffer.slice(..).unwrap(), 7).unwrap();
    });
    context.reap();
    assert_eq!(weak.each_ref().map(|item| item.strong_count()), [1, 1]);
    foreign.destroy();
    eventually("the release of what the graph held", || {
        context.reap();
        weak[1].upgrade().is_none()
    });
}

/// User objects cost every launch of a graph 3 us of the GPU's time, so only graphs that nobody else can hold anything for have
/// some.
#[test]
fn only_graphs_of_others_have_user_objects() {
    let calls = Arc::new(Calls::default());
    let driver = driver().with_hooks(calls.clone());
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let pair = Pair::new(&context);
    let (buffer, weak, address) = buffer(&context);
    let fill = || {
        pair.fork()?;
        pair.joined.fill(&buffer.slice(..)?, 7)?;
        pair.join()
    };
    GraphExec::capture(&pair.origin, CaptureMode::ThreadLocal, |_| fill()).unwrap();
    assert_eq!(calls.of("cuGraphRetainUserObject"), 0);
    let foreign = Foreign::capture(&pair.origin, || fill().unwrap());
    assert!(calls.of("cuGraphRetainUserObject") > 0);
    foreign.destroy();
    drop(buffer);
    is_gone(&context, &weak, &address);
}
