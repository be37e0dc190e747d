//! [`Proxy`]: a thread that serves a FIFO.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use aqueduct_ptx::abi::FifoHandle;

use super::affinity;
use super::config::{Idler, ProxyConfig};
use super::fifo::{Fifo, FifoConsumer};
use super::handler::{ProxyHandler, ProxyHandlerResult};
use super::words::Words;
use crate::comm::AbortReport;
use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::failure::Failure;
use crate::gpu::{Context, KeepAlive, Stream, ThreadCaptureMode};
use crate::outcome::Outcome;
use crate::service_thread;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, lock};

/// A FIFO and the thread that serves it.
///
/// The thread runs on the cores of the GPU's NUMA node, or on the core that the configuration names, and allocates the
/// FIFO there; the caller's own affinity does not change. [`stop`](Self::stop) ends it. Dropping the proxy ends it
/// too, within ten seconds, without waiting for it.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    fifo: Fifo,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Counts of a proxy's work so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyCounters {
    /// Triggers handled.
    pub triggers: u64,
    /// How often the FIFO went from empty to not empty. Triggers per burst tell how busy the proxy is.
    pub bursts: u64,
}

#[derive(Debug)]
struct Shared {
    state: AtomicU32,
    /// Until when a proxy that is being stopped handles what was pushed before.
    drain_until: Mutex<Option<Deadline>>,
    /// The proxy was dropped and had not stopped: no kernel could push any more.
    dropped: AtomicBool,
    failure: Failure,
    triggers: AtomicU64,
    bursts: AtomicU64,
    words: Arc<Words>,
}

const RUN: u32 = 0;
/// Handle what was pushed before, then end.
const DRAIN: u32 = 1;
const ENDED: u32 = 2;

/// The one slot of [`Words`] that the FIFO uses.
const FIFO: usize = 0;
/// Triggers between two looks at everything else.
const BURST: u32 = 64;
/// How long a dropped proxy handles what was pushed before.
const DRAIN_AFTER_DROP: Duration = Duration::from_secs(10);
/// How long after its deadline [`Proxy::stop`] gives a thread that keeps the deadline to say what is unhandled.
const LAST_WORDS: Duration = Duration::from_millis(200);

impl Proxy {
    /// Starts a proxy for the kernels of `context`. Returns when [`ProxyHandler::init`] has returned, however long that takes.
    ///
    /// # Errors
    /// `InvalidUsage` for a FIFO size that is no power of two or a core that this process may not use; what the driver says;
    /// what [`ProxyHandler::init`] says.
    pub fn start(context: &Context, config: ProxyConfig, handler: impl ProxyHandler) -> Result<Self> {
        let (tell, told) = mpsc::channel();
        let context = context.clone();
        let body = move || Worker::run(&context, &config, handler, &tell);
        let builder = std::thread::Builder::new().name("aqueduct-proxy".into());
        let thread = service_thread::spawn(builder, body)
            .map_err(|error| Error::system("Proxy::start", "the proxy's thread cannot be started", error))?;
        let gone = || Error::new(ErrorKind::Internal, "Proxy::start", "the thread ended without a word");
        match told.recv().unwrap_or_else(|_| Err(gone())) {
            Ok((shared, fifo)) => Ok(Self { shared, fifo, thread: Mutex::new(Some(thread)) }),
            Err(error) => {
                let _ = thread.join();
                Err(error)
            }
        }
    }

    /// The handle that kernels push with. Plain addresses: retain [`keep_alive`](Self::keep_alive) while a kernel uses
    /// them.
    pub fn fifo(&self) -> FifoHandle {
        self.fifo.device_handle(self.shared.words.handle(FIFO))
    }

    /// The FIFO itself.
    pub(super) fn queue(&self) -> &Fifo {
        &self.fifo
    }

    /// Keeps the memory behind [`fifo`](Self::fifo) alive.
    pub fn keep_alive(&self) -> [KeepAlive; 2] {
        [self.fifo.keep_alive(), self.shared.words.keep_alive()]
    }

    /// `Ok` while the proxy serves its FIFO.
    ///
    /// # Errors
    /// `Stopped` if it was stopped; otherwise the failure of its handler.
    pub fn check(&self) -> Result<()> {
        self.shared.check()
    }

    /// Has waits for `stream` return an error if the proxy stops or fails, which refuses what kernels push. Call it
    /// after launching a kernel that pushes.
    pub fn report_to(&self, stream: &Stream) {
        stream.depend_on(&self.outcome());
    }

