//! The engine's threads and their scheduler.
//!
//! A started block or task is *ready* if it made progress the last time it ran, else *waiting*. Threads run ready units
//! and now and then try a waiting one. When nothing is ready, one thread at a time becomes the poller: it tries all
//! waiting units, and if none makes progress it sleeps on the event counts of the memory that they poll, for ever
//! longer times up to a millisecond. The other threads sleep on the engine's own event count. New blocks start when
//! nothing else is ready, and at every eighth choice; so few blocks are open at a time, but running blocks cannot keep
//! new ones out for ever. Where loads are weak, chance decides instead, so that no order is one that kernels can rely on.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::block::{Block, Outcome};
use super::cluster::Cluster;
use super::fault::FaultKind;
use super::grid::{Done, Grid, Pending, WHOLE};
use super::rare::Harmless;
use super::watchdog::Watchdog;
use super::{Launch, Step, Watch};
use crate::check::Chance;
use crate::mem::{EventCount, EventCountRef, wait_any};

/// Runs kernels and stream work. A process has one. Dropping it abandons unfinished work.
pub struct Engine {
    shared: Arc<Shared>,
}

impl Engine {
    /// Creates an engine of at most `cores` threads, which it starts when there is work for them.
    #[must_use]
    pub fn new(cores: usize, watchdog: Watchdog) -> Self {
        Self::in_any_order(cores, watchdog, None)
    }

    /// [`Self::new`], with the order of blocks and stream work left to `chance`.
    pub(crate) fn in_any_order(cores: usize, watchdog: Watchdog, chance: Option<Arc<Chance>>) -> Self {
        Self::make(cores, watchdog, chance, Naps::default())
    }

    fn make(cores: usize, watchdog: Watchdog, chance: Option<Arc<Chance>>, naps: Naps) -> Self {
        let shared = Shared {
            naps,
            chance,
            queues: Mutex::default(),
            event_count: EventCount::new(),
            cores: cores.max(1),
            watchdog,
            harmless: Harmless::default(),
        };
        Engine { shared: Arc::new(shared) }
    }

    /// Starts a kernel. An engine thread calls `done` once, after the last block has ended; all stores of the kernel
    /// happen before that call. The module must have passed [`Module::check`](crate::code::Module::check). Grid and
    /// block must not be empty, and the block must fit the device's limits; the driver checks both.
    ///
    /// Kernels of one device start their blocks in the order of these calls: a kernel starts blocks only after all
    /// blocks of earlier kernels have started.
    pub fn launch(&self, launch: Launch, done: impl FnOnce(Result<(), super::Fault>) + Send + 'static) {
        let device = launch.device;
        let done: Done = Box::new(done);
        let pending = Pending::new(Arc::new(Grid::new(launch, done)));
        let mut queues = self.shared.queues.lock();
        queues.devices.entry(device).or_default().grids.push_back(pending);
        self.shared.more_work(queues, 2);
    }

    /// Adds work that is not a kernel. The engine calls `step` repeatedly until it returns [`Step::Done`], never from
    /// two threads at once. A step must be short.
    pub fn task(&self, step: impl FnMut() -> Step + Send + 'static) {
        let mut queues = self.shared.queues.lock();
        queues.ready.push_back(Unit::Task(Task { step: Box::new(step), watched: None, watches_anew: false }));
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
        self.shared.event_count.notify();
    }
}

#[cfg(test)]
impl Engine {
    /// An engine whose threads sleep until they are woken. No nap ends in time to make up for a wake-up that is lost.
    pub(crate) fn that_must_be_woken(cores: usize) -> Self {
        let naps = Naps { first: ENDLESS, last: ENDLESS, idle: ENDLESS, ..Naps::default() };
        Self::make(cores, Watchdog::default(), None, naps)
    }

