//! Kernels that wait for peers, and the room that they have on a device.
//!
//! Blocks that wait stay where they are until other ranks' kernels come. If two such kernels do not fit the device together, each
//! could take places of which the other one needs more, on two ranks in opposite ways, and both wait for ever. So
//! each kernel's blocks are counted. While all of them fit at once, the order of launches does not matter; if they do not, some launches
//! [stand behind others](super::launch_order).
//!
//! Of kernels in one series, which its user launches one behind the other, one is on the device at a time: together they count as
//! the largest of them.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use super::context::Context;
use super::launch_order::{Company, Crowds, LaunchOrder};
use super::stream::Stream;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Mutex, lock};

/// All kernels that are counted on one context. Whoever locks the order of launches, too, locks that first.
#[derive(Default)]
struct Rooms {
    claims: Mutex<Claims>,
}

#[derive(Default)]
struct Claims {
    number: u64,
    all: Vec<Claim>,
}

struct Claim {
    number: u64,
    company: u64,
    series: Series,
    blocks: u32,
    capacity: u32,
    any_order: bool,
    /// Whether its kernel may be launched.
    confirmed: bool,
}

/// Kernels of one context that are never on the device at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Series(u64);

/// Blocks counted for one kernel, until this is dropped.
pub(crate) struct Room {
    company: Company,
    number: u64,
}

impl Claims {
    /// The blocks of some kernels, and how many of any mixture of them are on the device at once: as many as of the largest.
    fn demand(&self, which: impl Fn(&Claim) -> bool) -> (u64, u64) {
        let mut largest = HashMap::<Series, u64>::new();
        for claim in self.all.iter().filter(|claim| which(claim)) {
            let blocks = largest.entry(claim.series).or_default();
            *blocks = u64::from(claim.blocks).max(*blocks);
        }
        let blocks = largest.into_values().sum();
        let capacity =
            self.all.iter().filter(|claim| which(claim)).map(|claim| u64::from(claim.capacity)).min();
        (blocks, capacity.unwrap_or(u64::MAX))
    }

    fn are_crowded(&self, which: impl Fn(&Claim) -> bool) -> bool {
        let (blocks, capacity) = self.demand(which);
        blocks > capacity
    }

    fn next(&mut self) -> u64 {
        self.number += 1;
        self.number
    }
}

impl Context {
    /// A series without kernels.
    pub(crate) fn new_series(&self) -> Series {
        Series(lock(&self.slot::<Rooms>().claims).next())
    }
}

impl Company {
    /// Whether its kernels do not all fit the device at once, with those that are not confirmed.
    pub(crate) fn is_crowded(&self) -> bool {
        let claims = lock(&self.context().slot::<Rooms>().claims);
        claims.are_crowded(|claim| claim.company == self.number())
    }

    /// Counts a kernel of `blocks` blocks, of which the device runs `capacity` at once, in a series of its own unless one is
    /// given. With `any_order` it has room beside all others, now and later. It changes the order of launches only once the
    /// room is [confirmed](Room::confirm), and may not be launched before.
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
        let mut claims = lock(&self.context().slot::<Rooms>().claims);
        let number = claims.next();
        let (company, series) = (self.number(), series.unwrap_or(Series(number)));
        claims.all.push(Claim { number, company, series, blocks, capacity, any_order, confirmed: false });
        if claims.are_crowded(|_| true) && claims.all.iter().any(|claim| claim.any_order) {
            let (blocks, capacity) = claims.demand(|_| true);
            claims.all.pop();
            let message = format!(
                "the plans that are prepared on this device would have {blocks} blocks, and it runs {capacity} at once, so they \
                 cannot run in any order, as in_any_order() has asked for one of them; drop an executor, take fewer blocks, or prepare all without \
                 in_any_order()"
            );
            return Err(Error::new(ErrorKind::InvalidUsage, op, message));
        }
        Ok(Room { company: self.clone(), number })
    }
}

impl Room {
    /// The kernel is one that all ranks have prepared, and may be launched from now on. Until then calls of others that fit without it have no
    /// order, on a rank that comes early as on one that comes late.
    pub(crate) fn confirm(&self) {
        let context = self.company.context();
        context.slot::<LaunchOrder>().begin_anew(|| {
            let mut claims = lock(&context.slot::<Rooms>().claims);
            let mine = claims.all.iter_mut().filter(|claim| claim.number == self.number);
            mine.for_each(|claim| claim.confirmed = true);
        });
    }

    /// Call it before a launch on `stream`. Where kernels do not all fit, puts the launch behind those on other streams: always behind those
    /// of other companies, and behind those of its own if that alone has not room for all its kernels, unless both take turns.
    ///
    /// # Errors
    /// A driver error.
    pub(crate) fn stand_behind_others(&self, stream: &Stream, takes_turns: bool) -> Result<()> {
        self.company.stand_behind_others(stream, takes_turns, || {
            let claims = lock(&self.company.context().slot::<Rooms>().claims);
            let all = claims.are_crowded(|claim| claim.confirmed);
            let own = |claim: &Claim| claim.confirmed && claim.company == self.company.number();
            Crowds { all, own: all && claims.are_crowded(own) }
        })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let context = self.company.context();
        context.slot::<LaunchOrder>().remove(|| {
            let mut claims = lock(&context.slot::<Rooms>().claims);
            claims.all.retain(|claim| claim.number != self.number);
            claims.all.is_empty()
        });
    }
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room").field("number", &self.number).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::gpu::{Device, Driver};
    use crate::sync::Ordering;

    #[test]
    fn kernels_of_a_series_count_as_the_largest() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let company = context.new_company();
        let reserve = |blocks, any_order, series| company.reserve("test", (blocks, 10), any_order, series);
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
        let room = context.new_company().reserve("test", (6, 10), false, None).unwrap();
        let word = Arc::new(crate::gpu::PinnedBuffer::new(&context, 8).unwrap());
        for _ in 0..3 {
            let stream = Stream::new(&context).unwrap();
            room.stand_behind_others(&stream, false).unwrap();
            stream.wait_value64(&word.slice(..).unwrap(), 1).unwrap();
        }
        let next = || {
            room.stand_behind_others(&Stream::new(&context).unwrap(), false).unwrap();
            context.slot::<LaunchOrder>().lengths()
        };
        assert_eq!(next(), (1, 3));
        word.memory().word64(0).unwrap().store(1, Ordering::Release);
        context.settle();
        assert_eq!(next(), (1, 0));
        drop(room);
        assert_eq!(context.slot::<LaunchOrder>().lengths(), (0, 0));
    }
}
