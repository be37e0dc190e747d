//! Long data: offered with a message, and read or refused by its receiver.

use std::sync::Arc;
use std::time::Duration;

use aqueduct::message::{Begun, Delivery, Message, Messenger, Reason};
use aqueduct::{ErrorKind, Result};
use aqueduct_tests::paint;

use super::rig::{Log, Rig, SOON, connect, until};

/// Takes every offer of kind 1, and logs what has come.
fn take_all(messenger: &Messenger) -> Log<Vec<u8>> {
    let log = Log::new();
    let into = log.clone();
    messenger
        .on(1, move |mut message: Message| {
            let (long, into) = (message.long().expect("an offer"), into.clone());
            let length = long.len();
            long.read(vec![0; length], SOON, move |bytes| into.add(bytes.unwrap()))
                .unwrap()
                .posted()
                .unwrap();
        })
        .unwrap();
    log
}

/// Both sides offer and take at once, data of many sizes.
pub(super) fn both_ways_at_once(rig: &Rig) {
    let all = rig.pair();
    let logs = [take_all(&all[0]), take_all(&all[1])];
    let peers = [connect(&all[1], &all[0]), connect(&all[0], &all[1])];
    let sizes = [0, 1, 100, 8191, 8192, 8193, 100_000, 512 << 10, (3 << 20) + 1];
    let delivered: Log<Result<Delivery>> = Log::new();
    let mut next = [0, 0];
    until(&[&all[0], &all[1]], || {
        for (peer, next) in peers.iter().zip(&mut next) {
            while *next < 3 * sizes.len() {
                let (data, log) = (paint(sizes[*next % sizes.len()], *next), delivered.clone());
                match peer.send_long(1, b"head", data, SOON, move |outcome| log.add(outcome)).unwrap() {
                    Begun::Posted(_) => *next += 1,
                    Begun::Retry(_) => break,
                }
            }
        }
        delivered.len() == 6 * sizes.len()
    });
    assert!(delivered.take().into_iter().all(|outcome| matches!(outcome, Ok(Delivery::Delivered))));
    for log in logs {
        let expected = (0..3 * sizes.len()).map(|n| paint(sizes[n % sizes.len()], n));
        assert!(log.take().into_iter().eq(expected));
    }
}

/// Reads and long data are begun and end while other threads fall asleep, all of the time.
pub(super) fn while_other_threads_sleep(rig: &Rig) {
    const COUNT: usize = 5000;
    let all = rig.pair();
    for messenger in &all {
        messenger.on(1, |mut message| drop(message.long())).unwrap();
        messenger.start_thread().unwrap();
    }
    let exposed = all[1].expose(paint(100, 1)).unwrap();
    let (peer, token) = (connect(&all[0], &all[1]), exposed.token());
    let (answers, reads) = (Log::new(), Log::new());
    for number in 0..COUNT {
        let log = reads.clone();
        until(&[], || reads.len() + 50 > number && answers.len() + 50 > number);
        peer.read(&token, 0, vec![0; 100], SOON, move |bytes| log.add(bytes.is_ok()))
            .unwrap()
            .posted()
            .unwrap();
        let sent = || {
            let log = answers.clone();
            peer.send_long(1, b"", vec![1; 100], SOON, move |outcome| log.add(outcome.unwrap())).unwrap()
        };
        until(&[], || sent().is_posted());
    }
    until(&[], || answers.len() == COUNT && reads.len() == COUNT);
    assert!(answers.take().into_iter().all(|delivery| delivery == Delivery::Refused));
    assert!(reads.take().into_iter().all(|right| right));
}

/// Long data that its receiver drops or refuses, or for whose kind it has no callback.
pub(super) fn refused(rig: &Rig) {
    let [a, b] = rig.pair();
    b.on(1, drop).unwrap();
    b.on(2, |mut message| message.long().unwrap().refuse()).unwrap();
    b.on(4, |_| panic!("this callback panics on purpose")).unwrap();
    let (peer, log) = (connect(&a, &b), Log::new());
    for kind in 1..=4 {
        let log = log.clone();
        let sent = peer.send_long(kind, b"", paint(1 << 20, 1), SOON, move |outcome| log.add(outcome));
        assert!(sent.unwrap().is_posted());
    }
    until(&[&a, &b], || log.len() == 4);
    assert!(log.take().into_iter().all(|outcome| outcome.unwrap() == Delivery::Refused));
}

