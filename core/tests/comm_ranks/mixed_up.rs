//! Memory, connections and semaphores of different communicators, which may not be mixed.

use std::sync::Arc;

use aqueduct::channel::MemoryChannel;
use aqueduct::channel::PortChannel;
use aqueduct::comm::{Communicator, Connection, HostBuffer, RegisteredMemory, Transport};
use aqueduct::gpu::HandlePolicy;
use aqueduct::proxy::{ProxyService, ProxyServiceConfig};
use aqueduct::{Deadline, ErrorKind};

use crate::support::{Rank, shortly, soon, threads};

const LEN: usize = 64;

struct Pair {
    mine: RegisteredMemory,
    inbox: Arc<HostBuffer>,
    theirs: RegisteredMemory,
    connection: Connection,
}

/// A connection over TCP to rank `peer` of `comm`, with memory at both ends.
fn pair(comm: &Communicator, peer: u32) -> Pair {
    let [source, inbox] = [(); 2].map(|()| Arc::new(HostBuffer::new(comm.context(), LEN).unwrap()));
    let [mine, arrivals] =
        [&source, &inbox].map(|buffer| comm.register_host(buffer, Transport::Ethernet).unwrap());
    comm.send_memory(&arrivals, peer, 0).unwrap();
    let theirs = comm.recv_memory(peer, 0).unwrap();
    let connection = comm.connect(peer, 0, Transport::Ethernet).unwrap();
    comm.setup(soon()).unwrap();
    Pair { mine, inbox, theirs: theirs.get().unwrap(), connection: connection.get().unwrap() }
}

fn is_refused<T>(result: aqueduct::Result<T>, text: &str) {
    let error = result.err().expect("it is refused");
    assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
    assert!(error.message().contains(text), "{error}");
}

/// Regions are numbered by each communicator, so that the same number is another buffer there.
#[test]
fn memory_that_one_communicator_received_is_no_target_of_anothers_connection() {
    threads(2, |rank| {
        let peer = 1 - rank.me();
        let [one, other] = [(); 2].map(|()| rank.comm.duplicate(soon()).unwrap());
        let (one, other) = (pair(&one, peer), pair(&other, peer));
        is_refused(one.connection.write(&other.theirs, 0, &one.mine, 0, LEN), "another communicator");
        is_refused(one.connection.update_and_sync(&other.theirs, 0, &mut 0, 1), "another communicator");
        // Memory of this rank can be used with each of its communicators.
        one.connection.write(&one.theirs, 0, &other.mine, 0, LEN).unwrap();
        one.connection.flush(soon()).unwrap();
        rank.barrier();
    });
}

/// World rank 2 is rank 1 of the group of ranks 0 and 2.
#[test]
fn ranks_of_a_group_are_not_those_of_another() {
    threads(3, |rank| {
        let part = rank.comm.split((rank.me() != 1).then_some(0), 0, soon()).unwrap();
        let memory = rank.registered(LEN);
        let received = part.as_ref().map(|part| {
            let peer = 1 - part.rank();
            part.send_memory(&memory, peer, 0).unwrap();
            let theirs = part.recv_memory(peer, 0).unwrap();
            part.setup(soon()).unwrap();
            theirs.get().unwrap()
        });
        let peer = (rank.me() < 2).then(|| 1 - rank.me());
        let asked = peer.map(|peer| {
            let connection = rank.comm.connect(peer, 0, Transport::CudaIpc).unwrap();
            let semaphore = rank.comm.build_semaphore(&connection, 0).unwrap();
            (connection, semaphore)
        });
        rank.comm.setup(soon()).unwrap();
        if let (Some((connection, semaphore)), Some(received)) = (asked, received) {
            let connection = connection.get().unwrap();
            assert_eq!(received.received_from(), Some(connection.peer()), "the numbers are equal");
            is_refused(connection.write(&received, 0, &memory, 0, LEN), "another communicator");
            let semaphore = semaphore.get().unwrap();
            is_refused(MemoryChannel::new(&semaphore, &received, &memory, None), "another communicator");
        }
        rank.barrier();
    });
}

