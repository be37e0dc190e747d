//! When paths between ranks break, at most one group goes on, and every rank outside it gets an error.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use aqueduct::bootstrap::{self, Bootstrap as _};
use aqueduct::comm::{CommunicatorConfig, PeerInfo};
use aqueduct::internals::net::{Claims, Layer, RawStream};
use aqueduct::{Deadline, ErrorKind, Result};

use crate::support::{Expected, Rank, config, context, driver, processes, soon};

/// Short, so that broken paths are noticed soon; above the smallest that is accepted.
const PEER_TIMEOUT: Duration = Duration::from_millis(1500);

/// Swallows what is sent from the first rank of a pair to the second, once it is told to, on the links of the first
/// communicator that is made through it.
#[derive(Debug)]
struct BrokenPaths {
    pairs: Vec<(u32, u32)>,
    broken: Arc<AtomicBool>,
    /// The scope of the first communicator: one made later numbers its ranks anew.
    scope: AtomicU64,
}

impl BrokenPaths {
    fn between(pairs: impl IntoIterator<Item = (u32, u32)>) -> Arc<Self> {
        let (pairs, broken) = (pairs.into_iter().collect(), Arc::default());
        Arc::new(Self { pairs, broken, scope: AtomicU64::new(0) })
    }

    fn break_now(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }
}

impl Layer for BrokenPaths {
    fn wrap(&self, local: Claims, peer: Claims, raw: Box<dyn RawStream>) -> Box<dyn RawStream> {
        let _ = self.scope.compare_exchange(0, local.scope, Ordering::Relaxed, Ordering::Relaxed);
        let ours = self.scope.load(Ordering::Relaxed) == local.scope;
        if ours && self.pairs.contains(&(local.from, peer.from)) {
            Box::new(Swallowing(raw, self.broken.clone()))
        } else {
            raw
        }
    }
}

#[derive(Debug)]
struct Swallowing(Box<dyn RawStream>, Arc<AtomicBool>);

impl RawStream for Swallowing {
    fn read(&self, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        self.0.read(into, fds)
    }

    fn write(&self, from: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        if self.1.load(Ordering::Relaxed) { Ok(from.len()) } else { self.0.write(from, fds) }
    }

