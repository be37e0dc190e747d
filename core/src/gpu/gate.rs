//! Keeps launches and freeing apart. Between the look that finds a context quiet and the call that frees, another thread
//! may launch a kernel; the driver then waits for it, and it may be waiting for the thread that frees. Nor may a capture of a stream
//! begin while a thread that frees asks about it: the question would invalidate the capture.

use std::sync::Arc;
use std::time::Duration;

use crate::deadline::{Backoff, Deadline};
use crate::sync::{AtomicUsize, Ordering, fence};

/// How long a launch lets memory be freed first. Freeing on a quiet device takes less. If the driver waits all the same,
/// for work that this library does not know, launching must go on: that work may be waiting for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Of one context. Threads that enqueue pass it together, and so do threads that free, which never wait; the two never mix.
#[derive(Debug, Default)]
pub(super) struct Gate {
    enqueuing: AtomicUsize,
    freeing: AtomicUsize,
}

/// A thread that enqueues.
#[derive(Debug)]
pub(super) struct Enqueuing<'a>(&'a Gate);

/// A thread that frees.
#[derive(Debug)]
pub(super) struct Freeing(Arc<Gate>);

impl Gate {
    /// Call it around each call that enqueues work.
    pub(super) fn enqueue(&self) -> Enqueuing<'_> {
        if let Some(enqueuing) = self.try_enqueue() {
            return enqueuing;
        }
        let (patience, mut backoff) = (Deadline::after(PATIENCE), Backoff::new());
        while !patience.expired() {
            backoff.pause(patience);
            if let Some(enqueuing) = self.try_enqueue() {
                return enqueuing;
            }
        }
        self.enqueuing.fetch_add(1, Ordering::SeqCst);
        Enqueuing(self)
    }

    /// None while another thread frees. Each side first says what it does and then looks at the other's word, with a
    /// sequentially consistent fence in between, so at least one of them sees the other.
    pub(super) fn try_enqueue(&self) -> Option<Enqueuing<'_>> {
        self.enqueuing.fetch_add(1, Ordering::SeqCst);
        let enqueuing = Enqueuing(self);
        fence(Ordering::SeqCst);
        (self.freeing.load(Ordering::SeqCst) == 0).then_some(enqueuing)
    }

    /// None while others enqueue.
    pub(super) fn try_free(self: &Arc<Self>) -> Option<Freeing> {
        self.freeing.fetch_add(1, Ordering::SeqCst);
        let freeing = Freeing(self.clone());
        fence(Ordering::SeqCst);
        (self.enqueuing.load(Ordering::SeqCst) == 0).then_some(freeing)
    }
}

impl Drop for Enqueuing<'_> {
    fn drop(&mut self) {
        self.0.enqueuing.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Freeing {
    fn drop(&mut self) {
        self.0.freeing.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::thread;

    use super::*;
    use crate::sync::AtomicBool;

    #[test]
    fn loom_nothing_is_enqueued_while_memory_is_freed() {
        loom::model(|| {
            let (gate, busy) = (Arc::new(Gate::default()), Arc::new(AtomicBool::default()));
            let other = (gate.clone(), busy.clone());
            let enqueues = thread::spawn(move || {
                let (gate, busy) = other;
                if let Some(_enqueuing) = gate.try_enqueue() {
                    busy.store(true, Ordering::Relaxed);
                }
            });
            if let Some(_freeing) = gate.try_free() {
                let quiet = !busy.load(Ordering::Relaxed);
                thread::yield_now();
                assert_eq!(
                    quiet,
                    !busy.load(Ordering::Relaxed),
                    "work came between the look and the freeing"
                );
            }
            enqueues.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::gpu::{Context, Device, Driver, GpuBuffer, Stream};

    #[test]
    fn several_free_or_several_enqueue() {
        let gate = Arc::new(Gate::default());
        let two = (gate.enqueue(), gate.enqueue());
        assert!(gate.try_free().is_none());
        drop(two);
        let first = gate.try_free().expect("nobody enqueues");
        let second = gate.try_free().expect("the driver does not wait for one that frees");
        drop(first);
        assert!(gate.try_enqueue().is_none(), "one still frees");
        drop(gate.enqueue());
        drop(second);
        assert!(gate.try_enqueue().is_some());
        assert!(gate.try_free().is_some());
    }

    /// Whoever has locks must not wait for a driver that frees.
    #[test]
    fn a_copy_that_may_not_wait_is_refused_while_memory_is_freed() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let (stream, buffer) =
            (Stream::new(&context).unwrap(), Arc::new(GpuBuffer::new(&context, 64).unwrap()));
        let at = buffer.slice(..).unwrap().ptr();
        // SAFETY: the buffer outlives the copies, which are waited for.
        let try_copy = || unsafe { stream.try_copy(at + 32, at, 32) }.unwrap();
        let freeing = context.slot::<Arc<Gate>>().try_free().unwrap();
        let start = std::time::Instant::now();
        assert!(!try_copy() && start.elapsed() < PATIENCE / 2);
        drop(freeing);
        assert!(try_copy());
        stream.synchronize(Deadline::after(Duration::from_secs(30))).unwrap();
    }

    /// It may be the user's code.
    #[test]
    fn what_follows_a_freeing_may_launch() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let gate = context.slot::<Arc<Gate>>().clone();
        let (tell, told) = std::sync::mpsc::channel();
        context.once_quiet(move || tell.send(gate.try_enqueue().is_some()).unwrap());
        assert_eq!(told.try_recv(), Ok(true), "a launch would wait for the thread that it runs on");
    }
}
