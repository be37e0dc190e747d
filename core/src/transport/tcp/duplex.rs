//! Both halves of a connection over one TCP socket, and who drives them.
//!
//! The caller of an operation sends it at once. The service thread sends what the socket did not take, and receives, except while
//! a user thread waits for this very connection: that thread then receives by itself, which saves waking two threads for one
//! message.

mod assist;
mod ending;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use super::super::completion::{Completion, KernelAbort};
use super::super::idle::Activity;
use super::super::resources::Resources;
use super::super::service::{DataService, Delivery, Disposer, Outstanding};
use super::counts::Acknowledged;
use super::frame::{Frame, MAX_REASON};
use super::inbox::{COPIES, Inbox};
use super::landing::Turn;
use super::made::Obstacle;
use super::outbox::Outbox;
use super::readers::Readers;
use super::reads::Reads;
use super::spent::Spent;
use super::spin::SpinBudget;
use super::staging::Staging;
use crate::abort::{Abort, AbortListener};
use crate::error::{Error, ErrorKind, Result};
use crate::failure::Failure;
use crate::fork::Creator;
use crate::gpu::Event;
use crate::memory::Regions;
use crate::net::{Interest, Next, Pollable, RawStream, Registration};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// The socket and its two halves. Holds the group only through the operations in flight: a connection that has delivered
/// everything keeps no rank from leaving.
///
/// The service thread must never block on the device. Values whose drop may block go to the disposer.
pub(super) struct Duplex {
    peer: u32,
    regions: Arc<Regions>,
    abort: Abort,
    disposer: Disposer,
    outstanding: Arc<Outstanding>,
    registration: Registration,
    socket: OnceLock<Box<dyn RawStream>>,
    outbox: Arc<Mutex<Outbox>>,
    inbox: Arc<Mutex<Inbox>>,
    /// So many of this rank's counted frames have landed.
    acknowledged: Acknowledged,
    readers: Readers,
    completion: Arc<Completion>,
    failure: Failure,
    /// It failed with operations that were not acknowledged.
    lost: AtomicBool,
    /// The owner has gone: what was taken is delivered, and what the peer still sends is received, until its owner has gone.
    closing: AtomicBool,
    said_bye: AtomicBool,
    peer_said_bye: AtomicBool,
    spin: SpinBudget,
    creator: Creator,
}

impl Duplex {
    pub(super) fn new(resources: &Resources, service: &DataService, peer: u32) -> Result<Arc<Self>> {
        let (stock, registration) = (resources.stock()?, service.reserve());
        let outgoing = Staging::new(stock.outgoing.clone(), Some(registration.clone()));
        // Looks by itself: what it waits for is soon over.
        let incoming = Staging::new(stock.incoming.clone(), None);
        let reads = Arc::new(Reads::new(peer));
        let duplex = Arc::new(Self {
            peer,
            regions: resources.regions.clone(),
            abort: resources.group.abort().clone(),
            disposer: service.disposer().clone(),
            outstanding: service.outstanding().clone(),
            registration,
            socket: OnceLock::new(),
            outbox: Arc::new(Mutex::new(Outbox::new(outgoing, peer, reads.clone()))),
            inbox: Arc::new(Mutex::new(Inbox::new(incoming, peer, reads))),
            acknowledged: Acknowledged::default(),
            readers: Readers::default(),
            completion: Arc::new(Completion::new(&resources.words, &resources.wait_streams)?),
            failure: Failure::default(),
            lost: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            said_bye: AtomicBool::new(false),
            peer_said_bye: AtomicBool::new(false),
            spin: SpinBudget::default(),
            creator: Creator::current(),
        });
        let delivery: Arc<dyn Delivery> = duplex.clone();
        duplex.outstanding.add(Arc::downgrade(&delivery));
        let listener: Arc<dyn AbortListener> = duplex.clone();
        duplex.abort.listen(&listener);
        Ok(duplex)
    }

    /// Takes the socket into use, unless there is one.
    pub(super) fn attach(self: &Arc<Self>, socket: Box<dyn RawStream>) {
        if self.socket.set(socket).is_ok() {
            self.registration.serve(self.clone());
        }
    }

    /// Takes the socket into use, so that only calls send and receive.
    #[cfg(all(test, not(loom)))]
    pub(super) fn attach_unserved(&self, socket: Box<dyn RawStream>) {
        self.socket.set(socket).expect("it has none");
    }

    /// Whether there is a socket.
    pub(super) fn is_attached(&self) -> bool {
        self.socket.get().is_some()
    }

    pub(super) fn failure(&self) -> &Failure {
        &self.failure
    }

