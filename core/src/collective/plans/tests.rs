//! The plans are right, by the check and by the simulator.

use super::{
    Averages, Hosts, Shape, barrier, copied, in_place_differs, over_hosts, packets, pushed, through_scratch,
    variable, zero_copy,
};
use crate::plan::{Block, Kind, Op, Place, Plan, check, oracle, simulate};

fn kinds(ranks: u32) -> Vec<Kind> {
    let mut kinds =
        vec![Kind::AllReduce, Kind::AllGather, Kind::ReduceScatter, Kind::AllToAll, Kind::SendRecv];
    // A root that is neither the first nor the last rank differs in its neighbours.
    let mut roots = vec![0, ranks / 2, ranks - 1];
    roots.dedup();
    for root in roots {
        kinds.extend([Kind::Broadcast { root }, Kind::Reduce { root }]);
        kinds.extend([Kind::Gather { root }, Kind::Scatter { root }]);
    }
    kinds
}

fn all(ranks: u32, blocks: u32) -> Vec<Plan> {
    let mut plans = vec![barrier(ranks, &Hosts::new(ranks, |_, _| true)).unwrap()];
    for kind in kinds(ranks) {
        for in_place in [false, true].into_iter().filter(|&one| !one || in_place_differs(&kind)) {
            let shape = Shape { ranks, in_place, blocks, threads: 128, copy_engines: false, own: false };
            let made = [
                packets(&kind, shape),
                through_scratch(&kind, shape),
                zero_copy(&kind, shape),
                pushed(&kind, shape),
                copied(&kind, shape),
            ];
            plans.extend(made.into_iter().flatten().map(Result::unwrap));
            plans.extend(
                variable(&kind, shape, &Hosts::new(shape.ranks, |_, _| true))
                    .filter(|_| !in_place)
                    .map(Result::unwrap),
            );
        }
    }
    plans
}

#[track_caller]
fn checked(plan: &Plan) {
    assert_eq!(check::check(plan), [], "{} of {} ranks", plan.name, plan.ranks.len());
}

/// Three calls in several orders give what the collective's definition says.
fn simulated(plan: &Plan) {
    // Of either buffer each chunk has some elements.
    let chunks = plan.ranks.iter().map(|rank| rank.input_chunks.max(rank.output_chunks)).max();
    let count = 5 * u64::from(chunks.unwrap_or(1) * plan.ranks.len() as u32);
    let input = |rank: u64| (0..count).map(|element| element * 64 + rank * 7 + 1).collect();
    let inputs: Vec<Vec<u64>> = (0..plan.ranks.len() as u64).map(input).collect();
    let expected = oracle::outputs(&plan.collective.kind, &inputs, u64::wrapping_add);
    let calls = [inputs.clone(), inputs.clone(), inputs];
    for seed in 0..3 {
        let outputs = simulate::run(plan, &calls, simulate::Config { seed, reduction: None }).unwrap();
        for (rank, output) in outputs.iter().flat_map(|outputs| outputs.iter().enumerate()) {
            let what = format!("{} of {}: rank {rank}, seed {seed}", plan.name, plan.ranks.len());
            assert!(expected[rank].as_ref().is_none_or(|expected| expected == output), "{what}");
        }
    }
}

#[test]
fn plans_are_right_for_every_number_of_ranks() {
    for ranks in 1..=8 {
        for plan in all(ranks, 2) {
            checked(&plan);
            if !matches!(plan.collective.kind, Kind::Custom(_)) {
                simulated(&plan);
            }
        }
    }
}

