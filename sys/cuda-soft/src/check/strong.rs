//! Accesses of one lane: what they publish, acquire, and read where the memory model leaves a choice.
//!
//! Memory holds the last write of each place in coherence order. Where loads are weak, a strong load may return an earlier
//! one of its [`History`](super::history::History), and a strong store may take its place before the last one, as if it had
//! been overwritten at once. Weak accesses have no choice in a program without races.

use std::sync::Arc;

use super::access::{Kind, Words};
use super::clock::Clock;
use super::history::{KEPT, Line, Reader, Write};
use super::shadow::Object;
use super::shared::join;
use super::state::State;
use super::sync::{Published, Release};
use super::warp::{HOST, Lane, Spot, Warp};
use super::work::Failure;
use crate::code::{Scope, Semantics};
use crate::config::Lines;

/// How often in a row a thread reads something old from a place: a thread that waits gets on.
const STALE: u8 = 3;
/// Places from which a thread reads something old at the same time.
const STALE_PLACES: usize = 64;

/// The properties of an atomic operation, besides its values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Update {
    /// It returns nothing to its thread.
    pub(crate) reduction: bool,
    /// It adds integers.
    pub(crate) adds: bool,
}

impl Warp {
    /// A load of a lane that finds `now` in memory. Returns what it reads.
    ///
    /// # Errors
    /// A race, which is printed, or that the detector cannot follow the access.
    pub(crate) fn read(
        &mut self,
        state: &mut State,
        lane: usize,
        spot: Spot,
        now: u64,
        sem: Semantics,
        scope: Scope,
    ) -> Result<u64, Failure> {
        self.checked(state, lane, spot, Kind::Read, sem, scope)?;
        if sem.strong() { Ok(self.reads(state, lane, spot, now, sem, scope, true)) } else { Ok(now) }
    }

    /// A store of a lane to a place that holds `before`. Returns whether memory then holds `value`.
    ///
    /// # Errors
    /// A race, which is printed, or that the detector cannot follow the access.
    #[allow(clippy::too_many_arguments, reason = "the parts of one instruction")]
    pub(crate) fn write(
        &mut self,
        state: &mut State,
        lane: usize,
        spot: Spot,
        [before, value]: [u64; 2],
        sem: Semantics,
        scope: Scope,
        line: Option<Arc<Line>>,
    ) -> Result<bool, Failure> {
        self.checked(state, lane, spot, Kind::Write, sem, scope)?;
        let write = Write { value, line, ..Write::default() };
        let last = !sem.strong() || self.writes(state, lane, spot, Some(before), write, sem, scope);
        if last {
            state.shadow.wrote(spot.object, spot.at, spot.bytes(&value.to_le_bytes()));
        }
        Ok(last)
    }

    /// An atomic operation of a lane, which found and wrote these values.
    ///
    /// # Errors
    /// A race, which is printed, or that the detector cannot follow the access.
    #[allow(clippy::too_many_arguments, reason = "the parts of one instruction")]
    pub(crate) fn update(
        &mut self,
        state: &mut State,
        lane: usize,
        spot: Spot,
        [before, value]: [u64; 2],
        sem: Semantics,
        scope: Scope,
        update: Update,
    ) -> Result<(), Failure> {
        let kind = if update.adds { Kind::Add } else { Kind::Write };
        self.checked(state, lane, spot, kind, sem, scope)?;
        if sem.strong() {
            // A reduction is no part of an acquire pattern: no fence behind it acquires what it found (PTX ISA, "Release and
            // Acquire Patterns"). Its write passes that on all the same.
            if !update.reduction || sem.acquires() {
                self.reads(state, lane, spot, before, sem, scope, false);
            }
            let write = Write { value, update: true, ..Write::default() };
            self.writes(state, lane, spot, Some(before), write, sem, scope);
        }
        state.shadow.wrote(spot.object, spot.at, spot.bytes(&value.to_le_bytes()));
        Ok(())
    }

