//! Order, lifetime, waiting and capture.

use std::sync::Arc;
use std::time::Duration;

use cuda_driver_sys::CUresult;

use super::{Address, Gate, SOON, STALL, context, driver, eventually};
use crate::ErrorKind;
use crate::fault::{Calls, DriverFault, DriverFaults};
use crate::gpu::{CaptureMode, Context, Device, Driver, Event, GpuBuffer, GraphExec, KeepAlive, Stream};
use crate::sync::{AtomicBool, Ordering};

#[test]
fn a_context_is_shared_and_entering_restores_the_callers() {
    let driver = driver();
    let [a, b] = [0, 1].map(|n| Context::new(&Device::new(&driver, n).unwrap()).unwrap());
    assert_eq!(a, Context::new(a.device()).unwrap());
    assert_ne!(a, b);
    let current = || {
        let mut current = std::ptr::null_mut();
        // SAFETY: `current` is a live output.
        unsafe { (driver.table().cuCtxGetCurrent)(&raw mut current) };
        current
    };
    assert!(current().is_null());
    {
        let _a = a.enter().unwrap();
        assert_eq!(current(), a.raw());
        let buffer = GpuBuffer::new(&b, 100).unwrap();
        assert_eq!(current(), a.raw());
        drop(buffer);
        assert_eq!(current(), a.raw());
    }
    assert!(current().is_null());
}

#[test]
fn a_device_that_does_not_exist_names_those_that_do() {
    let error = Device::new(&driver(), 99).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUsage);
    assert!(error.message().contains("the devices are 0 ("), "{error}");
}

#[test]
fn waiting_ends_at_the_deadline_and_leaves_the_work_running() {
    let stream = Stream::new(&context(2)).unwrap();
    let gate = Gate::close(&stream);
    let event = Event::new(stream.context()).unwrap();
    event.record(&stream).unwrap();
    for error in [
        stream.synchronize(Duration::from_millis(20)).unwrap_err(),
        event.synchronize(Duration::from_millis(20)).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Timeout);
    }
    gate.open();
    event.synchronize(SOON).unwrap();
    stream.synchronize(SOON).unwrap();
}

#[test]
fn a_stream_waits_for_the_event_of_another() {
    let context = context(2);
    let (first, second) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
    let buffer = Arc::new(GpuBuffer::new(&context, 4).unwrap());
    let gate = Gate::close(&first);
    first.fill_u32(&buffer.slice(..).unwrap(), 7).unwrap();
    let event = Event::new(&context).unwrap();
    event.record(&first).unwrap();
    second.wait_event(&event).unwrap();
    second.write_value32(&buffer.slice(..).unwrap(), 8).unwrap();
    assert!(!second.is_idle().unwrap());
    gate.open();
    second.synchronize(SOON).unwrap();
    let mut word = [0_u32];
    buffer.download(0, &mut word, SOON).unwrap();
    assert_eq!(word, [8]);
}

/// Work that always gave up its wait.
#[derive(Debug)]
struct GaveUp;

impl crate::outcome::Outcome for GaveUp {
    fn outcome(&self, op: &'static str) -> crate::Result<()> {
        Err(crate::Error::usage(op, "given up"))
    }
}

#[test]
fn a_wait_for_a_stream_asks_about_the_work_of_another_that_it_waited_for() {
    let context = context(0);
    let (first, second) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
    first.depend_on(&(Arc::new(GaveUp) as Arc<dyn crate::outcome::Outcome>));
    let event = Event::new(&context).unwrap();
    event.record(&first).unwrap();
    second.wait_event(&event).unwrap();
    assert_eq!(second.synchronize(SOON).unwrap_err().message(), "given up");
}

#[test]
fn what_unfinished_work_uses_is_kept_until_it_is_done() {
    let context = context(3);
    let stream = Stream::new(&context).unwrap();
    let gate = Gate::close(&stream);
    let buffer = Arc::new(GpuBuffer::new(&context, 64).unwrap());
    let weak = Arc::downgrade(&buffer);
    let address = Address::of(&buffer);
    stream.fill(&buffer.slice(..).unwrap(), 1).unwrap();
    drop(buffer);
    assert!(weak.upgrade().is_some(), "the stream keeps it");
    drop(stream);
    assert!(weak.upgrade().is_some(), "the reaper keeps it");
    assert_eq!(context.unreaped(), 1);
    context.reap();
    assert!(address.is_mapped());
    gate.open();
    eventually("the work's end", || {
        context.reap();
        context.unreaped() == 0
    });
    assert!(weak.upgrade().is_none());
    assert!(!address.is_mapped());
}

#[test]
fn memory_is_not_unmapped_while_any_stream_works() {
    let context = context(4);
    let stream = Stream::new(&context).unwrap();
    let gate = Gate::close(&stream);
    // Not retained by the stream: as memory that a kernel was given by address.
    let buffer = GpuBuffer::new(&context, 64).unwrap();
    let address = Address::of(&buffer);
    drop(buffer);
    assert_eq!(context.unreaped(), 1);
    assert!(address.is_mapped());
    gate.open();
    stream.synchronize(SOON).unwrap();
    assert_eq!(context.unreaped(), 0, "synchronize cleans up");
    assert!(!address.is_mapped());
}

