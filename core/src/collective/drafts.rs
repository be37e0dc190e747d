//! The plans that a collective prepares: the user's and the built-in ones.

use std::ops::RangeInclusive;

use super::call::Call;
use super::choosing::{Chosen, Push};
use super::config::CollectiveConfig;
use super::plans::{self, Hosts, Length, Shape};
use super::selector::PlanSelector;
use super::sizes::{push_blocks, shape, usual_blocks};
use super::tuning::Choice;
use crate::channel::Geometry;
use crate::error::Result;
use crate::gpu::Series;
use crate::plan::{ExecutorConfig, Kind, Plan, RankPlan};

/// The name of the way through scratch.
pub(super) const TWO_SHOT: &str = "two-shot";
/// The name of the way between the ranks' buffers.
pub(super) const ZERO_COPY: &str = "zero-copy";
/// The name of the way into the peers' scratch, and from there to all outputs.
pub(super) const PUSH: &str = "push";
/// The name of the way of copy engines.
pub(super) const COPY_ENGINE: &str = "copy-engine";

/// The name of the way of ranks of several hosts.
pub(super) const OVER_HOSTS: &str = "hosts";

/// A plan that is to be prepared.
pub(super) struct Draft {
    pub(super) name: String,
    pub(super) plan: Plan,
    pub(super) settings: ExecutorConfig,
    pub(super) calls: PlanSelector,
    /// A longer call than the plan's scratch serves is cut into slices.
    pub(super) sliced: bool,
}

/// The plans of a collective, in the order in which they are asked whether they serve a call: the user's, then the built-in ones.
pub(super) fn drafts(
    kind: &Kind,
    config: &CollectiveConfig,
    chosen: &Chosen,
    (hosts, geometry): (&Hosts, Geometry),
    series: Series,
) -> Result<Vec<Draft>> {
    let ranks = hosts.ranks();
    let mut drafts = Vec::new();
    for (plan, calls) in &config.plans {
        let longest = *calls.bytes.end();
        let most = Call::most_input(kind, ranks, longest).min(plan.settings.max_bytes);
        let most = (longest < u64::MAX).then_some(most);
        let settings = config.executor(most).with_variants(config.variants_of(calls)).in_series(series);
        let (name, plan, calls) = (plan.name.clone(), plan.clone(), calls.clone());
        drafts.push(Draft { name, plan, settings, calls, sliced: false });
    }
    for in_place in [false, true] {
        // In place one rank alone has nothing to do.
        if in_place && (ranks == 1 || !plans::in_place_differs(kind)) {
            continue;
        }
        let shape = |blocks| Shape { ranks, in_place, ..shape(geometry, blocks) };
        let mut add = |name: &str, plan, most, bytes| {
            // Tests check the built-in plans.
            let settings = config.executor(Some(most)).unchecked().in_series(series);
            let settings = if plans::in_place_differs(kind) { settings } else { settings.in_either_place() };
            let sliced = [TWO_SHOT, PUSH].contains(&name);
            let calls = PlanSelector::sizes(bytes);
            drafts.push(Draft { name: name.to_owned(), plan, settings, calls, sliced });
        };
        if hosts.count() < 2 {
            built_in(kind, chosen, shape, geometry, add)?;
        } else if let Some(made) =
            plans::over_hosts(kind, shape(chosen.choice.blocks), hosts, config.averages())
        {
            let (plan, length) = made?;
            let most = match length {
                Length::Any => u64::MAX,
                Length::Scratch => longest(&plan, chosen),
            };
            add(OVER_HOSTS, plan, most, 0..=u64::MAX);
        }
    }
    Ok(drafts)
}

/// The longest message of a plan that takes as much of scratch as hosts and their ranks make it: a slice, or what two such plans, of which
/// one is for calls in place, find room for in half of what the collective may take.
fn longest(plan: &Plan, chosen: &Chosen) -> u64 {
    let most = |chunks: fn(&RankPlan) -> u32| plan.ranks.iter().map(chunks).max().unwrap_or(0).max(1);
    let (message, scratch) = (most(|rank| rank.input_chunks), most(|rank| rank.scratch_chunks));
    let room = chosen.scratch / 4 / u64::from(scratch) * u64::from(message);
    let least = 16 * plan.ranks.len() as u64;
    (chosen.staging as u64).min(room / 16 * 16).max(least)
}

