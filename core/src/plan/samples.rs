//! Plans for tests, made by hand: together they hold every kind of operation.

use super::{
    Barrier, Block, Buffer, Channel, ChannelKind, Collective, Form, Kind, Loop, Move, Op, Operand, Operation,
    Plan, PortPut, Protocol, RankPlan, Reduction, Settings, Share, Switch,
};

pub(super) mod copies;
pub(super) mod elements;

const INPUT: Buffer = Buffer::Input;
const OUTPUT: Buffer = Buffer::Output;
const SCRATCH: Buffer = Buffer::Scratch;

/// All samples, each of which is right.
pub(super) fn all() -> Vec<Plan> {
    vec![
        one_shot(2, true),
        one_shot(4, true),
        two_shot(2),
        two_shot(3),
        packet_two_shot(),
        forwarded(),
        grouped_all_gather(),
        pipelined_all_to_all(),
        switch_all_reduce(),
        port_all_gather(),
        port_packets(),
        reading_reduce_scatter(),
        switch_packets(),
        copies::all_gather(3),
        copies::all_reduce(2),
        copies::all_reduce(3),
    ]
}

fn memory(index: u32) -> Channel {
    Channel { kind: ChannelKind::Memory, index }
}

pub(super) fn moved(sources: &[Operand], targets: &[Operand], count: u32) -> Op {
    let reduction = (sources.len() > 1).then_some(Reduction::Sum);
    Op::Move(Box::new(Move {
        sources: sources.to_vec(),
        targets: targets.to_vec(),
        count,
        reduction,
        share: None,
    }))
}

fn local(buffer: Buffer, first: u32) -> Operand {
    Operand::local(buffer, first)
}

fn block(ops: Vec<Op>) -> Block {
    Block::new((0..).zip(ops).map(|(origin, op)| op.at(origin)).collect())
}

fn signals(channels: u32, relaxed: bool) -> impl Iterator<Item = Op> {
    (0..channels).map(move |index| Op::Signal { channel: memory(index), relaxed })
}

fn waits(channels: u32) -> impl Iterator<Item = Op> {
    (0..channels).map(move |index| Op::Wait { channel: memory(index) })
}

fn plan(name: &str, kind: Kind, in_place: bool, settings: Settings, ranks: Vec<RankPlan>) -> Plan {
    Plan { name: name.into(), collective: Collective { kind, in_place }, settings, ranks }
}

fn peers(rank: u32, ranks: u32) -> Vec<u32> {
    (0..ranks).filter(|&peer| peer != rank).collect()
}

fn packets() -> Settings {
    Settings { protocol: Protocol::Ll, double_scratch: true, ..Settings::default() }
}

/// Every rank sends its whole input as packets to all others and reduces what comes.
pub(super) fn one_shot(n: u32, double_scratch: bool) -> Plan {
    let rank = |rank: u32| {
        let input = local(INPUT, 0);
        let mut ops: Vec<Op> = peers(rank, n)
            .into_iter()
            .map(|peer| moved(&[input], &[Operand::remote(peer, SCRATCH, rank).packets()], 1))
            .collect();
        let came = peers(rank, n).into_iter().map(|peer| local(SCRATCH, peer).packets());
        let sources: Vec<Operand> = std::iter::once(input).chain(came).collect();
        ops.push(moved(&sources, &[local(OUTPUT, 0)], 1));
        RankPlan {
            input_chunks: 1,
            output_chunks: 1,
            scratch_chunks: n,
            memory_channels: peers(rank, n),
            blocks: vec![block(ops)],
            ..RankPlan::default()
        }
    };
    let settings = Settings { double_scratch, ..packets() };
    plan("one-shot", Kind::AllReduce, false, settings, (0..n).map(rank).collect())
}

/// In place: rank r reads chunk r of all others, reduces and writes it to all.
pub(super) fn two_shot(n: u32) -> Plan {
    let rank = |rank: u32| {
        let mine = local(INPUT, rank);
        let theirs = peers(rank, n).into_iter().map(|peer| Operand::remote(peer, INPUT, rank));
        let all: Vec<Operand> = std::iter::once(mine).chain(theirs).collect();
        let mut ops = Vec::new();
        ops.extend(signals(n - 1, true));
        ops.extend(waits(n - 1));
        ops.extend([Op::Sync, moved(&all, &all, 1), Op::Sync]);
        ops.extend(signals(n - 1, false));
        ops.extend(waits(n - 1));
        ops.push(Op::Sync);
        RankPlan {
            input_chunks: n,
            output_chunks: n,
            memory_channels: peers(rank, n),
            blocks: vec![block(ops)],
            ..RankPlan::default()
        }
    };
    plan("two-shot", Kind::AllReduce, true, Settings::default(), (0..n).map(rank).collect())
}

