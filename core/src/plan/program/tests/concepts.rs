//! The examples of MSCCL++'s document of concepts.

use super::super::{
    BufferType, CollectiveProgram, Pattern, Protocol, Reduction, ReplicationPolicy, SyncType,
    ThreadBlockGroup,
};
use super::{diagnosis, ops};
use crate::plan::check::FindingKind;
use crate::plan::programs::{all_reduce::switch_pipelined, judge::right};
use crate::plan::{Barrier, Loop, Move, Op, Operand, Place, Plan, Share};

fn custom(ranks: u32, chunks: u32) -> CollectiveProgram {
    CollectiveProgram::new("example", Pattern::custom("example", ranks, chunks, chunks))
}

fn moves(plan: &Plan, rank: usize, block: usize) -> Vec<&Move> {
    let all = ops(plan, rank, block).into_iter();
    all.filter_map(|op| if let Op::Move(moved) = op { Some(&**moved) } else { None }).collect()
}

fn repeated(op: &Op) -> &Loop {
    match op {
        Op::Loop(repeated) => repeated,
        other => panic!("no loop: {other:?}"),
    }
}

/// The examples that can run, each with the synchronisation that it lacks.
pub(in crate::plan) fn completed() -> Vec<Plan> {
    let put_behind = |reduce: bool, fusion: bool| reduce_or_copy(reduce).fusion(fusion).compile().unwrap();
    vec![
        copy_then_reduce().compile().unwrap(),
        ring(),
        switch_all_reduce(2, true),
        switch_all_reduce(4, true),
        meeting_blocks(),
        put_behind(true, true),
        put_behind(true, false),
        put_behind(false, true),
        put_behind(false, false),
        copied_then_put(true),
        switch_pipelined(2).compile().unwrap(),
        two_instances().compile().unwrap(),
        grouped(),
    ]
}

fn copy_then_reduce() -> CollectiveProgram {
    let program = custom(1, 2);
    let rank = program.rank(0);
    let input_buffer = rank.input();
    let dst_chunk = input_buffer.chunks(0..1);
    let src_chunk = input_buffer.chunks(1..2);
    rank.copy(dst_chunk, src_chunk, 0);
    rank.reduce(dst_chunk, src_chunk, Reduction::Sum, 0);
    program
}

/// "Buffer/Chunk": two operations on chunks of a rank's input.
#[test]
fn buffer_and_chunk() {
    let plan = copy_then_reduce().build().unwrap();
    let [first, second] = moves(&plan, 0, 0)[..] else { panic!("{plan:?}") };
    let (zero, one) = (Operand::local(BufferType::Input, 0), Operand::local(BufferType::Input, 1));
    assert_eq!((&*first.sources, &*first.targets, first.reduction), (&[one][..], &[zero][..], None));
    assert_eq!((&*second.sources, &*second.targets), (&[zero, one][..], &[zero][..]));
    assert_eq!(second.reduction, Some(Reduction::Sum));
    let (kinds, text) = diagnosis(&plan);
    assert_eq!(kinds, [FindingKind::Race], "the second depends on the first: {text}");
    assert!(text.contains("rank 0 block 0 operation 1: input chunk 0 of rank 0"), "{text}");
}

fn ring() -> Plan {
    let nranks = 2;
    let program = custom(nranks, 1);
    for src_rank in 0..nranks {
        let dst_rank = (src_rank + 1) % nranks;
        let channel = program.rank(src_rank).memory_channel(dst_rank);
        channel.signal(0, SyncType::None);
        channel.wait(0, SyncType::After);
    }
    program.build().unwrap()
}

/// "Channel": two ranks in a ring wait for each other.
#[test]
fn ring_of_signals() {
    let plan = ring();
    let [Op::Signal { relaxed: false, .. }, Op::Wait { .. }, Op::Sync] = ops(&plan, 1, 0)[..] else {
        panic!("{plan:?}")
    };
    right(&plan);
}

fn switch_all_reduce(gpu_size: u32, synchronised: bool) -> Plan {
    let program = CollectiveProgram::new("switch", Pattern::all_reduce(gpu_size, 1).in_place());
    let switch_chan = program.switch_channel(0..gpu_size, BufferType::Input);
    let everyone = |rank: u32, relaxed: bool| {
        let channels: Vec<_> =
            program.rank(rank).peers().map(|peer| program.rank(rank).memory_channel(peer)).collect();
        for channel in &channels {
            if relaxed {
                channel.relaxed_signal(0, SyncType::Before)
            } else {
                channel.signal(0, SyncType::Before)
            }
        }
        for channel in &channels {
            channel.wait(0, SyncType::After);
        }
    };
    for gpu in 0..gpu_size {
        let buffer_offset = gpu;
        let rank = program.rank(gpu);
        let input_buffer = rank.input();
        if synchronised {
            everyone(gpu, true);
        }
        let dst_chunk = input_buffer.chunks(gpu..gpu + 1);
        switch_chan.at_rank(gpu).reduce(dst_chunk, buffer_offset, Reduction::Sum, 0);
        if synchronised {
            rank.barrier([0]);
        }
        switch_chan.at_rank(gpu).broadcast(buffer_offset, input_buffer.chunks(gpu..gpu + 1), 0);
        if synchronised {
            everyone(gpu, false);
        }
    }
    program.build().unwrap()
}

