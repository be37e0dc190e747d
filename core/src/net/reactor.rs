//! One service thread for many authenticated streams and listeners.
//!
//! The thread owns the reading side: it decodes frames and gives them to a [`Handler`]. Sending goes straight to
//! the socket from the posting thread; only what does not fit is left to the service thread. Other threads talk to
//! it through the [`Bell`].

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Address;
use super::bell::{BELL, Bell, Command};
use super::frame::{Decoder, Frame};
use super::link::Link;
use super::listener::Listener;
use super::pollable::{Acceptor, Next, Pollable, Registration};
use super::served::Served;
use super::stream::{READ_BYTES, Stream};
use super::sys;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{AtomicU64, Ordering};

/// How long a closed link waits for the peer to close its side.
const LINGER: Duration = Duration::from_secs(2);
/// The same when the whole reactor stops and its owner waits.
const STOP_LINGER: Duration = Duration::from_millis(250);

/// What happens on the links of a [`Reactor`]. Called on the service thread; must not wait.
///
/// A handler holds the state it needs, never the owner of the reactor: the owner's drop joins the thread.
pub trait Handler: Send {
    /// A listener has accepted `link`.
    fn accepted(&mut self, link: &Link) {
        let _ = link;
    }

    /// A frame has arrived. An error closes the link, with that error.
    fn frame(&mut self, link: &Link, frame: Frame) -> Result<()>;

    /// The peer has closed the link, it has failed, or the service thread has. Called once; not for a link closed on
    /// this side.
    fn closed(&mut self, link: &Link, why: &Error);

    /// Called about every [`ReactorConfig::tick`].
    fn tick(&mut self) {}

    /// Asked after every round of events: once true, the reactor stops as if it had been dropped.
    fn finished(&self) -> bool {
        false
    }
}

/// Settings of a [`Reactor`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ReactorConfig {
    /// How often [`Handler::tick`] is called; never if `None`.
    pub tick: Option<Duration>,
}

/// A service thread. Dropping it closes its links in an orderly way and joins the thread, in at most a quarter of
/// a second; in a forked child, where the thread does not exist, nothing is touched.
#[derive(Debug)]
pub struct Reactor {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
    next_id: Arc<AtomicU64>,
    creator: u32,
}

impl Reactor {
    /// Starts the thread; `name` shows in `ps -L` and debuggers (15 bytes).
    pub fn start(name: &str, config: ReactorConfig, handler: Box<dyn Handler>) -> Result<Self> {
        let failed = |error| Error::system("reactor", "cannot start a service thread", error);
        let bell = Arc::new(Bell::new().map_err(failed)?);
        let next_id = Arc::new(AtomicU64::new(BELL + 1));
        let mut service = Service {
            bell: bell.clone(),
            next_id: next_id.clone(),
            handler,
            links: HashMap::new(),
            listeners: HashMap::new(),
            acceptors: HashMap::new(),
            pollables: HashMap::new(),
            busy: Vec::new(),
            due: Vec::new(),
            tick: config.tick,
            next_tick: config.tick.map(|tick| Instant::now() + tick),
            stop_by: None,
            buffer: vec![0; READ_BYTES].into(),
        };
        let run = move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| service.run()));
            let why = match outcome {
                Ok(Ok(())) => Error::new(ErrorKind::Aborted, "close", "the service thread was stopped"),
                Ok(Err(error)) => error,
                Err(_) => {
                    Error::new(ErrorKind::Internal, "reactor", "a handler panicked; the service thread ended")
                }
            };
            let failed = why.kind() != ErrorKind::Aborted;
            if failed {
                log::error!("{why}");
            }
            for served in std::mem::take(&mut service.links).into_values() {
                served.link.inner.fail(why.clone());
                if failed && served.close_by.is_none() {
                    // Those who wait for this link hear of it from the handler. It may panic again, which changes nothing.
                    let tell = AssertUnwindSafe(|| service.handler.closed(&served.link, &why));
                    drop(catch_unwind(tell));
                }
            }
        };
        let thread = std::thread::Builder::new().name(name.into()).stack_size(512 << 10).spawn(run);
        Ok(Self { bell, thread: Some(thread.map_err(failed)?), next_id, creator: std::process::id() })
    }

    /// Serves `stream` from now on. Frames that it has read already are delivered first.
    pub fn add(&self, stream: Stream) -> Link {
        let (link, decoder) = adopt(self.next_id.fetch_add(1, Ordering::Relaxed), stream, &self.bell);
        self.bell.ring(Command::Add(link.clone(), decoder));
        link
    }

    /// Serves `listener` from now on; its connections come to [`Handler::accepted`].
    pub fn listen(&self, listener: Listener) {
        self.bell.ring(Command::Listen(Box::new(listener)));
    }

    /// A place for something to serve; [`Registration::serve`] fills it.
    pub fn reserve(&self) -> Registration {
        Registration::new(self.bell.clone(), self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Gives the connections of `listener` to `acceptor` until that has enough; the listener is closed then.
    pub fn accept(&self, listener: Listener, acceptor: Acceptor) -> Registration {
        let registration = self.reserve();
        self.bell.ring(Command::Accept(registration.id(), Box::new(listener), acceptor));
        registration
    }

    /// Lets the thread go on without an owner until its handler says that it is finished.
    pub fn detach(mut self) {
        drop(self.thread.take());
    }

    /// Closes all listeners: nobody new can connect, and the paths of unix sockets are removed.
    pub fn stop_listening(&self) {
        self.bell.ring(Command::StopListening { unix: true });
    }

    /// Closes the listeners that other hosts can reach.
    pub fn stop_listening_tcp(&self) {
        self.bell.ring(Command::StopListening { unix: false });
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.creator != std::process::id() {
            std::mem::forget(thread);
            return;
        }
        self.bell.ring(Command::Stop);
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            log::error!("a service thread ended with a panic");
        }
    }
}

