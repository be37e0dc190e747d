//! The order of launches of a communicator's executors, once they do not all fit on a device together.
//!
//! While everything fits, nothing here costs more than two counters. At a preparation after which some rank's device does not have room for
//! all kernels at once, the ranks begin to take turns: from then on each call asks for its turn in its stream, and rank 0 lets one call
//! at a time begin, on all ranks the same one. See [`Line`] for how.
//!
//! A call asks when it has come to the front of its stream, and its turn comes only after all ranks have asked for it. So a call that
//! holds places on some devices never waits for one that has none on another device, in whatever order hosts make calls, and wherever streams
//! make some of them wait for others.
//!
//! All ranks must agree which calls take turns, or one waits for a word that nobody writes. The calls that began before such a preparation do
//! not, and there must be equally many on all ranks.

mod line;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock, Weak};

use self::line::PendingLine;
pub(super) use self::line::{CALLERS, Line};
use crate::comm::Communicator;
use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Context, Series};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

const PREPARE: &str = "Executor::prepare";

/// Calls take turns.
const TAKEN: u64 = 1 << 63;
/// No call may begin: the ranks are agreeing on the first one that takes turns.
const CLOSED: u64 = 1 << 62;
/// No call may begin any more: this rank does not know whether the others take turns.
const BROKEN: u64 = 1 << 61;
const FLAGS: u64 = TAKEN | CLOSED | BROKEN;

/// Kept by the executors of a communicator.
#[derive(Debug)]
pub(super) struct Turns {
    /// How many calls have begun, and flags.
    begun: AtomicU64,
    /// How many of them have been enqueued, or have failed.
    ended: AtomicU64,
    line: OnceLock<Line>,
    /// For the launches of this rank that take turns.
    company: Series,
    /// A bit for each number of a caller that is taken.
    numbers: Mutex<Vec<u64>>,
}

/// An executor, or a series of them whose calls follow each other.
#[derive(Debug)]
pub(super) struct Caller {
    turns: Weak<Turns>,
    number: u32,
}

/// The place of an executor.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) turns: Arc<Turns>,
    /// `None` for one whose calls come in one order on all ranks without turns.
    pub(super) caller: Option<Arc<Caller>>,
}

/// A call while it is being enqueued.
#[derive(Debug)]
pub(super) struct Calling<'t> {
    turns: &'t Turns,
    /// Where it takes its turn, and for whom.
    pub(super) turn: Option<(&'t Line, u32, Series)>,
}

/// A rank's word about its turns at a preparation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Stands for the history that ranks share: 0 without any.
    pub(super) history: u64,
    /// How many calls have begun.
    pub(super) calls: u64,
    /// Whether they take turns.
    pub(super) taken: bool,
    /// Whether kernels do not all fit on the device together, and some of this communicator need an order.
    pub(super) crowded: bool,
    /// Whether this rank's streams and links can do it.
    pub(super) able: bool,
    pub(super) numbers: Vec<u64>,
}

/// The decision that all ranks make by their facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    /// Whether this rank's turns are those of all others.
    pub(super) same: bool,
    /// Whether calls take turns from now on, and did not before.
    pub(super) begins: bool,
    /// Numbers that a caller has on some rank.
    numbers: Vec<u64>,
}

impl Turns {
    pub(super) fn new(context: &Context) -> Arc<Self> {
        Arc::new(Self {
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            line: OnceLock::new(),
            company: context.new_series(),
            numbers: Mutex::default(),
        })
    }

    /// What this rank says of `known`, the turns that plans of `comm` have left under the number `history`. `needed`: whether the plans to
    /// come need an order where there is no room.
    pub(super) fn facts(
        comm: &Communicator,
        (history, known): &(u64, Option<Arc<Self>>),
        needed: bool,
    ) -> Facts {
        let begun = known.as_ref().map_or(0, |turns| turns.begun.load(Ordering::Acquire));
        let numbers = known.as_ref().map_or(Vec::new(), |turns| lock(&turns.numbers).clone());
        let needed = needed || numbers.iter().any(|bits| *bits != 0);
        Facts {
            history: *history,
            calls: begun & !FLAGS,
            taken: begun & TAKEN != 0,
            crowded: comm.size() > 1 && needed && comm.context().is_crowded(),
            able: Line::is_possible(comm),
            numbers,
        }
    }

