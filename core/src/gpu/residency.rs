//! Kernels that wait for peers, and the room that they have on a device.
//!
//! Blocks that wait stay where they are until other ranks' kernels come. If two such kernels do not fit the device together, each
//! could take places of which the other one needs more, on two ranks in opposite ways, and both wait for ever. So
//! each kernel's blocks are counted. While all of them fit at once, their order does not matter. If they do not, launches
//! on different streams follow each other on the device as on the host, which must then launch in one order on all ranks.
//!
//! Launches of one *company* need no such order among each other, because something else lets one of them begin at a time. They follow
//! launches of others, and others follow them.
//!
//! Of kernels in one series, which its user launches one behind the other, one is on the device at a time: together they count as
//! the largest of them.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;

use super::context::Context;
use super::event::Event;
use super::stream::{Stream, WeakStream};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{AtomicUsize, Mutex, Ordering, lock};

/// All that is counted on one context.
#[derive(Default)]
pub(super) struct Residency {
    /// Identity of the stream whose next launch outside of companies needs no order: such a launch of it had the latest turn, and no kernel was
    /// counted since. 0 if there is none.
    latest: AtomicUsize,
    /// Held during a turn that records events on other streams, or changes the company of its own: of two such turns, the launch of
    /// the first one is not taken for one before the second.
    turning: Mutex<()>,
    ledger: Mutex<Ledger>,
}

#[derive(Default)]
struct Ledger {
    next: u64,
    claims: Vec<Claim>,
    streams: Vec<Known>,
    /// Those that were dropped and may have work. An application that wraps another library's stream for each call drops one after each
    /// launch.
    dropped: Vec<Known>,
}

/// A stream that has had a launch.
struct Known {
    stream: WeakStream,
    handle: usize,
    /// Of its latest launches; `None` if they were outside of any.
    company: Option<Series>,
    /// Behind what the stream had before those launches, and the number of the turn in which it was recorded.
    before: Option<(u64, Arc<Event>)>,
    /// Number of the latest turn in which it has followed all such events of its company.
    followed: u64,
}

struct Claim {
    number: u64,
    series: Series,
    blocks: u32,
    capacity: u32,
    any_order: bool,
}

/// Kernels of one context that are never on the device at the same time, or a company.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Series(u64);

/// Blocks counted for one kernel, until this is dropped.
pub(crate) struct Room {
    context: Context,
    number: u64,
}

impl Ledger {
    /// The blocks of all kernels, and how many of any mixture of them are on the device at once: as many as of the largest.
    fn demand(&self) -> (u64, u64) {
        let mut largest = HashMap::<Series, u64>::new();
        for claim in &self.claims {
            let blocks = largest.entry(claim.series).or_default();
            *blocks = u64::from(claim.blocks).max(*blocks);
        }
        let blocks = largest.into_values().sum();
        let capacity = self.claims.iter().map(|claim| u64::from(claim.capacity)).min();
        (blocks, capacity.unwrap_or(u64::MAX))
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn is_crowded(&self) -> bool {
        let (blocks, capacity) = self.demand();
        blocks > capacity
    }
}

impl Context {
    /// A series without kernels.
    pub(crate) fn new_series(&self) -> Series {
        Series(lock(&self.slot::<Residency>().ledger).number())
    }

    /// Whether the kernels that are counted do not all fit the device at once.
    pub(crate) fn is_crowded(&self) -> bool {
        lock(&self.slot::<Residency>().ledger).is_crowded()
    }