/// "For SwitchChannel": as documented, nobody waits for anybody.
#[test]
fn switch_all_reduce_of_two_ranks() {
    let plan = switch_all_reduce(2, false);
    let (kinds, text) = diagnosis(&plan);
    assert!(kinds.contains(&FindingKind::Reuse) && kinds.contains(&FindingKind::Race), "{text}");
    assert!(text.contains("which may not have begun the call"), "{text}");
    right(&switch_all_reduce(2, true));
    right(&switch_all_reduce(4, true));
}

fn meeting_blocks() -> Plan {
    let program = custom(1, 1);
    let rank = program.rank(0);
    rank.barrier([0, 1]);
    let sem = rank.semaphore(1);
    sem.acquire(0, SyncType::After);
    sem.release(0, SyncType::Before);
    rank.barrier([1, 0]);
    rank.barrier([2, 1]);
    rank.barrier([2]);
    program.build().unwrap()
}

/// "Synchronization": a barrier of two blocks, and a semaphore that is free at first.
#[test]
fn barrier_and_semaphore() {
    let plan = meeting_blocks();
    assert_eq!(plan.ranks[0].semaphores, [1]);
    let meet = |id| Op::Barrier(Barrier { id, blocks: 2 });
    let expected =
        [&meet(0), &Op::Acquire { semaphore: 0 }, &Op::Sync, &Op::Release { semaphore: 0 }, &meet(0)];
    assert_eq!(
        ops(&plan, 0, 0),
        expected,
        "both syncs fall together, and the same blocks meet at one barrier"
    );
    assert_eq!(ops(&plan, 0, 1), [&meet(0), &meet(0), &meet(1)]);
    assert_eq!(ops(&plan, 0, 2), [&meet(1)], "a barrier is a sync, too");
    right(&plan);
}

fn reduce_or_copy(reduce: bool) -> CollectiveProgram {
    let program = custom(2, 2);
    let (rank, peer) = (program.rank(0), program.rank(1));
    let (channel, back) = (rank.memory_channel(1), peer.memory_channel(0));
    let (dst_chunk, src_chunk) = (rank.output().chunk(0), rank.input().chunk(1));
    let remote_chunk = peer.output().chunk(0);
    back.relaxed_signal(0, SyncType::None);
    channel.wait(0, SyncType::After);
    rank.copy(dst_chunk, rank.input().chunk(0), 0);
    rank.barrier([0]);
    if reduce {
        rank.reduce(dst_chunk, src_chunk, Reduction::Sum, 0);
    } else {
        rank.copy(dst_chunk, src_chunk, 0);
    }
    channel.put(remote_chunk, dst_chunk, 0);
    channel.signal(0, SyncType::Before);
    back.wait(0, SyncType::After);
    program
}

/// "Operation Fusion" and "Data dependencies analysis": a put of what was just reduced or copied.
#[test]
fn reduce_or_copy_then_put() {
    for reduce in [true, false] {
        let (kinds, text) = diagnosis(&reduce_or_copy(reduce).build().unwrap());
        assert_eq!(kinds, [FindingKind::Race], "{text}");
        assert!(text.contains("rank 0 block 0 operation 4: output chunk 0 of rank 0: reads while rank 0 block 0 operation 3 writes; put a sync"), "{text}");
        let fused = reduce_or_copy(reduce).compile().unwrap();
        right(&fused);
        let last = moves(&fused, 0, 0).pop().unwrap();
        let output = Operand::local(BufferType::Output, 0);
        assert_eq!(last.targets, [output, Operand::remote(1, BufferType::Output, 0)]);
        let separate = reduce_or_copy(reduce).fusion(false).compile().unwrap();
        right(&separate);
        let all = ops(&separate, 0, 0);
        let (put, before) = (all.len() - 3, all.len() - 4);
        assert_eq!(all[before], &Op::Sync, "{all:?}");
        assert!(matches!(all[put], Op::Move(put) if put.sources == [output]), "{all:?}");
        let unchanged = reduce_or_copy(reduce).auto_sync(false).compile().unwrap();
        assert_eq!(unchanged, reduce_or_copy(reduce).build().unwrap());
    }
}

fn copied_then_put(synchronised: bool) -> Plan {
    let program = custom(2, 1);
    let (first, second) = (program.rank(0), program.rank(1));
    let (channel, back) = (first.memory_channel(1), second.memory_channel(0));
    let sem = first.semaphore(0);
    let dst_chunk = first.scratch(1).chunk(0);
    let (src_chunk, other_peer_chunk) = (first.input().chunk(0), second.output().chunk(0));
    if synchronised {
        back.relaxed_signal(0, SyncType::None);
        channel.wait(1, SyncType::After);
    }
    let (before, after) =
        if synchronised { (SyncType::Before, SyncType::After) } else { (SyncType::None, SyncType::None) };
    program.loop_of(1 << 20, 1, || {
        first.copy(dst_chunk, src_chunk, 0);
        sem.release(0, before);
        sem.acquire(1, after);
        channel.put(other_peer_chunk, dst_chunk, 1);
    });
    if synchronised {
        channel.signal(1, SyncType::Before);
        back.wait(0, SyncType::After);
    } else {
        back.wait(0, SyncType::None);
        channel.signal(1, SyncType::None);
    }
    program.build().unwrap()
}

