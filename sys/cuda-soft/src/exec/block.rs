//! A block: its warps, barriers and shared memory. Any engine thread may run it, one quantum at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::barrier::Barriers;
use super::cluster::Cluster;
use super::fault::{Fault, FaultKind, Trouble};
use super::grid::{Grid, Place};
use super::memory::Access;
use super::rare::Harmless;
use super::regs::ALL;
use super::turn::{Context, Turn};
use super::warp::Warp;
use super::watchdog::{Stall, Watchdog};
use crate::mem::EventCountRef;

/// How long a block runs before other blocks get their turn.
const QUANTUM: Duration = Duration::from_micros(200);
/// Maximum number of addresses per block whose event counts a sleeping engine thread waits for.
const WATCHES: usize = 4;

/// How a quantum ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All threads have exited, or the grid has faulted.
    Done,
    /// The block can continue.
    Again,
    /// All warps wait.
    Waiting,
}

#[derive(Debug)]
pub(super) struct Block {
    grid: Arc<Grid>,
    place: Place,
    warps: Vec<Warp>,
    barriers: Barriers,
    cluster: Arc<Cluster>,
    /// The warp that runs next.
    turn: usize,
    /// When the current wait of the whole block began.
    stalled: Option<Instant>,
    /// Addresses that waiting lanes poll. Each has its event count and the event count's sequence as it was before the
    /// last quantum read the address.
    watches: Vec<(u64, Option<(EventCountRef, u32)>)>,
    /// One of them was not known before the last poll.
    watches_anew: bool,
}

impl Block {
    /// Creates block number `linear` of `grid`, as a part of `cluster`.
    pub(super) fn new(grid: Arc<Grid>, linear: u64, cluster: Arc<Cluster>) -> Self {
        let launch = grid.launch();
        let place = Place::new(launch, linear);
        let threads = grid.threads();
        let live: Vec<u32> = (0..threads.div_ceil(32))
            .map(|warp| match threads - warp * 32 {
                rest if rest < 32 => (1 << rest) - 1,
                _ => ALL,
            })
            .collect();
        let (function, code) = (launch.function as u32, grid.function());
        let warps = live
            .iter()
            .enumerate()
            .map(|(w, mask)| {
                let garbage = launch.garbage.map(|seed| seed.wrapping_add(linear << 16 | w as u64));
                let mut warp = Warp::new(w, *mask, function, code, grid.stack_size, garbage);
                let weak = launch.check.as_ref().is_some_and(|work| work.chance().is_some());
                warp.paths = (launch.aligned || weak).then(Box::default);
                warp.check = launch.check.as_ref().map(|work| Box::new(work.warp(linear as u32, w as u16)));
                warp
            })
            .collect();
        Block {
            place,
            warps,
            barriers: Barriers::new(live),
            cluster,
            turn: 0,
            stalled: None,
            watches: Vec::new(),
            watches_anew: false,
            grid,
        }
    }

    pub(super) fn grid(&self) -> &Arc<Grid> {
        &self.grid
    }

    /// The event counts to sleep on while the block waits, each with its sequence before the last poll.
    pub(super) fn event_counts(&self) -> impl Iterator<Item = &(EventCountRef, u32)> {
        self.watches.iter().filter_map(|(_, event_count)| event_count.as_ref())
    }

    /// Whether it waits for memory of which no event count was read before the last poll: poll it once more before sleeping.
    pub(super) fn watches_anew(&self) -> bool {
        self.watches_anew
    }

    /// Runs for one quantum, or until all warps wait.
    pub(super) fn run(&mut self, watchdog: &Watchdog, harmless: &Harmless) -> Outcome {
        if self.grid.faulted() {
            return Outcome::Done;
        }
        let (outcome, advanced) = self.quantum(harmless).unwrap_or_else(|fault| {
            self.grid.fault(fault);
            (Outcome::Done, true)
        });
        if outcome == Outcome::Done {
            return outcome;
        }
        // A loop of weak loads looks like work, also if the kernel that was to store has ended because of a race.
        let is_moot = || self.grid.launch().check.as_ref().is_some_and(|work| work.is_moot());
        if advanced && !is_moot() {
            self.stalled = None;
            return outcome;
        }
        let waited = self.stalled.get_or_insert_with(Instant::now).elapsed();
        if waited >= watchdog.report_after && !self.grid.reported.swap(true, Ordering::Relaxed) {
            (watchdog.report)(&self.stall(waited));
        }
        if watchdog.fault_after.is_some_and(|limit| waited >= limit) {
            self.grid.fault(self.timeout());
            return Outcome::Done;
        }
        outcome
    }