    /// Number of naps that waiting units have taken.
    pub(super) fn naps(&self) -> u64 {
        self.shared.naps.taken.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// Number of threads that sleep, or are about to.
    pub(super) fn sleepers(&self) -> u32 {
        self.shared.event_count.waiters.load(std::sync::atomic::Ordering::SeqCst)
    }
}

struct Shared {
    naps: Naps,
    queues: Mutex<Queues>,
    /// Notified when work is queued.
    event_count: EventCount,
    cores: usize,
    watchdog: Watchdog,
    harmless: Harmless,
    chance: Option<Arc<Chance>>,
}

#[derive(Default)]
struct Queues {
    ready: VecDeque<Unit>,
    waiting: VecDeque<Unit>,
    devices: BTreeMap<usize, Device>,
    /// Number of choices made so far that no chance made.
    choice: u64,
    /// Whether a thread is the poller of the waiting units.
    polling: bool,
    threads: usize,
    /// Threads that sleep because there is no work.
    idle: usize,
    stop: bool,
}

#[derive(Default)]
struct Device {
    grids: VecDeque<Pending>,
    /// Share of the device that running blocks take, out of [`WHOLE`].
    used: u64,
}

/// A unit of scheduling.
enum Unit {
    Block(Box<Block>, u64),
    Task(Task),
}

struct Task {
    step: Box<dyn FnMut() -> Step + Send>,
    /// The address it polled last, with the event count and its sequence before that poll.
    watched: Option<(Watch, Option<(EventCountRef, u32)>)>,
    /// It polled that for the first time, so the event count was not read before.
    watches_anew: bool,
}

/// The next action of a thread of the engine.
enum Choice {
    Run(Unit),
    Poll(VecDeque<Unit>),
    Nothing,
    Stop,
}

impl Queues {
    fn choose(&mut self, chance: Option<&Chance>) -> Choice {
        if self.stop {
            return Choice::Stop;
        }
        let (starts, look) = match chance {
            // How often a thread finds nothing to do depends on the time, so that must take none of the choices.
            Some(_) if self.ready.is_empty() && !self.can_start() => (false, false),
            Some(chance) => {
                let ready = self.ready.len().max(1);
                self.ready.rotate_left(chance.below(ready));
                // Chance gives a ready block only a few instructions at a time, so looks at waiting ones must be rare.
                (chance.one_in(2), chance.one_in(16))
            }
            None => {
                self.choice += 1;
                (self.choice.is_multiple_of(8), self.choice.is_multiple_of(2))
            }
        };
        if starts && let Some(unit) = self.start() {
            return Choice::Run(unit);
        }
        if look
            && !self.ready.is_empty()
            && let Some(unit) = self.waiting.pop_front()
        {
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

    /// Starts the next block, with the rest of its cluster, that some device has room for.
    fn start(&mut self) -> Option<Unit> {
        let ready = &mut self.ready;
        self.devices.values_mut().find_map(|device| {
            let pending = device.grids.front_mut()?;
            if device.used + pending.cluster_cost() > WHOLE {
                return None;
            }
            let (grid, first, cost) = (Arc::clone(&pending.grid), pending.next, pending.cost);
            let blocks = grid.cluster_blocks();
            pending.next += u64::from(blocks);
            device.used += pending.cluster_cost();
            if pending.next == grid.blocks() {
                device.grids.pop_front();
            }
            let garbage = grid.launch().garbage.map(|seed| seed.wrapping_add(first << 16 | 0xffff));
            let cluster = Arc::new(Cluster::new(blocks, grid.shared_size(), grid.threads(), garbage));
            let mut units = (0..u64::from(blocks)).map(|rank| {
                let block = Block::new(Arc::clone(&grid), first + rank, Arc::clone(&cluster));
                Unit::Block(Box::new(block), cost)
            });
            let unit = units.next();
            // The blocks of a cluster start together.
            ready.extend(units);
            unit
        })
    }

    fn can_start(&self) -> bool {
        let room = |d: &Device| d.grids.front().is_some_and(|p| d.used + p.cluster_cost() <= WHOLE);
        self.devices.values().any(room)
    }
}

impl Shared {
    /// Wakes or starts threads after `units` units of work were queued.
    fn more_work(self: &Arc<Self>, mut queues: MutexGuard<'_, Queues>, units: usize) {
        let wanted = units.saturating_sub(queues.idle).min(self.cores - queues.threads);
        for _ in 0..wanted {
            let shared = Arc::clone(self);
            let thread = std::thread::Builder::new().name("cuda-soft".to_owned());
            match thread.spawn(move || shared.work()) {
                Ok(_) => queues.threads += 1,
                // The running threads do all the work. Without any, no work can ever finish.
                Err(error) => {
                    assert!(queues.threads > 0, "the software device could not start a thread: {error}")
                }
            }
        }
        drop(queues);
        self.event_count.notify();
    }

    /// The main loop of a thread.
    fn work(&self) {
        loop {
            let seen = self.event_count.sequence();
            let choice = self.queues.lock().choose(self.chance.as_deref());
            match choice {
                Choice::Run(unit) => {
                    if let Some((unit, ready)) = self.run(unit) {
                        let mut queues = self.queues.lock();
                        let queue = if ready { &mut queues.ready } else { &mut queues.waiting };
                        queue.push_back(unit);
                        let help = queues.idle > 0 && (queues.ready.len() > 1 || queues.can_start());
                        drop(queues);
                        if help {
                            self.event_count.notify();
                        }
                    }
                }
                Choice::Poll(units) => self.poll(units),
                Choice::Nothing => {
                    self.queues.lock().idle += 1;
                    self.event_count.wait(seen, self.naps.idle);
                    self.queues.lock().idle -= 1;
                }
                Choice::Stop => return,
            }
        }
    }

    /// Tries waiting units until one makes progress or other work is queued.
    fn poll(&self, mut units: VecDeque<Unit>) {
        let mut nap = self.naps.first;
        for round in 0_u32.. {
            let seen = self.event_count.sequence();
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
                    self.event_count.notify();
                }
                return;
            }
            drop(queues);
            // Units that another thread has just given up, or that now wait for other memory, were not polled with a sequence in hand.
            if round < YIELDS || units.iter().any(Unit::watches_anew) {
                std::thread::yield_now();
            } else {
                self.nap(&units, seen, nap);
                nap = (nap * 2).min(self.naps.last);
            }
        }
    }

