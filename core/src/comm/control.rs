//! Control links: how ranks speak while they run, and how they notice that one has gone.
//!
//! When the communicator is made, up to 16 ranks are all linked to each other; in a larger one each rank opens links to
//! ranks +1, +2, +4, .. (mod n), so that about 2 log2(n) others watch it, and a link to any other rank when it is first
//! needed. A link is a unix socket on the same host, which can pass file descriptors, otherwise TCP. A link carries frames both ways. Two ranks that open one to each other at
//! the same time have two; nothing depends on the order between them, and either carries any frame.
//!
//! A link that ends without a BYE means that the peer is lost. Whoever notices aborts, which tells every rank it has a
//! link to, each of which passes it on once.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::frames::{self, Release, Setup};
use super::holds::{HoldId, Holds};
use super::key::Key;
use super::mailbox::{Mailbox, Message};
use crate::abort::{Abort, AbortCause, AbortListener};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::gpu::KeepAlive;
use crate::net::{Frame, Handler, Link};
use crate::sync::{Condvar, Mutex, MutexGuard, lock, wait};

/// What is known of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    Present,
    /// It said BYE.
    Left,
    Lost(String),
}

/// The state that the service thread and the callers share. It knows nothing of its owner, the communicator.
pub(super) struct Control {
    rank: u32,
    /// The process whose links these are: a forked child must not speak on them.
    creator: u32,
    abort: Abort,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    standing: Vec<Standing>,
    links: Vec<Vec<Link>>,
    mailbox: Mailbox,
    holds: Holds,
    /// We said BYE: what ends now is not a failure.
    leaving: bool,
    /// Counts changes that a waiter may care about.
    version: u64,
}

