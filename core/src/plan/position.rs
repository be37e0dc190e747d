//! Where an operation stands.

use std::fmt;

use super::ir::{Op, Operation, Plan};

/// Where an operation stands in a plan. Displayed with the path that the operation has in a plan file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Rank.
    pub rank: u32,
    /// Thread block of the rank.
    pub block: u32,
    /// Index, as its author wrote it, of the operation in the block.
    pub op: u32,
    /// Index within the loop, if `op` is one.
    pub inner: Option<u32>,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, block, op, inner } = self;
        write!(f, "rank {rank} block {block} operation {op}")?;
        inner.map_or(Ok(()), |inner| write!(f, " (operation {inner} of its loop)"))
    }
}

impl Position {
    /// The position of operation `index` of a block, or of operation `inner` of the loop there, by their origins.
    pub(super) fn of(plan: &Plan, rank: u32, block: u32, index: usize, inner: Option<usize>) -> Self {
        let operation =
            plan.ranks.get(rank as usize).and_then(|rank| rank.blocks.get(block as usize)?.ops.get(index));
        let inner_origin = |operation: &Operation| match (&operation.op, inner) {
            (Op::Loop(repeated), Some(inner)) => repeated.body.get(inner).map(|inner| inner.origin),
            _ => None,
        };
        let op = operation.map_or(u32::try_from(index).unwrap_or(u32::MAX), |operation| operation.origin);
        Self { rank, block, op, inner: operation.and_then(inner_origin) }
    }

    /// Every operation of a block, and those of loops behind their loop, each with its position.
    pub(super) fn all(plan: &Plan, rank: u32, block: u32) -> impl Iterator<Item = (Self, &Op)> {
        let block_plan = plan.ranks.get(rank as usize).and_then(|rank| rank.blocks.get(block as usize));
        block_plan.into_iter().flat_map(|block| &block.ops).flat_map(move |operation| {
            let outer = Self { rank, block, op: operation.origin, inner: None };
            let body = match &operation.op {
                Op::Loop(repeated) => &repeated.body[..],
                _ => &[],
            };
            let inner =
                body.iter().map(move |inner| (Self { inner: Some(inner.origin), ..outer }, &inner.op));
            std::iter::once((outer, &operation.op)).chain(inner)
        })
    }

    /// The first operation of a rank that `is` one.
    pub(super) fn first(plan: &Plan, rank: u32, is: impl Fn(&Op) -> bool) -> Option<Self> {
        let blocks = plan.ranks.get(rank as usize).map_or(&[][..], |rank| &rank.blocks);
        let mut all = (0..).zip(blocks).flat_map(|(block, _)| Self::all(plan, rank, block));
        all.find(|(_, op)| is(op)).map(|(position, _)| position)
    }
}
