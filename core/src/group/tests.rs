//! A group as the rooms above it use it.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use super::Group;
use super::links::Links;
use super::links::tests::{KIND, Traced, config, group, group_waited_for, recorded, soon, wait_for};
use super::peer_state::Waiters;
use super::subscriber::Subscribers;
use crate::abort::AbortCause;
use crate::deadline::Deadline;
use crate::error::ErrorKind;
use crate::sync::{Mutex, lock};

/// Two ranks of twenty that have no link from the start.
const UNLINKED: (usize, u32) = (0, 11);

fn groups(links: Vec<Links>) -> Vec<Group> {
    links.into_iter().map(Group::new).collect()
}

#[test]
fn members_know_their_group_from_others() {
    let [one, two] = [groups(group(2, 1)), groups(group(1, 1))];
    assert_eq!(one[0].scope(), one[1].scope());
    assert!(one[0].scope() > 1, "drawn from the secret");
    assert!(one[0].is(&one[0].clone()) && !one[0].is(&one[1]) && !one[0].is(&two[0]));
    assert_eq!((one[1].rank(), one[1].size(), one[1].me().rank, one[0].peer(1).rank), (1, 2, 1, 1));
}

#[test]
fn an_abort_is_the_end_of_all_calls() {
    let groups = groups(group(2, 1));
    let group = &groups[0];
    group.check("x").unwrap();
    group.outcome().outcome("x").unwrap();
    group.abort().abort(AbortCause::requested(0, "enough"));
    for error in [group.check("x").unwrap_err(), group.outcome().outcome("x").unwrap_err()] {
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Aborted, Some(0)), "{error}");
    }
}

#[test]
fn a_peer_that_has_left_can_be_talked_to_no_more_and_this_rank_can() {
    let mut groups = groups(group(3, 1));
    let leaver = groups.pop().unwrap();
    let (group, control) = (&groups[0], groups[0].control());
    control.check_all("x").unwrap();
    leaver.leave(soon()).unwrap();
    let closed = leaver.check("x").unwrap_err();
    assert!(closed.message().contains("closed"), "{closed}");
    wait_for("BYE did not come", || group.check_peer("x", 2).is_err());
    let reasons = [
        group.check_peer("x", 2).unwrap_err(),
        control.check_all("x").unwrap_err(),
        group.post("x", 2, KIND, b"late", Vec::new()).unwrap_err(),
        group.open_link(2, soon()).unwrap_err(),
    ];
    for reason in reasons {
        assert!(reason.message().contains("good order"), "{reason}");
    }
    group.post_quietly(2, KIND, b"late");
    group.check("x").unwrap();
    assert!(group.check_peer("x", 0).is_ok() && group.check_peer("x", 1).is_ok());
    assert!(leaver.check_peer("x", 2).is_ok(), "of this rank nobody else is asked");
}

#[test]
fn links_that_are_not_there_are_opened_and_counted() {
    let (links, recorders) = recorded(20);
    let groups = groups(links);
    let (at, peer) = UNLINKED;
    let (group, control) = (&groups[at], groups[at].control());
    assert!(control.link(peer).is_none());
    let refused = group.post("x", peer, KIND, b"early", Vec::new()).unwrap_err();
    assert_eq!((refused.kind(), refused.peer()), (ErrorKind::PeerLost, Some(peer)), "{refused}");
    let (before, _) = control.traffic();
    group.open_link(peer, soon()).unwrap();
    group.open_link(peer, soon()).unwrap();
    group.open_link(at as u32, soon()).unwrap();
    let (count, bytes) = control.traffic();
    assert_eq!((control.links(peer).len(), count), (1, before + 1));
    group.post_quietly(peer, KIND, &[7; 5000]);
    wait_for("the frame did not come", || recorders[peer as usize].has(at as u32, &[7; 5000], 0));
    assert!(control.traffic().1 >= bytes + 5000, "{} after {bytes}", control.traffic().1);
}