    /// Returns how the quantum ended, and whether the watchdog takes it for progress.
    fn quantum(&mut self, harmless: &Harmless) -> Result<(Outcome, bool), Fault> {
        let grid = Arc::clone(&self.grid);
        let launch = grid.launch();
        let view = launch.space.enter(launch.device);
        let mut access = Access::new(&view, &self.cluster, self.place.rank, grid.params());
        for (address, event_count) in &mut self.watches {
            *event_count = access.sequence(*address);
        }
        let start = Instant::now();
        let (mut still, mut advanced) = (0, false);
        while still < self.warps.len() {
            let warp = &mut self.warps[self.turn];
            let turn = if warp.live == 0 {
                Turn::Waiting
            } else {
                let (place, barriers) = (&self.place, &mut self.barriers);
                let mut cx = Context { grid: &grid, place, barriers, access: &mut access, harmless };
                let turn = warp.turn(&mut cx);
                access.notify();
                turn.map_err(|trouble| self.describe(trouble, self.turn))?
            };
            self.turn = (self.turn + 1) % self.warps.len();
            advanced |= matches!(turn, Turn::Progress | Turn::Exited);
            still = if turn == Turn::Waiting { still + 1 } else { 0 };
            let chance = launch.check.as_ref().and_then(|work| work.chance());
            if still == 0
                && let Some(chance) = chance
            {
                self.turn = chance.below(self.warps.len());
            }
            // The seed alone determines the choices: the time must not.
            if still == 0 && chance.map_or_else(|| start.elapsed() >= QUANTUM, |chance| chance.one_in(2)) {
                return Ok((Outcome::Again, advanced));
            }
        }
        if self.warps.iter().all(|w| w.live == 0) {
            return Ok((Outcome::Done, advanced));
        }
        self.collect_watches();
        Ok((Outcome::Waiting, advanced))
    }

    /// Stores the addresses that the warps poll. A new address has no sequence until the next quantum has read it
    /// before polling; with a sequence read after the poll, an engine thread could sleep through a change.
    fn collect_watches(&mut self) {
        let mut now: Vec<(u64, Option<(EventCountRef, u32)>)> = Vec::with_capacity(WATCHES);
        self.watches_anew = false;
        for address in self.warps.iter().flat_map(|w| &w.watches) {
            if now.len() == WATCHES {
                break;
            }
            if now.iter().all(|(known, _)| known != address) {
                let before = self.watches.iter().find(|(known, _)| known == address);
                self.watches_anew |= before.is_none();
                now.push((*address, before.and_then(|(_, event_count)| event_count.clone())));
            }
        }
        self.watches = now;
    }

    fn describe(&self, trouble: Trouble, warp: usize) -> Fault {
        let lane = usize::from(trouble.lane);
        let thread = self.place.thread(warp, lane);
        let at = (self.warps[warp].frame_of(lane).function, self.warps[warp].pc[lane]);
        self.grid.describe(trouble, self.place.index, thread, at)
    }

    /// Creates a fault that no particular thread caused.
    pub(super) fn internal_fault(&self, kind: FaultKind) -> Fault {
        self.describe(Trouble { kind, lane: 0, address: None }, self.turn)
    }

    /// Finds a waiting thread to name in a report, as (warp, lane).
    fn waiting_thread(&self) -> (usize, usize) {
        let lane = |mask: u32| mask.trailing_zeros() as usize & 31;
        let spinning = self.warps.iter().position(|w| w.spinning & w.live != 0);
        match spinning {
            Some(w) => (w, lane(self.warps[w].spinning)),
            None => self.barriers.any_waiting().unwrap_or_else(|| {
                let w = self.warps.iter().position(|w| w.live != 0).unwrap_or(0);
                (w, lane(self.warps[w].live))
            }),
        }
    }

    fn stall(&self, waited: Duration) -> Stall {
        let (w, lane) = self.waiting_thread();
        let warp = &self.warps[w];
        let (function, line) = self.grid.source((warp.frame_of(lane).function, warp.pc[lane]));
        Stall {
            kernel: self.grid.function().name.clone(),
            block: self.place.index,
            thread: self.place.thread(w, lane),
            function,
            line,
            address: warp.watches.first().copied().filter(|_| warp.spinning >> lane & 1 != 0),
            waited,
        }
    }

    fn timeout(&self) -> Fault {
        let (w, lane) = self.waiting_thread();
        let address = self.warps[w].watches.first().copied();
        self.describe(Trouble { kind: FaultKind::Timeout, lane: lane as u8, address }, w)
    }
}