    /// Tells a wait for a stream whether pushes were refused.
    pub(crate) fn outcome(&self) -> Arc<dyn Outcome> {
        self.shared.clone()
    }

    /// Counts of its work so far.
    pub fn counters(&self) -> ProxyCounters {
        ProxyCounters {
            triggers: self.shared.triggers.load(Ordering::Relaxed),
            bursts: self.shared.bursts.load(Ordering::Relaxed),
        }
    }

    /// The record of the first kernel that gave up a wait on this proxy.
    pub fn abort_report(&self) -> Option<AbortReport> {
        self.shared.words.record().map(AbortReport::from)
    }

    /// Ends the proxy: it refuses pushes from now on, handles what was pushed before, and then tells waiting kernels to
    /// leave. Kernels may be pushing meanwhile.
    ///
    /// # Errors
    /// `Timeout` if triggers were still unhandled at the deadline, or a handler has not returned; the proxy then ends without
    /// handling more. The failure that ended the proxy, if one did.
    pub fn stop(&self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = deadline.into();
        self.begin_stop(deadline);
        self.end_stop(Self::latest(deadline))
    }

    /// When a call that stops proxies until `deadline` returns at the latest.
    pub(super) fn latest(deadline: Deadline) -> Deadline {
        // The thread keeps the deadline itself, and knows best what is unhandled.
        Deadline::after(deadline.remaining() + LAST_WORDS)
    }

    /// The wait of [`stop`](Self::stop), after [`begin_stop`](Self::begin_stop).
    pub(super) fn end_stop(&self, latest: Deadline) -> Result<()> {
        let mut backoff = Backoff::new();
        while !self.is_over() {
            if latest.expired() {
                // The reason may be known while the device is still to close the FIFO.
                self.shared.failure.check()?;
                let message = "the handler has not returned, or the device has not closed the FIFO; the proxy's thread \
                               ends by itself once they have";
                return Err(Error::timeout("Proxy::stop", message));
            }
            backoff.pause(latest);
        }
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
        self.shared.failure.check()
    }

