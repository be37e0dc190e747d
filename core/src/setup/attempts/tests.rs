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
    // To ask for what has begun here takes nothing.
    assert!(leader.hear(send(2), 1, Message::Ask).unwrap().answer.is_none());
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
    leader.hear(send(0), 1, Message::Ask).unwrap();
    assert!(leader.offer(send(0)));
    assert!(leader.hear(send(0), 1, Message::Offer(Offer::default())).is_err(), "it offers itself");
    let recv = send(0).mirrored(1);
    let mut follower = Attempts::new(0, 2);
    follower.begin(recv);
    assert!(follower.hear(recv, 1, Message::Commit).is_err(), "nothing was accepted");
    assert!(follower.hear(recv, 1, Message::Accept(Offer::default())).is_err());
    follower.ask(recv);
    assert!(follower.hear(recv, 1, Message::Accept(Offer::default())).is_err(), "it accepts itself");
}

#[test]
fn a_group_of_any_size_has_room_for_some_offers_and_for_all_its_peers() {
    let sizes = [0, 1, 2, 8, 16, 64, 128, 1000];
    assert_eq!(sizes.map(window), [32, 32, 32, 32, 16, 4, 2, 2]);
}

#[test]
fn a_leader_that_is_first_asks_and_a_follower_that_is_asked_keeps_nothing() {
    let mut leader = Attempts::new(1, 2);
    leader.begin(send(0));
    assert!(leader.ask(send(0)), "the follower may not know yet");
    let mut follower = Attempts::new(0, 2);
    assert!(follower.hear(send(0).mirrored(1), 1, Message::Ask).unwrap().answer.is_none());
    assert!(follower.names.is_empty() && follower.peers.values().all(|counts| counts.ahead == 0));
}

#[test]
fn what_is_said_of_an_attempt_that_is_over_does_not_touch_the_next() {
    let late = |why: &'static str| Error::timeout("recv_memory", why);
    let mut follower = Attempts::new(0, 2);
    let recv = send(0).mirrored(1);
    for why in ["first", "second"] {
        follower.begin(recv);
        follower.ask(recv);
        follower.end(recv, Some(&late(why)));
    }
    assert!(follower.hear(recv, 1, Message::Commit).is_ok());
    let told =
        |attempts: &mut Attempts, attempt| match attempts.hear(recv, attempt, Message::Ask).unwrap().answer {
            Some(Message::End(error)) => error,
            other => panic!("{other:?}"),
        };
    assert!(told(&mut follower, 2).message().contains("second"));
    assert!(told(&mut follower, 1).message().contains("has gone on"));
    assert_eq!(follower.begin(recv), 3);
    follower.ask(recv);
    assert!(follower.hear(recv, 2, Message::End(late("second"))).unwrap().answer.is_none());
    assert!(matches!(follower.next(recv), Next::Wait));
    assert!(follower.hear(recv, 3, Message::Offer(Offer::default())).is_ok());
    assert!(matches!(follower.next(recv), Next::Build(_)));
}

#[test]
fn a_leader_remembers_an_ask_for_its_next_attempt_and_no_older_one() {
    let mut leader = Attempts::new(1, 2);
    let late = Error::timeout("send_memory", "late");
    leader.begin(send(0));
    leader.hear(send(0), 1, Message::Ask).unwrap();
    leader.end(send(0), Some(&late));
    leader.begin(send(0));
    assert!(leader.ask(send(0)), "the ASK was for the attempt before");
    leader.hear(send(0), 3, Message::Ask).unwrap();
    leader.end(send(0), Some(&late));
    leader.begin(send(0));
    assert!(!leader.ask(send(0)), "the follower has said so already");
    assert!(matches!(leader.next(send(0)), Next::Offer));
}

#[test]
fn a_leader_does_not_commit_what_the_follower_has_withdrawn() {
    let mut leader = Attempts::new(1, 2);
    leader.begin(send(0));
    leader.hear(send(0), 1, Message::Ask).unwrap();
    leader.ask(send(0));
    assert!(leader.offer(send(0)));
    leader.hear(send(0), 1, Message::Accept(Offer::default())).unwrap();
    assert!(matches!(leader.next(send(0)), Next::Build(_)));
    leader.hear(send(0), 1, Message::End(Error::timeout("recv_memory", "late"))).unwrap();
    assert!(!leader.commit(send(0)));
    assert!(matches!(leader.next(send(0)), Next::Ended(Err(_))));
}

#[test]
fn an_offer_that_is_never_used_makes_room_for_another() {
    let late = Error::timeout("recv_memory", "late");
    let mut follower = Attempts::new(0, 2);
    let recv = send(0).mirrored(1);
    for (attempt, withdraws) in [(1, true), (2, false)] {
        follower.begin(recv);
        follower.ask(recv);
        follower.hear(recv, attempt, Message::Offer(Offer::default())).unwrap();
        assert_eq!(follower.peers[&1].offers, 1);
        if withdraws {
            assert!(follower.end(recv, Some(&late)).unused.is_some());
        } else {
            assert!(follower.hear(recv, attempt, Message::End(late.clone())).unwrap().unused.is_some());
            follower.end(recv, Some(&late));
        }
        assert_eq!(follower.peers[&1].offers, 0);
    }
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
