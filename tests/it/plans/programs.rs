//! Programs that tests execute: one for each way to move data.

use aqueduct::plan::Plan;
use aqueduct::plan::program::{CollectiveProgram, MemoryChannel, Pattern, Protocol, Reduction, SyncType};

/// All-reduce: every rank sends its input as packets and reduces what comes.
pub(super) fn packets(ranks: u32) -> Plan {
    one_shot("packets", Protocol::Ll, ranks)
}

/// The same with LL128 packets.
pub(super) fn lines(ranks: u32) -> Plan {
    one_shot("lines", Protocol::Ll128, ranks)
}

fn one_shot(name: &str, protocol: Protocol, ranks: u32) -> Plan {
    let program = CollectiveProgram::new(name, Pattern::all_reduce(ranks, 1))
        .protocol(protocol)
        .threads_per_block(128)
        .instances(2)
        .double_scratch(true);
    let scratch: Vec<_> = program.ranks().map(|rank| rank.scratch(ranks * ranks)).collect();
    let part = |at: u32, from: u32| scratch[at as usize].chunks(from * ranks..(from + 1) * ranks);
    for rank in program.ranks() {
        let input = rank.input().chunks(..);
        for peer in rank.peers() {
            rank.memory_channel(peer).put_packets(part(peer, rank.index()), input, 0);
        }
        let come = rank.peers().map(|peer| part(rank.index(), peer));
        rank.reduce_packets_to(rank.output().chunks(..), input, come, Reduction::Sum, 0);
    }
    program.compile().unwrap()
}

/// All-reduce in place: each rank reads its chunk of all others' buffers, reduces, and writes the result there.
pub(super) fn zero_copy(ranks: u32) -> Plan {
    let program = CollectiveProgram::new("zero-copy", Pattern::all_reduce(ranks, 1).in_place())
        .threads_per_block(128)
        .instances(3);
    for rank in program.ranks() {
        let mine = rank.input().chunk(rank.index());
        let channels: Vec<_> = rank.peers().map(|peer| rank.memory_channel(peer)).collect();
        let theirs = |channel: &MemoryChannel<'_>| program.rank(channel.peer()).input().chunk(rank.index());
        channels.iter().for_each(|channel| channel.relaxed_signal(0, SyncType::None));
        channels.iter().for_each(|channel| channel.wait(0, SyncType::After));
        channels.iter().for_each(|channel| channel.reduce(mine, theirs(channel), Reduction::Sum, 0));
        channels.iter().for_each(|channel| channel.put(theirs(channel), mine, 0));
        channels.iter().for_each(|channel| channel.signal(0, SyncType::Before));
        channels.iter().for_each(|channel| channel.wait(0, SyncType::After));
    }
    program.compile().unwrap()
}

/// All-reduce: every rank reads all others' inputs and reduces them, in blocks of as many threads as a block may have.
pub(super) fn wide(ranks: u32) -> Plan {
    let program = CollectiveProgram::new("wide", Pattern::all_reduce(ranks, 1)).threads_per_block(1024);
    for rank in program.ranks() {
        let channels: Vec<_> = rank.peers().map(|peer| rank.memory_channel(peer)).collect();
        let theirs = |channel: &MemoryChannel<'_>| program.rank(channel.peer()).input().chunks(..);
        rank.copy(rank.output().chunks(..), rank.input().chunks(..), 0);
        channels.iter().for_each(|channel| channel.relaxed_signal(0, SyncType::None));
        channels.iter().for_each(|channel| channel.wait(0, SyncType::After));
        channels.iter().for_each(|channel| {
            channel.reduce(rank.output().chunks(..), theirs(channel), Reduction::Sum, 0);
        });
        channels.iter().for_each(|channel| channel.signal(0, SyncType::Before));
        channels.iter().for_each(|channel| channel.wait(0, SyncType::After));
    }
    program.compile().unwrap()
}