#[test]
fn memory_is_not_unmapped_while_a_dropped_stream_works() {
    let context = context(3);
    let stream = Stream::new(&context).unwrap();
    let gate = Gate::close(&stream);
    // Not retained by the stream: as memory that a kernel was given by address.
    let buffer = GpuBuffer::new(&context, 64).unwrap();
    let address = Address::of(&buffer);
    drop(stream);
    assert_eq!(context.unreaped(), 1);
    // The driver would wait for the work.
    let dropping = std::thread::spawn(move || drop(buffer));
    let start = std::time::Instant::now();
    while !dropping.is_finished() && start.elapsed() < STALL {
        std::thread::yield_now();
    }
    let waited = !dropping.is_finished();
    let (unreaped, mapped) = (context.unreaped(), address.is_mapped());
    gate.open();
    dropping.join().unwrap();
    assert!(!waited && mapped && unreaped == 2, "{unreaped} wait to be freed");
    eventually("the work's end", || {
        context.reap();
        context.unreaped() == 0
    });
    assert!(!address.is_mapped());
}

#[test]
fn unfinished_work_is_found_again_by_the_next_context() {
    let driver = driver();
    let device = Device::new(&driver, 5).unwrap();
    let context = Context::new(&device).unwrap();
    let stream = Stream::new(&context).unwrap();
    let gate = Gate::close(&stream);
    drop((stream, context));
    let again = Context::new(&device).unwrap();
    assert_eq!(again.unreaped(), 1);
    gate.open();
    eventually("the work's end", || {
        again.reap();
        again.unreaped() == 0
    });
}

#[test]
fn making_something_new_drops_what_idle_streams_retain() {
    let context = context(0);
    let stream = Stream::new(&context).unwrap();
    let probe: KeepAlive = Arc::new(());
    for _ in 0..3 {
        stream.retain(probe.clone()).unwrap();
    }
    assert_eq!(Arc::strong_count(&probe), 2, "once is enough");
    drop(GpuBuffer::new(&context, 1).unwrap());
    assert_eq!(Arc::strong_count(&probe), 1);
}

#[test]
fn the_retire_list_does_not_grow_without_bound() {
    let stream = Stream::new(&context(0)).unwrap();
    let probe = Arc::new(());
    let buffer = Arc::new(GpuBuffer::new(stream.context(), 64).unwrap());
    for _ in 0..1000 {
        stream.fill(&buffer.slice(..).unwrap(), 1).unwrap();
        // A different thing each time.
        stream.retain(Arc::new(probe.clone())).unwrap();
        eventually("a fill", || stream.is_idle().unwrap());
    }
    assert!(Arc::strong_count(&probe) < 100, "{} are kept", Arc::strong_count(&probe));
    stream.synchronize(SOON).unwrap();
    assert_eq!(Arc::strong_count(&probe), 1);
}

/// A driver whose `cuEventRecord` always fails.
fn without_events() -> Driver {
    let record = Calls::Function("cuEventRecord".into());
    let fault = DriverFault::nth(record, 1, CUresult::CUDA_ERROR_UNKNOWN).and_after();
    driver().with_hooks(Arc::new(DriverFaults::new([fault])))
}

#[test]
fn what_work_uses_is_kept_though_no_event_can_be_recorded_behind_it() {
    let context = Context::new(&Device::new(&without_events(), 2).unwrap()).unwrap();
    let stream = Stream::new(&context).unwrap();
    let gate = Gate::close(&stream);
    let probe = Arc::new(());
    // More than what one event covers.
    let refused = (0..100).filter(|_| stream.retain(Arc::new(probe.clone())).is_err()).count();
    assert!(refused > 0, "the driver's error is told");
    assert_eq!(Arc::strong_count(&probe) - 1, 100, "the work is not done");
    gate.open();
    stream.synchronize(SOON).unwrap();
    assert_eq!(Arc::strong_count(&probe), 1, "and then it is");
}

#[test]
fn what_work_of_a_wrapped_stream_uses_is_never_freed_if_no_event_can_be_recorded_behind_it() {
    let context = Context::new(&Device::new(&without_events(), 2).unwrap()).unwrap();
    let owner = Stream::new(&context).unwrap();
    // SAFETY: `owner` outlives the wrapper.
    let wrapped = unsafe { Stream::from_raw(&context, owner.raw()) };
    let gate = Gate::close(&owner);
    let probe = Arc::new(());
    wrapped.retain(Arc::new(probe.clone())).unwrap();
    drop(wrapped);
    assert_eq!(Arc::strong_count(&probe), 2, "the work is not done");
    gate.open();
    owner.synchronize(SOON).unwrap();
    context.reap();
    assert_eq!(Arc::strong_count(&probe), 2, "nothing says when the work was done");
}

#[test]
fn an_event_that_was_not_recorded_is_an_error() {
    let context = Context::new(&Device::new(&without_events(), 0).unwrap()).unwrap();
    let (stream, event) = (Stream::new(&context).unwrap(), Event::new(&context).unwrap());
    let error = event.record(&stream).unwrap_err();
    assert_eq!(error.code(), CUresult::CUDA_ERROR_UNKNOWN.0.cast_signed(), "{error}");
    assert!(error.to_string().contains("cuEventRecord"), "{error}");
}

