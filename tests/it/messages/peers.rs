//! Peers that come and go.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use aqueduct::ErrorKind;
use aqueduct::bootstrap;
use aqueduct::message::{Address, Messenger, Peer, PeerEvent, Sent};

use super::rig::{HOUR, Log, Pollers, Rig, SOON, connect, count, number_of, numbered, send, until};

/// The peers that came and went, as ranks, in order.
fn events(messenger: &Messenger) -> Log<(&'static str, u32, u64)> {
    let log = Log::new();
    let into = log.clone();
    messenger
        .on_peer(move |event| match event {
            PeerEvent::Connected(peer) => into.add(("connected", peer.rank(), peer.generation())),
            PeerEvent::Gone(peer, why) => {
                assert_eq!((why.kind(), why.peer()), (ErrorKind::PeerLost, Some(peer.rank())), "{why}");
                assert!(peer.lost().is_some());
                into.add(("gone", peer.rank(), peer.generation()));
            }
            _ => {}
        })
        .unwrap();
    log
}

/// A messenger that closes has sent all that it was given.
pub(super) fn leaving_after_what_was_sent(rig: &Rig) {
    let [a, b] = rig.pair();
    let b = Arc::new(b);
    let (log, events) = (Log::new(), events(&b));
    let into = log.clone();
    b.on(1, move |message| into.add(number_of(&message).1)).unwrap();
    let peer = connect(&a, &b);
    let pollers = Pollers::start(&b, 1);
    for number in 0..3000 {
        peer.send_within(1, &numbered(0, number, 500), SOON).unwrap();
    }
    let generation = a.address().generation();
    a.close(SOON).unwrap();
    until(&[], || events.len() == 2);
    drop(pollers);
    assert!(log.take().into_iter().eq(0..3000));
    assert_eq!(events.take(), [("connected", 0, generation), ("gone", 0, generation)]);
    assert_eq!(peer.send(1, b"").unwrap_err().kind(), ErrorKind::Stopped, "of a closed messenger");
}

/// A side that has not noticed yet that the other one left closes, too: it waits for nobody.
pub(super) fn leaving_one_after_the_other(rig: &Rig) {
    let [a, b] = rig.pair();
    let (to_b, to_a) = (connect(&a, &b), connect(&b, &a));
    send(&[&a], &to_b, 1, b"never taken");
    send(&[&b], &to_a, 1, b"never taken");
    // Whoever waited for the other one would not return in time.
    a.close(HOUR).unwrap();
    b.close(HOUR).unwrap();
}

/// A messenger is dropped while others send to it from many threads. Each send ends, and what had arrived came in order.
pub(super) fn dropped_in_the_middle(rig: &Rig) {
    for round in 0..10 {
        let [a, b] = rig.pair().map(Arc::new);
        let log = Log::new();
        let into = log.clone();
        b.on(1, move |message| into.add(number_of(&message))).unwrap();
        let peer = connect(&a, &b);
        let pollers = [Pollers::start(&a, 1), Pollers::start(&b, 1)];
        std::thread::scope(|scope| {
            for sender in 0..4 {
                let peer = &peer;
                scope.spawn(move || {
                    let error = (0..)
                        .find_map(|n| peer.send_within(1, &numbered(sender, n, 100), SOON).err())
                        .unwrap();
                    assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
                });
            }
            until(&[], || log.len() > 50 * (round + 1));
            let [keep, end] = pollers;
            drop(end);
            drop(Arc::into_inner(b).expect("its pollers have ended"));
            // The senders notice it while somebody makes progress.
            until(&[], || peer.lost().is_some());
            drop(keep);
        });
        let mut next = [0; 4];
        for (sender, number) in log.take() {
            assert_eq!(number, next[sender as usize], "of sender {sender}");
            next[sender as usize] += 1;
        }
    }
}

