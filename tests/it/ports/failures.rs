//! Connections that fail, and peers that leave, are lost or stop reading: kernels that wait for them leave with a code,
//! the host gets the reason, and everything else goes on.

use std::sync::Arc;
use std::time::Duration;

use aqueduct::ErrorKind;
use aqueduct::comm::{EndpointConfig, Transport};
use aqueduct::gpu::Stream;
use aqueduct::internals::fault::{LinkKind, NetAction, NetFault, NetFaults};
use aqueduct::proxy::{ProxyService, ProxyServiceConfig};
use aqueduct_ptx::abi::{ChannelTrigger, LEFT_TOLD, Operation, TriggerKind};
use aqueduct_tests::ranks;
use rdma_core_sys::ibv_wc_status;

use super::kernels::{Kernels, Report};
use super::peer_channel::{PeerChannel, peer_channels};
use crate::group::{
    Machine, Rank, config, processes, processes_each, processes_with, soon, threads, threads_with,
};
use crate::standin;

on_machines! { "ports::failures", super::run:
    of_a_cuda_ipc_connection;
    of_an_ethernet_connection;
    a_peer_that_leaves;
    a_peer_that_is_lost;
    a_peer_that_stops_reading;
    stopping_a_service_whose_peer_stops_reading;
}

fn run(machine: Machine, test: &str, case: fn(Machine, &str)) {
    case(machine, test);
}

const LEN: usize = 64 << 10;

fn start(rank: &Rank) -> (ProxyService, Kernels) {
    let service = ProxyService::start(&rank.comm, ProxyServiceConfig::default()).unwrap();
    (service, Kernels::load(rank.comm.context()))
}

/// Ranks 0 and 1 have a connection to each other that `fail` lets fail, and one to rank 2 each. Rank 0 calls
/// `prepare` when only the first connection exists.
fn one_of_two_fails(
    rank: &Rank,
    endpoint: &EndpointConfig,
    prepare: impl Fn(),
    fail: impl Fn(&Kernels, &PeerChannel, &Report),
    kinds: &[ErrorKind],
) {
    let me = rank.me();
    let (service, kernels) = start(rank);
    let bad =
        (me < 2).then(|| peer_channels(rank, &service, &[(1 - me, 0)], endpoint.clone(), LEN).remove(0));
    rank.barrier();
    if me == 0 {
        prepare();
    }
    let others: &[(u32, u64)] = if me < 2 { &[(2, 0)] } else { &[(0, 0), (1, 0)] };
    let good = peer_channels(rank, &service, others, endpoint.clone(), LEN);
    rank.barrier();
    if let Some(end) = &bad {
        let waiting = Stream::new(rank.comm.context()).unwrap();
        let [wait, flush, report] = [(); 3].map(|()| Report::new(rank.comm.context()));
        kernels.wait(&waiting, &end.channel, &wait);
        fail(&kernels, end, &report);
        kernels.flush(&end.stream, &end.channel, &flush);
        let told = [&waiting, &end.stream].map(|stream| stream.synchronize(soon()).unwrap_err());
        assert_eq!([wait.status(), flush.status()], [LEFT_TOLD; 2]);
        let error = end.channel.check().unwrap_err();
        assert!(kinds.contains(&error.kind()), "{error}");
        for told in told {
            assert_eq!(
                (told.op(), told.kind(), told.message(), told.peer()),
                ("synchronize", error.kind(), error.message(), error.peer())
            );
        }
        let again = end.channel.put(&end.stream, 0, 0, 8).unwrap_err();
        assert_eq!((again.kind(), again.message()), (error.kind(), error.message()), "it stays");
        let report = service.abort_report().expect("a kernel recorded why it left");
        assert!([Operation::FLUSH, Operation::WAIT].contains(&report.operation), "{report:?}");
        assert_eq!((report.rank, report.peer), (me, Some(1 - me)));
    }
    // Freeing memory waits for kernels, so no kernel may start while another rank of this process still frees memory.
    rank.barrier();
    good.iter().for_each(|end| end.works(me));
    rank.comm.check().unwrap();
    rank.barrier();
    service.stop(soon()).unwrap();
    rank.barrier();
}

/// A put with an unknown memory, which kernels of the library would not push.
fn of_a_cuda_ipc_connection(machine: Machine, test: &str) {
    threads(machine, 3, test, |rank| {
        let fail = |kernels: &Kernels, end: &PeerChannel, report: &Report| {
            let (kind, semaphore) = (TriggerKind::DATA, end.semaphore.0);
            let trigger = ChannelTrigger { kind, semaphore, dst_id: 9999, ..ChannelTrigger::default() };
            kernels.trigger(&end.stream, &end.channel, trigger.encode(false).unwrap(), report);
        };
        one_of_two_fails(&rank, &Transport::CudaIpc.into(), || (), fail, &[ErrorKind::InvalidUsage]);
    });
}