#[test]
fn a_wrapped_stream_is_left_to_its_owner() {
    let context = context(6);
    let owner = Stream::new(&context).unwrap();
    // SAFETY: `owner` outlives the wrapper.
    let wrapped = unsafe { Stream::from_raw(&context, owner.raw()) };
    let buffer = Arc::new(GpuBuffer::new(&context, 64).unwrap());
    let weak = Arc::downgrade(&buffer);
    let gate = Gate::close(&owner);
    wrapped.fill(&buffer.slice(..).unwrap(), 3).unwrap();
    drop((buffer, wrapped));
    assert!(weak.upgrade().is_some());
    gate.open();
    owner.synchronize(SOON).unwrap();
    eventually("the work's end", || {
        context.reap();
        weak.upgrade().is_none()
    });
    assert!(owner.is_idle().unwrap(), "the stream itself still exists");
}

#[test]
fn a_graph_owns_what_it_captured_and_replays_it() {
    let context = context(0);
    let stream = Stream::new(&context).unwrap();
    let [src, dst] = [0, 1].map(|_| Arc::new(GpuBuffer::new(&context, 4096).unwrap()));
    let graph = GraphExec::capture(&stream, CaptureMode::ThreadLocal, |stream| {
        stream.copy(&dst.slice(..).unwrap(), &src.slice(..).unwrap())?;
        let error = stream.synchronize(SOON).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage);
        Ok(())
    })
    .unwrap();
    assert_eq!(graph.nodes(), 1);
    let mut seen = vec![0_u32; 1024];
    for round in 1..4_u32 {
        src.upload(0, &vec![round; 1024], SOON).unwrap();
        dst.download(0, &mut seen, SOON).unwrap();
        assert_eq!(seen, vec![round - 1; 1024], "nothing runs before the launch");
        graph.launch(&stream).unwrap();
        stream.synchronize(SOON).unwrap();
        dst.download(0, &mut seen, SOON).unwrap();
        assert_eq!(seen, vec![round; 1024]);
    }
    let weak = Arc::downgrade(&src);
    drop(src);
    assert!(weak.upgrade().is_some());
    drop(graph);
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_failed_capture_leaves_the_stream_usable() {
    let stream = Stream::new(&context(0)).unwrap();
    let error = GraphExec::capture(&stream, CaptureMode::Relaxed, |_| Err(crate::Error::usage("test", "no")));
    assert_eq!(error.unwrap_err().op(), "test");
    assert!(!stream.is_capturing().unwrap());
    stream.synchronize(SOON).unwrap();
}

#[test]
fn elapsed_time_needs_timed_events() {
    let stream = Stream::new(&context(0)).unwrap();
    let [start, end] = [0, 1].map(|_| Event::timed(stream.context()).unwrap());
    start.record(&stream).unwrap();
    end.record(&stream).unwrap();
    end.synchronize(SOON).unwrap();
    assert!(end.elapsed_ms(&start).unwrap() >= 0.0);
    let plain = Event::new(stream.context()).unwrap();
    assert_eq!(end.elapsed_ms(&plain).unwrap_err().kind(), ErrorKind::InvalidUsage);
}

#[test]
fn a_query_that_fails_is_no_answer_and_an_attribute_that_is_not_known_is_no() {
    let ask = |result| {
        let first = DriverFault::nth(Calls::Function("cuDeviceGetAttribute".into()), 1, result);
        let driver = driver().with_hooks(Arc::new(DriverFaults::new([first])));
        Device::new(&driver, 0).unwrap().can_launch_cooperatively()
    };
    assert!(!ask(CUresult::CUDA_ERROR_INVALID_VALUE).unwrap());
    let error = ask(CUresult::CUDA_ERROR_ECC_UNCORRECTABLE).unwrap_err();
    assert!(error.to_string().contains("cuDeviceGetAttribute"), "{error}");
}

/// A service that its last owner ends. Kernels that have asked it before have not given up.
#[derive(Debug)]
struct Service(Arc<AtomicBool>);

struct LastOwner(Arc<AtomicBool>);

impl crate::outcome::Outcome for Service {
    fn outcome(&self, op: &'static str) -> crate::Result<()> {
        if self.0.load(Ordering::Acquire) {
            Err(crate::Error::usage(op, "the service has ended"))
        } else {
            Ok(())
        }
    }
}

impl Drop for LastOwner {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn what_work_relied_on_is_asked_before_it_is_dropped() {
    let context = context(0);
    let stream = Stream::new(&context).unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let gate = Gate::close(&stream);
    stream.retain(Arc::new(LastOwner(ended.clone()))).unwrap();
    stream.depend_on(&(Arc::new(Service(ended.clone())) as Arc<dyn crate::outcome::Outcome>));
    gate.open();
    stream.synchronize(SOON).unwrap();
    assert!(ended.load(Ordering::Acquire), "and then it is dropped");
}