fn adopt(id: u64, stream: Stream, bell: &Arc<Bell>) -> (Link, Decoder) {
    let Stream { raw, decoder, peer } = stream;
    (Link::new(id, raw, peer, decoder.max(), bell.clone()), decoder)
}

struct Service {
    bell: Arc<Bell>,
    next_id: Arc<AtomicU64>,
    handler: Box<dyn Handler>,
    links: HashMap<u64, Served>,
    listeners: HashMap<u64, Listener>,
    /// Who takes the connections of a listener, if not the handler.
    acceptors: HashMap<u64, Acceptor>,
    pollables: HashMap<u64, Arc<dyn Pollable>>,
    /// Those that have work which no descriptor tells of.
    busy: Vec<u64>,
    /// Those that want to be asked at a time.
    due: Vec<(Instant, u64)>,
    tick: Option<Duration>,
    next_tick: Option<Instant>,
    stop_by: Option<Instant>,
    /// What a read fills; kept, because clearing it for every message costs more than most messages.
    buffer: Box<[u8]>,
}

impl Service {
    fn run(&mut self) -> Result<()> {
        let mut events = Vec::new();
        loop {
            let timeout = self.timeout_ms();
            let waited = self.bell.wait(timeout, &mut events);
            waited.map_err(|error| Error::system("reactor", "cannot wait for events", error))?;
            for (token, ready) in events.drain(..) {
                if token == BELL {
                    self.bell.heard();
                } else if self.listeners.contains_key(&token) {
                    self.serve_listener(token)?;
                } else if self.pollables.contains_key(&token) {
                    self.poll(token);
                } else {
                    self.serve_link(token, ready);
                }
            }
            self.bell.take().into_iter().for_each(|command| self.obey(command));
            for id in std::mem::take(&mut self.busy) {
                self.poll(id);
            }
            if !self.due.is_empty() {
                let now = Instant::now();
                for (_, id) in self.due.extract_if(.., |(at, _)| *at <= now).collect::<Vec<_>>() {
                    self.poll(id);
                }
            }
            if self.stop_by.is_none() && self.handler.finished() {
                self.stop();
            }
            if self.keep_time(Instant::now())? {
                return Ok(());
            }
        }
    }

