//! Connections over TCP whose peer, or whose way, does not keep to the rules: every operation ends once, with an error that
//! says why, and other connections go on.

use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::process::ExitStatusExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct::comm::{EndpointConfig, Transport};
use aqueduct::fault::{LinkKind, NetAction, NetFault, NetFaults};
use aqueduct::gpu::{Event, Stream};
use aqueduct::{Deadline, ErrorKind};
use aqueduct_tests::ranks;

use super::pair::{Kind, LEN, Pair, look};
use super::way::ways;
use crate::group::{Machine, Rank, config, meet, processes, soon, threads, threads_with};

/// What arrives is changed on its way: what stands for a kind, a length, a region and an offset of the first message.
#[test]
fn garbage_and_what_was_not_granted_end_one_connection() {
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
    let test = "transports::faults::garbage_and_what_was_not_granted_end_one_connection";
    let config = config().with_layer(faults.clone());
    threads_with(Machine::Software, 5, test, &config, &[], |rank| {
        let me = rank.me();
        if me == 0 {
            let ways = ways(&rank, &[1, 2, 3, 4], Transport::Ethernet);
            for (way, (_, _, words)) in ways.iter().zip(CASES) {
                // It may say so itself, if the answer comes before all has been sent.
                let _ = way.connection.write(&way.target, 0, &way.source, 0, LEN);
                let error = way.fails();
                assert!(matches!(error.kind(), ErrorKind::Remote | ErrorKind::PeerLost), "{error}");
                assert!(
                    words.iter().all(|word| error.to_string().contains(word)),
                    "the sender hears why: {error}"
                );
            }
        } else {
            // A neighbour that is not lied to.
            let other = [0, 2, 1, 4, 3][me as usize];
            let ways = ways(&rank, &[0, other], Transport::Ethernet);
            // Says nothing by itself: an answer to it would be what is changed.
            let error = ways[0].semaphore.wait(soon()).unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::Remote, Some(0)), "{error}");
            assert!(CASES[me as usize - 1].2.iter().all(|word| error.to_string().contains(word)), "{error}");
            let untouched = look(&ways[0].inbox, 0, LEN).iter().all(|&byte| byte == 0);
            assert!(untouched, "nothing of it was written");
            ways[1].works(me);
        }
        rank.comm.check().unwrap();
        rank.barrier();
    });
    if ranks::rank().is_some() {
        assert_eq!(faults.fired(), CASES.len() as u64, "every rule took effect");
    }
}

