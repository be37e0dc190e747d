//! The TCP bootstrap with threads and with real processes, and everything that can go wrong while ranks join.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;
use crate::deadline::Deadline;
use crate::env::Selection;
use crate::error::Result;
use crate::error::{Error, ErrorKind};
use crate::net::apart::free;
use crate::net::{Claims, interfaces};

mod silence;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

fn millis(ms: u64) -> Deadline {
    Deadline::after(Duration::from_millis(ms))
}

/// A job whose rendezvous is on the loopback.
fn id() -> UniqueId {
    let loopback: Vec<_> =
        interfaces().unwrap().into_iter().filter(|i| i.loopback && i.ip.is_ipv4()).collect();
    Rendezvous::start_on(&loopback, None).unwrap().detach()
}

/// Runs `body` as every rank of a job, each in its thread; the results in rank order.
fn ranks<T: Send>(size: u32, body: impl Fn(TcpBootstrap) -> T + Sync) -> Vec<T> {
    let id = id();
    let (id, body) = (&id, &body);
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..size)
            .map(|r| s.spawn(move || body(TcpBootstrap::new(r, size, id, soon()).unwrap())))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Joins one job as each of these (rank, size), and returns each one's result.
fn join(members: &[(u32, u32)], deadline: Deadline) -> Vec<Result<()>> {
    let id = id();
    let id = &id;
    std::thread::scope(|s| {
        let threads: Vec<_> = members
            .iter()
            .map(|(r, n)| s.spawn(move || TcpBootstrap::new(*r, *n, id, deadline).map(drop)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn errors(results: Vec<Result<()>>) -> Vec<Error> {
    results.into_iter().map(|r| r.expect_err("joined although it must not")).collect()
}

#[test]
fn every_size_gathers_and_every_pair_talks() {
    for size in [1, 2, 3, 5, 8] {
        ranks(size, |b| {
            let block = |rank: u32| vec![rank as u8; 3 * rank as usize];
            assert_eq!(
                b.all_gather(&block(b.rank()), soon()).unwrap(),
                (0..size).map(block).collect::<Vec<_>>()
            );
            for peer in 0..size {
                b.send(peer, 5, &[b.rank() as u8, peer as u8], soon()).unwrap();
            }
            for peer in 0..size {
                assert_eq!(b.recv(peer, 5, soon()).unwrap(), [peer as u8, b.rank() as u8]);
            }
            b.barrier(soon()).unwrap();
        });
    }
}

#[test]
fn sixty_four_ranks_as_threads() {
    let sums = ranks(64, |b| {
        let all = b.all_gather(&b.rank().to_le_bytes(), soon()).unwrap();
        b.barrier(soon()).unwrap();
        all.iter().map(|bytes| u64::from(u32::from_le_bytes(bytes[..].try_into().unwrap()))).sum::<u64>()
    });
    assert_eq!(sums, [2016; 64]);
}

#[test]
fn messages_stay_in_order_and_the_last_one_survives_the_drop() {
    ranks(2, |b| {
        if b.rank() == 0 {
            (0..500_u32).for_each(|i| b.send(1, 3, &i.to_le_bytes(), soon()).unwrap());
            b.send(1, 4, &vec![9; MAX_MESSAGE], soon()).unwrap();
            assert_eq!(
                b.send(1, 4, &vec![9; MAX_MESSAGE + 1], soon()).unwrap_err().kind(),
                ErrorKind::InvalidUsage
            );
        } else {
            (0..500_u32).for_each(|i| assert_eq!(b.recv(0, 3, soon()).unwrap(), i.to_le_bytes()));
            assert_eq!(b.recv(0, 4, soon()).unwrap().len(), MAX_MESSAGE);
            let lost = b.recv(0, 4, soon()).unwrap_err();
            assert_eq!((lost.kind(), lost.peer()), (ErrorKind::PeerLost, Some(0)));
        }
    });
}

#[test]
fn a_gather_may_be_longer_than_a_message() {
    let lengths = ranks(3, |b| {
        // Some hundred megabytes, which take a sanitizer on a busy machine longer than `soon`.
        let deadline = Deadline::after(Duration::from_secs(300));
        let all = b.all_gather(&vec![b.rank() as u8; MAX_MESSAGE - 100], deadline).unwrap();
        all.iter().enumerate().all(|(r, block)| block.len() == MAX_MESSAGE - 100 && block[77] == r as u8)
    });
    assert_eq!(lengths, [true; 3]);
}

#[test]
fn both_sides_may_send_first_at_the_same_time() {
    ranks(4, |b| {
        for lap in 0..50_u8 {
            for peer in 0..4 {
                b.send(peer, 1, &[lap], soon()).unwrap();
            }
            for peer in 0..4 {
                assert_eq!(b.recv(peer, 1, soon()).unwrap(), [lap]);
            }
        }
    });
}

#[test]
fn two_ranks_with_one_number_are_an_error_for_all() {
    for error in errors(join(&[(0, 4), (1, 4), (3, 4), (3, 4)], soon())) {
        assert_eq!(error.kind(), ErrorKind::InvalidUsage);
        assert!(error.to_string().contains("two ranks say they are rank 3"), "{error}");
    }
}

#[test]
fn different_world_sizes_are_an_error_for_all() {
    for error in errors(join(&[(0, 3), (1, 3), (2, 4)], soon())) {
        assert!(error.to_string().contains("give all the same world size"), "{error}");
    }
    assert!(TcpBootstrap::new(2, 2, &id(), soon()).unwrap_err().to_string().contains("rank 2 of 2"));
}

fn config() -> BootstrapConfig {
    BootstrapConfig::default()
}

/// A connection to the rendezvous of `id` that says `hello`, as any holder of the id can.
fn say_hello(id: &UniqueId, hello: &rendezvous::Hello) -> crate::net::Stream {
    let (purpose, scope) = (crate::net::purpose::RENDEZVOUS, id.nonce());
    let me = Claims { purpose, scope, from: hello.rank, to: Claims::ANY };
    let mut stream = config().network(id.secret()).connect_tcp(id.addresses(), me, soon()).unwrap();
    stream.send(rendezvous::HELLO, &hello.encode(), soon()).unwrap();
    stream
}

#[test]
fn a_wrong_world_size_costs_the_rendezvous_nothing() {
    let id = id();
    let address = id.addresses()[0];
    let hello = rendezvous::Hello { rank: 1, size: u32::MAX, patience: Duration::from_millis(200), address };
    let mut stream = say_hello(&id, &hello);
    let error = rendezvous::read_answer(&stream.recv(soon()).unwrap(), 2).unwrap_err().to_string();
    assert!(error.contains("rank 1 says there are 4294967295 ranks"), "{error}");
    let honest = TcpBootstrap::new(0, 2, &id, soon()).unwrap_err().to_string();
    assert!(honest.contains("rank 1 says there are 4294967295 ranks"), "{honest}");
    // A rank does not even begin with a size that no job can have.
    let refused = TcpBootstrap::new(0, u32::MAX, &self::id(), soon()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidUsage);
}

#[test]
fn the_absent_are_named_without_counting_all_of_them() {
    let id = id();
    let hello = rendezvous::Hello {
        rank: MAX_RANKS - 1,
        size: MAX_RANKS,
        patience: Duration::from_millis(200),
        address: id.addresses()[0],
    };
    let error =
        rendezvous::read_answer(&say_hello(&id, &hello).recv(soon()).unwrap(), MAX_RANKS).unwrap_err();
    assert!(error.message().contains("ranks 0, 1, 2"), "{error}");
    assert!(error.message().contains(&format!("15, and {} more", MAX_RANKS - 17)), "{error}");
}

#[test]
fn a_connection_from_a_rank_that_the_job_does_not_have_is_refused() {
    let id = id();
    std::thread::scope(|s| {
        let first = s.spawn(|| TcpBootstrap::new(0, 2, &id, soon()));
        // Rank 1 joins by hand, and learns where rank 0 listens.
        let own = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let hello = rendezvous::Hello {
            rank: 1,
            size: 2,
            patience: Duration::from_secs(3600),
            address: own.local_addr().unwrap(),
        };
        let answer = say_hello(&id, &hello).recv(soon()).unwrap();
        let address = rendezvous::read_answer(&answer, 2).unwrap()[&0];
        let (purpose, scope) = (crate::net::purpose::BOOTSTRAP, id.nonce());
        let connect = |from| {
            let me = Claims { purpose, scope, from, to: 0 };
            config().network(id.secret()).connect_tcp(&[address], me, soon())
        };
        for from in [2, 7, Claims::ANY] {
            let refused = connect(from).expect_err("there is no such rank");
            assert!(refused.to_string().contains("2 ranks"), "{refused}");
        }
        connect(1).unwrap();
        drop(own);
        drop(first.join().unwrap());
    });
}

#[test]
fn a_missing_rank_is_named_at_the_deadline() {
    let start = Instant::now();
    for error in errors(join(&[(0, 4), (3, 4)], millis(2500))) {
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.to_string().contains("ranks 1, 2 of 4 did not arrive"), "{error}");
    }
    // Those that wait are told a little before it.
    let took = start.elapsed();
    assert!((Duration::from_millis(1250)..Duration::from_secs(60)).contains(&took), "{took:?}");
}

#[test]
fn a_rank_with_another_secret_is_told_so_and_is_missing_for_the_others() {
    let id = id();
    let mut bytes = *id.secret().expose();
    bytes[0] ^= 1;
    let wrong = UniqueId::new(id.addresses().to_vec(), Secret::from_bytes(bytes), id.nonce() ^ 1);
    std::thread::scope(|s| {
        let good = s.spawn(|| TcpBootstrap::new(0, 2, &id, millis(2500)).map(drop));
        let bad = s.spawn(|| TcpBootstrap::new(1, 2, &wrong, millis(2500)).map(drop));
        assert_eq!(bad.join().unwrap().unwrap_err().kind(), ErrorKind::Authentication);
        assert!(good.join().unwrap().unwrap_err().to_string().contains("rank 1 of 2 did not arrive"));
    });
}

#[test]
fn a_launcher_serves_ranks_of_other_processes_and_knows_their_number() {
    let loopback: Vec<_> =
        interfaces().unwrap().into_iter().filter(|i| i.loopback && i.ip.is_ipv4()).collect();
    let meeting = Rendezvous::start_on(&loopback, Some(3)).unwrap();
    let mut children = [spawn(1, meeting.unique_id()), spawn(2, meeting.unique_id())];
    let b = TcpBootstrap::new(0, 3, meeting.unique_id(), soon()).unwrap();
    drop(meeting);
    for peer in [1, 2] {
        assert_eq!(b.recv(peer, 1, soon()).unwrap(), b"here");
        b.send(peer, 2, b"", soon()).unwrap();
    }
    assert!(children.iter_mut().all(|child| child.wait().unwrap().success()));
    let meeting = Rendezvous::start_on(&loopback, Some(3)).unwrap();
    let error = TcpBootstrap::new(0, 2, meeting.unique_id(), soon()).unwrap_err();
    assert!(error.to_string().contains("rank 0 says there are 2 ranks, the launcher says 3"), "{error}");
}

#[test]
fn every_rank_derives_the_same_secret() {
    let secrets = ranks(2, |b| *b.secret().unwrap().expose());
    assert_eq!(secrets[0], secrets[1]);
    assert!(local(1)[0].secret().is_none());
}

#[test]
fn a_rendezvous_nobody_serves_is_named() {
    let free = free();
    let id = UniqueId::new(vec![free], Secret::from_bytes([1; 32]), 1);
    let error = TcpBootstrap::new(0, 2, &id, soon()).unwrap_err();
    assert!(error.to_string().contains(&free.to_string()), "{error}");
}

/// The configuration of a bootstrap affects neither another one of the same process nor the environment.
#[test]
fn two_bootstraps_of_one_process_may_differ() {
    let named = |names: &str| Selection { names: Some(names.to_owned()), ..Selection::default() };
    let local = BootstrapConfig::default().with_interfaces(named("=lo")).with_peer_timeout(None);
    let nowhere = BootstrapConfig::default().with_interfaces(named("=none0"));
    let error = Rendezvous::with_config(Some(1), &nowhere).unwrap_err();
    assert!(error.to_string().contains("none0"), "{error}");
    let id = Rendezvous::with_config(None, &local).unwrap().detach();
    assert!(id.addresses().iter().all(|address| address.ip().is_loopback()), "{id:?}");
    let error = TcpBootstrap::with_config(0, 1, &id, &nowhere, soon()).unwrap_err();
    assert!(error.to_string().contains("none0"), "{error}");
    let alone = TcpBootstrap::with_config(0, 1, &id, &local, soon()).unwrap();
    assert!(alone.local_ip().is_loopback());
}

/// One rank of another test, in a process of its own: joins, tells rank 0 and then waits to be killed.
#[test]
#[ignore = "a rank that other tests start as a process; it needs their unique id"]
fn rank_process() {
    let id: UniqueId = std::env::var("AQUEDUCT_UNIQUE_ID").unwrap().parse().unwrap();
    let rank = std::env::var("AQUEDUCT_RANK").unwrap().parse().unwrap();
    let b = TcpBootstrap::new(rank, 3, &id, soon()).unwrap();
    b.send(0, 1, b"here", soon()).unwrap();
    // Until rank 0 lets it go.
    b.recv(0, 2, soon()).unwrap();
}

fn spawn(rank: u32, id: &UniqueId) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "bootstrap::tests::rank_process", "--ignored", "--nocapture"])
        .env("AQUEDUCT_UNIQUE_ID", id.to_text().expose())
        .env("AQUEDUCT_RANK", rank.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_killed_process_is_noticed() {
    let id = id();
    let mut children = [spawn(1, &id), spawn(2, &id)];
    let b = TcpBootstrap::new(0, 3, &id, soon()).unwrap();
    assert_eq!(b.recv(1, 1, soon()).unwrap(), b"here");
    assert_eq!(b.recv(2, 1, soon()).unwrap(), b"here");
    children[1].kill().unwrap();
    // At its deadline it would be a timeout.
    let lost = b.recv(2, 1, soon()).unwrap_err();
    assert_eq!((lost.kind(), lost.peer()), (ErrorKind::PeerLost, Some(2)));
    assert_eq!(b.send(2, 1, b"", soon()).unwrap_err().kind(), ErrorKind::PeerLost);
    // The other one is still well.
    b.send(1, 2, b"", soon()).unwrap();
    assert!(children[0].wait().unwrap().success());
    children[1].wait().unwrap();
}

/// Rank 1 leaves, rank 0 notices and leaves, and so on: each waits only for the one before. Rank 4 leaves, too, and nobody is told of that,
/// nor of what did not come in time.
#[test]
fn a_rank_that_leaves_because_of_a_loss_tells_those_who_wait_for_it() {
    let named = ranks(5, |bootstrap| {
        let (rank, (tag, order)) = (bootstrap.rank(), (5, [1, 0, 2, 3]));
        let place = order.iter().position(|other| *other == rank)?;
        let before = order[place.checked_sub(1)?];
        let late = bootstrap.recv(before, tag + 1, millis(0)).unwrap_err();
        assert!(matches!(late.kind(), ErrorKind::Timeout | ErrorKind::PeerLost), "{late}");
        let error = bootstrap.recv(before, tag, soon()).unwrap_err();
        let gone = bootstrap.send(before, tag, b"", soon()).unwrap_err();
        bootstrap.recv(4, tag, soon()).unwrap_err();
        Some([error, gone])
    });
    for (rank, errors) in named.into_iter().enumerate() {
        assert_eq!(errors.is_none(), [1, 4].contains(&rank));
        for error in errors.into_iter().flatten() {
            assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "rank {rank}: {error}");
        }
    }
}

/// Rank 3 hears from rank 2 that the root of their broadcast is gone, and rank 1 from rank 3.
#[test]
fn a_rank_that_leaves_because_it_has_heard_of_a_loss_tells_of_it() {
    let named = ranks(4, |bootstrap| match bootstrap.rank() {
        0 => None,
        1 => Some(bootstrap.recv(3, 5, soon()).unwrap_err()),
        _ => Some(bootstrap.broadcast(0, b"", soon()).unwrap_err()),
    });
    for error in named.into_iter().flatten() {
        assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(0)), "{error}");
    }
}

