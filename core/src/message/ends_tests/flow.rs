//! Credit for messages, turns of serving, and sleep.

use super::*;

/// A peer that takes answers as fast as they are made gets a share of each turn, and a thread that serves it does not sleep.
#[test]
fn one_turn_serves_a_peer_a_bounded_share() {
    const LENGTH: usize = 64 << 20;
    let pair = pair(true);
    Faults::set(&pair.faults.swallows);
    let exposed = pair.a.expose(vec![1; LENGTH]).unwrap();
    pair.to_a.read(&exposed.token(), 0, vec![0; LENGTH], SOON, |_| {}).unwrap().posted().unwrap();
    let swallowed = || pair.faults.swallowed.load(Ordering::Acquire);
    let share = TURN as usize + (64 << 10);
    for turn in 1..=10 {
        assert!(pair.a.progress().unwrap() > 0, "there is more to do");
        assert!((1..=turn * share).contains(&swallowed()), "{} bytes in turn {turn}", swallowed());
    }
    let before = swallowed();
    assert!(pair.a.arm().unwrap(), "there is more to do");
    assert!(swallowed() <= before + share);
    let start = Instant::now();
    while swallowed() < LENGTH {
        pair.a.wait(SOON).unwrap();
        assert!(start.elapsed() < SOON, "not in time");
    }
}

/// A queue that its program has dropped keeps no place in the inbox, and later messages are answered as of an unknown kind.
#[test]
fn a_queue_that_was_dropped_holds_up_nobody() {
    let a = Messenger::new(0, config(true).with_inbox(10, 100_000)).unwrap();
    let b = Messenger::new(1, config(true)).unwrap();
    let (dropped, kept) = (a.queue(1).unwrap(), a.queue(2).unwrap());
    let peer = b.connect(a.address(), SOON).unwrap();
    for _ in 0..10 {
        assert_eq!(peer.send(1, b"x").unwrap(), Sent::Done);
    }
    until(&[&a, &b], || dropped.len() == 10);
    assert_eq!(peer.send(2, b"y").unwrap(), Sent::Retry(Reason::Full));
    drop(dropped);
    until(&[&a, &b], || peer.send(2, b"y").unwrap() == Sent::Done);
    until(&[&a, &b], || kept.len() == 1);
    let mut error = None;
    until(&[&a, &b], || {
        error = peer.send(1, b"x").err();
        error.is_some()
    });
    assert_eq!(error.unwrap().kind(), ErrorKind::Remote);
    assert_eq!(a.queue(1).unwrap().len(), 0, "what waited there is gone");
}

/// Messages of a peer's earlier life lie in a queue before those of the one that lives: its drop tells that one.
#[test]
fn a_living_peer_is_told_of_a_queue_that_is_dropped() {
    let [a, b] = [0, 1].map(|rank| Messenger::new(rank, config(true)).unwrap());
    let queue = a.queue(1).unwrap();
    let first = b.connect(a.address(), SOON).unwrap();
    first.send_within(1, b"of the first life", SOON).unwrap();
    until(&[&a, &b], || queue.len() == 1);
    let closing = std::thread::scope(|scope| {
        let closing = scope.spawn(|| first.close(SOON));
        until(&[&a], || closing.is_finished());
        closing.join().unwrap()
    });
    closing.unwrap();
    let second = b.connect(a.address(), SOON).unwrap();
    second.send_within(1, b"of the second", SOON).unwrap();
    until(&[&a, &b], || queue.len() == 2);
    drop(queue);
    // Messages that come now find somebody: only what was dropped can be told.
    let _queue = a.queue(1).unwrap();
    until(&[&a, &b], || second.send(1, b"later").is_err());
}

/// A full inbox holds up messages only: answers to this side's own reads come, and so do revocations and answers to long
/// messages.
#[test]
fn answers_pass_messages_that_wait() {
    for shared_memory in [false, true] {
        let a = Messenger::new(0, config(shared_memory).with_inbox(10, 100_000)).unwrap();
        let b = Messenger::new(1, config(shared_memory)).unwrap();
        let (queue, offers) = (a.queue(1).unwrap(), b.queue(2).unwrap());
        let (from_b, to_b) = (b.connect(a.address(), SOON).unwrap(), a.connect(b.address(), SOON).unwrap());
        let exposed = b.expose(vec![5; 3 << 20]).unwrap();
        let mut sent = 0_u8;
        while from_b.send(1, &[sent]).unwrap() == Sent::Done {
            sent += 1;
        }
        assert_eq!(sent, 10, "as many as the inbox holds");
        until(&[&a, &b], || queue.len() == 10);
        let outcomes = Arc::<Mutex<Vec<usize>>>::default();
        for round in 1..=3 {
            let seen = outcomes.clone();
            let done = move |read: Result<Vec<u8>>| lock(&seen).push(read.unwrap().len());
            to_b.read(&exposed.token(), 0, vec![0; 3 << 20], SOON, done).unwrap().posted().unwrap();
            let seen = outcomes.clone();
            let done = move |outcome: Result<Delivery>| {
                assert_eq!(outcome.unwrap(), Delivery::Refused);
                lock(&seen).push(0);
            };
            assert!(to_b.send_long(2, b"", vec![1; 10], SOON, done).unwrap().is_posted());
            until(&[&a, &b], || {
                drop(offers.try_recv());
                lock(&outcomes).len() == 2 * round
            });
            assert_eq!(queue.len(), 10, "no message came in between");
            assert_eq!(from_b.send(1, b"x").unwrap(), Sent::Retry(Reason::Full));
        }
        assert_eq!(lock(&outcomes).iter().sum::<usize>(), 9 << 20);
        // Half of the inbox is one grant of credit.
        (0..5).for_each(|n| assert_eq!(queue.try_recv().unwrap().bytes(), [n]));
        until(&[&a, &b], || from_b.send(1, b"y").unwrap() == Sent::Done);
        until(&[&a, &b], || queue.len() == 6);
    }
}

