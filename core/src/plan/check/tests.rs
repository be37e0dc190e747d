//! Right plans pass; each kind of mistake is found by the checks alone, and told where it is.

use super::super::oracle;
use super::super::simulate::{self, Config};
use super::super::{
    Barrier, Block, Buffer, Channel, ChannelKind, Form, Kind, Loop, Move, Op, Operand, Operation, Plan,
    PortPut, Protocol, Reduction, Share, Switch, samples,
};
use super::{Finding, FindingKind, check};
use crate::plan::program::{Buffer as Memory, CollectiveProgram, MemoryChannel, Pattern, Rank, SyncType};

fn kinds(findings: &[Finding]) -> Vec<FindingKind> {
    findings.iter().map(|finding| finding.kind).collect()
}

/// The first finding of a kind, as text.
fn first(plan: &Plan, kind: FindingKind) -> String {
    let findings = check(plan);
    let found = findings.iter().find(|finding| finding.kind == kind);
    found.unwrap_or_else(|| panic!("no {kind:?} in {findings:?}")).to_string()
}

/// Index of the n-th operation that `is` holds for.
fn nth(plan: &Plan, nth: usize, is: impl Fn(&Op) -> bool) -> usize {
    let ops = &plan.ranks[0].blocks[0].ops;
    ops.iter().enumerate().filter(|(_, operation)| is(&operation.op)).nth(nth).unwrap().0
}

#[test]
fn right_plans_pass() {
    for plan in samples::all() {
        assert_eq!(check(&plan), [], "{}", plan.name);
    }
}

#[test]
fn a_removed_wait() {
    let mut plan = samples::two_shot(2);
    let last = nth(&plan, 1, |op| matches!(op, Op::Wait { .. }));
    samples::ops(&mut plan, 0, 0).remove(last);
    let text = first(&plan, FindingKind::Pairing);
    assert!(
        text.contains("rank 1 signals rank 0 2 times, but rank 0 waits for it through this channel 1 time"),
        "{text}"
    );
    // The signal removed, too: nothing is left over, but the result is not there when the call ends.
    let signal = nth(&plan, 1, |op| matches!(op, Op::Signal { .. }));
    samples::ops(&mut plan, 1, 0).remove(signal);
    let text = first(&plan, FindingKind::Race);
    assert!(text.contains("rank 1 block 0 operation 3: output chunk 1 of rank 0"), "{text}");
    assert!(text.contains("may write this chunk after rank 0 has ended the call"), "{text}");
}

#[test]
fn a_swapped_chunk() {
    let mut plan = samples::packet_two_shot();
    samples::change(&mut plan, 1, 1, 1, |moved| moved.sources[0].first = 1);
    let text = first(&plan, FindingKind::Result);
    assert!(
        text.contains("rank 1 block 1 operation 1: output chunk 0 of rank 1: is no result of allreduce"),
        "{text}"
    );
    assert!(text.contains("lacks input chunk 0 of rank 0"), "{text}");
}

#[test]
fn a_missing_signal() {
    let mut plan = samples::two_shot(2);
    let last = nth(&plan, 1, |op| matches!(op, Op::Signal { .. }));
    samples::ops(&mut plan, 0, 0).remove(last);
    assert!(kinds(&check(&plan)).contains(&FindingKind::Pairing));
    let text = first(&plan, FindingKind::Deadlock);
    assert!(
        text.contains(
            "rank 1 block 0 operation 6: waits for ever for a signal of rank 0 through Memory channel 0"
        ),
        "{text}"
    );
    assert!(text.contains("rank 0 block 0 operation 0 has given it, but not often enough"), "{text}");
}