#[test]
fn a_process_killed_while_joining_is_named_to_the_others() {
    let id = id();
    let mut child = spawn(2, &id);
    std::thread::scope(|s| {
        let first = s.spawn(|| TcpBootstrap::new(0, 3, &id, soon()).map(drop));
        std::thread::sleep(Duration::from_millis(1500));
        child.kill().unwrap();
        child.wait().unwrap();
        let error = first.join().unwrap().unwrap_err();
        // At the deadline it would be a timeout.
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        assert!(error.to_string().contains("rank 2"), "{error}");
    });
}

/// The child has copies of the parent's sockets.
#[test]
fn a_forked_child_does_not_speak_for_its_parent() {
    let passed = ranks(2, |b| {
        if b.rank() == 1 {
            // SAFETY: the child calls nothing but the bootstrap, which allocates (glibc allows it after fork), and _exit.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let refused =
                    |result: Result<()>| result.is_err_and(|e| e.message().contains("does not survive fork"));
                let said = [
                    b.send(0, 1, b"from the child", soon()),
                    b.recv(0, 1, soon()).map(drop),
                    b.barrier(soon()),
                ];
                // SAFETY: _exit is async-signal-safe.
                unsafe { libc::_exit(if said.into_iter().all(refused) { 7 } else { 1 }) };
            }
            let mut status = 0;
            // SAFETY: `child` is ours and `status` is a live output.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            b.send(0, 1, b"from the parent", soon()).unwrap();
            return libc::WEXITSTATUS(status) == 7;
        }
        b.recv(1, 1, soon()).unwrap() == b"from the parent"
    });
    assert_eq!(passed, [true, true]);
}
