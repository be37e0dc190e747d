//! TCP connections whose peer or network misbehaves: every operation ends once, with an error that
//! says why, and other connections go on.

use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::process::ExitStatusExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct::channel::{InboundSignals, load_kernels};
use aqueduct::comm::{EndpointConfig, Host2DeviceSemaphore, Transport};
use aqueduct::gpu::{Event, GpuBuffer, LaunchConfig, Stream, arg};
use aqueduct::internals::fault::{LinkKind, NetAction, NetFault, NetFaults};
use aqueduct::{Deadline, ErrorKind};
use aqueduct_ptx::abi::MemoryChannelHandle;
use aqueduct_tests::{not_run, ranks};

use super::pair::{Kind, LEN, Pair, look};
use super::peer_connection::peer_connections;
use crate::group::{Machine, Rank, config, processes_with, soon, start_rendezvous, threads, threads_with};

/// Corrupts the kind, the length, the region and the offset of the first message on its way.
#[test]
fn malformed_and_unauthorised_messages_end_one_connection() {
    const CASES: [(u64, usize, &[&str]); 4] = [
        (0, 4, &["no message"]),
        (4, 4, &["no message"]),
        (8, 8, &["has not been given"]),
        (16, 8, &["at offset"]),
    ];
    let rules = CASES.iter().zip(1..).map(|(&(at, len, _), rank)| {
        NetFault::new(NetAction::Corrupt(len)).from_rank(0).to_rank(rank).on(LinkKind::Data).after_bytes(at)
    });
    let faults = Arc::new(NetFaults::new(rules, 7));
    let test = "transports::faults::malformed_and_unauthorised_messages_end_one_connection";
    let config = config().with_layer(faults.clone());
    threads_with(Machine::Software, 5, test, &config, &[], |rank| {
        let me = rank.me();
        if me == 0 {
            let ends = peer_connections(&rank, &[1, 2, 3, 4], Transport::Ethernet);
            for (end, (_, _, words)) in ends.iter().zip(CASES) {
                // The write itself may fail, if the peer's answer arrives before all has been sent.
                let _ = end.connection.write(&end.target, 0, &end.source, 0, LEN);
                let error = end.fails();
                assert!(matches!(error.kind(), ErrorKind::Remote | ErrorKind::PeerLost), "{error}");
                assert!(
                    words.iter().all(|word| error.to_string().contains(word)),
                    "the sender gets the reason: {error}"
                );
            }
        } else {
            // A second connection, which is not corrupted.
            let other = [0, 2, 1, 4, 3][me as usize];
            let ends = peer_connections(&rank, &[0, other], Transport::Ethernet);
            // Send nothing here: rank 0's answer would then carry the corrupted bytes instead of its write.
            let error = ends[0].semaphore.wait(soon()).unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::Remote, Some(0)), "{error}");
            assert!(CASES[me as usize - 1].2.iter().all(|word| error.to_string().contains(word)), "{error}");
            let untouched = look(&ends[0].inbox, 0, LEN).iter().all(|&byte| byte == 0);
            assert!(untouched, "no corrupted byte was written");
            ends[1].works(me);
        }
        rank.comm.check().unwrap();
        rank.barrier();
    });
    if ranks::rank().is_some() {
        assert_eq!(faults.fired(), CASES.len() as u64, "every rule took effect");
    }
}

/// The socket ends while a signal is handed to it. The signal was accepted, so that its call succeeds and the
/// counter is set; the next call returns the failure.
#[test]
fn a_counter_is_set_exactly_if_its_signal_was_accepted() {
    let rule = NetFault::new(NetAction::Drop).from_rank(0).to_rank(1).on(LinkKind::Data);
    let faults = Arc::new(NetFaults::new([rule], 0));
    let test = "transports::faults::a_counter_is_set_exactly_if_its_signal_was_accepted";
    let config = config().with_layer(faults.clone());
    threads_with(Machine::Software, 2, test, &config, &[], |rank| {
        let end = peer_connections(&rank, &[1 - rank.me()], Transport::Ethernet).remove(0);
        if rank.me() == 0 {
            let mut counter = 3;
            end.connection.update_and_sync(&end.target, 0, &mut counter, 4).unwrap();
            assert_eq!(counter, 4);
            let error = end.connection.update_and_sync(&end.target, 0, &mut counter, 5).unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
            assert_eq!(counter, 4, "only set if the call succeeds");
        }
        rank.barrier();
    });
    if ranks::rank().is_some() {
        assert_eq!(faults.fired(), 1, "the rule took effect");
    }
}