/// Messages of a kind that nothing is registered for use up no credit, and nor do those of which a send fails for lack of room.
#[test]
fn messages_that_are_not_kept_cost_nothing() {
    let a = Messenger::new(0, config(true).with_inbox(10, 100_000)).unwrap();
    let b = Messenger::new(1, config(true)).unwrap();
    let queue = a.queue(1).unwrap();
    let peer = b.connect(a.address(), SOON).unwrap();
    let mut sent = 0;
    until(&[&a, &b], || {
        // An error reports the unknown kind, once for each report.
        sent += usize::from(peer.send(7, b"nobody").is_ok_and(|sent| sent == Sent::Done));
        sent == 100
    });
    let mut known = 0_u8;
    until(&[&a, &b], || {
        known += u8::from(peer.send(1, &[known]).unwrap() == Sent::Done);
        known == 10
    });
    until(&[&a, &b], || queue.len() == 10);
}

/// A peer that closes its link and connects again begins with all of its credit, although the other side has dispatched nothing
/// of before, and the other side counts its own anew, too.
#[test]
fn a_new_link_begins_with_all_credit() {
    for shared_memory in [false, true] {
        let with_inbox = |rank| Messenger::new(rank, config(shared_memory).with_inbox(10, 100_000)).unwrap();
        let (a, b) = (with_inbox(0), with_inbox(1));
        let queues = [a.queue(1).unwrap(), b.queue(1).unwrap()];
        for life in 1..=5 {
            let peer = a.connect(b.address(), SOON).unwrap();
            for n in 0..10 {
                assert_eq!(peer.send(1, &[n]).unwrap(), Sent::Done, "life {life}");
            }
            assert_eq!(peer.send(1, b"x").unwrap(), Sent::Retry(Reason::Full));
            if life % 2 == 0 {
                until(&[&a, &b], || queues[1].len() == 10 * life);
                let back = b.connect(a.address(), SOON).unwrap();
                (0..10).for_each(|_| assert_eq!(back.send(1, b"back").unwrap(), Sent::Done));
                until(&[&a, &b], || queues[0].len() == 5 * life);
            }
            // The other side may learn of the end after the next link is there.
            peer.close(SOON).unwrap();
        }
        until(&[&a, &b], || queues[1].len() == 50);
        let generation = a.address().generation();
        until(&[&a, &b], || b.core.engine.hub.lives.life(0, generation) == 5);
    }
}

/// A peer closes its link and connects again before the other side looks: all of the earlier link comes first, and its end.
#[test]
fn an_earlier_link_ends_before_a_later_one_begins() {
    for shared_memory in [false, true] {
        let a = Messenger::new(0, config(shared_memory)).unwrap();
        let b = Messenger::new(1, config(shared_memory)).unwrap();
        let log = Arc::<Mutex<Vec<String>>>::default();
        let (events, messages) = (log.clone(), log.clone());
        let on_peer = move |event| {
            let text = match event {
                PeerEvent::Connected(_) => "connected".to_owned(),
                PeerEvent::Gone(_, why) => why.message().to_owned(),
            };
            lock(&events).push(text);
        };
        b.on_peer(on_peer).unwrap();
        b.on(1, move |message| lock(&messages).push(format!("message {}", message.bytes()[0]))).unwrap();
        let start = Instant::now();
        for life in 0..2 {
            let peer = a.connect(b.address(), SOON).unwrap();
            while lock(&b.core.engine.arrivals).len() <= usize::from(life) {
                // The service thread answers before it has made the link.
                assert!(start.elapsed() < SOON, "not in time");
                std::thread::yield_now();
            }
            assert_eq!(peer.send(1, &[life]).unwrap(), Sent::Done);
            peer.close(SOON).unwrap();
        }
        until(&[&b], || lock(&log).len() == 6);
        let log = lock(&log).clone();
        let left = "rank 0 was lost: it left";
        assert_eq!(log, ["connected", "message 0", left, "connected", "message 1", left]);
    }
}