    fn shutdown(&self, both: bool) -> io::Result<()> {
        self.0.shutdown(both)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

/// Runs `size` ranks as threads whose links pass through `paths`; what each returns, in rank order.
fn ranks<T: Send>(size: u32, paths: &Arc<BrokenPaths>, run: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    let driver = driver();
    let config: CommunicatorConfig = config().with_peer_timeout(Some(PEER_TIMEOUT)).with_layer(paths.clone());
    std::thread::scope(|s| {
        let ranks: Vec<_> = bootstrap::local(size)
            .into_iter()
            .map(|bootstrap| {
                let (driver, run, config) = (&driver, &run, config.clone());
                s.spawn(move || {
                    let context = context(driver, bootstrap.rank());
                    run(Rank::join(Arc::new(bootstrap), &context, config))
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let deadline = soon();
    while !done() {
        assert!(!deadline.expired(), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Shrinks the group and returns the ranks that go on with this one, numbered as in the first communicator; ranks
/// differ in their devices.
fn go_on(rank: &Rank) -> Result<BTreeSet<u32>> {
    let made = rank.comm.shrink(&[], Deadline::after(Duration::from_secs(20)));
    // No rank leaves while others may still be making the group.
    rank.barrier();
    let made = made?;
    let address = |peer: &PeerInfo| peer.device.as_ref().unwrap().pci_bus_id.clone();
    let old = |made: &PeerInfo| rank.comm.peers().iter().position(|peer| address(peer) == address(made));
    Ok(made.peers().iter().map(|peer| old(peer).unwrap() as u32).collect())
}

/// The one group that was made, if one was: its members, and only they, know it.
fn the_group(outcomes: &[Result<BTreeSet<u32>>]) -> Option<BTreeSet<u32>> {
    let members: BTreeSet<u32> =
        (0..).zip(outcomes).filter(|(_, outcome)| outcome.is_ok()).map(|(rank, _)| rank).collect();
    for (rank, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Ok(group) => assert_eq!(*group, members, "rank {rank} is in another group: {outcomes:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::PeerLost, "rank {rank}: {error}"),
        }
    }
    (!members.is_empty()).then_some(members)
}

#[test]
fn a_broken_path_between_two_of_four_leaves_one_group_of_three() {
    // Ranks whose paths are all whole must not be lost for what two others say of each other.
    let run = |_| {
        let paths = BrokenPaths::between([(0, 1), (1, 0)]);
        let outcomes = ranks(4, &paths, |rank| {
            rank.barrier();
            paths.break_now();
            wait_until("the broken path was not noticed", || rank.comm.check().is_err());
            go_on(&rank)
        });
        the_group(&outcomes)
    };
    let groups: Vec<_> = std::thread::scope(|s| {
        let runs = |_| (0..5).map(run).collect::<Vec<_>>();
        let lanes: Vec<_> = (0..4).map(|lane| s.spawn(move || runs(lane))).collect();
        lanes.into_iter().flat_map(|lane| lane.join().unwrap()).collect()
    });
    assert_eq!(groups.len(), 20);
    for group in &groups {
        let group = group.as_ref().expect("three ranks reach each other and nothing else fails");
        assert!(group.len() == 3 && group.is_superset(&[2, 3].into()), "{groups:?}");
    }
}

#[test]
fn one_who_fell_silent_after_an_abort_knows_that_it_was_given_up() {
    let paths = BrokenPaths::between([(2, 0), (2, 1)]);
    let outcomes = ranks(3, &paths, |rank| {
        rank.barrier();
        if rank.me() == 0 {
            rank.comm.abort("the input is wrong");
        }
        wait_until("the abort did not come", || rank.comm.check().is_err());
        rank.barrier();
        paths.break_now();
        if rank.me() != 2 {
            wait_until("the silence was not noticed", || rank.comm.lost() == [2]);
        }
        rank.barrier();
        let outcome = go_on(&rank);
        if rank.me() == 2 {
            // For good: also when asked again, and nobody else is to blame.
            let again = rank.comm.shrink(&[], soon()).unwrap_err();
            assert_eq!((again.kind(), again.peer()), (ErrorKind::PeerLost, Some(2)), "{again}");
        }
        outcome
    });
    assert_eq!(the_group(&outcomes), Some([0, 1].into()));
    let error = outcomes[2].as_ref().unwrap_err();
    assert_eq!(error.peer(), Some(2), "{error}");
    assert!(error.message().contains("given up this process"), "{error}");
}

#[test]
fn half_of_a_group_goes_on_only_with_its_lowest_rank() {
    let between = |a: [u32; 2], b: [u32; 2]| {
        a.into_iter().flat_map(move |from| b.into_iter().flat_map(move |to| [(from, to), (to, from)]))
    };
    let paths = BrokenPaths::between(between([0, 3], [1, 2]));
    let outcomes = ranks(4, &paths, |rank| {
        rank.barrier();
        paths.break_now();
        wait_until("the broken paths were not noticed", || rank.comm.check().is_err());
        go_on(&rank)
    });
    assert_eq!(the_group(&outcomes), Some([0, 3].into()));
}

#[test]
fn of_a_pair_the_lower_rank_goes_on_where_only_the_path_is_broken() {
    let paths = BrokenPaths::between([(0, 1), (1, 0)]);
    let outcomes = ranks(2, &paths, |rank| {
        rank.barrier();
        paths.break_now();
        wait_until("the broken path was not noticed", || rank.comm.check().is_err());
        go_on(&rank)
    });
    assert_eq!(the_group(&outcomes), Some([0].into()));
}

#[test]
fn of_a_pair_the_higher_rank_goes_on_if_it_sees_the_lower_one_die() {
    const NAME: &str = "membership::of_a_pair_the_higher_rank_goes_on_if_it_sees_the_lower_one_die";
    let expected: Expected = |rank, killed, success| if rank == 0 { killed } else { success };
    processes(2, NAME, expected, |rank| {
        rank.barrier();
        if rank.me() == 0 {
            // SAFETY: ends this process, which is the point.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        wait_until("the death was not noticed", || rank.comm.check().is_err());
        let alone = rank.comm.shrink(&[], soon()).unwrap();
        assert_eq!((alone.rank(), alone.size()), (0, 1));
    });
}

#[test]
fn those_who_are_left_out_vote_and_are_out_for_good() {
    let whole = BrokenPaths::between([]);
    let outcomes = ranks(4, &whole, |rank| {
        rank.barrier();
        let made = (rank.me() == 3).then(|| rank.comm.shrink(&[0, 1, 2], soon()).unwrap());
        rank.barrier();
        if let Some(made) = &made {
            assert_eq!((made.rank(), made.size()), (0, 1));
            let error = rank.comm.shrink(&[], soon()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
        } else {
            let error = rank.comm.shrink(&[3], soon()).unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(rank.me())), "{error}");
            rank.comm.check().expect("the old communicator goes on");
        }
        rank.barrier();
        made.is_some()
    });
    assert_eq!(outcomes, [false, false, false, true]);
}

#[test]
fn a_communicator_that_was_made_is_shrunk_again() {
    let whole = BrokenPaths::between([]);
    ranks(4, &whole, |rank| {
        let mut comm = rank.comm.clone();
        for size in [3, 2, 1] {
            let last = comm.size() - 1;
            if comm.rank() == last {
                // It leaves the last one, which is the only one that counts for the others.
                drop(comm);
                break;
            }
            comm = comm.shrink(&[last], soon()).unwrap();
            assert_eq!((comm.rank(), comm.size()), (rank.me(), size));
        }
        rank.barrier();
    });
}