    /// Counts a kernel of `blocks` blocks, of which the device runs `capacity` at once, in a series of its own unless one is
    /// given. With `any_order` it has room beside all others, now and later.
    ///
    /// # Errors
    /// `InvalidUsage` if there is no room for this kernel, or for another one that was promised it.
    pub(crate) fn reserve(
        &self,
        op: &'static str,
        (blocks, capacity): (u32, u32),
        any_order: bool,
        series: Option<Series>,
    ) -> Result<Room> {
        let residency = self.slot::<Residency>();
        let mut ledger = lock(&residency.ledger);
        let number = ledger.number();
        // With this kernel the device may be crowded, and launches so far had no order.
        residency.latest.store(0, Ordering::Release);
        let series = series.unwrap_or(Series(number));
        ledger.claims.push(Claim { number, series, blocks, capacity, any_order });
        if ledger.is_crowded() && ledger.claims.iter().any(|claim| claim.any_order) {
            let (blocks, capacity) = ledger.demand();
            ledger.claims.pop();
            let message = format!(
                "the plans that are prepared on this device would have {blocks} blocks, and it runs {capacity} at once, so they \
                 cannot run in any order; drop an executor, take fewer blocks, or prepare without in_any_order()"
            );
            return Err(Error::new(ErrorKind::InvalidUsage, op, message));
        }
        Ok(Room { context: self.clone(), number })
    }
}

impl Room {
    /// Call it before a launch on `stream`, in a company if it needs no order among the launches of that. Where kernels do not all fit,
    /// puts the launch behind those on other streams; during a capture it cannot, and the order of graphs on other streams is the caller's.
    ///
    /// # Errors
    /// A driver error.
    pub(crate) fn take_turn(&self, stream: &Stream, company: Option<Series>) -> Result<()> {
        let residency = self.context.slot::<Residency>();
        let me = stream.identity();
        if company.is_none() && residency.latest.load(Ordering::Acquire) == me || stream.is_capturing()? {
            return Ok(());
        }
        let mut turn = self.turn(residency, stream, company);
        let _turning = (turn.has_companies && (turn.is_new || !turn.others.is_empty())).then(|| {
            let turning = lock(&residency.turning);
            // What others have changed meanwhile.
            turn.look_again(self.turn(residency, stream, company));
            turning
        });
        if !turn.dropped.is_empty() {
            let is_follower = |known: &Known| company.is_none() || known.company != company;
            let follow = |known: Vec<Known>, follow: bool| {
                let mut handles = known.iter().map(|known| known.handle).collect();
                let followed = stream.follow_dropped(&mut handles, follow);
                let left = known.into_iter().filter(|known| handles.contains(&known.handle));
                lock(&residency.ledger).dropped.extend(left);
                followed
            };
            let (others, mine) = std::mem::take(&mut turn.dropped).into_iter().partition(is_follower);
            follow(mine, false).and(follow(others, turn.is_crowded))?;
        }
        // Without the ledger's lock: the last user of what a stream keeps may be dropped here, and with it a `Room`.
        for other in turn.others {
            if !other.is_capturing()? {
                let event = Event::new(&self.context)?;
                // An order for room, not for data: how the other stream's work ends is no matter of this one's waits.
                other.mark_for_order(&event)?;
                stream.wait_behind(&event, [])?;
            }
        }
        for event in turn.before {
            stream.wait_behind(&event, [])?;
        }
        let mut before = None;
        if turn.is_new && company.is_some() {
            let event = Event::new(&self.context)?;
            stream.mark_for_order(&event)?;
            before = Some((turn.number, Arc::new(event)));
        }
        let mut ledger = lock(&residency.ledger);
        if let Some(known) = ledger.streams.iter_mut().find(|known| known.stream.identity() == me) {
            if turn.is_new {
                (known.company, known.before) = (company, before);
            }
            known.followed = if turn.is_crowded { turn.number } else { 0 };
        }
        if company.is_none() && ledger.next == turn.number {
            residency.latest.store(me, Ordering::Release);
        }
        Ok(())
    }