/// Adds the plans of a collective, those for short messages first: name, plan, its longest message of the input in bytes, and the calls
/// that it is for.
fn built_in(
    kind: &Kind,
    chosen: &Chosen,
    shape: impl Fn(u32) -> Shape,
    geometry: Geometry,
    mut add: impl FnMut(&str, Plan, u64, RangeInclusive<u64>),
) -> Result<()> {
    let Choice { packet_bytes, line_bytes, packet_blocks, blocks, copy_bytes } = chosen.choice;
    let Push { from, slice, .. } = chosen.push;
    // A call of packets has as many of its blocks as the message needs.
    let (packets, direct, slices) = (shape(packet_blocks), shape(blocks), shape(usual_blocks(geometry).0));
    let most = |bytes| Call::most_input(kind, packets.ranks, bytes);
    let all = || 0..=u64::MAX;
    let plans = [
        (packet_bytes > 0)
            .then(|| ("packets", plans::packets(kind, packets), most(packet_bytes), 0..=packet_bytes)),
        (line_bytes > packet_bytes)
            .then(|| ("lines", plans::lines(kind, packets), most(line_bytes), 0..=line_bytes)),
        (copy_bytes > 0).then(|| (COPY_ENGINE, plans::copied(kind, direct), u64::MAX, copy_bytes..=u64::MAX)),
        (from > 0).then(|| (PUSH, plans::pushed(kind, shape(push_blocks(geometry))), slice, from..=u64::MAX)),
        Some((ZERO_COPY, plans::zero_copy(kind, direct), u64::MAX, all())),
        Some((TWO_SHOT, plans::through_scratch(kind, slices), chosen.staging as u64, all())),
    ];
    for (name, plan, most, bytes) in plans.into_iter().flatten() {
        if let Some(plan) = plan {
            add(name, plan?, most, bytes);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::plans::Averages;
    use super::*;

    /// However little scratch there is, each rank's part has a vector: what has too little is refused, and never cut into nothing.
    #[test]
    fn slices_have_a_vector_for_each_rank() {
        let choice = Choice { packet_bytes: 0, line_bytes: 0, packet_blocks: 1, blocks: 2, copy_bytes: 0 };
        let hosts = Hosts::new(6, |one, other| one / 2 == other / 2);
        let shape =
            Shape { ranks: 6, in_place: false, blocks: 2, threads: 128, copy_engines: false, own: false };
        let (plan, _) = plans::over_hosts(&Kind::AllReduce, shape, &hosts, Averages::None).unwrap().unwrap();
        for (staging, scratch, bytes) in
            [(16 << 20, 0, 96), (16 << 20, 512, 96), (1000, 512 << 20, 1000), (8, 512 << 20, 96)]
        {
            let chosen = Chosen { choice, why: String::new(), push: Push::default(), staging, scratch };
            assert_eq!(longest(&plan, &chosen), bytes, "{staging} {scratch}");
        }
    }

    /// Each host adds its sum to a root's scratch, and without sums of hosts each rank its data.
    #[test]
    fn plans_of_many_hosts_find_room() {
        let choice = Choice { packet_bytes: 0, line_bytes: 0, packet_blocks: 1, blocks: 2, copy_bytes: 0 };
        let (staging, scratch) = (16 << 20, 512 << 20);
        let chosen = Chosen { choice, why: String::new(), push: Push::default(), staging, scratch };
        let hosts = Hosts::new(50, |one, other| one / 2 == other / 2);
        let shape =
            Shape { ranks: 50, in_place: false, blocks: 2, threads: 128, copy_engines: false, own: false };
        for kind in [Kind::Reduce { root: 7 }, Kind::ReduceScatter, Kind::AllReduce] {
            for averages in [Averages::None, Averages::Wide] {
                let (plan, _) = plans::over_hosts(&kind, shape, &hosts, averages).unwrap().unwrap();
                let bytes = longest(&plan, &chosen);
                let chunks =
                    |of: fn(&RankPlan) -> u32| plan.ranks.iter().map(of).map(u64::from).max().unwrap();
                let chunk = bytes.div_ceil(chunks(|rank| rank.input_chunks));
                let taken = 2 * chunk * chunks(|rank| rank.scratch_chunks);
                assert!(taken <= scratch && bytes >= 2 << 20, "{kind:?}: {taken} for {bytes}");
            }
        }
    }
}
