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
//! not, and they must be the same on all ranks. Calls of executors that never take turns do not count.

mod calls;
mod line;
mod stream_locks;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock, Weak};

pub(super) use self::calls::Calls;
use self::calls::{Count, Outcome, Refusal};
use self::line::PendingLine;
pub(super) use self::line::{CALLERS, Line};
use crate::comm::Communicator;
use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::Series;
use crate::sync::{Mutex, lock};

const PREPARE: &str = "Executor::prepare";

/// Kept by the executors of a communicator.
#[derive(Debug)]
pub(super) struct Turns {
    /// Calls of all callers.
    count: Count,
    line: OnceLock<Line>,
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
    /// Where it is counted; `None` for one that never takes turns.
    count: Option<&'t Count>,
    /// Where it takes its turn, and for whom.
    pub(super) turn: Option<(&'t Line, u32)>,
}

/// A rank's word about its turns at a preparation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Stands for the history that ranks share: 0 without any.
    pub(super) history: u64,
    /// Those that have begun.
    pub(super) calls: Calls,
    /// Whether they take turns.
    pub(super) taken: bool,
    /// Whether this rank does not know if others take turns.
    pub(super) broken: bool,
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
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { count: Count::default(), line: OnceLock::new(), numbers: Mutex::default() })
    }

    /// What this rank says of `known`, the turns that plans of `comm` have left under the number `history`. `needed`: whether the plans to
    /// come need an order where there is no room.
    pub(super) fn facts(
        comm: &Communicator,
        (history, known): &(u64, Option<Arc<Self>>),
        needed: bool,
    ) -> Facts {
        let count = known.as_ref().map(|turns| &turns.count);
        let numbers = known.as_ref().map_or(Vec::new(), |turns| lock(&turns.numbers).clone());
        let needed = needed || numbers.iter().any(|bits| *bits != 0);
        Facts {
            history: *history,
            calls: count.map_or(Calls::default(), Count::calls),
            taken: count.is_some_and(Count::are_taken),
            broken: count.is_some_and(Count::is_broken),
            crowded: comm.size() > 1 && needed && comm.company().is_crowded(),
            able: Line::is_possible(comm),
            numbers,
        }
    }

    /// Begins a call of `caller`, if it is one that may take turns. While ranks agree on them it waits: all of them are in the same
    /// preparation then.
    pub(super) fn begin(
        &self,
        op: &'static str,
        comm: &Communicator,
        caller: Option<&Caller>,
    ) -> Result<Calling<'_>> {
        let Some(caller) = caller else {
            return Ok(Calling { count: None, turn: None });
        };
        let mut backoff = Backoff::new();
        let taken = loop {
            match self.count.begin(caller.number) {
                Ok(taken) => break taken,
                Err(Refusal::Broken) => return Err(broken(op)),
                Err(Refusal::Closed) => {
                    comm.check_all(op)?;
                    backoff.pause(Deadline::after(std::time::Duration::from_secs(1)));
                }
            }
        };
        let line = self.line.get().filter(|_| taken);
        let turn = line.map(|line| (line, caller.number));
        Ok(Calling { count: Some(&self.count), turn })
    }

    /// Lets no call begin that is not among `calls`, and waits until all of those have been enqueued.
    fn close(self: &Arc<Self>, calls: Calls, deadline: Deadline) -> Result<Closed> {
        if !self.count.close(calls) {
            let message = "an executor was called during the preparation of a plan for which its communicator's devices have no \
                           room beside the others; make each call before it on all ranks, or behind it";
            return Err(Error::usage(PREPARE, message));
        }
        let closed = Closed { turns: self.clone(), is_open: false };
        let mut backoff = Backoff::new();
        while !self.count.have_ended(calls) {
            deadline.check(PREPARE, "calls of another thread, which are being enqueued")?;
            backoff.pause(deadline);
        }
        Ok(closed)
    }

    /// Whether calls take turns.
    #[cfg(test)]
    pub(super) fn are_taken(&self) -> bool {
        self.count.are_taken()
    }

    /// As after a preparation in which this rank does not know what others have done.
    #[cfg(test)]
    pub(super) fn break_off(self: &Arc<Self>) {
        let closed = self.close(self.count.calls(), Deadline::after(std::time::Duration::ZERO)).unwrap();
        let beginning = Beginning { closed, pending: None, line: None };
        beginning.end(false, &Err::<(), _>(Error::timeout("test", "the ranks have not met")));
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
        self.count.iter().for_each(|count| count.end());
    }
}