    /// Finds the streams and events that a launch on `stream` has to follow.
    fn turn(&self, residency: &Residency, stream: &Stream, company: Option<Series>) -> Turn {
        let me = stream.identity();
        let mut ledger = lock(&residency.ledger);
        let gone: Vec<_> = ledger.streams.extract_if(.., |known| !known.stream.is_alive()).collect();
        ledger.dropped.extend(gone);
        // Only a turn that succeeds, and that no other turn or kernel has overtaken, spares the next launch its own.
        residency.latest.store(0, Ordering::Release);
        let (number, is_crowded) = (ledger.number(), ledger.is_crowded());
        let (is_new, followed) = match ledger.streams.iter().find(|known| known.stream.identity() == me) {
            Some(known) => (known.company != company, known.followed),
            None => {
                let (stream, handle) = (stream.downgrade(), stream.handle().addr());
                // Nothing to follow is before its first launch.
                ledger.streams.push(Known { stream, handle, company, before: None, followed: 0 });
                (false, 0)
            }
        };
        let followed = if is_new { 0 } else { followed };
        let (mut others, mut before) = (Vec::new(), Vec::new());
        let known = ledger.streams.iter().filter(|known| known.stream.identity() != me);
        for known in known.chain(&ledger.dropped).filter(|_| is_crowded) {
            if company.is_none() || known.company != company {
                others.extend(known.stream.upgrade());
            } else if let Some((number, event)) = &known.before
                && *number > followed
            {
                before.push(event.clone());
            }
        }
        let has_companies = company.is_some() || ledger.streams.iter().any(|known| known.company.is_some());
        let dropped = std::mem::take(&mut ledger.dropped);
        Turn { number, is_crowded, has_companies, is_new, others, before, dropped }
    }
}

/// The streams and events that a launch has to follow.
struct Turn {
    number: u64,
    is_crowded: bool,
    has_companies: bool,
    /// Whether the stream's launches before were of another company.
    is_new: bool,
    /// Streams whose work so far it follows.
    others: Vec<Stream>,
    /// Events that it follows.
    before: Vec<Arc<Event>>,
    /// Streams that were dropped.
    dropped: Vec<Known>,
}

impl Turn {
    /// Goes on as `newer`.
    fn look_again(&mut self, newer: Self) {
        let dropped = std::mem::take(&mut self.dropped);
        *self = newer;
        self.dropped.extend(dropped);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut ledger = lock(&self.context.slot::<Residency>().ledger);
        ledger.claims.retain(|claim| claim.number != self.number);
        if !ledger.claims.is_empty() {
            return;
        }
        // Without kernels there is nothing to follow. An event keeps the context, which keeps the ledger.
        let Ledger { streams, dropped, .. } = &mut *ledger;
        let events: Vec<_> =
            streams.iter_mut().chain(dropped).filter_map(|known| known.before.take()).collect();
        drop(ledger);
        drop(events);
    }
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room").field("number", &self.number).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{Device, Driver};

    #[test]
    fn kernels_of_a_series_count_as_the_largest() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let reserve = |blocks, any_order, series| context.reserve("test", (blocks, 10), any_order, series);
        let (first, second) = (context.new_series(), context.new_series());
        let _rooms = [4, 6, 5].map(|blocks| reserve(blocks, true, Some(first)).unwrap());
        let four = reserve(4, true, Some(second)).unwrap();
        let error = reserve(1, false, None).unwrap_err();
        assert!(error.to_string().contains("would have 11 blocks, and it runs 10 at once"), "{error}");
        drop(four);
        reserve(4, false, None).unwrap();
    }

    #[test]
    fn dropped_streams_are_forgotten_once_their_work_has_ended() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let room = context.reserve("test", (6, 10), false, None).unwrap();
        let word = Arc::new(crate::gpu::PinnedBuffer::new(&context, 8).unwrap());
        for _ in 0..3 {
            let stream = Stream::new(&context).unwrap();
            room.take_turn(&stream, None).unwrap();
            stream.wait_value64(&word.slice(..).unwrap(), 1).unwrap();
        }
        let next = || {
            room.take_turn(&Stream::new(&context).unwrap(), None).unwrap();
            let ledger = lock(&context.slot::<Residency>().ledger);
            (ledger.streams.len(), ledger.dropped.len())
        };
        assert_eq!(next(), (1, 3));
        word.memory().word64(0).unwrap().store(1, Ordering::Release);
        context.settle();
        assert_eq!(next(), (1, 0));
    }
}
