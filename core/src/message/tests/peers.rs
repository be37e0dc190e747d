//! Peers that come and go.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use super::super::carrier::Carrier;
use super::super::handshake::Handshake;
use super::super::head::{Head, Operation};
use super::super::hello::Hello;
use super::super::ring::tests::{NO_MEMORY, Socket};
use super::*;
use crate::sync::{AtomicBool, AtomicUsize, Ordering};

/// The events of `messenger`, as text.
fn events(messenger: &Messenger) -> Seen<String> {
    let seen = Seen::new();
    let add = seen.adder();
    let on = move |event| match event {
        PeerEvent::Connected(peer) => add(format!("connected {}", peer.rank())),
        PeerEvent::Gone(peer, why) => add(format!("gone {}: {why}", peer.rank())),
    };
    messenger.on_peer(on).unwrap();
    seen
}

#[test]
fn whoever_leaves_says_goodbye_after_its_messages() {
    let (a, b) = (messenger(0), messenger(1));
    let (seen, events) = (Seen::new(), events(&b));
    let add = seen.adder();
    b.on(1, move |message| add(message.bytes()[0])).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    (0..200).for_each(|n| assert_eq!(peer.send(1, &[n]).unwrap(), Sent::Done));
    a.close(SOON).unwrap();
    assert_eq!(peer.send(1, b"x").unwrap_err().kind(), ErrorKind::Stopped);
    until(&[&b], || events.len() == 2);
    assert_eq!(seen.take(), (0..200).collect::<Vec<_>>());
    let events = events.take();
    assert_eq!(events[0], "connected 0");
    assert!(events[1].ends_with("peer lost: rank 0 was lost: it left"), "{}", events[1]);
}

#[test]
fn one_that_closes_a_peer_can_connect_again() {
    let (a, b) = (messenger(0), messenger(1));
    let (queue, events) = (b.queue(1).unwrap(), events(&b));
    let peer = a.connect(b.address(), SOON).unwrap();
    let again = a.connect(b.address(), SOON).unwrap();
    assert_eq!(peer, again, "one link");
    assert_eq!(peer.send(1, b"x").unwrap(), Sent::Done);
    peer.close(SOON).unwrap();
    peer.close(SOON).unwrap();
    assert_eq!(again.send(1, b"y").unwrap_err().kind(), ErrorKind::Stopped);
    until(&[&a, &b], || events.len() == 2 && queue.len() == 1);
    let new = a.connect(b.address(), SOON).unwrap();
    assert!(new != peer && new.lost().is_none());
    assert_eq!(new.send(1, b"z").unwrap(), Sent::Done);
    until(&[&a, &b], || queue.len() == 2);
}

#[test]
fn both_may_connect_at_once() {
    for _ in 0..20 {
        let (a, b) = (messenger(0), messenger(1));
        let seen = [(&a, Seen::new()), (&b, Seen::new())];
        for (messenger, seen) in &seen {
            let add = seen.adder();
            messenger.on(1, move |message| add(message.bytes()[0])).unwrap();
        }
        std::thread::scope(|scope| {
            for (from, to) in [(&a, &b), (&b, &a)] {
                scope.spawn(move || {
                    let peer = from.connect(to.address(), SOON).unwrap();
                    (0..100).for_each(|n| peer.send_within(1, &[n], SOON).unwrap());
                });
            }
        });
        until(&[&a, &b], || seen.iter().all(|(_, seen)| seen.len() == 100));
        for (_, seen) in &seen {
            assert_eq!(seen.take(), (0..100).collect::<Vec<_>>());
        }
        b.close(SOON).unwrap();
        until(&[&a], || lock(&a.core.engine.members).is_empty());
    }
}

#[test]
fn a_rank_that_comes_back_is_another_peer() {
    let (a, old) = (messenger(0), messenger(1));
    let events = events(&a);
    let (reads, exposed) = (Seen::new(), old.expose(vec![1; 100]).unwrap());
    let (address, token) = (old.address().clone(), exposed.token());
    let before = a.connect(&address, SOON).unwrap();
    before.read(&token, 0, vec![0; 100], SOON, reads.adder()).unwrap().posted().unwrap();
    // As if it had been killed: nothing is said, and nobody at its old address knows the old generation.
    let new = messenger(1);
    let queue = a.queue(1).unwrap();
    let from_new = new.connect(a.address(), SOON).unwrap();
    assert_eq!(from_new.send(1, b"back").unwrap(), Sent::Done);
    until(&[&a, &new], || queue.len() == 1 && reads.len() == 1);
    assert_eq!(kinds(reads.take()), [Err(ErrorKind::PeerLost)]);
    assert_eq!(before.send(1, b"x").unwrap_err().kind(), ErrorKind::PeerLost);
    let after = queue.try_recv().unwrap().peer().clone();
    assert!(after != before && after.generation() == new.address().generation());
    assert_eq!(after.read(&token, 0, vec![0; 1], SOON, |_| {}).unwrap_err().kind(), ErrorKind::InvalidUsage);
    assert!(events.take().iter().any(|event| event.contains("another generation")));
    drop(old);
}

