//! The threads of a warp, as the detector sees them: what happens before the next event of each.
//!
//! Stream work is a warp with one lane.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::{fmt, iter};

use super::access::{Access, Kind, Stop, Why, Words};
use super::clock::{Clock, join_each};
use super::history::Line;
use super::scope::Place;
use super::shadow::{Mix, Object};
use super::shared::join;
use super::stamp::{LANES, Stamp, Tick, WorkId};
use super::state::State;
use super::sync::{Fences, Published, Release};
use crate::code::{Scope, Semantics};
use crate::mem::Home;

/// The clocks of a warp's threads.
#[derive(Debug)]
pub(crate) struct Warp {
    pub(super) place: Place,
    warp: u16,
    pub(super) lanes: Box<[Lane; LANES]>,
    /// The lines of which the present instruction reads parts.
    pub(super) lines: Vec<(Arc<Line>, Stamp, u64)>,
    /// The instruction that runs, as (function, index).
    pub(crate) at: (u32, u32),
    /// The same, as [`State::source`] numbers it.
    pub(crate) source: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Lane {
    tick: Tick,
    pub(super) known: Arc<Clock>,
    /// Places that it has read something old from, and how often since it read the last write.
    pub(super) stale: Vec<(Object, u64, u8)>,
    fences: Fences,
    /// The releases of each location: its later strong writes there publish that, too.
    heads: HashMap<Location, Fences, BuildHasherDefault<Mix>>,
    /// Events that strong reads have seen published.
    seen: Vec<Seen>,
}

/// Events that strong reads have seen published: a fence behind them acquires these, and so does an acquire of the same
/// location.
#[derive(Clone, Debug)]
struct Seen {
    release: Release,
    at: HashSet<Location, BuildHasherDefault<Mix>>,
}

/// A location, as the model counts them: an access of other position or size is to another one.
type Location = (Object, u64, u32);

/// One place in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub(crate) object: Object,
    /// Offset in the object.
    pub(crate) at: u64,
    pub(crate) size: u32,
    /// The address of offset zero, and whose memory it is; `None` for shared memory of a block.
    pub(crate) home: Option<(u64, Home)>,
    /// Whether the access is by a multicast address, an alias of the memory's own addresses.
    pub(crate) multicast: bool,
}

impl Spot {
    /// A place at `address` in a range that begins at `base`, of a memory object of the driver or of memory that the user registered.
    pub(crate) fn of(object: Option<u64>, base: u64, home: Home, address: u64, size: u32) -> Self {
        let (object, base) = match object {
            Some(identity) => (Object::Driver(identity), base),
            None => (Object::Host, 0),
        };
        Self { object, at: address - base, size, home: Some((base, home)), multicast: false }
    }

    /// Whether the host can read and write it without a call.
    pub(super) fn is_host(self) -> bool {
        self.home.is_some_and(|(_, home)| home.is_host())
    }

    fn location(self) -> Location {
        (self.object, self.at, self.size)
    }

    /// The bytes of a value, which has at most 8, in memory.
    pub(super) fn bytes(self, value: &[u8; 8]) -> &[u8] {
        &value[..self.size as usize]
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at;
        match (self.home, self.object) {
            (Some((base, Home::Device(device))), _) => {
                write!(f, "device memory of device {device} at {base:#x} + {at}")
            }
            (Some((base, Home::Pinned)), _) => write!(f, "pinned host memory at {base:#x} + {at}"),
            (Some((base, Home::Registered)), _) => write!(f, "registered host memory at {:#x}", base + at),
            (None, Object::Block(_, block)) => write!(f, "shared memory of block {block} + {at}"),
            (None, object) => write!(f, "{object:?} + {at}"),
        }
    }
}

/// The threads that meet at a barrier.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meeting {
    known: Arc<Clock>,
    latest: Tick,
    block: Option<(WorkId, u32)>,
}

/// The place of the host, which no scope but `sys` includes.
pub(super) const HOST: Place =
    Place { device: usize::MAX, work: WorkId { chain: u32::MAX, seq: 0 }, block: 0 };

