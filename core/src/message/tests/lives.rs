//! Lives of one peer: it closes its links and connects again, also from several threads at once.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use super::super::carrier::Carrier;
use super::super::handshake::Handshake;
use super::super::head::{Head, Operation};
use super::super::hello::Hello;
use super::super::ring::tests::Socket;
use super::*;

/// A link of rank 1 in its `life`, over a socket whose other end is returned, as the service thread makes it. The other side has
/// been told the life of `handshake`.
fn accept(messenger: &Messenger, life: u32, handshake: Handshake) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let hello = Hello { rank: 1, generation: 7, life, ..messenger.core.me };
    messenger.core.accepted(hello, handshake, Box::new(Socket(ours)), Carrier::Socket);
    theirs
}

/// A messenger closes its links and connects again, each time with a message, while the receiver does something else.
#[test]
fn lives_of_one_messenger_are_served_in_their_order() {
    let (a, b) = (messenger(0), messenger(1));
    let (events, seen) = (events(&b), Seen::new());
    let add = seen.adder();
    b.on(1, move |message| add(message.bytes()[0])).unwrap();
    for life in 0..5 {
        let peer = a.connect(b.address(), SOON).unwrap();
        assert_eq!(peer.send(1, &[life]).unwrap(), Sent::Done);
        if life == 0 {
            until(&[&b], || seen.len() == 1);
        }
        peer.close(SOON).unwrap();
    }
    until(&[&b], || events.len() == 10);
    assert_eq!(seen.take(), [0, 1, 2, 3, 4]);
    for (index, event) in events.take().into_iter().enumerate() {
        assert!(event.contains(["connected", "it left"][index % 2]), "{index}: {event}");
    }
}

/// More messages than are dispatched at a time, so that those of the first life that are left could be overtaken.
#[test]
fn nothing_of_a_later_life_is_dispatched_before_the_end_of_an_earlier_one() {
    const COUNT: usize = 200;
    for (threads, per_poll) in [(0, usize::MAX), (0, 10), (2, usize::MAX)] {
        let (a, b) = (messenger(0), messenger(1));
        let seen = Seen::new();
        let (add, connected) = (seen.adder(), seen.adder());
        b.on(1, move |message| add(format!("message of life {}", message.bytes()[0]))).unwrap();
        let on = move |event| match event {
            PeerEvent::Connected(_) => connected("connected".to_owned()),
            PeerEvent::Gone(..) => connected("gone".to_owned()),
        };
        b.on_peer(on).unwrap();
        for life in 0..3 {
            let peer = a.connect(b.address(), SOON).unwrap();
            (0..COUNT).for_each(|_| peer.send_within(1, &[life], SOON).unwrap());
            peer.close(SOON).unwrap();
        }
        (0..threads).for_each(|_| b.start_thread().unwrap());
        until(&[], || {
            if threads == 0 {
                b.progress().unwrap();
                b.dispatch(per_poll);
            }
            seen.len() >= 3 * (COUNT + 2)
        });
        let expected = (0..3).flat_map(|life| {
            let messages = std::iter::repeat_n(format!("message of life {life}"), COUNT);
            ["connected".to_owned()].into_iter().chain(messages).chain(["gone".to_owned()])
        });
        assert_eq!(seen.take(), expected.collect::<Vec<_>>(), "{threads} threads");
    }
}

/// Threads of the messenger may make links in another order than that in which the peer has ended them.
#[test]
fn a_link_that_the_peer_has_ended_replaces_no_later_one() {
    let a = messenger(0);
    let (hub, events) = (&a.core.engine.hub, events(&a));
    let handshake = || Handshake::begin(hub, 1, 7);
    let (first, second) = (handshake(), handshake());
    let later = accept(&a, 1, first);
    let known = || lock(&a.core.engine.members).get(&1).cloned().unwrap();
    let member = known();
    let earlier = accept(&a, 0, second);
    assert!(Arc::ptr_eq(&member, &known()), "the link of the earlier life is given to those who connect");
    drop(earlier);
    until(&[&a], || events.len() == 3);
    let order = events.take().into_iter().map(|event| event.split(' ').next().unwrap_or_default().to_owned());
    assert_eq!(order.collect::<Vec<_>>(), ["connected", "gone", "connected"], "in the order of the lives");
    assert_eq!(hub.lives.life(1, 7), 0, "the life of the later link, which is there, has ended");
    assert!(Arc::ptr_eq(&member, &known()) && member.end().is_none());
    drop(later);
    until(&[&a], || events.len() == 1);
    assert_eq!(hub.lives.life(1, 7), 1);
}