    /// Returns the failure, if it has failed.
    #[inline]
    pub(super) fn check(&self) -> Result<()> {
        self.failure.check()
    }

    /// The abort word of kernels that wait for its signals.
    pub(super) fn kernel_abort(&self) -> &Arc<KernelAbort> {
        self.completion.kernels()
    }

    /// Whether it has failed with operations that were not acknowledged.
    #[cfg(all(test, not(loom)))]
    pub(super) fn has_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Whether the counted frames up to `mark` have landed at the peer.
    pub(super) fn has_landed(&self, mark: u64) -> Result<bool> {
        if self.acknowledged.get() >= mark {
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
        let Some(socket) = self.socket.get() else { return Ok(()) };
        let (sent, watch, spent) = {
            let mut outbox = lock(&self.outbox);
            let sent = outbox.progress(&**socket);
            if let Ok(Obstacle::Socket) = sent {
                self.watch(&outbox, !self.readers.are_users());
            }
            (sent, outbox.must_watch(), outbox.take_spent())
        };
        drop(spent);
        match sent {
            Ok(waits) => {
                if watch || waits == Obstacle::Device {
                    self.registration.nudge();
                }
                Ok(())
            }
            Err(error) => {
                self.cannot_send(error);
                self.check()
            }
        }
    }

    /// Lets what comes later begin only once the work before `event` is done.
    pub(super) fn after(&self, event: &Event) -> Result<()> {
        let awaited = self.completion.behind(event)?;
        self.outbox(|outbox| outbox.after(awaited));
        Ok(())
    }

    /// Makes `event` wait for the counted frames up to `mark`.
    pub(super) fn record(&self, event: &Event, mark: u64) -> Result<()> {
        self.completion.record(event, mark)?;
        self.completion.reach(self.acknowledged.get());
        if self.failure.has_failed() {
            self.completion.release();
        }
        Ok(())
    }

    /// Updates what the service thread polls for. Call with the outbox locked, so that concurrent updates take effect in the
    /// order in which they were decided.
    fn watch(&self, outbox: &Outbox, read: bool) {
        if let Some(socket) = self.socket.get() {
            self.registration.watch(socket.fd(), Interest { read, write: outbox.wants_room() });
        }
    }

    /// One look at both halves: what to wait for, whether anything was received, and what to drop. With `assists`, the caller
    /// is the user thread that receives.
    fn turn(&self, assists: bool) -> (Next, bool, Spent) {
        let mut spent = Spent::default();
        let (next, progress) = self.look(&mut spent, assists);
        (next, progress, spent)
    }

    fn look(&self, spent: &mut Spent, assists: bool) -> (Next, bool) {
        let Some(socket) = self.socket.get() else { return (Next::Done, false) };
        let closing = self.closing.load(Ordering::Acquire);
        if let Some(cause) = self.abort.cause().filter(|_| closing) {
            // An abort gives up what is outstanding.
            self.fail(&cause.to_error("connection"), false);
        }
        if self.failure.has_failed() {
            return (Next::Done, true);
        }
        let (received, landed) = self.readers.turn(&self.inbox, assists, |inbox, reads| {
            let received = if reads { self.receive(inbox, &**socket) } else { Ok(Turn::default()) };
            let progress = received.as_ref().is_ok_and(|turn| turn.progress);
            ((received, inbox.landed()), progress)
        });
        let mut turn = match received {
            Ok(turn) => turn,
            Err(error) => {
                // A peer that is told why can say so; one that has gone or given up need not be.
                self.fail(&error, error.kind() != ErrorKind::PeerLost);
                return (Next::Done, true);
            }
        };
        spent.places.append(&mut turn.spent);
        let mut outbox = lock(&self.outbox);
        if let Some(count) = turn.acknowledge {
            outbox.acknowledge_to_peer(count);
        }
        if closing {
            // Without being asked: this process may end before the peer asks, which would take its operations for lost.
            outbox.acknowledge_to_peer(landed);
            outbox.ask();
        }
        let mut sent = outbox.progress(&**socket);
        // Not before everything is acknowledged: the peer may close the socket then.
        if closing && outbox.is_empty() && outbox.is_settled() && !self.said_bye.swap(true, Ordering::AcqRel)
        {
            outbox.interject(Frame::Bye, &[]);
            sent = sent.and_then(|_| outbox.progress(&**socket));
        }
        let finished = outbox.is_empty() && self.said_bye.load(Ordering::Acquire);
        spent.append(outbox.take_spent());
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
        if turn.again || waits == Obstacle::Device {
            return (Next::Again, turn.progress);
        }
        let read = true;
        (Next::Wait(Interest { read, write: waits == Obstacle::Socket }), turn.progress)
    }

    /// Receives what is there. With the inbox locked, so that acknowledgements are noted in the order in which they came.
    fn receive(&self, inbox: &mut Inbox, socket: &dyn RawStream) -> Result<Turn> {
        self.receive_up_to(COPIES, inbox, socket)
    }

    fn receive_up_to(&self, copies: usize, inbox: &mut Inbox, socket: &dyn RawStream) -> Result<Turn> {
        let mut turn = inbox.progress(socket, &self.regions, copies)?;
        match self.note(&mut turn) {
            Ok(()) => Ok(turn),
            Err(error) => {
                inbox.give_up(turn);
                Err(error)
            }
        }
    }

    fn note(&self, turn: &mut Turn) -> Result<()> {
        if !turn.asked.is_empty() {
            // Before another thread can acknowledge the frames that ask.
            self.outbox(|outbox| outbox.answer(turn.asked.drain(..)))?;
        }
        if turn.bye {
            self.peer_said_bye.store(true, Ordering::Release);
        }
        if let Some(count) = turn.acknowledged {
            self.acknowledged.note(&self.outbox, count, Outbox::acknowledge)?;
            self.completion.reach(count);
        }
        Ok(())
    }

    /// Ends it because nothing can be sent; what the peer said last is a better reason.
    fn cannot_send(&self, error: Error) {
        let said = self.socket.get().and_then(|socket| {
            let mut inbox = lock(&self.inbox);
            let received = self.receive_up_to(usize::MAX, &mut inbox, &**socket);
            drop(inbox);
            match received {
                Ok(turn) => {
                    self.disposer.free(Arc::new(turn.spent));
                    None
                }
                Err(said) => Some(said).filter(|said| said.kind() == ErrorKind::Remote),
            }
        });
        self.fail(&said.unwrap_or(error), false);
    }

    /// Ends it: nothing more is sent or received, and every waiting call gets the reason.
    pub(super) fn fail(&self, why: &Error, tell: bool) {
        let message = format!("the Ethernet connection to rank {} has failed: {}", self.peer, why.message());
        let reason =
            Error::new(why.kind(), "connection", message).with_peer(self.peer).with_source(why.clone());
        if !self.failure.set(reason) {
            return;
        }
        let given_up = {
            let mut inbox = lock(&self.inbox);
            inbox.close();
            inbox.take_given_up()
        };
        let mut outbox = lock(&self.outbox);
        let delivered = outbox.has_delivered();
        // In the middle of a frame the peer would take the reason for its bytes.
        let tell = tell && outbox.clear_behind_begun().is_ok();
        if let Some(socket) = self.socket.get() {
            if tell {
                let reason = why.message().as_bytes();
                let reason = &reason[..reason.len().min(MAX_REASON)];
                outbox.interject(Frame::Fail { len: reason.len() as u32 }, reason);
                // As far as the socket takes it: a peer that does not read cannot be told.
                let _ = outbox.progress(&**socket);
            }
            let _ = socket.shutdown(!tell);
        }
        outbox.close();
        let mut spent = outbox.take_spent();
        drop(outbox);
        spent.places.extend(given_up);
        spent.dispose(&self.disposer);
        self.completion.release();
        if delivered {
            log::debug!("the Ethernet connection to rank {} ends: {why}", self.peer);
            return;
        }
        log::warn!("operations to rank {} were accepted and are lost: {why}", self.peer);
        self.lost.store(true, Ordering::Release);
        if self.closing.load(Ordering::Acquire)
            && let Some(lost) = self.lost()
        {
            self.outstanding.report(lost);
        }
    }
}

impl Pollable for Duplex {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.get().expect("served only once attached").fd()
    }

    fn progress(&self) -> Next {
        let again = self.readers.check();
        let (next, progress, spent) = self.turn(false);
        spent.dispose(&self.disposer);
        if progress {
            self.readers.disturb();
        }
        match next {
            Next::Wait(_) => {
                let mut outbox = lock(&self.outbox);
                // Operations may have been taken before there was a socket.
                outbox.must_watch();
                // The next turn sends what it asks for: the socket has room.
                let activity = outbox.look_for_idleness();
                self.watch(&outbox, !self.readers.are_users());
                let idle = if let Activity::Busy(until) = activity { Some(until) } else { None };
                Next::Told([again, idle].into_iter().flatten().min())
            }
            next => next,
        }
    }

    fn lingers(&self) -> bool {
        self.is_undelivered()
    }

    fn unserved(&self, why: &Error) {
        self.fail(why, false);
    }
}

impl fmt::Debug for Duplex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Duplex").field("peer", &self.peer).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
