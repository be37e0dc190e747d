//! How peers end: calls that fail, handles that stay, and messengers that are closed.

use super::super::handshake::Handshake;
use super::*;

/// The messages that came before are dispatched, then the news with its reason.
fn assert_ended(pair: &Pair, messages: u8) {
    let why = pair.to_b.lost().expect("the peer has ended");
    assert!(why.kind() == ErrorKind::PeerLost && why.message().contains("damaged on purpose"), "{why}");
    until(&[&pair.a], || lock(&pair.log).len() > usize::from(messages));
    let mut log = lock(&pair.log).clone();
    let gone = log.pop().unwrap();
    assert!(gone.contains("damaged on purpose"), "{gone}");
    assert!(log.into_iter().eq((0..messages).map(|n| format!("message {n}"))));
}

#[test]
fn a_send_that_fails_ends_the_peer_at_once() {
    for shared_memory in [false, true] {
        let pair = pair(shared_memory);
        (0..3).for_each(|n| assert_eq!(pair.to_a.send(1, &[n]).unwrap(), Sent::Done));
        pair.b.progress().unwrap();
        Faults::set(&pair.faults.push);
        let error = pair.to_b.send(1, b"x").unwrap_err();
        assert!(error.kind() == ErrorKind::PeerLost && error.message().contains("damaged"), "{error}");
        assert_ended(&pair, 3);
        let long = pair.to_b.send_long(1, b"", vec![1], SOON, |_| panic!("it was refused"));
        assert_eq!(long.unwrap_err().kind(), ErrorKind::PeerLost);
    }
}

#[test]
fn a_long_message_or_a_request_that_fails_ends_the_peer_at_once() {
    let long = pair(true);
    Faults::set(&long.faults.push);
    let sent = long.to_b.send_long(1, b"", vec![1], SOON, |_| panic!("it was refused"));
    assert_eq!(sent.unwrap_err().kind(), ErrorKind::PeerLost);
    assert_ended(&long, 0);
    let read = pair(true);
    let exposed = read.b.expose(vec![1; 100]).unwrap();
    Faults::set(&read.faults.push);
    let asked = read.to_b.read(&exposed.token(), 0, vec![0; 100], SOON, |_| panic!("it was refused"));
    assert_eq!(asked.unwrap_err().kind(), ErrorKind::PeerLost);
    assert_ended(&read, 0);
}

/// Users may free the memory of what has ended: the wire, which could still bring or take something, is closed before.
#[test]
fn what_is_under_way_ends_after_its_wire() {
    for fails in [true, false] {
        let pair = pair(true);
        let line = pair.to_b.member.sender("test").unwrap();
        *lock(&pair.faults.line) = Arc::downgrade(line);
        let exposed = pair.b.expose(vec![1; 100]).unwrap();
        let ended = Arc::new(AtomicUsize::new(0));
        let (reads, sends) = (ended.clone(), ended.clone());
        let done =
            move |read: Result<Vec<u8>>| drop((read.unwrap_err(), reads.fetch_add(1, Ordering::AcqRel)));
        pair.to_b.read(&exposed.token(), 0, vec![0; 100], SOON, done).unwrap().posted().unwrap();
        let done =
            move |sent: Result<Delivery>| drop((sent.unwrap_err(), sends.fetch_add(1, Ordering::AcqRel)));
        assert!(pair.to_b.send_long(1, b"", vec![1], SOON, done).unwrap().is_posted());
        if fails {
            Faults::set(&pair.faults.push);
            assert_eq!(pair.to_b.send(1, b"x").unwrap_err().kind(), ErrorKind::PeerLost);
        } else {
            pair.to_b.close(SOON).unwrap();
        }
        assert_eq!(*lock(&pair.faults.under_way), [[true; 2]], "fails: {fails}");
        until(&[&pair.a], || ended.load(Ordering::Acquire) == 2);
    }
}