/// A reader that reads nothing gets as much as the system takes, costs no turn, and is served again when there is room.
#[test]
fn a_reader_that_takes_nothing_holds_little_and_lets_others_sleep() {
    const LENGTH: usize = 64 << 20;
    let pair = pair(false);
    let exposed = pair.a.expose(vec![1; LENGTH]).unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let done = ended.clone();
    let read = move |bytes: Result<Vec<u8>>| done.store(bytes.is_ok(), Ordering::Release);
    pair.to_a.read(&exposed.token(), 0, vec![0; LENGTH], SOON, read).unwrap().posted().unwrap();
    let lent = || pair.faults.lent.load(Ordering::Acquire);
    let (start, mut quiet) = (Instant::now(), 0);
    // The system grows its buffers for a while.
    while quiet < 20 {
        let moved = pair.a.progress().unwrap();
        quiet = if moved == 0 && lent() > 0 { quiet + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(1));
        assert!(start.elapsed() < SOON, "a peer without room keeps a thread busy");
    }
    assert!(lent() < LENGTH / 2, "{} bytes wait", lent());
    let start = Instant::now();
    while pair.a.arm().unwrap() {
        pair.a.progress().unwrap();
        assert!(start.elapsed() < SOON, "never quiet");
    }
    let readable =
        |wait| crate::net::ready::wait_readable(pair.a.as_fd(), crate::Deadline::after(wait)).unwrap();
    while !readable(Duration::ZERO) {
        pair.b.poll().unwrap();
        assert!(start.elapsed() < SOON, "nothing tells of room");
    }
    until(&[&pair.a, &pair.b], || ended.load(Ordering::Acquire));
}

/// A thread that goes to sleep sends what was held back.
#[test]
fn nothing_stays_behind_when_a_thread_goes_to_sleep() {
    let pair = pair(false);
    let queue = pair.b.queue(1).unwrap();
    pair.a.progress().unwrap();
    for n in 0..3 {
        assert_eq!(pair.to_b.send(1, &[n]).unwrap(), Sent::Done);
    }
    pair.a.arm().unwrap();
    until(&[&pair.b], || queue.len() == 3);
}

/// A message above the receiver's limit ends the link, whatever the sender takes the limit for.
#[test]
fn a_message_above_the_limit_ends_the_link() {
    for shared_memory in [false, true] {
        let pair = pair(shared_memory);
        let limit = pair.to_a.eager_limit();
        let line = pair.to_a.member.sender("test").unwrap();
        assert!(line.push(Head::new(Operation::Message, 1, 0, limit), &vec![0; limit]).unwrap());
        line.kick().unwrap();
        until(&[&pair.a], || lock(&pair.log).len() == 1);
        assert!(pair.to_b.lost().is_none());
        assert!(line.push(Head::new(Operation::Message, 1, 0, limit + 1), &vec![0; limit + 1]).unwrap());
        line.kick().unwrap();
        until(&[&pair.a], || pair.to_b.lost().is_some());
    }
}

/// A peer that sends more than it has credit for breaks the protocol.
#[test]
fn more_messages_than_there_is_credit_for_end_the_link() {
    let a = Messenger::new(0, config(true).with_inbox(10, 100_000)).unwrap();
    let b = Messenger::new(1, config(true)).unwrap();
    let (queue, peer) = (a.queue(1).unwrap(), b.connect(a.address(), SOON).unwrap());
    let line = peer.member.sender("test").unwrap();
    for _ in 0..11 {
        assert!(line.push(Head::new(Operation::Message, 1, 0, 1), b"x").unwrap());
    }
    until(&[&a, &b], || peer.lost().is_some());
    assert_eq!(queue.len(), 10, "those that it had credit for");
    let peer = b.connect(a.address(), SOON).unwrap();
    let line = peer.member.sender("test").unwrap();
    let head = Head::new(Operation::Credit, 0, 0, 8);
    assert!(line.push(head, &credit::Amount { messages: 1, bytes: 0 }.encode()).unwrap());
    until(&[&a, &b], || peer.lost().is_some());
}

/// A thread begins an operation with a deadline while another one looks at those of the same peer.
#[test]
fn a_peer_is_listed_once_for_its_deadlines() {
    let Pair { a, b, to_b, .. } = pair(false);
    let exposed = b.expose(vec![1; 10]).unwrap();
    to_b.read(&exposed.token(), 0, vec![0; 10], SOON, |_| ()).unwrap().posted().unwrap();
    let (member, hub, mut listed) = (&to_b.member, &a.core.engine.hub, Vec::new());
    hub.take_timed(&mut listed);
    assert_eq!(listed.len(), 1);
    std::thread::scope(|scope| {
        let line = member.lines()[0].clone();
        let reads = lock(&line.reads);
        // Waits for the reads once it has begun.
        let looks = scope.spawn(|| member.expire());
        until(&[], || {
            member.mark_timed();
            hub.take_timed(&mut listed);
            listed.len() == 2
        });
        drop(reads);
        assert!(looks.join().unwrap().is_none(), "it stays in the list of the one that looked, too");
    });
}