/// One thread of the peer still says goodbye when another one has connected anew.
#[test]
fn nothing_of_a_later_life_is_dispatched_before_the_goodbye_of_the_earlier_one() {
    let a = messenger(0);
    let events = events(&a);
    let add = events.adder();
    a.on(1, move |message| add(format!("message {}", message.bytes()[0]))).unwrap();
    let link = |life| {
        let handshake = a.core.engine.answer(&Hello { rank: 1, generation: 7, life, ..a.core.me });
        accept(&a, life, handshake)
    };
    let send = |mut link: &UnixStream, sequence, operation, body: &[u8]| {
        let head = Head { sequence, ..Head::new(operation, 1, 0, body.len()) };
        link.write_all(&[&head.encode()[..], body].concat()).unwrap();
    };
    let first = link(0);
    send(&first, 0, Operation::Message, &[1]);
    until(&[&a], || events.len() == 2);
    let second = link(1);
    send(&second, 0, Operation::Message, &[3]);
    for _ in 0..100 {
        a.poll().unwrap();
    }
    send(&first, 1, Operation::Message, &[2]);
    until(&[&a], || events.len() == 3);
    send(&first, 2, Operation::Goodbye, &[]);
    until(&[&a], || events.len() == 6);
    let order =
        events.take().into_iter().map(|event| event.split(" 1:").next().unwrap_or_default().to_owned());
    let expected = ["connected 1", "message 1", "message 2", "gone", "connected 1", "message 3"];
    assert_eq!(order.collect::<Vec<_>>(), expected);
}

/// This side hears of the peer's later life in an answer, behind its own word in that handshake.
#[test]
fn a_link_in_whose_handshake_an_earlier_life_was_told_is_not_made() {
    let a = messenger(0);
    let hub = &a.core.engine.hub;
    let handshake = || Handshake::begin(hub, 1, 7);
    // Both sides count their lives: what the first link was told is over once the peer is in a later one.
    let (first, second) = (handshake(), handshake());
    let earlier = accept(&a, 0, first);
    let mut refused = accept(&a, 1, second);
    assert_eq!(hub.lives.life(1, 7), 1);
    let mut byte = [0];
    assert_eq!(refused.read(&mut byte).unwrap(), 0, "the link was made");
    let _later = accept(&a, 1, handshake());
    let member = lock(&a.core.engine.members).get(&1).cloned().unwrap();
    assert_eq!(member.life, 1);
    drop(earlier);
    // The end of the earlier link is counted once.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        a.poll().unwrap();
    }
    assert_eq!(hub.lives.life(1, 7), 1);
    assert!(member.end().is_none());
}

/// The receiver reads the goodbye of one life while the handshake of the next one is under way.
#[test]
fn a_life_that_was_left_ends_before_the_next_one_begins() {
    let (a, b) = (messenger(0), messenger(1));
    let events = events(&b);
    let first = a.connect(b.address(), SOON).unwrap();
    until(&[&b], || events.len() == 1);
    let handshake = Handshake::begin(&b.core.engine.hub, 0, a.address().generation());
    first.close(SOON).unwrap();
    until(&[&b], || !lock(&b.core.engine.turn).leaving.is_empty());
    let second = a.connect(b.address(), SOON).unwrap();
    // Until the messenger under test has the link, too.
    until(&[], || lock(&b.core.engine.arrivals).len() == 2);
    b.poll().unwrap();
    let events = events.take();
    assert!(events[1].contains("it left") && events[2] == "connected 0", "{events:?}");
    drop((handshake, second));
}

/// A peer that leaves at the same time hangs up once its own words have arrived, whatever is still on its way to it.
#[test]
fn what_is_on_its_way_to_a_peer_that_has_hung_up_holds_up_no_end() {
    let a = messenger(0);
    let theirs = accept(&a, 0, Handshake::begin(&a.core.engine.hub, 1, 7));
    let member = lock(&a.core.engine.members).get(&1).cloned().unwrap();
    let peer = Peer { member };
    while matches!(peer.send(1, &[0; 4096]), Ok(Sent::Done)) {}
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    let start = Instant::now();
    peer.close(SOON).unwrap();
    assert!(start.elapsed() < SOON / 3, "{:?}", start.elapsed());
}
