//! Ranks that fall silent or cannot be reached, and ranks that cannot join.

use super::*;

/// Two ranks of twenty that have no link from the start.
const UNLINKED: (usize, u32) = (0, 11);

fn expired() -> Deadline {
    Deadline::after(Duration::ZERO)
}

#[test]
fn a_rank_that_cannot_join_tells_the_others_why() {
    // The error, and the rank that is to be blamed.
    let cases = [
        (Error::peer_lost("connect", 1, "its network is broken"), ErrorKind::PeerLost, 1),
        (Error::peer_lost("connect", 0, "it is this rank"), ErrorKind::Aborted, 0),
        (Error::peer_lost("connect", 3, "there is no such rank"), ErrorKind::Aborted, 0),
        (Error::usage("connect", "it is not the peer's fault").with_peer(1), ErrorKind::Aborted, 0),
    ];
    for (error, kind, blamed) in cases {
        let links = group(3, 1);
        let why = error.message().to_owned();
        assert_eq!(links[0].give_up(error).message(), why);
        for rank in [0, 2] {
            let abort = links[rank].control.abort();
            wait_for("nobody was told", || abort.is_aborted());
            let told = abort.check("x").unwrap_err();
            assert_eq!((told.kind(), told.peer()), (kind, Some(blamed)), "{told}");
            assert!(told.message().contains(&why), "{told}");
        }
        assert_eq!(links[0].control.lost().contains(&1), kind == ErrorKind::PeerLost);
    }
}

#[test]
fn a_rank_that_does_not_open_its_link_in_time_is_lost_unless_the_caller_has_no_more_time() {
    let (at, peer) = UNLINKED;
    let links = group(20, 1);
    let late = links[at].wait_linked(&[peer], None, expired()).unwrap_err();
    assert_eq!((late.kind(), late.peer()), (ErrorKind::Timeout, Some(peer)), "{late}");
    let late = links[at].wait_linked(&[peer], Some(Duration::ZERO), expired()).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Timeout, "{late}");
    assert!(links[at].control.lost().is_empty());
    let lost = links[at].wait_linked(&[peer], Some(Duration::ZERO), soon()).unwrap_err();
    assert_eq!((lost.kind(), lost.peer()), (ErrorKind::PeerLost, Some(peer)), "{lost}");
    assert!(lost.message().contains("did not open its control link"), "{lost}");
    assert_eq!(links[at].control.lost(), [peer]);
}

/// Of a rank that leaves only those hear that have a link to it.
#[test]
fn a_rank_that_is_not_there_any_more_is_lost_to_who_looks_for_it() {
    let (at, peer) = UNLINKED;
    let mut links = group(20, 1);
    drop(links.remove(peer as usize));
    let one = &links[at];
    one.ensure(peer, expired()).unwrap_err();
    assert!(one.control.lost().is_empty(), "there was no time to find out");
    let error = one.ensure(peer, soon()).unwrap_err();
    assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(peer)), "{error}");
    assert_eq!(one.control.lost(), [peer]);
}

#[test]
fn who_has_lost_a_peer_clears_the_sockets_of_killed_processes() {
    let mut links = group(2, 1);
    links[0].control.lose(1, "it was killed");
    let left = crate::net::left_behind_sockets();
    drop(links.remove(0));
    assert!(!left.exists(), "{}", left.display());
}

/// Nobody is watched for silence here: only a BYE can tell.
#[test]
fn a_rank_that_has_left_and_keeps_something_says_goodbye_to_who_looks_for_it() {
    let (at, peer) = UNLINKED;
    for failed_later in [false, true] {
        let links = group_with(20, 1, config(None), |network| network);
        let (one, left) = (&links[at], &links[peer as usize]);
        left.leave(soon()).unwrap();
        if failed_later {
            left.control.abort().abort(AbortCause::requested(peer, "a failure of its own, after it left"));
        }
        let good_order = |error: Error| {
            assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(peer)), "{error}");
            assert!(error.message().contains("in good order"), "{error}");
        };
        // The goodbye may be there before the link is taken into use.
        one.ensure(peer, soon()).unwrap_or_else(good_order);
        wait_for("it said no goodbye", || one.control.check_peer("x", peer).is_err());
        good_order(one.control.check_peer("x", peer).unwrap_err());
        one.ensure(peer, soon()).unwrap_err();
        one.control.abort().check("x").expect("a rank that leaves in good order takes nobody with it");
        assert!(one.control.lost().is_empty());
    }
}