    fn timeout_ms(&self) -> i32 {
        if !self.busy.is_empty() {
            std::thread::yield_now();
            return 0;
        }
        let times = self.listeners.values().filter_map(Listener::next_expiry);
        let times = times.chain(self.links.values().filter_map(|served| served.close_by));
        let times = times.chain(self.due.iter().map(|(at, _)| *at));
        // One who stops ticks no more: a tick that is due would keep it from waiting.
        let Some(next) = times.chain(self.stop_by.or(self.next_tick)).min() else { return -1 };
        crate::Deadline::after(next.saturating_duration_since(Instant::now())).poll_ms()
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Add(link, decoder) => self.add(link, decoder, false),
            Command::Listen(listener) => self.listen(self.next_id.fetch_add(1, Ordering::Relaxed), *listener),
            Command::Accept(id, listener, acceptor) => {
                self.acceptors.insert(id, acceptor);
                self.listen(id, *listener);
            }
            Command::Serve(id, thing) => match self.bell.register(thing.fd(), 0, id) {
                Ok(()) => {
                    self.pollables.insert(id, thing);
                    self.poll(id);
                }
                Err(error) => thing.unserved(&Error::system("reactor", "cannot serve a socket", error)),
            },
            Command::Nudge(id) => self.poll(id),
            Command::Forget(id) => {
                if let Some(thing) = self.pollables.remove(&id) {
                    self.bell.unregister(thing.fd());
                }
                self.listeners.remove(&id);
                self.acceptors.remove(&id);
            }
            Command::StopListening { unix } => {
                self.listeners.retain(|_, listener| !unix && matches!(listener.address(), Address::Unix(_)));
            }
            Command::Close(id) => self.close_when_sent(id, LINGER),
            Command::Failed(id) => {
                if let Some(served) = self.links.get_mut(&id)
                    && let Some(why) = served.link.inner.failure()
                {
                    // What the peer said before it closed counts, above all why it did.
                    served.drain(self.handler.as_mut(), &mut self.buffer);
                    self.finish(id, why);
                }
            }
            Command::Stop => self.stop(),
        }
    }

    fn listen(&mut self, id: u64, listener: Listener) {
        match self.bell.register(listener.fd(), sys::READ, id) {
            Ok(()) => drop(self.listeners.insert(id, listener)),
            Err(error) => log::error!("cannot serve {}: {error}", listener.address()),
        }
    }

    /// Lets a pollable do what it can, and waits for what it wants next.
    fn poll(&mut self, id: u64) {
        let Some(thing) = self.pollables.get(&id) else { return };
        match thing.progress() {
            Next::Wait(events) => self.bell.watch(thing.fd(), events.bits(), id),
            Next::Told(at) => {
                self.due.retain(|(_, other)| *other != id);
                self.due.extend(at.map(|at| (at, id)));
            }
            Next::Again => self.busy.push(id),
            Next::Done => self.obey(Command::Forget(id)),
        }
    }

    fn stop(&mut self) {
        self.listeners.clear();
        self.stop_by.get_or_insert(Instant::now() + STOP_LINGER);
        for id in self.links.keys().copied().collect::<Vec<_>>() {
            self.links[&id].link.inner.set_closing();
            self.close_when_sent(id, STOP_LINGER);
        }
    }

    fn add(&mut self, link: Link, mut decoder: Decoder, accepted: bool) {
        let id = link.id();
        if accepted {
            self.handler.accepted(&link);
        }
        while let Some(frame) = decoder.pop() {
            if let Err(why) = self.handler.frame(&link, frame) {
                return self.turn_out(&link, &why);
            }
        }
        if let Err(error) = link.inner.register() {
            return self.turn_out(&link, &Error::system("reactor", "cannot serve a link", error));
        }
        if self.stop_by.is_some() {
            link.inner.set_closing();
        }
        let closing = link.inner.closing();
        self.links.insert(id, Served { link, decoder, close_by: None });
        if closing {
            self.close_when_sent(id, LINGER);
        }
    }

    fn turn_out(&mut self, link: &Link, why: &Error) {
        link.inner.fail(why.clone());
        self.handler.closed(link, why);
    }

    fn serve_listener(&mut self, id: u64) -> Result<()> {
        let mut streams = Vec::new();
        if let Some(listener) = self.listeners.get_mut(&id) {
            listener.progress()?;
            streams.extend(std::iter::from_fn(|| listener.next_ready()));
        }
        if let Some(acceptor) = self.acceptors.get_mut(&id) {
            // All of them are asked: one that wants no more turns away what comes too late.
            let mut more = true;
            for stream in streams {
                more = acceptor(stream) && more;
            }
            if more {
                return Ok(());
            }
            self.obey(Command::Forget(id));
            return Ok(());
        }
        for stream in streams {
            let (link, decoder) = adopt(self.next_id.fetch_add(1, Ordering::Relaxed), stream, &self.bell);
            self.add(link, decoder, true);
        }
        Ok(())
    }

    fn serve_link(&mut self, id: u64, ready: u32) {
        let Some(served) = self.links.get_mut(&id) else { return };
        if ready & sys::WRITE != 0 {
            served.link.inner.writable();
        }
        if ready & !sys::WRITE != 0
            && let Err(why) = served.read(self.handler.as_mut(), &mut self.buffer)
        {
            return self.finish(id, why);
        }
        if self.links[&id].link.inner.closing() {
            self.close_when_sent(id, LINGER);
        }
    }

    /// Ends the sending side of a link closed here once its queue is empty, then waits for the peer's end: closing
    /// a socket with unread data would reset it, and the peer could lose what was sent last.
    fn close_when_sent(&mut self, id: u64, linger: Duration) {
        let Some(served) = self.links.get_mut(&id) else { return };
        served.close_by.get_or_insert(Instant::now() + linger);
        if served.link.inner.finished() {
            // An error says that the peer has gone already, and reading will say so too.
            let _ = served.link.inner.raw.shutdown(false);
        }
    }

    fn finish(&mut self, id: u64, why: Error) {
        let Some(served) = self.links.remove(&id) else { return };
        self.bell.unregister(served.link.inner.raw.fd());
        let closed_here = served.close_by.is_some();
        served.link.inner.fail(why.clone());
        if !closed_here {
            self.handler.closed(&served.link, &why);
        }
    }

    /// Timers. True when the reactor has stopped.
    fn keep_time(&mut self, now: Instant) -> Result<bool> {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let late: Vec<u64> =
            self.links.iter().filter(|(_, served)| due(served.close_by)).map(|(id, _)| *id).collect();
        for id in late {
            self.finish(id, Error::new(ErrorKind::Aborted, "close", "the link was closed on this side"));
        }
        if self.stop_by.is_some() {
            let sent = self.links.is_empty() && !self.pollables.values().any(|thing| thing.lingers());
            return Ok(sent || due(self.stop_by));
        }
        for id in
            self.listeners.iter().filter(|(_, l)| due(l.next_expiry())).map(|(id, _)| *id).collect::<Vec<_>>()
        {
            self.serve_listener(id)?;
        }
        if due(self.next_tick) {
            self.next_tick = self.tick.map(|tick| now + tick);
            self.handler.tick();
        }
        Ok(false)
    }
}
