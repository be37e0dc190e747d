//! Ranks of several hosts.

use aqueduct::plan::{Element, Kind};

use super::{Bench, PLACES, STAGING, barrier, config, kinds};
use crate::group::{Machine, Rank, threads_on_hosts};

fn run(rank: &Rank) {
    for kind in kinds(rank.comm.size()) {
        let mut bench = Bench::new(rank, kind.clone(), config());
        // Hosts of equally many ranks reduce first among themselves.
        bench.exact = kind == Kind::AllReduce;
        ways(&bench);
        bench.sizes();
        for part in [1, bench.limit() + 1] {
            bench.replays(PLACES[0], part);
            bench.replays(PLACES[3], part);
        }
        rank.barrier();
    }
    barrier(rank);
}

/// Proxies reach only buffers that were shown, and what is reduced has a bounded place in scratch.
fn ways(bench: &Bench<'_>) {
    let inputs = bench.whole()[0];
    let bounded =
        matches!(bench.collective.kind(), Kind::AllReduce | Kind::Reduce { .. } | Kind::ReduceScatter);
    let swaps = matches!(bench.collective.kind(), Kind::AllToAll | Kind::SendRecv);
    for part in [1, STAGING / 4 / inputs, STAGING / 4 / inputs + 1] {
        let count = inputs * part;
        let fits = !bounded || 4 * count <= STAGING;
        for in_place in [false, true] {
            let hidden = bench.collective.algorithm(in_place, count, Element::F32, None).unwrap();
            assert_eq!(hidden, "staged");
            let shown = &bench.shown[usize::from(in_place)];
            let shown = bench.collective.algorithm_on(shown, count, Element::F32, None).unwrap();
            assert_eq!(shown, if fits && !(in_place && swaps) { "hosts" } else { "staged" });
        }
    }
    let why = bench.collective.explain(false, true, inputs, Element::F32, None).unwrap();
    assert!(why.contains("several hosts"), "{why}");
}

mod soft {
    use super::*;

    fn hosts(names: &[&str], test: &str) {
        threads_on_hosts(Machine::Software, names, &format!("built_in::over_hosts::soft::{test}"), |rank| {
            run(&rank)
        });
    }

    #[test]
    fn of_one_rank() {
        hosts(&["a", "b"], "of_one_rank");
    }

    #[test]
    fn of_two_ranks_in_turns() {
        hosts(&["a", "b", "a", "b"], "of_two_ranks_in_turns");
    }

    #[test]
    fn of_different_numbers_of_ranks() {
        hosts(&["a", "b", "b"], "of_different_numbers_of_ranks");
    }
}
