//! Setup items: how both ends are matched, and how setup fails.

use std::sync::Arc;
use std::time::Duration;

use aqueduct::comm::{
    Communicator, Connection, Device2DeviceSemaphore, EndpointConfig, Pending, RegisteredMemory, Transport,
};
use aqueduct::{Deadline, ErrorKind};

use crate::support::{bytes, paint, shortly, soon, threads};

#[test]
fn items_are_matched_by_kind_peer_and_tag_in_any_order_of_calls() {
    threads(4, |rank| {
        let tags: Vec<u64> = (0..5).collect();
        let sizes =
            |from: u32, to: u32, tag: u64| 64 + (from as usize * 100 + to as usize * 10 + tag as usize) * 8;
        let peers: Vec<u32> = (0..4).filter(|peer| *peer != rank.me()).collect();
        let mut received = Vec::new();
        for &peer in &peers {
            // One rank asks in ascending order, the other in descending order.
            let order: Vec<u64> =
                if rank.me() < peer { tags.clone() } else { tags.iter().rev().copied().collect() };
            for tag in order {
                let mine = rank.registered(sizes(rank.me(), peer, tag));
                rank.comm.send_memory(&mine, peer, tag).unwrap();
                received.push((peer, tag, rank.comm.recv_memory(peer, tag).unwrap()));
            }
        }
        let connections: Vec<_> = peers
            .iter()
            .rev()
            .flat_map(|&peer| tags.iter().map(move |&tag| (peer, tag)))
            .map(|(peer, tag)| rank.comm.connect(peer, tag, Transport::CudaIpc).unwrap())
            .collect();
        rank.comm.setup(soon()).unwrap();
        for (peer, tag, memory) in received {
            let memory = memory.get().unwrap();
            assert_eq!(memory.len(), sizes(peer, rank.me(), tag), "from {peer} with tag {tag}");
            assert_eq!(bytes(&memory), paint(memory.len(), peer));
        }
        assert!(connections.iter().all(Pending::is_ready));
        rank.barrier();
    });
}

#[test]
fn a_semaphore_is_made_in_the_setup_of_its_connection_and_slots_are_reused() {
    threads(2, |rank| {
        let peer = 1 - rank.me();
        // More in total than the 64 slots that exist at a time.
        for round in 0..3 {
            let connection = rank.comm.connect(peer, 0, Transport::CudaIpc).unwrap();
            let semaphores: Vec<_> =
                (0..40).map(|tag| rank.comm.build_semaphore(&connection, tag).unwrap()).collect();
            rank.comm.setup(soon()).unwrap();
            let made: Vec<Device2DeviceSemaphore> = semaphores.iter().map(|s| s.get().unwrap()).collect();
            let mine: Vec<u8> = made.iter().flat_map(|s| s.device_handle().inbound.to_le_bytes()).collect();
            let all = rank.bootstrap.all_gather(&mine, soon()).unwrap();
            for (tag, semaphore) in made.iter().enumerate() {
                let handle = semaphore.device_handle();
                let theirs = all[peer as usize][tag * 8..][..8].try_into().unwrap();
                assert_eq!(handle.remote_inbound, u64::from_le_bytes(theirs), "round {round} tag {tag}");
                assert!(
                    handle.inbound != handle.expected_inbound && handle.expected_inbound != handle.outbound
                );
            }
            let counters = made[7].counters(soon()).unwrap();
            assert_eq!((counters.inbound, counters.expected_inbound, counters.outbound), (0, 0, 0));
            assert!(!made[7].has_signal(soon()).unwrap());
            rank.barrier();
            drop((semaphores, made));
            rank.barrier();
            // The peer's release message may still be on its way, on the link that a setup takes as well.
            let behind = rank.comm.connect(peer, 1, Transport::CudaIpc).unwrap();
            rank.comm.setup(soon()).unwrap();
            drop(behind.get().unwrap());
        }
    });
}

#[test]
fn invalid_requests_are_refused_at_once() {
    threads(2, |rank| {
        let usage = |error: aqueduct::Error, text: &str| {
            assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
            assert!(error.message().contains(text), "{error}");
        };
        let peer = 1 - rank.me();
        usage(rank.comm.connect(2, 0, Transport::CudaIpc).unwrap_err(), "no rank 2");
        let pending = rank.comm.connect(peer, 4, Transport::CudaIpc).unwrap();
        usage(rank.comm.connect(peer, 4, Transport::CudaIpc).unwrap_err(), "asked for twice");
        rank.comm.recv_memory(peer, 4).unwrap();
        usage(rank.comm.recv_memory(peer, 4).unwrap_err(), "asked for twice");
        usage(pending.get().unwrap_err(), "call Communicator::setup() first");
        let memory = rank.registered(64);
        rank.comm.send_memory(&memory, peer, 4).unwrap();
        rank.comm.setup(soon()).unwrap();
        assert!(pending.get().is_ok());
        rank.barrier();
    });
}

