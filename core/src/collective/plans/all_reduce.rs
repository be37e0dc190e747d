//! All-reduce. Every element is reduced in the order of ranks, so all ranks get the same bits.

use super::shape::{Shape, exchange, peers, plain, scratch};
use crate::plan::program::{
    Buffer, Chunk, CollectiveProgram, Form, MemoryChannel, Pattern, Rank, Reduction, SyncType,
    ThreadBlockGroup,
};

/// One-shot: every rank sends its whole input to all others and reduces what comes.
pub(super) fn packets(shape: Shape) -> CollectiveProgram {
    let n = shape.ranks;
    let program = shape.packet_program("all-reduce packets", Pattern::all_reduce(n, 1).cut_into(1));
    let (scratch, group) = (scratch(&program, n), shape.group());
    let part = |at: u32, from: u32| scratch[at as usize].chunk(from);
    for rank in program.ranks() {
        let me = rank.index();
        let (input, output) = (rank.input().chunks(..), rank.output().chunks(..));
        for peer in rank.peers() {
            rank.memory_channel(peer).put_packets(part(peer, me), input, &group);
        }
        if n > 1 {
            let source = |from: u32| if from == me { plain(input) } else { (part(me, from), Form::Packets) };
            rank.reduce_in_order(output, (0..n).map(source), Reduction::Sum, &group);
        } else if !shape.in_place {
            rank.copy(output, input, &group);
        }
    }
    program
}

/// Two-shot: rank r reduces chunk r of all inputs and writes the result to all outputs.
pub(super) fn zero_copy(shape: Shape) -> CollectiveProgram {
    let n = shape.ranks;
    let program = shape.program("all-reduce zero-copy", Pattern::all_reduce(n, 1));
    let group = shape.group();
    for rank in program.ranks() {
        let me = rank.index();
        shape.meet(&rank, &peers(&rank), |channels| {
            let mine = rank.output().chunk(me);
            if n > 1 {
                let inputs = program.ranks().map(|from| plain(from.input().chunk(me)));
                rank.reduce_in_order(mine, inputs, Reduction::Sum, &group);
            } else if !shape.in_place {
                rank.copy(mine, rank.input().chunk(me), &group);
            }
            for channel in channels {
                channel.put(program.rank(channel.peer()).output().chunk(me), mine, &group);
            }
        });
    }
    program
}

/// Pushes chunk r of this rank's input into rank r's part of `inputs`, and reduces this rank's chunk of all ranks' inputs to its output.
fn push_and_reduce<'p>(
    rank: &Rank<'p>,
    inputs: &[Buffer<'p>],
    channels: &[Vec<MemoryChannel<'p>>],
    group: &ThreadBlockGroup,
) -> Chunk {
    let me = rank.index();
    for channel in &channels[0] {
        let peer = channel.peer();
        channel.put(inputs[peer as usize].chunk(me), rank.input().chunk(peer), group);
    }
    exchange(0.., channels);
    let mine = rank.output().chunk(me);
    let sources = (0..).zip(inputs).map(|(from, _)| {
        plain(if from == me { rank.input().chunk(me) } else { inputs[me as usize].chunk(from) })
    });
    rank.reduce_in_order(mine, sources, Reduction::Sum, group);
    mine
}

/// Two-shot on buffers of which the peers reach the outputs: every rank pushes chunk r of its input into rank r's scratch, rank r
/// reduces them there and writes the result to all outputs. Nothing is read over a link, and all blocks push to one peer before they turn
/// to the next, from the next rank on, so that no two ranks push to one at a time.
///
/// No begin signal is needed. A rank ends a call when all others have reduced what it pushed, so in the next one it may push at once,
/// before they have begun. It writes to an output when that rank has told what it pushed: by then that rank has begun this call, so its stream
/// has done with what the output held before; in place, it has also read the chunk of its input that the result replaces.
pub(super) fn pushed(shape: Shape) -> CollectiveProgram {
    let n = shape.ranks;
    let program = shape.program("all-reduce pushed", Pattern::all_reduce(n, 1));
    let inputs = scratch(&program, n);
    let group = shape.group();
    for rank in program.ranks() {
        let me = rank.index();
        let channels = shape.channels(&rank, &peers(&rank));
        let mine = push_and_reduce(&rank, &inputs, &channels, &group);
        for channel in &channels[0] {
            channel.put(program.rank(channel.peer()).output().chunk(me), mine, &group);
        }
        exchange(0.., &channels);
    }
    program
}

/// Two-shot through scratch, on buffers that the peers do not reach: rank r gets chunk r of all inputs, reduces them and sends the
/// result to all others, which copy it to their outputs.
///
/// No begin signal is needed: a rank ends a call when all others have read what it sent first, and it sends its result
/// when all others have begun this call, and so ended the one before.
pub(super) fn through_scratch(shape: Shape) -> CollectiveProgram {
    let n = shape.ranks;
    let program = shape.program("all-reduce through scratch", Pattern::all_reduce(n, 1));
    // For the inputs of all ranks, and for the results of all.
    let (inputs, results) = (scratch(&program, n), scratch(&program, n));
    let group = shape.group();
    for rank in program.ranks() {
        let me = rank.index();
        let channels = shape.channels(&rank, &peers(&rank));
        let mine = push_and_reduce(&rank, &inputs, &channels, &group);
        for channel in &channels[0] {
            channel.put(results[channel.peer() as usize].chunk(me), mine, &group);
        }
        exchange(0.., &channels);
        for channel in &channels[0] {
            let peer = channel.peer();
            rank.copy(rank.output().chunk(peer), results[me as usize].chunk(peer), &group);
        }
    }
    program
}

/// By copy engines; `None` of two ranks in place.
pub(super) fn copied(shape: Shape) -> Option<CollectiveProgram> {
    match shape.ranks {
        2 => super::pair::all_reduce(shape),
        _ => Some(by_tiles(shape)),
    }
}

/// Tiles of a rank's chunk that threads reduce and copy engines send one behind the other.
const TILES: u32 = 8;

/// Two-shot on buffers that the peers reach: threads reduce chunk r of all inputs tile by tile, and two copy engines in turns send each
/// tile to all others while the next is reduced.
fn by_tiles(shape: Shape) -> CollectiveProgram {
    let n = shape.ranks;
    let program = shape.program("all-reduce by copy engines", Pattern::all_reduce(n, TILES));
    let (group, blocks) = (shape.group(), shape.blocks);
    for rank in program.ranks() {
        let me = rank.index();
        let engines = [0, 1].map(|nth| {
            let block = blocks + nth;
            let channels: Vec<_> = rank.peers().map(|peer| rank.memory_channel(peer)).collect();
            rank.copy_engine(block);
            (block, rank.semaphore(0), channels)
        });
        shape.meet(&rank, &peers(&rank), |_| {
            for tile in 0..TILES {
                let (block, reduced, channels) = &engines[tile as usize % 2];
                let chunk = me * TILES + tile;
                let mine = rank.output().chunk(chunk);
                let inputs = program.ranks().map(|from| plain(from.input().chunk(chunk)));
                rank.reduce_in_order(mine, inputs, Reduction::Sum, &group);
                rank.barrier(0..blocks);
                reduced.release(0, SyncType::Before);
                reduced.acquire(*block, SyncType::After);
                for channel in channels {
                    channel.put(program.rank(channel.peer()).output().chunk(chunk), mine, *block);
                }
            }
        });
        for (block, _, channels) in engines {
            channels.iter().for_each(|channel| channel.signal(block, SyncType::Before));
            channels.iter().for_each(|channel| channel.wait(block, SyncType::After));
        }
    }
    program
}
