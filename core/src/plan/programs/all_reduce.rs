//! All-reduce.

use super::program::{BufferType, CollectiveProgram, MemoryChannel, Pattern, Protocol, Reduction, SyncType};
use super::{begin, channels, end, ring as ring_of, slot};

/// Chunks go around a ring through scratch and are reduced on the way, then go around once more.
pub(in super::super) fn ring(n: u32) -> CollectiveProgram {
    let program = CollectiveProgram::new("allreduce_ring", Pattern::all_reduce(n, 1).in_place());
    let scratch: Vec<_> = program.ranks().map(|rank| rank.scratch(n - 1)).collect();
    for rank in program.ranks() {
        let (r, data) = (rank.index(), rank.input());
        let (next, before) = ring_of(&rank);
        let there = next.peer();
        let pass = || {
            next.signal(0, SyncType::Before);
            before.wait(0, SyncType::After);
        };
        before.relaxed_signal(0, SyncType::None);
        next.wait(0, SyncType::After);
        for step in 0..n - 1 {
            let (sent, come) = ((r + n - step) % n, (r + 2 * n - step - 1) % n);
            next.put(scratch[there as usize].chunk(step), data.chunk(sent), 0);
            pass();
            rank.reduce(data.chunk(come), scratch[r as usize].chunk(step), Reduction::Sum, 0);
        }
        for step in 0..n - 1 {
            let chunk = (r + 1 + n - step) % n;
            next.put(program.rank(there).input().chunk(chunk), data.chunk(chunk), 0);
            pass();
        }
    }
    program
}

/// Every rank sends its whole input as packets to all others and reduces what comes, in one step.
pub(in super::super) fn one_shot_packets(n: u32) -> CollectiveProgram {
    let program = CollectiveProgram::new("allreduce_one_shot", Pattern::all_reduce(n, 1))
        .protocol(Protocol::Ll)
        .double_scratch(true);
    let scratch: Vec<_> = program.ranks().map(|rank| rank.scratch(n * (n - 1))).collect();
    let part = |rank: u32, peer: u32| {
        let first = n * slot(rank, peer);
        scratch[rank as usize].chunks(first..first + n)
    };
    for rank in program.ranks() {
        let r = rank.index();
        let input = rank.input().chunks(..);
        for channel in channels(&rank) {
            channel.put_packets(part(channel.peer(), r), input, 0);
        }
        let come = rank.peers().map(|peer| part(r, peer));
        rank.reduce_packets_to(rank.output().chunks(..), input, come, Reduction::Sum, 0);
    }
    program
}

/// In place: each block of a rank reads its chunk of all others, reduces, and writes the result to all.
pub(in super::super) fn two_shot(n: u32, blocks: u32) -> CollectiveProgram {
    let program = CollectiveProgram::new("allreduce", Pattern::all_reduce(n, blocks).in_place());
    for rank in program.ranks() {
        for tb in 0..blocks {
            let chunk = rank.index() * blocks + tb;
            let mine = rank.input().chunk(chunk);
            let peers = (0..n).filter(|&peer| peer != rank.index());
            let channels: Vec<_> = peers.map(|peer| rank.memory_channel(peer)).collect();
            let theirs = |channel: &MemoryChannel<'_>| program.rank(channel.peer()).input().chunk(chunk);
            begin(&channels, tb);
            for channel in &channels {
                channel.reduce(mine, theirs(channel), Reduction::Sum, tb);
            }
            for channel in &channels {
                channel.put(theirs(channel), mine, tb);
            }
            channels.iter().for_each(|channel| channel.signal(tb, SyncType::Both));
            channels.iter().for_each(|channel| channel.wait(tb, SyncType::Both));
        }
    }
    program
}

/// In place: packets to the rank that reduces a part, and the result back as packets. Block k reduces chunk k of the part.
pub(in super::super) fn two_shot_packets(n: u32) -> CollectiveProgram {
    let program = CollectiveProgram::new("allreduce_pkt", Pattern::all_reduce(n, n).in_place())
        .protocol(Protocol::Ll)
        .double_scratch(true);
    let scratch: Vec<_> = program.ranks().map(|rank| rank.scratch(2 * n * (n - 1))).collect();
    // Scratch of a rank for what a peer sends to be reduced, and for what it has reduced.
    let first = |rank: u32, peer: u32, reduced: bool| n * (slot(rank, peer) + u32::from(reduced) * (n - 1));
    for rank in program.ranks() {
        let (r, data, scratch_here) = (rank.index(), rank.input(), scratch[rank.index() as usize]);
        let channels = channels(&rank);
        for channel in &channels {
            let peer = channel.peer();
            let at = first(peer, r, false);
            let there = scratch[peer as usize].chunks(at..at + n);
            channel.put_packets(there, data.chunks(peer * n..(peer + 1) * n), slot(r, peer));
        }
        for chunk in 0..n {
            let mine = data.chunk(r * n + chunk);
            let come = rank.peers().map(|peer| scratch_here.chunk(first(r, peer, false) + chunk));
            rank.reduce_packets(mine, come, Reduction::Sum, chunk);
            for channel in &channels {
                let peer = channel.peer();
                channel.put_packets(scratch[peer as usize].chunk(first(peer, r, true) + chunk), mine, chunk);
            }
        }
        for peer in rank.peers() {
            let at = first(r, peer, true);
            rank.unpack_packets(data.chunks(peer * n..(peer + 1) * n), scratch_here.chunks(at..at + n), peer);
        }
    }
    program
}

