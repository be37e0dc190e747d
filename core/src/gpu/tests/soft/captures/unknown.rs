//! The driver cannot say whether a stream is being captured.

use std::sync::Arc;

use cuda_driver_sys::CUresult;

use super::super::{SOON, driver};
use crate::fault::{self, DriverFault, DriverFaults};
use crate::gpu::{CaptureMode, Context, Device, Event, GpuBuffer, GraphExec, KeepAlive, Stream};

#[test]
fn when_nobody_can_say_whether_work_would_be_captured_it_is_not_enqueued_and_nothing_leaks() {
    let ask = fault::Calls::Function("cuStreamGetCaptureInfo_v2".into());
    let fault = DriverFault::nth(ask, 1, CUresult::CUDA_ERROR_UNKNOWN);
    let faults = Arc::new(DriverFaults::new([fault]));
    let context = Context::new(&Device::new(&driver().with_hooks(faults.clone()), 0).unwrap()).unwrap();
    let (stream, buffer) = (Stream::new(&context).unwrap(), Arc::new(GpuBuffer::new(&context, 64).unwrap()));
    let slice = buffer.slice(..).unwrap();
    let _whoever_has_the_handle_may_capture = stream.raw();
    let before = faults.calls().get("cuMemsetD8Async").copied();
    stream.fill(&slice, 7).unwrap_err();
    assert_eq!(faults.calls().get("cuMemsetD8Async").copied(), before);
    let weak = Arc::downgrade(&buffer);
    drop((slice, buffer));
    assert!(weak.upgrade().is_none());
}

#[test]
fn when_nobody_can_say_whether_work_is_captured_what_it_uses_is_never_freed() {
    for (code, told) in [(CUresult::CUDA_ERROR_UNKNOWN, true), (CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, false)]
    {
        let ask = fault::Calls::Function("cuStreamGetCaptureInfo_v2".into());
        let driver = driver().with_hooks(Arc::new(DriverFaults::new([DriverFault::nth(ask, 1, code)])));
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let stream = Stream::new(&context).unwrap();
        let _whoever_has_the_handle_may_capture = stream.raw();
        let probe: KeepAlive = Arc::new(());
        // After a failure of earlier work the stream itself reports it, to those who wait for that work.
        assert_eq!(stream.retain(probe.clone()).is_err(), told);
        assert_eq!(Arc::strong_count(&probe), 2);
        stream.synchronize(SOON).unwrap();
        assert_eq!(Arc::strong_count(&probe), if told { 2 } else { 1 });
    }
}

/// The graph is going to use it, and cannot be made to hold it.
#[test]
fn what_captured_work_uses_is_never_freed_when_nobody_can_say_which_graph_that_is() {
    let mut refused = 0;
    // The first question is that of the capture itself.
    for nth in 2..5 {
        let ask = fault::Calls::Function("cuStreamGetCaptureInfo_v2".into());
        let fault = DriverFault::nth(ask, nth, CUresult::CUDA_ERROR_UNKNOWN);
        let driver = driver().with_hooks(Arc::new(DriverFaults::new([fault])));
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let (stream, probe): (_, KeepAlive) = (Stream::new(&context).unwrap(), Arc::new(()));
        let graph = GraphExec::capture(&stream, CaptureMode::default(), |stream| {
            let retained = stream.retain(probe.clone());
            refused += usize::from(retained.is_err());
            assert_eq!(Arc::strong_count(&probe), 2, "question {nth}: {retained:?}");
            Ok(())
        });
        drop(graph);
    }
    assert_eq!(refused, 2, "whether work is captured, and by which graph");
}

#[test]
fn a_capture_that_cannot_be_identified_fails_and_is_ended() {
    let ask = fault::Calls::Function("cuStreamGetCaptureInfo_v2".into());
    let faults = Arc::new(DriverFaults::new([DriverFault::nth(ask, 1, CUresult::CUDA_ERROR_UNKNOWN)]));
    let context = Context::new(&Device::new(&driver().with_hooks(faults.clone()), 0).unwrap()).unwrap();
    let (stream, buffer) = (Stream::new(&context).unwrap(), Arc::new(GpuBuffer::new(&context, 64).unwrap()));
    let slice = buffer.slice(..).unwrap();
    let capture = || GraphExec::capture(&stream, CaptureMode::default(), |stream| stream.fill(&slice, 7));
    let error = capture().unwrap_err();
    assert!(error.to_string().contains("cuStreamGetCaptureInfo_v2"), "{error}");
    // Work enqueued now runs, and the next capture succeeds.
    stream.fill(&slice, 3).unwrap();
    stream.synchronize(SOON).unwrap();
    let mut bytes = [0_u8; 64];
    buffer.download(0, &mut bytes, SOON).unwrap();
    assert_eq!(bytes, [3; 64]);
    capture().unwrap().launch(&stream).unwrap();
    stream.synchronize(SOON).unwrap();
    buffer.download(0, &mut bytes, SOON).unwrap();
    assert_eq!(bytes, [7; 64]);
    let calls = faults.calls();
    assert_eq!(calls["cuStreamBeginCapture_v2"], calls["cuStreamEndCapture"]);
}

#[test]
fn the_driver_is_asked_about_captures_only_once_there_may_be_one() {
    type Change = fn(&Stream, &Stream);
    let changes: [(&str, Change); 3] = [
        ("its handle is given out", |stream, _| _ = stream.raw()),
        ("it is captured", |stream, _| {
            drop(GraphExec::capture(stream, CaptureMode::default(), |_| Ok(())).unwrap());
        }),
        ("it waits for an event", |stream, other| {
            let event = Event::new(other.context()).unwrap();
            event.record(other).unwrap();
            stream.wait_event(&event).unwrap();
        }),
    ];
    for (what, change) in changes {
        let counts = Arc::new(DriverFaults::new([]));
        let context = Context::new(&Device::new(&driver().with_hooks(counts.clone()), 0).unwrap()).unwrap();
        let buffer = Arc::new(GpuBuffer::new(&context, 64).unwrap());
        let slice = buffer.slice(..).unwrap();
        let [stream, other] = [(); 2].map(|()| Stream::new(&context).unwrap());
        let asked = || counts.calls().get("cuStreamGetCaptureInfo_v2").copied().unwrap_or(0);
        stream.fill(&slice, 1).unwrap();
        assert!(!stream.is_capturing().unwrap());
        assert_eq!(asked(), 0);
        change(&stream, &other);
        let before = asked();
        stream.fill(&slice, 2).unwrap();
        assert_eq!(asked(), before + 1, "{what}");
        // SAFETY: the stream outlives the wrapper.
        let wrapped = unsafe { Stream::from_raw(&context, other.raw()) };
        wrapped.fill(&slice, 3).unwrap();
        assert_eq!(asked(), before + 2, "a wrapped stream may be captured by its owner");
        for stream in [&stream, &other] {
            stream.synchronize(SOON).unwrap();
        }
    }
}
