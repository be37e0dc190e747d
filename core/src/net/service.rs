//! The thread that serves many links, listeners and other sockets: its events, its commands, its timers.
#![forbid(unsafe_code)]

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::claims::Address;
use super::commands::{Acceptor, Command, Commands, WAKE, unserved};
use super::frame::Decoder;
use super::handler::Handler;
use super::link::{Link, LinkService as _};
use super::listener::Listener;
use super::pollable::{Next, Pollable};
use super::reader::{LinkReader, Turn};
use super::stream::{READ_BYTES, Stream, starved};
use super::sys;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{AtomicU64, Ordering};

/// How long a closed link waits for the peer to close its side.
const LINGER: Duration = Duration::from_secs(2);
/// The same when the whole reactor stops and its owner waits.
const STOP_LINGER: Duration = Duration::from_millis(250);

/// Turns a stream into a link and the decoder of what it brings.
pub(super) fn adopt(id: u64, stream: Stream, commands: &Arc<Commands>) -> (Link, Decoder) {
    let Stream { raw, decoder, peer } = stream;
    (Link::new(id, raw, peer, decoder.max(), commands.clone()), decoder)
}

/// The state of the service thread, which owns it.
pub(super) struct Service {
    commands: Arc<Commands>,
    next_id: Arc<AtomicU64>,
    handler: Box<dyn Handler>,
    links: HashMap<u64, LinkReader>,
    listeners: HashMap<u64, Listener>,
    /// Acceptors that take the connections of a listener instead of the handler.
    acceptors: HashMap<u64, Acceptor>,
    pollables: HashMap<u64, Arc<dyn Pollable>>,
    /// Pollables that have work of which no descriptor tells: each once, however often it is polled for other reasons.
    busy: BTreeSet<u64>,
    /// Pollables that want to be asked at a time.
    due: Vec<(Instant, u64)>,
    /// Commands taken and not yet obeyed.
    taken: VecDeque<Command>,
    tick: Option<Duration>,
    next_tick: Option<Instant>,
    stop_by: Option<Instant>,
    /// Filled by reads. Kept, because clearing it for every message costs more than most messages.
    buffer: Box<[u8]>,
}

impl Service {
    pub(super) fn new(
        commands: Arc<Commands>,
        next_id: Arc<AtomicU64>,
        handler: Box<dyn Handler>,
        tick: Option<Duration>,
    ) -> Self {
        Self {
            commands,
            next_id,
            handler,
            links: HashMap::new(),
            listeners: HashMap::new(),
            acceptors: HashMap::new(),
            pollables: HashMap::new(),
            busy: BTreeSet::new(),
            due: Vec::new(),
            taken: VecDeque::new(),
            tick,
            next_tick: tick.map(|tick| Instant::now() + tick),
            stop_by: None,
            buffer: vec![0; READ_BYTES].into(),
        }
    }

    /// Serves until it is stopped, fails, or a handler or pollable panics; then tells all who wait for a link, and after a
    /// failure the pollables. Commands that it has not obeyed, now or later, are refused.
    pub(super) fn run_to_end(&mut self) {
        let why = match catch_unwind(AssertUnwindSafe(|| self.run())) {
            Ok(Ok(())) => Error::new(ErrorKind::Aborted, "close", "the service thread was stopped"),
            Ok(Err(error)) => error,
            Err(_) => Error::new(
                ErrorKind::Internal,
                "reactor",
                "a handler or pollable panicked; the service thread ended",
            ),
        };
        let failed = why.kind() != ErrorKind::Aborted;
        if failed {
            log::error!("{why}");
        }
        for reader in std::mem::take(&mut self.links).into_values() {
            reader.link.inner.fail(why.clone());
            if failed && reader.close_by.is_none() {
                // The handler tells those who wait for this link. It may panic again, which changes nothing.
                let tell = AssertUnwindSafe(|| self.handler.closed(&reader.link, &why));
                drop(catch_unwind(tell));
            }
        }
        if failed {
            std::mem::take(&mut self.pollables).into_values().for_each(|thing| unserved(&*thing, &why));
        }
        let rest = self.commands.end(&why);
        std::mem::take(&mut self.taken).into_iter().chain(rest).for_each(|command| command.refuse(&why));
    }