/// The first message from rank 0 to rank 1 is corrupted on its way.
fn of_an_ethernet_connection(machine: Machine, test: &str) {
    let rule = NetFault::new(NetAction::Corrupt(4)).from_rank(0).to_rank(1).on(LinkKind::Data);
    let faults = Arc::new(NetFaults::new([rule], 7));
    threads_with(machine, 3, test, &config().with_layer(faults.clone()), &[], |rank| {
        let kinds = [ErrorKind::Remote, ErrorKind::PeerLost];
        one_of_two_fails(&rank, &Transport::Ethernet.into(), || (), put, &kinds);
    });
    if ranks::rank().is_some() {
        assert_eq!(faults.fired(), 1);
    }
}

fn put(_: &Kernels, end: &PeerChannel, _: &Report) {
    // No signal: it could arrive before the connection fails. The put may fail, if the peer's put already failed the
    // connection.
    let _ = end.channel.put(&end.stream, 0, 0, 64);
}

/// Requests of the stand-in's first two queue pairs fail as if the peer did not answer.
#[test]
fn of_a_verbs_connection() {
    const FIRST: u32 = 17;
    super::over_stand_in(3, "ports::failures::of_a_verbs_connection", |rank| {
        let refuse = || {
            [FIRST, FIRST + 1]
                .into_iter()
                .for_each(|number| standin::fail_next(number, ibv_wc_status::IBV_WC_RETRY_EXC_ERR));
        };
        one_of_two_fails(&rank, &Transport::Ib(0).into(), refuse, put, &[ErrorKind::Verbs]);
    });
}

/// Rank 1 leaves normally: kernels that wait for it leave, and all others go on.
fn a_peer_that_leaves(machine: Machine, test: &str) {
    processes(machine, 3, test, |rank| {
        let me = rank.me();
        let (service, kernels) = start(&rank);
        let peers = [[(1, 0), (2, 0)], [(0, 0), (2, 0)], [(0, 0), (1, 0)]][me as usize];
        let both = [(Transport::CudaIpc, 0), (Transport::Ethernet, 10)].map(|(transport, tag)| {
            peer_channels(&rank, &service, &peers.map(|(peer, _)| (peer, tag)), transport, LEN)
        });
        rank.barrier();
        if me == 1 {
            service.stop(soon()).unwrap();
            drop(both);
            rank.comm.close(soon()).unwrap();
            return rank.barrier();
        }
        for ends in &both {
            let gone = ends.iter().find(|end| end.peer == 1).unwrap();
            let wait = Report::new(rank.comm.context());
            kernels.wait(&gone.stream, &gone.channel, &wait);
            let told = gone.stream.synchronize(soon()).unwrap_err();
            assert_eq!(wait.status(), LEFT_TOLD);
            let error = gone.channel.check().unwrap_err();
            for error in [told, error] {
                assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
            }
        }
        for ends in &both {
            ends.iter().find(|end| end.peer != 1).unwrap().works(me);
        }
        rank.barrier();
        service.stop(soon()).unwrap();
    });
}

/// Stops rank 1, runs `run` on the other ranks, continues rank 1, and runs `then` on it.
fn while_rank_1_is_stopped(rank: &Rank, run: impl FnOnce(), then: impl FnOnce()) {
    let id = std::process::id().cast_signed();
    let pids = rank.bootstrap.all_gather(&id.to_le_bytes(), soon()).unwrap();
    rank.barrier();
    if rank.me() == 1 {
        // SAFETY: no pointers are passed. Rank 0 continues this process.
        unsafe { libc::raise(libc::SIGSTOP) };
        return then();
    }
    std::thread::sleep(Duration::from_millis(100));
    run();
    if rank.me() == 0 {
        let pid = i32::from_le_bytes(pids[1][..].try_into().unwrap());
        // SAFETY: no pointers are passed.
        unsafe { libc::kill(pid, libc::SIGCONT) };
    }
}

