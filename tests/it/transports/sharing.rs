//! Many Ethernet connections between GPU memories, with pinned memory for fewer of them.

use std::sync::Arc;

use aqueduct::comm::{Connection, RegisteredMemory, Transport};
use aqueduct::gpu::GpuBuffer;

use crate::group::{Machine, Rank, config, processes_with, soon};

const CONNECTIONS: usize = 12;
const THREADS: usize = 3;
/// Frames that share pinned memory, one that fills a block of it, and writes of several.
const SIZES: [usize; 5] = [8, 3000, 512 << 10, 700_001, 1_500_000];
const LEN: usize = 1_500_000;

/// One connection of a rank: its data, and where the peer's data comes.
struct End {
    connection: Connection,
    source: (Arc<GpuBuffer>, RegisteredMemory),
    inbox: (Arc<GpuBuffer>, RegisteredMemory),
    target: RegisteredMemory,
}

fn ends(rank: &Rank) -> Vec<End> {
    let (comm, peer) = (&rank.comm, 1 - rank.me());
    let memory = || {
        let buffer = rank.buffer(LEN);
        let memory = comm.register_memory(&buffer, Transport::Ethernet).unwrap();
        (buffer, memory)
    };
    let asked: Vec<_> = (0..CONNECTIONS as u64)
        .map(|tag| {
            let (source, inbox) = (memory(), memory());
            comm.send_memory(&inbox.1, peer, tag).unwrap();
            let target = comm.recv_memory(peer, tag).unwrap();
            (comm.connect(peer, tag, Transport::Ethernet).unwrap(), source, inbox, target)
        })
        .collect();
    comm.setup(soon()).unwrap();
    asked
        .into_iter()
        .map(|(connection, source, inbox, target)| {
            let (connection, target) = (connection.get().unwrap(), target.get().unwrap());
            End { connection, source, inbox, target }
        })
        .collect()
}

fn pattern(rank: u32, connection: usize, round: usize, len: usize) -> Vec<u8> {
    let seed = 1 + rank as usize * 7 + connection * 31 + round * 101;
    (0..len).map(|at| ((at / 64 + seed) % 251) as u8).collect()
}

/// Both ranks write over all connections at once, from several threads.
fn all_write_at_once(rank: &Rank) {
    let ends = ends(rank);
    for (round, len) in SIZES.into_iter().enumerate() {
        for (number, end) in ends.iter().enumerate() {
            end.source.0.upload(0, &pattern(rank.me(), number, round, len), soon()).unwrap();
        }
        rank.barrier();
        std::thread::scope(|scope| {
            for ends in ends.chunks(CONNECTIONS / THREADS) {
                scope.spawn(move || {
                    for _ in 0..3 {
                        for end in ends {
                            end.connection.write(&end.target, 0, &end.source.1, 0, len).unwrap();
                        }
                    }
                    ends.iter().for_each(|end| end.connection.flush(soon()).unwrap());
                });
            }
        });
        rank.barrier();
        let mut came = vec![0; len];
        for (number, end) in ends.iter().enumerate() {
            end.inbox.0.download(0, &mut came, soon()).unwrap();
            assert!(
                came == pattern(1 - rank.me(), number, round, len),
                "{len} bytes over connection {number}"
            );
        }
        rank.barrier();
    }
}

fn with_blocks(blocks: usize, test: &str) {
    let config = config().with_ethernet_staging(2 * blocks * (512 << 10));
    let test = format!("transports::sharing::{test}");
    processes_with(Machine::Software, 2, &test, config, |rank| all_write_at_once(&rank));
}

#[test]
fn all_connections_get_through_one_block_of_pinned_memory() {
    with_blocks(1, "all_connections_get_through_one_block_of_pinned_memory");
}

#[test]
fn all_connections_get_through_two_blocks_of_pinned_memory() {
    with_blocks(2, "all_connections_get_through_two_blocks_of_pinned_memory");
}
