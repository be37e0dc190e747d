//! Control links: how ranks speak while they run, and how they notice that one has gone.
//!
//! When the communicator is made, up to 16 ranks are all linked to each other; in a larger one each rank opens links to
//! ranks +1, +2, +4, .. (mod n), so that about 2 log2(n) others watch it, and a link to any other rank when it is first
//! needed. A link is a unix socket on the same host, which can pass file descriptors, otherwise TCP. It carries frames
//! both ways. Two ranks that open one to each other at the same time have two; nothing depends on the order between
//! them, and either carries any frame.
//!
//! A link that ends without a BYE means that the peer is lost, and so does one on which nothing comes for too long
//! ([`heartbeat`](crate::net::heartbeat)). Whoever notices aborts, which tells every rank it has a link to, each of which passes it on once
//! ([`failure`]). Who goes on after that is agreed over the same links ([`membership`](crate::group::membership)).
//!
//! A peer that has said BYE on every link has left in good order, which is no failure: what it sent has arrived. But
//! nothing more will come from it. Calls that need it fail from then on; kernels that wait for it are told to leave
//! after [`GRACE`](crate::group::standing::GRACE), in which those that find everything there have long gone on; and if one did leave, its work is not
//! done, and the communicator aborts.
#![forbid(unsafe_code)]

mod agree;
mod deferred;
mod failure;
mod mail;
mod presence;
mod service;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use agree::Outcome;
#[cfg(feature = "fuzzing")]
pub(crate) use mail::fuzzing;
pub(crate) use mail::{Address, Needs};
pub(crate) use service::Service;

use self::mail::Mail;
use crate::abort::{Abort, AbortListener};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::fork::Creator;
use crate::group::frames;
use crate::group::membership::{Membership, Ranks};
use crate::group::peer::PeerInfo;
use crate::group::standing::{Standing, Waiters};
use crate::group::subscriber::{Deferred, Reaction, Subscribers};
use crate::net::heartbeat::{Monitor, MonitoredLink};
use crate::net::{Frame, Link};
use crate::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering, lock, wait};

/// How long the reason of a broken link may be on its way.
const NEWS: Duration = Duration::from_millis(500);

/// What a rank brings along when it becomes a member.
pub(crate) struct Member {
    /// The switch that a failure of the group turns.
    pub(crate) abort: Abort,
    pub(crate) waiters: Arc<dyn Waiters>,
    /// Those who take the frames that are not the group's own.
    pub(crate) subscribers: Subscribers,
    /// The group is being made as the next generation of another one, see [`Membership::new`].
    pub(crate) succeeds: bool,
}

/// The state that the service thread and the callers share. It knows nothing of its owner, the communicator.
pub(crate) struct Control {
    rank: u32,
    /// The process whose links these are: a forked child must not speak on them.
    creator: Creator,
    abort: Abort,
    waiters: Arc<dyn Waiters>,
    subscribers: Subscribers,
    /// Some waiters were dismissed, so that one may have left.
    dismissed: AtomicBool,
    /// Some peer is not simply there, or this rank has left. Set with the state locked, before anybody can see why.
    uneasy: AtomicBool,
    /// The state may hold something to be dropped. Set with the state locked.
    untidy: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    standing: Vec<Standing>,
    lines: Vec<Vec<MonitoredLink>>,
    watch: Monitor,
    /// Tells whether a path is silent enough to believe another rank that has lost its peer.
    doubt: Monitor,
    mail: Mail,
    membership: Membership,
    /// What every rank said about itself, once that is known.
    peers: Arc<[PeerInfo]>,
    /// Why others have given this rank up, once one has.
    given_up: Option<String>,
    /// Those who said so themselves: their links end because of that, and not with their processes.
    given_up_by: Ranks,
    /// Why this rank can be a member of no later group, once that is so.
    outside: Option<String>,
    /// What was released on the service thread and is dropped on another one: freeing memory can wait for kernels, and
    /// the service thread is who ends those.
    released: Vec<Deferred>,
    /// We said BYE: what ends now is not a failure.
    leaving: bool,
    /// Counts changes that a waiter may care about.
    version: u64,
}

