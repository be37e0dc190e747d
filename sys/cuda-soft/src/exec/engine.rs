//! The threads, and who of all that can run gets one.
//!
//! Started blocks and tasks that got somewhere last time are *ready*; those that did not are
//! *waiting* and are looked at between ready ones. One thread at a time has the office of looking
//! at the waiting when nothing is ready: it goes through all of them, and when none has moved it
//! sleeps, ever longer up to a millisecond, on the doorbells of what they look at. The other
//! threads sleep on the engine's own doorbell. New blocks start when nothing else is ready, or at
//! every eighth choice, so that few blocks are open at a time and none can keep the rest out.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::block::{Block, Outcome};
use super::fault::FaultKind;
use super::grid::{Done, Grid, Pending, WHOLE};
use super::rare::Harmless;
use super::watchdog::Watchdog;
use super::{Launch, Step, Watch};
use crate::mem::{Bell, Doorbell, sleep_any};

/// Runs kernels and stream work. One per process; dropping it abandons what is unfinished.
pub struct Engine {
    shared: Arc<Shared>,
}

impl Engine {
    /// An engine of at most `cores` threads, which start when there is work for them.
    #[must_use]
    pub fn new(cores: usize, watchdog: Watchdog) -> Self {
        let (queues, bell, harmless) = (Mutex::default(), Doorbell::new(), Harmless::default());
        let shared = Shared { queues, bell, cores: cores.max(1), watchdog, harmless };
        Engine { shared: Arc::new(shared) }
    }

    /// Starts a kernel. `done` is called once, on a thread of the engine, after the last block:
    /// everything the kernel stored happens before it. The module must have passed
    /// [`Module::check`](crate::code::Module::check); grid and block must not be empty and the
    /// block must fit the device's limits, which the driver checks.
    ///
    /// Kernels of one device start their blocks in the order of these calls, each when the earlier
    /// ones have started all of theirs.
    pub fn launch(&self, launch: Launch, done: impl FnOnce(Result<(), super::Fault>) + Send + 'static) {
        let device = launch.device;
        let done: Done = Box::new(done);
        let pending = Pending::new(Arc::new(Grid::new(launch, done)));
        let mut queues = self.shared.queues.lock();
        queues.devices.entry(device).or_default().grids.push_back(pending);
        self.shared.more_work(queues, 2);
    }

    /// Adds work that is not a kernel: `step` is called again and again until it is done, never
    /// by two threads at once. A step must be short.
    pub fn task(&self, step: impl FnMut() -> Step + Send + 'static) {
        let mut queues = self.shared.queues.lock();
        queues.ready.push_back(Unit::Task(Task { step: Box::new(step), watched: None }));
        self.shared.more_work(queues, 1);
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queues = self.shared.queues.lock();
        f.debug_struct("Engine")
            .field("cores", &self.shared.cores)
            .field("threads", &queues.threads)
            .field("ready", &queues.ready.len())
            .field("waiting", &queues.waiting.len())
            .finish_non_exhaustive()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.queues.lock().stop = true;
        self.shared.bell.ring();
    }
}

struct Shared {
    queues: Mutex<Queues>,
    /// Rung when work comes.
    bell: Doorbell,
    cores: usize,
    watchdog: Watchdog,
    harmless: Harmless,
}

#[derive(Default)]
struct Queues {
    ready: VecDeque<Unit>,
    waiting: VecDeque<Unit>,
    devices: BTreeMap<usize, Device>,
    /// Counts choices.
    choice: u64,
    /// Whether a thread has the office of looking at the waiting.
    polling: bool,
    threads: usize,
    /// Threads asleep for want of work.
    idle: usize,
    stop: bool,
}

#[derive(Default)]
struct Device {
    grids: VecDeque<Pending>,
    /// How much of the device is taken, out of [`WHOLE`].
    used: u64,
}

/// Something to run.
enum Unit {
    Block(Box<Block>, u64),
    Task(Task),
}

struct Task {
    step: Box<dyn FnMut() -> Step + Send>,
    /// What it looked at, and the doorbell with its sequence before the last look.
    watched: Option<(Watch, Option<(Bell, u32)>)>,
}