/// Messages that wait in full buffers arrive before the goodbye, even if the one that leaves has not read what was sent to it.
pub(super) fn leaving_with_full_buffers(rig: &Rig) {
    let [a, b] = rig.pair();
    let (log, events) = (Log::new(), events(&b));
    let into = log.clone();
    b.on(1, move |message| into.add(number_of(&message).1)).unwrap();
    let (peer, back) = (connect(&a, &b), connect(&b, &a));
    assert_eq!(back.send(1, b"never taken").unwrap(), Sent::Done);
    let mut sent = 0;
    while peer.send(1, &numbered(0, sent, 4000)).unwrap() == Sent::Done {
        sent += 1;
    }
    std::thread::scope(|scope| {
        let leaves = scope.spawn(|| a.close(SOON));
        // It has time to leave too early.
        std::thread::sleep(Duration::from_millis(50));
        until(&[&b], || events.last().is_some_and(|(what, ..)| what == "gone"));
        leaves.join().unwrap().unwrap();
    });
    let came = log.take();
    assert!(came.iter().copied().eq(0..sent), "{sent} were sent, and {came:?} came");
}

/// Neither side reads what the other one has sent before both leave: all of it arrives at the other's host all the same.
pub(super) fn both_leaving_with_full_buffers(rig: &Rig) {
    let [a, b] = rig.pair();
    let peers = [connect(&a, &b), connect(&b, &a)];
    // The short ones fill the rest of a ring. A device may be late with what it has sent already: full is what stays full.
    for length in [4000, 0] {
        let mut sent = Instant::now();
        while sent.elapsed() < Duration::from_millis(50) {
            for peer in &peers {
                if peer.send(1, &vec![0; length]).unwrap() == Sent::Done {
                    sent = Instant::now();
                }
            }
        }
    }
    let start = Instant::now();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| a.close(SOON));
        b.close(SOON).unwrap();
        other.join().unwrap().unwrap();
    });
    // A wait for a connection that is there already would end after half of the time. No correct run comes near that.
    assert!(start.elapsed() < SOON / 2, "closing took {:?}", start.elapsed());
}

/// One that takes nothing is left at the deadline, with an error that names it.
pub(super) fn leaving_one_that_takes_nothing(rig: &Rig) {
    let [a, b] = rig.pair();
    let peer = connect(&a, &b);
    // The short ones fill the rest of a ring.
    for length in [4000, 0] {
        // A device may be late with what it has sent already: full is what stays full.
        let mut sent = Instant::now();
        while sent.elapsed() < Duration::from_millis(50) {
            if peer.send(1, &vec![0; length]).unwrap() == Sent::Done {
                sent = Instant::now();
            }
        }
    }
    let start = Instant::now();
    let error = a.close(Duration::from_millis(100)).unwrap_err();
    assert_eq!((error.kind(), error.peer()), (ErrorKind::Timeout, Some(1)), "{error}");
    // The kind of the error says that it was the deadline. The limit only ends a wait that has no end.
    assert!(start.elapsed() < SOON / 2, "closing took {:?}", start.elapsed());
    drop(b);
}

/// Only the side that was connected to is told of it.
pub(super) fn connected_is_told_once(rig: &Rig) {
    let [a, b] = rig.pair();
    let (of_a, of_b) = (events(&a), events(&b));
    let peer = connect(&a, &b);
    send(&[&a, &b], &peer, 1, b"");
    until(&[&a, &b], || of_b.len() == 1);
    super::rig::settle(&[&a, &b]);
    assert_eq!(a.dispatch(usize::MAX) + b.dispatch(usize::MAX), 0);
    assert_eq!((of_a.len(), of_b.len()), (0, 1));
}

/// Callbacks of messages that were there before their sender left still run, and answers fail with `PeerLost`.
pub(super) fn callbacks_of_a_peer_that_leaves(rig: &Rig) {
    let [a, b] = rig.pair();
    let log = Log::new();
    let into = log.clone();
    b.on(1, move |message| {
        let answer = message.reply(1, message.bytes());
        into.add((number_of(&message).1, answer.map_err(|error| (error.kind(), error.peer()))));
    })
    .unwrap();
    let events = events(&b);
    let peer = connect(&a, &b);
    for number in 0..100 {
        assert_eq!(peer.send(1, &numbered(0, number, 20)).unwrap(), Sent::Done);
    }
    drop(a);
    until(&[&b], || events.len() == 2);
    let seen = log.take();
    assert!(seen.iter().map(|(number, _)| *number).eq(0..100));
    for (number, answer) in seen {
        // Whether the loss is known yet when a callback runs is a matter of time.
        let right = matches!(answer, Ok(_) | Err((ErrorKind::PeerLost, Some(0))));
        assert!(right, "answer {number}: {answer:?}");
    }
}

