//! More memories and semaphores than a small table holds.

use aqueduct::channel::PortChannel;
use aqueduct::comm::Transport;
use aqueduct::gpu::Stream;
use aqueduct::proxy::{ProxyService, ProxyServiceConfig};

use super::peer_channel::PeerChannel;
use crate::group::{Machine, Rank, allow_files, config, processes_with, soon};

on_machines! { "ports::many", super::many:
    memories_and_semaphores_over_cuda_ipc;
    memories_and_semaphores_over_ethernet;
}

const MEMORIES: usize = 600;
const SEMAPHORES: usize = 1100;

fn many(machine: Machine, test: &str, case: fn(&Rank)) {
    let config = config().with_max_semaphores(SEMAPHORES as u32);
    // Memory of the software device takes a file descriptor each, and so do handles of GPU memory.
    allow_files(3 * (MEMORIES + SEMAPHORES) as u64 / 2);
    processes_with(machine, 2, test, config, |rank| case(&rank));
}

fn memories_and_semaphores_over_cuda_ipc(rank: &Rank) {
    each_is_its_own(rank, Transport::CudaIpc);
}

fn memories_and_semaphores_over_ethernet(rank: &Rank) {
    each_is_its_own(rank, Transport::Ethernet);
}

/// The channel of each semaphore puts a different word to a different memory and offset.
fn each_is_its_own(rank: &Rank, transport: Transport) {
    let (comm, me, peer) = (&rank.comm, rank.me(), 1 - rank.me());
    let service = ProxyService::start(comm, ProxyServiceConfig::default()).unwrap();
    let connection = comm.connect(peer, 0, transport).unwrap();
    let words: Vec<u64> = (0..SEMAPHORES as u64).map(|i| (i + 1) << 8 | u64::from(me)).collect();
    let source = rank.buffer(8 * SEMAPHORES);
    source.upload(0, &words, soon()).unwrap();
    let source = comm.register_memory(&source, transport).unwrap();
    let inboxes: Vec<_> = (0..MEMORIES).map(|_| rank.buffer(16)).collect();
    let pending: Vec<_> = (0..)
        .zip(&inboxes)
        .map(|(tag, inbox)| {
            comm.send_memory(&comm.register_memory(inbox, transport).unwrap(), peer, tag).unwrap();
            comm.recv_memory(peer, tag).unwrap()
        })
        .collect();
    let semaphores: Vec<_> = (0..SEMAPHORES as u64)
        .map(|tag| service.build_and_add_semaphore(&connection, tag).unwrap())
        .collect();
    comm.setup(soon()).unwrap();
    let src = service.add_memory(&source).unwrap();
    let dst: Vec<_> =
        pending.iter().map(|memory| service.add_memory(&memory.get().unwrap()).unwrap()).collect();
    let channels: Vec<_> = (0..SEMAPHORES)
        .map(|i| PortChannel::new(&service, semaphores[i].get().unwrap(), dst[i % MEMORIES], src).unwrap())
        .collect();
    rank.barrier();
    let stream = Stream::new(comm.context()).unwrap();
    for (i, channel) in channels.iter().enumerate() {
        channel.put_with_signal(&stream, 8 * (i / MEMORIES), 8 * i, 8).unwrap();
    }
    channels[0].flush(&stream).unwrap();
    channels.iter().rev().for_each(|channel| channel.wait(&stream).unwrap());
    stream.synchronize(soon()).unwrap();
    channels.iter().for_each(|channel| channel.check().unwrap());
    let word = |i: usize| if i < SEMAPHORES { (i as u64 + 1) << 8 | u64::from(peer) } else { 0 };
    for (i, inbox) in inboxes.iter().enumerate() {
        assert_eq!(PeerChannel::words(inbox, 2), [word(i), word(i + MEMORIES)], "memory {i}");
    }
    for (i, channel) in channels.iter().enumerate() {
        let counters = channel.counters().unwrap();
        assert_eq!((counters.puts, counters.signals), (1, 1), "semaphore {i}");
    }
    rank.barrier();
    service.stop(soon()).unwrap();
}
