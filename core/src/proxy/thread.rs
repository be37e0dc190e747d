//! [`Proxy`]: a thread that serves a FIFO.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use aqueduct_ptx::abi::{self, ProxyTrigger};

use super::affinity;
use super::config::{Idler, ProxyConfig};
use super::fifo::{Fifo, FifoConsumer};
use super::words::Words;
use crate::comm::AbortReport;
use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Context, KeepAlive, RelaxedCapture};
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, lock};

/// What a handler wants after a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHandlerResult {
    /// The next trigger.
    Continue,
    /// No more: the thread ends. Triggers behind this one are not handled, and pushes leave with `LEFT_CLOSED`.
    Stop,
}

/// What a proxy does with triggers. A closure of one trigger is one.
///
/// Everything runs on the proxy's thread, with the device context current. An error or a panic ends the proxy: kernels
/// that wait for it leave, and [`Proxy::check`] has the reason.
pub trait ProxyHandler: Send + 'static {
    /// Runs once, before the first trigger, on the thread, which is bound to its cores already.
    ///
    /// # Errors
    /// Why the proxy cannot start.
    fn init(&mut self) -> Result<()> {
        Ok(())
    }

    /// Handles the trigger at `position` of the FIFO. Its slot is given back when this returns.
    ///
    /// # Errors
    /// Why the proxy must end.
    fn handle(&mut self, position: u64, trigger: &ProxyTrigger) -> Result<ProxyHandlerResult>;

    /// Runs whenever the FIFO is empty, and after every few triggers: whether something is still under way, which has to
    /// end before a proxy that is stopped may.
    ///
    /// # Errors
    /// Why the proxy must end.
    fn progress(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// Runs once, last; `failure` is why, if not because it was stopped.
    fn ended(&mut self, failure: Option<&Error>) {
        let _ = failure;
    }
}

impl<F> ProxyHandler for F
where
    F: FnMut(&ProxyTrigger) -> Result<ProxyHandlerResult> + Send + 'static,
{
    fn handle(&mut self, _: u64, trigger: &ProxyTrigger) -> Result<ProxyHandlerResult> {
        self(trigger)
    }
}

/// A FIFO and the thread that serves it.
///
/// The thread runs on the cores of the GPU's NUMA node, or on one that was named, and allocates the FIFO there; the
/// caller's own affinity is not touched. It is stopped by [`stop`](Self::stop). Dropping it stops it, too, within ten seconds and without
/// waiting for it.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    fifo: Fifo,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What a proxy has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyCounters {
    /// Triggers handled.
    pub triggers: u64,
    /// Times that the FIFO held something after it had been empty: triggers per burst say how busy it is.
    pub bursts: u64,
}

#[derive(Debug)]
struct Shared {
    state: AtomicU32,
    /// How long a proxy that is to end has for what was pushed.
    patience: Mutex<Option<Deadline>>,
    failure: Mutex<Option<Error>>,
    triggers: AtomicU64,
    bursts: AtomicU64,
    words: Arc<Words>,
}

const RUN: u32 = 0;
/// Handle what was pushed, then end.
const DRAIN: u32 = 1;
const ENDED: u32 = 2;

/// The one slot of [`Words`] that the FIFO uses.
const FIFO: usize = 0;
/// Triggers between two looks at everything else.
const BURST: u32 = 64;
/// What a proxy that is dropped has for what was pushed.
const DROPPED: Duration = Duration::from_secs(10);

