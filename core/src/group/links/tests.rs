//! Groups of links in one process.

mod failures;
mod meeting;
mod tap;
mod unreachable;

use std::net::Ipv4Addr;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::*;
use crate::abort::Abort;
use crate::group::control::Member;
use crate::group::peer::tests::info;
use crate::group::peer_state::Waiters;
use crate::group::subscriber::{Deferred, Reaction, Subscriber, Subscribers};
use crate::net::{Interest, Layer, Next, Pollable, RawStream};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};
pub(in crate::group) use tap::Tap;

/// A rank without kernels.
struct Nobody;

impl Waiters for Nobody {
    fn dismiss(&self, _: u32) {}

    fn abandoned(&self) -> Option<Option<u32>> {
        None
    }
}

pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

/// A kind of frame that is not the group's own.
pub(in crate::group) const KIND: u16 = 77;

/// Keeps what peers send, and what the service thread is told to drop later.
#[derive(Default)]
pub(crate) struct Recorder {
    frames: Mutex<Vec<(u32, Vec<u8>, usize)>>,
    holds: Mutex<Option<Deferred>>,
}

impl Recorder {
    pub(in crate::group) fn has(&self, peer: u32, payload: &[u8], fds: usize) -> bool {
        lock(&self.frames)
            .iter()
            .any(|(from, bytes, count)| (*from, &bytes[..], *count) == (peer, payload, fds))
    }
}

impl Subscriber for Recorder {
    fn frame(&self, peer: u32, payload: &[u8], fds: Vec<OwnedFd>, _: &mut Reaction) -> Result<()> {
        lock(&self.frames).push((peer, payload.to_vec(), fds.len()));
        Ok(())
    }

    fn gone(&self, _: u32, later: &mut Vec<Deferred>) {
        later.extend(lock(&self.holds).take());
    }

    fn changed(&self) {}
}

pub(in crate::group) fn config(peer_timeout: Option<Duration>) -> GroupConfig {
    GroupConfig { local_address: Some(Ipv4Addr::LOCALHOST.into()), peer_timeout, ..GroupConfig::default() }
}

/// A group in one process; `hosts` of them.
pub(in crate::group) fn group(size: u32, hosts: u32) -> Vec<Links> {
    group_with(size, hosts, config(Some(Duration::from_secs(3))), |network| network)
}

/// The same, and what each rank's subscriber heard.
pub(crate) fn recorded(size: u32) -> (Vec<Links>, Vec<Arc<Recorder>>) {
    let recorders: Vec<Arc<Recorder>> = (0..size).map(|_| Arc::default()).collect();
    let subscribe = |rank: u32| Subscribers::default().with(KIND, recorders[rank as usize].clone());
    let links = group_of(size, 1, config(Some(Duration::from_secs(3))), |network| network, subscribe);
    (links, recorders)
}

/// The same with other settings, and `wrap` applied to everyone's network.
fn group_with(size: u32, hosts: u32, config: GroupConfig, wrap: impl Fn(Network) -> Network) -> Vec<Links> {
    group_of(size, hosts, config, wrap, |_| Subscribers::default())
}

pub(in crate::group) fn group_of(
    size: u32,
    hosts: u32,
    config: GroupConfig,
    wrap: impl Fn(Network) -> Network,
    subscribe: impl Fn(u32) -> Subscribers,
) -> Vec<Links> {
    group_waited_for(size, hosts, config, wrap, subscribe, |_| Arc::new(Nobody))
}

/// The same with what waits for the peers of each rank.
pub(in crate::group) fn group_waited_for(
    size: u32,
    hosts: u32,
    config: GroupConfig,
    wrap: impl Fn(Network) -> Network,
    subscribe: impl Fn(u32) -> Subscribers,
    waiters: impl Fn(u32) -> Arc<dyn Waiters>,
) -> Vec<Links> {
    meet(served(size, hosts, config, wrap, subscribe, waiters, false))
}