/// What a thread does next.
enum Choice {
    Run(Unit),
    Poll(VecDeque<Unit>),
    Nothing,
    Stop,
}

impl Queues {
    fn choose(&mut self) -> Choice {
        if self.stop {
            return Choice::Stop;
        }
        self.choice += 1;
        if self.choice.is_multiple_of(8)
            && let Some(unit) = self.start()
        {
            return Choice::Run(unit);
        }
        let look = self.choice.is_multiple_of(2) && !self.ready.is_empty();
        if look && let Some(unit) = self.waiting.pop_front() {
            return Choice::Run(unit);
        }
        if let Some(unit) = self.ready.pop_front().or_else(|| self.start()) {
            return Choice::Run(unit);
        }
        if self.polling || self.waiting.is_empty() {
            return Choice::Nothing;
        }
        self.polling = true;
        Choice::Poll(std::mem::take(&mut self.waiting))
    }

    /// Starts the next block for which some device has room.
    fn start(&mut self) -> Option<Unit> {
        self.devices.values_mut().find_map(|device| {
            let pending = device.grids.front_mut()?;
            if device.used + pending.cost > WHOLE {
                return None;
            }
            let (grid, linear, cost) = (Arc::clone(&pending.grid), pending.next, pending.cost);
            pending.next += 1;
            device.used += cost;
            if pending.next == grid.blocks() {
                device.grids.pop_front();
            }
            Some(Unit::Block(Box::new(Block::new(grid, linear)), cost))
        })
    }

    fn can_start(&self) -> bool {
        let room = |d: &Device| d.grids.front().is_some_and(|p| d.used + p.cost <= WHOLE);
        self.devices.values().any(room)
    }
}

impl Shared {
    /// Wakes or starts threads after `units` pieces of work have been queued.
    fn more_work(self: &Arc<Self>, mut queues: MutexGuard<'_, Queues>, units: usize) {
        let wanted = units.saturating_sub(queues.idle).min(self.cores - queues.threads);
        for _ in 0..wanted {
            let shared = Arc::clone(self);
            let thread = std::thread::Builder::new().name("cuda-soft".to_owned());
            match thread.spawn(move || shared.work()) {
                Ok(_) => queues.threads += 1,
                // Those that run do all the work; with none there is nothing better to do than
                // to say so.
                Err(error) => assert!(queues.threads > 0, "no thread for the software device: {error}"),
            }
        }
        drop(queues);
        self.bell.ring();
    }

    /// The life of a thread.
    fn work(&self) {
        loop {
            let seen = self.bell.sequence();
            let choice = self.queues.lock().choose();
            match choice {
                Choice::Run(unit) => {
                    if let Some((unit, ready)) = self.run(unit) {
                        let mut queues = self.queues.lock();
                        let queue = if ready { &mut queues.ready } else { &mut queues.waiting };
                        queue.push_back(unit);
                        let help = queues.idle > 0 && (queues.ready.len() > 1 || queues.can_start());
                        drop(queues);
                        if help {
                            self.bell.ring();
                        }
                    }
                }
                Choice::Poll(units) => self.poll(units),
                Choice::Nothing => {
                    self.queues.lock().idle += 1;
                    self.bell.sleep(seen, Duration::from_millis(100));
                    self.queues.lock().idle -= 1;
                }
                Choice::Stop => return,
            }
        }
    }

    /// Looks at waiting units until one moves or other work comes.
    fn poll(&self, mut units: VecDeque<Unit>) {
        let mut nap = FIRST_NAP;
        for round in 0_u32.. {
            let seen = self.bell.sequence();
            let mut moved = Vec::new();
            let mut still = VecDeque::with_capacity(units.len());
            let before = units.len();
            for unit in units {
                match self.run(unit) {
                    Some((unit, true)) => moved.push(unit),
                    Some((unit, false)) => still.push_back(unit),
                    None => {}
                }
            }
            units = still;
            let mut queues = self.queues.lock();
            units.append(&mut queues.waiting);
            let other = !queues.ready.is_empty() || queues.can_start() || queues.stop;
            if units.len() < before || !moved.is_empty() || other || units.is_empty() {
                queues.ready.extend(moved);
                queues.waiting = units;
                queues.polling = false;
                let help = queues.idle > 0 && queues.ready.len() > 1;
                drop(queues);
                if help {
                    self.bell.ring();
                }
                return;
            }
            drop(queues);
            if round < YIELDS {
                std::thread::yield_now();
            } else {
                self.nap(&units, seen, nap);
                nap = (nap * 2).min(LAST_NAP);
            }
        }
    }