    /// A stream has seen `value`.
    ///
    /// # Errors
    /// A race, which is printed, or that the detector cannot follow the access.
    pub(crate) fn saw(
        &mut self,
        state: &mut State,
        spot: Spot,
        value: u64,
        sem: Semantics,
        scope: Scope,
    ) -> Result<(), Failure> {
        self.checked(state, 0, spot, Kind::Read, sem, scope)?;
        self.reads(state, 0, spot, value, sem, scope, false);
        Ok(())
    }

    /// A stream has written `value`.
    ///
    /// # Errors
    /// A race, which is printed, or that the detector cannot follow the access.
    pub(crate) fn wrote(
        &mut self,
        state: &mut State,
        spot: Spot,
        value: u64,
        sem: Semantics,
        scope: Scope,
    ) -> Result<(), Failure> {
        self.checked(state, 0, spot, Kind::Write, sem, scope)?;
        self.writes(state, 0, spot, None, Write { value, ..Write::default() }, sem, scope);
        state.shadow.wrote(spot.object, spot.at, spot.bytes(&value.to_le_bytes()));
        Ok(())
    }

    /// A copy's or fill's access to words of so many bytes, weak: a write if it `brought` something.
    ///
    /// # Errors
    /// A race, which is printed, or that the detector cannot follow the access.
    pub(crate) fn range(
        &mut self,
        state: &mut State,
        spot: Spot,
        word: u8,
        brought: Option<&[u8]>,
    ) -> Result<(), Failure> {
        let kind = if brought.is_some() { Kind::Write } else { Kind::Read };
        self.access(state, 0, spot, kind, None, Some(Words(word)))
            .map_err(|(access, stop)| state.failed(&access, &stop, spot))?;
        match brought {
            Some(bytes) => state.shadow.wrote(spot.object, spot.at, bytes),
            // The value may reach threads in ways that the detector does not see.
            None => state.shadow.settle(spot.object, spot.at, spot.size.into()),
        }
        Ok(())
    }

    /// The instruction is complete: its warp has seen the parts of lines that it read.
    pub(crate) fn settle(&mut self) {
        for (line, who, at) in self.lines.drain(..) {
            line.observed_by(who, at);
        }
    }

    fn checked(
        &mut self,
        state: &mut State,
        lane: usize,
        spot: Spot,
        kind: Kind,
        sem: Semantics,
        scope: Scope,
    ) -> Result<(), Failure> {
        self.access(state, lane, spot, kind, sem.strong().then_some(scope), None)
            .map_err(|(access, stop)| state.failed(&access, &stop, spot))
    }

    /// A strong read that finds `now` in memory. With `choice` it may return something older.
    #[allow(clippy::too_many_arguments, reason = "the parts of one instruction")]
    fn reads(
        &mut self,
        state: &mut State,
        lane: usize,
        spot: Spot,
        now: u64,
        sem: Semantics,
        scope: Scope,
        choice: bool,
    ) -> u64 {
        let who = self.stamp(lane);
        let State { shadow, chance, host, .. } = state;
        let history = shadow.history(spot.object, spot.at);
        let Some(history) = history.filter(|history| history.last(now, spot.size).is_some()) else {
            // A value that a kernel or stream left without a strong write of this place publishes nothing.
            if !shadow.holds(spot.object, spot.at, spot.bytes(&now.to_le_bytes())) {
                // The host wrote this value, or a device that it controls.
                shadow.host_wrote(spot.object, spot.at, spot.size);
                let published = Published::from(by_host(host));
                self.acquire(lane, spot, &published, sem, scope);
            }
            return now;
        };
        let last = history.len() - 1;
        let mut at = last;
        if let Some(chance) = chance
            && choice
            && !spot.is_host()
            && last > 0
        {
            let own = &mut self.lanes[lane];
            let lines = chance.lines();
            let oldest = history.oldest(&Reader { who, known: &own.known, at: spot.at, lines });
            if oldest < last && chance.one_in(2) && own.may_be_stale(spot.object, spot.at) {
                at = oldest + chance.below(last - oldest);
            } else {
                own.is_fresh(spot.object, spot.at);
            }
        }
        let write = history.write(at);
        let value = write.value;
        if let Some(line) = &write.line {
            self.lines.push((Arc::clone(line), who, spot.at));
        }
        self.acquire(lane, spot, &write.published, sem, scope);
        if chance.is_some() {
            history.observe(at, who);
        }
        value
    }

