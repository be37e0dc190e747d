//! Answers and state of one rank, message by message.

use super::super::key::Kind;
use super::*;

fn send(tag: u64) -> Key {
    Key::user(Kind::MemorySend, 0, tag)
}

#[test]
fn a_peer_far_ahead_is_refused_single_items_and_takes_no_more_memory() {
    let mut leader = Attempts::new(1, 2);
    let most = MAX_AHEAD as u64;
    for tag in 0..most {
        assert!(leader.hear(send(tag), 1, Message::Ask).unwrap().answer.is_none());
    }
    let refused = leader.hear(send(most), 1, Message::Ask).unwrap().answer;
    let Some(Message::End(error)) = refused else { panic!("{refused:?}") };
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    assert_eq!(leader.names.len(), MAX_AHEAD);
    // It has asked for one of them before, and gives another up.
    assert!(leader.hear(send(0), 2, Message::Ask).unwrap().answer.is_none());
    leader.hear(send(1), 1, Message::End(Error::timeout("recv_memory", "late"))).unwrap();
    assert!(leader.hear(send(most), 1, Message::Ask).unwrap().answer.is_none());
    // A key that this rank has begun is not ahead any more.
    leader.begin(send(2));
    assert!(leader.hear(send(most + 1), 1, Message::Ask).unwrap().answer.is_none());
    assert_eq!(leader.peers[&0].ahead, MAX_AHEAD);
}

#[test]
fn offers_under_way_are_bounded_by_the_sender_and_checked_by_the_receiver() {
    let (mut leader, mut follower) = (Attempts::new(1, 2), Attempts::new(0, 2));
    let recv = |tag| send(tag).mirrored(1);
    let many = leader.window as u64 + 1;
    for tag in 0..many {
        follower.begin(recv(tag));
        assert!(follower.ask(recv(tag)));
        leader.begin(send(tag));
        leader.hear(send(tag), 1, Message::Ask).unwrap();
        assert!(!leader.ask(send(tag)), "the follower was first");
    }
    for tag in 0..many - 1 {
        assert!(matches!(leader.next(send(tag)), Next::Offer));
        assert!(leader.offer(send(tag)));
        follower.hear(recv(tag), 1, Message::Offer(Offer::default())).unwrap();
    }
    assert!(matches!(leader.next(send(many - 1)), Next::Wait));
    // A leader that sends it all the same breaks the rules.
    let error = follower.hear(recv(many - 1), 1, Message::Offer(Offer::default())).unwrap_err();
    assert_eq!(error.peer(), Some(1), "{error}");
    assert!(matches!(follower.next(recv(0)), Next::Build(_)));
    leader.hear(send(0), 1, Message::Accept(Offer::default())).unwrap();
    assert!(matches!(leader.next(send(many - 1)), Next::Offer));
    follower.hear(recv(many - 1), 1, Message::Offer(Offer::default())).unwrap();
}

#[test]
fn messages_out_of_turn_end_their_sender() {
    let mut leader = Attempts::new(1, 2);
    leader.begin(send(0));
    leader.ask(send(0));
    for message in [Message::Accept(Offer::default()), Message::Commit, Message::Offer(Offer::default())] {
        assert_eq!(leader.hear(send(0), 1, message).unwrap_err().peer(), Some(0));
    }
    assert!(leader.hear(send(7), 1, Message::Accept(Offer::default())).is_err(), "nobody asked");
    let recv = send(0).mirrored(1);
    let mut follower = Attempts::new(0, 2);
    follower.begin(recv);
    assert!(follower.hear(recv, 1, Message::Commit).is_err(), "nothing was accepted");
    assert!(follower.hear(recv, 1, Message::Accept(Offer::default())).is_err());
}

#[test]
fn a_follower_that_withdraws_takes_no_place_among_the_offers() {
    for offered in [false, true] {
        let mut leader = Attempts::new(1, 2);
        for tag in 0..=leader.window as u64 {
            leader.begin(send(tag));
            leader.hear(send(tag), 1, Message::Ask).unwrap();
            leader.ask(send(tag));
            assert!(matches!(leader.next(send(tag)), Next::Offer), "attempt {tag} may offer");
            if offered {
                assert!(leader.offer(send(tag)));
            }
            // Without an offer: the service thread hears it while `setup` makes one.
            let late = Error::timeout("recv_memory", "late");
            leader.hear(send(tag), 1, Message::End(late.clone())).unwrap();
            assert!(!leader.offer(send(tag)), "nothing more may be sent");
            assert!(matches!(leader.next(send(tag)), Next::Ended(Err(_))));
            leader.end(send(tag), Some(&late));
        }
        assert_eq!(leader.peers[&0].offers, 0, "offered: {offered}");
    }
}

/// Brings the attempt for both keys to its good end.
fn succeed(leader: (&mut Attempts, Key), follower: (&mut Attempts, Key)) {
    let ((leader, send), (follower, recv)) = (leader, follower);
    follower.begin(recv);
    let attempt = leader.begin(send);
    assert!(follower.ask(recv));
    leader.hear(send, attempt, Message::Ask).unwrap();
    leader.ask(send);
    assert!(leader.offer(send));
    follower.hear(recv, attempt, Message::Offer(Offer::default())).unwrap();
    assert!(matches!(follower.next(recv), Next::Build(_)));
    follower.accept(recv);
    leader.hear(send, attempt, Message::Accept(Offer::default())).unwrap();
    assert!(matches!(leader.next(send), Next::Build(_)));
    assert!(leader.commit(send));
    assert!(leader.end(send, None).answer.is_none());
    follower.hear(recv, attempt, Message::Commit).unwrap();
    assert!(follower.end(recv, None).answer.is_none());
}

#[test]
fn a_key_of_the_library_leaves_nothing_behind_once_both_ends_are_made() {
    let (mut leader, mut follower) = (Attempts::new(1, 2), Attempts::new(0, 2));
    for tag in 0..3 {
        let send = Key::library(Kind::MemorySend, 0, tag);
        succeed((&mut leader, send), (&mut follower, send.mirrored(1)));
    }
    assert_eq!((leader.names.len(), follower.names.len()), (0, 0));
    // A follower that withdrew just before it heard of the commit says so late.
    let send = Key::library(Kind::MemorySend, 0, 2);
    let late = Message::End(Error::timeout("recv_memory", "late"));
    assert!(leader.hear(send, 1, late).unwrap().answer.is_none());
    assert_eq!((leader.names.len(), leader.peers[&0].ahead), (0, 0));
    // Keys of the user can be used again: their attempts go on counting.
    let again = Key::user(Kind::MemorySend, 0, 7);
    for attempt in 1..=2 {
        succeed((&mut leader, again), (&mut follower, again.mirrored(1)));
        assert_eq!(leader.names[&again].begun, attempt);
    }
    // Why an attempt failed is kept for a peer that asks later.
    leader.begin(send);
    leader.end(send, Some(&Error::timeout("send_memory", "nobody came")));
    let Some(Message::End(why)) = leader.hear(send, 1, Message::Ask).unwrap().answer else {
        panic!("no answer")
    };
    assert!(why.message().contains("nobody came"), "{why}");
}