/// Rank 0 reads an input, and rank 1 overwrites it once it has heard of rank 0, by a signal or by a packet.
fn overwrites_what_was_read(
    tell: impl Fn(&MemoryChannel<'_>, &Rank<'_>, Memory<'_>),
    learn: impl Fn(&MemoryChannel<'_>, &Rank<'_>, Memory<'_>),
) -> Plan {
    let program = CollectiveProgram::new("read", Pattern::custom("read", 2, 2, 2)).protocol(Protocol::Ll);
    let (reader, owner) = (program.rank(0), program.rank(1));
    let (there, here) = (owner.memory_channel(0), reader.memory_channel(1));
    let scratch = owner.scratch(1);
    there.signal(0, SyncType::Before);
    here.wait(0, SyncType::After);
    here.get(reader.output().chunk(0), owner.input().chunk(0), 0);
    reader.barrier([0]);
    tell(&here, &reader, scratch);
    learn(&there, &owner, scratch);
    owner.barrier([0]);
    owner.copy(owner.input().chunk(0), owner.input().chunk(1), 0);
    there.signal(0, SyncType::Before);
    here.wait(0, SyncType::After);
    program.build().unwrap()
}

/// Neither is ordered behind anything else that its kernel did.
#[test]
fn a_relaxed_signal_or_a_packet_that_is_to_tell_what_its_call_has_read() {
    let signalled = |relaxed: bool| {
        overwrites_what_was_read(
            |channel, _, _| match relaxed {
                true => channel.relaxed_signal(0, SyncType::None),
                false => channel.signal(0, SyncType::None),
            },
            |channel, _, _| channel.wait(0, SyncType::None),
        )
    };
    assert_eq!(check(&signalled(false)), []);
    let by_packet = overwrites_what_was_read(
        |channel, rank, scratch| channel.put_packets(scratch.chunk(0), rank.input().chunk(1), 0),
        |_, rank, scratch| rank.unpack_packets(rank.output().chunk(1), scratch.chunk(0), 0),
    );
    for plan in [signalled(true), by_packet] {
        let text = first(&plan, FindingKind::Race);
        assert!(text.contains("input chunk 0 of rank 1: writes while rank 0 block 0 operation"), "{text}");
    }
}

/// A signal tells what its rank's stream did before the call, relaxed or not; a packet does not.
#[test]
fn a_peers_memory_that_is_used_behind_a_signal_or_behind_packets_only() {
    let used = |signals: bool, writes: bool| {
        let program = CollectiveProgram::new("use", Pattern::custom("use", 2, 2, 2)).protocol(Protocol::Ll);
        let (user, owner) = (program.rank(0), program.rank(1));
        let (there, here) = (owner.memory_channel(0), user.memory_channel(1));
        let scratch = user.scratch(1).chunk(0);
        there.put_packets(scratch, owner.input().chunk(1), 0);
        if signals {
            there.relaxed_signal(0, SyncType::None);
            here.wait(0, SyncType::None);
        }
        user.unpack_packets(user.output().chunk(0), scratch, 0);
        user.barrier([0]);
        match writes {
            true => here.put(owner.output().chunk(0), user.input().chunk(0), 0),
            false => here.get(user.output().chunk(1), owner.input().chunk(0), 0),
        }
        here.signal(0, SyncType::Before);
        there.wait(0, SyncType::After);
        check(&program.build().unwrap())
    };
    assert_eq!((kinds(&used(true, false)), kinds(&used(true, true))), (vec![], vec![]));
    for (writes, what) in
        [(false, "input chunk 0 of rank 1: reads"), (true, "output chunk 0 of rank 1: writes")]
    {
        let text = used(false, writes)[0].to_string();
        assert!(
            text.contains(&format!("{what} a buffer that rank 1's stream may still be writing: packets")),
            "{text}"
        );
    }
}

#[test]
fn a_circle_of_waits() {
    let mut plan = samples::two_shot(2);
    for rank in 0..2 {
        samples::ops(&mut plan, rank, 0).swap(0, 1);
    }
    let text = first(&plan, FindingKind::Deadlock);
    assert!(
        text.contains("rank 1 block 0 operation 0 would give it, but the block waits in operation 1"),
        "{text}"
    );
}

#[test]
fn scratch_used_twice() {
    // By the next call, which may come before the peer has read.
    let text = first(&samples::one_shot(2, false), FindingKind::Reuse);
    assert!(text.contains("operation 0: may overwrite packets of the call before, for which rank"), "{text}");
    assert!(text.contains("use double scratch"), "{text}");
    // By the same call.
    let mut plan = samples::packet_two_shot();
    samples::change(&mut plan, 0, 0, 0, |moved| moved.targets[0].first = 2);
    let text = first(&plan, FindingKind::Reuse);
    assert!(text.contains("rank 0 block"), "{text}");
    assert!(text.contains("packets of the same call lie"), "{text}");
}

#[test]
fn a_reduction_with_a_wrong_operand() {
    let mut plan = samples::one_shot(4, true);
    samples::change(&mut plan, 2, 0, 3, |moved| moved.sources[1].first = 1);
    let text = first(&plan, FindingKind::Result);
    assert!(text.contains("rank 2 block 0 operation 3: output chunk 0 of rank 2"), "{text}");
    assert!(text.contains("lacks input chunk 0 of rank 0 and has instead input chunk 0 of rank 1"), "{text}");
}

#[test]
fn a_chunk_out_of_range() {
    let mut plan = samples::two_shot(2);
    samples::change(&mut plan, 1, 0, 0, |moved| moved.sources[1].first = 2);
    let findings = check(&plan);
    assert_eq!(kinds(&findings), [FindingKind::Bounds]);
    let text = findings[0].to_string();
    assert!(
        text.contains(
            "rank 1 block 0 operation 3: input chunk 2 of rank 0: chunks 2..3 do not exist; the buffer has 2"
        ),
        "{text}"
    );
}

#[test]
fn a_missing_sync() {
    let mut plan = samples::two_shot(2);
    let sync = nth(&plan, 0, |op| *op == Op::Sync);
    samples::ops(&mut plan, 0, 0).remove(sync);
    let text = first(&plan, FindingKind::Reuse);
    assert!(text.contains("rank 0 block 0 operation 3: "), "{text}");
    assert!(text.contains("a buffer of rank 1, which may not have begun the call"), "{text}");
    let mut plan = samples::all().into_iter().find(|plan| plan.name == "reading").unwrap();
    let sync = nth(&plan, 1, |op| *op == Op::Sync);
    samples::ops(&mut plan, 0, 0).remove(sync);
    let text = first(&plan, FindingKind::Race);
    assert!(text.contains("scratch chunk 0 of rank 0: reads while rank 0 block 0 operation 3 writes; put a sync (nop) between"), "{text}");
}

#[test]
fn a_signal_that_should_not_be_relaxed() {
    let mut plan = samples::two_shot(2);
    for operation in samples::ops(&mut plan, 0, 0) {
        if let Op::Signal { relaxed, .. } = &mut operation.op {
            *relaxed = true;
        }
    }
    let text = first(&plan, FindingKind::Race);
    assert!(text.contains("rank 0 block 0 operation 3: output chunk 0 of rank 1"), "{text}");
}

#[test]
fn a_port_put_without_flush() {
    let mut plan = samples::all().into_iter().find(|plan| plan.name == "port").unwrap();
    let flush = nth(&plan, 0, |op| matches!(op, Op::Flush { .. }));
    samples::ops(&mut plan, 0, 0).remove(flush);
    let text = first(&plan, FindingKind::Reuse);
    assert!(text.contains("flush the port channel"), "{text}");
}

/// No move bounds the turns of such a loop.
#[test]
fn a_loop_over_chunks_that_no_buffer_has() {
    let mut plan = samples::all().into_iter().find(|plan| plan.name == "pipelined").unwrap();
    for operation in samples::ops(&mut plan, 0, 1) {
        if let Op::Loop(repeated) = &mut operation.op {
            repeated.body.retain(|operation| !matches!(operation.op, Op::Move(_)));
            repeated.chunks = u32::MAX;
        }
    }
    let text = first(&plan, FindingKind::Bounds);
    assert!(text.contains("rank 0 block 1") && text.contains("a loop over 4294967295 chunks"), "{text}");
}

#[test]
fn a_semaphore_that_is_not_released() {
    let mut plan = samples::all().into_iter().find(|plan| plan.name == "pipelined").unwrap();
    for operation in samples::ops(&mut plan, 0, 0) {
        if let Op::Loop(repeated) = &mut operation.op {
            repeated.body.pop();
        }
    }
    let text = first(&plan, FindingKind::Pairing);
    assert!(
        text.contains("semaphore 0 of rank 0 is released never, but acquired 1 time per iteration"),
        "{text}"
    );
    let text = first(&plan, FindingKind::Deadlock);
    assert!(
        text.contains("rank 0 block 1 operation 0 (operation 0 of its loop): waits for ever for semaphore 0"),
        "{text}"
    );
}

/// As many mistakes as operations, in a file of some megabytes: looking for each one's place from the start would take hours.
#[test]
fn places_are_looked_for_only_of_what_is_told() {
    let mut plan = samples::two_shot(2);
    plan.ranks[0].memory_channels = vec![0; 1_000_000];
    let first = samples::ops(&mut plan, 0, 0)[0].clone();
    *samples::ops(&mut plan, 0, 0) = vec![first; 300_000];
    let barrier = |id: u32| Operation { op: Op::Barrier(Barrier { id, blocks: 7 }), origin: id };
    samples::ops(&mut plan, 1, 0).extend((0..300_000).map(barrier));
    assert!((1..100).contains(&super::structure(&plan).len()));
}

#[test]
fn structures() {
    let wrong = |change: &dyn Fn(&mut Plan), expected: &str| {
        let mut plan = samples::two_shot(2);
        change(&mut plan);
        let findings = super::structure(&plan);
        let found = findings.iter().any(|finding| finding.to_string().contains(expected));
        assert!(found, "{expected}: {findings:?}");
    };
    let op = |op: Op| move |plan: &mut Plan| samples::ops(plan, 0, 0)[3].op = op.clone();
    let port = Channel { kind: ChannelKind::Port, index: 0 };
    let input = Operand::local(Buffer::Input, 0);
    let put = PortPut {
        channel: 0,
        source: (Buffer::Input, 0),
        target: (Buffer::Input, 0),
        count: 1,
        form: Form::Packets,
        forward: true,
        signal: false,
        flush: false,
    };
    wrong(&|plan| plan.ranks.clear(), "the plan has no ranks");
    wrong(&|plan| plan.settings.threads_per_block = 100, "100 threads per block");
    wrong(&|plan| plan.settings.alignment = 12, "an alignment of 12 bytes");
    wrong(
        &|plan| (plan.settings.min_bytes, plan.settings.max_bytes) = (2, 1),
        "the smallest message, 2 bytes",
    );
    wrong(&|plan| plan.collective.kind = Kind::Broadcast { root: 2 }, "the root, rank 2");
    wrong(&|plan| plan.collective.kind = Kind::AllGather, "output chunks for the input chunks of all ranks");
    wrong(&|plan| plan.ranks[1].input_chunks = 4, "rank 1 has other numbers");
    wrong(
        &|plan| plan.ranks[0].memory_channels[0] = 0,
        "rank 0 block 0 operation 0: Memory channel 0 of rank 0 leads to rank 0, which has no channel to pair it with",
    );
    wrong(&|plan| plan.ranks[0].memory_channels.clear(), "reaches rank 1 without a memory channel");
    wrong(&op(Op::Signal { channel: port, relaxed: false }), "Port channel 0 does not exist");
    wrong(&op(Op::Flush { channel: 0 }), "port channel 0 does not exist");
    wrong(&op(Op::Acquire { semaphore: 0 }), "semaphore 0 does not exist");
    wrong(
        &op(Op::Barrier(Barrier { id: 0, blocks: 2 })),
        "rank 0 block 0 operation 3: barrier 0 of rank 0 is of 2 blocks, but blocks [0] come to it",
    );
    wrong(&op(Op::Port(Box::new(put))), "packets lie in scratch only");
    let shared = |member, of| {
        let (sources, targets) = (vec![input], vec![Operand::local(Buffer::Input, 1)]);
        let share = Some(Share { member, of });
        op(Op::Move(Box::new(Move { sources, targets, count: 1, reduction: None, share })))
    };
    wrong(&shared(0, 65_537), "a group of 65537 blocks");
    wrong(&shared(2, 2), "block 2 of a group of 2");
    wrong(&shared(0, 0), "block 0 of a group of 0");
    let by_lines = |op: Op| {
        move |plan: &mut Plan| {
            plan.settings.protocol = Protocol::Ll128;
            samples::ops(plan, 0, 0)[3].op = op.clone();
        }
    };
    wrong(&by_lines(Op::Port(Box::new(put))), "LL128 packets go by memory channels only");
    let body = vec![Op::Port(Box::new(PortPut { form: Form::Plain, forward: false, ..put })).at(0)];
    wrong(
        &by_lines(Op::Loop(Box::new(Loop { unit: 960, chunks: 1, body }))),
        "has other slices than kernels",
    );
    wrong(&op(samples::moved(&[input], &[], 1)), "needs a source and a target");
    wrong(&op(samples::moved(&[input], &[input], 0)), "of no chunks");
    wrong(&op(samples::moved(&[input], &[Operand::local(Buffer::Input, 1)], 2)), "do not exist");
    wrong(&op(samples::moved(&[input], &[input, input], 1)), "two targets are the same chunks");
    wrong(&op(samples::moved(&[Operand::switch(0, 0)], &[input], 1)), "switch 0 does not exist");
    let with_switch = |chunks: [u32; 2]| {
        move |plan: &mut Plan| {
            for (rank, chunks) in plan.ranks.iter_mut().zip(chunks) {
                rank.switches = vec![Switch { buffer: Buffer::Scratch, ranks: vec![0, 1] }];
                rank.scratch_chunks = chunks;
            }
            samples::ops(plan, 0, 0)[3].op = samples::moved(&[Operand::switch(0, 5)], &[input], 1);
        }
    };
    for short in [[5, 6], [6, 5]] {
        wrong(&with_switch(short), "do not exist");
    }
    wrong(&op(samples::moved(&[input], &[input.packets()], 1)), "packets lie in scratch only");
    let mut shifted = samples::all().into_iter().find(|plan| plan.name == "port").unwrap();
    let (from, to) = (Operand::local(Buffer::Output, 0), Operand::local(Buffer::Output, 1));
    shifted.ranks[0].blocks.push(Block::new(vec![samples::moved(&[from], &[to], 2).at(0)]));
    assert!(first(&shifted, FindingKind::Operands).contains("operands overlap in part"));
}

#[test]
fn a_plan_too_large_to_check_says_so() {
    let mut plan = samples::one_shot(2, true);
    plan.ranks[0].scratch_chunks = u32::MAX;
    assert_eq!(kinds(&check(&plan)), [FindingKind::Limit]);
}

/// Whether three calls give the right result in some orders.
fn runs(plan: &Plan) -> bool {
    (0..12).all(|seed| {
        let input =
            |call: u64, rank: u64| (0..48).map(|element| 1 + element * 64 + rank * 7 + call * 5000).collect();
        let inputs = |call| (0..plan.ranks.len() as u64).map(|rank| input(call, rank)).collect();
        let calls: Vec<Vec<Vec<u64>>> = (0..3).map(inputs).collect();
        let Ok(outputs) = simulate::run(plan, &calls, Config { seed, reduction: None }) else { return false };
        outputs.iter().zip(&calls).all(|(outputs, inputs)| {
            let expected = oracle::outputs(&plan.collective.kind, inputs, u64::wrapping_add);
            expected
                .iter()
                .zip(outputs)
                .all(|(expected, output)| expected.as_ref().is_none_or(|expected| expected == output))
        })
    })
}

#[test]
fn every_mutation_is_found_or_harmless() {
    let (mut found, mut harmless) = (0, 0);
    for original in samples::all() {
        let mut try_one = |plan: &Plan, what: &str| {
            if check(plan).is_empty() {
                assert!(runs(plan), "{}: {what}: not found, and wrong", original.name);
                harmless += 1;
            } else {
                found += 1;
            }
        };
        for rank in 0..original.ranks.len() {
            for block in 0..original.ranks[rank].blocks.len() {
                for op in 0..original.ranks[rank].blocks[block].ops.len() {
                    let what = format!("rank {rank} block {block} operation {op}");
                    let mut plan = original.clone();
                    samples::ops(&mut plan, rank, block).remove(op);
                    try_one(&plan, &format!("{what} removed"));
                    let mut plan = original.clone();
                    let ops = samples::ops(&mut plan, rank, block);
                    if op + 1 < ops.len() {
                        ops.swap(op, op + 1);
                        try_one(&plan, &format!("{what} swapped with the next"));
                    }
                    for (side, by) in [(0, 1), (0, u32::MAX), (1, 1), (1, u32::MAX)] {
                        let mut plan = original.clone();
                        if let Op::Move(moved) = &mut samples::ops(&mut plan, rank, block)[op].op {
                            let operand =
                                if side == 0 { moved.sources.last_mut() } else { moved.targets.last_mut() };
                            let operand = operand.unwrap();
                            operand.first = operand.first.wrapping_add(by);
                            try_one(&plan, &format!("{what} operand {side} moved"));
                        }
                    }
                }
            }
        }
    }
    // Harmless are neighbours in another order, a sync at the end, another operand of packets with equal meaning.
    assert!(found > 3 * harmless, "{found} found, {harmless} harmless");
}

#[test]
fn a_collective_has_one_reduction() {
    let mut plan = samples::one_shot(2, true);
    samples::change(&mut plan, 1, 0, 1, |moved| moved.reduction = Some(Reduction::Max));
    let findings = check(&plan);
    assert_eq!(kinds(&findings), [FindingKind::Operands], "{findings:?}");
    let text = findings[0].to_string();
    assert!(
        text.contains("rank 1 block 0 operation 1: reduces by max, and other operations by sum"),
        "{text}"
    );
    let mixed = |kind: Kind| {
        plan.collective.kind = kind;
        super::reductions::mixed(&plan).is_some()
    };
    let reduce = [Kind::AllReduce, Kind::ReduceScatter, Kind::Reduce { root: 1 }];
    assert_eq!(reduce.map(mixed), [true; 3]);
}