    /// Whether the thread has ended. Several callers may ask.
    fn is_over(&self) -> bool {
        lock(&self.thread).as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// [`stop`](Self::stop) without the wait.
    pub(super) fn begin_stop(&self, deadline: Deadline) {
        self.shared.drain(deadline);
        // It may sleep for longer than the deadline.
        if let Some(thread) = lock(&self.thread).as_ref() {
            thread.thread().unpark();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Kernels that a stop told to leave stay told.
        if self.shared.state.load(Ordering::Acquire) == RUN {
            self.shared.dropped.store(true, Ordering::Release);
        }
        self.begin_stop(Deadline::after(DRAIN_AFTER_DROP));
    }
}

impl Outcome for Shared {
    fn outcome(&self, op: &'static str) -> Result<()> {
        let is_dropped = self.dropped.load(Ordering::Acquire);
        let told = if is_dropped { self.failure.check() } else { self.check() };
        told.map_err(|error| error.of(op))
    }
}

impl Shared {
    fn check(&self) -> Result<()> {
        self.failure.check()?;
        if self.state.load(Ordering::Acquire) == RUN {
            return Ok(());
        }
        let message = "the proxy has stopped: what kernels push is refused; start another one";
        Err(Error::new(ErrorKind::Stopped, "Proxy::check", message))
    }

    fn drain(&self, deadline: Deadline) {
        lock(&self.drain_until).get_or_insert(deadline);
        let _ = self.state.compare_exchange(RUN, DRAIN, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// The thread's side.
struct Worker<H> {
    shared: Arc<Shared>,
    fifo: Fifo,
    consumer: FifoConsumer,
    handler: H,
    idler: Idler,
    /// Triggers taken in this burst.
    taken: u32,
}

type Tell = mpsc::Sender<Result<(Arc<Shared>, Fifo)>>;

impl<H: ProxyHandler> Worker<H> {
    fn run(context: &Context, config: &ProxyConfig, handler: H, tell: &Tell) {
        // Both guards live as long as the thread, so that driver calls find the context current.
        let driver = context.driver();
        let entered = ThreadCaptureMode::relaxed(driver).and_then(|relaxed| Ok((context.enter()?, relaxed)));
        let made = entered.and_then(|guards| Ok((Self::prepare(context, config, handler)?, guards)));
        match made {
            Err(error) => drop(tell.send(Err(error))),
            Ok((mut worker, _guards)) => {
                if tell.send(Ok((worker.shared.clone(), worker.fifo.clone()))).is_ok() {
                    let result = guarded("ProxyHandler::handle", || worker.serve());
                    worker.end(result.err());
                }
            }
        }
    }

    fn prepare(context: &Context, config: &ProxyConfig, mut handler: H) -> Result<Self> {
        affinity::bind(context.device(), config.cpu)?;
        let fifo = Fifo::new(context, config.fifo_size)?;
        let consumer = fifo.consumer()?;
        let shared = Arc::new(Shared {
            state: AtomicU32::new(RUN),
            drain_until: Mutex::new(None),
            dropped: AtomicBool::new(false),
            failure: Failure::default(),
            triggers: AtomicU64::new(0),
            bursts: AtomicU64::new(0),
            words: Words::new(context, config.rank, 1)?,
        });
        guarded("ProxyHandler::init", || handler.init())?;
        Ok(Self { shared, fifo, consumer, handler, idler: Idler::new(config.idle), taken: 0 })
    }

    /// Serves until told to end, or until something fails.
    fn serve(&mut self) -> Result<()> {
        let mut closed = false;
        loop {
            let (taken, stop) = self.burst()?;
            if stop {
                return Ok(());
            }
            let waiting = self.handler.progress()?;
            let state = self.shared.state.load(Ordering::Acquire);
            if state != RUN {
                let until = (*lock(&self.shared.drain_until)).unwrap_or(Deadline::after(DRAIN_AFTER_DROP));
                if !closed {
                    self.fifo.close(until)?;
                    closed = true;
                }
                if taken == 0 && !waiting && self.consumer.is_drained(until)? {
                    return Ok(());
                }
                if until.expired() {
                    return Err(self.late(waiting));
                }
            }
            if taken > 0 {
                self.idler.reset();
            } else {
                // A proxy that is to end does not sleep: it has a deadline to keep.
                self.idler.pause(waiting || closed);
            }
        }
    }

    /// Handles the triggers that are there, at most `BURST`. Returns how many, and whether the handler asked to stop.
    fn burst(&mut self) -> Result<(u32, bool)> {
        while self.taken < BURST {
            let position = self.consumer.position();
            let Some(trigger) = self.consumer.poll() else { break };
            let result = self.handler.handle(position, &trigger)?;
            self.consumer.pop()?;
            self.taken += 1;
            if result == ProxyHandlerResult::Stop {
                return Ok((self.count(), true));
            }
        }
        Ok((self.count(), false))
    }

    /// Adds this burst to the counters, also a burst that ended early. Only this thread writes the counters.
    fn count(&mut self) -> u32 {
        let taken = std::mem::take(&mut self.taken);
        if taken > 0 {
            let Shared { triggers, bursts, .. } = &*self.shared;
            triggers.store(triggers.load(Ordering::Relaxed) + u64::from(taken), Ordering::Relaxed);
            bursts.store(bursts.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        taken
    }

    fn late(&self, waiting: bool) -> Error {
        let what = if waiting {
            "requested operations have not completed"
        } else {
            "kernels took positions in the FIFO and did not write them, or push without end"
        };
        let message = format!(
            "the FIFO was not drained before the deadline; at position {}: {what}",
            self.consumer.position()
        );
        Error::timeout("Proxy::stop", message)
    }

    /// Stores the reason before kernels are told to leave, so that their callers find it.
    fn end(&mut self, failure: Option<Error>) {
        self.count();
        if let Some(error) = &failure {
            log::error!("a proxy ends: {error}");
        }
        if let Some(error) = &failure {
            self.shared.failure.set(error.clone());
        }
        self.shared.state.store(ENDED, Ordering::Release);
        self.shared.words.raise(FIFO);
        if let Err(error) = self.fifo.close(Deadline::after(Duration::from_secs(1))) {
            log::debug!("a FIFO could not be closed: {error}");
        }
        let ended = guarded("ProxyHandler::ended", || {
            self.handler.ended(failure.as_ref());
            Ok(())
        });
        if let Err(error) = ended {
            log::error!("a proxy's handler failed at its end: {error}");
        }
    }
}

impl<H> fmt::Debug for Worker<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("shared", &self.shared).finish_non_exhaustive()
    }
}

/// Turns a panic into an error of `op`.
fn guarded<T>(op: &'static str, f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let message = format!("the handler panicked: {}", panic_text(&*panic));
        Err(Error::new(ErrorKind::InvalidUsage, op, message))
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

#[cfg(all(test, not(loom)))]
mod tests;