/// Hosts of equally many ranks in any order, and of different numbers.
#[test]
fn plans_are_right_over_hosts() {
    for of in ["ab", "aab", "abc", "aabb", "abab", "abbb", "abcd", "aabbcc", "abcabc", "aaabb", "aaaabbbb"] {
        let (of, ranks) = (of.as_bytes(), of.len() as u32);
        let hosts = Hosts::new(ranks, |one, other| of[one as usize] == of[other as usize]);
        checked(&barrier(ranks, &hosts).unwrap());
        for (kind, blocks) in
            [(Kind::AllToAll, 1), (Kind::AllToAll, 3), (Kind::ReduceScatter, 1), (Kind::ReduceScatter, 2)]
        {
            let shape =
                Shape { ranks, in_place: false, blocks, threads: 128, copy_engines: false, own: false };
            let plan = variable(&kind, shape, &hosts).unwrap().unwrap();
            checked(&plan);
            simulated(&plan);
        }
        for kind in kinds(ranks) {
            for in_place in [false, true].into_iter().filter(|&one| !one || in_place_differs(&kind)) {
                for (blocks, averages) in [(1, Averages::None), (2, Averages::Wide), (2, Averages::Narrow)] {
                    let shape =
                        Shape { ranks, in_place, blocks, threads: 128, copy_engines: false, own: false };
                    let Some(made) = over_hosts(&kind, shape, &hosts, averages) else { continue };
                    let (plan, _) = made.unwrap();
                    checked(&plan);
                    simulated(&plan);
                }
            }
        }
    }
}

/// Four ranks of each of two hosts, and three and one: a byte crosses as often as with one of each.
#[test]
fn a_byte_crosses_once_between_two_hosts() {
    let crosses = |of: &[u8], kind: &Kind| {
        let (ranks, in_place) = (of.len() as u32, false);
        let hosts = Hosts::new(ranks, |one, other| of[one as usize] == of[other as usize]);
        let shape = Shape { ranks, in_place, blocks: 2, threads: 128, copy_engines: false, own: false };
        let (plan, _) = over_hosts(kind, shape, &hosts, Averages::None).unwrap().unwrap();
        let ops = plan.ranks.iter().flat_map(|rank| &rank.blocks).flat_map(|block| &block.ops);
        let puts = ops.filter_map(|operation| match &operation.op {
            Op::Port(put) => Some(put.count),
            _ => None,
        });
        (puts.sum::<u32>(), plan.ranks[0].input_chunks)
    };
    // Chunks that cross, of an input of so many: an all-reduce gathers what it has reduced.
    let expected = [
        (Kind::AllReduce, (16, 8)),
        (Kind::ReduceScatter, (8, 8)),
        (Kind::AllGather, (8, 1)),
        (Kind::Broadcast { root: 5 }, (8, 8)),
        (Kind::Reduce { root: 5 }, (1, 1)),
    ];
    for (kind, chunks) in expected {
        assert_eq!(crosses(b"aaaabbbb", &kind), chunks, "{kind:?}");
    }
    let expected = [
        (Kind::AllGather, (4, 1)),
        (Kind::Broadcast { root: 1 }, (4, 4)),
        (Kind::Reduce { root: 1 }, (1, 1)),
    ];
    for (kind, chunks) in expected {
        assert_eq!(crosses(b"aaab", &kind), chunks, "{kind:?}");
    }
}

/// With more hosts than blocks, each block hands on whole parts: plans do not grow with hosts times blocks.
#[test]
fn parts_of_many_hosts_are_not_divided_between_blocks() {
    let (count, local, blocks) = (16, 2, 8);
    let ranks = count * local;
    let hosts = Hosts::new(ranks, |one, other| one / local == other / local);
    let shape = Shape { ranks, in_place: false, blocks, threads: 128, copy_engines: false, own: false };
    for (kind, each) in [(Kind::AllGather, 2), (Kind::ReduceScatter, 2), (Kind::AllReduce, 5)] {
        let (plan, _) = over_hosts(&kind, shape, &hosts, Averages::None).unwrap().unwrap();
        checked(&plan);
        for rank in &plan.ranks {
            let ops = rank.blocks.iter().flat_map(|block| &block.ops);
            let moves = ops.filter(|operation| matches!(operation.op, Op::Move(_))).count() as u32;
            // Moves for each host, and those that all blocks share: of this rank's own part, and of the sum over hosts.
            assert!(moves <= each * count + 2 * blocks, "{kind:?}: {moves} moves");
        }
    }
}

