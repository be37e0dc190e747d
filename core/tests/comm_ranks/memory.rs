//! Memory and connections between ranks of one process.

use std::sync::Arc;

use aqueduct::ErrorKind;
use aqueduct::bootstrap::Bootstrap;
use aqueduct::comm::{Registration, Rights, Transport, Transports};
use aqueduct::gpu::{Event, GpuBuffer, HandlePolicy, Stream};

use crate::support::{bytes, config, context, driver, paint, soon, threads};

const LEN: usize = 10_000;

#[test]
fn every_rank_receives_memory_of_all_ranks_and_itself() {
    threads(3, |rank| {
        for (tag, handles) in [(1, HandlePolicy::Auto), (2, HandlePolicy::Legacy)] {
            let mine = rank.comm.register_memory(&rank.buffer(LEN, handles), Transport::CudaIpc).unwrap();
            let received: Vec<_> = (0..3)
                .map(|peer| {
                    rank.comm.send_memory(&mine, peer, tag).unwrap();
                    rank.comm.recv_memory(peer, tag).unwrap()
                })
                .collect();
            rank.comm.setup(soon()).unwrap();
            for (peer, memory) in (0..3).zip(&received) {
                let memory = memory.get().unwrap();
                assert_eq!((memory.received_from(), memory.is_local()), (Some(peer), false));
                assert_eq!(bytes(&memory), paint(LEN, peer), "rank {} from {peer}", rank.me());
            }
            rank.barrier();
        }
    });
}

#[test]
fn writes_reads_and_signals_go_where_they_should_and_nowhere_else() {
    threads(3, |rank| {
        let (me, next, previous) = (rank.me(), (rank.me() + 1) % 3, (rank.me() + 2) % 3);
        let mine = rank.registered(LEN);
        // Only the middle is registered for the peer's writes.
        let window = mine.range(1000, 4000).unwrap();
        rank.comm.send_memory(&window, previous, 0).unwrap();
        let theirs = rank.comm.recv_memory(next, 0).unwrap();
        let forward = rank.comm.connect(next, 5, Transport::CudaIpc).unwrap();
        rank.comm.connect(previous, 5, Transport::CudaIpc).unwrap();
        rank.comm.setup(soon()).unwrap();
        let (theirs, forward) = (theirs.get().unwrap(), forward.get().unwrap());
        assert_eq!((theirs.len(), forward.peer(), forward.tag()), (4000, next, 5));

        // A stream of the user produces the source.
        let stream = Stream::new(rank.comm.context()).unwrap();
        let source = rank.registered(512);
        stream.fill(source.slice().unwrap(), 200 + me as u8).unwrap();
        let produced = Event::new(rank.comm.context()).unwrap();
        produced.record(&stream).unwrap();
        forward.wait_event(&produced).unwrap();
        forward.write(&theirs, 8, &source, 1, 501).unwrap();
        let mut counter = 0;
        forward.update_and_sync(&theirs, 3200, &mut counter, 77 + u64::from(me)).unwrap();
        forward.write(&theirs, 4000, &source, 512, 0).unwrap();
        forward.flush(soon()).unwrap();
        assert_eq!(counter, 77 + u64::from(me));
        rank.barrier();

        let mut expected = paint(LEN, me);
        expected[1008..1509].fill(200 + previous as u8);
        expected[4200..4208].copy_from_slice(&(77 + u64::from(previous)).to_le_bytes());
        assert_eq!(bytes(&mine), expected);

        forward.read(&source, 0, &theirs, 3000, 512).unwrap();
        forward.flush(soon()).unwrap();
        let mut expected = paint(LEN, next)[4000..4512].to_vec();
        expected[200..208].copy_from_slice(&(77 + u64::from(me)).to_le_bytes());
        assert_eq!(bytes(&source), expected);
        let counters = forward.counters();
        assert_eq!((counters.writes, counters.bytes_written, counters.reads), (2, 501, 1));
        assert_eq!((counters.bytes_read, counters.signals, counters.flushes), (512, 1, 2));
        rank.barrier();
    });
}

