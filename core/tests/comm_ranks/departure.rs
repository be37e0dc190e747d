//! Ranks that leave normally while others still run kernels.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use aqueduct::ErrorKind;
use aqueduct::channel::MemoryChannel;
use aqueduct::comm::Transport;
use aqueduct::gpu::{GpuBuffer, PinnedBuffer, Stream};

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
        for error in [stream.synchronize(soon()).unwrap_err(), rank.comm.check().unwrap_err()] {
            assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
            assert!(error.message().contains("good order"), "{error}");
        }
        let record = rank.comm.abort_record().expect("the kernel recorded what it waited for").to_string();
        assert!(record.contains("semaphore wait on rank 1"), "{record}");
        assert!(channel.signal(&stream).is_err());
    });
}

/// The stream has not come to the kernel yet.
#[test]
fn where_a_kernel_writes_its_result_is_kept_until_it_has() {
    threads(2, |rank| {
        let channel = channel(&rank, 1 - rank.me());
        let stream = Stream::new(rank.comm.context()).unwrap();
        let gate = Arc::new(PinnedBuffer::new(rank.comm.context(), 8).unwrap());
        let taken = Arc::new(GpuBuffer::new(rank.comm.context(), 4).unwrap());
        let weak = Arc::downgrade(&taken);
        stream.wait_value64(&gate.slice(..).unwrap(), 1).unwrap();
        channel.poll(&stream, &taken.slice(..).unwrap()).unwrap();
        drop(taken);
        let kept = weak.upgrade().is_some();
        gate.memory().word64(0).unwrap().store(1, Ordering::Release);
        stream.synchronize(soon()).unwrap();
        rank.barrier();
        assert!(kept, "the kernel writes to memory that is gone");
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

/// Its connection, which has a word of its own, stays open.
#[test]
fn a_kernel_waiting_for_signals_of_a_host_that_left_ends() {
    threads(2, |rank| {
        let connection = rank.comm.connect(1 - rank.me(), 0, Transport::Ethernet).unwrap();
        let semaphore = rank.comm.build_host2device_semaphore(&connection, 0).unwrap();
        rank.comm.setup(soon()).unwrap();
        let signals = aqueduct::channel::InboundSignals::new(&semaphore.get().unwrap()).unwrap();
        let stream = Stream::new(rank.comm.context()).unwrap();
        if rank.me() == 0 {
            signals.wait(&stream).unwrap();
            rank.barrier();
            let ended = stream.synchronize(Duration::from_secs(20));
            // Whatever came of it, no kernel goes on after this.
            rank.comm.abort("the test is over");
            rank.barrier();
            let error = ended.unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
        } else {
            rank.barrier();
            rank.comm.close(soon()).unwrap();
            rank.barrier();
        }
    });
}

/// Nothing that the kernel waits for can come any more.
#[test]
fn a_kernel_that_waits_while_its_own_rank_closes_ends() {
    threads(2, |rank| {
        let channel = channel(&rank, 1 - rank.me());
        let stream = Stream::new(rank.comm.context()).unwrap();
        if rank.me() == 0 {
            channel.wait(&stream).unwrap();
            rank.comm.close(soon()).unwrap();
            let error = stream.synchronize(Duration::from_secs(20)).unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::Aborted, Some(0)), "{error}");
            assert!(error.message().contains("synchronize its streams before close"), "{error}");
        }
        rank.barrier();
        if rank.me() == 1 {
            rank.comm.check().expect("another rank's mistake is no failure of this one");
        }
        rank.barrier();
    });
}