/// A peer that acknowledges what was never sent: nothing counts as done, and neither calls nor streams wait for ever.
#[test]
fn an_acknowledgement_of_what_was_never_sent_ends_the_connection() {
    // What stands for the count of the first message of rank 1, which says nothing but that all has landed.
    for seed in [2, 3] {
        let rule = NetFault::new(NetAction::Corrupt(8)).from_rank(1).to_rank(0).on(LinkKind::Data);
        let faults = Arc::new(NetFaults::new([rule.after_bytes(24)], seed));
        let test = "transports::faults::an_acknowledgement_of_what_was_never_sent_ends_the_connection";
        let config = config().with_layer(faults.clone());
        threads_with(Machine::Software, 2, test, &config, &[], |rank| {
            let way = ways(&rank, &[1 - rank.me()], Transport::Ethernet).remove(0);
            if rank.me() == 0 {
                let (stream, event) =
                    (Stream::new(rank.comm.context()).unwrap(), Event::new(rank.comm.context()).unwrap());
                way.connection.write(&way.target, 0, &way.source, 0, LEN).unwrap();
                let recorded = way.connection.record_event(&event);
                let flushed = way.connection.flush(soon());
                let error = recorded.and(flushed).unwrap_err();
                assert_eq!((error.kind(), error.peer()), (ErrorKind::Remote, Some(1)), "{error}");
                assert!(error.to_string().contains("acknowledged"), "it says why: {error}");
                stream.wait_event(&event).unwrap();
                stream.synchronize(soon()).unwrap();
                way.fails();
            } else {
                let error = way.semaphore.wait(soon()).unwrap_err();
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

/// A stopped process: a flush ends at its deadline; once the peer counts as lost, everything ends at once.
#[test]
fn a_peer_that_stops_reading_costs_no_more_than_the_deadline() {
    let test = "transports::faults::a_peer_that_stops_reading_costs_no_more_than_the_deadline";
    processes(Machine::Software, 2, test, |rank| {
        let id = std::process::id().cast_signed();
        let pids = rank.bootstrap.all_gather(&id.to_le_bytes(), soon()).unwrap();
        let way = ways(&rank, &[1 - rank.me()], Transport::Ethernet).remove(0);
        rank.barrier();
        if rank.me() == 1 {
            // SAFETY: no pointers are passed. The other rank continues this process.
            unsafe { libc::raise(libc::SIGSTOP) };
            return;
        }
        let peer = i32::from_le_bytes(pids[1][..].try_into().unwrap());
        std::thread::sleep(Duration::from_millis(100));
        // More than any socket takes.
        for _ in 0..40 {
            way.connection.write(&way.target, 0, &way.source, 0, LEN).unwrap();
        }
        let start = Instant::now();
        let error = way.connection.flush(Deadline::after(Duration::from_millis(300))).unwrap_err();
        let timely = start.elapsed();
        let error = match error.kind() {
            ErrorKind::Timeout => way.connection.flush(soon()).unwrap_err(),
            _ => error,
        };
        let lost = start.elapsed();
        // SAFETY: no pointers are passed.
        unsafe { libc::kill(peer, libc::SIGCONT) };
        assert!(timely < Duration::from_secs(2), "{timely:?}");
        assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
        assert!(lost < Duration::from_secs(15), "{lost:?}");
        let error = way.connection.write(&way.target, 0, &way.source, 0, 8).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
    });
}

/// Three processes, of which one is killed while all write to each other.
#[test]
fn a_peer_killed_in_mid_transfer_takes_nobody_along() {
    const TEST: &str = "transports::faults::a_peer_killed_in_mid_transfer_takes_nobody_along";
    const VICTIM: u32 = 2;
    let Some(me) = ranks::rank() else {
        let meeting = meet(Some(3));
        let spawn = |rank: u32| {
            let mut command = ranks::command(rank, TEST);
            command
                .env("AQUEDUCT_RANK", rank.to_string())
                .env("AQUEDUCT_WORLD_SIZE", "3")
                .env("AQUEDUCT_UNIQUE_ID", meeting.unique_id().to_string());
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
    let comm = aqueduct::comm::Communicator::new(&*bootstrap, &context, config(), soon()).unwrap();
    let rank = Rank { comm, bootstrap };
    let others: Vec<u32> = (0..3).filter(|&other| other != me).collect();
    let ways = ways(&rank, &others, Transport::Ethernet);
    rank.barrier();
    if me == VICTIM {
        let start = Instant::now();
        loop {
            for way in &ways {
                way.connection.write(&way.target, 0, &way.source, 0, LEN).unwrap();
            }
            if start.elapsed() > Duration::from_millis(100) {
                // SAFETY: no pointers are passed.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
        }
    }
    let start = Instant::now();
    let lost = loop {
        let written = ways[1].connection.write(&ways[1].target, 0, &ways[1].source, 0, LEN);
        match written {
            Ok(()) => assert!(start.elapsed() < Duration::from_secs(60), "it is never lost"),
            Err(error) => break error,
        }
    };
    assert_eq!(lost.peer(), Some(VICTIM), "{lost}");
    let since = Instant::now();
    let error = ways[1].connection.flush(soon()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::Remote), "{error}");
    let error = ways[1].semaphore.wait(soon()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::Remote), "{error}");
    assert!(since.elapsed() < Duration::from_secs(5), "known at once: {:?}", since.elapsed());
    // A loss ends a communicator, and everybody's operations know whose it was; the others go on in the next one.
    let error = ways[0].fails();
    assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(VICTIM)), "{error}");
    let comm = rank.comm.shrink(&[VICTIM], soon()).unwrap();
    let rank = Rank { comm, bootstrap: rank.bootstrap };
    self::ways(&rank, &[1 - me], Transport::Ethernet)[0].works(me);
}

#[test]
fn ipv6_and_an_address_that_nobody_has() {
    let test = "transports::faults::ipv6_and_an_address_that_nobody_has";
    threads(Machine::Software, 2, test, |rank| {
        let endpoint = |ip: IpAddr| EndpointConfig::new(Transport::Ethernet).with_interface(ip);
        // TEST-NET-3 of RFC 5737, which belongs to no machine.
        let nowhere = endpoint(IpAddr::from([203, 0, 113, 7]));
        let comm = &rank.comm;
        let connection = comm.connect(1 - rank.me(), 5, nowhere).unwrap();
        let error = comm.setup(soon()).and_then(|()| connection.get()).map(drop).unwrap_err();
        if rank.me() == 0 {
            let text = error.to_string();
            assert!(
                text.contains("203.0.113.7") && text.contains("with_interface"),
                "names the setting: {text}"
            );
        }
        let here = aqueduct::net::interfaces().unwrap();
        if !here.iter().any(|interface| interface.ip == Ipv6Addr::LOCALHOST) {
            println!("no ::1 on this machine: IPv6 is not tested");
            return;
        }
        let pair = Pair::new(rank, endpoint(Ipv6Addr::LOCALHOST.into()), Kind::Host, Kind::Host);
        super::cases::order(&pair);
        super::cases::flush(&pair);
        pair.rank.barrier();
    });
}
