//! Threads and event loops that wait, and the news that wakes them.

use std::os::fd::AsFd as _;

use super::*;
use crate::net::ready::wait_readable;

#[test]
fn what_is_waited_for_comes_or_the_deadline_does() {
    let (a, b) = (messenger(0), messenger(1));
    let queue = b.queue(1).unwrap();
    let error = b.wait_for(Duration::from_millis(50), || queue.try_recv()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert_eq!(b.wait_for(Duration::ZERO, || Some(3)).unwrap(), 3, "a value that is there needs no time");
    // Other threads may bring it about and wake nobody, so it looks often: not once a second, as the messenger does for itself.
    let mut looks = 0;
    let looked = b.wait_for(SOON, || {
        looks += 1;
        (looks == 40).then_some(())
    });
    assert!(looked.is_ok(), "only {looks} looks");
    let peer = a.connect(b.address(), SOON).unwrap();
    for with_a_thread in [false, true] {
        if with_a_thread {
            // It may take what would wake the one that waits.
            b.start_thread().unwrap();
        }
        for n in 0..20_u8 {
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| b.wait_for(SOON, || queue.try_recv()));
                peer.send_within(1, &[n], SOON).unwrap();
                until(&[&a], || waiting.is_finished());
                assert_eq!(waiting.join().unwrap().unwrap().bytes(), [n]);
            });
        }
    }
}

/// A program may have something else to do between two callbacks.
#[test]
fn no_more_callbacks_run_than_were_asked_for() {
    let (a, b) = (messenger(0), messenger(1));
    let seen = Seen::new();
    let add = seen.adder();
    b.on(1, move |message| add(message.bytes()[0])).unwrap();
    let to_b = a.connect(b.address(), SOON).unwrap();
    (0..5).for_each(|n| assert_eq!(to_b.send(1, &[n]).unwrap(), Sent::Done));
    let start = Instant::now();
    while seen.len() < 5 {
        a.progress().unwrap();
        b.progress().unwrap();
        let before = seen.len();
        b.dispatch(2);
        assert!(seen.len() - before <= 2);
        assert!(start.elapsed() < SOON, "not in time");
    }
}

/// Both sides sleep, and all that is sent meanwhile leaves without anybody's progress.
#[test]
fn whoever_sleeps_is_woken() {
    let (a, b) = (messenger(0), messenger(1));
    let (queue, answers) = (b.queue(1).unwrap(), a.queue(2).unwrap());
    let peer = a.connect(b.address(), SOON).unwrap();
    // The new link is something to wake for as well.
    until(&[&a, &b], || !lock(&b.core.engine.members).is_empty());
    let sleep = |messenger: &Messenger, queue: &Queue, count| {
        while queue.len() < count {
            // It ends in time only if somebody wakes the thread.
            messenger.wait(HOUR).unwrap();
            messenger.poll().unwrap();
        }
    };
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            sleep(&b, &queue, 5);
            assert_eq!(queue.try_recv().unwrap().reply(2, b"all").unwrap(), Sent::Done);
        });
        let sleeper = scope.spawn(|| sleep(&a, &answers, 1));
        std::thread::sleep(Duration::from_millis(50));
        (0..5).for_each(|_| assert_eq!(peer.send(1, b"x").unwrap(), Sent::Done));
        waiter.join().unwrap();
        sleeper.join().unwrap();
    });
    assert_eq!(answers.len(), 1);
}

#[test]
fn the_descriptor_tells_of_messages_once_armed() {
    use std::os::fd::AsFd as _;

    let (a, b) = (messenger(0), messenger(1));
    let queue = b.queue(1).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    let readable = |wait| wait_readable(b.as_fd(), Deadline::after(wait)).unwrap();
    // Until the link has been made here, too: that is an event as well.
    until(&[&b], || !lock(&b.core.engine.members).is_empty());
    let start = Instant::now();
    while b.arm().unwrap() || readable(Duration::from_millis(20)) {
        b.poll().unwrap();
        assert!(start.elapsed() < SOON, "never quiet");
    }
    assert_eq!(peer.send(1, b"x").unwrap(), Sent::Done);
    assert!(readable(SOON));
    until(&[&b], || queue.try_recv().is_some());
}

/// Nobody rings for what was sent while the reader was awake.
#[test]
fn a_reader_that_is_about_to_sleep_is_told_of_what_has_arrived_before() {
    let (a, b) = (messenger(0), messenger(1));
    let queue = b.queue(1).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    until(&[&a, &b], || lock(&b.core.engine.turn).polled.len() == 1);
    assert_eq!(peer.send(1, b"x").unwrap(), Sent::Done);
    a.progress().unwrap();
    // Over TCP it is the descriptor that tells.
    assert!(b.arm().unwrap() || wait_readable(b.as_fd(), Deadline::after(SOON)).unwrap());
    until(&[&b], || queue.len() == 1);
}

/// Otherwise a sleep, an event loop's, too, lasts until the next look at the links: usually a second later, here after an hour.
#[test]
fn a_sleep_ends_when_an_operation_is_too_late() {
    let (a, b) = (Messenger::new(0, config().with_checks_every(HOUR)).unwrap(), messenger(1));
    assert_eq!(a.next_deadline(), None, "without peers");
    let peer = a.connect(b.address(), SOON).unwrap();
    until(&[&a, &b], || !lock(&a.core.engine.turn).links.is_empty());
    // Before the next look at the links, whenever that is asked.
    let due = Deadline::after(Duration::from_millis(100));
    assert!(a.next_deadline().is_some_and(|look| due < look));
    let send = |due| assert!(peer.send_long(1, b"", vec![1; 100], due, |_| {}).unwrap().is_posted());
    send(Deadline::after(SOON));
    assert!(a.next_deadline().is_some_and(|look| due < look));
    send(due);
    assert_eq!(a.next_deadline(), Some(due));
    for sleep in 0..10 {
        assert!(a.wait(SOON).unwrap(), "sleep {sleep} went on past the operation's deadline");
    }
}