/// Only progress sends here: an answer to a read.
#[test]
fn progress_that_cannot_send_ends_the_peer() {
    let pair = pair(true);
    let exposed = pair.a.expose(vec![1; 100]).unwrap();
    let ended = Arc::<Mutex<Option<ErrorKind>>>::default();
    let outcome = ended.clone();
    let done = move |read: Result<Vec<u8>>| *lock(&outcome) = read.err().map(|error| error.kind());
    pair.to_a.read(&exposed.token(), 0, vec![0; 100], SOON, done).unwrap().posted().unwrap();
    Faults::set(&pair.faults.push);
    pair.a.progress().unwrap();
    assert_ended(&pair, 0);
    until(&[&pair.b], || *lock(&ended) == Some(ErrorKind::PeerLost));
}

/// Sends what is left in place of a thread that sleeps, fails, and leaves it to that thread to end the peer.
#[test]
fn a_sleeper_ends_a_peer_to_which_another_thread_could_not_send() {
    let pair = pair(false);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let start = Instant::now();
            while pair.to_b.lost().is_none() && start.elapsed() < SOON {
                pair.a.wait(SOON).unwrap();
                pair.a.poll().unwrap();
            }
        });
        let start = Instant::now();
        while !pair.a.core.engine.hub.alarm.is_asleep() && start.elapsed() < SOON {
            std::thread::yield_now();
        }
        Faults::set(&pair.faults.push);
        let line = pair.to_b.member.sender("test").unwrap();
        pair.to_b.member.tell(line, Operation::Cancel, 0, 7, &[]).unwrap();
        sleeper.join().unwrap();
    });
    assert_ended(&pair, 0);
}

#[test]
fn a_link_whose_check_fails_ends_the_peer() {
    let pair = pair(true);
    Faults::set(&pair.faults.check);
    // Looks now, instead of in a second.
    lock(&pair.a.core.engine.turn).checked = None;
    until(&[&pair.a], || pair.to_b.lost().is_some());
    assert_ended(&pair, 0);
}

/// Handles of peers that are gone keep neither their descriptors nor their places at the listener.
#[test]
fn handles_of_ended_peers_keep_nothing_open() {
    for shared_memory in [false, true] {
        let (a, kept) =
            (Messenger::new(0, config(shared_memory)).unwrap(), Arc::<Mutex<Vec<Peer>>>::default());
        let (queue, gone) = (a.queue(1).unwrap(), Arc::new(AtomicUsize::new(0)));
        let (peers, count) = (kept.clone(), gone.clone());
        let on_peer = move |event| match event {
            PeerEvent::Connected(peer) => lock(&peers).push(peer),
            PeerEvent::Gone(..) => {
                count.fetch_add(1, Ordering::AcqRel);
            }
        };
        a.on_peer(on_peer).unwrap();
        // More lives than one rank may have connections.
        for life in 1..=12 {
            let b = Messenger::new(1, config(shared_memory)).unwrap();
            let exposed = b.expose(SharedMemory::allocate(100).unwrap()).unwrap();
            b.connect(a.address(), SOON).unwrap().send_within(1, b"hello", SOON).unwrap();
            until(&[&a, &b], || queue.len() == life);
            let peer = lock(&kept).last().unwrap().clone();
            peer.read(&exposed.token(), 0, vec![0; 100], SOON, |bytes| drop(bytes.unwrap()))
                .unwrap()
                .posted()
                .unwrap();
            until(&[&a, &b], || lock(&peer.member.sender("test").unwrap().reads).is_empty());
            if life % 2 == 0 {
                // Without any progress.
                peer.close(SOON).unwrap();
            } else {
                drop((b, exposed));
                until(&[&a], || gone.load(Ordering::Acquire) + 1 > life / 2 && peer.lost().is_some());
            }
            let line = peer.member.sender("test").unwrap();
            assert!(line.wire().is_none(), "life {life} keeps its wire");
            let engine = &a.core.engine;
            assert!(lock(&engine.turn).links.is_empty() && lock(&engine.members).is_empty());
            assert_eq!(lock(&line.reads).mappings(), 0);
        }
        assert!(queue.len() == 12 && lock(&kept).iter().all(|peer| peer.lost().is_some()));
    }
}

