//! Control links: how ranks speak while they run, and how they notice that one has gone.
//!
//! When the communicator is made, up to 16 ranks are all linked to each other; in a larger one each rank opens links to
//! ranks +1, +2, +4, .. (mod n), so that about 2 log2(n) others watch it, and a link to any other rank when it is first
//! needed. A link is a unix socket on the same host, which can pass file descriptors, otherwise TCP. It carries frames
//! both ways. Two ranks that open one to each other at the same time have two; nothing depends on the order between
//! them, and either carries any frame.
//!
//! A link that ends without a BYE means that the peer is lost. Whoever notices aborts, which tells every rank it has a
//! link to, each of which passes it on once.
//!
//! A peer that has said BYE on every link has left in good order, which is no failure: what it sent has arrived. But
//! nothing more will come from it. Calls that need it fail from then on; kernels that wait for it are told to leave
//! after [`GRACE`], in which those that find everything there have long gone on; and if one did leave, its work is not
//! done, and the communicator aborts.
#![forbid(unsafe_code)]

#[cfg(all(test, loom))]
mod models;
mod service;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

pub(super) use service::Service;

use super::frames::{self, Release, Setup};
use super::holds::{HoldId, Holds};
use super::key::Key;
use super::mailbox::{Mailbox, Message};
use super::standing::{GRACE, Standing, Waiters};
use crate::abort::{Abort, AbortCause, AbortListener};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::gpu::KeepAlive;
use crate::net::{Frame, Link};
use crate::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering, lock, wait};

/// The state that the service thread and the callers share. It knows nothing of its owner, the communicator.
pub(super) struct Control {
    rank: u32,
    /// The process whose links these are: a forked child must not speak on them.
    creator: u32,
    abort: Abort,
    waiters: Arc<dyn Waiters>,
    /// Some waiters were dismissed, so that one may have left.
    dismissed: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    standing: Vec<Standing>,
    links: Vec<Vec<Link>>,
    mailbox: Mailbox,
    holds: Holds,
    /// What was released on the service thread and is dropped on another one: freeing memory can wait for kernels, and
    /// the service thread is who ends those.
    released: Vec<KeepAlive>,
    /// We said BYE: what ends now is not a failure.
    leaving: bool,
    /// Counts changes that a waiter may care about.
    version: u64,
}