/// "Pipeline Loop": a block copies to scratch, another one puts from there.
#[test]
fn pipelined_loop() {
    let plan = copied_then_put(false);
    let copied = repeated(ops(&plan, 0, 0)[0]);
    assert_eq!((copied.unit, copied.chunks, copied.body.len()), (1 << 20, 1, 2));
    assert_eq!(copied.body.iter().map(|operation| operation.origin).collect::<Vec<_>>(), [0, 1]);
    let (kinds, text) = diagnosis(&plan);
    assert!(kinds.contains(&FindingKind::Race), "{text}");
    assert!(text.contains("rank 0 block 1 operation 0 (operation 1 of its loop): scratch chunk 0"), "{text}");
    right(&copied_then_put(true));
}

/// "Pipeline Loop": three blocks copy in, reduce through the switch, and copy out. As documented, nothing orders the broadcast
/// after the reduction, which is left to the passes.
#[test]
fn pipelined_all_reduce() {
    let (kinds, text) = diagnosis(&switch_pipelined(2).build().unwrap());
    assert_eq!(kinds, [FindingKind::Race], "{text}");
    let reads = "operation 0 (operation 2 of its loop): scratch chunk 1 of rank 1: reads while \
                 rank 1 block 1 operation 0 (operation 1 of its loop) writes; put a sync";
    assert!(text.contains(reads), "the broadcast depends on the reduction: {text}");
    right(&switch_pipelined(2).compile().unwrap());
}

#[test]
fn settings() {
    let program = CollectiveProgram::new("allreduce_2x", Pattern::all_reduce(8, 1)).instances(2);
    let program = program
        .protocol(Protocol::Ll)
        .replication(ReplicationPolicy::None)
        .auto_sync(false)
        .fusion(false)
        .threads_per_block(512)
        .double_scratch(true)
        .reuse_resources(true)
        .alignment(128)
        .message_bytes(1024, 1 << 40);
    let plan = program.build().unwrap();
    assert_eq!(
        (&*plan.name, plan.collective.kind.name(), plan.ranks.len()),
        ("allreduce_2x", "allreduce", 8)
    );
    assert_eq!((plan.ranks[7].input_chunks, plan.ranks[7].output_chunks), (8, 8));
    let settings = plan.settings;
    assert_eq!((settings.protocol, settings.threads_per_block), (Protocol::Ll, 512));
    assert_eq!((settings.double_scratch, settings.reuse_resources, settings.alignment), (true, true, 128));
    assert_eq!((settings.min_bytes, settings.max_bytes), (1024, 1 << 40));
}

/// Packets from everyone to everyone, in two instances: the document gives no operations.
fn two_instances() -> CollectiveProgram {
    let (nranks, name) = (8, "allreduce_2x");
    let program = CollectiveProgram::new(name, Pattern::all_reduce(nranks, 1)).instances(2);
    let program = program.protocol(Protocol::Ll).double_scratch(true);
    let scratch: Vec<_> = program.ranks().map(|rank| rank.scratch(nranks * nranks)).collect();
    let from = |rank: u32, peer: u32| scratch[rank as usize].chunks(nranks * peer..nranks * (peer + 1));
    for rank in program.ranks() {
        let input = rank.input().chunks(..);
        for peer in rank.peers() {
            rank.memory_channel(peer).put_packets(from(peer, rank.index()), input, 0);
        }
        let come = rank.peers().map(|peer| from(rank.index(), peer));
        rank.reduce_packets_to(rank.output().chunks(..), input, come, Reduction::Sum, 0);
    }
    program
}

/// "Adjust the number of instances".
#[test]
fn instances() {
    let plan = two_instances().compile().unwrap();
    assert_eq!((&*plan.name, plan.ranks.len()), ("allreduce_2x", 8));
    assert!(plan.ranks.iter().all(|rank| rank.blocks.len() == 2 && rank.input_chunks == 16));
    right(&plan);
}

fn grouped() -> Plan {
    let program = CollectiveProgram::new("group", Pattern::all_reduce(1, 1));
    let rank = program.rank(0);
    let tbg = ThreadBlockGroup::new([0, 1, 2, 3]);
    rank.copy(rank.output().chunks(0..1), rank.input().chunks(0..1), &tbg);
    program.build().unwrap()
}

/// "Thread Block Group": four blocks copy a quarter each.
#[test]
fn group_copy() {
    let plan = grouped();
    for block in 0..4 {
        let [moved] = moves(&plan, 0, block)[..] else { panic!("{plan:?}") };
        let member = u32::try_from(block).unwrap();
        assert_eq!(moved.share, Some(Share { member, of: 4 }));
        assert_eq!(moved.targets[0].place, Place::Local(BufferType::Output));
    }
    right(&plan);
}
