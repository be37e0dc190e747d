//! Long data: offered with a message, read or refused by the receiver.

use super::*;

#[test]
fn the_receiver_reads_when_it_likes() {
    let (a, b) = (messenger(0), messenger(1));
    let offers = b.queue(1).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    let (sent, read) = (Seen::new(), Seen::new());
    let data: Vec<Vec<u8>> = [0, 1, 100_000, 5 << 20].map(|length| vec![length as u8 | 1; length]).to_vec();
    for data in &data {
        assert!(peer.send_long(1, b"head", data.clone(), SOON, sent.adder()).unwrap().is_posted());
    }
    until(&[&a, &b], || offers.len() == data.len());
    assert_eq!(sent.len(), 0, "nothing is delivered before it was read");
    for data in &data {
        let mut message = offers.try_recv().unwrap();
        assert_eq!(message.bytes(), b"head");
        let long = message.long().unwrap();
        assert!(message.long().is_none() && long.len() == data.len());
        long.read(vec![0; data.len()], SOON, read.adder()).unwrap().posted().unwrap();
    }
    until(&[&a, &b], || sent.len() == data.len());
    assert!(read.take().into_iter().map(Result::unwrap).eq(data));
    assert!(sent.take().into_iter().all(|outcome| outcome.unwrap() == Delivery::Delivered));
}

#[test]
fn what_is_dropped_or_not_understood_is_refused() {
    let (a, b) = (messenger(0), messenger(1));
    b.on(1, |mut message| drop(message.long())).unwrap();
    b.on(2, drop).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    let sent = Seen::new();
    for kind in [1, 2, 3] {
        assert!(peer.send_long(kind, b"", vec![1; 100], SOON, sent.adder()).unwrap().is_posted());
    }
    until(&[&a, &b], || sent.len() == 3);
    assert!(sent.take().into_iter().all(|outcome| outcome.unwrap() == Delivery::Refused));
}

#[test]
fn long_data_both_ways_at_once() {
    let (a, b) = (messenger(0), messenger(1));
    let (done, told) = (Seen::new(), Seen::new());
    for messenger in [&a, &b] {
        let add = done.adder();
        let add = Arc::new(add);
        let on = move |mut message: Message| {
            let long = message.long().unwrap();
            let (length, add) = (long.len(), add.clone());
            let completion =
                move |outcome: Result<Vec<u8>>| add(outcome.unwrap().iter().all(|byte| *byte == 9));
            long.read(vec![0; length], SOON, completion).unwrap().posted().unwrap();
        };
        messenger.on(1, on).unwrap();
    }
    let peers = [a.connect(b.address(), SOON).unwrap(), b.connect(a.address(), SOON).unwrap()];
    for _ in 0..4 {
        for peer in &peers {
            let data = vec![9; 3 << 20];
            let add = told.adder();
            assert!(peer.send_long(1, b"", data, SOON, move |end| add(end.is_ok())).unwrap().is_posted());
        }
    }
    until(&[&a, &b], || done.len() == 8 && told.len() == 8);
    assert_eq!((done.take(), told.take()), (vec![true; 8], vec![true; 8]));
}

#[test]
fn nobody_can_read_after_the_deadline() {
    let (a, b) = (messenger(0), messenger(1));
    let offers = b.queue(1).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    let (sent, read) = (Seen::new(), Seen::new());
    let soon = Duration::from_millis(10);
    assert!(peer.send_long(1, b"", vec![1; 100], soon, sent.adder()).unwrap().is_posted());
    until(&[&a, &b], || sent.len() == 1 && offers.len() == 1);
    assert_eq!(kinds(sent.take()), [Err(ErrorKind::Timeout)]);
    let long = offers.try_recv().unwrap().long().unwrap();
    long.read(vec![0; 100], SOON, read.adder()).unwrap().posted().unwrap();
    until(&[&a, &b], || read.len() == 1);
    assert_eq!(kinds(read.take()), [Err(ErrorKind::Remote)]);
    // The answer to it finds nobody, which is no error.
    assert!(peer.send_long(1, b"", vec![1; 100], SOON, sent.adder()).unwrap().is_posted());
    until(&[&a, &b], || offers.len() == 1);
    assert!(peer.lost().is_none());
}

