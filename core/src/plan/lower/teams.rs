//! The groups of ranks whose memory kernels may access by multicast addresses.

use std::collections::BTreeSet;

use super::collective::Kind;
use super::ir::{Buffer, Plan, Switch};
use super::operands::Store;

/// Ranks whose memory of one kind a switch reduces and broadcasts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::plan) struct Team {
    pub(in crate::plan) store: Store,
    /// In ascending order; at least two.
    pub(in crate::plan) ranks: Vec<u32>,
}

impl Team {
    /// The team of a switch; `None` if its members are reached one by one only: a single one, or members that find their chunks in
    /// different places of their buffers, as in a call in place where one buffer is a part of the other.
    pub(super) fn of(plan: &Plan, switch: &Switch) -> Option<Self> {
        let in_place = plan.collective.in_place;
        let shifted = match (switch.buffer, &plan.collective.kind) {
            (Buffer::Input, Kind::AllGather | Kind::Gather { .. }) => in_place,
            (Buffer::Output, Kind::ReduceScatter | Kind::Scatter { .. }) => in_place,
            _ => false,
        };
        let mut ranks = switch.ranks.clone();
        ranks.sort_unstable();
        (ranks.len() > 1 && !shifted).then_some(Self { store: Store::of(switch.buffer), ranks })
    }
}

/// The teams of all switches of a plan, each once, in an order that all ranks know. A team's number is its place.
pub(in crate::plan) fn teams(plan: &Plan) -> Vec<Team> {
    let switches = plan.ranks.iter().flat_map(|rank| &rank.switches);
    let teams: BTreeSet<Team> = switches.filter_map(|switch| Team::of(plan, switch)).collect();
    teams.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::samples;

    #[test]
    fn each_team_comes_once_and_shifted_buffers_have_none() {
        let mut plan = samples::two_shot(3);
        let switch = |buffer, ranks: &[u32]| Switch { buffer, ranks: ranks.to_vec() };
        for rank in &mut plan.ranks {
            rank.switches = vec![
                switch(Buffer::Scratch, &[2, 0, 1]),
                switch(Buffer::Input, &[0, 1]),
                switch(Buffer::Scratch, &[1]),
                switch(Buffer::Scratch, &[0, 1, 2]),
            ];
        }
        let team = |store, ranks: &[u32]| Team { store, ranks: ranks.to_vec() };
        assert_eq!(teams(&plan), [team(Store::Arena, &[0, 1, 2]), team(Store::Input, &[0, 1])]);
        plan.collective.kind = Kind::AllGather;
        assert_eq!(teams(&plan), [team(Store::Arena, &[0, 1, 2])], "input of a rank is a part of its output");
        plan.collective.in_place = false;
        assert_eq!(teams(&plan).len(), 2);
    }
}