/// Where a sum is complete is found by checks, whose memory grows with the square of the ranks, unless each reduces all at once.
#[test]
fn averages_of_many_ranks_need_no_check() {
    let shape =
        Shape { ranks: 64, in_place: false, blocks: 2, threads: 128, copy_engines: false, own: false };
    let hosts = Hosts::new(64, |one, other| one / 8 == other / 8);
    let reducing = [Kind::AllReduce, Kind::ReduceScatter, Kind::Reduce { root: 9 }];
    let cases = reducing.iter().flat_map(|kind| {
        [(kind, Averages::Wide, true), (kind, Averages::Narrow, true), (kind, Averages::None, false)]
    });
    for (kind, averages, whole) in cases {
        let (plan, _) = over_hosts(kind, shape, &hosts, averages).unwrap().unwrap();
        let reduces = plan.ranks.iter().flat_map(|rank| &rank.blocks).flat_map(|block| &block.ops);
        let mut sources = reduces.filter_map(|operation| match &operation.op {
            Op::Move(moved) if moved.reduction.is_some() => Some(moved.sources.len()),
            _ => None,
        });
        assert_eq!(sources.all(|sources| sources == 64), whole, "{kind:?}");
    }
}

/// Up to 32 ranks, hosts reduce first also for averages, but for those in whose type a host's sum may find no room.
#[test]
fn averages_of_few_ranks_are_reduced_by_hosts() {
    for (ranks, averages, expected) in [
        (32, Averages::Wide, "by hosts"),
        (33, Averages::Wide, "over hosts"),
        (33, Averages::None, "by hosts"),
        (2, Averages::Narrow, "over hosts"),
    ] {
        let hosts = Hosts::new(ranks, |one, other| one % 2 == other % 2);
        let shape =
            Shape { ranks, in_place: false, blocks: 2, threads: 128, copy_engines: false, own: false };
        let (plan, _) = over_hosts(&Kind::Reduce { root: 1 }, shape, &hosts, averages).unwrap().unwrap();
        assert_eq!(plan.name, format!("reduce {expected}"), "{ranks} ranks, {averages:?}");
        checked(&plan);
        simulated(&plan);
    }
}

/// Elements are reduced in the order of a host's ranks, then in that of the hosts: what each addition loses tells the order.
#[test]
fn sums_of_hosts_are_in_the_order_of_ranks_and_hosts() {
    for of in ["aabb", "abcabcabc", "bbbaaa"] {
        let (of, ranks) = (of.as_bytes(), of.len() as u32);
        let hosts = Hosts::new(ranks, |one, other| of[one as usize] == of[other as usize]);
        let count = 2 * ranks;
        let value = |rank: u32, element: u32| {
            let hash = (rank * 977 + element * 131 + 7).wrapping_mul(0x9E37_79B1);
            f32::from_bits(0x3F80_0000 | hash >> 9) * [1.0, 4096.0, 0.001][(hash % 3) as usize]
        };
        let inputs: Vec<Vec<f32>> =
            (0..ranks).map(|rank| (0..count).map(|element| value(rank, element)).collect()).collect();
        let sum = |element: u32| {
            let of_host = |host: u32| (0..hosts.size(host)).map(move |number| (host, number));
            let host = |host: u32| {
                of_host(host)
                    .map(|(host, number)| value(hosts.rank(host, number), element))
                    .reduce(|a, b| a + b)
            };
            (0..hosts.count()).filter_map(host).reduce(|a, b| a + b).unwrap().to_bits()
        };
        for kind in [Kind::AllReduce, Kind::ReduceScatter, Kind::Reduce { root: 1 }] {
            let shape =
                Shape { ranks, in_place: false, blocks: 2, threads: 128, copy_engines: false, own: false };
            let (plan, _) = over_hosts(&kind, shape, &hosts, Averages::None).unwrap().unwrap();
            let config = simulate::Config { seed: 1, reduction: None };
            let outputs = simulate::run(&plan, std::slice::from_ref(&inputs), config).unwrap().remove(0);
            let whole: Vec<u32> = match kind {
                Kind::ReduceScatter => outputs.concat(),
                _ => outputs[1].clone(),
            }
            .into_iter()
            .map(f32::to_bits)
            .collect();
            assert_eq!(whole, (0..count).map(sum).collect::<Vec<_>>(), "{} of {of:?}", plan.name);
        }
    }
}