/// Two ranks, two blocks: packets there, the reduction of each chunk back as packets.
pub(super) fn packet_two_shot() -> Plan {
    let rank = |rank: u32| {
        let peer = 1 - rank;
        let remote = |first| Operand::remote(peer, SCRATCH, first).packets();
        let reduced = |chunk| {
            let sources = [local(INPUT, 2 * rank + chunk), local(SCRATCH, chunk).packets()];
            moved(&sources, &[local(INPUT, 2 * rank + chunk), remote(2 + chunk)], 1)
        };
        let first = block(vec![moved(&[local(INPUT, 2 * peer)], &[remote(0)], 2), reduced(0)]);
        let second =
            block(vec![reduced(1), moved(&[local(SCRATCH, 2).packets()], &[local(INPUT, 2 * peer)], 2)]);
        RankPlan {
            input_chunks: 4,
            output_chunks: 4,
            scratch_chunks: 4,
            memory_channels: vec![peer],
            blocks: vec![first, second],
            ..RankPlan::default()
        }
    };
    plan("packet two-shot", Kind::AllReduce, true, packets(), (0..2).map(rank).collect())
}

/// A broadcast along a line of three ranks: the second forwards packets and keeps a copy of them.
fn forwarded() -> Plan {
    let scratch = |rank| Operand::remote(rank, SCRATCH, 0).packets();
    let came = local(SCRATCH, 0).packets();
    let rank = |memory_channels: Vec<u32>, ops: Vec<Op>| RankPlan {
        input_chunks: 2,
        output_chunks: 2,
        scratch_chunks: 2,
        memory_channels,
        blocks: vec![block(ops)],
        ..RankPlan::default()
    };
    let input = local(INPUT, 0);
    let credit = |index, wait: bool| {
        let channel = memory(index);
        if wait { Op::Wait { channel } } else { Op::Signal { channel, relaxed: false } }
    };
    // Data goes one way only, so the receivers give a credit before the next call may write.
    let ranks = vec![
        rank(
            vec![1],
            vec![
                moved(&[input], &[scratch(1)], 2),
                moved(&[input], &[local(OUTPUT, 0)], 2),
                credit(0, true),
                Op::Sync,
            ],
        ),
        rank(
            vec![0, 2],
            vec![
                moved(&[came], &[scratch(2)], 2),
                moved(&[came], &[local(OUTPUT, 0)], 2),
                Op::Sync,
                credit(0, false),
                credit(1, true),
                Op::Sync,
            ],
        ),
        rank(vec![1], vec![moved(&[came], &[local(OUTPUT, 0)], 2), Op::Sync, credit(0, false)]),
    ];
    plan("forwarded", Kind::Broadcast { root: 0 }, false, packets(), ranks)
}

/// In place: two blocks share each put, between barriers.
fn grouped_all_gather() -> Plan {
    let rank = |rank: u32| {
        let peer = 1 - rank;
        let meet = || Op::Barrier(Barrier { id: 0, blocks: 2 });
        let put = |member| {
            let share = Some(Share { member, of: 2 });
            let (sources, targets) = (vec![local(OUTPUT, rank)], vec![Operand::remote(peer, OUTPUT, rank)]);
            Op::Move(Box::new(Move { sources, targets, count: 1, reduction: None, share }))
        };
        let mut first: Vec<Op> = signals(1, true).chain(waits(1)).collect();
        first.extend([meet(), put(0), meet()]);
        first.extend(signals(1, false).chain(waits(1)));
        first.push(Op::Sync);
        RankPlan {
            input_chunks: 1,
            output_chunks: 2,
            memory_channels: vec![peer],
            blocks: vec![block(first), block(vec![meet(), put(1), meet()])],
            ..RankPlan::default()
        }
    };
    plan("grouped", Kind::AllGather, true, Settings::default(), (0..2).map(rank).collect())
}