/// An operation that has more time than that does not put off the next look at the links.
#[test]
fn a_sleep_ends_when_links_are_looked_at() {
    let (a, b) = (messenger(0), messenger(1));
    let peer = a.connect(b.address(), SOON).unwrap();
    until(&[&a, &b], || !lock(&a.core.engine.turn).links.is_empty());
    assert!(peer.send_long(1, b"", vec![1; 100], Deadline::after(HOUR), |_| {}).unwrap().is_posted());
    assert!(a.next_deadline().is_some_and(|look| look < Deadline::after(Duration::from_secs(2))));
    assert!(a.wait(SOON).unwrap(), "it was not woken to look");
}

/// A reader that found its queue empty may be about to sleep when another thread's progress fills it, and nobody is woken then.
#[test]
fn a_message_that_another_thread_has_queued_keeps_a_reader_awake() {
    let (a, b) = (messenger(0), messenger(1));
    let queue = b.queue(1).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    let quiet = || {
        let start = Instant::now();
        while b.arm().unwrap() {
            b.poll().unwrap();
            assert!(start.elapsed() < SOON, "never quiet");
        }
    };
    until(&[&b], || !lock(&b.core.engine.members).is_empty());
    quiet();
    for count in 1..=2 {
        peer.send_within(1, b"x", SOON).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                until(&[&a, &b], || queue.len() == count);
                quiet();
            });
        });
        assert!(b.arm().unwrap(), "message {count} is not told");
        // Neither has a thread seen it that asks for the first time.
        std::thread::scope(|scope| assert!(scope.spawn(|| b.arm().unwrap()).join().unwrap()));
        // A reader that lets messages wait can sleep all the same.
        quiet();
        assert_eq!(queue.len(), count);
    }
}

/// An event loop sleeps while another thread makes progress, which takes what would wake it.
#[test]
fn an_event_loop_is_woken_for_what_another_thread_has_read() {
    let (a, b) = (messenger(0), messenger(1));
    let queue = b.queue(1).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    until(&[&a, &b], || !lock(&b.core.engine.members).is_empty());
    for count in 1..=3 {
        let start = Instant::now();
        while b.arm().unwrap() {
            b.poll().unwrap();
            assert!(start.elapsed() < SOON, "never quiet");
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Links that it polls tell nobody of what comes.
                (0..10).for_each(|_| assert!(b.progress().is_ok()));
                peer.send_within(1, b"x", SOON).unwrap();
                until(&[&a], || {
                    b.progress().unwrap();
                    queue.len() == count
                });
            });
        });
        assert!(wait_readable(b.as_fd(), Duration::ZERO.into()).unwrap(), "message {count} wakes nobody");
    }
}

/// Polls far apart look at the clock all the same.
#[test]
fn deadlines_are_kept_by_whoever_polls_rarely() {
    let (a, b) = (messenger(0), messenger(1));
    let exposed = b.expose(vec![1; 10]).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    until(&[&a, &b], || !lock(&a.core.engine.turn).links.is_empty());
    let seen = Seen::new();
    let read = peer.read(&exposed.token(), 0, vec![0; 10], Duration::from_millis(1), seen.adder()).unwrap();
    assert!(read.is_posted());
    let polls = (1..).find(|_| {
        std::thread::sleep(Duration::from_millis(2));
        a.poll().unwrap();
        seen.len() == 1
    });
    assert!(polls.unwrap() <= 40, "{polls:?} polls");
}

/// Whoever is woken may be late: by then another thread has looked, and must not have taken the event.
#[test]
fn a_thread_that_does_not_sleep_takes_no_wake_from_one_that_does() {
    let (a, b) = (messenger(0), messenger(1));
    let queue = b.queue(1).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    until(&[&a, &b], || !lock(&b.core.engine.members).is_empty());
    let alarm = &b.core.engine.hub.alarm;
    let sleeper = alarm.fall_asleep();
    peer.send_within(1, b"x", SOON).unwrap();
    until(&[&a, &b], || queue.len() == 1);
    // A look at all descriptors comes every so many rounds.
    for _ in 0..10_000 {
        b.poll().unwrap();
    }
    assert!(wait_readable(alarm.as_fd(), SOON.into()).unwrap(), "the wake was taken");
    alarm.awake(sleeper);
    assert!(!wait_readable(alarm.as_fd(), Duration::ZERO.into()).unwrap(), "nobody sleeps");
}

/// The one that sleeps has found no room for its message; the other one makes progress before it looks.
#[test]
fn room_that_one_thread_finds_wakes_another() {
    let a = messenger(0);
    let b = Messenger::new(1, config().with_inbox(10, 100_000)).unwrap();
    let queue = b.queue(1).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    until(&[&a, &b], || !lock(&b.core.engine.members).is_empty());
    let mut sent = 0;
    while peer.send(1, b"x").unwrap() == Sent::Done {
        sent += 1;
    }
    // Both sides have looked at everything so far.
    until(&[&a, &b], || queue.len() == sent);
    for _ in 0..10_000 {
        a.progress().unwrap();
        b.progress().unwrap();
    }
    let alarm = &a.core.engine.hub.alarm;
    let sleeper = alarm.fall_asleep();
    while queue.try_recv().is_some() {}
    until(&[&a, &b], || wait_readable(alarm.as_fd(), Duration::ZERO.into()).unwrap());
    alarm.awake(sleeper);
    assert_eq!(peer.send(1, b"x").unwrap(), Sent::Done);
}