#[test]
fn a_port_channel_takes_no_memory_of_another_communicator() {
    threads(2, |rank| {
        let peer = 1 - rank.me();
        let other = pair(&rank.comm.duplicate(soon()).unwrap(), peer);
        let connection = rank.comm.connect(peer, 0, Transport::Ethernet).unwrap();
        let semaphore = rank.comm.build_host2device_semaphore(&connection, 0).unwrap();
        rank.comm.setup(soon()).unwrap();
        let service = ProxyService::start(&rank.comm, ProxyServiceConfig::default()).unwrap();
        let semaphore = service.add_semaphore(&semaphore.get().unwrap()).unwrap();
        let [dst, src] = [&other.theirs, &other.mine].map(|memory| service.add_memory(memory).unwrap());
        is_refused(PortChannel::new(&service, semaphore, dst, src), "another communicator");
        service.stop(soon()).unwrap();
        rank.barrier();
    });
}

/// Every rank hears of it, also the one with fewest buffers.
#[test]
fn an_exchange_of_unequal_sets_fails_at_all_ranks() {
    threads(2, |rank| {
        let buffers: Vec<_> = (0..=rank.me()).map(|_| rank.buffer(LEN, HandlePolicy::Auto)).collect();
        rank.comm.exchange_memory(&buffers, Transport::CudaIpc, 3).unwrap();
        let error = rank.comm.setup(shortly()).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Timeout, Some(1 - rank.me())), "{error}");
        let count = buffers.len();
        let said = format!("exchange_memory with {count} buffers and tag 3");
        assert!(error.message().contains(&said), "{error}");
        rank.barrier();
    });
}

#[test]
fn a_nic_beyond_those_that_can_be_named_is_refused() {
    threads(1, |rank| {
        let buffer = rank.buffer(LEN, HandlePolicy::Auto);
        for nic in [24, 255] {
            is_refused(rank.comm.register_memory(&buffer, Transport::Ib(nic)), "Ib0 to Ib23");
        }
    });
}

/// The child calls what sends over the parent's socket; the parent's data, held back meanwhile, arrives.
#[test]
fn a_forked_child_sends_nothing_over_its_parents_connections() {
    const NAME: &str = "mixed_up::a_forked_child_sends_nothing_over_its_parents_connections";
    crate::support::processes(2, NAME, crate::support::all_succeed, |rank: Rank| {
        let end = pair(&rank.comm, 1 - rank.me());
        if rank.me() == 0 {
            let context = rank.comm.context();
            let gate = Arc::new(aqueduct::gpu::PinnedBuffer::new(context, 8).unwrap());
            let stream = aqueduct::gpu::Stream::new(context).unwrap();
            let event = aqueduct::gpu::Event::new(context).unwrap();
            stream.wait_value64(&gate.slice(..).unwrap(), 1).unwrap();
            event.record(&stream).unwrap();
            end.connection.wait_event(&event).unwrap();
            end.mine.host().unwrap().fill(9);
            end.connection.write(&end.theirs, 0, &end.mine, 0, LEN).unwrap();
            // SAFETY: the child calls what is to be refused and leaves with _exit; no other thread of this process is inside the
            // library but its service threads, which hold locks for moments only.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let refused = end.connection.flush(Deadline::after(std::time::Duration::ZERO)).is_err();
                drop(end.connection.batch());
                // SAFETY: ends the child without running the parent's destructors.
                unsafe { libc::_exit(if refused { 0 } else { 1 }) };
            }
            let mut status = 0;
            // SAFETY: `child` is ours and `status` is a live output.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child could flush");
            gate.memory().word64(0).unwrap().store(1, std::sync::atomic::Ordering::Release);
            end.connection.flush(soon()).unwrap();
        }
        rank.barrier();
        if rank.me() == 1 {
            let mut seen = [0; LEN];
            end.inbox.memory().read(0, &mut seen).unwrap();
            assert_eq!(seen, [9; LEN]);
        }
        rank.barrier();
    });
}
