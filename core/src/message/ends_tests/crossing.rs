//! Two messengers connect to each other at the same time, and one closes while a link is there at one end only.

use super::super::handshake::Handshake;
use super::*;
use crate::deadline::Deadline;

/// Two messengers, each with a link to the other that it has made itself. The link that the other one has made is there as soon as its
/// gate opens.
struct Crossing {
    a: Messenger,
    b: Messenger,
    gates: [Arc<AtomicBool>; 2],
    /// Of the link that `a` has made.
    faults: Arc<Faults>,
    to_b: Peer,
    to_a: Peer,
    log: Arc<Mutex<Vec<String>>>,
}

/// A messenger of `rank` that takes no connection before its gate opens; the links that it makes have the faults.
fn gated(rank: u32, shared_memory: bool, faults: &Arc<Faults>) -> (Messenger, Arc<AtomicBool>) {
    let (gate, faults, mut config) =
        (Arc::new(AtomicBool::new(false)), faults.clone(), config(shared_memory));
    let opened = gate.clone();
    config.wrap = Wrap(Some(Arc::new(move |inner| {
        if std::thread::current().name() != Some("aq-message") {
            return Box::new(Faulty::new(inner, faults.clone()));
        }
        let start = Instant::now();
        while !opened.load(Ordering::Acquire) && start.elapsed() < SOON {
            std::thread::yield_now();
        }
        inner
    })));
    (Messenger::new(rank, config).unwrap(), gate)
}

fn crossing(shared_memory: bool) -> Crossing {
    let faults = Arc::<Faults>::default();
    let (a, gate_a) = gated(0, shared_memory, &faults);
    let (b, gate_b) = gated(1, shared_memory, &Arc::default());
    let log = Arc::<Mutex<Vec<String>>>::default();
    let (events, messages) = (log.clone(), log.clone());
    let on_peer = move |event| {
        if let PeerEvent::Gone(_, why) = event {
            lock(&events).push(why.message().to_owned());
        }
    };
    b.on_peer(on_peer).unwrap();
    b.on(1, move |message| lock(&messages).push(format!("message {}", message.bytes()[0]))).unwrap();
    let to_b = a.connect(b.address(), SOON).unwrap();
    let to_a = b.connect(a.address(), SOON).unwrap();
    Crossing { a, b, gates: [gate_a, gate_b], faults, to_b, to_a, log }
}

fn open(gate: &AtomicBool, of: &Peer) {
    gate.store(true, Ordering::Release);
    until(&[], || of.member.lines().len() == 2);
}

fn send_three(peer: &Peer) {
    (0..3).for_each(|n| assert_eq!(peer.send(1, &[n]).unwrap(), Sent::Done));
}

/// All messages have come, and then the goodbye.
fn assert_all_came(log: &Mutex<Vec<String>>, b: &Messenger) {
    until(&[b], || lock(log).last().is_some_and(|last| !last.starts_with("message")));
    assert_eq!(*lock(log), ["message 0", "message 1", "message 2", "rank 0 was lost: it left"]);
}

/// The one that closes has answered a connection, and has no link of it yet.
#[test]
fn a_goodbye_is_said_on_links_that_the_other_side_has_already() {
    for shared_memory in [false, true] {
        let Crossing { a: _a, b, gates: [gate_a, gate_b], faults, to_b, to_a, log } = crossing(shared_memory);
        open(&gate_b, &to_a);
        Faults::set(&faults.holds);
        send_three(&to_b);
        std::thread::scope(|scope| {
            let closes = scope.spawn(|| to_b.close(SOON));
            // It has time to close too early.
            std::thread::sleep(Duration::from_millis(50));
            gate_a.store(true, Ordering::Release);
            // The one without messages ends first.
            let crossed = to_a.member.lines()[0].clone();
            until(&[&b], || crossed.wire().is_none());
            faults.holds.store(false, Ordering::Release);
            assert_all_came(&log, &b);
            closes.join().unwrap().unwrap();
        });
    }
}

/// The one that is left has answered a connection, and has no link of it yet.
#[test]
fn a_goodbye_does_not_end_links_that_are_just_being_made() {
    for shared_memory in [false, true] {
        let Crossing { a, b, gates: [gate_a, gate_b], to_b, to_a, log, .. } = crossing(shared_memory);
        open(&gate_a, &to_b);
        send_three(&to_b);
        a.close(SOON).unwrap();
        let crossed = to_a.member.lines()[0].clone();
        until(&[&b], || crossed.wire().is_none());
        std::thread::scope(|scope| {
            // Sleeps until the link is there, also if nothing comes on it.
            let waits = scope.spawn(|| assert_all_came(&log, &b));
            gate_b.store(true, Ordering::Release);
            waits.join().unwrap();
        });
    }
}

