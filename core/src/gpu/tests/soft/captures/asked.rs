//! Streams that one thread begins to capture while another asks whether they are idle: to ask would invalidate the capture.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use cuda_driver_sys::CUresult;

use super::super::{SOON, driver};
use crate::gpu::{CaptureMode, Context, Device, GpuBuffer, GraphExec, Hooks, PinnedBuffer, Stream};

/// Stops a thread that has just heard that a stream is not captured until another one has begun to capture it. If that has to wait
/// for this one, as it should, a bounded time passes instead.
struct Asks {
    asking: ThreadId,
    begins: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Hooks for Asks {
    fn after(&self, function: &'static str, _: CUresult) {
        if function == "cuStreamIsCapturing"
            && thread::current().id() == self.asking
            && let Some((go, begun)) = self.begins.lock().unwrap().take()
        {
            go.send(()).unwrap();
            let _ = begun.recv_timeout(Duration::from_millis(300));
        }
    }
}

#[test]
fn a_capture_that_begins_is_not_invalidated_by_others_that_clean_up() {
    for drops in [true, false] {
        let asks = Arc::new(Asks { asking: thread::current().id(), begins: Mutex::default() });
        let watched = driver().with_hooks(asks.clone());
        let context = Context::new(&Device::new(&watched, 6).unwrap()).unwrap();
        let stream = Stream::new(&context).unwrap();
        let buffer = Arc::new(GpuBuffer::new(&context, 64).unwrap());
        let memory = PinnedBuffer::new(&context, 64).unwrap();
        stream.retain(Arc::new(())).unwrap();
        let (go, went) = channel();
        let (begin, begun) = channel();
        thread::scope(|scope| {
            let (stream, buffer) = (&stream, &buffer);
            scope.spawn(move || {
                went.recv().unwrap();
                let graph = GraphExec::capture(stream, CaptureMode::ThreadLocal, |stream| {
                    let _ = begin.send(());
                    stream.fill(&buffer.slice(..)?, 1)
                });
                graph.unwrap().launch(stream).unwrap();
            });
            *asks.begins.lock().unwrap() = Some((go, begun));
            if drops { drop(memory) } else { context.reap() }
        });
        assert!(asks.begins.lock().unwrap().is_none(), "nobody asked about the stream");
        stream.synchronize(SOON).unwrap();
        context.settle();
    }
}
