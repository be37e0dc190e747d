//! Verbs connections that fail while data is under way: every operation ends once, within its deadline, with an error
//! that names the peer and the reason, and connections to other peers go on. For ranks on hosts of their own, each with
//! an RDMA device `Ib0`; `ci/rdma-vm` starts them on soft-RoCE, with a timeout and a number of retries that end within
//! seconds: `AQUEDUCT_IB_TIMEOUT=14 AQUEDUCT_IB_RETRY_CNT=3`.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct::bootstrap;
use aqueduct::comm::{Communicator, CommunicatorConfig, HostBuffer, Transport};
use aqueduct::{Error, ErrorKind};

use super::pair::LEN;
use super::peer_connection::{PeerConnection, peer_connections};
use crate::group::{Machine, Rank, soon};

/// The rank that fails.
const VICTIM: u32 = 1;
/// Longest time to an error after the NIC's last retry.
const TIMELY: Duration = Duration::from_secs(30);

/// Joins a job of three ranks, all connected to each other. Returns this rank and its connections, by the peers' rank.
fn three() -> (Rank, Vec<PeerConnection>) {
    let bootstrap = bootstrap::from_env().unwrap().expect("started as one of three ranks");
    assert_eq!(bootstrap.size(), 3);
    let context = crate::group::context(&Machine::Software.driver(), bootstrap.rank());
    let comm = Communicator::new(
        &bootstrap,
        &context,
        CommunicatorConfig::from_env().expect("the environment is valid"),
        soon(),
    )
    .unwrap();
    let rank = Rank { comm, bootstrap };
    let others: Vec<u32> = (0..3).filter(|&other| other != rank.me()).collect();
    let ends = peer_connections(&rank, &others, Transport::Ib(0));
    rank.barrier();
    (rank, ends)
}

/// Writes to the victim until that fails. A thread that already waits, and all later calls, must get
/// the same error.
fn lost(end: &PeerConnection) -> Error {
    let start = Instant::now();
    let (error, waited) = std::thread::scope(|scope| {
        // Waits for a signal that never comes.
        let waiting = scope.spawn(|| end.semaphore.wait(soon()));
        let error = loop {
            match end.connection.write(&end.target, 0, &end.source, 0, LEN) {
                Ok(()) => assert!(start.elapsed() < Duration::from_secs(60), "it goes on"),
                Err(error) => break error,
            }
        };
        println!("after {:.1} s: {error}", start.elapsed().as_secs_f64());
        (error, waiting.join().unwrap().unwrap_err())
    });
    let flushed = end.connection.flush(soon()).unwrap_err();
    let again = end.semaphore.wait(soon()).unwrap_err();
    // None of them is a timeout: all are told before their deadlines.
    for error in [&error, &waited, &flushed, &again] {
        assert_eq!(error.peer(), Some(VICTIM), "{error}");
        assert!(matches!(error.kind(), ErrorKind::Verbs | ErrorKind::PeerLost), "{error}");
    }
    error
}

/// Checks the connection to the third rank, which must still work.
fn other(rank: &Rank, ends: &[PeerConnection]) {
    ends.iter().find(|end| end.connection.peer() != VICTIM).unwrap().works(rank.me());
    rank.comm.check().unwrap();
}

/// The connection to the victim.
fn to_victim(ends: &[PeerConnection]) -> &PeerConnection {
    ends.iter().find(|end| end.connection.peer() == VICTIM).unwrap()
}

#[test]
#[ignore = "needs three hosts with RDMA NICs: ci/rdma-vm has them"]
fn a_killed_peer_does_not_affect_the_others() {
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
    // The whole rank is lost, so the others go on in a communicator without it.
    let comm = rank.comm.shrink(&[], soon()).unwrap();
    let rank = Rank { comm, bootstrap: rank.bootstrap };
    connect_to_the_other(&rank);
    drop(ends);
}

/// Connects the two remaining ranks and checks the connection.
fn connect_to_the_other(rank: &Rank) {
    peer_connections(rank, &[1 - rank.me()], Transport::Ib(0))[0].works(rank.me());
}

/// The owner of memory may drop it while its peer writes. The registration must stay until the peer has released it,
/// because an invalid key at the NIC would end the connection.
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

/// Registration by a user who may lock little memory. Runs in a process of its own, which gives up its rights for good.
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
            // Give up root: the limit does not apply to a process with CAP_IPC_LOCK.
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

/// The victim removes its own NIC with the command in `AQUEDUCT_TEST_LOSE_NIC`.
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
        // Only the NIC is gone; the control links still work.
        rank.barrier();
        // Removing the NIC must not wait for this rank, so dropping the owners must release all its handles.
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