impl Warp {
    pub(super) fn new(work: WorkId, device: usize, block: u32, warp: u16, known: &Arc<Clock>) -> Self {
        // All that came before a kernel has been performed for everyone when it starts (docs/memory-model.md, `kernel.start`).
        let mut fences = Fences::default();
        fences.add(Scope::Sys, Arc::clone(known));
        let lane = Lane {
            tick: 1,
            known: Arc::clone(known),
            stale: Vec::new(),
            fences,
            heads: HashMap::default(),
            seen: Vec::new(),
        };
        let lanes = Box::new(std::array::from_fn(|_| lane.clone()));
        let place = Place { device, work, block };
        Self { place, warp, lanes, lines: Vec::new(), at: (0, 0), source: 0 }
    }

    /// Events before the next event of a lane.
    pub(super) fn known(&self, lane: usize) -> &Arc<Clock> {
        &self.lanes[lane].known
    }

    /// Records an access of a lane; `strong` is the scope of a strong one, `engine` has the words of a copy's or fill's.
    ///
    /// # Errors
    /// The access, and an earlier one that races with it, or that there is no room for it.
    pub(super) fn access(
        &self,
        state: &mut State,
        lane: usize,
        spot: Spot,
        kind: Kind,
        strong: Option<Scope>,
        engine: Option<Words>,
    ) -> Result<(), (Access, Stop)> {
        let (who, known) = (self.stamp(lane), &self.lanes[lane].known);
        let (device, source) = (self.place.device, self.source);
        let Spot { at, size, multicast, .. } = spot;
        let (write, adds) = (kind != Kind::Read, kind == Kind::Add);
        let access = Access { who, device, strong, write, multicast, engine, adds, at, size, source };
        state.shadow.access(spot.object, &access, known).map_err(|stop| (access, stop))
    }

    /// The thread of `lane` at its present tick.
    pub(super) fn stamp(&self, lane: usize) -> Stamp {
        let Place { work, block, .. } = self.place;
        Stamp { work, block, warp: self.warp, lanes: 1 << lane, tick: self.lanes[lane].tick }
    }

    /// A strong read of what `published` belongs to: the thread acquires it now, or later by a fence or an acquire of this
    /// location. An acquire also takes what earlier strong reads saw here.
    pub(super) fn acquire(
        &mut self,
        lane: usize,
        spot: Spot,
        published: &Published,
        sem: Semantics,
        scope: Scope,
    ) {
        let (place, at) = (self.place, spot.location());
        let own = &mut self.lanes[lane];
        let acquires = sem.acquires();
        if acquires {
            own.acquire_seen(scope, place, |seen| seen.at.contains(&at));
        }
        for release in published.reaching(scope, place) {
            if acquires && release.synchronizes(scope, place) {
                join(&mut own.known, &release.clock);
                continue;
            }
            let known = own.seen.iter_mut().find(|seen| Arc::ptr_eq(&seen.release.clock, &release.clock));
            if let Some(seen) = known {
                seen.at.insert(at);
            } else {
                own.seen.push(Seen { release: release.clone(), at: HashSet::from_iter([at]) });
            }
        }
    }

    /// The release patterns that a strong write belongs to: one for each earlier fence and for each release of the same
    /// location, and its own if it is a release.
    pub(super) fn publishes(
        &mut self,
        lane: usize,
        spot: Spot,
        sem: Semantics,
        scope: Scope,
    ) -> Vec<Release> {
        let (place, at) = (self.place, spot.location());
        if matches!(sem, Semantics::Release | Semantics::AcqRel | Semantics::SeqCst) {
            let clock = self.publish(lane);
            self.lanes[lane].heads.entry(at).or_default().add(scope, clock);
        }
        let own = &self.lanes[lane];
        let heads = own.heads.get(&at);
        iter::once(&own.fences).chain(heads).flat_map(|fences| fences.of_write(place, scope)).collect()
    }