impl Proxy {
    /// Starts a proxy for the kernels of `context`.
    ///
    /// # Errors
    /// `InvalidUsage` for a FIFO size that is no power of two or a core that this process may not use; what the driver says;
    /// what [`ProxyHandler::init`] says.
    pub fn start(context: &Context, config: ProxyConfig, handler: impl ProxyHandler) -> Result<Self> {
        let (tell, told) = mpsc::channel();
        let context = context.clone();
        let body = move || Worker::run(&context, &config, handler, &tell);
        let thread = std::thread::Builder::new()
            .name("aqueduct-proxy".into())
            .spawn(body)
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

    /// What kernels push with. Plain addresses: retain [`keep_alive`](Self::keep_alive) while a kernel uses them.
    pub fn fifo(&self) -> abi::Fifo {
        self.fifo.device_handle(self.shared.words.handle(FIFO))
    }

    /// What keeps the memory behind [`fifo`](Self::fifo) alive.
    pub fn keep_alive(&self) -> [KeepAlive; 2] {
        [self.fifo.keep_alive(), self.shared.words.keep_alive()]
    }

    /// `Ok` while it serves.
    ///
    /// # Errors
    /// Why it does not: `InvalidUsage` if it was stopped, otherwise the failure of its handler.
    pub fn check(&self) -> Result<()> {
        if let Some(error) = &*lock(&self.shared.failure) {
            return Err(error.clone());
        }
        if self.shared.state.load(Ordering::Acquire) == RUN {
            return Ok(());
        }
        Err(Error::usage("Proxy", "the proxy has stopped: what kernels push is refused; start another one"))
    }

    /// What it has done so far.
    pub fn counters(&self) -> ProxyCounters {
        ProxyCounters {
            triggers: self.shared.triggers.load(Ordering::Relaxed),
            bursts: self.shared.bursts.load(Ordering::Relaxed),
        }
    }

    /// What the first kernel that was told to leave was waiting for.
    pub fn abort_report(&self) -> Option<AbortReport> {
        self.shared.words.record().map(AbortReport::from)
    }

    /// Ends it: pushes are refused from now on, what was pushed before is handled, and then kernels that wait
    /// leave. Works while kernels push.
    ///
    /// # Errors
    /// `Timeout` if that took too long, after which it ends with triggers unhandled; the failure it ended with, if it did.
    pub fn stop(&self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = deadline.into();
        self.shared.drain(deadline);
        // The thread minds the deadline itself; only a handler that does not return makes it late.
        let late = Deadline::after(deadline.remaining() + Duration::from_secs(1));
        let mut backoff = Backoff::new();
        while !self.is_over() {
            if late.expired() {
                let message = "the handler has not returned; its thread goes on, with nobody to wait for it";
                return Err(Error::timeout("Proxy::stop", message));
            }
            backoff.pause(late);
        }
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
        lock(&self.shared.failure).as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Whether the thread has ended. Several may wait for that.
    fn is_over(&self) -> bool {
        lock(&self.thread).as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Asks it to end, without waiting for it.
    pub(super) fn ask_to_stop(&self, deadline: Deadline) {
        self.shared.drain(deadline);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.drain(Deadline::after(DROPPED));
    }
}

impl Shared {
    fn drain(&self, deadline: Deadline) {
        lock(&self.patience).get_or_insert(deadline);
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
    /// Triggers of this burst so far.
    taken: u32,
}

type Tell = mpsc::Sender<Result<(Arc<Shared>, Fifo)>>;

impl<H: ProxyHandler> Worker<H> {
    fn run(context: &Context, config: &ProxyConfig, handler: H, tell: &Tell) {
        // Both for as long as the thread lives: driver calls then find the context current.
        let driver = context.driver();
        let entered = RelaxedCapture::new(driver).and_then(|relaxed| Ok((context.enter()?, relaxed)));
        let made = entered.and_then(|guards| Ok((Self::prepare(context, config, handler)?, guards)));
        match made {
            Err(error) => drop(tell.send(Err(error))),
            Ok((mut worker, _guards)) => {
                if tell.send(Ok((worker.shared.clone(), worker.fifo.clone()))).is_ok() {
                    let result = guarded(|| worker.serve());
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
            patience: Mutex::new(None),
            failure: Mutex::new(None),
            triggers: AtomicU64::new(0),
            bursts: AtomicU64::new(0),
            words: Words::new(context, config.rank, 1)?,
        });
        guarded(|| handler.init())?;
        Ok(Self { shared, fifo, consumer, handler, idler: Idler::new(config.idle), taken: 0 })
    }

    /// Until it is told to end, or fails.
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
                let patience = (*lock(&self.shared.patience)).unwrap_or(Deadline::after(DROPPED));
                if !closed {
                    self.fifo.close(patience)?;
                    closed = true;
                }
                if taken == 0 && !waiting && self.consumer.is_drained(patience)? {
                    return Ok(());
                }
                if patience.expired() {
                    return Err(self.late(waiting));
                }
            }
            if taken > 0 {
                self.idler.reset();
            } else {
                self.idler.pause(waiting);
            }
        }
    }

    /// Handles what is there, up to a limit: how many triggers, and whether the handler has had enough.
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

    /// Counts what was taken, also of a burst that ended early. This thread is the only one that counts.
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
            "operations that were asked for have not completed"
        } else {
            "threads have taken positions and have not written them, or push without end"
        };
        let message = format!("not drained in time at position {}: {what}", self.consumer.position());
        Error::timeout("Proxy::stop", message)
    }

    /// The reason first, so that whoever leaves finds it.
    fn end(&mut self, failure: Option<Error>) {
        self.count();
        if let Some(error) = &failure {
            log::error!("a proxy ends: {error}");
        }
        *lock(&self.shared.failure) = failure.as_ref().map(Error::clone);
        self.shared.state.store(ENDED, Ordering::Release);
        self.shared.words.raise(FIFO);
        if let Err(error) = self.fifo.close(Deadline::after(Duration::from_secs(1))) {
            log::debug!("a FIFO could not be closed: {error}");
        }
        let ended = guarded(|| {
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

/// Makes a panic an error.
fn guarded<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let message = format!("the handler panicked: {}", words_of(&*panic));
        Err(Error::new(ErrorKind::InvalidUsage, "ProxyHandler", message))
    })
}

fn words_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
