//! The order of launches on one device, where kernels that wait for peers do not all fit it together.
//!
//! Launches on different streams then stand behind each other as the host makes them. Two kinds need no such order among themselves, because
//! they cannot take each other's places: launches of one *company* whose kernels all fit the device, and launches of one company
//! that take turns, of which something else lets one begin at a time. They stand behind launches of other kinds, and those behind them.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::context::Context;
use super::event::Event;
use super::stream::{Stream, WeakStream};
use crate::error::Result;
use crate::sync::{AtomicU64, AtomicUsize, Ordering, lock};

/// For [`LaunchOrder::latest`]: a stream that launches of every kind may use.
const ANY: u64 = 1;

/// All that is known about the order on one context.
#[derive(Default)]
pub(super) struct LaunchOrder {
    /// The kind of the latest launch, or [`ANY`]; 0 if a launch was overtaken, or a kernel was counted since. With the stream that is noted
    /// for this kind it spares the next launch there all of what follows.
    latest: AtomicU64,
    /// Identity of the stream of the latest launch, where that is [`ANY`].
    latest_of_any: AtomicUsize,
    ledger: crate::sync::Mutex<Ledger>,
}

#[derive(Default)]
struct Ledger {
    /// The latest number.
    number: u64,
    /// How often a stream has changed the kind of its launches.
    changes: u64,
    streams: Vec<Known>,
    /// Those that were dropped and may have work. An application that wraps another library's stream for each call drops one after each
    /// launch.
    dropped: Vec<Known>,
}

/// A stream that has had a launch.
struct Known {
    /// Only this entry's.
    number: u64,
    stream: WeakStream,
    handle: usize,
    /// Of its latest launches; `None` if there are several.
    kind: Option<Kind>,
    /// Behind what the stream had before those launches, and a number that grows from event to event.
    before: Option<(u64, Arc<Event>)>,
    /// The number up to which it has followed such events of launches with which its own need no order.
    followed: u64,
}

/// Launches of one kind may need no order among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    company: u64,
    takes_turns: bool,
}

impl Kind {
    fn key(self) -> u64 {
        self.company << 1 | u64::from(self.takes_turns)
    }
}

/// Launches of one communicator on one context. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Company {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context,
    number: u64,
    /// Identities of the streams of its latest launches, without turns and with.
    latest: [AtomicUsize; 2],
}

/// Which kernels do not all fit the device at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Crowds {
    /// All kernels.
    pub(super) all: bool,
    /// Those of the company alone.
    pub(super) own: bool,
}

impl Context {
    /// A company without launches.
    pub(crate) fn new_company(&self) -> Company {
        // The first number makes another key than `ANY`.
        let number = lock(&self.slot::<LaunchOrder>().ledger).next();
        Company { inner: Arc::new(Inner { context: self.clone(), number, latest: Default::default() }) }
    }
}

impl Company {
    pub(super) fn context(&self) -> &Context {
        &self.inner.context
    }

    pub(super) fn number(&self) -> u64 {
        self.inner.number
    }

    fn latest(&self, kind: Kind) -> &AtomicUsize {
        &self.inner.latest[usize::from(kind.takes_turns)]
    }

    /// Puts the launch that comes next on `stream` behind those on other streams with which it needs an order. `crowds` is asked with the
    /// order's lock held. During a capture it cannot, and the order of graphs on other streams is the caller's.
    ///
    /// # Errors
    /// A driver error.
    pub(super) fn stand_behind_others(
        &self,
        stream: &Stream,
        takes_turns: bool,
        crowds: impl Fn() -> Crowds,
    ) -> Result<()> {
        let (order, kind) =
            (self.context().slot::<LaunchOrder>(), Kind { company: self.number(), takes_turns });
        let me = stream.identity();
        let latest = match order.latest.load(Ordering::Acquire) {
            ANY => order.latest_of_any.load(Ordering::Acquire),
            key if key == kind.key() => self.latest(kind).load(Ordering::Acquire),
            _ => 0,
        };
        if latest == me || stream.is_capturing()? {
            return Ok(());
        }
        let behind = loop {
            let mut behind = order.look(stream, kind, &crowds);
            // Without a lock: a driver makes whoever enqueues wait while a stream's queue is full, and its work may need a launch of
            // another thread.
            let mut events = Vec::new();
            for other in std::mem::take(&mut behind.others) {
                let event = Event::new(self.context())?;
                // An order for room, not for data: how the other stream's work ends is no matter of this one's waits.
                if other.mark_for_order(&event)? {
                    events.push(event);
                }
            }
            if behind.changes_kind {
                let event = Event::new(self.context())?;
                behind.before = stream.mark_for_order(&event)?.then_some(event);
            }
            // An event of a stream that has changed its kind meanwhile may stand behind a launch that needs no order with this one, and
            // that waits for this one: only now it is sure that none does.
            if order.confirm(stream, kind, &mut behind, events.is_empty()) {
                break Behind { events, ..behind };
            }
        };
        for event in behind.events.iter().chain(behind.followed.iter().map(|event| &**event)) {
            stream.wait_behind(event, [])?;
        }
        let ended = Self::follow_dropped(stream, &behind.dropped)?;
        order.note(self, stream, kind, &behind, &ended);
        Ok(())
    }

