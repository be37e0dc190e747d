//! Remote reads by token.

use super::*;
use crate::sync::{AtomicU64, Ordering};

/// The bytes that rank 1 exposes.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 7 + n / 251) as u8).collect()
}

#[test]
fn any_part_of_exposed_memory_is_read_in_order() {
    let (a, b) = (messenger(0), messenger(1));
    let bytes = pattern(3 << 20);
    let exposed = b.expose(bytes.clone()).unwrap();
    let token = exposed.token();
    let peer = a.connect(b.address(), SOON).unwrap();
    let mut ranges =
        vec![(0, 0), (0, 1), (5, 4095), (6, 4096), (7, 4097), (0, bytes.len()), (bytes.len(), 0)];
    ranges.extend([(1, (512 << 10) - 1), (2, 512 << 10), (3, (512 << 10) + 1), (bytes.len() - 9, 9)]);
    ranges.extend((0..500).map(|n| (n * 6007, n * 13 % 6000)));
    let seen = Seen::new();
    for (index, (offset, length)) in ranges.iter().copied().enumerate() {
        let add = seen.adder();
        peer.read(&token, offset as u64, vec![0; length], SOON, move |outcome| {
            add((index, outcome.unwrap()))
        })
        .unwrap()
        .posted()
        .unwrap();
    }
    until(&[&a, &b], || seen.len() == ranges.len());
    for (index, (number, read)) in seen.take().into_iter().enumerate() {
        let (offset, length) = ranges[index];
        assert!(
            number == index && read == bytes[offset..offset + length],
            "read {index} of {length} at {offset}"
        );
    }
}

/// Frames have the lower half of a read's number.
#[test]
fn a_handle_names_no_later_read_whose_number_starts_over() {
    let (a, b) = (messenger(0), messenger(1));
    let exposed = b.expose(pattern(100)).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    let seen = Seen::new();
    let read = || peer.read(&exposed.token(), 9, vec![0; 5], HOUR, seen.adder()).unwrap().posted().unwrap();
    let first = read();
    until(&[&a, &b], || seen.len() == 1);
    first.skip(u64::from(u32::MAX));
    let second = read();
    assert!(!first.cancel(), "it has ended");
    until(&[&a, &b], || seen.len() == 2);
    assert!(!second.cancel());
    assert_eq!(kinds(seen.take()), vec![Ok(pattern(14)[9..].to_vec()); 2]);
}

#[test]
fn what_may_not_be_read_is_an_error_of_the_reader() {
    let (a, b) = (messenger(0), messenger(1));
    let exposed = b.expose(pattern(100)).unwrap();
    let token = exposed.token();
    let peer = a.connect(b.address(), SOON).unwrap();
    let seen = Seen::new();
    let read = |token: &Token, offset, length| {
        let add = seen.adder();
        peer.read(token, offset, vec![0; length], SOON, add)
    };
    for (offset, length) in [(0, 101), (100, 1), (101, 0), (u64::MAX, 1)] {
        assert_eq!(read(&token, offset, length).unwrap_err().kind(), ErrorKind::InvalidUsage);
    }
    let own = a.expose(pattern(100)).unwrap();
    let error = read(&own.token(), 0, 1).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidUsage && error.message().contains("rank 1"), "{error}");
    let mut forged = token;
    forged.secret[15] ^= 1;
    let mut longer = token;
    longer.length = 200;
    let revoked = b.expose(pattern(10)).unwrap();
    let old = revoked.token();
    drop(revoked);
    read(&forged, 0, 10).unwrap().posted().unwrap();
    read(&longer, 50, 100).unwrap().posted().unwrap();
    read(&old, 0, 10).unwrap().posted().unwrap();
    read(&token, 90, 10).unwrap().posted().unwrap();
    until(&[&a, &b], || seen.len() == 4);
    let expected = [
        Err(ErrorKind::Authentication),
        Err(ErrorKind::InvalidUsage),
        Err(ErrorKind::Remote),
        Ok(pattern(100)[90..].to_vec()),
    ];
    assert_eq!(kinds(seen.take()), expected);
}