    /// Begins a call of `caller`. While ranks agree on turns it waits: all of them are in the same preparation then.
    pub(super) fn begin(
        &self,
        op: &'static str,
        comm: &Communicator,
        caller: Option<&Caller>,
    ) -> Result<Calling<'_>> {
        let mut backoff = Backoff::new();
        let begun = loop {
            let begun = self.begun.load(Ordering::Acquire);
            if begun & BROKEN != 0 {
                return Err(broken(op));
            }
            if begun & CLOSED != 0 {
                comm.check_all(op)?;
                backoff.pause(Deadline::after(std::time::Duration::from_secs(1)));
                continue;
            }
            if self.begun.compare_exchange(begun, begun + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                break begun;
            }
        };
        let line = self.line.get().filter(|_| begun & TAKEN != 0);
        let turn = line.zip(caller).map(|(line, caller)| (line, caller.number, self.company));
        Ok(Calling { turns: self, turn })
    }

    /// Lets no call begin that `calls` does not count, and waits until all of those have been enqueued.
    fn close(self: &Arc<Self>, calls: u64, deadline: Deadline) -> Result<Closed> {
        let closed = self.begun.compare_exchange(calls, calls | CLOSED, Ordering::AcqRel, Ordering::Acquire);
        if closed.is_err() {
            let message = "an executor was called during the preparation of a plan for which its communicator's devices have no \
                           room beside the others; make each call before it on all ranks, or behind it";
            return Err(Error::usage(PREPARE, message));
        }
        let closed = Closed { turns: self.clone(), is_open: false };
        let mut backoff = Backoff::new();
        while self.ended.load(Ordering::Acquire) < calls {
            deadline.check(PREPARE, "calls of another thread, which are being enqueued")?;
            backoff.pause(deadline);
        }
        Ok(closed)
    }

    /// Whether calls take turns.
    #[cfg(test)]
    pub(super) fn are_taken(&self) -> bool {
        self.begun.load(Ordering::Acquire) & TAKEN != 0
    }

    fn caller(self: &Arc<Self>, number: u32) -> Arc<Caller> {
        let (word, bit) = (number as usize / 64, number % 64);
        let mut numbers = lock(&self.numbers);
        if numbers.len() <= word {
            numbers.resize(word + 1, 0);
        }
        numbers[word] |= 1 << bit;
        Arc::new(Caller { turns: Arc::downgrade(self), number })
    }

    /// Places of new executors, which are of a series or alone, or need no turns.
    pub(super) fn places(
        self: &Arc<Self>,
        agreed: &Agreed,
        wanted: impl Iterator<Item = Option<Option<Series>>>,
    ) -> Result<Vec<Place>> {
        let mut free = (0..CALLERS).filter(|&number| {
            let bits = agreed.numbers.get(number as usize / 64).copied().unwrap_or(0);
            bits >> (number % 64) & 1 == 0
        });
        let (mut series, mut places) = (Vec::<(Series, Arc<Caller>)>::new(), Vec::new());
        for wanted in wanted {
            let known = wanted.flatten().and_then(|wanted| series.iter().find(|(known, _)| *known == wanted));
            let caller = match (wanted, known) {
                (None, _) => None,
                (_, Some((_, caller))) => Some(caller.clone()),
                (Some(of), None) => {
                    let number = free.next().ok_or_else(too_many)?;
                    let caller = self.caller(number);
                    series.extend(of.map(|of| (of, caller.clone())));
                    Some(caller)
                }
            };
            places.push(Place { turns: self.clone(), caller });
        }
        Ok(places)
    }
}

#[cold]
fn too_many() -> Error {
    let message =
        format!("a communicator has at most {CALLERS} executors and collectives; drop some on all ranks");
    Error::usage(PREPARE, message)
}