    /// Returns the numbers of those that have no work any more.
    fn follow_dropped(stream: &Stream, dropped: &[Dropped]) -> Result<Vec<u64>> {
        let mut ended = Vec::new();
        for follow in [false, true] {
            let these = || dropped.iter().filter(|dropped| dropped.follow == follow);
            let mut handles: Vec<usize> = these().map(|dropped| dropped.handle).collect();
            if !handles.is_empty() {
                stream.follow_dropped(&mut handles, follow)?;
                ended.extend(
                    these().filter(|known| !handles.contains(&known.handle)).map(|known| known.number),
                );
            }
        }
        Ok(ended)
    }
}

/// The streams, events and dropped streams that a launch has to follow.
struct Behind {
    number: u64,
    /// How often streams had changed their kinds.
    changes: u64,
    /// Whether kernels do not all fit.
    crowded: bool,
    /// Whether the stream's launches before are of another kind, so that an event has to be recorded before this one.
    changes_kind: bool,
    before: Option<Event>,
    /// Streams whose work so far it follows, and events behind that work.
    others: Vec<Stream>,
    events: Vec<Event>,
    /// Events that streams with launches of its kind have recorded before those.
    followed: Vec<Arc<Event>>,
    dropped: Vec<Dropped>,
}

struct Dropped {
    number: u64,
    handle: usize,
    /// Whether the launch follows its work.
    follow: bool,
}

impl Ledger {
    fn next(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn known(&mut self, stream: &Stream) -> Option<&mut Known> {
        self.streams.iter_mut().find(|known| known.stream.identity() == stream.identity())
    }
}

impl LaunchOrder {
    /// From now on kernels may not all fit: `change` makes it so. Launches so far had no order.
    pub(super) fn begin_anew(&self, change: impl FnOnce()) {
        let mut ledger = lock(&self.ledger);
        change();
        ledger.next();
        self.latest.store(0, Ordering::Release);
    }

    /// Calls `remove`, which says whether no kernels are left. Then there is no launch to follow. Events keep the context, which keeps this.
    pub(super) fn remove(&self, remove: impl FnOnce() -> bool) {
        let mut ledger = lock(&self.ledger);
        if !remove() {
            return;
        }
        self.latest.store(0, Ordering::Release);
        let gone = (std::mem::take(&mut ledger.streams), std::mem::take(&mut ledger.dropped));
        drop(ledger);
        drop(gone);
    }