#[test]
fn wrong_uses_of_a_connection_are_refused_on_the_host() {
    threads(2, |rank| {
        let peer = 1 - rank.me();
        let mine = rank.registered(4096);
        rank.comm.send_memory(&mine, peer, 0).unwrap();
        let theirs = rank.comm.recv_memory(peer, 0).unwrap();
        let connection = rank.comm.connect(peer, 0, Transport::CudaIpc).unwrap();
        rank.comm.setup(soon()).unwrap();
        let (theirs, connection) = (theirs.get().unwrap(), connection.get().unwrap());
        let usage = |result: aqueduct::Result<()>, text: &str| {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
            assert!(error.message().contains(text), "{error}");
        };
        usage(connection.write(&theirs, 4000, &mine, 0, 97), "past the end");
        usage(connection.write(&theirs, 0, &mine, 4096, 1), "past the end");
        usage(connection.write(&theirs, usize::MAX, &mine, 0, 2), "past the end");
        usage(connection.read(&mine, 0, &theirs, 2, usize::MAX), "past the end");
        usage(connection.write(&mine, 0, &mine, 0, 8), "it is this rank's own");
        usage(connection.write(&theirs, 0, &theirs, 0, 8), "it was received from rank");
        usage(connection.read(&theirs, 0, &mine, 0, 8), "it was received from rank");
        let mut counter = 5;
        usage(connection.update_and_sync(&theirs, 4, &mut counter, 9), "multiple of 8");
        usage(connection.update_and_sync(&theirs, 4096, &mut counter, 9), "past the end");
        assert_eq!(counter, 5, "a refused signal does not change the counter");
        let unregistered =
            rank.comm.register_memory(&rank.buffer(64, HandlePolicy::Auto), Transports::NONE).unwrap();
        usage(connection.write(&theirs, 0, &unregistered, 0, 8), "not registered for CudaIpc");
        usage(rank.comm.send_memory(&unregistered, peer, 9).map(drop), "registered for no transport");
        usage(rank.comm.send_memory(&theirs, peer, 9).map(drop), "cannot be sent on");
        usage(theirs.range(4096, 1).map(drop), "past the end");
        usage(theirs.range(usize::MAX, 2).map(drop), "past the end");
        assert_eq!(connection.counters(), Default::default());
        assert_eq!(bytes(&theirs), paint(4096, peer));
        rank.barrier();
    });
}

#[test]
fn registering_checks_range_and_device() {
    let other = context(&driver(), 5);
    threads(1, |rank| {
        let buffer = rank.buffer(100, HandlePolicy::Auto);
        for (offset, len) in [(0, 0), (100, 1), (1, 100), (usize::MAX, 2)] {
            let error = rank.comm.register_range(&buffer, offset, len, Transport::CudaIpc).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{offset} {len}");
        }
        let elsewhere = Arc::new(GpuBuffer::new(&other, 64).unwrap());
        let error = rank.comm.register_memory(&elsewhere, Transport::CudaIpc).unwrap_err();
        assert!(error.message().contains("device 5"), "{error}");
        // SAFETY: a refused registration uses nothing.
        let error = unsafe { rank.comm.register_raw(0x1000, 64, Transport::CudaIpc) }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
        // SAFETY: the buffer outlives the memory, which is used only here.
        let raw = unsafe { rank.comm.register_raw(buffer.ptr() + 10, 50, Transport::CudaIpc) }.unwrap();
        assert_eq!(bytes(&raw), paint(100, 0)[10..60]);
        // SAFETY: as above.
        let error =
            unsafe { rank.comm.register_raw(buffer.ptr(), buffer.allocated() + 1, Transport::CudaIpc) }
                .unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidUsage | ErrorKind::Cuda), "{error}");
    });
}

#[test]
fn a_channel_to_oneself_copies_and_signals_itself() {
    threads(1, |rank| {
        let mine = rank.registered(256);
        rank.comm.send_memory(&mine, 0, 3).unwrap();
        let received = rank.comm.recv_memory(0, 3).unwrap();
        let connection = rank.comm.connect(0, 0, Transport::CudaIpc).unwrap();
        let semaphore = rank.comm.build_semaphore(&connection, 0).unwrap();
        rank.comm.setup(soon()).unwrap();
        let (received, connection) = (received.get().unwrap(), connection.get().unwrap());
        assert_eq!(received.ptr(), mine.ptr());
        connection.write(&received, 128, &mine, 0, 128).unwrap();
        connection.flush(soon()).unwrap();
        assert_eq!(bytes(&mine)[128..], paint(256, 0)[..128]);
        let handle = semaphore.get().unwrap().device_handle();
        assert_eq!(handle.remote_inbound, handle.inbound);
    });
}