/// A lost peer ends the communicator: the kernels of all ranks leave within the peer timeout.
fn a_peer_that_is_lost(machine: Machine, test: &str) {
    let config = config().with_peer_timeout(Some(Duration::from_millis(1500)));
    processes_with(machine, 3, test, config, |rank| {
        let me = rank.me();
        let (service, kernels) = start(&rank);
        let peers = [[(1, 0), (2, 0)], [(0, 0), (2, 0)], [(0, 0), (1, 0)]][me as usize];
        let both = [(Transport::CudaIpc, 0), (Transport::Ethernet, 10)].map(|(transport, tag)| {
            peer_channels(&rank, &service, &peers.map(|(peer, _)| (peer, tag)), transport, LEN)
        });
        let all: Vec<&PeerChannel> = both.iter().flatten().collect();
        let waits: Vec<_> = all.iter().map(|_| Report::new(rank.comm.context())).collect();
        let run = || {
            for (end, wait) in all.iter().zip(&waits) {
                kernels.wait(&end.stream, &end.channel, wait);
            }
            for (end, wait) in all.iter().zip(&waits) {
                let told = end.stream.synchronize(soon()).unwrap_err();
                assert_eq!(wait.status(), LEFT_TOLD);
                // At the deadline it would be a timeout.
                for error in [told, end.channel.check().unwrap_err()] {
                    assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
                }
            }
        };
        while_rank_1_is_stopped(&rank, run, || ());
    });
}

/// Environment of ranks of which one is stopped for as long as the others need, which may be long: nobody counts it as lost, not
/// on links of the bootstrap either.
fn patient(_: u32) -> Vec<(&'static str, String)> {
    vec![("AQUEDUCT_PEER_TIMEOUT", "600".to_owned())]
}

/// Puts to the stopped peer wait in that connection's queue and do not delay others. When it goes on, all of them
/// arrive.
fn a_peer_that_stops_reading(machine: Machine, test: &str) {
    const SIZE: usize = 1 << 20;
    const PUTS: usize = 20;
    /// Number of puts, fewer than the FIFO has slots.
    const SMALL: u32 = 400;
    processes_each(machine, 3, test, config(), patient, |rank| {
        let me = rank.me();
        let (service, kernels) = start(&rank);
        let report = Report::new(rank.comm.context());
        let endpoint = EndpointConfig::new(Transport::Ethernet).with_max_outstanding(8);
        let peers: &[(u32, u64)] = [&[(1, 0), (2, 0)][..], &[(0, 0)], &[(0, 0)]][me as usize];
        let ends = peer_channels(&rank, &service, peers, endpoint, SIZE * PUTS);
        let slow = &ends[0];
        let words: Vec<u64> = (1..=(SIZE * PUTS / 8) as u64).collect();
        slow.local.upload(0, &words, soon()).unwrap();
        let run = || {
            if me == 2 {
                return ends[0].works(me);
            }
            // More than socket buffers hold.
            for i in 0..PUTS {
                slow.channel.put(&slow.stream, i * SIZE, i * SIZE, SIZE).unwrap();
            }
            kernels.storm(&slow.stream, &slow.channel, 1, SMALL, &report);
            slow.channel.signal(&slow.stream).unwrap();
            slow.done();
            ends[1].works(me);
            assert!(service.counters().deferred > u64::from(SMALL), "{:?}", service.counters());
            assert!(slow.channel.counters().unwrap().signals == 0, "it is still stuck");
        };
        let then = || {
            slow.channel.wait(&slow.stream).unwrap();
            slow.done();
            assert!(PeerChannel::words(&slow.inbox, words.len()) == words, "the queued puts did not arrive");
        };
        while_rank_1_is_stopped(&rank, run, then);
        rank.barrier();
        service.stop(soon()).unwrap();
    });
}

/// Puts to a stopped peer cannot be done: stopping the service fails at its deadline, and waiting kernels leave.
fn stopping_a_service_whose_peer_stops_reading(machine: Machine, test: &str) {
    const SIZE: usize = 20 << 20;
    processes_each(machine, 2, test, config(), patient, |rank| {
        let (service, kernels) = start(&rank);
        let end = peer_channels(&rank, &service, &[(1 - rank.me(), 0)], Transport::Ethernet, SIZE).remove(0);
        let flush = Report::new(rank.comm.context());
        let run = || {
            end.channel.put(&end.stream, 0, 0, SIZE).unwrap();
            kernels.flush(&end.stream, &end.channel, &flush);
            while end.channel.counters().unwrap().flushes == 0 {
                std::thread::yield_now();
            }
            // The peer is stopped for as long as this takes, so nothing but the deadline ends it.
            let error = service.stop(Duration::from_secs(2)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            assert!(error.message().contains("have not completed"), "{error}");
            let told = end.stream.synchronize(soon()).unwrap_err();
            assert_eq!(flush.status(), LEFT_TOLD);
            for error in [told, end.channel.check().unwrap_err()] {
                assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            }
        };
        while_rank_1_is_stopped(&rank, run, || ());
        rank.barrier();
    });
}