/// In place: the switch reduces chunk r for rank r and broadcasts the result.
pub(in super::super) fn switch(n: u32) -> CollectiveProgram {
    let program = CollectiveProgram::new("allreduce_switch", Pattern::all_reduce(n, 1).in_place());
    let switch = program.switch_channel(0..n, BufferType::Input);
    for rank in program.ranks() {
        let (r, channels) = (rank.index(), channels(&rank));
        let mine = rank.input().chunk(r);
        begin(&channels, 0);
        switch.at_rank(r).reduce(mine, r, Reduction::Sum, 0);
        switch.at_rank(r).broadcast(r, mine, 0);
        end(&channels, 0);
    }
    program
}

/// The pipelined program of MSCCL++'s document: three blocks copy in, reduce through the switch, and copy out.
#[cfg(test)]
pub(in super::super) fn switch_pipelined(nranks: u32) -> CollectiveProgram {
    let pattern = Pattern::all_reduce(nranks, 1).in_place();
    let program = CollectiveProgram::new("allreduce", pattern).reuse_resources(true);
    let nvls_chan = program.switch_channel(0..nranks, BufferType::Scratch);
    let scratch_buffer: Vec<_> = program.ranks().map(|rank| rank.scratch(nranks)).collect();
    for rank in program.ranks() {
        let i = rank.index();
        let dst_rank = (i + 1) % nranks;
        let chan = rank.memory_channel(dst_rank);
        let chan1 = rank.memory_channel(dst_rank);
        let sem0 = rank.semaphore(0);
        let sem1 = rank.semaphore(0);
        let (input_buffer, output_buffer) = (rank.input(), rank.output());
        let scratch = scratch_buffer[i as usize];

        // Define loop iteration context for processing data chunks
        program.loop_of(1 << 20, 1, || {
            // Copy input data to scratch buffers
            for offset in 0..nranks {
                rank.copy(scratch.chunk(offset), input_buffer.chunk(offset), 0);
            }

            // Synchronize with other ranks
            chan.signal(0, SyncType::Before);
            chan.wait(0, SyncType::After);
            sem0.release(0, SyncType::None); // Release semaphore to allow next step to proceed

            // Wait for previous step completion
            sem0.acquire(1, SyncType::After);

            // Reduce operation: combine data from multiple ranks into local chunk
            nvls_chan.at_rank(i).reduce(scratch.chunk(i), i, Reduction::Sum, 1);

            // Broadcast the reduced result to all participating ranks
            nvls_chan.at_rank(i).broadcast(i, scratch.chunk(i), 1);

            // Signal completion of reduction stage and prepare for next stage
            chan1.signal(1, SyncType::Before);
            sem1.release(1, SyncType::None);

            // Wait for previous stage completion
            sem1.acquire(2, SyncType::None);
            chan1.wait(2, SyncType::After);

            // Copy all reduced chunks from scratch buffer to final output buffer
            for index in 0..nranks {
                rank.copy(output_buffer.chunk(index), scratch.chunk(index), 2);
            }
        });
    }
    program
}

/// In place, of a power of two of ranks: in each step a rank and its partner halve what they are responsible for, each reducing
/// its half of both; then they double it in the opposite order.
pub(in super::super) fn recursive_halving(n: u32) -> CollectiveProgram {
    assert!(n.is_power_of_two(), "{n} ranks cannot be halved down to one");
    let program = CollectiveProgram::new("allreduce_halving", Pattern::all_reduce(n, 1).in_place());
    for rank in program.ranks() {
        let (r, data) = (rank.index(), rank.input());
        let mut halves = Vec::new();
        let mut half = n / 2;
        while half > 0 {
            // The half that holds chunk r, of the chunks that still concern this rank.
            let kept = r / half * half..r / half * half + half;
            halves.push((rank.memory_channel(r ^ half), kept));
            half /= 2;
        }
        for (channel, kept) in &halves {
            let theirs = program.rank(channel.peer()).input();
            channel.signal(0, SyncType::Before);
            channel.wait(0, SyncType::After);
            channel.reduce(data.chunks(kept.clone()), theirs.chunks(kept.clone()), Reduction::Sum, 0);
        }
        for (channel, kept) in halves.iter().rev() {
            let theirs = program.rank(channel.peer()).input();
            channel.put(theirs.chunks(kept.clone()), data.chunks(kept.clone()), 0);
            channel.signal(0, SyncType::Before);
            channel.wait(0, SyncType::After);
        }
    }
    program
}
