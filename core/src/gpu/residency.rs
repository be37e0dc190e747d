//! Kernels that wait for peers, and the room that they have on a device.
//!
//! Blocks that wait stay where they are until other ranks' kernels come. If two such kernels do not fit the device together, each
//! could take places of which the other one needs more, on two ranks in opposite ways, and both wait for ever. So
//! each kernel's blocks are counted. While all of them fit at once, their order does not matter. If they do not, launches
//! on different streams follow each other on the device as on the host, which must then launch in one order on all ranks.
//!
//! Of kernels in one series, which its user launches one behind the other, one is on the device at a time: together they count as
//! the largest of them.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use super::context::Context;
use super::event::Event;
use super::stream::{Stream, WeakStream};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{AtomicUsize, Mutex, Ordering, lock};

/// All that is counted on one context.
#[derive(Default)]
pub(super) struct Residency {
    /// Identity of the stream whose next launch needs no order: it had the latest turn, and no kernel was counted since. 0 if there is
    /// none.
    latest: AtomicUsize,
    ledger: Mutex<Ledger>,
}

#[derive(Default)]
struct Ledger {
    next: u64,
    claims: Vec<Claim>,
    /// Every stream that has had a launch, and its handle.
    streams: Vec<(WeakStream, usize)>,
    /// Handles of those that were dropped and may have work. An application that wraps another library's stream for each call drops one
    /// after each launch.
    dropped: Vec<usize>,
}

struct Claim {
    number: u64,
    series: Series,
    blocks: u32,
    capacity: u32,
    any_order: bool,
}

/// Kernels of one context that are never on the device at the same time.
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
    /// Call it before a launch on `stream`. Where kernels do not all fit, puts the launch behind those on other streams; during a
    /// capture it cannot, and the order of graphs on other streams is the caller's.
    ///
    /// # Errors
    /// A driver error.
    pub(crate) fn take_turn(&self, stream: &Stream) -> Result<()> {
        let residency = self.context.slot::<Residency>();
        let me = stream.identity();
        if residency.latest.load(Ordering::Acquire) == me || stream.is_capturing()? {
            return Ok(());
        }
        let (others, mut dropped, crowded, turn): (Vec<Stream>, _, _, _) = {
            let mut ledger = lock(&residency.ledger);
            let gone: Vec<_> = ledger.streams.extract_if(.., |(known, _)| !known.is_alive()).collect();
            ledger.dropped.extend(gone.into_iter().map(|(_, handle)| handle));
            if ledger.streams.iter().all(|(known, _)| known.identity() != me) {
                ledger.streams.push((stream.downgrade(), stream.handle().addr()));
            }
            // Only a turn that succeeds, and that no other turn or kernel has overtaken, spares the next launch its own.
            residency.latest.store(0, Ordering::Release);
            let (turn, crowded) = (ledger.number(), ledger.is_crowded());
            let others = ledger.streams.iter().filter(|(known, _)| crowded && known.identity() != me);
            let others = others.filter_map(|(known, _)| known.upgrade()).collect();
            (others, std::mem::take(&mut ledger.dropped), crowded, turn)
        };
        if !dropped.is_empty() {
            let followed = stream.follow_dropped(&mut dropped, crowded);
            let mut ledger = lock(&residency.ledger);
            ledger.dropped.append(&mut dropped);
            drop(ledger);
            followed?;
        }
        // Without the lock: the last user of what a stream keeps may be dropped here, and with it a `Room`.
        for other in others {
            if !other.is_capturing()? {
                let event = Event::new(&self.context)?;
                event.record(&other)?;
                stream.wait_event(&event)?;
            }
        }
        let ledger = lock(&residency.ledger);
        if ledger.next == turn {
            residency.latest.store(me, Ordering::Release);
        }
        Ok(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut ledger = lock(&self.context.slot::<Residency>().ledger);
        ledger.claims.retain(|claim| claim.number != self.number);
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
        let word = std::sync::Arc::new(crate::gpu::PinnedBuffer::new(&context, 8).unwrap());
        for _ in 0..3 {
            let stream = Stream::new(&context).unwrap();
            room.take_turn(&stream).unwrap();
            stream.wait_value64(&word.slice(..).unwrap(), 1).unwrap();
        }
        let next = || {
            room.take_turn(&Stream::new(&context).unwrap()).unwrap();
            let ledger = lock(&context.slot::<Residency>().ledger);
            (ledger.streams.len(), ledger.dropped.len())
        };
        assert_eq!(next(), (1, 3));
        word.memory().word64(0).unwrap().store(1, Ordering::Release);
        context.settle();
        assert_eq!(next(), (1, 0));
    }
}
