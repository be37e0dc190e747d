//! Ranks that leave normally while others still run kernels.

use std::time::{Duration, Instant};

use aqueduct::ErrorKind;
use aqueduct::channel::MemoryChannel;
use aqueduct::comm::Transport;
use aqueduct::gpu::Stream;

use crate::support::{Rank, soon, threads};

fn channel(rank: &Rank, peer: u32) -> MemoryChannel {
    let mine = rank.registered(256);
    rank.comm.send_memory(&mine, peer, 0).unwrap();
    let theirs = rank.comm.recv_memory(peer, 0).unwrap();
    let connection = rank.comm.connect(peer, 0, Transport::CudaIpc).unwrap();
    let semaphore = rank.comm.build_semaphore(&connection, 0).unwrap();
    rank.comm.setup(soon()).unwrap();
    MemoryChannel::new(&semaphore.get().unwrap(), &theirs.get().unwrap(), &mine, None).unwrap()
}

#[test]
fn a_kernel_waiting_for_a_rank_that_left_ends_and_every_rank_learns_of_it() {
    threads(3, |rank| {
        let channel = (rank.me() < 2).then(|| channel(&rank, 1 - rank.me()));
        let Some(channel) = channel else {
            rank.barrier();
            let began = Instant::now();
            let error = loop {
                match rank.comm.check() {
                    Err(error) => break error,
                    Ok(()) => assert!(began.elapsed().as_secs() < 60, "rank 2 did not learn of it"),
                }
                std::thread::sleep(Duration::from_millis(10));
            };
            assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
            return;
        };
        if rank.me() == 1 {
            return rank.barrier();
        }
        let stream = Stream::new(rank.comm.context()).unwrap();
        channel.wait(&stream).unwrap();
        rank.barrier();
        // The wait was given up: both the stream and the communicator say so.
        for error in [stream.synchronize(soon()).unwrap_err(), rank.comm.check().unwrap_err()] {
            assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
        }
        let error = rank.comm.check().unwrap_err();
        assert!(error.message().contains("good order"), "{error}");
        let record = rank.comm.abort_record().expect("the kernel recorded what it waited for").to_string();
        assert!(record.contains("semaphore wait on rank 1"), "{record}");
        assert!(channel.signal(&stream).is_err());
    });
}

#[test]
fn data_sent_before_leaving_arrives_and_other_ranks_go_on() {
    threads(3, |rank| {
        let channel = (rank.me() < 2).then(|| channel(&rank, 1 - rank.me()));
        let stream = Stream::new(rank.comm.context()).unwrap();
        // Queued before rank 1 may leave: a wait for a rank that has left is refused.
        if let (0, Some(channel)) = (rank.me(), &channel) {
            channel.wait(&stream).unwrap();
        }
        rank.barrier();
        match (rank.me(), &channel) {
            (0, Some(_)) => stream.synchronize(soon()).unwrap(),
            (1, Some(channel)) => {
                channel.signal(&stream).unwrap();
                return stream.synchronize(soon()).unwrap();
            }
            _ => {}
        }
        // Longer than kernels may go on waiting for a rank that has left.
        std::thread::sleep(Duration::from_secs(3));
        rank.comm.check().expect("no wait failed");
        if let Some(channel) = channel {
            let error = channel.wait(&stream).unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
        }
    });
}
