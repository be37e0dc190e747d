//! Runs callbacks: those of messages, and the completions of operations.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use super::batch::Batch;
use super::engine::Engine;
use super::guarding::{drop_guarded, guard};
use super::handlers::Handler;
use super::inbox::{Bytes, Item, LongOffer};
use super::long::Long;
use super::member::Member;
use super::offers::Ended;
use super::peer::Peer;
use super::reading::Finished;
use super::received::Message;
use crate::error::{Error, Result};

/// Callbacks of one poll beyond those of the messages that it has read itself: whoever polls comes back, however much arrives.
const MOST: usize = 1024;
/// Items of one peer before another one has its turn.
const SHARE: usize = 64;

/// A change among the peers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PeerEvent {
    /// A peer has connected to this messenger; its messages follow.
    Connected(Peer),
    /// A peer has left or was lost; nothing of it follows.
    Gone(Peer, Error),
}

/// Told of changes among the peers.
pub(super) type Watcher = dyn Fn(PeerEvent) + Send + Sync;

thread_local! {
    /// Items taken from an inbox; kept, so that dispatching allocates nothing.
    static TAKEN: RefCell<VecDeque<Item>> = const { RefCell::new(VecDeque::new()) };
    /// Messages that were pulled by this thread; kept for the same reason.
    static PULLED: RefCell<Option<Box<Batch>>> = const { RefCell::new(None) };
}

/// Makes progress, and runs callbacks; returns how much has happened. Messages that this thread has pulled itself do not pass
/// through the inbox if nothing in it is before them.
pub(super) fn poll(engine: &Engine, watcher: Option<&Watcher>) -> Result<usize> {
    // A callback that polls finds none, and uses another one.
    let mut batch = PULLED.take().unwrap_or_default();
    let moved = engine.advance(Some(&mut batch));
    let mut ran = 0;
    if let Some(member) = batch.take_member() {
        while let Some((kind, bytes, offer)) = batch.next() {
            guard(callback_for(&member), || call(engine, &member, kind, bytes, offer));
        }
        let (messages, bytes) = batch.finish();
        member.dispatched(messages, bytes);
        ran += messages;
    }
    PULLED.set(Some(batch));
    if engine.hub.has_ready() || engine.hub.exposures.may_reap() {
        ran += dispatch(engine, watcher, MOST);
    }
    Ok(moved? + ran)
}

/// Runs up to `max` callbacks. Returns how many ran.
pub(super) fn dispatch(engine: &Engine, watcher: Option<&Watcher>, max: usize) -> usize {
    // Drops owners of memory, exposed or read into, which is the user's code as well.
    engine.hub.exposures.reap();
    let mut done = 0;
    // A callback that dispatches itself finds an empty batch of its own.
    let mut batch = TAKEN.take();
    while done < max {
        let Some(member) = engine.hub.take_ready() else { break };
        let Some(member) = engine.hub.departures.hold_back(member.rank, member) else { continue };
        member.inbox.take(SHARE.min(max - done), &mut batch);
        let (mut messages, mut bytes) = (0, 0);
        while let Some(item) = batch.pop_front() {
            done += usize::from(watcher.is_some() || !matches!(item, Item::Arrived | Item::Gone(_)));
            if let Item::Message(_, body, _) = &item {
                messages += 1;
                bytes += body.as_slice().len();
            }
            run(engine, watcher, &member, item);
        }
        member.dispatched(messages, bytes);
    }
    TAKEN.set(batch);
    done
}

/// Runs the completions of peers that have ended, and drops their messages.
///
/// Those of a peer for which a callback is running, because it has closed the messenger itself, come after it.
pub(super) fn finish(engine: &Engine, members: Vec<Arc<Member>>) {
    for member in members {
        for item in member.inbox.drain() {
            if matches!(item, Item::Read(_) | Item::Long(_)) {
                run(engine, None, &member, item);
            }
        }
    }
    engine.hub.exposures.reap();
}

/// Has the callback of `kind` take a message, unless a callback has closed the messenger meanwhile.
#[inline]
fn call(engine: &Engine, member: &Arc<Member>, kind: u16, bytes: Bytes, offer: LongOffer) {
    if !engine.hub.is_closed()
        && let Some(Handler::Callback(callback)) = engine.handlers.get(kind)
    {
        let peer = Peer { member: member.clone() };
        let long = offer.map(|offer| Box::new(Long::new(peer.clone(), offer.0, offer.1)));
        callback(Message { peer, kind, bytes, long });
    }
}

fn run(engine: &Engine, watcher: Option<&Watcher>, member: &Arc<Member>, item: Item) {
    let peer = || Peer { member: member.clone() };
    let is_end = matches!(item, Item::Gone(_));
    match item {
        Item::Message(kind, bytes, offer) => {
            guard(callback_for(member), || call(engine, member, kind, bytes, offer));
        }
        Item::Read(Finished { completion, outcome, target, .. }) => {
            drop_guarded(target);
            guard(callback_for(member), || completion(outcome));
        }
        Item::Long(Ended { completion, outcome, registration, exposed }) => {
            drop_guarded(registration);
            drop(exposed);
            guard(callback_for(member), || completion(outcome));
        }
        Item::Arrived => tell(engine, watcher, member, || PeerEvent::Connected(peer())),
        Item::Gone(why) => tell(engine, watcher, member, || PeerEvent::Gone(peer(), why)),
    }
    if is_end {
        engine
            .hub
            .departures
            .end(member.rank, member)
            .into_iter()
            .for_each(|later| engine.hub.add_ready(later));
    }
}

/// Names a callback in the log.
struct Callback {
    rank: u32,
}

impl std::fmt::Display for Callback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a callback for rank {}", self.rank)
    }
}

fn callback_for(member: &Member) -> Callback {
    Callback { rank: member.rank }
}

/// Tells of a change, unless a callback has closed the messenger meanwhile.
fn tell(engine: &Engine, watcher: Option<&Watcher>, member: &Member, event: impl FnOnce() -> PeerEvent) {
    if let Some(watcher) = watcher.filter(|_| !engine.hub.is_closed()) {
        guard(callback_for(member), || watcher(event()));
    }
}