#[test]
fn received_memory_outlives_communicator_and_sender() {
    let driver = driver();
    let mut ranks = aqueduct::bootstrap::local(2).into_iter();
    let (a, b) = (ranks.next().unwrap(), ranks.next().unwrap());
    let sender = std::thread::scope(|s| {
        let sender = s.spawn(|| {
            let rank = crate::support::Rank::join(Arc::new(a), &context(&driver, 0), config());
            rank.comm.send_memory(&rank.registered(500), 1, 0).unwrap();
            rank.comm.setup(soon()).unwrap();
            rank.comm
        });
        let receiver = s.spawn(|| {
            let rank = crate::support::Rank::join(Arc::new(b), &context(&driver, 1), config());
            let pending = rank.comm.recv_memory(0, 0).unwrap();
            rank.comm.setup(soon()).unwrap();
            pending.get().unwrap()
        });
        (sender.join().unwrap(), receiver.join().unwrap())
    });
    let (sender, memory) = sender;
    drop(sender);
    assert_eq!(bytes(&memory), paint(500, 0));
}

#[test]
fn topology_and_peers_describe_the_other_ranks() {
    let driver = driver();
    std::thread::scope(|s| {
        for bootstrap in aqueduct::bootstrap::local(3) {
            let driver = &driver;
            s.spawn(move || {
                // Ranks 0 and 1 share a device, and rank 2 reports another host.
                let host = if bootstrap.rank() == 2 { "there" } else { "here" };
                let ordinal = bootstrap.rank() / 2 + 3;
                let config = config().with_host_id(host);
                let rank = crate::support::Rank::join(Arc::new(bootstrap), &context(driver, ordinal), config);
                let near = |peer: u32| *rank.comm.topology().peer(peer).unwrap();
                let other = 1 - rank.me().min(1);
                if rank.me() != 2 {
                    assert!(near(other).same_device && near(other).same_process && near(other).is_nvlink());
                    assert!(
                        !near(2).same_host
                            && !near(2).is_reachable()
                            && !rank.comm.topology().all_reachable()
                    );
                    let memory = rank.registered(64);
                    let error = rank.comm.send_memory(&memory, 2, 0).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                    assert!(error.message().contains("another host (there)"), "{error}");
                }
                assert_eq!(rank.comm.peers()[2].host, "there");
                assert_eq!(rank.comm.peers()[0].pid, std::process::id());
                assert!(rank.comm.topology().peer(3).is_none());
                rank.barrier();
            });
        }
    });
}

#[test]
fn ranks_on_different_devices_have_a_link_with_access() {
    threads(2, |rank| {
        let peer = rank.comm.topology().peer(1 - rank.me()).unwrap();
        assert!(peer.same_host && !peer.same_device);
        assert!(peer.link.expect("both devices are visible").access);
        rank.barrier();
    });
}

#[test]
fn rights_are_those_of_the_registration_and_one_buffer_has_several() {
    threads(2, |rank| {
        let peer = 1 - rank.me();
        let buffer = rank.buffer(LEN, HandlePolicy::Auto);
        let ways = Transports::CUDA_IPC | Transports::ETHERNET;
        let rights = [Rights::REMOTE_READ, Rights::REMOTE_WRITE, Rights::READ_WRITE];
        let received: Vec<_> = (0..)
            .zip(rights)
            .map(|(tag, rights)| {
                let registration = Registration::new(ways).with_rights(rights);
                let mine = rank.comm.register_memory(&buffer, registration).unwrap();
                rank.comm.send_memory(&mine, peer, tag).unwrap();
                rank.comm.recv_memory(peer, tag).unwrap()
            })
            .collect();
        let private = Registration::new(ways).with_rights(Rights::LOCAL_ONLY);
        let private = rank.comm.register_memory(&buffer, private).unwrap();
        let error = rank.comm.send_memory(&private, peer, 9).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
        assert!(error.message().contains("this rank only"), "{error}");
        let connections = [Transport::CudaIpc, Transport::Ethernet].map(|transport| {
            rank.comm.connect(peer, 0x7 + u64::from(transport == Transport::Ethernet), transport).unwrap()
        });
        rank.comm.setup(soon()).unwrap();
        let [readable, writable, both] = [0, 1, 2].map(|i: usize| received[i].get().unwrap());
        assert_eq!(readable.rights(), Rights::REMOTE_READ);
        let scratch = rank.comm.register_memory(&rank.buffer(64, HandlePolicy::Auto), ways).unwrap();
        for connection in connections {
            let connection = connection.get().unwrap();
            let refused = |result: aqueduct::Result<()>, needed: &str| {
                let error = result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
                assert!(error.message().contains(needed), "{error}");
            };
            refused(connection.write(&readable, 0, &scratch, 0, 8), "REMOTE_WRITE");
            refused(connection.update_and_sync(&readable, 0, &mut 0, 1), "REMOTE_WRITE");
            refused(connection.read(&scratch, 0, &writable, 0, 8), "REMOTE_READ");
            connection.write(&writable, 0, &scratch, 0, 8).unwrap();
            connection.write(&both, 8, &scratch, 0, 8).unwrap();
            connection.flush(soon()).unwrap();
        }
        rank.barrier();
    });
}