#[test]
fn an_address_of_one_that_was_restarted_there_is_refused() {
    let (a, b) = (messenger(0), messenger(1));
    let mut stale = b.address().clone();
    stale.generation ^= 1;
    let error = a.connect(&stale, SOON).unwrap_err();
    assert!(error.kind() == ErrorKind::PeerLost && error.message().contains("restarted"), "{error}");
    assert_eq!(error.peer(), Some(1));
    let mut other = b.address().clone();
    other.rank = 2;
    assert_eq!(a.connect(&other, SOON).unwrap_err().kind(), ErrorKind::Authentication);
    let own = a.connect(a.address(), SOON).unwrap_err();
    assert!(own.kind() == ErrorKind::InvalidUsage && own.message().contains("own"), "{own}");
}

#[test]
fn strangers_are_refused() {
    let a = messenger(0);
    let stranger = || Messenger::new(1, config().with_secret(Secret::from_bytes([8; 32]))).unwrap();
    let error = stranger().connect(a.address(), SOON).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Authentication);
    // A messenger of another test may get the port of one that has gone, and then answers.
    let refused = (0..10).any(|_| {
        let gone = stranger().address().clone();
        let error = a.connect(&gone, SOON).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::Authentication), "{error}");
        error.kind() == ErrorKind::PeerLost && error.message().contains("nobody answers")
    });
    assert!(refused, "somebody answers at every port");
    let none = Messenger::new(0, MessengerConfig::default()).unwrap_err();
    assert!(none.message().contains("with_secret"), "{none}");
    for wrong in
        [config().with_eager_limit(0), config().with_eager_limit(MAX_EAGER + 1), config().with_reads(0, 1)]
    {
        assert_eq!(Messenger::new(0, wrong).unwrap_err().kind(), ErrorKind::InvalidUsage);
    }
}

/// Everything under way ends when the own messenger is closed, exactly once, without another dispatch.
#[test]
fn closing_ends_all_operations() {
    let (a, b) = (messenger(0), messenger(1));
    let exposed = b.expose(vec![1; 100]).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    let (reads, longs) = (Seen::new(), Seen::new());
    for _ in 0..100 {
        peer.read(&exposed.token(), 0, vec![0; 100], SOON, reads.adder()).unwrap().posted().unwrap();
    }
    assert!(peer.send_long(1, b"", vec![0; 10], SOON, longs.adder()).unwrap().is_posted());
    drop(a);
    assert_eq!(kinds(reads.take()), vec![Err(ErrorKind::Stopped); 100]);
    assert_eq!(kinds(longs.take()), [Err(ErrorKind::Stopped)]);
}

