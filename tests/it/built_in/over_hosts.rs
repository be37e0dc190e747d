//! Ranks of several hosts.

use aqueduct::ErrorKind;
use aqueduct::collective::{Collective, CollectiveConfig};
use aqueduct::comm::Transport;
use aqueduct::plan::{Element, Kind, Reduction};

use super::{Bench, PLACES, STAGING, barrier, config, kinds};
use crate::group::{Machine, Rank, soon, threads_on_hosts, threads_on_hosts_with};

fn run(rank: &Rank) {
    for kind in kinds(rank.comm.size()) {
        of_kind(rank, kind);
    }
    barrier(rank);
    unreached(rank);
}

/// The same with averages.
fn averaging() -> CollectiveConfig {
    config().with_variants([Reduction::Sum, Reduction::Max, Reduction::Avg].map(|op| (Element::F32, op)))
}

fn of_kind(rank: &Rank, kind: Kind) {
    let mut bench = Bench::new(rank, kind.clone(), averaging());
    // Where bytes are spared, hosts reduce among themselves first.
    let reduces = matches!(kind, Kind::AllReduce | Kind::Reduce { .. } | Kind::ReduceScatter);
    bench.exact = reduces;
    let ops = [Reduction::Sum, Reduction::Max, if reduces { Reduction::Avg } else { Reduction::Sum }];
    ways(&bench);
    // From one element to several slices, of which the last is short; a call between hosts takes milliseconds.
    let parts = [1, 5, 4 * bench.limit() + 3, 0, bench.limit() + 1];
    for place in PLACES {
        for (part, op) in parts.into_iter().zip(ops.into_iter().cycle()) {
            bench.run(place, part, op);
        }
    }
    bench.replays(PLACES[0], 7);
    bench.replays(PLACES[3], 7);
    rank.barrier();
}

/// A transport that does not reach other hosts.
fn unreached(rank: &Rank) {
    let config = config().with_port_transport(Transport::CudaIpc);
    let error = Collective::prepare(&rank.comm, Kind::AllReduce, config, soon()).map(drop).unwrap_err();
    assert_eq!((error.op(), error.kind()), ("Collective::prepare", ErrorKind::Unsupported), "{error}");
    assert!(error.message().contains("choose Ethernet or a NIC"), "{error}");
}

/// Proxies reach only buffers that were shown, and what is reduced has a bounded place in scratch.
fn ways(bench: &Bench<'_>) {
    let inputs = bench.whole()[0];
    let bounded =
        matches!(bench.collective.kind(), Kind::AllReduce | Kind::Reduce { .. } | Kind::ReduceScatter);
    let peers = bench.rank.comm.peers();
    let sizes: Vec<_> =
        peers.iter().map(|one| peers.iter().filter(|other| one.same_host(other)).count()).collect();
    let (several, equal) = (sizes.iter().all(|size| *size > 1), sizes.iter().all(|size| *size == sizes[0]));
    // Proxies send sums of a host only, which lie in scratch; any slice of a reduce is one.
    let sliced = several && matches!(bench.collective.kind(), Kind::Reduce { .. });
    let sums = sliced || several && equal && *bench.collective.kind() == Kind::ReduceScatter;
    let swaps = matches!(bench.collective.kind(), Kind::AllToAll | Kind::SendRecv);
    for part in [1, STAGING / 4 / inputs, STAGING / 4 / inputs + 1] {
        let count = inputs * part;
        let fits = !bounded || sliced || 4 * count <= STAGING;
        for in_place in [false, true] {
            let hidden = bench.collective.algorithm(in_place, count, Element::F32, None).unwrap();
            assert_eq!(hidden, if sums && fits { "hosts" } else { "staged" });
            let shown = &bench.shown[usize::from(in_place)];
            let shown = bench.collective.algorithm_on(shown, count, Element::F32, None).unwrap();
            assert_eq!(shown, if fits && !(in_place && swaps) { "hosts" } else { "staged" });
        }
    }
    let explain = |shown: bool| bench.collective.explain(false, shown, inputs, Element::F32, None).unwrap();
    let (shown, hidden) = (explain(true), explain(false));
    assert!(shown.contains("several hosts: through ports between them"), "{shown}");
    assert!(shown.contains("a rule; packets, copy engines and tables are for ranks of one host"), "{shown}");
    if sums {
        assert_eq!(hidden, shown);
    } else {
        let why = ["memory of the library's own", "not shown to the peers"];
        assert!(why.iter().all(|why| hidden.contains(why)), "{hidden}");
    }
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

    /// Each of as many chunks of a part as there are hosts.
    #[test]
    fn of_fewer_ranks_than_hosts() {
        let test = "built_in::over_hosts::soft::of_fewer_ranks_than_hosts";
        threads_on_hosts(Machine::Software, &["a", "b", "c", "a", "b", "c"], test, |rank| {
            let root = 4;
            let rooted = [Kind::Broadcast { root }, Kind::Reduce { root }];
            for kind in [Kind::AllReduce, Kind::ReduceScatter, Kind::AllGather].into_iter().chain(rooted) {
                let mut bench = Bench::new(&rank, kind, averaging());
                bench.exact = true;
                for place in [PLACES[1], PLACES[2], PLACES[3]] {
                    [1, 100, 257].into_iter().for_each(|part| bench.run(place, part, Reduction::Sum));
                }
                rank.barrier();
            }
        });
    }

    #[test]
    fn of_different_numbers_of_ranks() {
        hosts(&["a", "b", "b"], "of_different_numbers_of_ranks");
    }

    /// Slices are shorter than the caller wants, and long calls take several of them.
    #[test]
    fn with_little_scratch() {
        let test = "built_in::over_hosts::soft::with_little_scratch";
        let little = crate::group::config().with_scratch_bytes(1 << 17);
        threads_on_hosts_with(Machine::Software, &["a", "b", "a", "b"], test, &little, |rank| {
            for kind in [Kind::AllReduce, Kind::ReduceScatter, Kind::Reduce { root: 1 }] {
                let staging = config().with_staging_bytes(1 << 15);
                let mut bench = Bench::new(&rank, kind, staging);
                bench.exact = true;
                for place in [PLACES[0], PLACES[3]] {
                    [1, 2000, 6000].into_iter().for_each(|part| bench.run(place, part, Reduction::Sum));
                }
                rank.barrier();
            }
        });
    }

    #[test]
    fn of_several_ranks_but_not_equally_many() {
        hosts(&["a", "b", "b", "a", "b"], "of_several_ranks_but_not_equally_many");
    }
}