    /// Sleeps until memory that the units poll changes, work is queued, or `limit` has passed.
    fn nap(&self, units: &VecDeque<Unit>, seen: u32, limit: Duration) {
        let mut event_counts = vec![(&self.event_count, seen)];
        for (event_count, sequence) in units.iter().flat_map(Unit::event_counts) {
            let event_count: &EventCount = event_count;
            if !event_counts.iter().any(|(known, _)| std::ptr::eq(*known, event_count)) {
                event_counts.push((event_count, *sequence));
            }
        }
        #[cfg(test)]
        self.naps.taken.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        wait_any(&event_counts, limit);
    }

    /// Runs a unit once. Returns it and whether it made progress, or `None` if it has ended.
    fn run(&self, unit: Unit) -> Option<(Unit, bool)> {
        match unit {
            Unit::Block(mut block, cost) => {
                let outcome = catch_unwind(AssertUnwindSafe(|| block.run(&self.watchdog, &self.harmless)));
                let outcome = outcome.unwrap_or_else(|_| {
                    // A panic is a defect of the engine. It fails the kernel, and the process continues.
                    block.grid().fault(block.internal_fault(FaultKind::IllegalInstruction));
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
                if let Some((watch, event_count)) = &mut task.watched {
                    *event_count = watch.event_count();
                }
                match catch_unwind(AssertUnwindSafe(&mut task.step)) {
                    Ok(Step::Again) => Some((Unit::Task(task), true)),
                    Ok(Step::Waiting { watched }) => {
                        let before = task.watched.take();
                        task.watches_anew = false;
                        task.watched = watched.map(|watch| {
                            let same = before.filter(|(b, _)| b.addr == watch.addr);
                            task.watches_anew = same.is_none();
                            (watch, same.and_then(|(_, event_count)| event_count))
                        });
                        Some((Unit::Task(task), false))
                    }
                    // The panic message is on standard error. The owner of the task is never told.
                    Ok(Step::Done) | Err(_) => None,
                }
            }
        }
    }

    /// Gives back the block's share of the device and counts the block as ended.
    fn finish(&self, block: &Block, cost: u64) {
        let grid = block.grid();
        let mut queues = self.queues.lock();
        let mut ended = 1;
        let device = queues.devices.entry(grid.launch().device).or_default();
        device.used -= cost;
        if grid.faulted() {
            // Blocks that have not started never start; they count as ended.
            if let Some(at) = device.grids.iter().position(|p| Arc::ptr_eq(&p.grid, grid)) {
                ended += grid.blocks() - device.grids[at].next;
                device.grids.remove(at);
            }
        }
        let help = queues.idle > 0 && queues.can_start();
        drop(queues);
        if help {
            self.event_count.notify();
        }
        // A panic in the owner's callback must not kill this thread.
        let _ = catch_unwind(AssertUnwindSafe(|| grid.ended(ended)));
    }
}

const YIELDS: u32 = 2;
#[cfg(test)]
const ENDLESS: Duration = Duration::from_secs(3600);

/// How long threads sleep when nobody wakes them.
struct Naps {
    /// The first nap of the poller, and the longest: host code may store without waking it.
    first: Duration,
    last: Duration,
    /// A thread without work.
    idle: Duration,
    /// Number of the poller's naps.
    #[cfg(test)]
    taken: std::sync::atomic::AtomicU64,
}

impl Default for Naps {
    fn default() -> Self {
        Self {
            first: Duration::from_micros(50),
            last: Duration::from_millis(1),
            idle: Duration::from_millis(100),
            #[cfg(test)]
            taken: std::sync::atomic::AtomicU64::new(0),
        }
    }
}

impl Unit {
    /// Whether the sequence of something that it waits for was not read before the last poll: a change since then wakes nobody.
    fn watches_anew(&self) -> bool {
        match self {
            Unit::Block(block, _) => block.watches_anew(),
            Unit::Task(task) => task.watches_anew,
        }
    }

    /// The event counts to sleep on, each with its sequence before the last poll.
    fn event_counts(&self) -> Vec<&(EventCountRef, u32)> {
        match self {
            Unit::Block(block, _) => block.event_counts().collect(),
            Unit::Task(task) => {
                task.watched.iter().filter_map(|(_, event_count)| event_count.as_ref()).collect()
            }
        }
    }
}

impl Watch {
    fn event_count(&self) -> Option<(EventCountRef, u32)> {
        let event_count = self.space.enter(self.device).event_count(self.addr)?;
        let sequence = event_count.sequence();
        Some((event_count, sequence))
    }
}
