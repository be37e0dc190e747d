//! After `close`, and `shrink` from several threads: who is in a group, and is told so.

use std::time::Duration;

use aqueduct::bootstrap;
use aqueduct::comm::{Communicator, Transport};
use aqueduct::{Error, ErrorKind, Result};

use crate::support::{Rank, config, context, driver, soon, threads};

fn is_refused<T>(result: Result<T>, text: &str) {
    let error: Error = result.err().expect("it is refused");
    assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
    assert!(error.message().contains(text), "{error}");
}

fn is_closed<T>(result: Result<T>) {
    let error: Error = result.err().expect("it is refused");
    assert_eq!(error.kind(), ErrorKind::Stopped, "{error}");
    assert!(error.message().contains("was closed"), "{error}");
}

/// Makes five communicators one after the other. All ranks have each before any uses it, and keep it until all have.
fn for_five(rank: &Rank, use_it: impl Fn(&Communicator)) {
    for _ in 0..5 {
        let comm = rank.comm.duplicate(soon()).unwrap();
        rank.barrier();
        use_it(&comm);
        rank.barrier();
    }
}

/// Two ranks that have left are no group, and neither is each by itself.
#[test]
fn nothing_can_be_asked_of_a_communicator_that_was_closed() {
    threads(2, |rank| {
        let (comm, peer) = (rank.comm.duplicate(soon()).unwrap(), 1 - rank.me());
        comm.close(soon()).unwrap();
        rank.barrier();
        is_closed(comm.check());
        is_closed(comm.connect(peer, 0, Transport::CudaIpc));
        is_closed(comm.setup(soon()));
        is_closed(comm.split(Some(0), 0, soon()));
        is_closed(comm.shrink(&[], soon()));
        is_closed(comm.close(soon()));
        rank.comm.check().unwrap();
        rank.barrier();
    });
}

#[test]
fn a_communicator_of_one_rank_is_closed_like_any_other() {
    threads(1, |rank| {
        rank.comm.close(soon()).unwrap();
        is_closed(rank.comm.split(Some(0), 0, soon()));
        is_closed(rank.comm.setup(soon()));
        is_closed(rank.comm.shrink(&[], soon()));
    });
}

/// Rank 1 never calls them: only its own close can end what rank 0 waits for.
#[test]
fn close_ends_what_other_threads_of_the_rank_wait_for() {
    threads(2, |rank| {
        if rank.me() == 0 {
            for shrinks in [false, true] {
                let comm = rank.comm.duplicate(soon()).unwrap();
                std::thread::scope(|scope| {
                    let waiting = scope
                        .spawn(|| if shrinks { comm.shrink(&[], soon()) } else { comm.duplicate(soon()) });
                    std::thread::sleep(Duration::from_millis(200));
                    assert!(!waiting.is_finished());
                    comm.close(soon()).unwrap();
                    is_closed(waiting.join().unwrap());
                });
                rank.barrier();
            }
        } else {
            for _ in 0..2 {
                let _comm = rank.comm.duplicate(soon()).unwrap();
                rank.barrier();
            }
        }
    });
}

/// One of the two makes the group; the other is not told that the others went on without this rank.
#[test]
fn of_two_threads_that_shrink_at_once_one_is_told_of_the_other() {
    threads(2, |rank| {
        for_five(&rank, |comm| {
            let both = std::thread::scope(|scope| {
                [(); 2]
                    .map(|()| scope.spawn(|| comm.shrink(&[], soon())))
                    .map(|thread| thread.join().unwrap())
            });
            let (made, refused): (Vec<_>, Vec<_>) = both.into_iter().partition(Result::is_ok);
            assert_eq!(made.into_iter().map(|made| made.unwrap().size()).collect::<Vec<_>>(), [2]);
            refused.into_iter().for_each(|refused| is_refused(refused, "shrunk before"));
        });
    });
}

/// Ranks 0 to 2 leave out different ones; each is told so, however soon another has given up.
#[test]
fn all_who_call_with_different_lists_are_told_so() {
    threads(4, |rank| {
        for_five(&rank, |comm| {
            if rank.me() < 2 {
                let without: &[u32] = if rank.me() == 0 { &[3] } else { &[2, 3] };
                is_refused(comm.shrink(without, soon()), "leaves out other ranks");
            }
        });
    });
}

#[test]
fn a_peer_timeout_without_end_is_one() {
    let config = |timeout| config().with_peer_timeout(Some(timeout));
    let context = context(&driver(), 0);
    let make = |config| Communicator::new(&bootstrap::local(1).remove(0), &context, config, soon());
    make(config(Duration::MAX)).unwrap().check().unwrap();
    is_refused(make(config(Duration::ZERO)), "AQUEDUCT_PEER_TIMEOUT=0");
    is_refused(make(config(Duration::MAX).with_host_id("h".repeat(2000))), "at most 1024 bytes");
}