    fn run(&mut self) -> Result<()> {
        let mut events = Vec::new();
        loop {
            let timeout = self.timeout_ms();
            let waited = self.commands.wait(timeout, &mut events);
            waited.map_err(|error| Error::system("reactor", "cannot wait for events", error))?;
            for (token, ready) in events.drain(..) {
                if token == WAKE {
                    self.commands.clear_wake();
                } else if self.listeners.contains_key(&token) {
                    self.serve_listener(token)?;
                } else if self.pollables.contains_key(&token) {
                    self.poll(token);
                } else {
                    self.serve_link(token, ready);
                }
            }
            self.taken.extend(self.commands.take());
            while let Some(command) = self.taken.pop_front() {
                self.obey(command);
            }
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
        let times =
            times.chain(self.links.values().flat_map(|reader| [reader.close_by, reader.resume_at]).flatten());
        let times = times.chain(self.due.iter().map(|(at, _)| *at));
        // A service that stops ticks no more: a tick that is due would keep it from waiting.
        let Some(next) = times.chain(self.stop_by.or(self.next_tick)).min() else { return -1 };
        crate::Deadline::after(next.saturating_duration_since(Instant::now())).poll_ms()
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Add(link, decoder) => self.add(link, decoder, false),
            // Whoever connected now would be closed at once.
            Command::Listen(_) | Command::Accept(..) if self.stop_by.is_some() => {}
            Command::Listen(listener) => self.listen(self.next_id.fetch_add(1, Ordering::Relaxed), *listener),
            Command::Accept(id, listener, acceptor) => {
                self.acceptors.insert(id, acceptor);
                self.listen(id, *listener);
            }
            Command::Serve(id, thing) => match self.commands.register(thing.fd(), 0, id) {
                Ok(()) => {
                    self.pollables.insert(id, thing);
                    self.poll(id);
                }
                Err(error) => thing.unserved(&Error::system("reactor", "cannot serve a socket", error)),
            },
            Command::Nudge(id) => self.poll(id),
            Command::Forget(id) => {
                if let Some(thing) = self.pollables.remove(&id) {
                    self.commands.unregister(thing.fd());
                }
                self.listeners.remove(&id);
                self.acceptors.remove(&id);
            }
            Command::StopListening { unix } => {
                self.listeners.retain(|_, listener| !unix && matches!(listener.address(), Address::Unix(_)));
            }
            Command::Close(id) => self.close_when_sent(id, LINGER),
            Command::Failed(id) => {
                if let Some(reader) = self.links.get_mut(&id)
                    && let Some(why) = reader.link.inner.failure()
                {
                    // Deliver what the peer sent before it closed, above all the reason.
                    reader.drain(self.handler.as_mut(), &mut self.buffer);
                    self.finish(id, why);
                }
            }
            Command::Rest(id) => self.rest(id),
            Command::Stop => self.stop(),
        }
    }

    fn listen(&mut self, id: u64, listener: Listener) {
        match self.commands.register(listener.fd(), sys::READ, id) {
            Ok(()) => drop(self.listeners.insert(id, listener)),
            Err(error) => log::error!("cannot serve {}: {error}", listener.address()),
        }
    }

    /// Lets a pollable do what it can, and waits for what it wants next.
    fn poll(&mut self, id: u64) {
        let Some(thing) = self.pollables.get(&id) else { return };
        match thing.progress() {
            Next::Wait(events) => self.commands.watch(thing.fd(), events.bits(), id),
            Next::Told(at) => {
                self.due.retain(|(_, other)| *other != id);
                self.due.extend(at.map(|at| (at, id)));
            }
            Next::Again => drop(self.busy.insert(id)),
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
        self.links.insert(id, LinkReader { link, decoder, close_by: None, resume_at: None });
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
            // Gives it all of them: an acceptor that wants no more refuses connections that come too late.
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
            let (link, decoder) = adopt(self.next_id.fetch_add(1, Ordering::Relaxed), stream, &self.commands);
            self.add(link, decoder, true);
        }
        Ok(())
    }

    fn serve_link(&mut self, id: u64, ready: u32) {
        let Some(reader) = self.links.get_mut(&id) else { return };
        if ready & sys::WRITE != 0 {
            reader.link.inner.writable();
        }
        if ready & !sys::WRITE != 0 {
            match reader.read(self.handler.as_mut(), &mut self.buffer) {
                Err(why) => return self.finish(id, why),
                Ok(Turn::Starved(error)) => {
                    let link = reader.link.clone();
                    if !link.is_starved() {
                        log::warn!("{}", starved(link.peer(), error));
                    }
                    link.inner.set_starved(true);
                    self.rest(id);
                }
                Ok(Turn::Read(_) | Turn::Empty) => {}
            }
        }
        if self.links[&id].link.inner.closing() {
            self.close_when_sent(id, LINGER);
        }
    }

    /// Leaves a link alone for a while: it stays readable, and its peer's end is told of without being asked for, so
    /// that watching it would be a busy loop.
    fn rest(&mut self, id: u64) {
        if let Some(reader) = self.links.get_mut(&id) {
            reader.link.inner.unregister();
            reader.resume_at = Some(Instant::now() + sys::REST);
        }
    }

    fn resume(&mut self, id: u64) {
        let Some(reader) = self.links.get_mut(&id) else { return };
        reader.resume_at = None;
        // Events tell of all that came, or can be sent, meanwhile.
        if let Err(error) = reader.link.inner.register() {
            self.finish(id, Error::system("reactor", "cannot serve a link", error));
        }
    }

    /// Ends the sending side of a link closed here once its queue is empty, then waits for the peer's end: closing
    /// a socket with unread data would reset it, and the peer could lose what was sent last.
    fn close_when_sent(&mut self, id: u64, linger: Duration) {
        let Some(reader) = self.links.get_mut(&id) else { return };
        reader.close_by.get_or_insert(Instant::now() + linger);
        if reader.link.inner.finished() {
            // An error says that the peer has gone already, and reading will say so too.
            let _ = reader.link.inner.raw.shutdown(false);
        }
    }

    fn finish(&mut self, id: u64, why: Error) {
        let Some(reader) = self.links.remove(&id) else { return };
        self.commands.unregister(reader.link.inner.raw.fd());
        let closed_here = reader.close_by.is_some();
        reader.link.inner.fail(why.clone());
        if !closed_here {
            self.handler.closed(&reader.link, &why);
        }
    }

    /// Timers. True when the reactor has stopped.
    fn keep_time(&mut self, now: Instant) -> Result<bool> {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let late: Vec<u64> =
            self.links.iter().filter(|(_, reader)| due(reader.close_by)).map(|(id, _)| *id).collect();
        for id in late {
            self.finish(id, Error::new(ErrorKind::Aborted, "close", "the link was closed on this side"));
        }
        let rested: Vec<u64> =
            self.links.iter().filter(|(_, reader)| due(reader.resume_at)).map(|(id, _)| *id).collect();
        rested.into_iter().for_each(|id| self.resume(id));
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