/// One block puts slices into the peer's scratch, another copies them out, two loops that a semaphore joins.
fn pipelined_all_to_all() -> Plan {
    let rank = |rank: u32| {
        let peer = 1 - rank;
        let looped = |ops: Vec<Op>| Op::Loop(Box::new(Loop { unit: 256, chunks: 1, body: block(ops).ops }));
        let (there, back) = (memory(0), memory(1));
        let put = looped(vec![
            moved(&[local(INPUT, peer)], &[Operand::remote(peer, SCRATCH, 0)], 1),
            Op::Sync,
            Op::Signal { channel: there, relaxed: false },
            Op::Release { semaphore: 0 },
        ]);
        let copy = looped(vec![
            Op::Acquire { semaphore: 0 },
            Op::Wait { channel: there },
            Op::Sync,
            moved(&[local(SCRATCH, 0)], &[local(OUTPUT, peer)], 1),
        ]);
        let mine = moved(&[local(INPUT, rank)], &[local(OUTPUT, rank)], 1);
        let first = vec![
            Op::Signal { channel: back, relaxed: true },
            Op::Wait { channel: back },
            Op::Sync,
            put,
            mine,
        ];
        RankPlan {
            input_chunks: 2,
            output_chunks: 2,
            scratch_chunks: 1,
            memory_channels: vec![peer, peer],
            semaphores: vec![0],
            blocks: vec![block(first), block(vec![copy])],
            ..RankPlan::default()
        }
    };
    plan("pipelined", Kind::AllToAll, false, Settings::default(), (0..2).map(rank).collect())
}

/// In place: the switch reduces chunk r for rank r and broadcasts the result.
fn switch_all_reduce() -> Plan {
    let rank = |rank: u32| {
        let chunk = vec![Operand::switch(0, rank)];
        let sources = chunk.clone();
        let reduction = Some(Reduction::Sum);
        let through = Op::Move(Box::new(Move { sources, targets: chunk, count: 1, reduction, share: None }));
        let mut ops: Vec<Op> = signals(1, true).chain(waits(1)).collect();
        ops.extend([Op::Sync, through, Op::Sync]);
        ops.extend(signals(1, false).chain(waits(1)));
        ops.push(Op::Sync);
        RankPlan {
            input_chunks: 2,
            output_chunks: 2,
            memory_channels: vec![1 - rank],
            switches: vec![Switch { buffer: INPUT, ranks: vec![0, 1] }],
            blocks: vec![block(ops)],
            ..RankPlan::default()
        }
    };
    plan("switch", Kind::AllReduce, true, Settings::default(), (0..2).map(rank).collect())
}

/// Through proxies: a put with signal and flush, and a put with a signal and a flush behind it.
pub(super) fn port_all_gather() -> Plan {
    let rank = |rank: u32| {
        let peer = 1 - rank;
        let port = Channel { kind: ChannelKind::Port, index: 0 };
        let put = |chunk: u32, together: bool| {
            let (source, target) = ((OUTPUT, 2 * rank + chunk), (OUTPUT, 2 * rank + chunk));
            let (signal, flush) = (together, together);
            let form = Form::Plain;
            Op::Port(Box::new(PortPut {
                channel: 0,
                source,
                target,
                count: 1,
                form,
                forward: false,
                signal,
                flush,
            }))
        };
        let (signal, wait) = (Op::Signal { channel: port, relaxed: false }, Op::Wait { channel: port });
        let ops = vec![
            signal.clone(),
            wait.clone(),
            Op::Sync,
            put(0, true),
            put(1, false),
            signal,
            Op::Flush { channel: 0 },
            wait.clone(),
            wait,
            Op::Sync,
        ];
        RankPlan {
            input_chunks: 2,
            output_chunks: 4,
            port_channels: vec![peer],
            blocks: vec![block(ops)],
            ..RankPlan::default()
        }
    };
    plan("port", Kind::AllGather, true, Settings::default(), (0..2).map(rank).collect())
}