#[cold]
fn broken(op: &'static str) -> Error {
    let message = "the ranks did not agree in time on the order of launches of plans that do not fit a device together, and this \
                   rank does not know whether others follow one; abort the communicator";
    Error::new(ErrorKind::Timeout, op, message)
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let Some(turns) = self.turns.upgrade() {
            lock(&turns.numbers)[self.number as usize / 64] &= !(1 << (self.number % 64));
        }
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.turns.ended.fetch_add(1, Ordering::Release);
    }
}

/// Calls wait until this is dropped.
#[derive(Debug)]
struct Closed {
    turns: Arc<Turns>,
    is_open: bool,
}

impl Closed {
    fn open(&mut self, flag: u64) {
        if !std::mem::replace(&mut self.is_open, true) {
            // No call begins meanwhile.
            let begun = self.turns.begun.load(Ordering::Acquire);
            self.turns.begun.store(begun & !CLOSED | flag, Ordering::Release);
        }
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.open(0);
    }
}

/// The first turns of a communicator, while the ranks prepare the plans that make them necessary.
pub(super) struct Beginning {
    closed: Closed,
    pending: Option<PendingLine>,
    line: Option<Line>,
}

impl Beginning {
    /// Lets no call begin that `calls` does not count, and asks the peers under `tag` for what turns need.
    pub(super) fn new(
        comm: &Communicator,
        turns: &Arc<Turns>,
        calls: u64,
        tag: u64,
        deadline: Deadline,
    ) -> Result<Self> {
        let closed = turns.close(calls, deadline)?;
        Ok(Self { closed, pending: Some(PendingLine::begin(comm, tag)?), line: None })
    }

    /// Call it behind `setup()`.
    pub(super) fn made(&mut self, comm: &Communicator, deadline: Deadline) -> Result<()> {
        let line = self.pending.take().map(|pending| pending.finish(comm, deadline)).transpose()?;
        self.line = line;
        Ok(())
    }

    /// From now on calls take turns, on all ranks.
    pub(super) fn end(mut self) {
        if let Some(line) = self.line.take() {
            // Nobody else sets it: one preparation runs at a time.
            let _ = self.closed.turns.line.set(line);
            self.closed.open(TAKEN);
        }
    }

    /// This rank does not know whether the others take turns.
    pub(super) fn fail(mut self) {
        self.closed.open(BROKEN);
    }
}

impl Facts {
    /// Decides by the facts of all ranks, in their order. All ranks decide alike.
    ///
    /// # Errors
    /// `InvalidUsage`, on all ranks, if they have made different calls so far, and are to begin to take turns.
    pub(super) fn agree(&self, all: &[Self]) -> Result<Agreed> {
        let same = self.history != 0 && all.iter().all(|facts| facts.history == self.history);
        let mut numbers = Vec::new();
        for facts in all.iter().filter(|_| same) {
            numbers.resize(numbers.len().max(facts.numbers.len()), 0);
            numbers.iter_mut().zip(&facts.numbers).for_each(|(all, bits)| *all |= bits);
        }
        let taken = |facts: &Self| same && facts.taken;
        let crowded = all.iter().any(|facts| facts.crowded);
        let begins = crowded && !all.iter().all(taken) && all.iter().all(|facts| facts.able);
        if begins && all.iter().any(taken) {
            return Err(broken(PREPARE));
        }
        if let Some((rank, _)) =
            (0..).zip(all).find(|(_, facts)| begins && same && facts.calls != all[0].calls)
        {
            let (rank, calls): (u32, u64) = (rank, all[rank as usize].calls);
            let message = format!(
                "a plan has no room on a device beside the other plans of the communicator, so that launches take turns from now on; but \
                 rank {rank} has called executors {calls} times, and rank 0 {} times: make each call before this on all ranks, or behind it",
                all[0].calls
            );
            return Err(Error::usage(PREPARE, message).with_peer(rank));
        }
        if crowded && !begins && !all.iter().all(taken) {
            log::warn!(
                "plans do not fit a device together, and the ranks cannot take turns (they are on several hosts, or a driver cannot): \
                 call executors in one order on all ranks"
            );
        }
        Ok(Agreed { same, begins, numbers })
    }
}