#[test]
fn one_call_exchanges_buffers_of_different_sizes_with_all_ranks() {
    threads(4, |rank| {
        let size = |of: u32, number: usize| 100 + of as usize * 10 + number;
        let buffers: Vec<_> =
            (0..3).map(|number| rank.buffer(size(rank.me(), number), HandlePolicy::Auto)).collect();
        // The same tag as somebody else's memory, which does not meet it.
        let next = (rank.me() + 1) % 4;
        rank.comm.send_memory(&rank.registered(7), next, 5).unwrap();
        let other = rank.comm.recv_memory((rank.me() + 3) % 4, 5).unwrap();
        let exchange = rank.comm.exchange_memory(&buffers, Transport::CudaIpc, 5).unwrap();
        assert_eq!(exchange.get().unwrap_err().kind(), ErrorKind::InvalidUsage);
        rank.comm.setup(soon()).unwrap();
        let all = exchange.get().unwrap();
        assert_eq!((all.len(), all[0].len(), exchange.mine().len()), (4, 3, 3));
        for (of, memories) in (0..).zip(&all) {
            for (number, memory) in memories.iter().enumerate() {
                assert_eq!(bytes(memory), paint(size(of, number), of), "buffer {number} of rank {of}");
                assert_eq!(memory.is_local(), of == rank.me());
            }
        }
        assert_eq!(other.get().unwrap().len(), 7);
        assert!(exchange.memory(4, 0).is_err() && exchange.memory(0, 3).is_err());
        rank.barrier();
    });
}

#[test]
fn an_exchange_that_cannot_be_asked_for_leaves_nothing_to_set_up() {
    threads(2, |rank| {
        let error = rank.comm.exchange_memory(&[], Transport::CudaIpc, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
        let buffers = [rank.buffer(64, HandlePolicy::Auto)];
        let first = rank.comm.exchange_memory(&buffers, Transport::CudaIpc, 0).unwrap();
        let twice = rank.comm.exchange_memory(&buffers, Transport::CudaIpc, 0).unwrap_err();
        assert!(twice.message().contains("asked for twice"), "{twice}");
        rank.comm.setup(soon()).unwrap();
        first.get().unwrap();
        rank.barrier();
    });
}

/// The service thread, which hears of it, must not free device memory; so the next call does, of the context as well.
#[test]
fn memory_that_a_peer_gave_back_is_freed_by_the_next_reap() {
    threads(2, |rank| {
        for by_allocating in [false, true] {
            let (buffer, peer) = (rank.buffer(LEN, HandlePolicy::Auto), 1 - rank.me());
            let memory = rank.comm.register_memory(&buffer, Transport::Ethernet).unwrap();
            let freed = Arc::downgrade(&buffer);
            drop(buffer);
            if rank.me() == 0 {
                rank.comm.send_memory(&memory, peer, 0).unwrap();
                rank.comm.setup(soon()).unwrap();
                drop(memory);
                let until = soon();
                rank.comm.context().reap();
                assert!(freed.upgrade().is_some(), "rank 1 has it");
                rank.barrier();
                while freed.upgrade().is_some() {
                    assert!(!until.expired(), "only a call of the communicator would free it");
                    if by_allocating {
                        drop(GpuBuffer::new(rank.comm.context(), 64).unwrap());
                    } else {
                        rank.comm.context().reap();
                    }
                }
            } else {
                let received = rank.comm.recv_memory(peer, 0).unwrap();
                rank.comm.setup(soon()).unwrap();
                rank.barrier();
                drop(received);
            }
            rank.barrier();
        }
    });
}
