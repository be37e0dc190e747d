//! Collectives with a root, and those between neighbours; the first through ports.

use super::program::{CollectiveProgram, Pattern, Reduction, SyncType};
use super::{begin, channels, end};

/// From the root along a line, chunk after chunk: while a rank passes one on, the next one is on its way to it.
pub(in super::super) fn broadcast_line(n: u32, root: u32) -> CollectiveProgram {
    let program = CollectiveProgram::new("broadcast_line", Pattern::broadcast(n, 2, root));
    for rank in program.ranks() {
        let r = rank.index();
        let place = (r + n - root) % n;
        // A line has no way from its last rank to its first, so two ranks have one channel.
        let from = (place > 0).then(|| rank.port_channel((r + n - 1) % n));
        let to = (place + 1 < n).then(|| rank.port_channel((r + 1) % n));
        let (input, output) = (rank.input(), rank.output());
        if let Some(from) = from {
            from.signal(0, SyncType::None);
        }
        if let Some(to) = to {
            to.wait(0, SyncType::After);
        }
        if place == 0 {
            rank.copy(output.chunks(..), input.chunks(..), 0);
            rank.barrier([0]);
        }
        for chunk in 0..output.count() {
            if let Some(from) = from {
                from.wait(0, SyncType::After);
            }
            if let Some(to) = to {
                let there = program.rank(to.peer()).output().chunk(chunk);
                to.put_with_signal(there, output.chunk(chunk), 0);
            }
        }
        if let Some(to) = to {
            to.flush(0, SyncType::Both);
        }
    }
    program
}

/// The root reads and reduces all inputs; the others wait until it has.
pub(in super::super) fn reduce(n: u32, root: u32) -> CollectiveProgram {
    let program = CollectiveProgram::new("reduce", Pattern::reduce(n, 1, root));
    let rank = program.rank(root);
    let to_all = channels(&rank);
    let result = rank.output().chunks(..);
    to_all.iter().for_each(|channel| channel.wait(0, SyncType::After));
    rank.copy(result, rank.input().chunks(..), 0);
    rank.barrier([0]);
    for channel in &to_all {
        channel.reduce(result, program.rank(channel.peer()).input().chunks(..), Reduction::Sum, 0);
    }
    to_all.iter().for_each(|channel| channel.signal(0, SyncType::Before));
    for peer in rank.peers() {
        let channel = program.rank(peer).memory_channel(root);
        channel.signal(0, SyncType::None);
        channel.wait(0, SyncType::After);
    }
    program
}

/// The others put their inputs into the root's output.
pub(in super::super) fn gather(n: u32, root: u32) -> CollectiveProgram {
    let program = CollectiveProgram::new("gather", Pattern::gather(n, 1, root));
    let rank = program.rank(root);
    let from_all = channels(&rank);
    // The others may write as soon as the root has begun.
    from_all.iter().for_each(|channel| channel.relaxed_signal(0, SyncType::None));
    rank.copy(rank.output().chunk(root), rank.input().chunk(0), 0);
    from_all.iter().for_each(|channel| channel.wait(0, SyncType::After));
    for peer in rank.peers() {
        let from = program.rank(peer);
        let channel = from.memory_channel(root);
        channel.wait(0, SyncType::After);
        channel.put(rank.output().chunk(peer), from.input().chunk(0), 0);
        channel.signal(0, SyncType::Before);
    }
    program
}

/// The others read their parts of the root's input.
pub(in super::super) fn scatter(n: u32, root: u32) -> CollectiveProgram {
    let program = CollectiveProgram::new("scatter", Pattern::scatter(n, 1, root));
    let rank = program.rank(root);
    let to_all = channels(&rank);
    to_all.iter().for_each(|channel| channel.signal(0, SyncType::None));
    rank.copy(rank.output().chunk(0), rank.input().chunk(root), 0);
    to_all.iter().for_each(|channel| channel.wait(0, SyncType::After));
    for peer in rank.peers() {
        let to = program.rank(peer);
        let channel = to.memory_channel(root);
        channel.wait(0, SyncType::After);
        channel.get(to.output().chunk(0), rank.input().chunk(peer), 0);
        channel.signal(0, SyncType::Before);
    }
    program
}

/// Every rank puts its input to the next one.
pub(in super::super) fn send_recv(n: u32, chunks: u32) -> CollectiveProgram {
    let program = CollectiveProgram::new("sendrecv", Pattern::send_recv(n, chunks));
    for rank in program.ranks() {
        let (to, from) = if n == 2 {
            let both = rank.port_channel(1 - rank.index());
            (both, both)
        } else {
            let before = (rank.index() + n - 1) % n;
            (rank.port_channel((rank.index() + 1) % n), rank.port_channel(before))
        };
        from.signal(0, SyncType::None);
        to.wait(0, SyncType::After);
        let there = program.rank(to.peer()).output().chunks(..);
        to.put_with_signal_and_flush(there, rank.input().chunks(..), 0);
        from.wait(0, SyncType::After);
    }
    program
}

/// Each rank reads its part of all inputs.
pub(in super::super) fn reduce_scatter(n: u32) -> CollectiveProgram {
    let program = CollectiveProgram::new("reducescatter", Pattern::reduce_scatter(n, 1));
    for rank in program.ranks() {
        let (r, channels) = (rank.index(), channels(&rank));
        let mut so_far = rank.input().chunk(r);
        begin(&channels, 0);
        for channel in &channels {
            let theirs = program.rank(channel.peer()).input().chunk(r);
            channel.reduce_to(rank.output().chunk(0), so_far, theirs, Reduction::Sum, 0);
            so_far = rank.output().chunk(0);
        }
        end(&channels, 0);
    }
    program
}
