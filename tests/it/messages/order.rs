//! Messages of one messenger to one peer are dispatched in the order in which their sends returned.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use aqueduct::message::{Messenger, Peer, Sent};

use super::rig::{Log, Pollers, Rig, SOON, connect, number_of, numbered, until};

/// Each sender's numbers rise by one from 0, and there are `each` of them.
fn in_order(seen: Vec<(u32, u32)>, senders: u32, each: u32) {
    let mut next = vec![0; senders as usize];
    for (sender, number) in seen {
        assert_eq!(number, next[sender as usize], "of sender {sender}");
        next[sender as usize] += 1;
    }
    assert_eq!(next, vec![each; senders as usize]);
}

fn log_numbers(messenger: &Messenger, kind: u16) -> Log<(u32, u32)> {
    let log = Log::new();
    let into = log.clone();
    messenger.on(kind, move |message| into.add(number_of(&message))).unwrap();
    log
}

/// Lengths that take every way through a backend.
fn length(number: u32) -> usize {
    [8, 40, 57, 300, 1000, 4096, 8192, 9][number as usize % 8]
}

pub(super) fn one_sender(rig: &Rig) {
    let [a, b] = rig.pair();
    let seen = log_numbers(&b, 1);
    let peer = connect(&a, &b);
    let mut next = 0;
    until(&[&a, &b], || {
        while next < 4000 && peer.send(1, &numbered(0, next, length(next))).unwrap() == Sent::Done {
            next += 1;
        }
        seen.len() == 4000
    });
    in_order(seen.take(), 1, 4000);
}

/// Threads send at once while others make progress.
pub(super) fn many_threads(rig: &Rig) {
    const THREADS: u32 = 8;
    const EACH: u32 = 1500;
    let [a, b] = rig.pair().map(Arc::new);
    let seen = log_numbers(&b, 1);
    let peer = connect(&a, &b);
    let pollers = [Pollers::start(&a, 1), Pollers::start(&b, 1)];
    let begin = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for sender in 0..THREADS {
            let (peer, begin) = (&peer, &begin);
            scope.spawn(move || {
                begin.wait();
                for number in 0..EACH {
                    peer.send_within(1, &numbered(sender, number, length(number)), SOON).unwrap();
                }
            });
        }
    });
    until(&[], || seen.len() == (THREADS * EACH) as usize);
    drop(pollers);
    in_order(seen.take(), THREADS, EACH);
}

/// Several threads dispatch: callbacks of one peer still come one after the other.
pub(super) fn many_dispatchers(rig: &Rig) {
    let [a, b] = rig.pair().map(Arc::new);
    let (log, inside, done) = (Log::new(), AtomicBool::new(false), Arc::new(AtomicUsize::new(0)));
    let (into, count) = (log.clone(), done.clone());
    b.on(1, move |message| {
        assert!(!inside.swap(true, Ordering::AcqRel), "two callbacks of one peer at once");
        into.add(number_of(&message));
        if message.bytes()[4] == 0 {
            std::thread::yield_now();
        }
        inside.store(false, Ordering::Release);
        count.fetch_add(1, Ordering::AcqRel);
    })
    .unwrap();
    let peer = connect(&a, &b);
    let pollers = Pollers::start(&b, 4);
    for number in 0..4000 {
        peer.send_within(1, &numbered(0, number, length(number)), SOON).unwrap();
    }
    until(&[&a], || done.load(Ordering::Acquire) == 4000);
    drop(pollers);
    in_order(log.take(), 1, 4000);
}

/// Both sides connect at the same moment and send at once: one peer each, and no message out of order.
pub(super) fn both_connect_at_once(rig: &Rig) {
    for round in 0..20 {
        let [a, b] = rig.pair().map(Arc::new);
        let seen = [log_numbers(&a, 1), log_numbers(&b, 1)];
        let begin = Barrier::new(2);
        let pollers = [Pollers::start(&a, 1), Pollers::start(&b, 1)];
        let talk = |from: &Messenger, to: &Messenger| -> Peer {
            begin.wait();
            let peer = connect(from, to);
            for number in 0..100 {
                peer.send_within(1, &numbered(0, number, length(number)), SOON).unwrap();
            }
            peer
        };
        let peers = std::thread::scope(|scope| {
            let other = scope.spawn(|| talk(&b, &a));
            [talk(&a, &b), other.join().unwrap()]
        });
        until(&[], || seen.iter().all(|seen| seen.len() == 100));
        assert_eq!(connect(&a, &b), peers[0], "round {round}");
        assert_eq!(connect(&b, &a), peers[1], "round {round}");
        drop(pollers);
        seen.into_iter().for_each(|seen| in_order(seen.take(), 1, 100));
    }
}

/// A star: everybody sends to everybody.
pub(super) fn many_peers(rig: &Rig) {
    const MEMBERS: u32 = 6;
    let all: Vec<Messenger> = (0..MEMBERS).map(|rank| rig.messenger(rank)).collect();
    let refs: Vec<&Messenger> = all.iter().collect();
    let logs: Vec<_> = all.iter().map(|messenger| log_numbers(messenger, 3)).collect();
    let mut ways = Vec::new();
    for from in &all {
        for to in all.iter().filter(|to| to.address() != from.address()) {
            ways.push((from.address().rank(), connect(from, to), 0));
        }
    }
    until(&refs, || {
        for (sender, peer, next) in &mut ways {
            while *next < 300 && peer.send(3, &numbered(*sender, *next, length(*next))).unwrap() == Sent::Done
            {
                *next += 1;
            }
        }
        logs.iter().all(|log| log.len() == 300 * (MEMBERS as usize - 1))
    });
    for (rank, log) in (0..).zip(&logs) {
        // Rank `rank` sends nothing to itself.
        let mut seen = log.take();
        seen.extend((0..300).map(|number| (rank, number)));
        in_order(seen, MEMBERS, 300);
    }
}
