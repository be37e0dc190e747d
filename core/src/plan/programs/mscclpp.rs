//! The programs that MSCCL++'s own plans came from, written here, compile to those plans. Syncs are placed anew in both, and
//! what MSCCL++ declares and does not use is given up.

use super::super::Plan;
use super::super::file::read;
use super::super::pass::{self, Options};
use super::super::program::{
    CollectiveProgram, MemoryChannel, Pattern, Protocol, Rank, Reduction, SyncType, ThreadBlockGroup,
};
use super::{all_gather, all_reduce, all_to_all};

/// A program of MSCCL++'s tests of one operation.
fn unit(ranks: u32, (input, output): (u32, u32), calls: impl Fn(&CollectiveProgram)) -> CollectiveProgram {
    let program = CollectiveProgram::new("unit", Pattern::custom("test", ranks, input, output));
    calls(&program);
    program
}

/// The same of two ranks, with what both do through a memory channel.
fn pair(chunks: (u32, u32), calls: impl Fn(Rank<'_>, Rank<'_>, MemoryChannel<'_>)) -> CollectiveProgram {
    unit(2, chunks, |program| {
        for rank in program.ranks() {
            let peer = program.rank(1 - rank.index());
            calls(rank, peer, rank.memory_channel(peer.index()));
        }
    })
}

/// As MSCCL++ frames an operation on a peer: both have begun, and both are done.
fn framed(channel: MemoryChannel<'_>, calls: impl FnOnce()) {
    channel.relaxed_signal(0, SyncType::Both);
    channel.wait(0, SyncType::Both);
    calls();
    channel.signal(0, SyncType::Before);
    channel.wait(0, SyncType::After);
}

fn packets(program: CollectiveProgram) -> CollectiveProgram {
    program.protocol(Protocol::Ll)
}

/// Each of MSCCL++'s plans that is a program of ours, too.
fn twins() -> Vec<(&'static str, CollectiveProgram)> {
    let sum = Reduction::Sum;
    vec![
        ("allgather_pkt.2", all_gather::packets(2)),
        ("allgather_pkt.4", all_gather::packets(4)),
        ("allgather_tbg.fixed", all_gather::grouped(2, 4)),
        ("allreduce.2", all_reduce::two_shot(2, 8)),
        ("allreduce.4", all_reduce::two_shot(4, 8)),
        ("exec_allreduce", all_reduce::two_shot(2, 8)),
        ("allreduce_pkt.2", all_reduce::two_shot_packets(2)),
        ("exec_allreduce_packet", all_reduce::two_shot_packets(2)),
        ("alltoall.2", all_to_all::direct(2, 2)),
        ("alltoall.4", all_to_all::direct(4, 2)),
        ("alltoall_pipeline.2", all_to_all::pipelined(2, 2)),
        ("allreduce_pipeline.fixed", all_reduce::switch_pipelined(2)),
        ("unit_barrier_test", unit(1, (0, 0), |program| program.rank(0).barrier([0, 1]))),
        (
            "unit_semaphore",
            unit(1, (0, 0), |program| {
                let semaphore = program.rank(0).semaphore(0);
                semaphore.acquire(0, SyncType::After);
                semaphore.release(1, SyncType::Before);
            }),
        ),
        (
            "unit_copy_test",
            unit(1, (1, 1), |program| {
                let rank = program.rank(0);
                rank.copy(rank.output().chunk(0), rank.input().chunk(0), 0);
            }),
        ),
        (
            "unit_tbg_copy_test",
            unit(1, (1, 1), |program| {
                let rank = program.rank(0);
                let group = ThreadBlockGroup::new(0..4);
                rank.copy(rank.output().chunk(0), rank.input().chunk(0), &group);
            }),
        ),
        (
            "unit_pipeline_test",
            unit(1, (1, 1), |program| {
                let rank = program.rank(0);
                program.loop_of(1 << 20, 1, || rank.copy(rank.output().chunk(0), rank.input().chunk(0), 0));
            }),
        ),
        (
            "unit_copy_packet_test",
            packets(unit(1, (1, 1), |program| {
                let rank = program.rank(0);
                rank.copy_packets(rank.scratch(1).chunk(0), rank.input().chunk(0), 0);
            })),
        ),
        (
            "unit_unpack_packet_test",
            packets(unit(1, (1, 1), |program| {
                let rank = program.rank(0);
                let scratch = rank.scratch(1).chunk(0);
                rank.copy_packets(scratch, rank.input().chunk(0), 0);
                rank.unpack_packets(rank.output().chunk(0), scratch, 0);
            })),
        ),
        (
            "unit_reduce_test",
            unit(1, (2, 1), |program| {
                let rank = program.rank(0);
                let input = rank.input();
                rank.reduce_to(rank.output().chunk(0), input.chunk(0), input.chunk(1), sum, 0);
            }),
        ),
        (
            "unit_reduce_packets_test",
            packets(unit(1, (0, 0), |program| {
                let rank = program.rank(0);
                let scratch = rank.scratch(3);
                rank.reduce_packets_to(scratch.chunk(2), scratch.chunk(0), scratch.chunk(1), sum, 0);
            })),
        ),
        (
            "unit_signal_wait_test",
            pair((0, 0), |_, _, channel| {
                channel.signal(0, SyncType::Before);
                channel.wait(0, SyncType::After);
            }),
        ),
        (
            "unit_get_test",
            pair((2, 0), |rank, peer, channel| {
                framed(channel, || channel.get(rank.input().chunk(0), peer.input().chunk(1), 0));
            }),
        ),
        (
            "unit_put_test",
            pair((2, 0), |rank, peer, channel| {
                framed(channel, || channel.put(peer.input().chunk(1), rank.input().chunk(0), 0));
            }),
        ),
        (
            "unit_read_reduce_test",
            pair((2, 2), |rank, peer, channel| {
                let (dst, src) = (rank.output().chunk(0), rank.input().chunk(0));
                framed(channel, || channel.reduce_to(dst, src, peer.input().chunk(1), sum, 0));
            }),
        ),
        (
            "unit_reduce_send_test",
            pair((2, 2), |rank, peer, channel| {
                let (dst, src) = (rank.output().chunk(0), rank.input().chunk(0));
                framed(channel, || {
                    rank.reduce_to(dst, src, rank.input().chunk(1), sum, 0);
                    channel.put(peer.output().chunk(1), dst, 0);
                });
            }),
        ),
        (
            "unit_put_with_signal_test",
            unit(2, (2, 0), |program| {
                for rank in program.ranks() {
                    let peer = program.rank(1 - rank.index());
                    let channel = rank.port_channel(peer.index());
                    channel.signal(0, SyncType::Both);
                    channel.wait(0, SyncType::Both);
                    channel.put_with_signal(peer.input().chunk(1), rank.input().chunk(0), 0);
                    channel.wait(0, SyncType::After);
                    // Where the file has no word, the reader has this one.
                    channel.flush(0, SyncType::None);
                }
            }),
        ),
        (
            "unit_put_packet_test",
            packets(unit(2, (1, 0), |program| {
                let scratch: Vec<_> = program.ranks().map(|rank| rank.scratch(1).chunk(0)).collect();
                for rank in program.ranks() {
                    let channel = rank.memory_channel(1 - rank.index());
                    channel.put_packets(scratch[channel.peer() as usize], rank.input().chunk(0), 0);
                }
            })),
        ),
        (
            "unit_read_put_packet_test",
            packets(unit(2, (0, 0), |program| {
                let scratch: Vec<_> = program.ranks().map(|rank| rank.scratch(2)).collect();
                for rank in program.ranks() {
                    let channel = rank.memory_channel(1 - rank.index());
                    let (here, there) = (scratch[rank.index() as usize], scratch[channel.peer() as usize]);
                    channel.read_put_packets(there.chunk(1), here.chunk(0), 0);
                }
            })),
        ),
    ]
}

/// Of the other files, `unit_flush_test` flushes a channel through which nothing goes.
#[test]
#[ignore = "needs the folder of MSCCL++'s plans in AQUEDUCT_TEST_PLANS"]
fn plans_of_mscclpp_as_programs() {
    let folder = std::env::var("AQUEDUCT_TEST_PLANS").expect("AQUEDUCT_TEST_PLANS names the folder");
    let twins = twins();
    let files =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    for name in files.filter_map(|file| file.strip_suffix(".json").map(str::to_owned)) {
        let known = name == "unit_flush_test" || twins.iter().any(|(twin, _)| *twin == name);
        assert!(known, "no program for {name}");
    }
    for (name, program) in twins {
        let text = std::fs::read_to_string(format!("{folder}/{name}.json")).unwrap();
        let theirs = pass::run(&read(&text).unwrap(), &Options::default(), None).unwrap();
        let ours = program.compile().unwrap();
        assert_eq!(Plan { name: theirs.name.clone(), ..ours }, theirs, "{name}");
    }
}
