//! What may still run in a context: streams in use, and streams that were dropped before their work was done.

use std::ptr;
use std::sync::{Arc, Weak};

use cuda_driver_sys::{CUevent, CUstream};

use super::context::Context;
use super::driver::{Driver, call};
use super::keep::KeepAlive;
use super::query::{is_idle, is_reached};
use crate::error::Result;
use crate::sync::{Mutex, lock};

/// Of one context. One lock for both lists, so that a stream that may have work is always seen in one of them. Only queries are
/// made under it; nothing is dropped.
#[derive(Default)]
struct Unfinished(Mutex<Streams>);

#[derive(Default)]
struct Streams {
    watched: Vec<Watched>,
    retired: Vec<Retired>,
}

/// The owner of a stream.
pub(super) trait Sweep: Send + Sync {
    /// Drops what the stream retains, if it is idle. The context is current.
    fn sweep(&self);
}

/// A stream in use.
struct Watched {
    raw: CUstream,
    stream: Weak<dyn Sweep>,
}

// SAFETY: `raw` is an opaque handle that the driver accepts on any thread; the rest is Send.
unsafe impl Send for Watched {}

/// A dropped stream whose work was not done, and what that work uses.
struct Retired {
    last: Arc<LastWork>,
    #[expect(dead_code, reason = "held, not read: until the work is done")]
    kept: Vec<KeepAlive>,
}

/// The end of a dropped stream: its handle, or that of an event behind its work. Destroyed when the last one that asks for it has
/// gone, which is after the work, unless the context is lost.
pub(super) struct LastWork {
    context: Context,
    stream: CUstream,
    /// Queried instead of a stream that is not ours, which its owner may destroy.
    event: Option<CUevent>,
}

// SAFETY: stream and event are opaque handles that the driver accepts on any thread; the rest is Send.
unsafe impl Send for LastWork {}
// SAFETY: as above, and nothing in it changes.
unsafe impl Sync for LastWork {}

impl Context {
    /// Counts the work of `stream` when judging whether the context is quiet.
    pub(super) fn watch(&self, raw: CUstream, stream: Weak<dyn Sweep>) {
        lock(&self.slot::<Unfinished>().0).watched.push(Watched { raw, stream });
    }

    /// Ends [`Context::watch`]. If the same stream still has work, `retired` is its end and what the work uses: both are cleaned up
    /// later.
    pub(super) fn unwatch(&self, stream: &dyn Sweep, retired: Option<(LastWork, Vec<KeepAlive>)>) {
        let mut streams = lock(&self.slot::<Unfinished>().0);
        let known = |watched: &Watched| ptr::addr_eq(watched.stream.as_ptr(), stream);
        if let Some(at) = streams.watched.iter().position(known) {
            streams.watched.swap_remove(at);
        }
        #[cfg(all(test, not(loom)))]
        tests::unwatched();
        if let Some((last, kept)) = retired {
            self.begin_waiting();
            streams.retired.push(Retired { last: Arc::new(last), kept });
        }
    }

    /// Queues a stream that was never watched for cleanup.
    pub(super) fn retire(&self, last: LastWork, kept: Vec<KeepAlive>) {
        self.begin_waiting();
        lock(&self.slot::<Unfinished>().0).retired.push(Retired { last: Arc::new(last), kept });
    }

    /// Drops what streams in use retain for work that is done. The context is current.
    pub(super) fn sweep_streams(&self) {
        let streams: Vec<_> = {
            let streams = lock(&self.slot::<Unfinished>().0);
            streams.watched.iter().filter_map(|watched| watched.stream.upgrade()).collect()
        };
        // Sweeping and dropping may take the lock, so they happen outside it.
        streams.iter().for_each(|stream| stream.sweep());
    }

    /// Destroys the dropped streams whose work is done by now, and drops what it used.
    pub(super) fn release_retired(&self) {
        let Ok(_entered) = self.enter() else { return };
        let done = lock(&self.slot::<Unfinished>().0).take_done(self);
        // Dropping what was kept may free memory, which takes the lock.
        for retired in done {
            drop(retired);
            self.end_waiting(1);
        }
    }

    /// Whether nothing this library knows of runs in the context. Call it as one that frees: see [`Gate`](super::gate::Gate).
    pub(super) fn is_quiet(&self) -> bool {
        let Ok(_entered) = self.enter() else { return false };
        self.is_lost() || lock(&self.slot::<Unfinished>().0).are_idle(self.driver())
    }

