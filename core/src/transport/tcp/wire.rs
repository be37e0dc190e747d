//! One socket between two ranks: both halves of a connection, and who drives them.
//!
//! Whoever has an operation sends it at once. What does not fit, and what arrives, is the service thread's business,
//! except while somebody waits for this very connection: that thread then receives by itself, which saves waking two
//! threads for one message.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::super::completion::Completion;
use super::frame::{Frame, MAX_REASON};
use super::inbox::{Inbox, Turn};
use super::loan::{End, Loan};
use super::outbox::{Outbox, Waits};
use super::patience::Patience;
use super::staging::Staging;
use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Context, Event};
use crate::group::control::Control;
use crate::memory::{Place, Regions};
use crate::net::{Interest, Next, Pollable, RawStream, Reactor, Registration};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};

/// For how long a waiting thread sleeps in the kernel before it looks around.
const SLICE: Duration = Duration::from_millis(20);

/// The socket and its two halves. Holds no communicator: the service thread holds it.
///
/// The service thread must not wait for the device, so it drops nothing whose drop may: what it has done with goes to
/// the control state, and the next call of the user's drops it.
pub(super) struct Wire {
    peer: u32,
    regions: Arc<Regions>,
    control: Arc<Control>,
    attached: OnceLock<(Box<dyn RawStream>, Registration)>,
    outbox: Arc<Mutex<Outbox>>,
    inbox: Arc<Mutex<Inbox>>,
    /// So many of our counted frames have landed.
    acknowledged: AtomicU64,
    completion: Arc<Completion>,
    failed: AtomicBool,
    failure: Mutex<Option<Error>>,
    /// The owner has gone: what was taken is sent, and what the peer still sends is received, until its owner has gone.
    closing: AtomicBool,
    said_bye: AtomicBool,
    peer_said_bye: AtomicBool,
    /// Somebody waits for this connection, and receives.
    assisted: AtomicBool,
    /// How often the service thread has received something, and how much of that is known to whoever assisted last.
    arrivals: AtomicU64,
    known: AtomicU64,
    patience: Patience,
    loan: Loan,
}