/// Two living messengers of one rank: whichever connects last is the peer, and the other one is lost.
pub(super) fn two_of_one_rank(rig: &Rig) {
    let [a, first] = rig.pair();
    let second = rig.messenger(1);
    let (events, seen) = (events(&a), Log::of(&a, 1));
    let both = [&first, &second];
    let mut lost: Option<Peer> = None;
    for round in 0..4_u8 {
        let speaks = both[usize::from(round) % 2];
        let all = [&a, &first, &second];
        // The end of its own earlier links may still be on its way.
        let peer = connect(speaks, &a);
        send(&all, &peer, 1, &[round]);
        until(&all, || seen.len() == 1);
        assert_eq!(seen.take(), [[round]]);
        if let Some(lost) = lost.replace(peer) {
            until(&all, || lost.lost().is_some());
            let why = lost.lost().unwrap();
            assert_eq!((why.kind(), why.peer()), (ErrorKind::PeerLost, Some(0)), "{why}");
        }
    }
    until(&[&a, &first, &second], || events.len() == 7);
    let [one, two] = both.map(|messenger| messenger.address().generation());
    let events = events.take();
    let of = |event: &str| {
        let of_event = events.iter().filter(|(what, ..)| *what == event);
        of_event.map(|(_, _, generation)| *generation).collect::<Vec<_>>()
    };
    assert_eq!(of("connected"), [one, two, one, two]);
    assert_eq!(of("gone"), [one, two, one]);
}

/// A messenger of the same rank comes back. The old handle stays dead, the old address leads nowhere, the new one works.
pub(super) fn another_generation(rig: &Rig) {
    let a = rig.messenger(0);
    let events = events(&a);
    let (seen, mut old) = (count(&a, 1), Vec::<(Peer, Address)>::new());
    for round in 1..=5_usize {
        let b = rig.messenger(1);
        let of_b = count(&b, 1);
        let back = connect(&b, &a);
        let peer = connect(&a, &b);
        assert_eq!(peer.generation(), b.address().generation());
        send(&[&a, &b], &peer, 1, b"to");
        send(&[&a, &b], &back, 1, b"fro");
        until(&[&a, &b], || seen.load(Ordering::Acquire) == round && of_b.load(Ordering::Acquire) == 1);
        // A refused address is tried for a second.
        if let Some((stale, address)) = old.last() {
            let error = stale.send(1, b"stale").unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(1)), "{error}");
            let error = a.connect(address, SOON).unwrap_err();
            // Another job may have the port by now, as another test has: its listener does not know this one's secret.
            let taken = error.kind() == ErrorKind::Authentication
                && error.message().contains("the listener could not prove the job's secret");
            assert!(taken || error.kind() == ErrorKind::PeerLost, "{error}");
            assert_eq!(error.peer(), Some(1), "{error}");
            assert!(*stale != connect(&a, &b));
        }
        old.push((peer, b.address().clone()));
        drop(b);
        if round % 2 == 0 {
            // Otherwise the next one connects before the goodbye of this one has been read.
            until(&[&a], || old[round - 1].0.lost().is_some());
        }
    }
    until(&[&a], || events.len() >= 10);
    let events = events.take();
    let expected =
        |(_, address): &(Peer, Address)| ["connected", "gone"].map(|what| (what, 1, address.generation()));
    assert!(events.iter().copied().eq(old.iter().flat_map(expected)), "{events:?}");
}

/// The same rank comes back while messages of its earlier life wait to be read: none of them comes after the news that this life
/// has ended, neither to a callback nor to a queue.
pub(super) fn nothing_follows_the_end(rig: &Rig) {
    let a = rig.messenger(0);
    let (log, queue) = (Log::new(), Arc::new(a.queue(2).unwrap()));
    let [came, took] = [log.clone(), log.clone()];
    // Messages that were read before the end may be queued, and stay.
    let queued = Log::new();
    let (counts, counted) = (queued.clone(), queue.clone());
    a.on_peer(move |event| match event {
        PeerEvent::Connected(peer) => came.add((peer.generation(), "connected")),
        PeerEvent::Gone(peer, _) => {
            counts.add(counted.len());
            came.add((peer.generation(), "gone"));
        }
        _ => {}
    })
    .unwrap();
    a.on(1, move |message| took.add((message.peer().generation(), "message"))).unwrap();
    let old = rig.messenger(1);
    let from_old = connect(&old, &a);
    for number in 0..50 {
        send(&[&old], &from_old, 1 + number % 2, b"of the old one");
    }
    let new = rig.messenger(1);
    let from_new = connect(&new, &a);
    let generation = new.address().generation();
    send(&[&new], &from_new, 1, b"of the new one");
    until(&[&a, &new], || log.len() >= 2 && log.last() == Some((generation, "message")));
    super::rig::settle(&[&a, &old, &new]);
    until(&[&a], || a.poll().unwrap() == 0);
    let before: Vec<_> = log.take().into_iter().filter(|(of, _)| *of != generation).collect();
    assert_eq!(before.last().map(|(_, what)| *what), Some("gone"), "{before:?}");
    assert_eq!(queued.take(), [queue.len()], "messages were queued after the end");
}