/// A kernel that waits for a signal of a connection leaves when the connection fails, and its stream says why; the
/// communicator goes on.
#[test]
fn a_failed_connection_ends_the_waits_of_kernels() {
    let rule = NetFault::new(NetAction::Corrupt(4)).from_rank(0).to_rank(1).on(LinkKind::Data).after_bytes(0);
    let faults = Arc::new(NetFaults::new([rule], 7));
    let test = "transports::faults::a_failed_connection_ends_the_waits_of_kernels";
    let config = config().with_layer(faults.clone());
    threads_with(Machine::Software, 2, test, &config, &[], |rank| {
        let (me, comm) = (rank.me(), &rank.comm);
        let connection = comm.connect(1 - me, 3, Transport::Ethernet).unwrap();
        let [semaphore, own] = [3, 4].map(|tag| comm.build_host2device_semaphore(&connection, tag).unwrap());
        comm.setup(soon()).unwrap();
        let (connection, semaphore, own) =
            (connection.get().unwrap(), semaphore.get().unwrap(), own.get().unwrap());
        if me == 0 {
            rank.barrier();
            semaphore.signal().unwrap();
        } else {
            let (signals, stream) =
                (InboundSignals::new(&semaphore).unwrap(), Stream::new(comm.context()).unwrap());
            let (other, scratch) = (Stream::new(comm.context()).unwrap(), rank.buffer(64));
            signals.wait(&stream).unwrap();
            wait_by_a_kernel_of_ones_own(&other, own, &scratch);
            rank.barrier();
            let error = other.synchronize(Deadline::after(Duration::from_secs(20))).unwrap_err();
            assert_eq!((error.op(), error.kind()), ("synchronize", ErrorKind::Remote), "{error}");
            let error = stream.synchronize(Deadline::after(Duration::from_secs(20))).unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::Remote, Some(0)), "{error}");
            assert!(error.to_string().contains("no message"), "it says why: {error}");
            let error = signals.wait(&stream).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Remote, "no later wait begins: {error}");
        }
        rank.barrier();
        comm.check().unwrap();
        drop((connection, semaphore));
        rank.barrier();
    });
    if ranks::rank().is_some() {
        assert_eq!(faults.fired(), 1, "the rule took effect");
    }
}

/// Launches a kernel that waits for `semaphore`, as a program's own would, and more work behind it. Afterwards the
/// stream alone keeps the semaphore.
fn wait_by_a_kernel_of_ones_own(stream: &Stream, semaphore: Host2DeviceSemaphore, scratch: &Arc<GpuBuffer>) {
    let wait = load_kernels(semaphore.context(), "semaphore", &[]).unwrap().remove(2);
    let handle = MemoryChannelHandle {
        semaphore: semaphore.device_handle(),
        dst: 0,
        dst_bytes: 0,
        src: 0,
        src_bytes: 0,
        packets: 0,
        packet_bytes: 0,
        arrived: 0,
    };
    // SAFETY: the catalog's parameter; the stream keeps the semaphore.
    unsafe { wait.launch(stream, &LaunchConfig::linear(1, 32), &[arg(&handle)]) }.unwrap();
    stream.retain(semaphore.keep_alive()).unwrap();
    semaphore.report_to(stream);
    drop(semaphore);
    stream.fill(&scratch.slice(..).unwrap(), 7).unwrap();
}