#[test]
fn a_rank_that_left_because_of_a_failure_tells_it_to_who_looks_for_it_too() {
    let (at, peer) = UNLINKED;
    let links = group_with(20, 1, config(None), |network| network);
    let [one, left] = [at, peer as usize].map(|rank| &links[rank]);
    // Nobody else can tell it.
    links
        .iter()
        .filter(|other| other.identity.rank != peer && other.identity.rank != one.identity.rank)
        .for_each(|other| drop(other.control.leave()));
    left.control.abort().abort(AbortCause::requested(peer, "the reason"));
    left.leave(soon()).unwrap();
    let _ = one.ensure(peer, soon());
    wait_for("it was not told", || one.control.abort().is_aborted());
    let error = one.control.abort().check("x").unwrap_err();
    assert_eq!((error.kind(), error.peer()), (ErrorKind::Aborted, Some(peer)), "{error}");
    wait_for("it said no goodbye", || one.control.check_reach("x", peer).is_err());
}

/// Swallows what one rank says once it is told to: a process that is stopped, a network that is broken one way.
#[derive(Debug)]
pub(super) struct Mute {
    pub(super) rank: u32,
    pub(super) on: Arc<AtomicBool>,
}

#[derive(Debug)]
struct MuteStream(Box<dyn RawStream>, Arc<AtomicBool>);

impl Layer for Mute {
    fn wrap(&self, local: Claims, _: Claims, raw: Box<dyn RawStream>) -> Box<dyn RawStream> {
        if local.from == self.rank { Box::new(MuteStream(raw, self.on.clone())) } else { raw }
    }
}

impl RawStream for MuteStream {
    fn read(&self, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> std::io::Result<usize> {
        self.0.read(into, fds)
    }

    fn write(&self, from: &[u8], fds: &[BorrowedFd<'_>]) -> std::io::Result<usize> {
        if self.1.load(Ordering::Relaxed) { Ok(from.len()) } else { self.0.write(from, fds) }
    }

    fn shutdown(&self, both: bool) -> std::io::Result<()> {
        self.0.shutdown(both)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

/// Refuses what rank 0 writes once there is an error to refuse it with.
#[derive(Debug)]
struct Refuse(Arc<Mutex<Option<std::io::ErrorKind>>>);

#[derive(Debug)]
struct RefusingStream(Box<dyn RawStream>, Arc<Mutex<Option<std::io::ErrorKind>>>);

impl Layer for Refuse {
    fn wrap(&self, local: Claims, _: Claims, raw: Box<dyn RawStream>) -> Box<dyn RawStream> {
        if local.from == 0 { Box::new(RefusingStream(raw, self.0.clone())) } else { raw }
    }
}

impl RawStream for RefusingStream {
    fn read(&self, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> std::io::Result<usize> {
        self.0.read(into, fds)
    }

    fn write(&self, from: &[u8], fds: &[BorrowedFd<'_>]) -> std::io::Result<usize> {
        match *lock(&self.1) {
            Some(error) => Err(error.into()),
            None => self.0.write(from, fds),
        }
    }

    fn shutdown(&self, both: bool) -> std::io::Result<()> {
        self.0.shutdown(both)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

/// Without a limit for silence, nothing but BYE is written.
#[test]
fn who_leaves_need_not_tell_a_peer_that_has_gone_and_says_so_if_one_does_not_read() {
    use std::io::ErrorKind as Io;
    for (refusal, until, expected) in
        [(Io::BrokenPipe, soon(), Ok(())), (Io::WouldBlock, expired(), Err(ErrorKind::Timeout))]
    {
        let refused = Arc::default();
        let layer = Arc::new(Refuse(Arc::clone(&refused)));
        let links = group_with(3, 1, config(None), |network| network.with_layer(layer.clone()));
        *lock(&refused) = Some(refusal);
        assert_eq!(links[0].leave(until).map_err(|error| error.kind()), expected, "{refusal:?}");
    }
}

#[test]
fn who_falls_silent_is_lost_to_all_and_hears_of_it_and_who_has_nothing_to_say_is_not() {
    const TIMEOUT: Duration = Duration::from_millis(1500);
    for hosts in [1, 4] {
        let mute = Arc::new(AtomicBool::new(false));
        let layer = Arc::new(Mute { rank: 2, on: mute.clone() });
        let config = config(Some(TIMEOUT));
        let links = group_with(4, hosts, config, |network| network.with_layer(layer.clone()));
        std::thread::sleep(TIMEOUT * 2);
        for one in &links {
            one.control.abort().check("x").expect("nobody is lost who is only idle");
        }
        mute.store(true, Ordering::Relaxed);
        for one in &links {
            let abort = one.control.abort();
            wait_for("the silence was not noticed", || abort.is_aborted());
            let error = abort.check("x").unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(2)), "{error}");
            // By what the message says, the silence was noticed as soon as it may be.
            let said = if one.identity.rank == 2 { "have given up this process" } else { "silent for 1." };
            assert!(error.message().contains(said), "{error}");
        }
        // The others are still linked to each other, and to nobody else.
        let all = || -> Vec<usize> { (0..4).map(|peer| links[0].control.links(peer).len()).collect() };
        wait_for("the link to the silent rank is still there", || all()[2] == 0);
        assert_eq!(all(), [0, 1, 0, 1]);
    }
}