/// The owner makes no progress: the reads end early, and what comes for them later disturbs nothing.
#[test]
fn reads_end_early_by_their_deadline_or_when_they_are_cancelled() {
    let (a, b) = (messenger(0), messenger(1));
    let bytes = pattern(2 << 20);
    let exposed = b.expose(bytes.clone()).unwrap();
    let token = exposed.token();
    let peer = a.connect(b.address(), SOON).unwrap();
    let seen = Seen::new();
    let read = |name, deadline| {
        let add = seen.adder();
        peer.read(&token, 0, vec![0; 2 << 20], deadline, move |outcome| {
            add((name, outcome.map(|bytes| bytes.len())))
        })
        .unwrap()
        .posted()
    };
    let first = read("first", HOUR).unwrap();
    let _late = read("late", Duration::from_millis(20)).unwrap();
    let cancelled = read("cancelled", HOUR).unwrap();
    let _last = read("last", HOUR).unwrap();
    assert!(cancelled.cancel() && !cancelled.cancel());
    // The wait ends for the deadline of a read.
    while seen.len() < 2 {
        a.wait(HOUR).unwrap();
        a.poll().unwrap();
    }
    let early: Vec<_> =
        seen.take().into_iter().map(|(name, outcome)| (name, outcome.unwrap_err().kind())).collect();
    assert_eq!(early, [("cancelled", ErrorKind::Aborted), ("late", ErrorKind::Timeout)]);
    // The owner sends a part of the first one, which is then given up.
    b.poll().unwrap();
    a.poll().unwrap();
    let was_open = first.cancel();
    until(&[&a, &b], || seen.len() == 2);
    let rest: Vec<_> = seen.take().into_iter().map(|(name, outcome)| (name, outcome.ok())).collect();
    assert_eq!(rest, [("first", (!was_open).then_some(2 << 20)), ("last", Some(2 << 20))]);
}

#[test]
fn memory_that_is_revoked_meanwhile_ends_reads_of_it() {
    let (a, b) = (messenger(0), messenger(1));
    let exposed = b.expose(pattern(64 << 20)).unwrap();
    let token = exposed.token();
    let peer = a.connect(b.address(), SOON).unwrap();
    let seen = Seen::new();
    peer.read(&token, 0, vec![0; 64 << 20], SOON, seen.adder()).unwrap().posted().unwrap();
    for _ in 0..3 {
        a.poll().unwrap();
        b.poll().unwrap();
    }
    exposed.revoke();
    until(&[&a, &b], || seen.len() == 1);
    assert_eq!(seen.take().pop().unwrap().unwrap_err().kind(), ErrorKind::Remote);
}

/// A read too many gives back what it was given, and is tried again with that.
#[test]
fn there_are_only_so_many_reads() {
    let a = Messenger::new(0, config().with_reads(10, 3)).unwrap();
    let b = Messenger::new(1, config().with_reads(10, 2)).unwrap();
    let exposed = b.expose(pattern(100)).unwrap();
    let token = exposed.token();
    let peer = a.connect(b.address(), SOON).unwrap();
    let seen = Seen::new();
    let read = |into, completion| peer.read(&token, 0, into, SOON, completion).unwrap();
    for _ in 0..10 {
        assert!(read(vec![0; 100], seen.adder()).is_posted());
    }
    let into = vec![0; 100];
    let place = into.as_ptr();
    let Begun::Retry(refused) = read(into, seen.adder()) else { panic!("an eleventh read") };
    assert_eq!((refused.reason, refused.data.as_ptr()), (Reason::TooManyReads, place));
    until(&[&a, &b], || seen.len() == 10);
    assert!(read(refused.data, refused.completion).is_posted());
    until(&[&a, &b], || seen.len() == 11);
    assert!(seen.take().into_iter().all(|outcome| outcome.unwrap() == pattern(100)));
    let refused = Refused { reason: Reason::TooManyReads, data: (), completion: () };
    let error = Begun::<Read, _, _>::Retry(refused).posted().unwrap_err();
    assert!(error.kind() == ErrorKind::Exhausted && error.message().contains("with_reads"), "{error}");
}

/// Another thread makes progress, so that only the news of room ends the sleep of one whose read was refused. A read that ends makes room,
/// and so does one that is given up.
#[test]
fn whoever_was_refused_a_read_is_woken_when_there_is_room() {
    // The owner takes one request at a time in the end, so that the read which is given up was not asked for.
    for (depth, gives_up) in [(2, false), (2, true), (1, true)] {
        let a = Messenger::new(0, config().with_reads(2, 2).with_checks_every(HOUR)).unwrap();
        let b = Messenger::new(1, config().with_reads(2, depth)).unwrap();
        let exposed = b.expose(pattern(100)).unwrap();
        let peer = a.connect(b.address(), SOON).unwrap();
        until(&[&a, &b], || !lock(&b.core.engine.members).is_empty());
        let read = || peer.read(&exposed.token(), 0, vec![0; 100], SOON, |_| {}).unwrap();
        let news = || a.core.engine.hub.news().1;
        // Nobody answers the first ones meanwhile.
        let first = [(); 2].map(|()| read().posted().unwrap());
        let before = news();
        assert_eq!((read().reason(), news()), (Some(Reason::TooManyReads), before));
        if gives_up {
            assert!(first[1].cancel());
            assert!(depth > 1 || news() > before, "there is room at once");
        }
        until(&[&a, &b], || news() > before);
        assert!(read().is_posted());
        let before = news();
        until(&[&a, &b], || lock(&peer.member.sender("test").unwrap().reads).is_empty());
        assert_eq!(news(), before, "nobody was refused since");
    }
}