/// A peer that acknowledges what was never sent: nothing counts as done, and neither calls nor streams wait for ever.
#[test]
fn an_acknowledgement_of_what_was_never_sent_ends_the_connection() {
    // Corrupts the count in the first message of rank 1, an acknowledgement.
    for seed in [2, 3] {
        let rule = NetFault::new(NetAction::Corrupt(8)).from_rank(1).to_rank(0).on(LinkKind::Data);
        let faults = Arc::new(NetFaults::new([rule.after_bytes(24)], seed));
        let test = "transports::faults::an_acknowledgement_of_what_was_never_sent_ends_the_connection";
        let config = config().with_layer(faults.clone());
        threads_with(Machine::Software, 2, test, &config, &[], |rank| {
            let end = peer_connections(&rank, &[1 - rank.me()], Transport::Ethernet).remove(0);
            if rank.me() == 0 {
                let (stream, event) =
                    (Stream::new(rank.comm.context()).unwrap(), Event::new(rank.comm.context()).unwrap());
                end.connection.write(&end.target, 0, &end.source, 0, LEN).unwrap();
                let recorded = end.connection.record_event(&event);
                let flushed = end.connection.flush(soon());
                let error = recorded.and(flushed).unwrap_err();
                assert_eq!((error.kind(), error.peer()), (ErrorKind::Remote, Some(1)), "{error}");
                assert!(error.to_string().contains("acknowledged"), "it says why: {error}");
                stream.wait_event(&event).unwrap();
                stream.synchronize(soon()).unwrap();
                end.fails();
            } else {
                let error = end.semaphore.wait(soon()).unwrap_err();
                assert!(error.to_string().contains("acknowledged"), "the peer hears why: {error}");
            }
            rank.comm.check().unwrap();
            rank.barrier();
        });
        if ranks::rank().is_some() {
            assert_eq!(faults.fired(), 1, "the rule took effect");
        }
    }
}

/// The peer's process is stopped: a flush ends at its deadline. Once the peer counts as lost, all calls fail at once.
#[test]
fn a_peer_that_stops_reading_costs_no_more_than_the_deadline() {
    let test = "transports::faults::a_peer_that_stops_reading_costs_no_more_than_the_deadline";
    let config = config().with_peer_timeout(Some(Duration::from_secs(10)));
    processes_with(Machine::Software, 2, test, config, |rank| {
        let id = std::process::id().cast_signed();
        let pids = rank.bootstrap.all_gather(&id.to_le_bytes(), soon()).unwrap();
        let end = peer_connections(&rank, &[1 - rank.me()], Transport::Ethernet).remove(0);
        rank.barrier();
        if rank.me() == 1 {
            // SAFETY: no pointers are passed. The other rank continues this process.
            unsafe { libc::raise(libc::SIGSTOP) };
            return;
        }
        let peer = i32::from_le_bytes(pids[1][..].try_into().unwrap());
        std::thread::sleep(Duration::from_millis(100));
        // More than any socket buffer holds.
        for _ in 0..40 {
            end.connection.write(&end.target, 0, &end.source, 0, LEN).unwrap();
        }
        let late = end.connection.flush(Deadline::after(Duration::from_millis(300))).unwrap_err();
        let lost = end.connection.flush(soon()).unwrap_err();
        // SAFETY: no pointers are passed.
        unsafe { libc::kill(peer, libc::SIGCONT) };
        // Without its deadline the first one would have ended by the loss, and without the loss the second one by its deadline.
        assert_eq!(late.kind(), ErrorKind::Timeout, "{late}");
        assert_eq!((lost.kind(), lost.peer()), (ErrorKind::PeerLost, Some(1)), "{lost}");
        let error = end.connection.write(&end.target, 0, &end.source, 0, 8).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
    });
}