    /// A fence of the lanes of `mask`.
    pub(crate) fn fence(&mut self, state: &mut State, mask: u32, sem: Semantics, scope: Scope) {
        for lane in lanes(mask) {
            let place = self.place;
            let own = &mut self.lanes[lane];
            if !matches!(sem, Semantics::Release) {
                own.acquire_seen(scope, place, |_| true);
            }
            if matches!(sem, Semantics::SeqCst) {
                for release in state.ordered.synchronizing(scope, place) {
                    join(&mut own.known, &release.clock);
                }
            }
            if !matches!(sem, Semantics::Acquire) {
                let clock = self.publish(lane);
                if matches!(sem, Semantics::SeqCst) {
                    let clock = Arc::clone(&clock);
                    state.ordered.add(Release { clock, from: place, fence: scope, write: scope });
                }
                let own = &mut self.lanes[lane];
                own.fences.add(scope, clock);
                own.heads.retain(|_, head| head.keep_wider(scope));
            }
        }
    }

    /// `fence.proxy.alias` of the lanes of `mask`. It orders nothing else.
    pub(crate) fn fence_aliases(&mut self, mask: u32) {
        for lane in lanes(mask) {
            let before = self.publish(lane);
            Arc::make_mut(&mut self.lanes[lane].known).fence_aliases(&before);
        }
    }

    /// `bar.warp.sync` of the lanes of `mask`.
    pub(crate) fn meet(&mut self, mask: u32) {
        let mut meeting = Meeting::default();
        self.arrive(mask, &mut meeting);
        self.pass(mask, &meeting);
    }

    /// The lanes of `mask` arrive at a barrier: what they did is known to all who pass it.
    pub(crate) fn arrive(&mut self, mask: u32, meeting: &mut Meeting) {
        let Place { work, block, .. } = self.place;
        let mut last: Option<&Arc<Clock>> = None;
        for lane in lanes(mask) {
            let own = &self.lanes[lane];
            if last.is_none_or(|last| !Arc::ptr_eq(last, &own.known)) {
                join(&mut meeting.known, &own.known);
            }
            last = Some(&own.known);
            meeting.latest = meeting.latest.max(own.tick);
        }
        meeting.block = Some((work, block));
        let known = Arc::make_mut(&mut meeting.known);
        for lane in lanes(mask) {
            let own = &mut self.lanes[lane];
            known.reach(work, block, self.warp, lane, own.tick);
            own.tick += 1;
        }
    }

    /// The lanes of `mask` pass a barrier that is complete.
    pub(crate) fn pass(&mut self, mask: u32, meeting: &Meeting) {
        let passing = self.lanes.iter_mut().enumerate().filter(|(lane, _)| mask >> lane & 1 != 0);
        let clocks = passing.map(|(_, own)| {
            own.tick = own.tick.max(meeting.latest + 1);
            &mut own.known
        });
        join_each(clocks, &meeting.known);
    }

    /// Events before the next event of `lane`, with all that it has done itself.
    fn publish(&mut self, lane: usize) -> Arc<Clock> {
        let Place { work, block, .. } = self.place;
        let own = &mut self.lanes[lane];
        let mut clock = Clock::clone(&own.known);
        clock.reach(work, block, self.warp, lane, own.tick);
        own.tick += 1;
        Arc::new(clock)
    }
}

impl Lane {
    /// Acquires those of the events seen that `takes` chooses, as far as their release reaches `place`.
    fn acquire_seen(&mut self, scope: Scope, place: Place, takes: impl Fn(&Seen) -> bool) {
        let known = &mut self.known;
        self.seen.retain(|seen| {
            let acquired = takes(seen) && seen.release.synchronizes(scope, place);
            if acquired {
                join(known, &seen.release.clock);
            }
            !acquired
        });
    }
}

impl Meeting {
    /// All threads of the block have arrived: whoever passes knows what all of them did.
    pub(crate) fn is_whole(&mut self) {
        if let Some((work, block)) = self.block {
            Arc::make_mut(&mut self.known).reach_all(work, block, self.latest);
        }
    }
}

/// The lanes of a mask.
pub(super) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 != 0)
}

/// The reason, for a report.
pub(super) fn explain(why: Why) -> &'static str {
    match why {
        Why::Unordered => "nothing orders them, and not both are strong",
        Why::Mixed => "both are strong, but their positions or sizes differ, and nothing orders them",
        Why::Scope => {
            "both are strong, but a scope does not include the other's thread, and nothing orders them"
        }
        Why::Alias => {
            "one is through another alias without fence.proxy.alias between, and nothing else orders them"
        }
    }
}