/// Nothing comes of a connection that was answered: the peer has left all the same, and a thread that sleeps learns of it.
#[test]
fn a_peer_that_has_left_is_gone_when_nothing_comes_of_its_connection() {
    let Crossing { a, b, gates: [gate_a, gate_b], to_b, log, .. } = crossing(false);
    open(&gate_a, &to_b);
    gate_b.store(true, Ordering::Release);
    let handshake = Handshake::begin(&b.core.engine.hub, 0, a.address().generation());
    a.close(SOON).unwrap();
    std::thread::scope(|scope| {
        let (b, log) = (&b, &log);
        let sleeps = scope.spawn(move || {
            while lock(log).is_empty() {
                if b.poll().unwrap() == 0 {
                    // It ends in time only if somebody wakes the thread.
                    b.wait(HOUR).unwrap();
                }
            }
        });
        let start = Instant::now();
        while !(lock(&b.core.engine.turn).leaving.len() == 1 && b.core.engine.hub.alarm.is_asleep()) {
            assert!(start.elapsed() < SOON, "not in time");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(lock(log).is_empty());
        drop(handshake);
        sleeps.join().unwrap();
        assert_eq!(*lock(log), ["rank 0 was lost: it left"]);
    });
}

/// Peers that take nothing hold up the one that closes, and nobody else.
#[test]
fn a_goodbye_waits_for_no_other_peer() {
    let faults = Arc::<Faults>::default();
    Faults::set(&faults.holds);
    let (a, gate) = gated(0, false, &faults);
    gate.store(true, Ordering::Release);
    let stuck: Vec<Messenger> = (1..4).map(|rank| Messenger::new(rank, config(false)).unwrap()).collect();
    let others: Vec<Messenger> = (4..8).map(|rank| Messenger::new(rank, config(false)).unwrap()).collect();
    let gone = Arc::new(AtomicUsize::new(0));
    for other in &others {
        let count = gone.clone();
        let on_peer = move |event| {
            if let PeerEvent::Gone(_, why) = event {
                assert!(why.message().ends_with("it left"), "{why}");
                count.fetch_add(1, Ordering::AcqRel);
            }
        };
        other.on_peer(on_peer).unwrap();
    }
    stuck.iter().for_each(|stuck| drop(a.connect(stuck.address(), SOON).unwrap()));
    // They connect, so that their links do not hold anything.
    let peers: Vec<Peer> = others.iter().map(|other| other.connect(a.address(), SOON).unwrap()).collect();
    std::thread::scope(|scope| {
        let closes = scope.spawn(|| a.close(2 * SOON));
        let all: Vec<&Messenger> = others.iter().collect();
        until(&all, || gone.load(Ordering::Acquire) == peers.len());
        faults.holds.store(false, Ordering::Release);
        closes.join().unwrap().unwrap();
    });
}

/// A peer that was answered and never says that it has connected takes half of the time of a close. What was sent to others still
/// arrives, here when three quarters have passed.
#[test]
fn a_peer_that_never_connects_leaves_time_to_the_others() {
    let Crossing { a, b, gates: [gate_a, gate_b], faults, to_b, log, .. } = crossing(false);
    open(&gate_a, &to_b);
    gate_b.store(true, Ordering::Release);
    Faults::set(&faults.holds);
    send_three(&to_b);
    let time = Duration::from_secs(4);
    let _never = Handshake::begin(&a.core.engine.hub, 9, 1);
    std::thread::scope(|scope| {
        let closes = scope.spawn(|| a.close(time));
        std::thread::sleep(time * 3 / 4);
        faults.holds.store(false, Ordering::Release);
        assert_all_came(&log, &b);
        closes.join().unwrap().unwrap();
    });
}

/// The handshake is with the peer that is closed, which may count on another link. What was sent to it still arrives.
#[test]
fn a_link_that_is_never_made_leaves_time_to_what_was_sent() {
    let Crossing { a, b, gates: [gate_a, gate_b], faults, to_b, log, .. } = crossing(false);
    open(&gate_a, &to_b);
    gate_b.store(true, Ordering::Release);
    Faults::set(&faults.holds);
    send_three(&to_b);
    let _never = Handshake::begin(&a.core.engine.hub, 1, b.address().generation());
    let deadline = Deadline::after(Duration::from_secs(6));
    std::thread::scope(|scope| {
        let closes = scope.spawn(|| to_b.close(deadline));
        until(&[], || to_b.member.end().is_some());
        assert!(!deadline.expired(), "it has waited for the link all the time");
        faults.holds.store(false, Ordering::Release);
        assert_all_came(&log, &b);
        closes.join().unwrap().unwrap();
    });
}

/// A peer that dies ends all of its links. The end of one is seen before what lies on the other.
#[test]
fn the_end_of_one_link_takes_nothing_from_the_other() {
    let Crossing { a, b, gates: [gate_a, gate_b], to_b, to_a, log, .. } = crossing(false);
    open(&gate_a, &to_b);
    open(&gate_b, &to_a);
    until(&[&b], || lock(&b.core.engine.turn).links.iter().count() == 2);
    send_three(&to_b);
    a.progress().unwrap();
    to_b.member.lines().iter().for_each(|line| line.wire().unwrap().close(true));
    until(&[&b], || lock(&log).last().is_some_and(|last| !last.starts_with("message")));
    let log = lock(&log).clone();
    assert_eq!(log[..log.len() - 1], ["message 0", "message 1", "message 2"]);
}
