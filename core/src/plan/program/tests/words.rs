//! Every operation is the one that MSCCL++ calls so in its files.

use super::super::{BufferType, CollectiveProgram, Pattern, Reduction, SyncType, ThreadBlockGroup};
use super::ops;
use crate::plan::file::write;
use crate::plan::{Op, Share};

/// Names, kinds of channel and reductions of all operations of rank 0's only block.
fn words(calls: impl FnOnce(&CollectiveProgram)) -> Vec<String> {
    let program = CollectiveProgram::new("words", Pattern::custom("words", 2, 4, 4));
    calls(&program);
    let text = write(&program.build().unwrap()).unwrap();
    let ops = text.split("\"ops\":[").nth(1).unwrap();
    let after = |text: &str, key: &str| {
        let value = text.split(&format!("\"{key}\":\"")).nth(1)?;
        Some(value.split('"').next().unwrap().to_owned())
    };
    let each = ops.split("{\"name\":").skip(1).map(|op| format!("\"name\":{op}"));
    let word = |op: String| {
        let op = op.split("\"id\":").next().unwrap();
        let rest = ["channel_type", "reduce_op"].map(|key| after(op, key).map(|value| format!(" {value}")));
        format!("{}{}", after(op, "name").unwrap(), rest.into_iter().flatten().collect::<String>())
    };
    each.map(word).collect()
}

#[test]
fn local_operations() {
    let words = words(|program| {
        let rank = program.rank(0);
        let (input, output, scratch) = (rank.input(), rank.output(), rank.scratch(4));
        let semaphore = rank.semaphore(0);
        rank.copy(output.chunk(0), input.chunk(0), 0);
        rank.copy_packets(scratch.chunk(0), input.chunk(0), 0);
        rank.unpack_packets(output.chunk(1), scratch.chunk(0), 0);
        rank.reduce(output.chunk(0), input.chunk(1), Reduction::Sum, 0);
        rank.reduce(output.chunk(0), [input.chunk(1), input.chunk(2)], Reduction::Min, 0);
        rank.reduce_to(output.chunk(2), input.chunk(0), input.chunk(1), Reduction::Max, 0);
        rank.reduce_packets(output.chunk(3), scratch.chunk(0), Reduction::Prod, 0);
        rank.reduce_packets_to(output.chunk(3), input.chunk(3), scratch.chunk(0), Reduction::Avg, 0);
        rank.barrier([0]);
        semaphore.release(0, SyncType::None);
        semaphore.acquire(0, SyncType::None);
    });
    let expected = [
        "copy",
        "cpkt",
        "upkt",
        "re sum",
        "re min",
        "re max",
        "repkt prod",
        "repkt avg",
        "nop",
        "sem_release",
        "sem_acquire",
    ];
    assert_eq!(words, expected);
}

#[test]
fn operations_of_memory_channels() {
    let words = words(|program| {
        let (rank, peer) = (program.rank(0), program.rank(1));
        let (here, there) = (rank.scratch(4), peer.scratch(4));
        let channel = rank.memory_channel(1);
        peer.memory_channel(0);
        channel.signal(0, SyncType::None);
        channel.wait(0, SyncType::None);
        channel.relaxed_signal(0, SyncType::None);
        channel.put(there.chunk(0), here.chunk(0), 0);
        channel.get(here.chunk(0), there.chunk(0), 0);
        channel.put_packets(there.chunk(0), here.chunk(0), 0);
        channel.read_put_packets(there.chunk(0), here.chunk(0), 0);
        channel.reduce(here.chunk(0), there.chunk(0), Reduction::Sum, 0);
        channel.reduce_to(here.chunk(0), here.chunk(1), there.chunk(0), Reduction::Sum, 0);
    });
    let expected = [
        "signal memory",
        "wait memory",
        "rlxsignal memory",
        "put memory",
        "get memory",
        "ppkt memory",
        "rppkt memory",
        "rre memory sum",
        "rre memory sum",
    ];
    assert_eq!(words, expected);
}

#[test]
fn operations_of_port_channels() {
    let words = words(|program| {
        let (rank, peer) = (program.rank(0), program.rank(1));
        let (here, there) = (rank.scratch(1).chunk(0), peer.scratch(1).chunk(0));
        let channel = rank.port_channel(1);
        peer.port_channel(0);
        channel.signal(0, SyncType::None);
        channel.wait(0, SyncType::None);
        channel.relaxed_signal(0, SyncType::None);
        channel.put(there, here, 0);
        channel.put_with_signal(there, here, 0);
        channel.put_with_signal_and_flush(there, here, 0);
        channel.put_packets(there, here, 0);
        channel.read_put_packets(there, here, 0);
        channel.flush(0, SyncType::None);
    });
    let names = ["signal", "wait", "rlxsignal", "put", "pws", "pwsf", "ppkt", "rppkt", "flush"];
    assert_eq!(words, names.map(|name| format!("{name} port")));
}

#[test]
fn operations_of_switch_channels() {
    let words = words(|program| {
        let rank = program.rank(0);
        let mine = rank.input().chunk(0);
        for rank in program.ranks() {
            rank.scratch(4);
        }
        let inputs = program.switch_channel(0..2, BufferType::Input);
        let scratch = program.switch_channel(0..2, BufferType::Scratch);
        inputs.at_rank(0).reduce(mine, 1, Reduction::Sum, 0);
        inputs.at_rank(0).broadcast(1, mine, 0);
        scratch.at_rank(0).broadcast_packets(3, mine, 0);
    });
    assert_eq!(words, ["glre switch sum", "gstore switch", "gstorepkt switch"]);
}

/// A group divides every operation of threads.
#[test]
fn operations_of_groups() {
    let program = CollectiveProgram::new("words", Pattern::custom("words", 2, 4, 4));
    let (rank, peer, group) = (program.rank(0), program.rank(1), ThreadBlockGroup::new([1, 0]));
    let (here, there) = (rank.input().chunk(0), peer.input().chunk(0));
    peer.memory_channel(0);
    rank.copy(here, rank.input().chunk(1), &group);
    rank.memory_channel(1).get(here, there, &group);
    rank.memory_channel(1).reduce(here, there, Reduction::Sum, &group);
    peer.memory_channel(0);
    program.switch_channel(0..2, BufferType::Input).at_rank(0).broadcast(2, here, &group);
    let plan = program.build().unwrap();
    for (block, member) in [(0, 1), (1, 0)] {
        let share = |op: &Op| if let Op::Move(moved) = op { moved.share } else { None };
        let shares: Vec<_> = ops(&plan, 0, block).into_iter().map(share).collect();
        assert_eq!(shares, [Some(Share { member, of: 2 }); 4], "block 0 is the second member");
    }
}