    /// Sleeps until memory that the units look at changes, work comes, or `limit` has passed.
    fn nap(&self, units: &VecDeque<Unit>, seen: u32, limit: Duration) {
        let mut bells = vec![(&self.bell, seen)];
        for (bell, sequence) in units.iter().flat_map(Unit::bells) {
            let bell: &Doorbell = bell;
            if !bells.iter().any(|(known, _)| std::ptr::eq(*known, bell)) {
                bells.push((bell, *sequence));
            }
        }
        sleep_any(&bells, limit);
    }

    /// Runs a unit once: it and whether it moved, or nothing if it has ended.
    fn run(&self, unit: Unit) -> Option<(Unit, bool)> {
        match unit {
            Unit::Block(mut block, cost) => {
                let outcome = catch_unwind(AssertUnwindSafe(|| block.run(&self.watchdog, &self.harmless)));
                let outcome = outcome.unwrap_or_else(|_| {
                    // A defect of the engine: the kernel ends, the process goes on.
                    block.grid().fault(block.confess(FaultKind::IllegalInstruction));
                    Outcome::Done
                });
                match outcome {
                    Outcome::Done => {
                        self.finish(&block, cost);
                        None
                    }
                    Outcome::Again => Some((Unit::Block(block, cost), true)),
                    Outcome::Waiting => Some((Unit::Block(block, cost), false)),
                }
            }
            Unit::Task(mut task) => {
                if let Some((watch, bell)) = &mut task.watched {
                    *bell = watch.bell();
                }
                match catch_unwind(AssertUnwindSafe(&mut task.step)) {
                    Ok(Step::Again) => Some((Unit::Task(task), true)),
                    Ok(Step::Waiting { watched }) => {
                        let before = task.watched.take();
                        task.watched = watched.map(|watch| {
                            let same = before.filter(|(b, _)| b.addr == watch.addr);
                            (watch, same.and_then(|(_, bell)| bell))
                        });
                        Some((Unit::Task(task), false))
                    }
                    // A step that panics has said why on standard error; its owner hears no more.
                    Ok(Step::Done) | Err(_) => None,
                }
            }
        }
    }

    /// Gives back a block's share of the device and counts it.
    fn finish(&self, block: &Block, cost: u64) {
        let grid = block.grid();
        let mut queues = self.queues.lock();
        let mut ended = 1;
        let device = queues.devices.entry(grid.launch().device).or_default();
        device.used -= cost;
        if grid.faulted() {
            // Blocks that have not started never will.
            if let Some(at) = device.grids.iter().position(|p| Arc::ptr_eq(&p.grid, grid)) {
                ended += grid.blocks() - device.grids[at].next;
                device.grids.remove(at);
            }
        }
        let help = queues.idle > 0 && queues.can_start();
        drop(queues);
        if help {
            self.bell.ring();
        }
        // The owner may panic; the thread must live on.
        let _ = catch_unwind(AssertUnwindSafe(|| grid.ended(ended)));
    }
}

const YIELDS: u32 = 2;
const FIRST_NAP: Duration = Duration::from_micros(50);
const LAST_NAP: Duration = Duration::from_millis(1);

impl Unit {
    /// Doorbells to sleep on, with their sequences before the last look.
    fn bells(&self) -> Vec<&(Bell, u32)> {
        match self {
            Unit::Block(block, _) => block.bells().collect(),
            Unit::Task(task) => task.watched.iter().filter_map(|(_, bell)| bell.as_ref()).collect(),
        }
    }
}

impl Watch {
    fn bell(&self) -> Option<(Bell, u32)> {
        let bell = self.space.enter(self.device).keep(self.addr)?;
        let sequence = bell.sequence();
        Some((bell, sequence))
    }
}
