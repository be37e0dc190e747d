//! Ranks that cannot be reached, and ranks that cannot join.

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