impl Control {
    /// `peer_timeout`: how long a peer may be silent, see [`CommunicatorConfig`](super::CommunicatorConfig::peer_timeout).
    pub(crate) fn new(rank: u32, size: u32, member: Member, peer_timeout: Option<Duration>) -> Arc<Self> {
        let Member { abort, waiters, subscribers, succeeds } = member;
        let state = State {
            standing: vec![Standing::Present; size as usize],
            lines: vec![Vec::new(); size as usize],
            watch: Monitor::new(peer_timeout),
            doubt: Monitor::new(peer_timeout.map(|timeout| timeout / 2)),
            mail: Mail::default(),
            membership: Membership::new(rank, (0..size).collect(), succeeds),
            peers: Arc::default(),
            given_up: None,
            given_up_by: Ranks::new(),
            outside: None,
            released: Vec::new(),
            leaving: false,
            version: 0,
        };
        let control = Arc::new(Self {
            rank,
            creator: Creator::current(),
            abort: abort.clone(),
            waiters,
            subscribers,
            dismissed: AtomicBool::new(false),
            uneasy: AtomicBool::new(false),
            untidy: AtomicBool::new(false),
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
        if self.uneasy.load(Ordering::Acquire) { self.check_standing(op, peer) } else { Ok(()) }
    }

    /// `Ok` while there may be a path to `peer`, for all that has failed.
    pub(crate) fn check_reach(&self, op: &'static str, peer: u32) -> Result<()> {
        let state = lock(&self.state);
        match &state.standing[peer as usize] {
            Standing::Suspected(_) => Ok(()),
            standing => standing.check(op, peer).map_err(|error| self.first_cause(op, error)),
        }
    }

    #[cold]
    fn check_standing(&self, op: &'static str, peer: u32) -> Result<()> {
        let state = lock(&self.state);
        if state.leaving {
            return Err(Error::usage(op, "the communicator is closed"));
        }
        state.check(op, peer).map_err(|error| self.first_cause(op, error))
    }

    /// `Ok` while all ranks can be talked to.
    pub(crate) fn check_all(&self, op: &'static str) -> Result<()> {
        let state = lock(&self.state);
        (0..state.size())
            .try_for_each(|peer| state.check(op, peer))
            .map_err(|error| self.first_cause(op, error))
    }

    /// Who left after a failure left because of it.
    fn first_cause(&self, op: &'static str, error: Error) -> Error {
        self.abort.cause().map_or(error, |cause| cause.to_error(op))
    }

    /// The ranks that are lost, as far as is known here.
    pub(crate) fn lost(&self) -> Vec<u32> {
        if self.forked() {
            return Vec::new();
        }
        lock(&self.state).lost().collect()
    }

    /// `Ok` while nothing has failed. A few loads while all is well. Not for the service thread.
    #[inline]
    pub(crate) fn check(&self, op: &'static str) -> Result<()> {
        self.drop_released();
        self.notice_abandoned();
        self.abort.check(op)
    }

    /// A link to `peer`, if there is one.
    pub(crate) fn link(&self, peer: u32) -> Option<Link> {
        lock(&self.state).lines[peer as usize].first().map(|line| line.link.clone())
    }

    /// All links to `peer`.
    #[cfg(test)]
    pub(crate) fn links(&self, peer: u32) -> Vec<Link> {
        lock(&self.state).lines[peer as usize].iter().map(|line| line.link.clone()).collect()
    }

    /// How many links there are, and the bytes sent on them.
    pub(crate) fn traffic(&self) -> (usize, u64) {
        let state = lock(&self.state);
        let lines = state.lines.iter().flatten();
        lines.fold((0, 0), |(count, bytes), line| (count + 1, bytes + line.link.sent()))
    }

    /// Takes a link into use. False if it is from nobody we know, or from a rank that was given up.
    pub(crate) fn adopt(&self, link: &Link) -> bool {
        let mut state = lock(&self.state);
        let peer = link.peer().from;
        let known = state.standing.get(peer as usize).filter(|_| peer != self.rank);
        if known.is_none_or(|standing| matches!(standing, Standing::Lost(_))) {
            return false;
        }
        state.lines[peer as usize].push(MonitoredLink::new(link.clone()));
        state.membership.linked(peer);
        self.wake(&mut state);
        drop(state);
        self.send_membership();
        // After the link is in the list: either the abort finds it there, or it is found here.
        if let Some(cause) = self.abort.cause() {
            self.tell(std::slice::from_ref(link), cause);
        }
        true
    }

    /// `error` of a broken link, or the reason why it broke, which the service thread may still have to read.
    pub(crate) fn explained(&self, op: &'static str, error: Error) -> Error {
        if error.kind() == crate::ErrorKind::PeerLost {
            self.wait_until(Deadline::after(NEWS), |_| self.abort.is_aborted());
        }
        self.first_cause(op, error)
    }

    /// Learns who the ranks are.
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

    /// Waits until each of `peers` is linked to us or gone, for all that has failed.
    pub(crate) fn linger(&self, peers: &[u32], deadline: Deadline) {
        self.wait_until(deadline, |state| state.unlinked(peers).is_none());
    }

    /// Says BYE on every link, once. The links it was said on.
    pub(crate) fn leave(&self) -> Vec<Link> {
        if self.forked() {
            return Vec::new();
        }
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.leaving, true) {
            return Vec::new();
        }
        self.uneasy.store(true, Ordering::Release);
        let links = state.all_links();
        state.membership.last_words();
        drop(state);
        self.send_membership();
        // Whoever leaves because of a failure must not seem to leave in good order.
        if let Some(cause) = self.abort.cause() {
            self.tell(&links, cause);
        }
        for link in &links {
            if let Err(error) = link.post(frames::BYE, &[]) {
                log::debug!("cannot say BYE to rank {}: {error}", link.peer().from);
            }
        }
        links
    }

    /// Sends a frame to `peer`, to which there is a link. Never waits.
    pub(crate) fn post(&self, peer: u32, kind: u16, payload: &[u8], fds: Vec<OwnedFd>) -> Result<()> {
        if self.forked() {
            return Err(Error::usage("post", "control links do not survive fork"));
        }
        let link = {
            let mut state = lock(&self.state);
            let line = state.lines[peer as usize].first_mut();
            line.map(|line| {
                line.say(Instant::now());
                line.link.clone()
            })
        };
        let Some(link) = link else {
            return Err(Error::peer_lost("post", peer, "there is no control link to it"));
        };
        let posted = link.post_fds(kind, payload, fds);
        if let Err(error) = &posted
            && error.kind() == crate::ErrorKind::Remote
        {
            // It takes nothing while its link is full: it will not come back to it.
            self.lose(peer, error.message());
        }
        posted
    }

    #[inline]
    pub(crate) fn forked(&self) -> bool {
        self.creator.forked()
    }

    fn wait_until(&self, deadline: Deadline, mut done: impl FnMut(&mut State) -> bool) -> bool {
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
    fn wake(&self, state: &mut MutexGuard<'_, State>) {
        state.version += 1;
        if state.standing.iter().any(|standing| *standing != Standing::Present) {
            self.uneasy.store(true, Ordering::Release);
        }
        if !state.released.is_empty() {
            self.untidy.store(true, Ordering::Release);
        }
        self.changed.notify_all();
        self.subscribers.changed();
    }

    /// One frame from `peer`. An error is the peer's, and ends it.
    fn receive(&self, link: &Link, frame: Frame) -> Result<()> {
        let peer = link.peer().from;
        lock(&self.state).hear(link);
        match frame.kind {
            frames::FAILURE => {
                let size = lock(&self.state).size();
                self.hear_failure(peer, frames::decode_failure(&frame.payload, size)?);
            }
            frames::BYE => self.end(link, None),
            frames::HEARTBEAT => {}
            frames::MAIL => self.hear_mail(peer, &frame.payload)?,
            frames::MEMBERSHIP => self.hear_membership(peer, &frame.payload)?,
            other => {
                if let Some(subscriber) = self.subscribers.of(other) {
                    let mut reaction = Reaction::default();
                    let taken = subscriber.frame(peer, &frame.payload, frame.fds, &mut reaction);
                    reaction.later.into_iter().for_each(|what| self.drop_elsewhere(what));
                    for (kind, payload) in reaction.answers {
                        if let Err(error) = self.post(peer, kind, &payload, Vec::new()) {
                            log::debug!("cannot answer rank {peer}: {error}");
                        }
                    }
                    return taken;
                }
                let message =
                    format!("a frame of unknown kind {other}; use one version of aqueduct everywhere");
                return Err(Error::new(crate::ErrorKind::Remote, "control link", message).with_peer(peer));
            }
        }
        Ok(())
    }
}

/// Kernels that wait for a peer give up when the communicator aborts, and when the peer has left: only `check` finds the latter.
impl crate::failure::Outcome for Control {
    fn outcome(&self, op: &'static str) -> Result<()> {
        if self.forked() { Ok(()) } else { self.check(op) }
    }
}

impl State {
    /// The first of `peers` that is there and has no link to us.
    fn unlinked(&self, peers: &[u32]) -> Option<u32> {
        let there = |p: u32| !self.lines[p as usize].is_empty() || self.standing[p as usize].is_failed();
        peers.iter().copied().find(|p| !there(*p))
    }

    fn all_links(&self) -> Vec<Link> {
        self.lines.iter().flatten().map(|line| line.link.clone()).collect()
    }

    fn size(&self) -> u32 {
        u32::try_from(self.standing.len()).unwrap_or(u32::MAX)
    }

    fn check(&self, op: &'static str, peer: u32) -> Result<()> {
        self.standing[peer as usize].check(op, peer)
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("Control")
            .field("rank", &self.rank)
            .field("standing", &state.standing)
            .finish_non_exhaustive()
    }
}
