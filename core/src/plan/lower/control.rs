//! The control area of a rank: counters, semaphores and barriers, each at a place that every rank can compute.

use std::collections::BTreeMap;

use super::ir::{Op, Plan, RankPlan};
use super::refusal::refused;
use crate::error::Result;

/// Bytes of a counter.
const COUNTER: u32 = 8;
/// Bytes of a row of a table.
const ROW: u32 = size_of::<aqueduct_ptx::abi::PlanRow>() as u32;

/// Where things lie in one rank's control area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::plan) struct Control {
    calls: u32,
    /// The tables that ranks show each other in a plan whose chunks have sizes of their own.
    tables: u32,
    /// Three counters for each memory channel: outbound, expected, inbound.
    channels: u32,
    /// Three for each rank, to begin a lap.
    laps: u32,
    lap_barrier: u32,
    barriers: u32,
    barrier_places: BTreeMap<u32, u32>,
    semaphores: u32,
    /// Bytes of the area.
    pub(in crate::plan) bytes: u32,
}

/// The counters of one end of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counters {
    /// Signals sent.
    pub(super) outbound: u32,
    /// Signals taken.
    pub(super) expected: u32,
    /// Signals received, written by the peer.
    pub(super) inbound: u32,
}

impl Counters {
    fn at(base: u32, index: u32) -> Self {
        let outbound = base + 3 * COUNTER * index;
        Self { outbound, expected: outbound + COUNTER, inbound: outbound + 2 * COUNTER }
    }
}

impl Control {
    /// The layout of `rank`'s area.
    pub(in crate::plan) fn of(plan: &Plan, rank: &RankPlan) -> Result<Self> {
        let count = |count: usize| u32::try_from(count).ok().filter(|&count| count < 1 << 24);
        let too_many =
            || refused("a rank has more channels, semaphores, barriers or blocks than a control area counts");
        let counters = |number: usize, each: u32| {
            count(number).map(|number| number * each * COUNTER).ok_or_else(too_many)
        };
        let barrier_places: BTreeMap<u32, u32> =
            (0..).zip(barriers(rank)).map(|(place, id)| (id, place)).collect();
        let calls = 0;
        // Before everything of which ranks may have more or fewer: tables lie at the same place at all of them.
        let tables = (calls + counters(rank.blocks.len(), 1)?).next_multiple_of(ROW);
        let channels = match plan.settings.variable_chunks {
            // Two halves for each block, or for the first one alone.
            true => {
                let blocks = if shares_tables(plan) { 1 } else { rank.blocks.len() };
                let rows = plan.ranks.len().checked_pow(2).and_then(|rows| rows.checked_mul(2 * blocks));
                let rows =
                    rows.and_then(|rows| u32::try_from(rows).ok()).and_then(|rows| rows.checked_mul(ROW));
                rows.and_then(|rows| tables.checked_add(rows))
                    .filter(|&end| end < 1 << 31)
                    .ok_or_else(too_many)?
            }
            false => calls + counters(rank.blocks.len(), 1)?,
        };
        let laps = channels + counters(rank.memory_channels.len(), 3)?;
        let lap_barrier = laps + counters(plan.ranks.len(), 3)?;
        let barriers = lap_barrier + COUNTER;
        let semaphores = barriers + counters(barrier_places.len(), 1)?;
        let bytes = semaphores + counters(rank.semaphores.len().div_ceil(2), 1)?;
        Ok(Self { calls, tables, channels, laps, lap_barrier, barriers, barrier_places, semaphores, bytes })
    }

    /// The counters of calls, one for each block.
    pub(in crate::plan) fn calls(&self) -> u32 {
        self.calls
    }

    /// A memory channel.
    pub(super) fn channel(&self, index: u32) -> Counters {
        Counters::at(self.channels, index)
    }

    /// The counters by which this rank and `rank` begin a lap.
    pub(super) fn lap(&self, rank: u32) -> Counters {
        Counters::at(self.laps, rank)
    }

    /// The barrier of all blocks.
    pub(super) fn lap_barrier(&self) -> u32 {
        self.lap_barrier
    }

    /// A barrier of the plan.
    pub(super) fn barrier(&self, id: u32) -> Option<u32> {
        self.barrier_places.get(&id).map(|place| self.barriers + place * COUNTER)
    }

    /// A semaphore.
    pub(super) fn semaphore(&self, index: u32) -> u32 {
        self.semaphores + 4 * index
    }

    /// The tables of a plan whose chunks have sizes of their own.
    pub(super) fn tables(&self) -> u32 {
        self.tables
    }

    /// The area before the first call.
    pub(in crate::plan) fn initial(&self, rank: &RankPlan) -> Vec<u32> {
        let mut words = vec![0; self.bytes as usize / 4];
        words[self.semaphores as usize / 4..][..rank.semaphores.len()].copy_from_slice(&rank.semaphores);
        words
    }
}

/// Whether all blocks of a rank have the first block's tables of rows: where there are ports, which only one block of a rank asks for rows.
pub(super) fn shares_tables(plan: &Plan) -> bool {
    plan.ranks.iter().any(|rank| !rank.port_channels.is_empty())
}

/// Numbers of the barriers of a rank, each once.
fn barriers(rank: &RankPlan) -> impl Iterator<Item = u32> {
    let ids: std::collections::BTreeSet<u32> = rank
        .all_ops()
        .filter_map(|op| match op {
            Op::Barrier(barrier) => Some(barrier.id),
            _ => None,
        })
        .collect();
    ids.into_iter()
}
