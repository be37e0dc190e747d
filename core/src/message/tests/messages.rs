//! Eager messages: order, sizes, back-pressure, callbacks.

use super::*;

#[test]
fn a_message_and_its_reply() {
    let (a, b) = (messenger(0), messenger(1));
    b.on(5, |message| assert_eq!(message.reply(6, message.bytes()).unwrap(), Sent::Done)).unwrap();
    let replies = a.queue(6).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    assert_eq!(peer.send(5, b"hello").unwrap(), Sent::Done);
    until(&[&a, &b], || !replies.is_empty());
    let reply = replies.try_recv().unwrap();
    assert_eq!((reply.bytes(), reply.kind(), reply.peer()), (&b"hello"[..], 6, &peer));
}

#[test]
fn messages_of_all_sizes_arrive_in_order() {
    let (a, b) = (messenger(0), messenger(1));
    let seen = Seen::new();
    let add = seen.adder();
    b.on(1, move |message| add(message.into_vec())).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    let limit = peer.eager_limit();
    let mut sizes = vec![0, 1, 7, 8, 39, 40, 41, 55, 56, 57, 495, 496, 497, 4095, 4096, limit - 1, limit];
    sizes.extend((0..3000).map(|n| n * 37 % (limit + 1)));
    let body = |n: usize| vec![n as u8; sizes[n]];
    let mut next = 0;
    until(&[&a, &b], || {
        while next < sizes.len() && peer.send(1, &body(next)).unwrap() == Sent::Done {
            next += 1;
        }
        seen.len() == sizes.len()
    });
    assert!(seen.take().iter().enumerate().all(|(n, bytes)| *bytes == body(n)));
    let error = peer.send(1, &vec![0; limit + 1]).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidUsage && error.message().contains("send_long"), "{error}");
}

#[test]
fn the_smaller_eager_limit_holds_on_both_sides() {
    let small = Messenger::new(0, config().with_eager_limit(100)).unwrap();
    let large = Messenger::new(1, config().with_eager_limit(MAX_EAGER)).unwrap();
    let events = Seen::new();
    let add = events.adder();
    large
        .on_peer(move |event| {
            if let PeerEvent::Connected(peer) = event {
                add(peer)
            }
        })
        .unwrap();
    assert_eq!(small.connect(large.address(), SOON).unwrap().eager_limit(), 100);
    until(&[&large], || events.len() == 1);
    assert_eq!(events.take()[0].eager_limit(), 100);
}

