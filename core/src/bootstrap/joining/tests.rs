//! Ranks that meet at an address and by a file, and what keeps them from it.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::*;
use crate::bootstrap::{Bootstrap as _, MAX_RANKS};
use crate::error::ErrorKind;
use crate::net::apart::free;
use crate::net::interfaces;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

/// Long enough for ranks that are there, for those who wait for one that is not.
fn shortly() -> Deadline {
    Deadline::after(Duration::from_millis(700))
}

fn config() -> BootstrapConfig {
    BootstrapConfig::default()
}

fn secret() -> Secret {
    Secret::from_bytes([7; 32])
}

fn at(rank: u32, size: u32, address: &str, deadline: Deadline) -> Result<TcpBootstrap> {
    TcpBootstrap::at(rank, size, address, &secret(), &config(), deadline)
}

/// Runs `join` for every rank of `size`, each in a thread, and has them gather their ranks.
fn all_meet(size: u32, join: impl Fn(u32) -> Result<TcpBootstrap> + Sync) {
    let join = &join;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size).map(|rank| scope.spawn(move || join(rank))).collect();
        let ranks: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect();
        for b in ranks {
            scope.spawn(move || {
                let all = b.all_gather(&[b.rank() as u8], soon()).unwrap();
                assert_eq!(all.concat(), (0..size as u8).collect::<Vec<_>>());
            });
        }
    });
}

/// The same address serves one job after the other: its port is free as soon as rank 0 has joined.
#[test]
fn ranks_meet_at_an_address_again_and_again() {
    let address = free().to_string();
    for size in [1, 2, 5, 3, 2, 2, 2] {
        all_meet(size, |rank| at(rank, size, &address, soon()));
    }
}

#[test]
fn others_wait_for_rank_0_longer_than_for_a_rendezvous_that_must_be_there() {
    let address = free().to_string();
    all_meet(3, |rank| {
        if rank == 0 {
            std::thread::sleep(Duration::from_millis(1500));
        }
        at(rank, 3, &address, soon())
    });
}

#[test]
fn an_interface_may_be_named_and_addresses_may_be_of_ipv6() {
    let all = interfaces().unwrap();
    let address = free();
    all_meet(2, |rank| {
        let joined = at(rank, 2, &format!("lo:{address}"), soon())?;
        assert!(joined.local_ip().is_loopback());
        Ok(joined)
    });
    let error = at(1, 2, &format!("none0:{address}"), shortly());
    // The rendezvous comes first: nobody is there.
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Timeout);
    let error = at(0, 1, &format!("none0:{address}"), soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
    assert!(error.message().contains("=none0") && error.message().contains("lo (127.0.0.1)"), "{error}");
    if all.iter().any(|interface| interface.ip == std::net::Ipv6Addr::LOCALHOST) {
        let address = TcpListener::bind("[::1]:0").unwrap().local_addr().unwrap().to_string();
        assert!(address.starts_with("[::1]:"), "{address}");
        all_meet(2, |rank| at(rank, 2, &address, soon()));
    } else {
        // Written past the test harness: the lanes count these lines.
        let line = "NOT RUN: bootstrap::joining over IPv6: the loopback interface has no ::1\n";
        std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes()).unwrap();
    }
}

#[test]
fn rank_0_says_why_it_cannot_listen() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for (address, words) in [
        (taken.local_addr().unwrap().to_string(), "another process listens there"),
        // TEST-NET-1 (RFC 5737): no host has it.
        ("192.0.2.1:29500".to_owned(), "it is no address of this host"),
    ] {
        let error = at(0, 2, &address, soon()).unwrap_err();
        assert_eq!((error.op(), error.kind()), ("TcpBootstrap::at", ErrorKind::System), "{error}");
        assert!(error.message().contains(&format!("rank 0 cannot listen at {address}: {words}")), "{error}");
    }
}

#[test]
fn a_second_rank_0_is_told_so_and_does_not_disturb_the_first() {
    let address = free().to_string();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| at(0, 2, &address, soon()));
        while TcpStream::connect(&address).is_err() {
            std::thread::yield_now();
        }
        let error = at(0, 2, &address, soon()).unwrap_err();
        assert!(error.message().contains("a second rank 0"), "{error}");
        let other = at(1, 2, &address, soon()).unwrap();
        other.send(0, 1, b"here", soon()).unwrap();
        assert_eq!(first.join().unwrap().unwrap().recv(1, 1, soon()).unwrap(), b"here");
    });
}

#[test]
fn whoever_is_missing_is_named() {
    let address = free().to_string();
    let error = at(1, 2, &address, shortly()).unwrap_err();
    assert_eq!((error.op(), error.kind()), ("TcpBootstrap::at", ErrorKind::Timeout), "{error}");
    assert!(error.message().contains(&format!("rank 1 cannot join at {address}: see that rank 0 runs")));
    assert!(error.to_string().contains("Connection refused"), "{error}");
    let error = at(0, 2, &address, shortly()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(error.message().contains("rank 1 of 2 did not arrive in time"), "{error}");
    // The failed attempt does not hold the port.
    all_meet(2, |rank| at(rank, 2, &address, soon()));
}

#[test]
fn another_secret_and_another_world_size_are_refused() {
    let address = free().to_string();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| at(0, 2, &address, Deadline::after(Duration::from_millis(2500))));
        let wrong = Secret::from_bytes([8; 32]);
        let error = TcpBootstrap::at(1, 2, &address, &wrong, &config(), soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
        assert!(error.message().contains("give all ranks the same secret"), "{error}");
        assert!(first.join().unwrap().unwrap_err().message().contains("rank 1 of 2 did not arrive"));
    });
    std::thread::scope(|scope| {
        let ranks = [(0, 2), (1, 3)].map(|(rank, size)| {
            let address = &address;
            scope.spawn(move || at(rank, size, address, soon()).unwrap_err())
        });
        for error in ranks.map(|rank| rank.join().unwrap()) {
            assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
            assert!(error.message().contains("give all the same world size"), "{error}");
        }
    });
}