#[test]
fn only_unmatched_items_fail_at_the_deadline_and_are_named() {
    threads(2, |rank| {
        let peer = 1 - rank.me();
        let memory = rank.registered(64);
        rank.comm.send_memory(&memory, peer, 1).unwrap();
        let good = rank.comm.recv_memory(peer, 1).unwrap();
        // Each rank asks for something that the other does not.
        let lonely = rank.comm.connect(peer, 100 + u64::from(rank.me()), Transport::CudaIpc).unwrap();
        let built_on_it = rank.comm.build_semaphore(&lonely, 7).unwrap();
        let error = rank.comm.setup(shortly()).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Timeout, Some(peer)), "{error}");
        let name = format!("connect with rank {peer}, tag {}", 100 + rank.me());
        assert!(error.message().contains(&name), "{error}");
        assert!(error.message().contains("must call connect"), "{error}");
        assert_eq!(bytes(&good.get().unwrap()), paint(64, peer));
        assert!(lonely.get().is_err());
        let poisoned = built_on_it.get().unwrap_err();
        assert!(poisoned.message().contains("build_semaphore with rank"), "{poisoned}");
        rank.comm.check().unwrap();
        rank.barrier();
        // Attempts with the same name are matched in order: rank 0's first with tag 100 has failed, so rank 1's first
        // fails too.
        if rank.me() == 1 {
            rank.comm.connect(peer, 100, Transport::CudaIpc).unwrap();
            let error = rank.comm.setup(soon()).unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::Timeout, Some(0)), "{error}");
            assert!(error.message().contains("rank 0 failed"), "{error}");
        }
        let connection = rank.comm.connect(peer, 100, Transport::CudaIpc).unwrap();
        let semaphore = rank.comm.build_semaphore(&connection, 7).unwrap();
        rank.comm.setup(soon()).unwrap();
        assert!(connection.is_ready() && semaphore.is_ready());
        rank.barrier();
    });
}

#[test]
fn setup_with_nothing_to_do_and_setup_again() {
    threads(2, |rank| {
        rank.comm.setup(soon()).unwrap();
        let peer = 1 - rank.me();
        for _ in 0..3 {
            let connection = rank.comm.connect(peer, 0, Transport::CudaIpc).unwrap();
            rank.comm.setup(soon()).unwrap();
            assert!(connection.is_ready());
        }
        rank.barrier();
    });
}

#[test]
fn everything_can_be_shared_between_threads() {
    fn shared<T: Send + Sync + Clone + 'static>() {}
    shared::<Communicator>();
    shared::<Connection>();
    shared::<RegisteredMemory>();
    shared::<Device2DeviceSemaphore>();
    shared::<Pending<Connection>>();
}

/// Waits until `done`, or fails with `what`.
fn until(what: &str, done: impl Fn() -> bool) {
    let deadline = Deadline::after(Duration::from_secs(10));
    while !done() {
        assert!(!deadline.expired(), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_was_held_for_a_send_that_timed_out_is_let_go() {
    threads(2, |rank| {
        let peer = 1 - rank.me();
        if rank.me() == 0 {
            let buffer = rank.buffer(4096, aqueduct::gpu::HandlePolicy::Auto);
            let memory = rank.comm.register_memory(&buffer, Transport::Ethernet).unwrap();
            rank.comm.send_memory(&memory, peer, 1).unwrap();
            let error = rank.comm.setup(shortly()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            drop(memory);
            rank.barrier();
            rank.barrier();
            until("the buffer is held for a peer that was refused it", || {
                rank.comm.check().unwrap();
                Arc::strong_count(&buffer) == 1
            });
        } else {
            rank.barrier();
            let memory = rank.comm.recv_memory(peer, 1).unwrap();
            let error = rank.comm.setup(soon()).unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::Timeout, Some(0)), "{error}");
            assert!(memory.get().is_err());
            rank.barrier();
        }
        rank.barrier();
    });
}

#[test]
fn the_slots_of_semaphores_that_timed_out_are_free_again() {
    threads(2, |rank| {
        let peer = 1 - rank.me();
        let connection = rank.comm.connect(peer, 0, Transport::CudaIpc).unwrap();
        rank.comm.setup(soon()).unwrap();
        let connection = connection.get().unwrap();
        // All 64 that there are.
        let ask = || (0..64).map(|tag| rank.comm.build_semaphore(&connection, tag).unwrap()).collect();
        if rank.me() == 0 {
            let _: Vec<Pending<Device2DeviceSemaphore>> = ask();
            assert_eq!(rank.comm.setup(shortly()).unwrap_err().kind(), ErrorKind::Timeout);
            rank.barrier();
        } else {
            rank.barrier();
            let _: Vec<Pending<Device2DeviceSemaphore>> = ask();
            assert_eq!(rank.comm.setup(soon()).unwrap_err().kind(), ErrorKind::Timeout);
        }
        rank.barrier();
        let again: Vec<Pending<Device2DeviceSemaphore>> = ask();
        rank.comm.setup(soon()).unwrap();
        assert!(again.iter().all(Pending::is_ready));
        rank.barrier();
    });
}

#[test]
fn an_endpoint_without_time_is_refused_at_once_for_every_transport() {
    threads(2, |rank| {
        for transport in [Transport::CudaIpc, Transport::Ethernet, Transport::Ib(0)] {
            let endpoint = EndpointConfig::new(transport).with_timeout(Duration::ZERO);
            let error = rank.comm.connect(1 - rank.me(), 3, endpoint).unwrap_err();
            assert_eq!((error.op(), error.kind()), ("connect", ErrorKind::InvalidUsage), "{error}");
            assert!(error.message().contains("timeout is 0; give EndpointConfig::with_timeout"), "{error}");
        }
        // Nothing was asked for.
        rank.comm.setup(soon()).unwrap();
        rank.barrier();
    });
}

#[test]
fn a_nic_that_cannot_be_named_is_refused_at_once() {
    threads(2, |rank| {
        let error = rank.comm.connect(1 - rank.me(), 0, Transport::Ib(200)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
        assert!(error.message().contains("Ib0 to Ib23"), "{error}");
        rank.barrier();
    });
}