/// A receiver that dispatches nothing: its inbox, then the wire, then the sender's buffer fill up, and nothing is lost.
#[test]
fn a_slow_receiver_makes_its_sender_retry() {
    let a = messenger(0);
    let b = Messenger::new(1, config().with_inbox(10, 100_000)).unwrap();
    let seen = Seen::new();
    let add = seen.adder();
    b.on(1, move |message| add(u32::from_le_bytes(message.bytes()[..4].try_into().unwrap()))).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    let mut sent = 0_u32;
    let start = Instant::now();
    let mut full = 0;
    // Sockets grow their buffers for a while; after that there is no room for good.
    while full < 200 {
        let mut body = vec![0; 8000];
        body[..4].copy_from_slice(&sent.to_le_bytes());
        match peer.send(1, &body).unwrap() {
            Sent::Done => (sent, full) = (sent + 1, 0),
            Sent::Retry(reason) => {
                assert_eq!(reason, Reason::Full);
                full += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        a.progress().unwrap();
        b.progress().unwrap();
        assert!(start.elapsed() < SOON, "the sender is never held up");
    }
    assert_eq!(seen.len(), 0, "progress runs no callbacks");
    assert_eq!(b.dispatch(usize::MAX), 10, "ten messages wait at most; nobody asked for news of peers");
    until(&[&a, &b], || seen.len() == sent as usize);
    assert_eq!(seen.take(), (0..sent).collect::<Vec<_>>());
}

#[test]
fn polled_messages_hold_their_sender_up_as_well() {
    let a = messenger(0);
    let b = Messenger::new(1, config().with_inbox(10, 100_000)).unwrap();
    let queue = b.queue(1).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    for n in 0..10_u8 {
        assert_eq!(peer.send(1, &[n]).unwrap(), Sent::Done);
    }
    until(&[&a, &b], || queue.len() == 10);
    for _ in 0..100 {
        a.progress().unwrap();
        b.progress().unwrap();
        assert_eq!(peer.send(1, &[10]).unwrap(), Sent::Retry(Reason::Full));
    }
    assert_eq!(queue.len(), 10);
    let (mut seen, mut sent) = (Vec::new(), 10_u8);
    until(&[&a, &b], || {
        while sent < 100 && peer.send(1, &[sent]).unwrap() == Sent::Done {
            sent += 1;
        }
        seen.extend(std::iter::from_fn(|| queue.try_recv()).map(|message| message.bytes()[0]));
        seen.len() == 100
    });
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
}

#[test]
fn a_callback_that_panics_ends_nothing() {
    let a = messenger(0);
    let b = Messenger::new(1, config().with_inbox(10, 100_000)).unwrap();
    let seen = Seen::new();
    let add = seen.adder();
    b.on(1, move |message| {
        add(message.bytes()[0]);
        assert!(message.bytes()[0] % 2 == 0, "on purpose");
    })
    .unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    let mut sent = 0;
    // Each leaves the inbox: more panic than it holds.
    until(&[&a, &b], || {
        while sent < 30 && peer.send(1, &[sent]).unwrap() == Sent::Done {
            sent += 1;
        }
        seen.len() == 30
    });
    assert_eq!(seen.take(), (0..30).collect::<Vec<_>>());
}

#[test]
fn a_kind_that_nobody_knows_is_an_error_of_its_sender_once() {
    let (a, b) = (messenger(0), messenger(1));
    let seen = Seen::new();
    let add = seen.adder();
    b.on(1, move |message| add(message.into_vec())).unwrap();
    let again = b.on(1, |_| {}).unwrap_err();
    assert!(again.kind() == ErrorKind::InvalidUsage && again.message().contains("kind 1"), "{again}");
    assert_eq!(b.queue(1).unwrap_err().op(), "queue");
    let peer = a.connect(b.address(), SOON).unwrap();
    assert_eq!(peer.send(2, b"lost").unwrap(), Sent::Done);
    let mut error = None;
    until(&[&a, &b], || {
        error = peer.send(2, b"lost").err();
        error.is_some()
    });
    let error = error.unwrap();
    assert_eq!((error.kind(), error.peer()), (ErrorKind::Remote, Some(1)));
    assert!(error.message().contains("kind 2"), "{error}");
    // The loop above may have filled the link.
    until(&[&a, &b], || peer.send(1, b"heard").unwrap() == Sent::Done);
    until(&[&a, &b], || seen.len() == 1);
}

#[test]
fn threads_that_send_are_each_heard_in_their_order() {
    let (a, b) = (messenger(0), messenger(1));
    let seen = Seen::new();
    let add = seen.adder();
    b.on(1, move |message| add((message.bytes()[0], message.bytes()[1]))).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let peer = &peer;
            scope.spawn(move || (0..200).for_each(|n| peer.send_within(1, &[thread, n], SOON).unwrap()));
        }
        until(&[&a, &b], || seen.len() == 800);
    });
    let seen = seen.take();
    for thread in 0..4 {
        let own: Vec<u8> = seen.iter().filter(|(from, _)| *from == thread).map(|(_, n)| *n).collect();
        assert_eq!(own, (0..200).collect::<Vec<_>>(), "thread {thread}");
    }
}

/// Two threads dispatch: one is held up by a callback for rank 0, and messages of rank 2 go on. Those of each stay in order.
#[test]
fn a_slow_callback_holds_up_its_own_peer_only() {
    let (a, b, c) = (messenger(0), messenger(1), messenger(2));
    let (seen, gate) = (Seen::new(), Arc::new(Mutex::new(())));
    let (add, door) = (seen.adder(), gate.clone());
    b.on(1, move |message| {
        if message.peer().rank() == 0 {
            drop(lock(&door));
        }
        add((message.peer().rank(), message.bytes()[0]));
    })
    .unwrap();
    let [from_a, from_c] = [&a, &c].map(|messenger| messenger.connect(b.address(), SOON).unwrap());
    let closed = lock(&gate);
    for n in 0..50 {
        assert_eq!((from_a.send(1, &[n]).unwrap(), from_c.send(1, &[n]).unwrap()), (Sent::Done, Sent::Done));
    }
    std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(|| until(&[&b], || seen.len() >= 100)));
        until(&[&a, &c], || seen.len() == 50);
        assert!(lock(&seen.0).iter().all(|(rank, _)| *rank == 2), "rank 0 is held up");
        drop(closed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let seen = seen.take();
    for rank in [0, 2] {
        let own: Vec<u8> = seen.iter().filter(|(from, _)| *from == rank).map(|(_, n)| *n).collect();
        assert_eq!(own, (0..50).collect::<Vec<_>>(), "rank {rank}");
    }
}