#[test]
fn a_wait_for_links_names_the_rank_that_opened_none() {
    let groups = groups(group(20, 1));
    let (at, peer) = UNLINKED;
    let control = groups[at].control();
    let error = control.wait_linked(&[peer], Deadline::after(Duration::ZERO)).unwrap_err();
    assert_eq!((error.kind(), error.peer()), (ErrorKind::Timeout, Some(peer)), "{error}");
    std::thread::scope(|scope| {
        let waits = [
            scope.spawn(|| control.wait_linked(&[peer], soon()).is_ok() && control.link(peer).is_some()),
            scope.spawn(|| {
                control.linger(&[peer], soon());
                control.link(peer).is_some()
            }),
        ];
        groups[peer as usize].open_link(at as u32, soon()).unwrap();
        assert_eq!(waits.map(|wait| wait.join().unwrap()), [true; 2]);
    });
    control.wait_linked(&[peer], Deadline::after(Duration::ZERO)).unwrap();
}

#[test]
fn a_change_ends_the_wait_for_one() {
    let mut groups = groups(group(2, 1));
    let control = groups[0].control().clone();
    let seen = control.version();
    assert!(!control.wait(seen, Deadline::after(Duration::ZERO)));
    drop(groups.pop());
    assert!(control.wait(seen, soon()));
    assert!(control.version() > seen);
}

#[test]
fn what_is_to_be_dropped_later_is_dropped_by_a_caller() {
    let groups = groups(group(1, 1));
    let control = groups[0].control();
    let (dropped_on, seen) = mpsc::channel();
    control.drop_later(Arc::new(Traced(dropped_on)));
    assert!(seen.try_recv().is_err());
    control.drop_released();
    assert_eq!(seen.try_recv(), Ok(std::thread::current().id()));
}

#[test]
fn a_forked_child_is_no_member() {
    let groups = groups(group(2, 1));
    let group = &groups[0];
    assert!(!group.forked());
    let (dropped_on, _seen) = mpsc::channel();
    let late = Arc::new(Traced(dropped_on));
    // SAFETY: the child calls what notices the fork before it takes a lock, allocates (glibc allows that after fork), and leaves
    // with _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let fork = |error: crate::Error| error.message().contains("fork");
        let control = group.control();
        control.drop_later(late.clone());
        control.drop_released();
        let refused = group.forked()
            && group.check("x").is_err_and(fork)
            && control.post(1, KIND, b"from the child", Vec::new()).is_err_and(fork)
            && group.outcome().outcome("x").is_ok()
            && control.lost().is_empty()
            && Arc::strong_count(&late) == 1;
        // SAFETY: _exit is async-signal-safe.
        unsafe { libc::_exit(if refused { 7 } else { 1 }) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: `child` is ours and `status` is a live output.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 7);
    group.check("x").unwrap();
}

/// Kernels that wait for a rank, and give up once they are told that it has left.
struct Kernels {
    /// The rank that they wait for, if they know it.
    awaits: Option<u32>,
    dismissed: Mutex<Vec<u32>>,
}

impl Waiters for Kernels {
    fn dismiss(&self, peer: u32) {
        lock(&self.dismissed).push(peer);
    }

    fn abandoned(&self) -> Option<Option<u32>> {
        (!lock(&self.dismissed).is_empty()).then_some(self.awaits)
    }
}

#[test]
fn a_kernel_that_waited_for_a_rank_that_has_left_is_an_error_that_names_it() {
    let run = |awaits| {
        let kernels = |_| Arc::new(Kernels { awaits, dismissed: Mutex::default() }) as Arc<dyn Waiters>;
        let config = config(Some(Duration::from_secs(3)));
        let mut links =
            group_waited_for(3, 1, config, |network| network, |_| Subscribers::default(), kernels);
        drop(links.pop());
        for one in &links {
            let abort = one.control().abort();
            wait_for("nobody noticed the kernel", || abort.is_aborted());
            let error = abort.check("x").unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(2)), "{error}");
            assert!(error.message().contains("good order while a kernel of rank"), "{error}");
        }
    };
    // Kernels that know the rank, that do not, and that are mistaken. Each is told after a while only.
    std::thread::scope(|scope| {
        for awaits in [Some(2), None, Some(1)] {
            scope.spawn(move || run(awaits));
        }
    });
}
