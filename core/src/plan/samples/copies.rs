//! Plans with blocks that copy engines run.

use super::{
    Block, INPUT, Kind, OUTPUT, Op, Operand, Plan, RankPlan, SCRATCH, Settings, block, local, memory, moved,
    peers, plan,
};

fn by_copy_engine(ops: Vec<Op>) -> Block {
    Block { copy_engine: true, ..block(ops) }
}

/// Signals through channels `first..first + count`, and waits for as many.
fn meet(first: u32, count: u32) -> impl Iterator<Item = Op> {
    let channels = first..first + count;
    let signals = channels.clone().map(|index| Op::Signal { channel: memory(index), relaxed: false });
    signals.chain(channels.map(|index| Op::Wait { channel: memory(index) }))
}

/// Every rank copies its input into all outputs: no thread touches data.
pub(in crate::plan) fn all_gather(n: u32) -> Plan {
    let rank = |rank: u32| {
        let mut ops: Vec<Op> = meet(0, n - 1).chain([Op::Sync]).collect();
        ops.push(moved(&[local(INPUT, 0)], &[local(OUTPUT, rank)], 1));
        let there = |peer| moved(&[local(INPUT, 0)], &[Operand::remote(peer, OUTPUT, rank)], 1);
        ops.extend(peers(rank, n).into_iter().map(there));
        ops.push(Op::Sync);
        ops.extend(meet(0, n - 1).chain([Op::Sync]));
        RankPlan {
            input_chunks: 1,
            output_chunks: n,
            memory_channels: peers(rank, n),
            blocks: vec![by_copy_engine(ops)],
            ..RankPlan::default()
        }
    };
    plan("copied all-gather", Kind::AllGather, false, Settings::default(), (0..n).map(rank).collect())
}

/// Copy engines push each chunk to the scratch of the rank that reduces it, threads reduce, and copy engines push the result to all.
pub(in crate::plan) fn all_reduce(n: u32) -> Plan {
    let rank = |rank: u32| {
        let all = peers(rank, n);
        let begin = n - 1..2 * (n - 1);
        let mut pushes: Vec<Op> =
            begin.clone().map(|index| Op::Signal { channel: memory(index), relaxed: false }).collect();
        let part = |&peer: &u32| moved(&[local(INPUT, peer)], &[Operand::remote(peer, SCRATCH, rank)], 1);
        pushes.extend(all.iter().map(part));
        pushes.push(Op::Sync);
        pushes.extend((0..n - 1).map(|index| Op::Signal { channel: memory(index), relaxed: false }));
        // The last call's end has told that the scratch is free; only the outputs are the peers' own until they begin.
        pushes.extend(begin.map(|index| Op::Wait { channel: memory(index) }));
        pushes.extend([Op::Acquire { semaphore: 0 }, Op::Sync]);
        let result = |&peer: &u32| moved(&[local(OUTPUT, rank)], &[Operand::remote(peer, OUTPUT, rank)], 1);
        pushes.extend(all.iter().map(result));
        pushes.push(Op::Sync);
        pushes.extend(meet(n - 1, n - 1).chain([Op::Sync]));
        let waits = (0..n - 1).map(|index| Op::Wait { channel: memory(index) });
        let mut reduces: Vec<Op> = waits.chain([Op::Sync]).collect();
        let came = all.iter().map(|&peer| local(SCRATCH, peer));
        let sources: Vec<Operand> = std::iter::once(local(INPUT, rank)).chain(came).collect();
        reduces.extend([moved(&sources, &[local(OUTPUT, rank)], 1), Op::Sync, Op::Release { semaphore: 0 }]);
        RankPlan {
            input_chunks: n,
            output_chunks: n,
            scratch_chunks: n,
            memory_channels: [all.clone(), all].concat(),
            semaphores: vec![0],
            blocks: vec![block(reduces), by_copy_engine(pushes)],
            ..RankPlan::default()
        }
    };
    plan("pushed all-reduce", Kind::AllReduce, false, Settings::default(), (0..n).map(rank).collect())
}
