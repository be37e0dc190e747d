//! A block: warps, barriers and shared memory, run one quantum at a time by whoever has time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::barrier::Barriers;
use super::fault::{Fault, FaultKind, Trouble};
use super::grid::Grid;
use super::memory::{Access, Range};
use super::rare::Harmless;
use super::regs::{ALL, LANES};
use super::step::{Context, Turn};
use super::warp::{Line, Warp, lines};
use super::watchdog::{Stall, Watchdog};
use crate::mem::Bell;

/// How long a block runs before others get their turn.
const QUANTUM: Duration = Duration::from_micros(200);
/// Addresses per block whose doorbells a sleeping thread listens to.
const WATCHES: usize = 4;

/// Where a block is in its grid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) index: [u32; 3],
    pub(super) linear: u64,
    /// Threads in x, y, z.
    block: [u32; 3],
}

impl Place {
    /// The index of a thread.
    pub(super) fn thread(&self, warp: usize, lane: usize) -> [u32; 3] {
        let linear = (warp * LANES + lane) as u32;
        let [x, y, _] = self.block;
        [linear % x, linear / x % y, linear / (x * y)]
    }
}

/// What a quantum came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All threads have exited, or the grid has faulted.
    Done,
    /// It can go on.
    Again,
    /// Nothing moved.
    Waiting,
}

#[derive(Debug)]
pub(super) struct Block {
    grid: Arc<Grid>,
    place: Place,
    warps: Vec<Warp>,
    barriers: Barriers,
    shared: Box<[Line]>,
    /// The warp whose turn is next.
    turn: usize,
    /// Since when nothing has moved.
    stalled: Option<Instant>,
    /// Addresses that waiting lanes look at, and the sequence their doorbells had before the last
    /// quantum looked.
    watches: Vec<(u64, Option<(Bell, u32)>)>,
}

impl Block {
    /// Block number `linear` of `grid`.
    pub(super) fn new(grid: Arc<Grid>, linear: u64) -> Self {
        let launch = grid.launch();
        let [x, y, _] = launch.grid.map(u64::from);
        let index = [linear % x, linear / x % y, linear / (x * y)].map(|v| v as u32);
        let place = Place { index, linear, block: launch.block };
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
            .map(|(w, mask)| Warp::new(w, *mask, function, code, grid.stack_size))
            .collect();
        Block {
            place,
            warps,
            barriers: Barriers::new(live),
            shared: lines(grid.shared_size()),
            turn: 0,
            stalled: None,
            watches: Vec::new(),
            grid,
        }
    }

    pub(super) fn grid(&self) -> &Arc<Grid> {
        &self.grid
    }

    /// The doorbells to sleep on when it waits, with their sequences before the last look.
    pub(super) fn bells(&self) -> impl Iterator<Item = &(Bell, u32)> {
        self.watches.iter().filter_map(|(_, bell)| bell.as_ref())
    }

    /// Runs for a quantum, or until nothing moves.
    pub(super) fn run(&mut self, watchdog: &Watchdog, harmless: &Harmless) -> Outcome {
        if self.grid.faulted() {
            return Outcome::Done;
        }
        let outcome = self.quantum(harmless).unwrap_or_else(|fault| {
            self.grid.fault(fault);
            Outcome::Done
        });
        if outcome != Outcome::Waiting {
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
        Outcome::Waiting
    }

    fn quantum(&mut self, harmless: &Harmless) -> Result<Outcome, Fault> {
        let grid = Arc::clone(&self.grid);
        let launch = grid.launch();
        let view = launch.space.enter(launch.device);
        let shared = Range::of(&self.shared);
        let shared = Range { base: shared.base, end: shared.base + grid.shared_size() };
        let mut access = Access::new(&view, shared, grid.params());
        for (address, bell) in &mut self.watches {
            *bell = access.sequence(*address);
        }
        let start = Instant::now();
        let mut still = 0;
        while still < self.warps.len() {
            let warp = &mut self.warps[self.turn];
            let turn = if warp.live == 0 {
                Turn::Waiting
            } else {
                let (place, barriers) = (&self.place, &mut self.barriers);
                let mut cx = Context { grid: &grid, place, barriers, access: &mut access, harmless };
                let turn = warp.turn(&mut cx);
                access.ring();
                turn.map_err(|trouble| self.describe(trouble, self.turn))?
            };
            self.turn = (self.turn + 1) % self.warps.len();
            still = if turn == Turn::Waiting { still + 1 } else { 0 };
            if still == 0 && start.elapsed() >= QUANTUM {
                return Ok(Outcome::Again);
            }
        }
        if self.warps.iter().all(|w| w.live == 0) {
            return Ok(Outcome::Done);
        }
        self.collect_watches();
        Ok(Outcome::Waiting)
    }

    /// Remembers what the warps look at. The sequence of a new address is unknown until the next
    /// quantum, so that nobody sleeps on a change that the last look may have missed.
    fn collect_watches(&mut self) {
        let mut now: Vec<(u64, Option<(Bell, u32)>)> = Vec::with_capacity(WATCHES);
        for address in self.warps.iter().flat_map(|w| &w.watches) {
            if now.len() == WATCHES {
                break;
            }
            if now.iter().all(|(known, _)| known != address) {
                let before = self.watches.iter().find(|(known, _)| known == address);
                now.push((*address, before.and_then(|(_, bell)| bell.clone())));
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

    /// A fault that is nobody's in particular.
    pub(super) fn confess(&self, kind: FaultKind) -> Fault {
        self.describe(Trouble { kind, lane: 0, address: None }, self.turn)
    }

    /// A lane that waits, as (warp, lane).
    fn sufferer(&self) -> (usize, usize) {
        let lane = |mask: u32| mask.trailing_zeros() as usize & 31;
        let spinner = self.warps.iter().position(|w| w.spinning & w.live != 0);
        match spinner {
            Some(w) => (w, lane(self.warps[w].spinning)),
            None => self.barriers.somebody().unwrap_or_else(|| {
                let w = self.warps.iter().position(|w| w.live != 0).unwrap_or(0);
                (w, lane(self.warps[w].live))
            }),
        }
    }

    fn stall(&self, waited: Duration) -> Stall {
        let (w, lane) = self.sufferer();
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
        let (w, lane) = self.sufferer();
        let address = self.warps[w].watches.first().copied();
        self.describe(Trouble { kind: FaultKind::Timeout, lane: lane as u8, address }, w)
    }
}