#[test]
fn a_world_size_that_no_job_has_says_what_it_is() {
    for size in [0, MAX_RANKS + 1, u32::MAX] {
        for error in [
            at(0, size, "127.0.0.1:29500", soon()).unwrap_err(),
            TcpBootstrap::by_file(0, size, Path::new("/nowhere"), "", &config(), soon()).unwrap_err(),
            Rendezvous::with_config(Some(size), &config()).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
            assert!(error.message().contains(&format!("1 to {MAX_RANKS} ranks, not {size}")), "{error}");
            assert!(error.message().contains("give the number of processes that join"), "{error}");
        }
    }
}

/// A folder of a test, and the file in it at which its ranks meet.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("aqueduct-joining-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("meet")
    }

    fn join(&self, rank: u32, size: u32, job: &str, deadline: Deadline) -> Result<TcpBootstrap> {
        TcpBootstrap::by_file(rank, size, &self.file(), job, &config(), deadline)
    }

    /// Leaves `id` as this process would if it were rank 0 of `job`.
    fn leave(&self, job: &str, id: &UniqueId) -> impl Drop + use<> {
        Place::at(&self.file(), job).publish(&id.to_text()).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The id of a rendezvous that is not served any more.
fn unserved() -> UniqueId {
    UniqueId::new(vec![free()], secret(), 1)
}

#[test]
fn ranks_meet_by_a_file_which_is_gone_afterwards() {
    let folder = Folder::new("meet");
    for (size, job) in [(1, ""), (3, ""), (4, "job 7")] {
        all_meet(size, |rank| folder.join(rank, size, job, soon()));
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0, "nothing stays");
    }
    let error = folder.join(0, 2, "", shortly()).unwrap_err();
    assert!(error.message().contains("rank 1 of 2 did not arrive"), "{error}");
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0, "nor after a failure");
}

#[test]
fn a_file_of_an_earlier_job_is_passed_over_until_rank_0_replaces_it() {
    let folder = Folder::new("stale");
    // At the address of the second one somebody else listens now.
    let other = Rendezvous::start_on(
        &[crate::net::Interface { name: "lo".into(), ip: Ipv4Addr::LOCALHOST.into(), loopback: true }],
        Some(2),
    )
    .unwrap();
    let taken = UniqueId::new(other.unique_id().addresses().to_vec(), secret(), 1);
    for stale in [unserved(), taken] {
        let left = folder.leave("", &stale);
        let error = folder.join(1, 2, "", shortly()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert!(error.message().contains("nobody serves the id in"), "{error}");
        all_meet(2, |rank| {
            if rank == 0 {
                std::thread::sleep(Duration::from_millis(300));
            }
            folder.join(rank, 2, "", soon())
        });
        drop(left);
    }
}

/// At the address in the file somebody listens who never says anything.
#[test]
fn a_rendezvous_that_does_not_answer_is_given_up_and_the_file_read_again() {
    let folder = Folder::new("silent");
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let left = folder.leave("", &UniqueId::new(vec![silent.local_addr().unwrap()], secret(), 1));
    let reached = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Kept open, so that rank 1 has nothing but its own limit.
            let (_open, _) = silent.accept().unwrap();
            reached.wait();
            reached.wait();
        });
        all_meet(2, |rank| {
            if rank == 0 {
                reached.wait();
                let joined = folder.join(0, 2, "", soon());
                reached.wait();
                return joined;
            }
            let place = Place::at(&folder.file(), "");
            TcpBootstrap::by_place_answering(Duration::from_secs(1), 1, 2, &place, &config(), soon())
        });
    });
    drop(left);
}

#[test]
fn a_file_of_another_job_is_never_used() {
    let folder = Folder::new("other");
    let _left = folder.leave("job 7", &unserved());
    let error = folder.join(1, 2, "job 8", shortly()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(error.message().contains("the one there is of another job"), "{error}");
}

#[test]
fn files_and_folders_that_cannot_be_used_are_named() {
    let folder = Folder::new("bad");
    let _left = folder.leave("", &unserved());
    std::fs::set_permissions(folder.file(), PermissionsExt::from_mode(0o644)).unwrap();
    let error = folder.join(1, 2, "", soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
    assert!(error.message().contains("a file of this user with mode 0600"), "{error}");

    let by =
        |rank, path: PathBuf| TcpBootstrap::by_file(rank, 2, &path, "", &config(), shortly()).unwrap_err();
    let missing = folder.0.join("none").join("meet");
    let error = by(0, missing.clone());
    assert_eq!(error.kind(), ErrorKind::System, "{error}");
    assert!(error.message().contains("cannot write") && error.message().contains("none/meet"), "{error}");
    let error = by(1, missing);
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(error.message().contains("its folder does not exist here"), "{error}");
    // A file where a folder should be: like a folder that this user may not enter, for root too.
    for rank in [0, 1] {
        let error = by(rank, folder.file().join("meet"));
        assert_eq!(error.kind(), ErrorKind::System, "{error}");
        assert!(error.message().contains("permissions"), "{error}");
    }
}