/// The test does not poll: the messengers' threads serve messages, reads and deadlines, and end with their messengers.
#[test]
fn threads_of_messengers_do_all_of_it() {
    let (a, b) = (messenger(0), messenger(1));
    let (seen, reads) = (Seen::new(), Seen::new());
    let add = seen.adder();
    a.on(2, move |message| add(message.into_vec())).unwrap();
    b.on(1, |message| assert_eq!(message.reply(2, message.bytes()).unwrap(), Sent::Done)).unwrap();
    a.start_thread().unwrap();
    b.start_thread().unwrap();
    let exposed = b.expose(vec![5; 1 << 20]).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    let start = Instant::now();
    let wait = |done: &dyn Fn() -> bool| {
        while !done() {
            std::thread::sleep(Duration::from_millis(1));
            assert!(start.elapsed() < SOON, "not in time");
        }
    };
    for n in 0..100_u8 {
        peer.send_within(1, &[n], SOON).unwrap();
    }
    peer.read(&exposed.token(), 0, vec![0; 1 << 20], SOON, reads.adder()).unwrap().posted().unwrap();
    wait(&|| seen.len() == 100 && reads.len() == 1);
    assert!(
        seen.take().into_iter().flatten().eq(0..100) && reads.take().remove(0).unwrap() == vec![5; 1 << 20]
    );
    drop(b);
    wait(&|| peer.lost().is_some());
}

/// A poll dispatches its messages in the order in which the peer sent them, although they go past the inbox.
#[test]
fn a_completion_stays_between_the_messages_around_it() {
    let (a, b) = (messenger(0), messenger(1));
    let hello = b.queue(2).unwrap();
    let seen = Seen::new();
    let add = seen.adder();
    a.on(1, move |message| add(message.bytes()[0])).unwrap();
    let exposed = b.expose(vec![9; 8]).unwrap();
    let to_b = a.connect(b.address(), SOON).unwrap();
    to_b.send_within(2, b"", SOON).unwrap();
    until(&[&a, &b], || !hello.is_empty());
    let to_a = hello.try_recv().unwrap().peer().clone();
    let add = seen.adder();
    to_b.read(&exposed.token(), 0, vec![0; 8], SOON, move |read| add(read.unwrap()[0]))
        .unwrap()
        .posted()
        .unwrap();
    a.progress().unwrap();
    assert_eq!(to_a.send(1, &[1]).unwrap(), Sent::Done);
    for _ in 0..50 {
        b.poll().unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(to_a.send(1, &[2]).unwrap(), Sent::Done);
    until(&[&a, &b], || seen.len() == 3);
    assert_eq!(seen.take(), [1, 9, 2]);
}

/// Messages that a poll is about to dispatch count as waiting, so that other threads that read on keep to the limits.
#[test]
fn a_claimed_inbox_counts_what_waits_elsewhere() {
    use inbox::{Inbox, Item, Put};
    let limits = MessengerConfig::default().with_inbox(4, 100).with_eager_limit(10).limits;
    let item = || Item::Message(1, inbox::Bytes::EMPTY, None);
    let inbox = Inbox::default();
    let room = inbox.claim(10, &limits).unwrap();
    assert_eq!((room.messages, room.bytes), (4, 100));
    assert!(inbox.claim(10, &limits).is_none(), "claimed twice");
    inbox.count(2, 20);
    assert_eq!(inbox.put(10, &limits, item), Put::Taken);
    assert_eq!(inbox.put(10, &limits, item), Put::Full);
    // The fourth message is dispatched next, under the same claim; and the peer is told of three.
    let due = credit::Amount { messages: 3, bytes: 30 };
    assert_eq!(inbox.unclaim(3, 30, &limits), (Some(due), true));
    assert!(inbox.claim(10, &limits).is_none(), "claimed with something to dispatch");
    inbox.take(4, &mut std::collections::VecDeque::new());
    assert_eq!(inbox.unclaim(1, 10, &limits), (None, false));
    assert!(inbox.claim(101, &limits).is_none() && inbox.claim(100, &limits).is_some());
}