impl Wire {
    pub(super) fn new(
        context: &Context,
        peer: u32,
        regions: Arc<Regions>,
        control: Arc<Control>,
    ) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            peer,
            regions,
            control,
            attached: OnceLock::new(),
            outbox: Arc::new(Mutex::new(Outbox::new(Staging::new(context)?, peer))),
            inbox: Arc::new(Mutex::new(Inbox::new(Staging::new(context)?, peer))),
            acknowledged: AtomicU64::new(0),
            completion: Arc::new(Completion::new(context)?),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            closing: AtomicBool::new(false),
            said_bye: AtomicBool::new(false),
            peer_said_bye: AtomicBool::new(false),
            assisted: AtomicBool::new(false),
            arrivals: AtomicU64::new(0),
            known: AtomicU64::new(0),
            patience: Patience::default(),
            loan: Loan::default(),
        }))
    }

    /// Takes the socket into use.
    pub(super) fn attach(self: &Arc<Self>, socket: Box<dyn RawStream>, reactor: &Reactor) {
        // The registration needs the descriptor and the wire needs the registration: the service thread first runs
        // when both are there, because it is told last.
        let registration = reactor.reserve();
        if self.attached.set((socket, registration.clone())).is_ok() {
            registration.serve(self.clone());
        }
    }

    /// Whether there is a socket.
    pub(super) fn is_attached(&self) -> bool {
        self.attached.get().is_some()
    }

    /// Why it has failed, if it has.
    pub(super) fn check(&self) -> Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        lock(&self.failure).as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Whether the counted frames up to `mark` have landed at the peer.
    pub(super) fn has_landed(&self, mark: u64) -> Result<bool> {
        if self.acknowledged.load(Ordering::Acquire) >= mark {
            return Ok(true);
        }
        self.check().map(|()| false)
    }

    /// Runs `f` on the sending half.
    pub(super) fn outbox<T>(&self, f: impl FnOnce(&mut Outbox) -> T) -> T {
        f(&mut lock(&self.outbox))
    }

    /// Sends what can be sent now, and leaves the rest to the service thread.
    pub(super) fn kick(&self) -> Result<()> {
        self.check()?;
        let Some((socket, registration)) = self.attached.get() else { return Ok(()) };
        let (sent, spent) = {
            let mut outbox = lock(&self.outbox);
            let sent = outbox.progress(&**socket);
            if let Ok(Waits::Socket) = sent {
                self.watch(&outbox, !self.is_read_elsewhere());
            }
            (sent, outbox.take_spent())
        };
        drop(spent);
        match sent {
            Ok(Waits::Nothing | Waits::Socket) => Ok(()),
            Ok(Waits::Device) => {
                registration.nudge();
                Ok(())
            }
            Err(error) => {
                self.cannot_send(error);
                self.check()
            }
        }
    }

    /// Makes `event` wait for the counted frames up to `mark`.
    pub(super) fn record(&self, event: &Event, mark: u64) -> Result<()> {
        self.completion.record(event, mark)?;
        self.completion.reach(self.acknowledged.load(Ordering::Acquire));
        if self.failed.load(Ordering::Acquire) {
            self.completion.release();
        }
        Ok(())
    }

    /// Waits a while for something to arrive, receiving it.
    pub(super) fn assist(&self, backoff: &mut Backoff, deadline: Deadline) {
        let Some((socket, registration)) = self.attached.get() else { return backoff.pause(deadline) };
        if self.failed.load(Ordering::Acquire) || self.assisted.swap(true, Ordering::AcqRel) {
            return backoff.pause(deadline);
        }
        let lent = self.loan.begin();
        if !lent {
            // What is left to be sent, too, is seen to by the first turn.
            let _outbox = lock(&self.outbox);
            registration.watch(socket.fd(), Interest::default());
        }
        let mut spin = self.patience.begin();
        let mut until = None;
        let mut expired = || until.get_or_insert_with(|| deadline.min(Deadline::after(SLICE))).expired();
        let waits = loop {
            let (next, mut progress, spent) = self.turn(true);
            drop(spent);
            // What the service thread received just before this is what the caller may be waiting for. From here on it
            // receives nothing, because it looks who assists with the inbox locked.
            let arrivals = self.arrivals.load(Ordering::Acquire);
            if self.known.load(Ordering::Relaxed) != arrivals {
                self.known.store(arrivals, Ordering::Relaxed);
                progress = true;
            }
            match (next, progress) {
                (Next::Wait(_), false) if spin.again() => {}
                (Next::Wait(interest), false) if !expired() => wait(socket.fd(), interest, deadline),
                (Next::Again, false) if !expired() => std::thread::yield_now(),
                (Next::Wait(_), _) => break true,
                (Next::Told(_) | Next::Again | Next::Done, _) => break false,
            }
        };
        self.patience.learn(&spin);
        let outbox = lock(&self.outbox);
        let end = self.loan.end(waits);
        self.assisted.store(false, Ordering::Release);
        if end != End::StillLent || !outbox.is_empty() {
            self.watch(&outbox, end == End::GivenBack);
        }
        drop(outbox);
        if end == End::NewlyLent || !waits {
            registration.nudge();
        }
    }

    /// What the service thread waits for from now on. With the outbox locked, so that what is decided last is told last:
    /// whoever puts something into it, and whoever begins or ends to receive, comes here.
    fn watch(&self, outbox: &Outbox, read: bool) {
        if let Some((socket, registration)) = self.attached.get() {
            registration.watch(socket.fd(), Interest { read, write: !outbox.is_empty() });
        }
    }

    /// Whether the service thread need not wait for what arrives.
    fn is_read_elsewhere(&self) -> bool {
        self.assisted.load(Ordering::Acquire) || self.loan.is_lent()
    }

    /// The owner has gone.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        match self.attached.get() {
            Some((_, registration)) => registration.nudge(),
            // Nobody will come: what was taken is given up.
            None => lock(&self.outbox).clear(),
        }
    }

    /// One look at both halves: what to wait for, whether anything was received, and what is to be dropped. The service
    /// thread leaves receiving to who assists.
    fn turn(&self, assists: bool) -> (Next, bool, Vec<Place>) {
        let mut spent = Vec::new();
        let (next, progress) = self.look(&mut spent, assists);
        if next == Next::Done {
            // Its end gave up what was not sent.
            spent.append(&mut lock(&self.outbox).take_spent());
        }
        (next, progress, spent)
    }

    fn look(&self, spent: &mut Vec<Place>, assists: bool) -> (Next, bool) {
        let Some((socket, _)) = self.attached.get() else { return (Next::Done, false) };
        if self.failed.load(Ordering::Acquire) {
            return (Next::Done, true);
        }
        let received = {
            let mut inbox = lock(&self.inbox);
            if !assists && self.is_read_elsewhere() {
                Ok(Turn::default())
            } else {
                let received = inbox.progress(&**socket, &self.regions);
                if let Ok(turn) = &received {
                    self.note(turn);
                    self.arrivals.fetch_add(u64::from(!assists && turn.progress), Ordering::AcqRel);
                }
                received
            }
        };
        let mut turn = match received {
            Ok(turn) => turn,
            Err(error) => {
                // A peer that is told why can say so; one that has gone or given up need not be.
                self.fail(&error, error.kind() != ErrorKind::PeerLost);
                return (Next::Done, true);
            }
        };
        spent.append(&mut turn.spent);
        let mut outbox = lock(&self.outbox);
        if let Some(count) = turn.acknowledge {
            outbox.interject(Frame::Ack { count }, &[]);
        }
        let mut sent = outbox.progress(&**socket);
        if self.closing.load(Ordering::Acquire)
            && outbox.is_empty()
            && !self.said_bye.swap(true, Ordering::AcqRel)
        {
            outbox.interject(Frame::Bye, &[]);
            sent = sent.and_then(|_| outbox.progress(&**socket));
        }
        let finished = outbox.is_empty() && self.said_bye.load(Ordering::Acquire);
        spent.append(&mut outbox.take_spent());
        drop(outbox);
        let waits = match sent {
            Ok(waits) => waits,
            Err(error) => {
                self.cannot_send(error);
                return (Next::Done, true);
            }
        };
        if turn.ended && finished {
            return (Next::Done, true);
        }
        if turn.ended {
            let message = format!("rank {} has closed its end of this connection", self.peer);
            self.fail(&Error::new(ErrorKind::Remote, "recv", message).with_peer(self.peer), false);
            return (Next::Done, true);
        }
        if finished && self.peer_said_bye.load(Ordering::Acquire) {
            let _ = socket.shutdown(true);
            return (Next::Done, true);
        }
        if turn.again || waits == Waits::Device {
            return (Next::Again, turn.progress);
        }
        let read = true;
        (Next::Wait(Interest { read, write: waits == Waits::Socket }), turn.progress)
    }

    fn note(&self, turn: &Turn) {
        if turn.bye {
            self.peer_said_bye.store(true, Ordering::Release);
        }
        if let Some(count) = turn.acknowledged {
            self.acknowledged.fetch_max(count, Ordering::AcqRel);
            self.completion.reach(count);
        }
    }

    /// Ends it because nothing can be sent; what the peer said last is a better reason.
    fn cannot_send(&self, error: Error) {
        let said = self.attached.get().and_then(|(socket, _)| {
            let received = lock(&self.inbox).progress(&**socket, &self.regions);
            match received {
                Ok(turn) => {
                    self.note(&turn);
                    self.control.drop_elsewhere(Arc::new(turn.spent));
                    None
                }
                Err(said) => Some(said).filter(|said| said.kind() == ErrorKind::Remote),
            }
        });
        let why = said.unwrap_or(error);
        self.fail(&why, why.kind() != ErrorKind::PeerLost);
    }

    /// Ends it: nothing more is sent or received, and everybody who waits learns why.
    fn fail(&self, why: &Error, tell: bool) {
        let op = "connection";
        let message = format!("the Ethernet connection to rank {} has failed: {}", self.peer, why.message());
        let error = Error::new(why.kind(), op, message).with_peer(self.peer).with_source(why.clone());
        {
            let mut failure = lock(&self.failure);
            if failure.is_some() {
                return;
            }
            *failure = Some(error);
        }
        self.failed.store(true, Ordering::Release);
        let mut outbox = lock(&self.outbox);
        outbox.clear();
        if let Some((socket, _)) = self.attached.get() {
            if tell {
                let reason = why.message().as_bytes();
                let reason = &reason[..reason.len().min(MAX_REASON)];
                outbox.interject(Frame::Fail { len: reason.len() as u32 }, reason);
                // As far as the socket takes it: whoever does not read cannot be told.
                let _ = outbox.progress(&**socket);
            }
            let _ = socket.shutdown(!tell);
        }
        outbox.clear();
        drop(outbox);
        self.completion.release();
    }
}