/// A callback on the messenger's own thread closes that messenger.
#[test]
fn a_callback_may_close_its_own_messenger() {
    let pair = pair(true);
    let exposed = pair.b.expose(vec![1; 10]).unwrap();
    let (holder, runs) = (Arc::<Mutex<Option<Messenger>>>::default(), Arc::new(AtomicUsize::new(0)));
    let outcomes = Arc::<Mutex<Vec<Option<ErrorKind>>>>::default();
    let (inner, count, seen) = (holder.clone(), runs.clone(), outcomes.clone());
    let (peer, token) = (pair.to_b.clone(), exposed.token());
    let closes = move |_| {
        let seen = seen.clone();
        let done = move |read: Result<Vec<u8>>| lock(&seen).push(read.err().map(|error| error.kind()));
        count.fetch_add(1, Ordering::AcqRel);
        peer.read(&token, 0, vec![0; 10], SOON, done).unwrap().posted().unwrap();
        let messenger = lock(&inner).take().expect("the first message closes the messenger");
        messenger.close(SOON).unwrap();
    };
    pair.a.on(2, closes).unwrap();
    for _ in 0..3 {
        assert_eq!(pair.to_a.send(2, b"").unwrap(), Sent::Done);
    }
    let mut slot = lock(&holder);
    pair.a.start_thread().unwrap();
    *slot = Some(pair.a);
    drop(slot);
    let start = Instant::now();
    while lock(&outcomes).is_empty() {
        std::thread::sleep(Duration::from_millis(1));
        assert!(start.elapsed() < SOON, "the read has not ended");
    }
    until(&[&pair.b], || pair.to_a.lost().is_some());
    assert!(pair.to_a.lost().unwrap().message().contains("it left"));
    assert_eq!(*lock(&outcomes), [Some(ErrorKind::Stopped)]);
    assert_eq!(runs.load(Ordering::Acquire), 1, "no message is dispatched after close");
}

/// A link that cannot be watched, at its beginning or when it waits for room, ends its peer with the reason.
#[test]
fn a_link_that_cannot_be_watched_ends_the_peer() {
    let reason = |peer: &Peer| peer.lost().unwrap().message().to_owned();
    let pair = pair(false);
    let exposed = pair.a.expose(vec![1; 64 << 20]).unwrap();
    pair.to_a.read(&exposed.token(), 0, vec![0; 64 << 20], SOON, |_| {}).unwrap().posted().unwrap();
    while pair.a.progress().unwrap() > 0 || pair.faults.lent.load(Ordering::Acquire) == 0 {}
    Faults::set(&pair.faults.watch);
    assert!(pair.a.arm().unwrap(), "there is news");
    assert!(reason(&pair.to_b).contains("cannot watch"), "{}", reason(&pair.to_b));
    let again = pair.a.connect(pair.b.address(), SOON).unwrap();
    pair.a.progress().unwrap();
    assert!(reason(&again).contains("cannot watch"), "{}", reason(&again));
}

/// A messenger that was closed serves no links, although something still holds its parts.
#[test]
fn a_closed_messenger_keeps_no_links() {
    let pair = pair(true);
    let engine = pair.a.core.engine.clone();
    pair.a.close(SOON).unwrap();
    assert!(lock(&engine.turn).links.is_empty() && lock(&engine.members).is_empty());
    assert!(pair.to_b.member.sender("test").unwrap().wire().is_none());
}

/// Nobody looks between the beginning and the end of a peer: both are told, in this order.
#[test]
fn a_peer_that_comes_and_goes_between_two_turns_is_told_of_in_that_order() {
    let [a, b] = [0, 1].map(|rank| Messenger::new(rank, config(true)).unwrap());
    let log = Arc::<Mutex<Vec<&str>>>::default();
    let events = log.clone();
    let on_peer = move |event| {
        let event = if matches!(event, PeerEvent::Connected(_)) { "connected" } else { "gone" };
        lock(&events).push(event);
    };
    b.on_peer(on_peer).unwrap();
    let _to_b = a.connect(b.address(), SOON).unwrap();
    until(&[], || !lock(&b.core.engine.members).is_empty());
    let member = lock(&b.core.engine.members)[&0].clone();
    let engine = &b.core.engine;
    let mut turn = lock(&engine.turn);
    engine.lose(&mut turn, &member, &Error::peer_lost("test", 0, "lost on purpose"));
    engine.end_turn(turn);
    until(&[&b], || lock(&log).len() == 2);
    assert_eq!(*lock(&log), ["connected", "gone"]);
}

