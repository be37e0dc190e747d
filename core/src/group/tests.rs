//! A group as the rooms above it use it.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::Group;
use super::links::Links;
use super::links::tests::{
    KIND, Traced, config, group, group_of, group_waited_for, recorded, soon, wait_for,
};
use super::peer_state::{GRACE, Waiters};
use super::subscriber::Subscribers;
use crate::abort::AbortCause;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind};
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
        let fork = |error: Error| error.message().contains("fork");
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

/// Tells when kernels are told to give up.
struct Told(mpsc::Sender<Instant>);

impl Waiters for Told {
    fn dismiss(&self, _: u32) {
        let _ = self.0.send(Instant::now());
    }

    fn abandoned(&self) -> Option<Option<u32>> {
        None
    }
}

/// A rank dismisses the waits for one that has left, and, when it has left itself, all waits.
#[test]
fn kernels_may_go_on_for_a_while_when_their_rank_or_another_one_leaves() {
    for (leaving, dismissed) in [(1, 3), (2, 4)] {
        let (tell, told) = mpsc::channel();
        let waiters = |_| Arc::new(Told(tell.clone())) as Arc<dyn Waiters>;
        let (config, wrap) = (config(Some(Duration::from_secs(3))), |network| network);
        let groups = groups(group_waited_for(2, 1, config, wrap, |_| Subscribers::default(), waiters));
        let left = Instant::now();
        groups[..leaving].iter().for_each(|group| group.leave(soon()).unwrap());
        for _ in 0..dismissed {
            let at = told.recv_timeout(Duration::from_secs(30)).unwrap();
            assert!(at.duration_since(left) >= GRACE, "{:?}", at.duration_since(left));
        }
    }
}

#[test]
fn without_a_peer_timeout_nothing_is_said_that_nobody_asked_for() {
    let quiet = groups(group_of(2, 1, config(None), |network| network, |_| Subscribers::default()));
    let speaks = groups(group(2, 1));
    let bytes = |group: &Group| group.control().traffic().1;
    let before = bytes(&quiet[0]);
    for _ in 0..3 {
        let said = bytes(&speaks[0]);
        wait_for("no sign of life", || bytes(&speaks[0]) > said);
    }
    assert_eq!(bytes(&quiet[0]), before);
}

#[test]
fn a_broken_link_is_explained_by_what_broke_it() {
    let broken = || Error::peer_lost("x", 1, "its link broke");
    // The reason may be on its way for longer than it is waited for.
    let explained = (0..10).any(|_| {
        let groups = groups(group(1, 1));
        let control = groups[0].control();
        let comes = control.clone();
        let reason = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            comes.abort().abort(AbortCause::requested(0, "enough"));
        });
        let error = control.explained("x", broken());
        reason.join().unwrap();
        error.message().contains("enough")
    });
    assert!(explained);
}

#[test]
fn a_connection_that_its_rank_has_closed_is_explained_by_its_leaving() {
    let closed = || Error::new(ErrorKind::Remote, "recv", "rank 1 has closed its end").with_peer(1);
    // The goodbye may take longer to come than the library waits for it: any of ten attempts may show it.
    let explained = (0..10).any(|_| {
        let mut groups = groups(group(2, 1));
        let leaving = groups.pop().unwrap();
        let leaves = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(leaving);
        });
        let error = groups[0].control().ended("x", closed());
        leaves.join().unwrap();
        error.kind() == ErrorKind::PeerLost && error.op() == "x" && error.peer() == Some(1)
    });
    assert!(explained);
    let groups = groups(group(2, 1));
    let stays = groups[0].control().ended("x", closed());
    assert_eq!((stays.kind(), stays.op()), (ErrorKind::Remote, "x"), "{stays}");
    let begin = Instant::now();
    (0..1000).for_each(|_| drop(groups[0].control().ended("x", closed())));
    assert!(begin.elapsed() < Duration::from_secs(10), "it is waited for once");
    let other = groups[0].control().ended("x", Error::usage("y", "mine"));
    assert_eq!((other.kind(), other.op()), (ErrorKind::InvalidUsage, "x"), "{other}");
    // A failure of another kind stays, also behind the leaving.
    let mut here = groups;
    drop(here.pop());
    let here = here[0].control();
    while here.check_peer("x", 1).is_ok() {
        std::thread::yield_now();
    }
    let late = here.ended("x", Error::timeout("y", "nothing came").with_peer(1));
    assert_eq!((late.kind(), late.op()), (ErrorKind::Timeout, "x"), "{late}");
    here.abort().abort(AbortCause::requested(0, "enough"));
    let aborted = here.ended("x", closed());
    assert!(aborted.message().contains("enough"), "{aborted}");
}

