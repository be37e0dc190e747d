//! Where an average is divided: at the moves that complete the sum of all ranks.

use std::cell::OnceCell;

use aqueduct_ptx::plan as ptx;

use super::check::{Finding, Sum, Sums, sums};
use super::collective::Kind;
use super::ir::Plan;
use super::position::Position;
use super::refusal::refused;
use crate::error::Result;

/// Knows what each move of a plan sums up. Asks the checks only if one move does not have the data of all ranks.
#[derive(Debug)]
pub(in crate::plan) struct Averages<'p> {
    plan: &'p Plan,
    sums: OnceCell<std::result::Result<Sums, Finding>>,
}

impl<'p> Averages<'p> {
    pub(in crate::plan) fn of(plan: &'p Plan) -> Self {
        Self { plan, sums: OnceCell::new() }
    }

    /// The reduction of a move of so many sources where the collective is an average.
    pub(super) fn reduction(&self, position: Position, sources: usize) -> Result<ptx::Reduction> {
        let ranks = self.plan.ranks.len();
        if sources == ranks {
            return Ok(ptx::Reduction::Avg);
        }
        let reduces =
            matches!(self.plan.collective.kind, Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce { .. });
        if !reduces {
            return Err(refused(format!(
                "{position}: an average needs the data of all {ranks} ranks in one operation, which has {sources} sources, because \
                 a custom collective does not say what is summed up; use a sum, or a plan that reduces at once"
            )));
        }
        let sums = self.sums.get_or_init(|| sums(self.plan)).as_ref();
        let sums = sums.map_err(|finding| {
            refused(format!(
                "an average is divided where checks find the sum complete, but they find: {finding}"
            ))
        })?;
        match sums.at(position) {
            Sum::Whole => Ok(ptx::Reduction::Avg),
            Sum::Part => Ok(ptx::Reduction::Sum),
            Sum::Both => Err(refused(format!(
                "{position}: an average is divided where the sum of all ranks is complete, which this operation has for some chunks \
                 and not for others; make it two operations, or use a sum"
            ))),
        }
    }
}
