//! Verbs connections that fail while data is under way: every operation ends once, within its deadline, with an error that
//! names the peer and the reason, and connections to other peers go on. For ranks on hosts of their own, each with an RDMA
//! device `Ib0`; `ci/rdma-vm` starts them on soft-RoCE, with a timeout and a number of retries that end within seconds:
//! `AQUEDUCT_IB_TIMEOUT=14 AQUEDUCT_IB_RETRY_CNT=3`.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct::bootstrap;
use aqueduct::comm::{Communicator, CommunicatorConfig, HostBuffer, Transport};
use aqueduct::{Error, ErrorKind};

use super::pair::LEN;
use super::peer_connection::{PeerConnection, peer_connections};
use crate::group::{Machine, Rank, soon};

/// Who fails.
const VICTIM: u32 = 1;
/// How long an error may take after the retries are over.
const TIMELY: Duration = Duration::from_secs(30);

/// Three ranks, all connected with each other: this one, and its ways in the order of the other ranks.
fn three() -> (Rank, Vec<PeerConnection>) {
    let bootstrap = bootstrap::from_env().unwrap().expect("started as one of three ranks");
    assert_eq!(bootstrap.size(), 3);
    let context = crate::group::context(&Machine::Software.driver(), bootstrap.rank());
    let comm = Communicator::new(&*bootstrap, &context, CommunicatorConfig::default(), soon()).unwrap();
    let rank = Rank { comm, bootstrap };
    let others: Vec<u32> = (0..3).filter(|&other| other != rank.me()).collect();
    let ends = peer_connections(&rank, &others, Transport::Ib(0));
    rank.barrier();
    (rank, ends)
}

/// Writes to the victim without an end, and what it ends with: one error, which whoever waited already and all that follows
/// get, too.
fn lost(end: &PeerConnection) -> Error {
    let start = Instant::now();
    let (error, waited) = std::thread::scope(|scope| {
        // For a signal that will not come.
        let waiting = scope.spawn(|| end.semaphore.wait(soon()));
        let error = loop {
            match end.connection.write(&end.target, 0, &end.source, 0, LEN) {
                Ok(()) => assert!(start.elapsed() < Duration::from_secs(60), "it goes on"),
                Err(error) => break error,
            }
        };
        println!("after {:.1} s: {error}", start.elapsed().as_secs_f64());
        let since = Instant::now();
        let waited = waiting.join().unwrap().unwrap_err();
        assert!(since.elapsed() < Duration::from_secs(5), "told soon: {:?}", since.elapsed());
        (error, waited)
    });
    let since = Instant::now();
    let flushed = end.connection.flush(soon()).unwrap_err();
    let again = end.semaphore.wait(soon()).unwrap_err();
    assert!(since.elapsed() < Duration::from_secs(5), "known at once: {:?}", since.elapsed());
    for error in [&error, &waited, &flushed, &again] {
        assert_eq!(error.peer(), Some(VICTIM), "{error}");
        assert!(matches!(error.kind(), ErrorKind::Verbs | ErrorKind::PeerLost), "{error}");
    }
    error
}

/// The way to the third rank, which nothing happened to.
fn other(rank: &Rank, ends: &[PeerConnection]) {
    ends.iter().find(|end| end.connection.peer() != VICTIM).unwrap().works(rank.me());
    rank.comm.check().unwrap();
}

/// The way of a rank that goes on to the victim.
fn to_victim(ends: &[PeerConnection]) -> &PeerConnection {
    ends.iter().find(|end| end.connection.peer() == VICTIM).unwrap()
}