/// How ranks agree on the next group.
mod agreements {
    use super::*;
    use crate::group::control::Outcome;
    use crate::group::frames;
    use crate::group::links::tests::{Tap, successors};
    use crate::group::membership::Ranks;

    /// The members that are agreed if `of` take part, each with its error.
    fn agree(of: &[&Links], limit: Duration) -> Vec<Result<Vec<u32>, Error>> {
        let deadline = Deadline::after(limit);
        std::thread::scope(|scope| {
            let take_part = |links: &&Links| match links.agree(&Ranks::new(), deadline)? {
                Outcome::Agreed { members, .. } => Ok(members.into_iter().collect()),
                Outcome::Completed => panic!("nobody has made it"),
            };
            let threads: Vec<_> = of.iter().map(|links| scope.spawn(move || take_part(links))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn ranks_without_links_open_them_to_agree() {
        let links = group(20, 1);
        for agreed in agree(&links.iter().collect::<Vec<_>>(), LONG) {
            assert_eq!(agreed.unwrap(), (0..20).collect::<Vec<u32>>());
        }
    }

    #[test]
    fn who_does_not_come_in_time_is_named_and_who_waits_no_more_says_so() {
        let links = group(2, 1);
        for (comes, misses) in [(0, 1), (1, 0)] {
            let late = agree(&[&links[comes]], Duration::from_millis(300)).pop().unwrap().unwrap_err();
            assert_eq!((late.kind(), late.peer()), (ErrorKind::Timeout, Some(misses)), "{late}");
            assert!(late.message().contains("did not call shrink()"), "{late}");
        }
        assert!(agree(&[&links[0], &links[1]], LONG).iter().all(Result::is_ok), "another time they do");
    }

    #[test]
    fn only_what_was_agreed_is_completed_and_once() {
        let links = group(2, 1);
        assert!(agree(&[&links[0], &links[1]], LONG).iter().all(Result::is_ok));
        let control = links[0].control();
        assert!(!control.complete_generation(7) && control.complete_generation(1));
        let again = agree(&[&links[0]], LONG).pop().unwrap().unwrap_err();
        assert!(again.message().contains("was shrunk before"), "{again}");
        links[1].control().leave();
        assert!(!links[1].control().complete_generation(1), "it has left");
    }

    /// Those who go on without it must know what it has voted for.
    #[test]
    fn a_rank_that_leaves_tells_its_vote_before_it_says_bye() {
        // With so many, all listen as long as they live.
        let links = group_of(20, 1, config(None), |network| network, |_| Subscribers::default());
        assert!(agree(&links.iter().collect::<Vec<_>>(), LONG).iter().all(Result::is_ok));
        let tap = Tap::open(&links[11], 0);
        assert_eq!(tap.next(), frames::MEMBERSHIP, "a new link is told the vote");
        links[0].control().leave();
        assert_eq!(tap.next(), frames::MEMBERSHIP, "it has said BYE first");
        assert_eq!(tap.next(), frames::BYE);
    }

    #[test]
    fn a_successor_is_agreed_on_once_it_was_taken_into_use() {
        let links = successors();
        let both = [&links[0], &links[1]];
        let early = agree(&both, Duration::from_millis(300));
        assert!(
            early.iter().all(|early| early.as_ref().is_err_and(|error| error.kind() == ErrorKind::Timeout))
        );
        links.iter().for_each(|links| links.control().activate());
        assert!(agree(&both, LONG).iter().all(Result::is_ok));
    }
}

/// A subset of the ranks talks among itself.
mod subsets {
    use super::*;
    use crate::bootstrap::Bootstrap as _;
    use crate::group::control::Needs;
    use crate::group::subset::{Step, Subset};

    fn needs(ranks: &[u32]) -> Needs {
        Needs { op: "x", ranks: ranks.to_vec(), generation: None }
    }

    #[test]
    fn members_have_new_numbers_and_a_secret_of_their_own() {
        let links = group(3, 1);
        let [at_two, at_zero] = [2, 0].map(|rank| links[rank].control().meet());
        let [two, zero] = [(2, &at_two), (0, &at_zero)]
            .map(|(rank, meeting)| Subset::new(&links[rank], needs(&[2, 0]), meeting, Step::Making));
        assert_eq!([two.rank(), zero.rank(), two.size()], [0, 1, 2]);
        two.send(1, 5, b"from rank 2", soon()).unwrap();
        assert_eq!(zero.recv(0, 5, soon()).unwrap(), b"from rank 2");
        let [secret, same] = [two.secret().unwrap(), zero.secret().unwrap()];
        assert_eq!(secret.expose(), same.expose());
        let late = zero.recv(0, 5, Deadline::after(Duration::ZERO)).unwrap_err();
        assert_eq!((late.kind(), late.peer()), (ErrorKind::Timeout, Some(2)), "{late}");
    }

    /// Messages of the first meeting come before, while and after rank 1 takes part in it.
    #[test]
    fn messages_of_a_meeting_that_is_over_are_dropped_and_the_next_one_hears_its_own() {
        let links = group(2, 1);
        let step = Step::Making;
        let [at_zero, at_one] = [0, 1].map(|rank: usize| links[rank].control().meet());
        let sender = Subset::new(&links[0], needs(&[0, 1]), &at_zero, step);
        let receiver = Subset::new(&links[1], needs(&[0, 1]), &at_one, step);
        sender.send(1, 5, b"stale", soon()).unwrap();
        sender.send(1, 6, b"read", soon()).unwrap();
        assert_eq!(receiver.recv(0, 6, soon()).unwrap(), b"read");
        drop(at_one);
        sender.send(1, 5, b"late", soon()).unwrap();
        let [at_zero, at_one] = [0, 1].map(|rank: usize| links[rank].control().meet());
        Subset::new(&links[0], needs(&[0, 1]), &at_zero, step).send(1, 7, b"new", soon()).unwrap();
        let receiver = Subset::new(&links[1], needs(&[0, 1]), &at_one, step);
        assert_eq!(receiver.recv(0, 7, soon()).unwrap(), b"new");
        let error = receiver.recv(0, 5, Deadline::after(Duration::ZERO)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    }

    #[test]
    fn a_meeting_that_lacks_a_member_says_nothing_more() {
        let mut links = group(3, 1);
        drop(links.pop());
        let control = links[0].control();
        wait_for("the departure was not noticed", || control.check_peer("x", 2).is_err());
        let meeting = control.meet();
        let all = Subset::new(&links[0], needs(&[0, 1, 2]), &meeting, Step::Making);
        let error = all.send(1, 5, b"in vain", soon()).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(2)), "{error}");
        Subset::new(&links[0], needs(&[0, 1]), &meeting, Step::Making).send(1, 5, b"", soon()).unwrap();
    }

    #[test]
    fn each_meeting_of_all_has_another_number() {
        let links = group(1, 1);
        assert_eq!([(); 3].map(|()| links[0].control().meet().meeting().number), [1, 2, 3]);
    }
}