    /// A strong write to a place that held `before`, if that is known. Returns whether it is the last one.
    #[allow(clippy::too_many_arguments, reason = "the parts of one instruction")]
    fn writes(
        &mut self,
        state: &mut State,
        lane: usize,
        spot: Spot,
        before: Option<u64>,
        mut write: Write,
        sem: Semantics,
        scope: Scope,
    ) -> bool {
        let who = self.stamp(lane);
        let releases = self.publishes(lane, spot, sem, scope);
        if spot.is_host() {
            for release in releases.iter().filter(|r| r.fence == Scope::Sys && r.write == Scope::Sys) {
                join(&mut state.host, &release.clock);
            }
        }
        let State { shadow, chance, host, .. } = state;
        let hosts = |before: u64| !shadow.holds(spot.object, spot.at, spot.bytes(&before.to_le_bytes()));
        let hosts = before.is_some_and(hosts);
        let history = shadow.history_of_write(spot.object, spot.at, spot.size);
        let known = match before {
            Some(before) => history.last(before, spot.size).is_some(),
            None => history.size() == spot.size,
        };
        if !known {
            // An update passes on what the value before it published, and weak loads may return that value.
            let first = before.filter(|_| chance.is_some() || write.update).map(|value| {
                let published = if hosts { Published::from(by_host(host)) } else { Published::default() };
                Write { value, published, ..Write::default() }
            });
            history.restart(spot.size, first);
        }
        let mut at = history.len();
        if let Some(chance) = chance
            && before.is_some()
            && !write.update
            && write.line.is_none()
            && !spot.is_host()
            && at > 0
            && chance.one_in(4)
        {
            let reader = Reader { who, known: &self.lanes[lane].known, at: spot.at, lines: Lines::Torn };
            let oldest = history.oldest(&reader) + 1;
            let place = oldest + chance.below(at - oldest + 1);
            // An atomic operation follows the write that it read at once.
            if place == at || !history.write(place).update {
                at = place;
            }
        }
        if write.update && at > 0 {
            write.published = history.write(at - 1).published.clone();
        }
        for release in releases {
            write.published.add(release);
        }
        write.who = Some(who);
        let last = at == history.len();
        history.add(at, write, if chance.is_some() { KEPT } else { 1 });
        last
    }
}

impl Lane {
    fn may_be_stale(&mut self, object: Object, at: u64) -> bool {
        let known = self.stale.iter_mut().find(|(place, offset, _)| (*place, *offset) == (object, at));
        if let Some((_, _, times)) = known {
            *times += 1;
            return *times <= STALE;
        }
        let room = self.stale.len() < STALE_PLACES;
        if room {
            self.stale.push((object, at, 1));
        }
        room
    }

    fn is_fresh(&mut self, object: Object, at: u64) {
        self.stale.retain(|(place, offset, _)| (*place, *offset) != (object, at));
    }
}

/// The release pattern of the host, which publishes all that the host knows.
fn by_host(host: &Arc<Clock>) -> Release {
    Release { clock: Arc::clone(host), from: HOST, fence: Scope::Sys, write: Scope::Sys }
}

/// A line that a warp writes, as far as the rule for lines cares.
pub(crate) fn line(state: &State) -> Option<Arc<Line>> {
    state.chance.as_ref().filter(|chance| chance.lines() != Lines::Torn).map(|_| Arc::default())
}