/// A peer that has closed and connected again is another one: what was under way with the earlier one ends, too.
#[test]
fn closing_ends_what_is_under_way_with_a_peer_that_has_connected_again() {
    for shared_memory in [false, true] {
        let Pair { a, b, to_b, to_a, .. } = pair(shared_memory);
        let exposed = b.expose(vec![1; 10]).unwrap();
        let ended = Arc::<Mutex<Option<ErrorKind>>>::default();
        let outcome = ended.clone();
        let done = move |read: Result<Vec<u8>>| *lock(&outcome) = read.err().map(|error| error.kind());
        to_b.read(&exposed.token(), 0, vec![0; 10], SOON, done).unwrap().posted().unwrap();
        to_a.close(SOON).unwrap();
        b.connect(a.address(), SOON).unwrap();
        // The service thread of `a` has its new link; nobody has looked at the earlier one.
        let is_other = || {
            let members = lock(&a.core.engine.members);
            members.get(&1).is_some_and(|member| !Arc::ptr_eq(member, &to_b.member))
        };
        until(&[], is_other);
        a.close(SOON).unwrap();
        assert_eq!(*lock(&ended), Some(ErrorKind::Stopped));
        assert!(to_b.lost().is_some());
    }
}

/// The earlier peer has left, and another link of it seems to be on its way, when the messenger closes.
#[test]
fn closing_ends_an_earlier_peer_that_has_left_while_a_link_is_made() {
    let Pair { a, b, faults, to_b, to_a, .. } = pair(false);
    Faults::set(&faults.holds);
    std::thread::scope(|scope| {
        let closes = scope.spawn(|| to_b.close(SOON));
        until(&[], || to_b.member.end().is_some());
        // In its next life: the goodbye of the one before is still on its way.
        a.connect(b.address(), SOON).unwrap();
        until(&[&b], || lock(&b.core.engine.turn).links.iter().count() == 2);
        assert!(to_a.lost().is_none());
        let handshake = Handshake::begin(&b.core.engine.hub, 0, a.address().generation());
        faults.holds.store(false, Ordering::Release);
        until(&[&b], || lock(&b.core.engine.turn).leaving.len() == 1);
        closes.join().unwrap().unwrap();
        drop(handshake);
    });
    assert!(to_a.lost().is_none(), "nobody has looked since");
    let engine = b.core.engine.clone();
    b.close(SOON).unwrap();
    assert!(to_a.lost().is_some());
    assert!(
        lock(&engine.turn).leaving.is_empty(),
        "it is kept as long as anything holds the messenger's parts"
    );
}

/// There is no room for the goodbye, and there never will be.
#[test]
fn closing_waits_for_no_room_at_a_process_that_has_gone() {
    let pair = pair(true);
    for length in [1000, 0] {
        while pair.to_b.send(1, &vec![0; length]).unwrap() == Sent::Done {}
    }
    pair.to_a.member.sender("test").unwrap().wire().unwrap().close(true);
    pair.to_b.close(Duration::from_millis(100)).unwrap();
}

/// Another thread makes progress, and lets the links go at the end of its turn.
#[test]
fn links_of_a_peer_that_is_closed_in_the_middle_of_a_turn_go_with_it() {
    let pair = pair(true);
    let engine = &pair.a.core.engine;
    let turn = lock(&engine.turn);
    pair.to_b.close(SOON).unwrap();
    assert_eq!(turn.links.iter().count(), 1);
    drop(turn);
    pair.a.progress().unwrap();
    assert_eq!(lock(&engine.turn).links.iter().count(), 0);
}

/// Neither can say goodbye before the other one has made room for it.
#[test]
fn two_sides_with_full_links_may_close_at_once() {
    let pair = pair(true);
    for peer in [&pair.to_a, &pair.to_b] {
        for length in [1000, 0] {
            while peer.send(1, &vec![0; length]).unwrap() == Sent::Done {}
        }
    }
    std::thread::scope(|scope| {
        let other = scope.spawn(|| pair.to_a.close(Duration::from_secs(5)));
        pair.to_b.close(Duration::from_secs(5)).unwrap();
        other.join().unwrap().unwrap();
    });
}
