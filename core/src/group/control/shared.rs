//! The state that the service thread and the callers share: what it tells, and waiting for it to change.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use super::deferred::Released;
use super::state::State;
use crate::abort::{Abort, AbortCause, AbortListener};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::fork::Creator;
use crate::group::peer::PeerInfo;
use crate::group::peer_state::{PeerState, Waiters};
use crate::group::subscriber::{Deferred, Subscribers};
use crate::net::Link;
use crate::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering, lock, wait};

/// How long the reason of a broken link may be on its way.
const NEWS: Duration = Duration::from_millis(500);
/// How long the word that a rank leaves may come behind the end of its connections.
const LEAVING: Duration = Duration::from_millis(200);

/// Everything that a rank supplies to become a member of a group.
pub(crate) struct Member {
    /// A failure of the group aborts this.
    pub(crate) abort: Abort,
    pub(crate) waiters: Arc<dyn Waiters>,
    /// The receivers of frames that are not the group's own.
    pub(crate) subscribers: Subscribers,
    /// The group is being made as the next generation of another one, see [`Membership::new`].
    pub(crate) succeeds: bool,
}

/// State shared by the service thread and the callers. It holds no reference to its owner, the communicator.
pub(crate) struct Control {
    pub(super) rank: u32,
    /// The process whose links these are: a forked child must not speak on them.
    pub(super) creator: Creator,
    pub(super) abort: Abort,
    pub(super) waiters: Arc<dyn Waiters>,
    pub(super) subscribers: Subscribers,
    /// Some waiters were dismissed, so that one may have left.
    pub(super) dismissed: AtomicBool,
    /// This rank has said BYE: nothing more can be asked for, and a link that ends is no failure. Set with the state locked.
    pub(super) left: AtomicBool,
    /// The program closed the communicator, before everything was dropped.
    pub(super) closed: AtomicBool,
    /// Some peer is not simply there. Set with the state locked, before anybody can see why.
    pub(super) uneasy: AtomicBool,
    pub(super) released: Released,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

impl Control {
    /// `peer_timeout`: how long a peer may be silent, see [`CommunicatorConfig`](super::CommunicatorConfig::peer_timeout).
    pub(crate) fn new(rank: u32, size: u32, member: Member, peer_timeout: Option<Duration>) -> Arc<Self> {
        let Member { abort, waiters, subscribers, succeeds } = member;
        let state = State::new(rank, size, succeeds, peer_timeout);
        let control = Arc::new(Self {
            rank,
            creator: Creator::current(),
            abort: abort.clone(),
            waiters,
            subscribers,
            dismissed: AtomicBool::new(false),
            left: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            uneasy: AtomicBool::new(false),
            released: Released::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let listener: Arc<dyn AbortListener> = control.clone();
        abort.listen(&listener);
        control
    }

    pub(crate) fn abort(&self) -> &Abort {
        &self.abort
    }

    /// `Ok` while `peer` can be talked to. One load while all is well: every operation of a connection asks.
    #[inline]
    pub(crate) fn check_peer(&self, op: &'static str, peer: u32) -> Result<()> {
        if self.uneasy.load(Ordering::Acquire) { self.check_state(op, peer) } else { Ok(()) }
    }

    /// `Ok` while there may be a path to `peer`, even after a failure.
    pub(crate) fn check_reach(&self, op: &'static str, peer: u32) -> Result<()> {
        let state = lock(&self.state);
        match &state.peer_states[peer as usize] {
            PeerState::Suspected(_) => Ok(()),
            peer_state => peer_state.check(op, peer).map_err(|error| self.first_cause(op, error)),
        }
    }

    /// Whether `peer` has left in good order.
    pub(crate) fn has_said_bye(&self, peer: u32) -> bool {
        matches!(lock(&self.state).peer_states[peer as usize], PeerState::Left { .. })
    }

    #[cold]
    fn check_state(&self, op: &'static str, peer: u32) -> Result<()> {
        let state = lock(&self.state);
        state.check(op, peer).map_err(|error| self.first_cause(op, error))
    }

    /// `Ok` while all ranks can be talked to. One load while all is well.
    pub(crate) fn check_all(&self, op: &'static str) -> Result<()> {
        if !self.uneasy.load(Ordering::Acquire) {
            return Ok(());
        }
        let state = lock(&self.state);
        (0..state.size())
            .try_for_each(|peer| state.check(op, peer))
            .map_err(|error| self.first_cause(op, error))
    }

    /// `error`, or the failure before it: a rank that left after a failure left because of it.
    pub(super) fn first_cause(&self, op: &'static str, error: Error) -> Error {
        self.abort.cause().map_or(error, |cause| cause.to_error(op))
    }

    /// Drops the values given to [`drop_later`](Self::drop_later) and those that peers have given back, unless a
    /// service thread asks.
    pub(crate) fn drop_released(&self) {
        if !self.forked() {
            self.released.drop_all();
        }
    }

    /// Keeps `what`, whose drop may block, until a call of the user's drops it.
    pub(crate) fn drop_later(&self, what: Deferred) {
        if !self.forked() {
            self.released.keep([what]);
        }
    }

    /// The ranks that are lost, as far as is known here.
    pub(crate) fn lost(&self) -> Vec<u32> {
        if self.forked() {
            return Vec::new();
        }
        let state = lock(&self.state);
        let mut lost: Vec<u32> = state.lost().collect();
        // The cause of an abort is known before the state says so: a caller that has just heard it finds the rank here.
        if let Some(AbortCause { kind: ErrorKind::PeerLost, rank: Some(rank), .. }) = self.abort.cause()
            && !matches!(state.peer_states.get(*rank as usize), Some(PeerState::Left { .. }) | None)
            && let Err(place) = lost.binary_search(rank)
        {
            lost.insert(place, *rank);
        }
        lost
    }

    /// `Ok` while nothing has failed. A few loads while all is well. Also drops the values given to
    /// [`drop_later`](Self::drop_later), unless a service thread asks.
    #[inline]
    pub(crate) fn check(&self, op: &'static str) -> Result<()> {
        self.check_running(op)?;
        self.check_open(op)
    }

    /// [`check`](Self::check), also of a rank that has left.
    #[inline]
    fn check_running(&self, op: &'static str) -> Result<()> {
        self.released.drop_all();
        self.notice_abandoned();
        self.abort.check(op)
    }

    /// `Ok` until this rank has left.
    #[inline]
    pub(super) fn check_open(&self, op: &'static str) -> Result<()> {
        if self.has_left() {
            return Err(Error::new(ErrorKind::Stopped, op, "the communicator was closed"));
        }
        Ok(())
    }

    #[inline]
    pub(super) fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Aborts if a kernel has left because the rank that it waited for had.
    #[inline]
    pub(super) fn notice_abandoned(&self) {
        if self.dismissed.load(Ordering::Acquire) && !self.abort.is_aborted() {
            self.look_for_abandoned();
        }
    }

    #[cold]
    fn look_for_abandoned(&self) {
        let Some(awaited) = self.waiters.abandoned() else { return };
        if self.has_left() {
            let reason = "it closed the communicator while a kernel of its own waited; synchronize its streams before close";
            self.abort.abort(AbortCause::requested(self.rank, reason));
            return;
        }
        let departed = {
            let state = lock(&self.state);
            let left =
                |rank: u32| matches!(state.peer_states.get(rank as usize), Some(PeerState::Left { .. }));
            awaited.filter(|rank| left(*rank)).or_else(|| (0..state.size()).find(|rank| left(*rank)))
        };
        if let Some(rank) = departed {
            let reason = format!(
                "it left the communicator in good order while a kernel of rank {} waited for it; let all ranks finish \
                 their work before one leaves",
                self.rank
            );
            self.abort.abort(AbortCause::peer_lost(rank, reason));
        }
    }

    /// A link to `peer`, if there is one.
    pub(crate) fn link(&self, peer: u32) -> Option<Link> {
        lock(&self.state).links[peer as usize].first().map(|monitored| monitored.link.clone())
    }

    /// All links to `peer`.
    #[cfg(test)]
    pub(crate) fn links(&self, peer: u32) -> Vec<Link> {
        lock(&self.state).links[peer as usize].iter().map(|monitored| monitored.link.clone()).collect()
    }

    /// How many links there are, and the bytes sent on them.
    pub(crate) fn traffic(&self) -> (usize, u64) {
        let state = lock(&self.state);
        let links = state.links.iter().flatten();
        links.fold((0, 0), |(count, bytes), monitored| (count + 1, bytes + monitored.link.sent()))
    }

    /// `error` of a broken link, or the reason why it broke, which the service thread may still have to read.
    pub(crate) fn explained(&self, op: &'static str, error: Error) -> Error {
        if error.kind() == ErrorKind::PeerLost {
            self.wait_until(Deadline::after(NEWS), |_| self.abort.is_aborted());
        }
        self.first_cause(op, error)
    }

    /// The error of `op`, which needed a connection that has ended with `error`. A rank that leaves closes its connections first, and the
    /// service thread may still have to read that it has left.
    pub(crate) fn ended(&self, op: &'static str, error: Error) -> Error {
        let error = error.of(op);
        let Some(peer) = error.peer() else { return error };
        // Of two ranks that close, this one was closed by its own caller.
        if error.kind() == ErrorKind::PeerLost && self.has_said_bye(peer) {
            return self.check_open(op).err().unwrap_or(error);
        }
        if error.kind() != ErrorKind::Remote {
            return error;
        }
        // Once for each peer: many outcomes, and polls of them, may ask.
        let first = !std::mem::replace(&mut lock(&self.state).ended[peer as usize], true);
        let limit = if first { LEAVING } else { Duration::ZERO };
        self.wait_until(Deadline::after(limit), |state| {
            self.has_left() || self.abort.is_aborted() || state.peer_states[peer as usize].is_gone()
        });
        let why =
            self.check_open(op).and_then(|()| self.abort.check(op)).and_then(|()| self.check_peer(op, peer));
        why.err().unwrap_or(error)
    }

    /// Takes what every rank said about itself.
    pub(crate) fn introduce(&self, peers: &Arc<[PeerInfo]>) {
        let host = |peer: &PeerInfo| peers.iter().position(|other| other.same_host(peer)).unwrap_or(0) as u32;
        let hosts = peers.iter().map(host).collect();
        let mut state = lock(&self.state);
        state.peers = peers.clone();
        state.membership.set_hosts(hosts);
    }

    /// Number of the latest change; pass it to [`wait`](Self::wait).
    pub(crate) fn version(&self) -> u64 {
        lock(&self.state).version
    }

    /// Waits for a change after `seen`. False if the deadline passed first.
    pub(crate) fn wait(&self, seen: u64, deadline: Deadline) -> bool {
        self.wait_until(deadline, |state| state.version != seen)
    }

    /// Waits until each of `peers` is linked to us, has left, or the communicator has failed.
    pub(crate) fn wait_linked(&self, peers: &[u32], deadline: Deadline) -> Result<()> {
        const OP: &str = "Communicator::new";
        let in_time =
            self.wait_until(deadline, |state| self.abort.is_aborted() || state.unlinked(peers).is_none());
        self.abort.check(OP)?;
        let missing = lock(&self.state).unlinked(peers);
        match missing {
            Some(peer) if !in_time => {
                let message = format!("rank {peer} did not open its control link before the deadline");
                Err(Error::timeout(OP, message).with_peer(peer))
            }
            _ => Ok(()),
        }
    }

    /// Waits until each of `peers` is linked to this rank or gone, even after a failure.
    pub(crate) fn linger(&self, peers: &[u32], deadline: Deadline) {
        self.wait_until(deadline, |state| state.unlinked(peers).is_none());
    }

    #[inline]
    pub(crate) fn forked(&self) -> bool {
        self.creator.forked()
    }

    pub(super) fn wait_until(&self, deadline: Deadline, mut done: impl FnMut(&mut State) -> bool) -> bool {
        let mut state = lock(&self.state);
        loop {
            if done(&mut state) {
                return true;
            }
            if deadline.expired() {
                return false;
            }
            state = wait(&self.changed, state, deadline);
        }
    }

    /// After every change of the state, with it still locked.
    pub(super) fn wake(&self, state: &mut MutexGuard<'_, State>) {
        state.version += 1;
        if state.peer_states.iter().any(|peer_state| *peer_state != PeerState::Present) {
            self.uneasy.store(true, Ordering::Release);
        }
        self.changed.notify_all();
        self.subscribers.changed();
    }

    /// Tells the subscribers that `peer` is gone.
    pub(super) fn tell_gone(&self, peer: u32) {
        let mut later = Vec::new();
        self.subscribers.gone(peer, &mut later);
        self.released.keep(later);
    }
}

/// Kernels that wait for a peer give up when the communicator aborts, and some time after a rank has left. A rank that left
/// with its last owner, which may have been a stream, has failed no kernel that ended before.
impl crate::outcome::Outcome for Control {
    fn outcome(&self, op: &'static str) -> Result<()> {
        if self.forked() {
            return Ok(());
        }
        self.check_running(op)?;
        // Kernels were told to leave a closed communicator. One that leaves no record would go unnoticed.
        let told = self.closed.load(Ordering::Acquire) && self.dismissed.load(Ordering::Acquire);
        if told { self.check_open(op) } else { Ok(()) }
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("Control")
            .field("rank", &self.rank)
            .field("peer_states", &state.peer_states)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