impl Control {
    pub(super) fn new(rank: u32, size: u32, abort: Abort) -> Arc<Self> {
        let state = State {
            standing: vec![Standing::Present; size as usize],
            links: vec![Vec::new(); size as usize],
            mailbox: Mailbox::default(),
            holds: Holds::default(),
            leaving: false,
            version: 0,
        };
        let control = Arc::new(Self {
            rank,
            creator: std::process::id(),
            abort: abort.clone(),
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
        match &state.standing[peer as usize] {
            Standing::Present => Ok(()),
            Standing::Left => Err(Error::peer_lost(op, peer, "it has left the communicator in good order")),
            Standing::Lost(why) => Err(Error::peer_lost(op, peer, why)),
        }
    }

    /// A link to `peer`, if there is one.
    pub(super) fn link(&self, peer: u32) -> Option<Link> {
        lock(&self.state).links[peer as usize].first().cloned()
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
        if peer == self.rank {
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

    /// Waits until no peer has any of our memory open by a legacy handle.
    pub(super) fn wait_released(&self, deadline: Deadline) -> bool {
        self.wait_until(deadline, |state| !state.holds.holds_memory())
    }

    /// Waits until each of `peers` is linked to us, has left, or the communicator has failed.
    pub(super) fn wait_linked(&self, peers: &[u32], deadline: Deadline) -> Result<()> {
        const OP: &str = "Communicator::new";
        let missing = |state: &State| {
            let there = |p: u32| {
                !state.links[p as usize].is_empty() || state.standing[p as usize] != Standing::Present
            };
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
        let released = {
            let mut state = lock(&self.state);
            if state.leaving || state.standing[peer as usize] != Standing::Present {
                return;
            }
            state.standing[peer as usize] = Standing::Lost(why.clone());
            let released = state.holds.release_all(peer);
            self.wake(&mut state);
            released
        };
        drop(released);
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
    fn receive(&self, peer: u32, frame: Frame) -> Result<()> {
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
                let released = lock(&self.state).holds.release(id, peer, count);
                drop(released);
                self.wake(&mut lock(&self.state));
            }
            frames::FAILURE => self.hear_failure(frames::decode_failure(&frame.payload, self.size())?),
            frames::BYE => {
                let mut state = lock(&self.state);
                if state.standing[peer as usize] == Standing::Present {
                    state.standing[peer as usize] = Standing::Left;
                }
                let released = state.holds.release_all(peer);
                self.wake(&mut state);
                drop(state);
                drop(released);
            }
            frames::HEARTBEAT => {}
            other => {
                let message =
                    format!("a frame of unknown kind {other}; use one version of aqueduct everywhere");
                return Err(Error::new(crate::ErrorKind::Remote, "control link", message).with_peer(peer));
            }
        }
        Ok(())
    }

    fn hear_failure(&self, cause: AbortCause) {
        if let (crate::ErrorKind::PeerLost, Some(rank)) = (cause.kind, cause.rank)
            && rank != self.rank
        {
            let mut state = lock(&self.state);
            if state.standing[rank as usize] == Standing::Present {
                state.standing[rank as usize] = Standing::Lost(cause.reason.clone());
            }
            let released = state.holds.release_all(rank);
            drop(state);
            drop(released);
        }
        self.abort.abort(cause);
    }

    fn size(&self) -> u32 {
        u32::try_from(lock(&self.state).standing.len()).unwrap_or(u32::MAX)
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

/// What the service thread calls.
#[derive(Debug)]
pub(super) struct Service(pub(super) Arc<Control>);

impl Handler for Service {
    fn accepted(&mut self, link: &Link) {
        if !self.0.adopt(link) {
            log::warn!("closing a control link from rank {}, which does not exist", link.peer().from);
            link.close();
        }
    }

    fn frame(&mut self, link: &Link, frame: Frame) -> Result<()> {
        self.0.receive(link.peer().from, frame)
    }

    fn closed(&mut self, link: &Link, why: &Error) {
        let peer = link.peer().from;
        if let Some(links) = lock(&self.0.state).links.get_mut(peer as usize) {
            links.retain(|known| known.id() != link.id());
        }
        self.0.lose(peer, why.message());
    }
}

/// Up to this many ranks, every pair is linked from the start.
const ALL_LINKED: u32 = 16;

/// The ranks that `rank` opens links to when the communicator is made.
pub(super) fn eager_peers(rank: u32, size: u32) -> Vec<u32> {
    let at = |step: u32| ((u64::from(rank) + u64::from(step)) % u64::from(size)) as u32;
    if size <= ALL_LINKED {
        // Each pair once: of two ranks that face each other across the ring, the lower one opens.
        (1..=size / 2).filter(|step| step * 2 != size || rank < at(*step)).map(at).collect()
    } else {
        (0..u32::BITS).map(|k| 1 << k).take_while(|step| *step < size).map(at).collect()
    }
}

/// The ranks that open links to `rank` then.
pub(super) fn eager_openers(rank: u32, size: u32) -> Vec<u32> {
    (0..size).filter(|peer| *peer != rank && eager_peers(*peer, size).contains(&rank)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn small_groups_are_fully_linked_with_one_link_a_pair() {
        for size in 1..=ALL_LINKED {
            let mut pairs = BTreeSet::new();
            for rank in 0..size {
                for peer in eager_peers(rank, size) {
                    assert_ne!(peer, rank);
                    assert!(
                        pairs.insert((rank.min(peer), rank.max(peer))),
                        "{size}: {rank} and {peer} twice"
                    );
                    assert!(eager_openers(peer, size).contains(&rank));
                }
            }
            assert_eq!(pairs.len() as u32, size * (size - 1) / 2);
        }
    }

    #[test]
    fn eager_links_of_large_groups_are_few_and_survive_a_loss() {
        for size in [17_u32, 100, 1024] {
            let opened: Vec<Vec<u32>> = (0..size).map(|r| eager_peers(r, size)).collect();
            assert!(
                opened.iter().enumerate().all(|(r, peers)| !peers.contains(&(r as u32)) && peers.len() <= 10)
            );
            for dead in [0, size / 2] {
                let alive: BTreeSet<u32> = (0..size).filter(|&r| r != dead).collect();
                let Some(&start) = alive.first() else { continue };
                let mut seen = BTreeSet::from([start]);
                let mut todo = vec![start];
                while let Some(rank) = todo.pop() {
                    for &next in opened[rank as usize].iter().filter(|n| alive.contains(n)) {
                        if seen.insert(next) {
                            todo.push(next);
                        }
                    }
                }
                assert_eq!(seen, alive, "size {size} without {dead}");
            }
        }
    }
}