/// Long data is given back, too, with its completion.
#[test]
fn long_data_that_was_refused_is_sent_with_what_came_back() {
    let (a, b) = (messenger(0), messenger(1));
    let offers = b.queue(1).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    let (ended, mut begun) = (Seen::new(), Vec::new());
    let refused = loop {
        match peer.send_long(1, b"", vec![begun.len() as u8; 9], SOON, ended.adder()).unwrap() {
            Begun::Posted(sending) => begun.push(sending),
            Begun::Retry(refused) => break refused,
        }
    };
    let count = begun.len();
    until(&[&a, &b], || !offers.is_empty());
    (0..offers.len()).for_each(|_| drop(offers.try_recv()));
    until(&[&a, &b], || ended.len() > 0);
    let Refused { mut data, mut completion, .. } = refused;
    loop {
        match peer.send_long(1, b"again", data, SOON, completion).unwrap() {
            Begun::Posted(_) => break,
            Begun::Retry(refused) => Refused { data, completion, .. } = refused,
        }
        a.poll().unwrap();
        b.poll().unwrap();
        drop(offers.try_recv());
    }
    let read = Seen::new();
    until(&[&a, &b], || {
        while let Some(mut message) = offers.try_recv() {
            if message.bytes() == b"again" {
                let long = message.long().unwrap();
                long.read(vec![0; 9], SOON, read.adder()).unwrap().posted().unwrap();
            }
        }
        ended.len() == count + 1
    });
    assert_eq!(kinds(read.take()), [Ok(vec![count as u8; 9])]);
    assert_eq!(ended.take().into_iter().filter(|end| matches!(end, Ok(Delivery::Delivered))).count(), 1);
}

#[test]
fn messages_pass_between_the_pieces_of_a_large_read() {
    let (a, b) = (messenger(0), messenger(1));
    let bytes = pattern(64 << 20);
    let exposed = b.expose(bytes.clone()).unwrap();
    let (order, queue) = (Seen::new(), a.queue(1).unwrap());
    let arrived = Seen::new();
    let add = arrived.adder();
    b.on_peer(move |event| {
        if let PeerEvent::Connected(peer) = event {
            add(peer)
        }
    })
    .unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    until(&[&b], || arrived.len() == 1);
    let back = arrived.take().remove(0);
    let add = order.adder();
    let read = move |outcome: Result<Vec<u8>>| add(outcome.unwrap() == bytes);
    peer.read(&exposed.token(), 0, vec![0; 64 << 20], SOON, read).unwrap().posted().unwrap();
    for _ in 0..3 {
        a.poll().unwrap();
        b.poll().unwrap();
    }
    assert_eq!(back.send(1, b"short").unwrap(), Sent::Done);
    until(&[&a, &b], || !queue.is_empty());
    assert_eq!(order.len(), 0, "the message did not wait for the whole read");
    until(&[&a, &b], || order.len() == 1);
    assert_eq!(order.take(), [true]);
}

/// Reads end at their deadlines in one thread while another one sleeps, in whose place the first one sends.
#[test]
fn late_reads_end_while_another_thread_sleeps() {
    const READS: u64 = 10;
    let (a, b) = (Arc::new(messenger(0)), messenger(1));
    let exposed = b.expose(pattern(100)).unwrap();
    let peer = a.connect(b.address(), SOON).unwrap();
    let ended = Arc::new(AtomicU64::new(0));
    for n in 0..READS {
        let (told, patience) = (ended.clone(), Duration::from_millis(50 + 20 * n));
        let count = move |outcome: Result<Vec<u8>>| {
            assert!(outcome.is_err());
            told.fetch_add(1, Ordering::SeqCst);
        };
        peer.read(&exposed.token(), 0, vec![0; 100], patience, count).unwrap().posted().unwrap();
    }
    let until = Instant::now() + SOON;
    // Not joined: a thread that waits for itself would never come back.
    for polls in [false, true] {
        let (a, ended) = (a.clone(), ended.clone());
        std::thread::spawn(move || {
            while ended.load(Ordering::SeqCst) < READS && Instant::now() < until {
                let _ = if polls { a.poll() } else { a.wait(Duration::from_millis(20)).map(|_| 0) };
            }
        });
    }
    while ended.load(Ordering::SeqCst) < READS {
        assert!(Instant::now() < until, "{ended:?} of {READS} reads have ended");
        std::thread::sleep(Duration::from_millis(5));
    }
}
