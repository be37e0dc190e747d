//! Over every transport: flushes while others keep posting, stopping under load, and offsets beyond 4 GiB.

use aqueduct::comm::{EndpointConfig, Transport};
use aqueduct::gpu::Stream;
use aqueduct::proxy::{ProxyService, ProxyServiceConfig};
use aqueduct_ptx::abi::{LEFT_CLOSED, LEFT_NOT};
use aqueduct_tests::not_run;

use super::kernels::{Kernels, Report};
use super::peer_channel::{PeerChannel, peer_channels};
use crate::data::{assert_same, bytes};
use crate::group::{Rank, can_lock, soon};

/// Makes a channel with buffers of `len` bytes over a new service with `fifo_size` slots.
fn end(
    rank: &Rank,
    endpoint: &EndpointConfig,
    tag: u64,
    len: usize,
    fifo_size: usize,
) -> (ProxyService, PeerChannel) {
    let config = ProxyServiceConfig { fifo_size, ..ProxyServiceConfig::default() };
    let service = ProxyService::start(&rank.comm, config).unwrap();
    let end = peer_channels(rank, &service, &[(1 - rank.me(), tag)], endpoint.clone(), len).remove(0);
    (service, end)
}

/// One block overwrites its source after each flush, while the others put until it has ended. A flush
/// that waited for them would never return, and one that returned too early would let a later value be put.
pub(super) fn flush_while_others_post(rank: &Rank, endpoint: &EndpointConfig) {
    const BLOCKS: u32 = 5;
    const LEN: usize = 64 << 10;
    // Each flush waits for all earlier puts of the others, of which an emulated NIC does a thousand per second.
    let count = if matches!(endpoint.transport, Transport::Ib(_)) { 20 } else { 200 };
    let (service, end) = end(rank, endpoint, 100, LEN, 64);
    let (kernels, report) = (Kernels::load(rank.comm.context()), Report::new(rank.comm.context()));
    rank.barrier();
    kernels.mixed(&end.stream, &end.channel, BLOCKS, count, LEN as u64 / 2, &report);
    end.done();
    assert_eq!((report.status(), report.number(0)), (LEFT_NOT, u64::from(count)));
    let others: u64 = (1..BLOCKS as usize).map(|block| report.number(block)).sum();
    assert!(others >= u64::from(count), "only {others} puts of others between {count} flushes");
    end.channel.signal(&end.stream).unwrap();
    end.channel.wait(&end.stream).unwrap();
    end.done();
    let expected: Vec<u64> = (1..=u64::from(count)).collect();
    assert_eq!(PeerChannel::words(&end.inbox, count as usize), expected, "a source was read after its flush");
    rank.barrier();
    service.stop(soon()).unwrap();
    rank.barrier();
}

/// Exactly the puts that the kernel reports as accepted arrive.
pub(super) fn stopping_loses_nothing(rank: &Rank, endpoint: &EndpointConfig) {
    const LEN: usize = 4 << 20;
    const BLOCKS: usize = 4;
    const WORDS: usize = LEN / 8 / BLOCKS;
    for (round, fifo_size) in (0..).zip([2, 512]) {
        let (service, end) = end(rank, endpoint, 110 + round, LEN, fifo_size);
        let (kernels, report) = (Kernels::load(rank.comm.context()), Report::new(rank.comm.context()));
        let word = |me: u32, index: usize| (index as u64 + 1) << 8 | u64::from(me) << 1 | 1;
        let words: Vec<u64> = (0..WORDS).map(|index| word(rank.me(), index)).collect();
        end.local.upload(0, &words, soon()).unwrap();
        rank.barrier();
        kernels.storm(&end.stream, &end.channel, BLOCKS as u32, WORDS as u32, &report);
        let deadline = soon();
        while end.channel.counters().unwrap().puts < 500 {
            deadline.check("counters", "puts").unwrap();
            std::thread::yield_now();
        }
        service.stop(soon()).unwrap();
        end.stream.synchronize(soon()).unwrap();
        assert_eq!(report.status(), LEFT_CLOSED, "a put after the stop says so");
        let taken: Vec<u64> = (0..BLOCKS).map(|block| report.number(block)).collect();
        let counters = service.counters();
        assert_eq!(counters.proxies[0].triggers, taken.iter().sum::<u64>(), "taken and handled");
        assert_eq!(counters.dropped, 0);
        // A stopped service has passed everything to the connection, which may still be sending.
        end.connection.flush(soon()).unwrap();
        let said: Vec<u8> = taken.iter().flat_map(|count| count.to_ne_bytes()).collect();
        let said = rank.bootstrap.all_gather(&said, soon()).unwrap();
        let seen = PeerChannel::words(&end.inbox, BLOCKS * WORDS);
        let theirs = said[end.peer as usize].chunks_exact(8);
        for (block, (count, seen)) in theirs.zip(seen.chunks(WORDS)).enumerate() {
            let count = u64::from_ne_bytes(count.try_into().unwrap()) as usize;
            let wrong = (0..WORDS).find(|&i| seen[i] != if i < count { word(end.peer, i) } else { 0 });
            assert_eq!(wrong, None, "block {block} of rank {} put {count} words", end.peer);
        }
        rank.barrier();
    }
}

