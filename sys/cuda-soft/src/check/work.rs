//! Kernels and stream operations: what happens before they begin, and who learns of their end.

use std::fmt::Write as _;
use std::sync::Arc;

use parking_lot::Mutex;

use super::access::{Access, Race, Stop};
use super::chance::Chance;
use super::clock::Clock;
use super::shared::join;
use super::sources::Source;
use super::stamp::{STREAM, WorkId};
use super::state::{Checker, State};
use super::warp::{Spot, Warp, explain};

/// A work that has begun.
#[derive(Debug)]
pub(crate) struct Work {
    checker: Arc<Checker>,
    id: WorkId,
    device: usize,
    begin: Arc<Clock>,
    end: Mutex<Arc<Clock>>,
    /// Failures that there had been when it began.
    failures: usize,
}

/// A work that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    checker: Arc<Checker>,
    id: WorkId,
    known: Arc<Clock>,
}

impl Checker {
    /// Events before the work that the host submits now.
    pub(crate) fn submitted(&self) -> Arc<Clock> {
        Arc::clone(&self.lock().host)
    }

    /// Begins a work of `device`, which the host submitted when it knew `submitted`, behind all of `after`.
    pub(crate) fn begin(
        self: &Arc<Self>,
        device: usize,
        submitted: &Arc<Clock>,
        after: impl Iterator<Item = Past> + Clone,
    ) -> Arc<Work> {
        let mut begin = Arc::clone(submitted);
        for past in after.clone() {
            join(&mut begin, &past.known);
        }
        Arc::make_mut(&mut begin).begin();
        let mut state = self.lock();
        let (id, failures) = (state.next(after.map(|past| past.id)), state.failures);
        drop(state);
        let end = Mutex::new(Arc::clone(&begin));
        Arc::new(Work { checker: Arc::clone(self), id, device, begin, end, failures })
    }
}

impl Work {
    pub(crate) fn checker(&self) -> &Checker {
        &self.checker
    }

    /// Whether a work has failed since it began: what it waits for may never come.
    pub(crate) fn is_moot(&self) -> bool {
        self.checker.lock().failures > self.failures
    }

    /// The choices that the memory model leaves open, if they are made.
    pub(crate) fn chance(&self) -> Option<&Chance> {
        self.checker.chance()
    }

    /// A warp of the work, about to begin.
    pub(crate) fn warp(&self, block: u32, warp: u16) -> Warp {
        Warp::new(self.id, self.device, block, warp, &self.begin)
    }

    /// The lane of a stream operation.
    pub(crate) fn stream(&self) -> Warp {
        self.warp(STREAM, 0)
    }

    /// Everything that a warp's lane knew when it ended happens before the end of the work.
    pub(crate) fn leaves(&self, warp: &Warp, lane: usize) {
        join(&mut self.end.lock(), warp.known(lane));
    }

    /// A function of the host, which is the work, begins: the host learns all that came before.
    pub(crate) fn host_begins(&self) {
        join(&mut self.checker.lock().host, &self.begin);
    }

    /// Ends the work. With `host`, a function of the host was part of it.
    pub(crate) fn end(&self, host: bool) -> Past {
        let mut known = Arc::clone(&self.end.lock());
        if host {
            let mut state = self.checker.lock();
            join(&mut state.host, &known);
            known = Arc::clone(&state.host);
        }
        Arc::make_mut(&mut known).end(self.id);
        Past { checker: Arc::clone(&self.checker), id: self.id, known }
    }
}

impl Past {
    /// The host has learnt that the work has ended.
    pub(crate) fn seen_by_host(&self) {
        join(&mut self.checker.lock().host, &self.known);
    }
}

/// Why a work ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A race was found and printed.
    Race,
    /// An access needs more memory than the detector may take: [`TOO_MUCH`].
    TooMuch,
}

/// The text of [`Failure::TooMuch`].
pub(crate) const TOO_MUCH: &str =
    "more memory than the race detector can follow; raise AQUEDUCT_SOFT_SHADOW, or use less memory";

impl State {
    /// An access does not pass. A race is printed.
    pub(super) fn failed(&mut self, access: &Access, stop: &Stop, spot: Spot) -> Failure {
        self.failures += 1;
        match stop {
            Stop::Race(race) => {
                self.report(access, race, spot);
                Failure::Race
            }
            Stop::Full => Failure::TooMuch,
        }
    }

    fn report(&mut self, second: &Access, (first, why): &Race, spot: Spot) {
        let mut text = format!("data race at {spot}: {}", explain(*why));
        for (which, access) in [("first", first), ("then", second)] {
            let source = self.sources.get(access.source).map_or_else(String::new, Source::to_string);
            let verb = if access.write { "writes" } else { "reads" };
            let strength = match access.strong {
                Some(scope) => format!("strong, scope {scope:?}"),
                None => "weak".to_owned(),
            };
            let way = if access.multicast { ", multicast" } else { "" };
            let _ = write!(
                text,
                "\n    {which}: device {} {verb} {} bytes ({strength}{way}): {source}",
                access.device, access.size
            );
            if access.who.block != STREAM {
                let lane = access.who.lanes.trailing_zeros();
                let _ = write!(
                    text,
                    ", block {}, thread {}",
                    access.who.block,
                    u32::from(access.who.warp) * 32 + lane
                );
            }
        }
        eprintln!("cuda-soft: {text}");
        self.races.push(text);
    }
}