#[test]
fn ranks_of_a_bootstrap_find_each_other() {
    let ranks = crate::bootstrap::local(3);
    let secret = Secret::from_bytes([7; 32]);
    let all: Vec<Messenger> = std::thread::scope(|scope| {
        let start = |bootstrap: crate::bootstrap::LocalBootstrap| {
            let config = config().with_secret(secret.clone());
            move || Messenger::join(&bootstrap, config, SOON).unwrap()
        };
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(start(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let queues: Vec<Queue> = all.iter().map(|messenger| messenger.queue(1).unwrap()).collect();
    for (rank, messenger) in all.iter().enumerate() {
        let next = (rank as u32 + 1) % 3;
        assert_eq!(messenger.peer(next, SOON).unwrap().send(1, &[rank as u8]).unwrap(), Sent::Done);
    }
    until(&all.iter().collect::<Vec<_>>(), || queues.iter().all(|queue| queue.len() == 1));
    for (rank, queue) in queues.iter().enumerate() {
        assert_eq!(usize::from(queue.try_recv().unwrap().bytes()[0]), (rank + 2) % 3);
    }
    assert_eq!(all[0].peer(3, SOON).unwrap_err().kind(), ErrorKind::InvalidUsage);
}

/// Each closes in good order while the receiver does something else, and its rank comes back.
#[test]
fn what_earlier_generations_sent_before_they_left_arrives_before_their_end() {
    let b = messenger(1);
    let (events, seen) = (events(&b), Seen::new());
    let add = seen.adder();
    b.on(1, move |message| add(message.bytes()[0])).unwrap();
    for life in 0..3 {
        let a = messenger(0);
        let peer = a.connect(b.address(), SOON).unwrap();
        (0..2).for_each(|_| assert_eq!(peer.send(1, &[life]).unwrap(), Sent::Done));
        a.close(SOON).unwrap();
    }
    until(&[&b], || events.len() == 6);
    assert_eq!(seen.take(), [0, 0, 1, 1, 2, 2]);
    for (index, event) in events.take().into_iter().enumerate() {
        assert!(event.contains(["connected", "it left"][index % 2]), "{index}: {event}");
    }
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

/// The reader has asked for more than a ring holds, and takes none of it. A socket takes what it is given, and the goodbye behind it.
#[test]
fn an_owner_closes_without_serving_a_reader_that_computes() {
    let length = if module_path!().contains("tests_over_rings") { 16 << 20 } else { 4 << 10 };
    for one_peer in [true, false] {
        let (a, b) = (messenger(0), messenger(1));
        let exposed = b.expose(vec![3; length]).unwrap();
        let to_b = a.connect(b.address(), SOON).unwrap();
        let to_a = b.connect(a.address(), SOON).unwrap();
        let read = to_b.read(&exposed.token(), 0, vec![0; length], SOON, |_| {}).unwrap();
        assert!(read.is_posted());
        (0..100).for_each(|_| assert!(b.poll().is_ok()));
        let closed = if one_peer { to_a.close(SOON) } else { b.close(SOON) };
        closed.unwrap();
    }
}

/// A link of rank 1 in its `life`, over a socket whose other end is returned, as the service thread makes it. The other side has
/// been told the life of `handshake`.
fn accept(messenger: &Messenger, life: u32, handshake: Handshake) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let hello = Hello { rank: 1, generation: 7, life, ..messenger.core.me };
    messenger.core.accepted(hello, handshake, Box::new(Socket(ours)), Carrier::Socket);
    theirs
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

/// Frames go over the socket then.
#[test]
fn a_side_without_memory_for_a_ring_connects_all_the_same() {
    let (a, b) = (messenger(0), messenger(1));
    let queue = b.queue(1).unwrap();
    NO_MEMORY.set(true);
    let peer = a.connect(b.address(), SOON).unwrap();
    NO_MEMORY.set(false);
    assert_ne!(peer.transport(), "shared memory");
    assert_eq!(peer.send(1, b"x").unwrap(), Sent::Done);
    until(&[&a, &b], || queue.len() == 1);
}

/// Closing waits for callbacks of the messenger's own threads, but for none that waits for a peer.
#[test]
fn a_callback_that_waits_for_room_does_not_hold_up_the_end() {
    let (a, b) = (messenger(0), messenger(1));
    let ended = Seen::new();
    let (add, sent) = (ended.adder(), Arc::new(AtomicUsize::new(0)));
    let count = sent.clone();
    b.on(1, move |message| {
        let patience = Deadline::after(SOON);
        let error = loop {
            match message.peer().send_within(2, &[0; 4096], patience) {
                Ok(()) => count.fetch_add(1, Ordering::Relaxed),
                Err(error) => break error,
            };
        };
        add(error.kind());
    })
    .unwrap();
    b.start_thread().unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    peer.send_within(1, b"begin", SOON).unwrap();
    let mut last = 0;
    until(&[], || {
        std::thread::sleep(Duration::from_millis(50));
        let now = sent.load(Ordering::Relaxed);
        now > 0 && std::mem::replace(&mut last, now) == now
    });
    let start = Instant::now();
    // The peer takes nothing, so the goodbye may find no room, either.
    let closed = b.close(Duration::from_millis(100)).map_err(|error| error.kind());
    assert!(matches!(closed, Ok(()) | Err(ErrorKind::Timeout)), "{closed:?}");
    assert!(start.elapsed() < SOON / 3, "{:?}", start.elapsed());
    assert_eq!(ended.take(), [ErrorKind::Stopped]);
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

/// More than a link holds is on its way when the owner closes the peer, and the reader, which polls, ends at the goodbye.
#[test]
fn an_owner_that_serves_reads_closes_without_waiting_for_whoever_has_gone() {
    for one_peer in [true, false] {
        let (a, b) = (messenger(0), messenger(1));
        let exposed = b.expose(vec![3; 3 << 20]).unwrap();
        let to_b = a.connect(b.address(), SOON).unwrap();
        let to_a = b.connect(a.address(), SOON).unwrap();
        let (ended, stop) = (Seen::new(), AtomicBool::new(false));
        for _ in 0..8 {
            let add = ended.adder();
            to_b.read(&exposed.token(), 0, vec![0; 3 << 20], SOON, move |read| add(read.is_ok()))
                .unwrap()
                .posted()
                .unwrap();
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    a.poll().unwrap();
                    std::thread::yield_now();
                }
            });
            // Requests have come, and answers fill the link.
            b.progress().unwrap();
            let closed = if one_peer { to_a.close(SOON) } else { b.close(SOON) };
            let all = Deadline::after(SOON);
            while ended.len() < 8 && !all.expired() {
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
            assert_eq!(ended.len(), 8, "a read has not ended");
            closed.unwrap();
        });
    }
}
