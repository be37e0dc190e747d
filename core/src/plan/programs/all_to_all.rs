//! All-to-all.

use super::program::{CollectiveProgram, MemoryChannel, Pattern, Rank, SyncType};
use super::slot;

/// In place: each block exchanges one chunk with one peer, through the peer's scratch.
pub(in super::super) fn direct(n: u32, chunks: u32) -> CollectiveProgram {
    let program = CollectiveProgram::new("alltoall", Pattern::all_to_all(n, chunks).in_place());
    let scratch: Vec<_> = program.ranks().map(|rank| rank.scratch(chunks * (n - 1))).collect();
    for rank in program.ranks() {
        let r = rank.index();
        for (tb, channel, peer, chunk) in exchanges(n, chunks, &rank) {
            let data = rank.input().chunk(peer * chunks + chunk);
            channel.relaxed_signal(tb, SyncType::Both);
            channel.wait(tb, SyncType::Both);
            channel.put(scratch[peer as usize].chunk(slot(peer, r) * chunks + chunk), data, tb);
            channel.signal(tb, SyncType::Before);
            channel.wait(tb, SyncType::After);
            rank.copy(data, scratch[r as usize].chunk(slot(r, peer) * chunks + chunk), tb);
        }
    }
    program
}

/// In place: as [`direct`], but one block puts slice after slice and another one copies out those that have come. A slice may be
/// overwritten once it was put, which the semaphore says.
pub(in super::super) fn pipelined(n: u32, chunks: u32) -> CollectiveProgram {
    let program = CollectiveProgram::new("alltoall", Pattern::all_to_all(n, chunks).in_place());
    let scratch: Vec<_> = program.ranks().map(|rank| rank.scratch(chunks * (n - 1))).collect();
    for rank in program.ranks() {
        let r = rank.index();
        let come: Vec<_> = exchanges(n, chunks, &rank).collect();
        let begun: Vec<_> = exchanges(n, chunks, &rank).map(|(_, channel, ..)| channel).collect();
        let copiers = chunks * (n - 1);
        for (&(tb, channel, peer, chunk), begun) in come.iter().zip(&begun) {
            let put = rank.semaphore(0);
            let data = rank.input().chunk(peer * chunks + chunk);
            begun.relaxed_signal(tb, SyncType::Both);
            begun.wait(tb, SyncType::Both);
            program.loop_of(1 << 19, 1, || {
                channel.put(scratch[peer as usize].chunk(slot(peer, r) * chunks + chunk), data, tb);
                channel.signal(tb, SyncType::Both);
                put.release(tb, SyncType::Both);
                put.acquire(copiers + tb, SyncType::Both);
                channel.wait(copiers + tb, SyncType::Both);
                rank.copy(data, scratch[r as usize].chunk(slot(r, peer) * chunks + chunk), copiers + tb);
            });
        }
    }
    program
}

/// The exchanges of a rank: for each chunk of each peer's a block, a new channel, the peer and the chunk.
fn exchanges<'p>(
    n: u32,
    chunks: u32,
    rank: &Rank<'p>,
) -> impl Iterator<Item = (u32, MemoryChannel<'p>, u32, u32)> {
    let rank = *rank;
    let peers = (0..n).filter(move |&peer| peer != rank.index());
    let each = peers.flat_map(move |peer| (0..chunks).map(move |chunk| (peer, chunk)));
    (0..).zip(each).map(move |(tb, (peer, chunk))| (tb, rank.memory_channel(peer), peer, chunk))
}
