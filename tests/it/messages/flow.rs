//! Many messages under way, and receivers that are slower than their senders: a bound on each side, and nothing lost.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use aqueduct::ErrorKind;
use aqueduct::message::{Messenger, Peer, Reason, Sent};

use super::rig::{Log, Pollers, Rig, SOON, connect, count, number_of, numbered, settle, until};

/// Sends until there is no room; returns how many were taken.
fn fill(peer: &Peer, kind: u16, first: u32, length: usize) -> u32 {
    let mut number = first;
    loop {
        match peer.send(kind, &numbered(0, number, length)).unwrap() {
            Sent::Done => number += 1,
            Sent::Retry(reason) => {
                assert_eq!(reason, Reason::Full);
                return number;
            }
        }
        assert!(number < 10_000_000, "whatever is sent is kept");
    }
}

fn small(rig: &Rig, rank: u32) -> Messenger {
    let config = rig.config().with_inbox(64, 64 << 10).with_send_buffer(64 << 10).with_peer_timeout(None);
    Messenger::new(rank, config).unwrap()
}

pub(super) fn thousands_outstanding(rig: &Rig) {
    let [a, b] = rig.pair();
    let log = Log::new();
    let into = log.clone();
    b.on(1, move |message| into.add(number_of(&message).1)).unwrap();
    let peer = connect(&a, &b);
    // The receiver makes progress and has not dispatched once.
    let mut sent = 0;
    until(&[], || {
        sent = fill(&peer, 1, sent, 8);
        settle(&[&a, &b]);
        sent >= 4000
    });
    until(&[&a, &b], || log.len() == sent as usize);
    assert!(log.take().into_iter().eq(0..sent));
}

/// The receiver makes progress and dispatches nothing. It takes a bounded number, and all arrive in the end.
pub(super) fn a_slow_receiver_holds_up_its_senders(rig: &Rig) {
    for length in [1000, 8192] {
        let [a, b] = [small(rig, 0), small(rig, 1)];
        let log = Log::new();
        let into = log.clone();
        b.on(1, move |message| into.add(number_of(&message).1)).unwrap();
        let peer = connect(&a, &b);
        let mut sent = 0;
        loop {
            let before = sent;
            sent = fill(&peer, 1, sent, length);
            settle(&[&a, &b]);
            if sent == before {
                break;
            }
        }
        // The two buffers, and what the system keeps for a socket.
        let bytes = sent as usize * length;
        assert!(bytes < 32 << 20, "{bytes} bytes were taken for a receiver that takes none");
        assert_eq!(log.len(), 0);
        let mut next = sent;
        until(&[&a, &b], || {
            // New ones queue behind the old ones.
            if next < sent + 100 && peer.send(1, &numbered(0, next, length)).unwrap() == Sent::Done {
                next += 1;
            }
            log.len() == sent as usize + 100
        });
        assert!(log.take().into_iter().eq(0..sent + 100), "{length} bytes");
    }
}

/// One receiver takes nothing; the sender's messages to the other one go on.
pub(super) fn a_full_peer_holds_up_nobody_else(rig: &Rig) {
    let [a, b, c] = [0, 1, 2].map(|rank| small(rig, rank));
    let (slow, fast) = (count(&b, 1), count(&c, 1));
    let [to_b, to_c] = [connect(&a, &b), connect(&a, &c)];
    let sent = fill(&to_b, 1, 0, 1000);
    for n in 0..2000 {
        until(&[&a, &c], || to_c.send(1, &numbered(0, n, 100)).unwrap() == Sent::Done);
    }
    until(&[&a, &c], || fast.load(Ordering::Acquire) == 2000);
    assert_eq!(slow.load(Ordering::Acquire), 0);
    until(&[&a, &b], || slow.load(Ordering::Acquire) == sent as usize);
}