    /// Finds what a launch on `stream` has to follow.
    fn look(&self, stream: &Stream, kind: Kind, crowds: &impl Fn() -> Crowds) -> Behind {
        let me = stream.identity();
        let mut forgotten = None;
        let mut ledger = lock(&self.ledger);
        let gone: Vec<_> = ledger.streams.extract_if(.., |known| !known.stream.is_alive()).collect();
        ledger.dropped.extend(gone);
        // Only a launch that succeeds, and that no other launch or kernel has overtaken, spares the next one its look.
        self.latest.store(0, Ordering::Release);
        let (number, crowds) = (ledger.next(), crowds());
        let (mut changes_kind, mut since) = (false, 0);
        match ledger.known(stream) {
            Some(known) if known.kind == Some(kind) => since = known.followed,
            Some(_) if crowds.all => changes_kind = true,
            Some(known) if known.kind.is_some() => {
                // An event in every call of a program whose launches need no order would be too much.
                (known.kind, known.followed, forgotten) = (None, 0, known.before.take());
                ledger.changes += 1;
            }
            Some(_) => {}
            None => {
                let (stream, handle) = (stream.downgrade(), stream.handle().addr());
                // Nothing to follow is before its first launch.
                ledger.streams.push(Known {
                    number,
                    stream,
                    handle,
                    kind: Some(kind),
                    before: None,
                    followed: 0,
                });
            }
        }
        let needs_no_order = |other: Kind| {
            other.company == kind.company && (!crowds.own || other.takes_turns && kind.takes_turns)
        };
        let (mut others, mut followed, mut dropped) = (Vec::new(), Vec::new(), Vec::new());
        let mut follows = |known: &Known| {
            if !crowds.all {
                return false;
            }
            if !known.kind.is_some_and(needs_no_order) {
                return true;
            }
            let before = known.before.as_ref().filter(|(number, _)| *number > since);
            followed.extend(before.map(|(_, event)| event.clone()));
            false
        };
        for known in ledger.streams.iter().filter(|known| known.stream.identity() != me) {
            if follows(known) {
                match known.stream.upgrade() {
                    Some(other) => others.push(other),
                    None => {
                        dropped.push(Dropped { number: known.number, handle: known.handle, follow: true })
                    }
                }
            }
        }
        dropped.extend(ledger.dropped.iter().map(|known| {
            let follow = follows(known);
            Dropped { number: known.number, handle: known.handle, follow }
        }));
        let changes = ledger.changes;
        drop(ledger);
        drop(forgotten);
        let (crowded, before, events) = (crowds.all, None, Vec::new());
        Behind { number, changes, crowded, changes_kind, before, others, events, followed, dropped }
    }

    /// Whether no stream has changed its kind since `behind` was found, or that does not matter. From then on the stream's launches are of
    /// its kind.
    fn confirm(&self, stream: &Stream, kind: Kind, behind: &mut Behind, follows_none: bool) -> bool {
        if follows_none && !behind.changes_kind {
            return true;
        }
        let mut forgotten = None;
        let mut ledger = lock(&self.ledger);
        if ledger.changes != behind.changes {
            return false;
        }
        if behind.changes_kind {
            // A new number, because a launch that has followed events up to `behind.number` need not have followed this one.
            let number = ledger.next();
            if number == behind.number + 1 {
                behind.number = number;
            }
            ledger.changes += 1;
            let before = behind.before.take().map(|event| (number, Arc::new(event)));
            if let Some(known) = ledger.known(stream) {
                forgotten = std::mem::replace(&mut known.before, before);
                (known.kind, known.followed) = (Some(kind), 0);
            }
        }
        drop(ledger);
        drop(forgotten);
        true
    }

    /// The stream has followed `behind`; dropped streams with the numbers of `ended` have no work.
    fn note(&self, company: &Company, stream: &Stream, kind: Kind, behind: &Behind, ended: &[u64]) {
        let mut ledger = lock(&self.ledger);
        let forgotten: Vec<Known> =
            ledger.dropped.extract_if(.., |known| ended.contains(&known.number)).collect();
        let is_latest = ledger.number == behind.number;
        if let Some(known) = ledger.known(stream) {
            match known.kind {
                Some(of) if of == kind => {
                    known.followed = if behind.crowded { behind.number } else { 0 };
                    if is_latest {
                        company.latest(kind).store(stream.identity(), Ordering::Release);
                        self.latest.store(kind.key(), Ordering::Release);
                    }
                }
                None if is_latest && !behind.crowded => {
                    self.latest_of_any.store(stream.identity(), Ordering::Release);
                    self.latest.store(ANY, Ordering::Release);
                }
                _ => {}
            }
        }
        drop(ledger);
        drop(forgotten);
    }

    /// How many streams are known, and how many dropped ones.
    #[cfg(test)]
    pub(super) fn lengths(&self) -> (usize, usize) {
        let ledger = lock(&self.ledger);
        (ledger.streams.len(), ledger.dropped.len())
    }
}

impl std::fmt::Debug for Company {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Company").field(&self.inner.number).finish()
    }
}