/// A receiver that wants the data and does not get it has not got it: its sender is told so. After that, nobody can read the data.
pub(super) fn a_read_that_fails_delivers_nothing(rig: &Rig) {
    let [a, b] = rig.pair();
    let (queue, peer, data) = (b.queue(1).unwrap(), connect(&a, &b), Arc::new(paint(1 << 20, 1)));
    let (sent, read) = (Log::new(), Log::new());
    let done = sent.clone();
    assert!(
        peer.send_long(1, b"", data.clone(), SOON, move |outcome| done.add(outcome)).unwrap().is_posted()
    );
    until(&[&a, &b], || queue.len() == 1);
    assert_eq!(Arc::strong_count(&data), 2);
    let (long, done) = (queue.try_recv().unwrap().long().unwrap(), read.clone());
    let late = long.read(vec![0; 1 << 20], Duration::ZERO, move |outcome| done.add(outcome));
    until(&[&b], || read.len() == 1);
    until(&[&a, &b], || sent.len() == 1);
    assert_eq!(read.take().remove(0).unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(sent.take().remove(0).unwrap(), Delivery::Refused);
    drop(late);
    super::rig::settle(&[&a, &b]);
    assert_eq!(Arc::strong_count(&data), 1, "the data is kept after its end");
}

/// Beyond the limit there is no room until one has ended.
pub(super) fn only_so_many(rig: &Rig) {
    let [a, b] = rig.sleepers();
    let (queue, peer, log) = (b.queue(1).unwrap(), connect(&a, &b), Log::new());
    let send = || {
        let log = log.clone();
        peer.send_long(1, b"", vec![1; 10], SOON, move |outcome| log.add(outcome.is_ok())).unwrap()
    };
    for _ in 0..1024 {
        until(&[&a, &b], || send().is_posted());
    }
    // This thread is told of all that was.
    while a.wait(Duration::from_millis(1)).unwrap() {
        a.poll().unwrap();
    }
    assert_eq!(send().reason(), Some(Reason::TooManyLong));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until(&[&a, &b], || !queue.is_empty());
            queue.try_recv().unwrap().long().unwrap().refuse();
            until(&[&a, &b], || log.len() == 1);
        });
    });
    // Another thread has dispatched all that could have woken this one.
    assert!(a.wait(SOON).unwrap(), "nothing told of the room");
    until(&[&a, &b], || send().is_posted());
}

/// The receiver leaves with offers in all states: each ends once, with an answer or `PeerLost`.
pub(super) fn the_receiver_leaves(rig: &Rig) {
    let [a, b] = rig.pair();
    let (queue, peer, log) = (b.queue(1).unwrap(), connect(&a, &b), Log::new());
    for number in 0..30 {
        let log = log.clone();
        let done = move |outcome: Result<Delivery>| log.add((number, outcome.map_err(|error| error.kind())));
        assert!(peer.send_long(1, b"", paint(1 << 20, number), SOON, done).unwrap().is_posted());
    }
    until(&[&a, &b], || queue.len() == 30);
    for number in 0..20 {
        let long = queue.try_recv().unwrap().long().unwrap();
        if number < 10 {
            long.refuse();
        } else {
            long.read(vec![0; 1 << 20], SOON, |_| ()).unwrap().posted().unwrap();
        }
    }
    until(&[&a, &b], || log.len() >= 12);
    drop((queue, b));
    until(&[&a], || log.len() == 30);
    super::rig::settle(&[&a]);
    a.poll().unwrap();
    let mut outcomes = log.take();
    outcomes.sort_by_key(|(number, _)| *number);
    assert!(outcomes.iter().map(|(number, _)| *number).eq(0..30), "once each");
    for (number, outcome) in outcomes {
        let right = match outcome {
            Ok(Delivery::Delivered) => (10..20).contains(&number),
            Ok(Delivery::Refused) => !(10..20).contains(&number),
            Err(kind) => kind == ErrorKind::PeerLost && number >= 10,
        };
        assert!(right, "offer {number}: {outcome:?}");
    }
}