/// For each peer: connected once, then its messages, then gone once.
pub(super) fn events_in_order(rig: &Rig) {
    let hub = Arc::new(rig.messenger(0));
    let log = Log::new();
    let [peers, messages] = [log.clone(), log.clone()];
    hub.on_peer(move |event| match event {
        PeerEvent::Connected(peer) => peers.add((peer.rank(), "connected")),
        PeerEvent::Gone(peer, _) => peers.add((peer.rank(), "gone")),
        _ => {}
    })
    .unwrap();
    hub.on(1, move |message| messages.add((message.peer().rank(), "message"))).unwrap();
    let pollers = Pollers::start(&hub, 3);
    let next = AtomicU32::new(1);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let messenger = rig.messenger(next.fetch_add(1, Ordering::AcqRel));
                    let peer = connect(&messenger, &hub);
                    (0..20).for_each(|n| peer.send_within(1, &numbered(0, n, 8), SOON).unwrap());
                    messenger.close(SOON).unwrap();
                }
            });
        }
    });
    until(&[], || log.len() == 40 * 22);
    drop(pollers);
    let seen = log.take();
    for rank in 1..=40 {
        let mine: Vec<&str> = seen.iter().filter(|(of, _)| *of == rank).map(|(_, what)| *what).collect();
        let expected = [&["connected"][..], &["message"; 20], &["gone"]].concat();
        assert_eq!(mine, expected, "of rank {rank}");
    }
}

/// Ranks that have joined through a bootstrap reach each other by rank.
pub(super) fn joined_by_rank(rig: &Rig) {
    const RANKS: u32 = 4;
    let ranks = bootstrap::local(RANKS);
    let all: Vec<Messenger> = std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|bootstrap| scope.spawn(move || Messenger::join(&bootstrap, rig.config(), SOON).unwrap()))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let refs: Vec<&Messenger> = all.iter().collect();
    let seen: Vec<_> = all.iter().map(|messenger| count(messenger, 1)).collect();
    for (me, messenger) in (0..).zip(&all) {
        assert_eq!(messenger.address().rank(), me);
        for rank in (0..RANKS).filter(|rank| *rank != me) {
            let peer = messenger.peer(rank, SOON).unwrap();
            assert_eq!(peer.rank(), rank);
            send(&refs, &peer, 1, b"hello");
        }
        let error = messenger.peer(RANKS, SOON).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
        assert_eq!(messenger.peer(me, SOON).unwrap_err().kind(), ErrorKind::InvalidUsage);
    }
    until(&refs, || seen.iter().all(|seen| seen.load(Ordering::Acquire) == RANKS as usize - 1));
    // Any process that knows the secret may come later.
    let late = rig.messenger(RANKS);
    send(&[&late, &all[0]], &connect(&late, &all[0]), 1, b"late");
    until(&[&late, &all[0]], || seen[0].load(Ordering::Acquire) == RANKS as usize);
}

/// Threads that connect to one peer at once get the same one, over one link.
pub(super) fn connecting_from_many_threads(rig: &Rig) {
    let [a, b] = rig.pair();
    let events = events(&b);
    let begin = Barrier::new(8);
    let peers: Vec<Peer> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    begin.wait();
                    connect(&a, &b)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(peers.iter().all(|peer| *peer == peers[0]));
    drop(a);
    until(&[&b], || events.len() == 2);
    super::rig::settle(&[&b]);
    b.poll().unwrap();
    assert_eq!(events.len(), 2, "one peer came and went: {:?}", events.take());
}