    /// The dropped streams of these `handles` whose work was not done at the last look; `None` while another thread is dropping one of them, of
    /// which nobody can say that yet.
    pub(super) fn retired(&self, handles: &[usize]) -> Option<Vec<Arc<LastWork>>> {
        let streams = lock(&self.slot::<Unfinished>().0);
        let is_asked = |raw: CUstream| handles.contains(&raw.addr());
        if streams.watched.iter().any(|watched| is_asked(watched.raw) && watched.stream.strong_count() == 0) {
            return None;
        }
        let asked = streams.retired.iter().filter(|retired| is_asked(retired.last.stream()));
        Some(asked.map(|retired| retired.last.clone()).collect())
    }
}

impl Streams {
    /// The context is current.
    fn are_idle(&self, driver: &Driver) -> bool {
        self.retired.iter().all(|retired| retired.last.is_done(driver).unwrap_or(false))
            && self.watched.iter().all(|watched| is_idle(driver, watched.raw).unwrap_or(false))
    }

    fn take_done(&mut self, context: &Context) -> Vec<Retired> {
        let mut done = Vec::new();
        let mut at = 0;
        while let Some(retired) = self.retired.get(at) {
            match retired.last.is_done(context.driver()) {
                Ok(false) => at += 1,
                Ok(true) => done.push(self.retired.swap_remove(at)),
                Err(error) => {
                    log::error!("leaking what unfinished work used: {}", context.note(error));
                    std::mem::forget(self.retired.swap_remove(at));
                    context.end_waiting(1);
                }
            }
        }
        done
    }
}

impl LastWork {
    /// Of a stream of the library's own.
    pub(super) fn of_stream(context: &Context, stream: CUstream) -> Self {
        Self { context: context.clone(), stream, event: None }
    }

    /// Of a stream of somebody else's; `event` is ours, and was recorded on it.
    pub(super) fn of_event(context: &Context, stream: CUstream, event: CUevent) -> Self {
        Self { context: context.clone(), stream, event: Some(event) }
    }

    /// The handle, which says nothing about the stream if it was not ours.
    pub(super) fn stream(&self) -> CUstream {
        self.stream
    }

    pub(super) fn event(&self) -> Option<CUevent> {
        self.event
    }

    fn is_done(&self, driver: &Driver) -> Result<bool> {
        match self.event {
            None => is_idle(driver, self.stream),
            Some(event) => is_reached(driver, event),
        }
    }
}

impl Drop for LastWork {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        let driver = self.context.driver();
        driver.note_drop(match self.event {
            // SAFETY: made when the stream was dropped, destroyed here once.
            Some(event) => unsafe { call!(driver, cuEventDestroy_v2(event)) },
            // SAFETY: the stream's owner is gone and gave it to us; destroyed here once.
            None => unsafe { call!(driver, cuStreamDestroy_v2(self.stream)) },
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::RefCell;
    use std::sync::mpsc;

    use super::*;
    use crate::gpu::{Device, PinnedBuffer, Stream};
    use crate::sync::Ordering;

    thread_local! {
        static UNWATCHED: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    }

    /// Runs the test's closure when a stream has left the list of streams in use, before it can be in the other one.
    pub(super) fn unwatched() {
        if let Some(then) = UNWATCHED.take() {
            then();
        }
    }

    /// Otherwise memory that its work uses could be freed.
    #[test]
    fn no_look_finds_a_stream_with_work_in_neither_list() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let (word, stream) =
            (Arc::new(PinnedBuffer::new(&context, 8).unwrap()), Stream::new(&context).unwrap());
        stream.wait_value64(&word.slice(..).unwrap(), 1).unwrap();
        let ((tell, told), looks) = (mpsc::channel(), context.clone());
        UNWATCHED.set(Some(Box::new(move || {
            // A thread that does not get the lock looks later.
            let streams = looks.slot::<Unfinished>().0.try_lock();
            let _ = tell.send(streams.is_ok_and(|streams| streams.are_idle(looks.driver())));
        })));
        drop(stream);
        word.memory().word64(0).unwrap().store(1, Ordering::Release);
        context.settle();
        assert_eq!(told.try_recv(), Ok(false), "the context seems quiet while the stream works");
    }
}
