//! Send-receive: every rank sends to the next one.

use super::shape::{Shape, scratch};
use crate::plan::program::{CollectiveProgram, Pattern, SyncType};

/// Every rank sends its input to the next one. A rank's call ends when the next rank has begun, which is all that it hears
/// from it: otherwise it could overwrite packets that a slow rank has not read.
pub(super) fn packets(shape: Shape) -> CollectiveProgram {
    let n = shape.ranks;
    let program = shape.packet_program("send-recv packets", Pattern::send_recv(n, 1));
    let (scratch, group) = (scratch(&program, 1), shape.group());
    for rank in program.ranks() {
        let (me, input, output) = (rank.index(), rank.input().chunk(0), rank.output().chunk(0));
        match neighbours(me, n)[..] {
            [next, .., before] => {
                let (to, from) = (rank.memory_channel(next), rank.memory_channel(before));
                from.relaxed_signal(0, SyncType::None);
                to.put_packets(scratch[next as usize].chunk(0), input, &group);
                rank.unpack_packets(output, scratch[me as usize].chunk(0), &group);
                to.wait(0, SyncType::None);
            }
            // Two ranks exchange packets, so they hear enough of each other.
            [other] => {
                rank.memory_channel(other).put_packets(scratch[other as usize].chunk(0), input, &group);
                rank.unpack_packets(output, scratch[me as usize].chunk(0), &group);
            }
            [] if !shape.in_place => rank.copy(output, input, &group),
            [] => {}
        }
    }
    program
}

/// Out of place: every rank writes its input to the output of the next one.
pub(super) fn zero_copy(shape: Shape) -> CollectiveProgram {
    let n = shape.ranks;
    let program = shape.program("send-recv zero-copy", Pattern::send_recv(n, 1));
    let group = shape.group();
    for rank in program.ranks() {
        let (me, input) = (rank.index(), rank.input().chunk(0));
        shape.meet(&rank, &neighbours(me, n), |channels| match channels.first() {
            Some(next) => next.put(program.rank(next.peer()).output().chunk(0), input, &group),
            None => rank.copy(rank.output().chunk(0), input, &group),
        });
    }
    program
}

/// The next rank and the one before, each once and without the rank itself.
fn neighbours(rank: u32, ranks: u32) -> Vec<u32> {
    let mut both = vec![(rank + 1) % ranks, (rank + ranks - 1) % ranks];
    both.dedup();
    both.retain(|&peer| peer != rank);
    both
}