#[test]
fn a_read_that_cannot_begin_leaves_the_offer_open() {
    let a = messenger(0);
    let b = Messenger::new(1, config().with_reads(1, 1)).unwrap();
    let offers = b.queue(1).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    let (sent, read) = (Seen::new(), Seen::new());
    for _ in 0..2 {
        assert!(peer.send_long(1, b"", vec![5; 100], SOON, sent.adder()).unwrap().is_posted());
    }
    until(&[&a, &b], || offers.len() == 2);
    let [first, second] = [(); 2].map(|()| offers.try_recv().unwrap().long().unwrap());
    first.read(vec![0; first.len()], SOON, read.adder()).unwrap().posted().unwrap();
    let Begun::Retry(refused) = second.read(vec![0; second.len()], SOON, read.adder()).unwrap() else {
        panic!("a second read")
    };
    assert_eq!((refused.reason, second.len()), (Reason::TooManyReads, 100));
    drop(first);
    until(&[&a, &b], || read.len() == 1);
    second.read(refused.data, SOON, refused.completion).unwrap().posted().unwrap();
    until(&[&a, &b], || read.len() == 2 && sent.len() == 2);
    assert!(read.take().into_iter().all(|bytes| bytes.unwrap() == [5; 100]));
    assert_eq!(kinds(sent.take()), [Ok(Delivery::Delivered), Ok(Delivery::Delivered)]);
}

/// A send that was refused for want of a place has to be told of the place that a deadline frees.
#[test]
fn an_offer_that_is_too_late_makes_room_for_another() {
    let (a, b) = (messenger(0), messenger(1));
    let _queue = b.queue(1).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    let ended = Seen::new();
    let send = |deadline: Duration| peer.send_long(1, b"", vec![1; 10], deadline, ended.adder()).unwrap();
    let most = a.core.engine.hub.limits.longs;
    for offer in 1..=most {
        let deadline = if offer == most { Duration::from_millis(50) } else { HOUR };
        until(&[&a, &b], || send(deadline).is_posted());
    }
    // Deadlines are looked at in `poll`, which nobody has called since.
    assert_eq!(send(HOUR).reason(), Some(Reason::TooManyLong));
    let (_, before) = a.core.engine.hub.news();
    until(&[&a, &b], || ended.len() == 1);
    let (_, after) = a.core.engine.hub.news();
    assert_eq!(after, before + 1, "whoever sleeps is not woken");
    assert_eq!(kinds(ended.take()), [Err(ErrorKind::Timeout)]);
    until(&[&a, &b], || send(HOUR).is_posted());
}

#[test]
fn what_was_taken_back_is_read_by_nobody() {
    let (a, b) = (messenger(0), messenger(1));
    let offers = b.queue(1).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    let (sent, read) = (Seen::new(), Seen::new());
    let send = || peer.send_long(1, b"head", vec![1; 100], SOON, sent.adder()).unwrap().posted().unwrap();
    let [first, second] = [(); 2].map(|()| send());
    assert!(first != second && first.cancel() && !first.cancel());
    assert_eq!(sent.len(), 0, "completions run in dispatch");
    until(&[&a, &b], || sent.len() == 1 && offers.len() == 2);
    assert_eq!(kinds(sent.take()), [Err(ErrorKind::Aborted)]);
    for _ in 0..2 {
        let mut message = offers.try_recv().unwrap();
        assert_eq!(message.bytes(), b"head");
        message.long().unwrap().read(vec![0; 100], SOON, read.adder()).unwrap().posted().unwrap();
    }
    until(&[&a, &b], || read.len() == 2 && sent.len() == 1);
    assert_eq!(kinds(read.take()), [Err(ErrorKind::Remote), Ok(vec![1; 100])]);
    assert_eq!(kinds(sent.take()), [Ok(Delivery::Delivered)]);
    assert!(!second.cancel(), "it was delivered");
    let third = send();
    a.close(SOON).unwrap();
    assert_eq!(kinds(sent.take()), [Err(ErrorKind::Stopped)]);
    assert!(!third.cancel());
}