/// A callback waits for an event; another thread goes on with the messages of other peers.
pub(super) fn a_slow_callback_holds_up_its_own_peer(rig: &Rig) {
    let [a, b] = rig.pair();
    let c = Arc::new(rig.messenger(2));
    let (inside, go_on) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (waits, first) = ([inside.clone(), go_on.clone()], AtomicBool::new(true));
    let (of_a, of_b) = (Arc::new(AtomicUsize::new(0)), count(&c, 2));
    let counted = of_a.clone();
    c.on(1, move |_| {
        if first.swap(false, Ordering::AcqRel) {
            for barrier in &waits {
                barrier.wait();
            }
        }
        counted.fetch_add(1, Ordering::AcqRel);
    })
    .unwrap();
    let [from_a, from_b] = [connect(&a, &c), connect(&b, &c)];
    let pollers = Pollers::start(&c, 2);
    for n in 0..10 {
        from_a.send_within(1, &numbered(0, n, 8), SOON).unwrap();
    }
    until(&[&a], || a.progress().unwrap() == 0);
    inside.wait();
    for n in 0..1000 {
        from_b.send_within(2, &numbered(1, n, 8), SOON).unwrap();
    }
    until(&[&a, &b], || of_b.load(Ordering::Acquire) == 1000);
    assert_eq!(
        of_a.load(Ordering::Acquire),
        0,
        "the next message of a peer waits for the callback before it"
    );
    go_on.wait();
    until(&[&a, &b], || of_a.load(Ordering::Acquire) == 10);
    drop(pollers);
}

/// Messages of a queue count until somebody takes them.
pub(super) fn polling_a_queue_makes_room(rig: &Rig) {
    let [a, b] = [small(rig, 0), small(rig, 1)];
    let queue = b.queue(1).unwrap();
    let peer = connect(&a, &b);
    let mut sent = fill(&peer, 1, 0, 1000);
    settle(&[&a, &b]);
    assert!((1..=66).contains(&queue.len()), "{} messages wait beyond the bound", queue.len());
    let (mut next, total) = (0, sent + 500);
    until(&[&a, &b], || {
        if sent < total && peer.send(1, &numbered(0, sent, 1000)).unwrap() == Sent::Done {
            sent += 1;
        }
        while let Some(message) = queue.try_recv() {
            assert_eq!(number_of(&message), (0, next));
            next += 1;
        }
        next == total
    });
    assert!(queue.is_empty());
}

pub(super) fn waiting_for_room_ends_at_the_deadline(rig: &Rig) {
    let [a, b] = [small(rig, 0), small(rig, 1)];
    let seen = count(&b, 1);
    let peer = connect(&a, &b);
    let mut sent = 0;
    let error = loop {
        match peer.send_within(1, &numbered(0, sent, 1000), Duration::from_millis(50)) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(peer.lost().is_none(), "a slow peer is no lost peer");
    until(&[&a, &b], || seen.load(Ordering::Acquire) == sent as usize);
    settle(&[&a, &b]);
    b.poll().unwrap();
    assert_eq!(seen.load(Ordering::Acquire), sent as usize, "the one that timed out was not sent");
}

/// A receiver that takes nothing for longer than the time after which a peer that acknowledges nothing counts as lost: its
/// system acknowledges, and it is slow, not lost.
pub(super) fn a_slow_receiver_is_not_lost(rig: &Rig) {
    let timeout = Duration::from_millis(1250);
    let [a, b] =
        [0, 1].map(|rank| Messenger::new(rank, rig.config().with_peer_timeout(Some(timeout))).unwrap());
    let seen = count(&b, 1);
    let peer = connect(&a, &b);
    let mut sent = 0;
    loop {
        let before = sent;
        sent = fill(&peer, 1, sent, 8000);
        settle(&[&a]);
        if sent == before {
            break;
        }
    }
    let until_then = Instant::now() + 4 * timeout;
    while Instant::now() < until_then {
        a.poll().unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    until(&[&a, &b], || {
        assert!(peer.lost().is_none(), "{:?}", peer.lost());
        seen.load(Ordering::Acquire) == sent as usize
    });
}

/// Both sides send as much as they can and dispatch in between: no deadlock with full buffers both ways.
pub(super) fn floods_both_ways(rig: &Rig) {
    let all = [small(rig, 0), small(rig, 1)];
    let seen = [count(&all[0], 1), count(&all[1], 1)];
    let peers = [connect(&all[0], &all[1]), connect(&all[1], &all[0])];
    let mut next = [0, 0];
    until(&[&all[0], &all[1]], || {
        for (peer, next) in peers.iter().zip(&mut next) {
            while *next < 3000 && peer.send(1, &numbered(0, *next, 2000)).unwrap() == Sent::Done {
                *next += 1;
            }
        }
        seen.iter().all(|seen| seen.load(Ordering::Acquire) == 3000)
    });
}