impl Pollable for Wire {
    fn fd(&self) -> BorrowedFd<'_> {
        let (socket, _) = self.attached.get().expect("served only once attached");
        socket.fd()
    }

    fn progress(&self) -> Next {
        let again = self.loan.check();
        let (next, progress, spent) = self.turn(false);
        if !spent.is_empty() {
            self.control.drop_elsewhere(Arc::new(spent));
        }
        if progress {
            self.loan.disturb();
        }
        match next {
            Next::Wait(_) => {
                let outbox = lock(&self.outbox);
                self.watch(&outbox, !self.is_read_elsewhere());
                Next::Told(again)
            }
            next => next,
        }
    }

    fn lingers(&self) -> bool {
        !self.failed.load(Ordering::Acquire)
            && (!self.said_bye.load(Ordering::Acquire) || !lock(&self.outbox).is_empty())
    }

    fn unserved(&self, why: &Error) {
        self.fail(why, false);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let (outbox, inbox, completion) = (self.outbox.clone(), self.inbox.clone(), self.completion.clone());
        self.control.drop_elsewhere(Arc::new((outbox, inbox, completion)));
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// Sleeps until `fd` is ready, or `deadline`; not for longer than [`SLICE`].
fn wait(fd: BorrowedFd<'_>, interest: Interest, deadline: Deadline) {
    let events = if interest.write { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    // SAFETY: one pollfd that lives across the call. Whatever it returns, the caller looks again.
    unsafe { libc::poll(&mut poll, 1, deadline.poll_ms().min(SLICE.as_millis() as i32)) };
}