/// As with one that is too late.
#[test]
fn an_offer_that_is_taken_back_makes_room_for_another() {
    let (a, b) = (messenger(0), messenger(1));
    let _queue = b.queue(1).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    let mut sent = Vec::new();
    while sent.len() < a.core.engine.hub.limits.longs {
        let mut send = || match peer.send_long(1, b"", vec![1; 10], HOUR, |_| {}).unwrap() {
            Begun::Posted(sending) => sent.push(sending),
            Begun::Retry(refused) => assert_eq!(refused.reason, Reason::Full),
        };
        send();
        a.poll().unwrap();
        b.poll().unwrap();
    }
    let refused = || peer.send_long(1, b"", vec![1; 10], HOUR, |_| {}).unwrap();
    assert_eq!(refused().reason(), Some(Reason::TooManyLong));
    let (_, before) = a.core.engine.hub.news();
    assert!(sent[7].cancel());
    let (_, after) = a.core.engine.hub.news();
    assert_eq!(after, before + 1, "whoever sleeps is not woken");
    until(&[&a, &b], || refused().is_posted());
}

/// The child has copies of the handles, and shares the descriptor that wakes the parent.
#[test]
fn a_forked_child_cancels_and_dispatches_nothing() {
    let (a, b) = (messenger(0), messenger(1));
    let (queue, called) = (b.queue(1).unwrap(), Seen::new());
    let add = called.adder();
    b.on(2, move |_| add(())).unwrap();
    let token = b.expose(vec![7; 10]).unwrap();
    let (to_b, sent, read) = (a.connect(b.address(), SOON).unwrap(), Seen::new(), Seen::new());
    let sending = to_b.send_long(1, b"", vec![1; 10], HOUR, sent.adder()).unwrap().posted().unwrap();
    let reading = to_b.read(&token.token(), 0, vec![0; 10], HOUR, read.adder()).unwrap().posted().unwrap();
    assert_eq!(to_b.send(1, b"x").unwrap(), Sent::Done);
    assert_eq!(to_b.send(2, b"x").unwrap(), Sent::Done);
    until(&[&a], || {
        b.progress().unwrap();
        queue.len() == 2 && b.core.engine.hub.has_ready()
    });
    // SAFETY: the child calls what does nothing there, and leaves with _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let cancelled = sending.cancel() || reading.cancel();
        let dispatched = b.dispatch(1) > 0 || queue.try_recv().is_some() || called.len() > 0;
        // SAFETY: _exit is async-signal-safe.
        unsafe { libc::_exit((cancelled || dispatched).into()) };
    }
    let mut status = -1;
    // SAFETY: `child` is ours and `status` is a live output.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    until(&[&a, &b], || read.len() == 1);
    assert!(sending.cancel());
}

/// Packets have the lower half of a message's number.
#[test]
fn numbers_that_start_over_name_one_message_each() {
    let (a, b) = (messenger(0), messenger(1));
    let offers = b.queue(1).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    let (sent, read) = (Seen::new(), Seen::new());
    let send = |byte| peer.send_long(1, b"", vec![byte; 9], HOUR, sent.adder()).unwrap().posted().unwrap();
    let first = send(1);
    first.skip(u64::from(u32::MAX));
    // The first has the number that would be next.
    let second = send(2);
    assert!(second.cancel());
    second.skip(u64::from(u32::MAX));
    // The lower half of the second's number again.
    let third = send(3);
    assert!(third != second && !second.cancel(), "it has ended");
    until(&[&a, &b], || offers.len() == 3 && sent.len() == 1);
    assert_eq!(kinds(sent.take()), [Err(ErrorKind::Aborted)]);
    let mut messages: Vec<_> = std::iter::from_fn(|| offers.try_recv()).collect();
    for message in [0, 2] {
        messages[message].long().unwrap().read(vec![0; 9], SOON, read.adder()).unwrap().posted().unwrap();
    }
    until(&[&a, &b], || read.len() == 2 && sent.len() == 2);
    assert_eq!(kinds(read.take()), [Ok(vec![1; 9]), Ok(vec![3; 9])]);
}