#[test]
fn plans_of_one_block_and_of_many_are_right() {
    for plan in all(3, 1).iter().chain(&all(4, 7)) {
        checked(plan);
    }
}

/// Whether a block moves data to peers, and whether it does within its rank.
fn moves(block: &Block) -> [bool; 2] {
    let moved = block.ops.iter().filter_map(|operation| match &operation.op {
        Op::Move(moved) => Some(moved),
        _ => None,
    });
    moved.fold([false, false], |[there, here], moved| {
        let goes = moved.targets.iter().any(|to| matches!(to.place, Place::Remote { .. }));
        [there || goes, here || !goes]
    })
}

/// What stays at a rank of an all-to-all has blocks of its own, a share of them that suits the bytes.
#[test]
fn own_data_has_its_own_blocks() {
    for (ranks, blocks, own) in [(2, 2, 1), (2, 3, 1), (2, 96, 32), (3, 8, 2), (8, 64, 7), (8, 4, 1)] {
        let shape = Shape { ranks, in_place: false, blocks, threads: 128, copy_engines: false, own: false };
        for rank in zero_copy(&Kind::AllToAll, shape).unwrap().unwrap().ranks {
            let all: Vec<_> = rank.blocks.iter().map(moves).collect();
            assert_eq!(all.len(), blocks as usize, "of {ranks} ranks");
            let count = |wanted: [bool; 2]| all.iter().filter(|&&one| one == wanted).count();
            let found = [count([true, false]), count([false, true])];
            assert_eq!(found, [(blocks - own) as usize, own as usize], "{blocks} blocks of {ranks} ranks");
        }
    }
}

/// Where streams share a hardware queue, copy engines' kernels may wait for blocks before them only. Threads beside them are few,
/// because they take bandwidth of the memory from them.
#[test]
fn copy_engines_come_behind_few_blocks_of_threads() {
    for ranks in 2..5 {
        for kind in kinds(ranks) {
            for blocks in [1, 2, 128] {
                let shape =
                    Shape { ranks, in_place: false, blocks, threads: 128, copy_engines: false, own: false };
                let Some(plan) = copied(&kind, shape) else { continue };
                let plan = plan.unwrap();
                for rank in &plan.ranks {
                    let threads = rank.blocks.iter().take_while(|block| !block.copy_engine).count();
                    let what = format!("{} of {ranks} ranks, {blocks} blocks", plan.name);
                    assert!(rank.blocks[threads..].iter().all(|block| block.copy_engine), "{what}");
                    assert!(threads < rank.blocks.len(), "{what}");
                    let most = match kind {
                        Kind::AllReduce if ranks > 2 => 128,
                        Kind::AllReduce | Kind::ReduceScatter => 32,
                        _ => 16,
                    };
                    assert!(threads <= most.min(blocks as usize), "{what}: {threads}");
                }
            }
        }
    }
}

/// Only two ranks reduce in the output what copy engines bring, and not in place: a peer would overwrite the input.
#[test]
fn copy_engines_reduce_between_two_ranks_out_of_place() {
    let has = |kind: Kind, ranks, in_place| {
        let shape = Shape { ranks, in_place, blocks: 2, threads: 128, copy_engines: false, own: false };
        copied(&kind, shape).is_some()
    };
    assert!(has(Kind::ReduceScatter, 2, false) && has(Kind::AllReduce, 2, false));
    assert!(!has(Kind::ReduceScatter, 2, true) && !has(Kind::AllReduce, 2, true));
    assert!(!has(Kind::ReduceScatter, 3, false) && has(Kind::AllReduce, 3, true));
    assert!(!has(Kind::Reduce { root: 0 }, 2, false));
}