/// Three processes write to each other, and one is killed.
#[test]
fn a_peer_killed_in_mid_transfer_does_not_affect_the_others() {
    const TEST: &str = "transports::faults::a_peer_killed_in_mid_transfer_does_not_affect_the_others";
    const VICTIM: u32 = 2;
    let Some(me) = ranks::rank() else {
        let rendezvous = start_rendezvous(Some(3));
        let spawn = |rank: u32| {
            let mut command = ranks::command(rank, TEST);
            command
                .env("AQUEDUCT_RANK", rank.to_string())
                .env("AQUEDUCT_WORLD_SIZE", "3")
                .env("AQUEDUCT_UNIQUE_ID", rendezvous.unique_id().to_text().expose());
            command.spawn().expect("a rank can be started")
        };
        let children: Vec<_> = (0..3).map(spawn).collect();
        for (rank, child) in (0..).zip(children) {
            let output = child.wait_with_output().unwrap();
            let text = [output.stdout, output.stderr]
                .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
                .concat();
            if rank == VICTIM {
                assert_eq!(output.status.signal(), Some(libc::SIGKILL), "rank {rank}: {text}");
            } else {
                assert!(output.status.success() && text.contains("1 passed"), "rank {rank}: {text}");
            }
        }
        return;
    };
    let bootstrap = aqueduct::bootstrap::from_env().unwrap().unwrap();
    let context = crate::group::context(&Machine::Software.driver(), me);
    let comm = aqueduct::comm::Communicator::new(&bootstrap, &context, config(), soon()).unwrap();
    let rank = Rank { comm, bootstrap };
    let others: Vec<u32> = (0..3).filter(|&other| other != me).collect();
    let ends = peer_connections(&rank, &others, Transport::Ethernet);
    rank.barrier();
    if me == VICTIM {
        let start = Instant::now();
        loop {
            for end in &ends {
                end.connection.write(&end.target, 0, &end.source, 0, LEN).unwrap();
            }
            if start.elapsed() > Duration::from_millis(100) {
                // SAFETY: no pointers are passed.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
        }
    }
    let start = Instant::now();
    let lost = loop {
        let written = ends[1].connection.write(&ends[1].target, 0, &ends[1].source, 0, LEN);
        match written {
            Ok(()) => assert!(start.elapsed() < Duration::from_secs(60), "it is never lost"),
            Err(error) => break error,
        }
    };
    assert_eq!(lost.peer(), Some(VICTIM), "{lost}");
    // Neither is a timeout: both are told before their deadlines.
    let error = ends[1].connection.flush(soon()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::Remote), "{error}");
    let error = ends[1].semaphore.wait(soon()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::Remote), "{error}");
    // A loss ends the communicator, and all operations name the lost rank. The others go on in a new communicator.
    let error = ends[0].fails();
    assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(VICTIM)), "{error}");
    let comm = rank.comm.shrink(&[VICTIM], soon()).unwrap();
    let rank = Rank { comm, bootstrap: rank.bootstrap };
    peer_connections(&rank, &[1 - me], Transport::Ethernet)[0].works(me);
}

#[test]
fn ipv6_and_an_address_of_no_machine() {
    let test = "transports::faults::ipv6_and_an_address_of_no_machine";
    threads(Machine::Software, 2, test, |rank| {
        let endpoint = |ip: IpAddr| EndpointConfig::new(Transport::Ethernet).with_local_address(ip);
        // An address of TEST-NET-3 (RFC 5737), which no machine has.
        let nowhere = endpoint(IpAddr::from([203, 0, 113, 7]));
        let comm = &rank.comm;
        let connection = comm.connect(1 - rank.me(), 5, nowhere).unwrap();
        let error = comm.setup(soon()).and_then(|()| connection.get()).map(drop).unwrap_err();
        if rank.me() == 0 {
            let text = error.to_string();
            assert!(
                text.contains("203.0.113.7") && text.contains("with_local_address"),
                "names the setting: {text}"
            );
        }
        let here = aqueduct::internals::net::interfaces().unwrap();
        if !here.iter().any(|interface| interface.ip == Ipv6Addr::LOCALHOST) {
            return not_run("transports: Ethernet over IPv6", "the loopback interface has no ::1");
        }
        let pair = Pair::new(rank, endpoint(Ipv6Addr::LOCALHOST.into()), Kind::Host, Kind::Host);
        super::cases::order(&pair);
        super::cases::flush(&pair);
        pair.rank.barrier();
    });
}