/// The first message is too late. Its receiver answers when another one has its number.
#[test]
fn a_late_answer_does_not_end_a_later_message_of_the_same_number() {
    let (a, b) = (messenger(0), messenger(1));
    let offers = b.queue(1).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    let sent = Seen::new();
    let send =
        |deadline| peer.send_long(1, b"", vec![3; 9], deadline, sent.adder()).unwrap().posted().unwrap();
    send(Duration::from_millis(1)).skip(u64::from(u32::MAX));
    until(&[&a, &b], || offers.len() == 1 && sent.len() == 1);
    send(HOUR);
    until(&[&a, &b], || offers.len() == 2);
    drop(offers.try_recv());
    // Behind the answer, which refuses.
    let told = a.queue(2).unwrap();
    let mut second = offers.try_recv().unwrap();
    assert_eq!(second.reply(2, b"").unwrap(), Sent::Done);
    until(&[&a, &b], || told.len() == 1);
    assert_eq!(kinds(sent.take()), [Err(ErrorKind::Timeout)], "the second is open");
    let read = Seen::new();
    second.long().unwrap().read(vec![0; 9], SOON, read.adder()).unwrap().posted().unwrap();
    until(&[&a, &b], || read.len() == 1 && sent.len() == 1);
    assert_eq!(
        (kinds(read.take()), kinds(sent.take())),
        (vec![Ok(vec![3; 9])], vec![Ok(Delivery::Delivered)])
    );
}

/// The end of one does not make the deadline of the other forgotten.
#[test]
fn messages_of_different_deadlines_end_one_after_the_other() {
    let (a, b) = (messenger(0), messenger(1));
    let _queue = b.queue(1).unwrap();
    let (peer, ended) = (a.connect(b.address(), SOON).unwrap(), Seen::new());
    for milliseconds in [200, 1, 400] {
        let deadline = Duration::from_millis(milliseconds);
        assert!(peer.send_long(1, b"", vec![1; 100], deadline, ended.adder()).unwrap().is_posted());
    }
    until(&[&a, &b], || ended.len() == 3);
    assert_eq!(kinds(ended.take()), vec![Err(ErrorKind::Timeout); 3]);
}

/// A poll dispatches the end of long data in its place, although messages go past the inbox.
#[test]
fn an_answer_to_long_data_stays_between_the_messages_around_it() {
    let (a, b) = (messenger(0), messenger(1));
    let offers = b.queue(2).unwrap();
    let seen = Seen::new();
    let add = seen.adder();
    a.on(1, move |message| add(message.bytes()[0])).unwrap();
    let (to_b, add) = (a.connect(b.address(), SOON).unwrap(), seen.adder());
    let sent = to_b.send_long(2, b"", vec![1; 8], SOON, move |outcome| {
        assert_eq!(outcome.unwrap(), Delivery::Refused);
        add(9);
    });
    assert!(sent.unwrap().is_posted());
    until(&[&a, &b], || !offers.is_empty());
    let offer = offers.try_recv().unwrap();
    let to_a = offer.peer().clone();
    a.progress().unwrap();
    assert_eq!(to_a.send(1, &[1]).unwrap(), Sent::Done);
    b.progress().unwrap();
    drop(offer);
    b.progress().unwrap();
    assert_eq!(to_a.send(1, &[2]).unwrap(), Sent::Done);
    b.progress().unwrap();
    until(&[&a, &b], || seen.len() == 3);
    assert_eq!(seen.take(), [1, 9, 2]);
}
