//! The author's lines behind a plan's operations.

use std::collections::BTreeMap;
use std::panic::Location;

use super::check::Finding;
use super::pass::Policy;
use super::position::Position;

/// A line of the author's.
pub(super) type Line = &'static Location<'static>;

/// Lines of a block's calls, by origin.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockLines {
    pub(super) calls: Vec<Line>,
    /// Lines of the calls in a loop, by the loop's origin.
    pub(super) loops: BTreeMap<u32, Vec<Line>>,
}

/// Says which line of the program an operation of its plan came from.
#[derive(Clone, Debug)]
pub struct Lines {
    /// By rank, then block.
    pub(super) ranks: Vec<BTreeMap<u32, BlockLines>>,
}

impl Lines {
    /// The line that called for the operation at `position`. `None` if the program has no operation there.
    pub fn at(&self, position: &Position) -> Option<&'static Location<'static>> {
        let block = self.ranks.get(position.rank as usize)?.get(&position.block)?;
        let calls = match position.inner {
            Some(_) => block.loops.get(&position.op)?,
            None => &block.calls,
        };
        calls.get(position.inner.unwrap_or(position.op) as usize).copied()
    }

    /// The lines of a plan replicated from this one.
    pub(super) fn replicated(self, instances: u32, policy: Policy) -> Self {
        let replicate = |blocks: BTreeMap<u32, BlockLines>| {
            let blocks: Vec<BlockLines> = blocks.into_values().collect();
            let all: Vec<BlockLines> = match policy {
                Policy::Interleaved => {
                    let instances = instances as usize;
                    blocks.iter().flat_map(|block| std::iter::repeat_n(block.clone(), instances)).collect()
                }
                Policy::None => (0..instances).flat_map(|_| blocks.clone()).collect(),
            };
            (0..).zip(all).collect()
        };
        Self { ranks: self.ranks.into_iter().map(replicate).collect() }
    }

    /// A finding of [`check`](crate::plan::check) as text, after the line of its operation.
    pub fn explain(&self, finding: &Finding) -> String {
        match finding.position.as_ref().and_then(|position| self.at(position)) {
            Some(line) => format!("{line}: {finding}"),
            None => finding.to_string(),
        }
    }
}
