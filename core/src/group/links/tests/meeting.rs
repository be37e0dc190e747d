//! Ranks that open their first links, and whom they let in.

use std::net::TcpStream;
use std::time::Instant;

use super::*;

/// Two ranks that answer, and have not met yet; their descriptions.
fn two(peer_timeout: Option<Duration>) -> (Vec<Links>, Arc<[PeerInfo]>) {
    let subscribe = |_| Subscribers::default();
    let waiters = |_| Arc::new(Nobody) as Arc<dyn Waiters>;
    served(2, 1, config(peer_timeout), |network| network, subscribe, waiters, false)
}

/// It had its links before this rank looked at its own.
#[test]
fn a_rank_that_leaves_at_once_has_met_one_that_is_still_connecting() {
    let (mut links, peers) = two(None);
    // The rank that has a link to open.
    let me = u32::from(eager_peers(0, 2).is_empty());
    let (one, mut leaver) = (links.swap_remove(me as usize), links.remove(0));
    leaver.peers = peers.clone();
    leaver.ensure(me, soon()).unwrap();
    leaver.leave(soon()).unwrap();
    wait_for("BYE did not come", || one.control.check_peer("x", 1 - me).is_err());
    let one = one.meet(peers, soon()).unwrap();
    one.control.check("x").unwrap();
    let error = one.control.check_peer("x", 1 - me).unwrap_err();
    assert!(error.message().contains("good order"), "{error}");
}

/// It is the one that this rank opens a link to.
#[test]
fn a_rank_that_has_gone_before_the_group_is_linked_is_lost() {
    let (mut links, peers) = two(None);
    let me = u32::from(eager_peers(0, 2).is_empty());
    drop(links.remove(1 - me as usize));
    let error = links.remove(0).meet(peers, soon()).unwrap_err();
    assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1 - me)), "{error}");
}

/// Nothing but the time tells.
#[test]
fn a_rank_waits_half_as_long_again_for_one_that_may_wait_for_another() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let (mut links, peers) = two(Some(TIMEOUT));
    // The rank that opens no link.
    let me = u32::from(!eager_peers(0, 2).is_empty());
    let began = Instant::now();
    let lost = links.swap_remove(me as usize).meet(peers, soon()).unwrap_err();
    assert!(began.elapsed() >= TIMEOUT * 3 / 2, "{:?}", began.elapsed());
    assert_eq!((lost.kind(), lost.peer()), (ErrorKind::PeerLost, Some(1 - me)), "{lost}");
}

/// The other one would find nobody, and could say no more than that.
#[test]
fn a_rank_that_cannot_join_stays_until_who_opens_a_link_to_it_has_done_so() {
    let (mut links, peers) = two(None);
    links[0].peers = peers;
    let [one, leaver] = &links[..] else { unreachable!() };
    std::thread::scope(|scope| {
        let stayed = scope.spawn(|| {
            leaver.give_up_within(Error::usage("x", "it has no device"), Duration::from_secs(30));
            leaver.control.link(0).is_some()
        });
        wait_for("it does not give up", || leaver.control.abort().is_aborted());
        one.ensure(1, soon()).unwrap();
        assert!(stayed.join().unwrap());
    });
    wait_for("nobody was told", || one.control.abort().is_aborted());
    let told = one.control.abort().check("x").unwrap_err();
    assert_eq!((told.kind(), told.peer()), (ErrorKind::Aborted, Some(1)), "{told}");
    assert!(told.message().contains("it has no device"), "{told}");
}

/// So many listen as long as they live, for those that may still open links.
#[test]
fn ranks_of_one_host_are_not_reached_from_others() {
    let reached = |peer: &PeerInfo| TcpStream::connect(peer.tcp[0]).is_ok();
    let links = group(20, 1);
    for peer in &*links[0].peers {
        wait_for("it still listens", || !reached(peer));
    }
    let links = group(20, 2);
    assert!(links[0].peers.iter().all(reached));
}

#[test]
fn strangers_and_other_communicators_are_turned_away() {
    let links = group(17, 1);
    let mine = &links[0];
    let other = Identity::new(1, 17, [8; 32], None);
    let path = &mine.peers[0].unix;
    let refused = other.network.connect_unix(path, other.claims(0), soon()).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Authentication | ErrorKind::PeerLost), "{refused}");
    assert!(!mine.control.abort().is_aborted());
}
