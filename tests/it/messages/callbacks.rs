//! Callbacks that send, poll and connect, and callbacks that panic.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use aqueduct::message::{Messenger, Peer, PeerEvent, Sent};

use super::rig::{Log, Pollers, Rig, connect, count, number_of, numbered, send, until};

/// Callbacks that answer callbacks, from many chains at once.
pub(super) fn that_send(rig: &Rig) {
    const CHAINS: u32 = 100;
    const HOPS: u32 = 50;
    let all = rig.pair();
    let ended = Arc::new(AtomicUsize::new(0));
    for messenger in &all {
        let ended = ended.clone();
        let bounce = move |message: aqueduct::message::Message| {
            let (chain, hop) = number_of(&message);
            if hop == HOPS {
                ended.fetch_add(1, Ordering::AcqRel);
            } else {
                assert_eq!(message.reply(1, &numbered(chain, hop + 1, 100)).unwrap(), Sent::Done);
            }
        };
        messenger.on(1, bounce).unwrap();
    }
    let peer = connect(&all[0], &all[1]);
    for chain in 0..CHAINS {
        send(&[&all[0], &all[1]], &peer, 1, &numbered(chain, 0, 100));
    }
    until(&[&all[0], &all[1]], || ended.load(Ordering::Acquire) == CHAINS as usize);
}

/// Each panic costs its own message only: those that follow come, also those of others, and the thread that dispatched lives.
pub(super) fn that_panic(rig: &Rig) {
    let [a, b] = rig.pair();
    let c = Arc::new(rig.messenger(2));
    let log = Log::new();
    let into = log.clone();
    c.on(1, move |message| {
        let (sender, number) = number_of(&message);
        assert!(sender != 0 || number % 3 != 0, "this callback panics on purpose");
        into.add((sender, number));
    })
    .unwrap();
    let peers = [connect(&a, &c), connect(&b, &c)];
    let pollers = Pollers::start(&c, 2);
    for number in 0..300 {
        for (sender, peer) in (0..).zip(&peers) {
            send(&[&a, &b], peer, 1, &numbered(sender, number, 60));
        }
    }
    until(&[&a, &b], || log.len() == 500);
    drop(pollers);
    let seen = log.take();
    for sender in 0..2 {
        let mine = seen.iter().filter(|(from, _)| *from == sender).map(|(_, number)| *number);
        assert!(mine.eq((0..300).filter(|number| sender != 0 || number % 3 != 0)), "of sender {sender}");
    }
    // A message whose callback panicked leaves the inbox: many more than it holds can follow.
    for number in 0..20_000 {
        send(&[&a, &c], &peers[0], 1, &numbered(0, number * 3, 8));
    }
    send(&[&a, &c], &peers[0], 1, &numbered(0, 1, 8));
    until(&[&a, &c], || log.len() == 1);
}

/// A callback that polls runs others of other peers meanwhile; those of its own peer wait for it.
pub(super) fn that_poll(rig: &Rig) {
    let [a, b] = rig.pair();
    let c = Arc::new(rig.messenger(2));
    let (log, inner) = (Log::new(), Arc::downgrade(&c));
    let into = log.clone();
    c.on(1, move |message| {
        let (sender, number) = number_of(&message);
        into.add((sender, number, "in"));
        if let Some(messenger) = inner.upgrade() {
            messenger.poll().unwrap();
        }
        into.add((sender, number, "out"));
    })
    .unwrap();
    let peers = [connect(&a, &c), connect(&b, &c)];
    for number in 0..200 {
        for (sender, peer) in (0..).zip(&peers) {
            send(&[&a, &b], peer, 1, &numbered(sender, number, 8));
        }
    }
    until(&[&a, &b, &c], || log.len() == 800);
    let seen = log.take();
    for of in 0..2 {
        let mine: Vec<_> = seen.iter().filter(|(sender, ..)| *sender == of).collect();
        for (number, pair) in (0..).zip(mine.chunks(2)) {
            assert_eq!(pair, [&(of, number, "in"), &(of, number, "out")]);
        }
    }
}

/// A callback connects to somebody who is told of in the message, and sends there.
pub(super) fn that_connect(rig: &Rig) {
    let [a, c] = [rig.messenger(0), rig.messenger(2)];
    let b = Arc::new(rig.messenger(1));
    let (seen, inner) = (Log::of(&c, 2), Arc::downgrade(&b));
    b.on(1, move |message| {
        let address = aqueduct::message::Address::from_bytes(message.bytes()).unwrap();
        let messenger = inner.upgrade().unwrap();
        let peer = messenger.connect(&address, super::rig::SOON).unwrap();
        assert_eq!(peer.send(2, b"introduced").unwrap(), Sent::Done);
    })
    .unwrap();
    let peer = connect(&a, &b);
    let all: [&Messenger; 3] = [&a, &b, &c];
    send(&all, &peer, 1, &c.address().to_bytes());
    until(&all, || seen.len() == 1);
    assert_eq!(seen.take(), [b"introduced"]);
}

/// Kinds that share bits are told apart.
pub(super) fn of_every_kind(rig: &Rig) {
    const KINDS: [u16; 8] = [0, 1, 255, 256, 257, 511, 0x0101 << 1, u16::MAX];
    let [a, b] = rig.pair();
    let log = Log::new();
    for kind in KINDS {
        let into = log.clone();
        b.on(kind, move |message| into.add((kind, message.kind(), message.bytes().to_vec()))).unwrap();
    }
    let peer = connect(&a, &b);
    for kind in KINDS {
        send(&[&a, &b], &peer, kind, &kind.to_le_bytes());
    }
    until(&[&a, &b], || log.len() == KINDS.len());
    let expected: Vec<_> = KINDS.iter().map(|kind| (*kind, *kind, kind.to_le_bytes().to_vec())).collect();
    assert_eq!(log.take(), expected);
}

/// `dispatch` runs as many callbacks as it is asked to, and no more.
pub(super) fn as_many_as_asked_for(rig: &Rig) {
    let [a, b] = rig.pair();
    let seen = count(&b, 1);
    let peer = connect(&a, &b);
    for number in 0..200 {
        send(&[&a], &peer, 1, &numbered(0, number, 8));
    }
    super::rig::settle(&[&a, &b]);
    let mut ran = 0;
    for most in [0, 1, 3, 64, 65, 3] {
        assert_eq!(b.dispatch(most), most);
        ran += most;
        assert_eq!(seen.load(Ordering::Acquire), ran);
    }
    assert_eq!(b.dispatch(usize::MAX), 200 - ran);
    assert_eq!((seen.load(Ordering::Acquire), b.dispatch(usize::MAX)), (200, 0));
}

/// With many threads at progress and dispatch, every message comes exactly once.
pub(super) fn once_per_message(rig: &Rig) {
    let [a, b] = rig.pair().map(Arc::new);
    let log = Log::<Peer>::new();
    let into = log.clone();
    b.on_peer(move |event| {
        if let PeerEvent::Connected(peer) = event {
            into.add(peer);
        }
    })
    .unwrap();
    let seen = count(&b, 1);
    let peer = connect(&a, &b);
    let pollers = [Pollers::start(&a, 2), Pollers::start(&b, 4)];
    for number in 0..20_000 {
        peer.send_within(1, &numbered(0, number, 8), super::rig::SOON).unwrap();
    }
    until(&[], || seen.load(Ordering::Acquire) >= 20_000);
    drop(pollers);
    super::rig::settle(&[&a, &b]);
    b.poll().unwrap();
    assert_eq!((seen.load(Ordering::Acquire), log.len()), (20_000, 1));
}