impl Control {
    pub(super) fn new(rank: u32, size: u32, abort: Abort, waiters: Arc<dyn Waiters>) -> Arc<Self> {
        let state = State {
            standing: vec![Standing::Present; size as usize],
            links: vec![Vec::new(); size as usize],
            mailbox: Mailbox::default(),
            holds: Holds::default(),
            released: Vec::new(),
            leaving: false,
            version: 0,
        };
        let control = Arc::new(Self {
            rank,
            creator: std::process::id(),
            abort: abort.clone(),
            waiters,
            dismissed: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let listener: Arc<dyn AbortListener> = control.clone();
        abort.listen(&listener);
        control
    }

    pub(super) fn abort(&self) -> &Abort {
        &self.abort
    }

    /// `Ok` while `peer` can be talked to.
    pub(super) fn check_peer(&self, op: &'static str, peer: u32) -> Result<()> {
        let state = lock(&self.state);
        if state.leaving {
            return Err(Error::usage(op, "the communicator is closed"));
        }
        state.check(op, peer)
    }

    /// `Ok` while all ranks can be talked to.
    pub(super) fn check_all(&self, op: &'static str) -> Result<()> {
        let state = lock(&self.state);
        (0..state.size()).try_for_each(|peer| state.check(op, peer))
    }

    /// `Ok` while nothing has failed. Not for the service thread.
    pub(super) fn check(&self, op: &'static str) -> Result<()> {
        self.drop_released();
        self.notice_abandoned();
        self.abort.check(op)
    }

    fn drop_released(&self) {
        let released = std::mem::take(&mut lock(&self.state).released);
        drop(released);
    }

    /// Aborts if a kernel has left because the rank that it waited for had.
    fn notice_abandoned(&self) {
        if !self.dismissed.load(Ordering::Relaxed) || self.abort.is_aborted() {
            return;
        }
        let Some(awaited) = self.waiters.abandoned() else { return };
        let departed = {
            let state = lock(&self.state);
            let left = |rank: u32| matches!(state.standing.get(rank as usize), Some(Standing::Left { .. }));
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

    /// Called from time to time: tells kernels that wait for a rank that has left.
    fn tick(&self) {
        let mut departed = Vec::new();
        {
            let mut state = lock(&self.state);
            if state.leaving {
                return;
            }
            for (rank, standing) in (0..).zip(&mut state.standing) {
                if let Standing::Left { at, told: told @ false } = standing
                    && at.elapsed() >= GRACE
                {
                    *told = true;
                    departed.push(rank);
                }
            }
        }
        for rank in departed {
            self.waiters.dismiss(rank);
            self.dismissed.store(true, Ordering::Relaxed);
        }
        self.notice_abandoned();
    }

    /// A link to `peer`, if there is one.
    pub(super) fn link(&self, peer: u32) -> Option<Link> {
        lock(&self.state).links[peer as usize].first().cloned()
    }

    /// All links to `peer`.
    #[cfg(test)]
    pub(super) fn links(&self, peer: u32) -> Vec<Link> {
        lock(&self.state).links[peer as usize].clone()
    }

    /// Takes a link into use. False if it is from nobody we know.
    pub(super) fn adopt(&self, link: &Link) -> bool {
        let mut state = lock(&self.state);
        let peer = link.peer().from;
        let Some(links) = state.links.get_mut(peer as usize).filter(|_| peer != self.rank) else {
            return false;
        };
        links.push(link.clone());
        self.wake(&mut state);
        true
    }

    /// Says `message` about `key` to its peer. The link must have been opened, except to oneself.
    pub(super) fn say(&self, key: Key, attempt: u64, message: Message) -> Result<()> {
        if key.peer == self.rank {
            let mirrored = Key { kind: key.kind.counterpart(), ..key };
            let mut state = lock(&self.state);
            state.mailbox.deliver(mirrored, attempt, message)?;
            self.wake(&mut state);
            return Ok(());
        }
        let (payload, fds) = Setup { kind: key.kind, tag: key.tag, attempt, message }.encode();
        self.post(key.peer, frames::SETUP, &payload, fds)
    }

    /// Gives back receipts of something that `peer` exported. Quiet if the peer is gone: it has them back already.
    pub(super) fn give_back(&self, peer: u32, id: HoldId, count: u64) {
        if self.forked() {
            // The lock may have been held by a thread that the child does not have.
        } else if peer == self.rank {
            let released = lock(&self.state).holds.release(id, peer, count);
            drop(released);
            self.wake(&mut lock(&self.state));
        } else if let Err(error) =
            self.post(peer, frames::RELEASE, &Release { id, count }.encode(), Vec::new())
        {
            log::debug!("cannot give {id:?} back to rank {peer}: {error}");
        }
    }

    /// Keeps `keep` alive until `peer` gives it back or is gone.
    pub(super) fn hold(&self, id: HoldId, keep: KeepAlive, peer: u32) {
        lock(&self.state).holds.hold(id, keep, peer);
    }

    /// Takes one receipt back that `peer` is known not to use.
    pub(super) fn unhold(&self, id: HoldId, peer: u32) {
        let released = lock(&self.state).holds.release(id, peer, 1);
        drop(released);
    }

    /// The memory that peers still have open, taken out for good.
    pub(super) fn take_held_memory(&self) -> Vec<KeepAlive> {
        lock(&self.state).holds.take_memory()
    }

    /// Runs `f` on the mailbox.
    pub(super) fn with_mailbox<T>(&self, f: impl FnOnce(&mut Mailbox) -> T) -> T {
        f(&mut lock(&self.state).mailbox)
    }

    /// Number of the latest change; pass it to [`wait`](Self::wait).
    pub(super) fn version(&self) -> u64 {
        lock(&self.state).version
    }

    /// Waits for a change after `seen`. False if the deadline passed first.
    pub(super) fn wait(&self, seen: u64, deadline: Deadline) -> bool {
        self.wait_until(deadline, |state| state.version != seen)
    }

    /// Waits until no peer has any of our memory open by a legacy handle; not any longer once the communicator has
    /// failed, because then nobody may be left to give it back.
    pub(super) fn wait_released(&self, deadline: Deadline) -> bool {
        self.wait_until(deadline, |state| self.abort.is_aborted() || !state.holds.holds_memory());
        self.drop_released();
        !lock(&self.state).holds.holds_memory()
    }

    /// Waits until each of `peers` is linked to us, has left, or the communicator has failed.
    pub(super) fn wait_linked(&self, peers: &[u32], deadline: Deadline) -> Result<()> {
        const OP: &str = "Communicator::new";
        let missing = |state: &State| {
            let there = |p: u32| !state.links[p as usize].is_empty() || state.standing[p as usize].is_gone();
            peers.iter().copied().find(|p| !there(*p))
        };
        let in_time = self.wait_until(deadline, |state| self.abort.is_aborted() || missing(state).is_none());
        self.abort.check(OP)?;
        match missing(&lock(&self.state)) {
            Some(peer) if !in_time => {
                let message = format!("rank {peer} did not open its control link before the deadline");
                Err(Error::timeout(OP, message).with_peer(peer))
            }
            _ => Ok(()),
        }
    }

    /// Says BYE on every link, once. The links it was said on.
    pub(super) fn leave(&self) -> Vec<Link> {
        if self.forked() {
            return Vec::new();
        }
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.leaving, true) {
            return Vec::new();
        }
        let links: Vec<Link> = state.links.iter().flatten().cloned().collect();
        drop(state);
        for link in &links {
            if let Err(error) = link.post(frames::BYE, &[]) {
                log::debug!("cannot say BYE to rank {}: {error}", link.peer().from);
            }
        }
        links
    }

    /// The peer is lost: remembers why, and aborts.
    pub(super) fn lose(&self, peer: u32, why: impl std::fmt::Display) {
        let why = why.to_string();
        {
            let mut state = lock(&self.state);
            if state.leaving || state.standing[peer as usize].is_gone() {
                return;
            }
            state.standing[peer as usize] = Standing::Lost(why.clone());
            state.release_all(peer);
            self.wake(&mut state);
        }
        self.abort.abort(AbortCause::peer_lost(peer, format!("{why} (noticed by rank {})", self.rank)));
    }

    fn post(&self, peer: u32, kind: u16, payload: &[u8], fds: Vec<OwnedFd>) -> Result<()> {
        if self.forked() {
            return Err(Error::usage("post", "control links do not survive fork"));
        }
        let Some(link) = self.link(peer) else {
            return Err(Error::peer_lost("post", peer, "there is no control link to it"));
        };
        if fds.is_empty() { link.post(kind, payload) } else { link.post_fds(kind, payload, fds) }
    }

    fn forked(&self) -> bool {
        std::process::id() != self.creator
    }

    fn wait_until(&self, deadline: Deadline, done: impl Fn(&State) -> bool) -> bool {
        let mut state = lock(&self.state);
        loop {
            if done(&state) {
                return true;
            }
            if deadline.expired() {
                return false;
            }
            state = wait(&self.changed, state, deadline);
        }
    }

    fn wake(&self, state: &mut MutexGuard<'_, State>) {
        state.version += 1;
        self.changed.notify_all();
    }

    /// One frame from `peer`. An error is the peer's, and ends it.
    fn receive(&self, link: &Link, frame: Frame) -> Result<()> {
        let peer = link.peer().from;
        match frame.kind {
            frames::SETUP => {
                let setup = Setup::decode(peer, &frame.payload, frame.fds)?;
                let key = Key { kind: setup.kind.counterpart(), peer, tag: setup.tag };
                let mut state = lock(&self.state);
                state.mailbox.deliver(key, setup.attempt, setup.message)?;
                self.wake(&mut state);
            }
            frames::RELEASE => {
                let Release { id, count } = Release::decode(&frame.payload)?;
                let mut state = lock(&self.state);
                let released = state.holds.release(id, peer, count);
                state.released.extend(released);
                self.wake(&mut state);
            }
            frames::FAILURE => {
                let size = lock(&self.state).size();
                self.hear_failure(frames::decode_failure(&frame.payload, size)?);
            }
            frames::BYE => self.end(link, None),
            frames::HEARTBEAT => {}
            other => {
                let message =
                    format!("a frame of unknown kind {other}; use one version of aqueduct everywhere");
                return Err(Error::new(crate::ErrorKind::Remote, "control link", message).with_peer(peer));
            }
        }
        Ok(())
    }

    /// `link` carries nothing more: after a BYE, or because it ended for the reason `why`.
    fn end(&self, link: &Link, why: Option<&Error>) {
        let peer = link.peer().from;
        let mut state = lock(&self.state);
        let Some(links) = state.links.get_mut(peer as usize) else { return };
        links.retain(|known| known.id() != link.id());
        let last = links.is_empty();
        match (&state.standing[peer as usize], why) {
            (Standing::Present, Some(why)) => {
                drop(state);
                return self.lose(peer, why.message());
            }
            (Standing::Present | Standing::Leaving, _) if last => {
                state.standing[peer as usize] = Standing::Left { at: Instant::now(), told: false };
            }
            (Standing::Present, _) => state.standing[peer as usize] = Standing::Leaving,
            _ => return,
        }
        if last {
            state.release_all(peer);
        }
        self.wake(&mut state);
    }

    fn hear_failure(&self, cause: AbortCause) {
        if let (crate::ErrorKind::PeerLost, Some(rank)) = (cause.kind, cause.rank)
            && rank != self.rank
        {
            let mut state = lock(&self.state);
            if !state.standing[rank as usize].is_gone() {
                state.standing[rank as usize] = Standing::Lost(cause.reason.clone());
            }
            state.release_all(rank);
        }
        self.abort.abort(cause);
    }
}

impl State {
    fn release_all(&mut self, peer: u32) {
        let released = self.holds.release_all(peer);
        self.released.extend(released);
    }

    fn size(&self) -> u32 {
        u32::try_from(self.standing.len()).unwrap_or(u32::MAX)
    }

    fn check(&self, op: &'static str, peer: u32) -> Result<()> {
        self.standing[peer as usize].check(op, peer)
    }
}

impl AbortListener for Control {
    /// Tells everyone we have a link to, and wakes who waits here.
    fn aborted(&self, cause: &AbortCause) {
        let mut state = lock(&self.state);
        self.wake(&mut state);
        let links: Vec<Link> = state.links.iter().flatten().cloned().collect();
        drop(state);
        let payload = frames::encode_failure(cause);
        for link in links {
            if let Err(error) = link.post(frames::FAILURE, &payload) {
                log::debug!("cannot tell rank {} of the failure: {error}", link.peer().from);
            }
        }
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("Control")
            .field("rank", &self.rank)
            .field("standing", &state.standing)
            .field("holds", &state.holds)
            .finish_non_exhaustive()
    }
}