/// Packets through proxies: made in scratch, put to the peer, and put back from there.
pub(super) fn port_packets() -> Plan {
    let rank = |rank: u32| {
        let peer = 1 - rank;
        let put = |source, target, forward| {
            let (source, target) = ((SCRATCH, source), (SCRATCH, target));
            let (signal, flush, form) = (false, false, Form::Packets);
            Op::Port(Box::new(PortPut { channel: 0, source, target, count: 1, form, forward, signal, flush }))
        };
        let ops = vec![
            moved(&[local(INPUT, 0)], &[local(SCRATCH, 0).packets()], 1),
            Op::Sync,
            put(0, 1, false),
            put(1, 2, true),
            // The packets that went there and back are this rank's own again.
            moved(&[local(SCRATCH, 1).packets()], &[local(OUTPUT, peer)], 1),
            moved(&[local(SCRATCH, 2).packets()], &[local(OUTPUT, rank)], 1),
            Op::Flush { channel: 0 },
            Op::Sync,
        ];
        RankPlan {
            input_chunks: 1,
            output_chunks: 2,
            scratch_chunks: 3,
            port_channels: vec![peer],
            blocks: vec![block(ops)],
            ..RankPlan::default()
        }
    };
    plan("port packets", Kind::AllGather, false, packets(), (0..2).map(rank).collect())
}

/// Rank r gets the peer's part into scratch and reduces there; the two sums of locals and remotes.
fn reading_reduce_scatter() -> Plan {
    let rank = |rank: u32| {
        let peer = 1 - rank;
        let part = 2 * rank;
        let mut ops: Vec<Op> = signals(1, true).chain(waits(1)).collect();
        ops.push(Op::Sync);
        ops.push(moved(&[Operand::remote(peer, INPUT, part)], &[local(SCRATCH, 0)], 1));
        ops.push(moved(
            &[local(INPUT, part + 1), Operand::remote(peer, INPUT, part + 1)],
            &[local(OUTPUT, 1)],
            1,
        ));
        ops.push(Op::Sync);
        ops.push(moved(&[local(INPUT, part), local(SCRATCH, 0)], &[local(OUTPUT, 0)], 1));
        ops.extend(signals(1, false).chain(waits(1)));
        ops.push(Op::Sync);
        RankPlan {
            input_chunks: 4,
            output_chunks: 2,
            scratch_chunks: 1,
            memory_channels: vec![peer],
            blocks: vec![block(ops)],
            ..RankPlan::default()
        }
    };
    plan("reading", Kind::ReduceScatter, false, Settings::default(), (0..2).map(rank).collect())
}

/// Every rank broadcasts its input as packets through a switch.
fn switch_packets() -> Plan {
    let rank = |rank: u32| {
        let ops = vec![
            moved(&[local(INPUT, 0)], &[Operand::switch(0, rank).packets()], 1),
            moved(&[local(SCRATCH, 0).packets()], &[local(OUTPUT, 0)], 2),
        ];
        RankPlan {
            input_chunks: 1,
            output_chunks: 2,
            scratch_chunks: 2,
            switches: vec![Switch { buffer: SCRATCH, ranks: vec![0, 1] }],
            blocks: vec![block(ops)],
            ..RankPlan::default()
        }
    };
    plan("switch packets", Kind::AllGather, false, packets(), (0..2).map(rank).collect())
}

/// All operations of a rank's block.
pub(super) fn ops(plan: &mut Plan, rank: usize, block: usize) -> &mut Vec<Operation> {
    &mut plan.ranks[rank].blocks[block].ops
}

/// Changes the n-th move of a block.
pub(super) fn change(plan: &mut Plan, rank: usize, block: usize, nth: usize, change: impl FnOnce(&mut Move)) {
    let moves = ops(plan, rank, block).iter_mut().filter_map(|operation| match &mut operation.op {
        Op::Move(moved) => Some(moved),
        _ => None,
    });
    if let Some(moved) = { moves }.nth(nth) {
        change(moved);
    }
}

/// A plan of one block for each rank as one of so many, which share each of its moves; the first alone signals and waits.
pub(super) fn shared_by(blocks: u32, mut plan: Plan) -> Plan {
    for rank in &mut plan.ranks {
        let member = |member| {
            let mut block = rank.blocks[0].clone();
            block.ops.retain(|operation| member == 0 || matches!(operation.op, Op::Move(_) | Op::Sync));
            for operation in &mut block.ops {
                if let Op::Move(moved) = &mut operation.op {
                    moved.share = Some(Share { member, of: blocks });
                }
            }
            block
        };
        rank.blocks = (0..blocks).map(member).collect();
    }
    plan
}