/// A group of two that is made as the next generation of another one.
#[cfg(not(loom))]
pub(in crate::group) fn successors() -> Vec<Links> {
    let config = config(Some(Duration::from_secs(3)));
    let subscribe = |_| Subscribers::default();
    meet(served(2, 1, config, |network| network, subscribe, |_| Arc::new(Nobody), true))
}

fn meet((served, peers): (Vec<Links>, Arc<[PeerInfo]>)) -> Vec<Links> {
    std::thread::scope(|s| {
        let meeting: Vec<_> = served
            .into_iter()
            .map(|links| {
                let peers = peers.clone();
                s.spawn(move || links.meet(peers, soon()).unwrap())
            })
            .collect();
        meeting.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Ranks that answer, and have not met yet; their descriptions.
fn served(
    size: u32,
    hosts: u32,
    config: GroupConfig,
    wrap: impl Fn(Network) -> Network,
    subscribe: impl Fn(u32) -> Subscribers,
    waiters: impl Fn(u32) -> Arc<dyn Waiters>,
    succeeds: bool,
) -> (Vec<Links>, Arc<[PeerInfo]>) {
    let identities: Vec<Identity> = (0..size)
        .map(|rank| Identity::new(rank, size, [7; 32], None))
        .map(|identity| Identity { network: wrap(identity.network.clone()), ..identity })
        .collect();
    let listeners: Vec<_> =
        identities.iter().map(|identity| Listeners::bind(identity, &config).unwrap()).collect();
    let peers: Arc<[PeerInfo]> = (0..size)
        .zip(&listeners)
        .map(|(rank, l)| PeerInfo {
            host: format!("h{}", rank % hosts),
            tcp: l.tcp(),
            unix: l.unix(),
            ..info(rank, size)
        })
        .collect();
    let serve = |(identity, listeners): (Identity, Listeners)| {
        let rank = identity.rank;
        let (subscribers, waiters) = (subscribe(rank), waiters(rank));
        let member = Member { abort: Abort::new(), waiters, subscribers, succeeds };
        let control = Control::new(rank, size, member, config.peer_timeout);
        Links::serve(control, identity, listeners, config.peer_timeout).unwrap()
    };
    (identities.into_iter().zip(listeners).map(serve).collect(), peers)
}

pub(crate) fn wait_for(what: &str, done: impl Fn() -> bool) {
    let deadline = soon();
    while !done() {
        assert!(!deadline.expired(), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_abort_reaches_everyone_once_with_its_cause() {
    for (size, hosts) in [(1, 1), (2, 1), (5, 2), (20, 3)] {
        let links = group(size, hosts);
        let last = size - 1;
        links[last as usize].control.abort().abort(AbortCause::requested(last, "enough"));
        for (rank, one) in links.iter().enumerate() {
            wait_for("the abort did not come", || one.control.abort().is_aborted());
            let error = one.control.abort().check("x").unwrap_err();
            assert_eq!(
                (error.kind(), error.peer()),
                (ErrorKind::Aborted, Some(last)),
                "rank {rank}: {error}"
            );
            assert!(error.message().contains("enough"));
        }
    }
}

#[test]
fn who_opens_a_link_after_an_abort_is_told_of_it() {
    // With so many, all listen as long as they live.
    let links = group(20, 1);
    links[0].control.abort().abort(AbortCause::requested(0, "enough"));
    let late = Tap::open(&links[11], 0);
    assert_eq!(late.next(), crate::group::frames::FAILURE);
}

#[test]
fn leaving_in_good_order_is_not_a_failure() {
    let mut links = group(4, 1);
    let rank = links.pop().unwrap().identity.rank;
    for one in &links {
        wait_for("BYE did not come", || one.control.check_peer("x", rank).is_err());
        let error = one.control.check_peer("x", rank).unwrap_err();
        assert!(error.message().contains("good order"), "{error}");
        assert!(!one.control.abort().is_aborted());
    }
}

/// Two links between two ranks: what `ensure` would do if both opened one at the same time.
fn link_twice(links: &[Links], a: usize, b: usize) {
    for (from, to) in [(a, b), (b, a)] {
        let (one, peers) = (&links[from], &links[from].peers);
        let claims = one.identity.claims(to as u32);
        let stream = one.identity.network.connect_unix(&peers[to].unix, claims, soon()).unwrap();
        assert!(one.control.adopt(&one.reactor.add(stream)));
    }
    let both = |at: usize, of: usize| links[at].control.links(of as u32).len() == 2;
    wait_for("the links were not accepted", || both(a, b) && both(b, a));
}

#[test]
fn a_peer_with_two_links_has_left_when_both_have_ended() {
    let (mut links, recorders) = recorded(20);
    let (a, b) = (0, 11);
    link_twice(&links, a, b);
    let (dropped_on, seen) = std::sync::mpsc::channel();
    *lock(&recorders[a].holds) = Some(Arc::new(Traced(dropped_on)));
    let leaver = links.remove(b);
    // A frame sent on one link right before the end is received, whichever link is read first.
    leaver.control.post(a as u32, KIND, b"last words", Vec::new()).unwrap();
    drop(leaver);
    let control = &links[a].control;
    wait_for("BYE did not come", || control.check_peer("x", b as u32).is_err());
    assert!(recorders[a].has(b as u32, b"last words", 0));
    assert!(!control.abort().is_aborted());
    // The subscribers know that it is gone.
    wait_for("what it used was not given back", || {
        control.check("x").unwrap();
        seen.try_recv().is_ok()
    });
}

/// A link may end before its BYE is sent, where the other one has brought one.
#[test]
fn one_bye_is_enough_for_two_links() {
    let links = group(20, 1);
    let (a, b) = (0, 11);
    link_twice(&links, a, b);
    let control = &links[a].control;
    let of_leaver = links[b].control.links(a as u32);
    of_leaver[0].post(crate::group::frames::BYE, &[]).unwrap();
    wait_for("BYE did not come", || control.links(b as u32).len() == 1);
    control.check_peer("x", b as u32).expect("it may still say something");
    of_leaver[1].close();
    wait_for("the end did not come", || control.check_peer("x", b as u32).is_err());
    control.abort().check("x").expect("it left in good order");
}

#[test]
fn a_link_that_ends_without_bye_is_a_lost_peer() {
    let links = group(3, 1);
    // A killed process appears to the others as an end of its sockets.
    links[2].control.link(0).unwrap().close();
    wait_for("the loss was not noticed", || links[1].control.abort().is_aborted());
    for rank in [0, 1] {
        let error = links[rank].control.abort().check("x").unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(2)), "{error}");
        assert!(error.message().contains("noticed by rank 0"), "{error}");
    }
}

#[test]
fn a_rank_that_was_given_up_is_not_taken_back() {
    let (links, recorders) = recorded(20);
    let (control, lost) = (&links[0].control, &links[2]);
    lost.control.link(0).unwrap().close();
    wait_for("the loss was not noticed", || control.lost() == [2] && control.links(2).is_empty());
    // It opens another link, as a process does that was only stopped for a while.
    let claims = lost.identity.claims(0);
    let stream = lost.identity.network.connect_unix(&lost.peers[0].unix, claims, soon()).unwrap();
    let link = lost.reactor.add(stream);
    let refused = || link.post(KIND, b"late").is_err();
    wait_for("the link was neither refused nor taken", || refused() || !control.links(2).is_empty());
    assert!(refused() && control.links(2).is_empty());
    assert!(!recorders[0].has(2, b"late", 0));
}

#[test]
fn messages_meet_across_lazily_opened_links_with_descriptors() {
    let (links, recorders) = recorded(20);
    let (a, b) = (0_u32, 11_u32);
    assert!(links[a as usize].control.link(b).is_none(), "choose ranks without an eager link");
    std::thread::scope(|s| {
        // Both open at the same time.
        for (from, to) in [(a, b), (b, a)] {
            let one = &links[from as usize];
            s.spawn(move || one.ensure(to, soon()).unwrap());
        }
    });
    for (from, to) in [(a, b), (b, a)] {
        let fd: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        links[from as usize].control.post(to, KIND, &[from as u8], vec![fd]).unwrap();
    }
    for (at, from) in [(b, a), (a, b)] {
        wait_for("the frame did not come", || recorders[at as usize].has(from, &[from as u8], 1));
    }
}

/// Tells which thread dropped it.
pub(in crate::group) struct Traced(pub(in crate::group) std::sync::mpsc::Sender<std::thread::ThreadId>);

impl Drop for Traced {
    fn drop(&mut self) {
        let _ = self.0.send(std::thread::current().id());
    }
}

#[test]
fn the_service_thread_defers_drops_to_callers() {
    let (mut links, recorders) = recorded(3);
    let (dropped_on, seen) = std::sync::mpsc::channel();
    *lock(&recorders[0].holds) = Some(Arc::new(Traced(dropped_on)));
    drop(links.remove(2));
    wait_for("the departure was not noticed", || links[0].control.check_peer("x", 2).is_err());
    assert!(seen.try_recv().is_err(), "dropped before anybody called");
    links[0].control.check("x").unwrap();
    // Not on the service thread, which must not wait for the driver.
    assert_eq!(seen.recv().unwrap(), std::thread::current().id());
}

/// Asks the group how it fares whenever it is served, and tells.
struct Asks(Arc<Control>, std::fs::File, std::sync::mpsc::Sender<Result<()>>);

impl Pollable for Asks {
    fn fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.1)
    }

    fn progress(&self) -> Next {
        let _ = self.2.send(crate::outcome::Outcome::outcome(&*self.0, "x"));
        Next::Wait(Interest::default())
    }

    fn unserved(&self, why: &Error) {
        panic!("{why}");
    }
}

#[test]
fn a_service_thread_that_asks_for_failures_drops_nothing() {
    let links = group(1, 1);
    let control = &links[0].control;
    let (dropped_on, seen) = std::sync::mpsc::channel();
    control.drop_later(Arc::new(Traced(dropped_on)));
    let (asked, answers) = std::sync::mpsc::channel();
    let (reader, _writer) = std::os::unix::net::UnixStream::pair().unwrap();
    let socket = std::fs::File::from(OwnedFd::from(reader));
    links[0].reactor.reserve().serve(Arc::new(Asks(control.clone(), socket, asked)));
    answers.recv_timeout(Duration::from_secs(30)).unwrap().unwrap();
    assert!(seen.try_recv().is_err(), "dropped by a service thread");
    control.check("x").unwrap();
    assert_eq!(seen.recv().unwrap(), std::thread::current().id());
}

/// The lower of two ranks is not there any more, and its process has ended. Only if all that it said was read, its last vote is
/// known, and the higher one may go on alone.
#[test]
fn a_process_that_ended_counts_as_dead_only_if_it_was_heard_out() {
    for heard_out in [false, true] {
        let links = group(2, 1);
        let birth = crate::group::birth::Birth { namespace: 1, started: 1 };
        // No process has these numbers.
        let ended = |rank| PeerInfo { birth, pid: i32::MAX.cast_unsigned() - rank, ..info(rank, 2) };
        let control = &links[1].control;
        control.introduce(&[ended(0), ended(1)].into());
        if heard_out {
            links[0].control.link(1).unwrap().close();
        } else {
            // A frame that breaks the protocol ends the link, whatever follows it.
            links[0].control.post(1, KIND, b"nobody expects this", Vec::new()).unwrap();
        }
        wait_for("the loss was not noticed", || control.lost() == [0]);
        let agreed = links[1].agree(&Ranks::new(), soon());
        assert_eq!(agreed.is_ok(), heard_out, "{agreed:?}");
    }
}