/// Calls wait until this is dropped.
#[derive(Debug)]
struct Closed {
    turns: Arc<Turns>,
    is_open: bool,
}

impl Closed {
    fn open(&mut self, outcome: Outcome) {
        if !std::mem::replace(&mut self.is_open, true) {
            self.turns.count.open(outcome);
        }
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.open(Outcome::Unchanged);
    }
}

/// The first turns of a communicator, while the ranks prepare the plans that make them necessary.
pub(super) struct Beginning {
    closed: Closed,
    pending: Option<PendingLine>,
    line: Option<Line>,
}

impl Beginning {
    /// Lets no call begin that is not among `calls`, and asks the peers under `tag` for what turns need.
    pub(super) fn new(
        comm: &Communicator,
        turns: &Arc<Turns>,
        calls: Calls,
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

    /// Ends it as the ranks have met behind it: `met` is this rank's result of that meeting, and `failed` says whether this rank came
    /// to it with a failure of its own, so that no rank can have succeeded.
    pub(super) fn end<T>(mut self, failed: bool, met: &Result<T>) {
        match met {
            Ok(_) => {
                if let Some(line) = self.line.take() {
                    // Nobody else sets it: one preparation runs at a time.
                    let _ = self.closed.turns.line.set(line);
                    self.closed.open(Outcome::Taken);
                }
            }
            // Others may have met.
            Err(error) if error.kind() == ErrorKind::Timeout && !failed => self.closed.open(Outcome::Broken),
            Err(_) => {}
        }
    }
}

impl Facts {
    /// Decides by the facts of all ranks, in their order. All ranks decide alike.
    ///
    /// # Errors
    /// On all ranks: `InvalidUsage` if they have made different calls so far, and are to begin to take turns; `Timeout` if one of them
    /// does not know whether others take turns.
    pub(super) fn agree(&self, all: &[Self]) -> Result<Agreed> {
        let same = self.history != 0 && all.iter().all(|facts| facts.history == self.history);
        let mut numbers = Vec::new();
        for facts in all.iter().filter(|_| same) {
            numbers.resize(numbers.len().max(facts.numbers.len()), 0);
            numbers.iter_mut().zip(&facts.numbers).for_each(|(all, bits)| *all |= bits);
        }
        if same && all.iter().any(|facts| facts.broken) {
            return Err(broken(PREPARE));
        }
        let taken = |facts: &Self| same && facts.taken;
        let crowded = all.iter().any(|facts| facts.crowded);
        let begins = crowded && !all.iter().all(taken) && all.iter().all(|facts| facts.able);
        if begins && all.iter().any(taken) {
            return Err(broken(PREPARE));
        }
        if let Some((rank, _)) =
            (0_u32..).zip(all).find(|(_, facts)| begins && same && facts.calls != all[0].calls)
        {
            let [theirs, first] = [rank as usize, 0].map(|rank: usize| all[rank].calls.number());
            let differs = match theirs == first {
                true => format!("rank {rank} has called other executors than rank 0"),
                false => format!("rank {rank} has called executors {theirs} times, and rank 0 {first} times"),
            };
            let message = format!(
                "a plan has no room on a device beside the other plans of the communicator, so that launches take turns from now on; but \
                 {differs}: make each call before this on all ranks, or behind it"
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