#[test]
#[ignore = "needs three hosts with RDMA NICs: ci/rdma-vm has them"]
fn a_killed_peer_takes_nobody_along() {
    let (rank, ends) = three();
    if rank.me() == VICTIM {
        for round in 0.. {
            for end in &ends {
                end.connection.write(&end.target, 0, &end.source, 0, LEN).unwrap();
            }
            if round == 3 {
                // SAFETY: no pointers are passed.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
        }
    }
    lost(to_victim(&ends));
    // A rank is lost, not only a connection: the others go on in a communicator without it.
    let comm = rank.comm.shrink(&[], soon()).unwrap();
    let rank = Rank { comm, bootstrap: rank.bootstrap };
    ways_to_the_other(&rank);
    drop(ends);
}

/// Of two ranks.
fn ways_to_the_other(rank: &Rank) {
    peer_connections(rank, &[1 - rank.me()], Transport::Ib(0))[0].works(rank.me());
}

/// The owner of memory may drop it while its peer writes: the NIC must not find a key that is no longer valid, which would
/// end the connection. It stays until the peer has given it back.
#[test]
#[ignore = "needs three hosts with RDMA NICs: ci/rdma-vm has them"]
fn memory_that_its_owner_drops_stays_for_its_peers() {
    let (rank, mut ends) = three();
    if rank.me() == VICTIM {
        let PeerConnection { inbox, source, target, connection, semaphore } = ends.remove(0);
        drop(inbox);
        rank.barrier();
        ends[0].works(rank.me());
        rank.barrier();
        drop((source, target, connection, semaphore));
        return;
    }
    rank.barrier();
    if rank.me() == 0 {
        let end = to_victim(&ends);
        for _ in 0..4 {
            end.connection.write(&end.target, 0, &end.source, 0, LEN).unwrap();
        }
        end.connection.flush(soon()).unwrap();
    } else {
        to_victim(&ends).works(rank.me());
    }
    other(&rank, &ends);
    rank.barrier();
}

/// A user who may lock little memory. Of the process: the rank gives its rights away for good.
#[test]
#[ignore = "needs root and an RDMA NIC: ci/rdma-vm has both"]
fn too_little_lockable_memory_names_the_limit() {
    const LIMIT: u64 = 256 << 10;
    let test = "transports::losses::too_little_lockable_memory_names_the_limit";
    crate::group::threads(Machine::Software, 1, test, |rank| {
        let limit = libc::rlimit { rlim_cur: LIMIT, rlim_max: LIMIT };
        // SAFETY: a live input, and no pointers.
        unsafe {
            assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit), 0);
            // Whoever is not root has no CAP_IPC_LOCK, to which the limit does not apply.
            assert_eq!(libc::setuid(65_534), 0, "run this as root");
        }
        let register = |bytes| {
            let buffer = Arc::new(HostBuffer::new(rank.comm.context(), bytes).unwrap());
            rank.comm.register_host(&buffer, Transport::Ib(0))
        };
        let small = register(64 << 10).expect("below the limit");
        let error = register(1 << 20).unwrap_err();
        println!("{error}");
        for words in ["locked memory is 256 KiB", "ulimit -l unlimited", "LimitMEMLOCK", "1048576 bytes"] {
            assert!(error.to_string().contains(words), "{words}: {error}");
        }
        drop(small);
        drop(register(128 << 10).expect("what was locked has been given back"));
    });
}

/// `AQUEDUCT_TEST_LOSE_NIC` is the command by which the victim's NIC goes away; the victim runs it.
#[test]
#[ignore = "needs three hosts with RDMA NICs, one of which may be removed: ci/rdma-vm has them"]
fn a_nic_that_goes_away_fails_its_connections() {
    let lose = std::env::var("AQUEDUCT_TEST_LOSE_NIC").expect("AQUEDUCT_TEST_LOSE_NIC");
    let (rank, ends) = three();
    if rank.me() == VICTIM {
        let start = Instant::now();
        let mut remover = Command::new("sh").arg("-c").arg(lose).spawn().unwrap();
        for end in &ends {
            let error = loop {
                match end.connection.write(&end.target, 0, &end.source, 0, LEN) {
                    Ok(()) => assert!(start.elapsed() < TIMELY * 2, "it goes on"),
                    Err(error) => break error,
                }
            };
            println!("after {:.1} s: {error}", start.elapsed().as_secs_f64());
            assert_eq!(error.peer(), Some(end.connection.peer()), "{error}");
            end.connection.flush(soon()).unwrap_err();
        }
        // The processes still know of each other: only the NIC has gone.
        rank.barrier();
        // What is removed must not wait for this rank: everything that names the NIC goes with its owners.
        drop(ends);
        drop(rank);
        let until = Instant::now() + TIMELY;
        while remover.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "the NIC is still in use");
            std::thread::sleep(Duration::from_millis(50));
        }
        return;
    }
    lost(to_victim(&ends));
    other(&rank, &ends);
    rank.barrier();
}