/// Several host threads, each with its own stream, share a channel.
pub(super) fn several_streams(rank: &Rank, endpoint: &EndpointConfig) {
    const STREAMS: usize = 4;
    const EACH: usize = 20;
    const SIZE: usize = 3000;
    let (service, end) = end(rank, endpoint, 130, STREAMS * EACH * SIZE, 8);
    end.local.upload(0, &bytes(rank.me(), 3, end.local.len()), soon()).unwrap();
    let streams = [(); STREAMS].map(|()| Stream::new(rank.comm.context()).unwrap());
    rank.barrier();
    std::thread::scope(|scope| {
        for (i, stream) in streams.iter().enumerate() {
            let channel = &end.channel;
            scope.spawn(move || {
                for at in (0..EACH).map(|j| (i * EACH + j) * SIZE) {
                    channel.put_with_signal(stream, at, at, SIZE).unwrap();
                }
                channel.flush(stream).unwrap();
            });
        }
    });
    (0..STREAMS * EACH).for_each(|_| end.channel.wait(&end.stream).unwrap());
    end.done();
    streams.iter().for_each(|stream| stream.synchronize(soon()).unwrap());
    let mut seen = vec![0; end.inbox.len()];
    end.inbox.download(0, &mut seen, soon()).unwrap();
    assert_same(&seen, &bytes(end.peer, 3, seen.len()), format_args!("from {STREAMS} streams"));
    assert_eq!(end.channel.counters().unwrap().puts, (STREAMS * EACH) as u64);
    rank.barrier();
    service.stop(soon()).unwrap();
    rank.barrier();
}

/// Puts from and to offsets that do not fit into 32 bits.
pub(super) fn far_offsets(rank: &Rank, endpoint: &EndpointConfig) {
    const LEN: usize = 9 << 30;
    const SIZE: usize = 5000;
    const PLACES: [(usize, usize); 3] = [(LEN - SIZE, 0), (3, LEN - SIZE), ((5 << 30) + 1, (4 << 30) + 7)];
    if matches!(endpoint.transport, Transport::Ib(_)) && !can_lock(3 * LEN) {
        let why = format!("needs {} GiB of memory that can be locked", (3 * LEN) >> 30);
        return not_run("ports: offsets beyond 8 GiB over a NIC", why);
    }
    let (service, end) = end(rank, endpoint, 120, LEN, 512);
    for (i, (_, from)) in (0..).zip(PLACES) {
        end.local.upload(from, &bytes(rank.me(), i, SIZE), soon()).unwrap();
    }
    rank.barrier();
    for (to, from) in PLACES {
        end.channel.put(&end.stream, to, from, SIZE).unwrap();
    }
    end.channel.signal(&end.stream).unwrap();
    end.channel.wait(&end.stream).unwrap();
    end.done();
    for (i, (to, from)) in (0..).zip(PLACES) {
        let mut seen = vec![0; SIZE];
        end.inbox.download(to, &mut seen, soon()).unwrap();
        assert_same(&seen, &bytes(end.peer, i, SIZE), format_args!("from {from} to {to}"));
    }
    rank.barrier();
    service.stop(soon()).unwrap();
}
