//! Peers that come and go.

use super::super::ring::tests::NO_MEMORY;
use super::*;
use crate::sync::{AtomicBool, AtomicUsize, Ordering};

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