/// All-gather in place: each rank puts its part into all others' buffers.
pub(super) fn gathered(ranks: u32) -> Plan {
    let program =
        CollectiveProgram::new("gathered", Pattern::all_gather(ranks, 1).in_place()).threads_per_block(64);
    for rank in program.ranks() {
        let me = rank.index();
        let channels: Vec<_> = rank.peers().map(|peer| rank.memory_channel(peer)).collect();
        channels.iter().for_each(|channel| channel.relaxed_signal(0, SyncType::None));
        channels.iter().for_each(|channel| channel.wait(0, SyncType::After));
        for channel in &channels {
            channel.put(program.rank(channel.peer()).output().chunk(me), rank.input().chunk(0), 0);
        }
        channels.iter().for_each(|channel| channel.signal(0, SyncType::Before));
        channels.iter().for_each(|channel| channel.wait(0, SyncType::After));
    }
    program.compile().unwrap()
}

/// All-gather by packets: each rank stores them into the scratch of its host's ranks, and has its proxy put them to the others'.
pub(super) fn gathered_packets(ranks: u32, one_host: impl Fn(u32, u32) -> bool) -> Plan {
    let program = CollectiveProgram::new("gathered-packets", Pattern::all_gather(ranks, 1))
        .protocol(Protocol::Ll)
        .threads_per_block(64)
        .double_scratch(true);
    let scratch: Vec<_> = program.ranks().map(|rank| rank.scratch(ranks)).collect();
    for rank in program.ranks() {
        let (me, input) = (rank.index(), rank.input().chunk(0));
        let own = scratch[me as usize].chunk(me);
        let (near, far): (Vec<_>, Vec<_>) = rank.peers().partition(|&peer| one_host(me, peer));
        let far: Vec<_> = far.into_iter().map(|peer| rank.port_channel(peer)).collect();
        rank.copy_packets(own, input, 0);
        far.iter()
            .for_each(|channel| channel.put_packets(scratch[channel.peer() as usize].chunk(me), own, 0));
        for peer in near {
            rank.memory_channel(peer).put_packets(scratch[peer as usize].chunk(me), input, 0);
        }
        rank.copy(rank.output().chunk(me), input, 0);
        for peer in rank.peers() {
            rank.unpack_packets(rank.output().chunk(peer), scratch[me as usize].chunk(peer), 0);
        }
        far.iter().for_each(|channel| channel.flush(0, SyncType::Before));
    }
    program.compile().unwrap()
}

/// All-gather through scratch by a pipeline: one block puts slices, another one copies them out, and a semaphore joins them.
pub(super) fn pipelined(ranks: u32) -> Plan {
    let program = CollectiveProgram::new("pipelined", Pattern::all_gather(ranks, 1)).threads_per_block(64);
    let scratch: Vec<_> = program.ranks().map(|rank| rank.scratch(ranks)).collect();
    for rank in program.ranks() {
        let me = rank.index();
        let channels: Vec<_> = rank.peers().map(|peer| rank.memory_channel(peer)).collect();
        let back: Vec<_> = rank.peers().map(|peer| rank.memory_channel(peer)).collect();
        let come = rank.semaphore(0);
        rank.copy(rank.output().chunk(me), rank.input().chunk(0), 0);
        // Scratch is free again: the peers' copies of the last call are done.
        back.iter().for_each(|channel| channel.relaxed_signal(1, SyncType::None));
        back.iter().for_each(|channel| channel.wait(0, SyncType::After));
        program.loop_of(1024, 1, || {
            for channel in &channels {
                channel.put(scratch[channel.peer() as usize].chunk(me), rank.input().chunk(0), 0);
                channel.signal(0, SyncType::Before);
            }
            come.release(0, SyncType::None);
            come.acquire(1, SyncType::After);
            for channel in &channels {
                channel.wait(1, SyncType::After);
                rank.copy(rank.output().chunk(channel.peer()), scratch[me as usize].chunk(channel.peer()), 1);
            }
        });
    }
    program.compile().unwrap()
}

/// Send-receive through port channels, from input to output.
pub(super) fn ports(ranks: u32) -> Plan {
    let program = CollectiveProgram::new("ports", Pattern::send_recv(ranks, 3)).threads_per_block(32);
    for rank in program.ranks() {
        let (next, before) = ((rank.index() + 1) % ranks, (rank.index() + ranks - 1) % ranks);
        let to = rank.port_channel(next);
        let from = if next == before { to } else { rank.port_channel(before) };
        from.signal(0, SyncType::None);
        to.wait(0, SyncType::After);
        let there = program.rank(next).output().chunks(..);
        to.put_with_signal_and_flush(there, rank.input().chunks(..), 0);
        from.wait(0, SyncType::After);
    }
    program.compile().unwrap()
}
