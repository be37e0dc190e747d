//! Sides that sleep: nothing that comes, and no room, is slept over.

use super::super::credits::CREDITS;
use super::*;
use crate::message::lent::Lent;
use crate::sync::{Mutex, lock};

#[test]
fn a_sender_without_credits_goes_on_when_they_come() {
    let [one, two] = pair();
    let body = body(1500);
    let mut pushed = 0;
    // A late device holds slots until it has told, so a push may fail before the credits are spent.
    for _ in 0..2 {
        while one.push(head(1, &body), &body).unwrap() {
            pushed += 1;
        }
        standin::settle();
    }
    assert!(!one.kick().unwrap(), "more than its credits have left");
    assert!(standin::counts(number(&one)).requests <= CREDITS.into());
    // Slots that a late device gives back only now are news, too.
    while one.arm().unwrap() {
        one.take_room();
        one.pull(&mut Kept::default()).unwrap();
    }
    let mut kept = Kept::default();
    while two.pull(&mut kept).unwrap() > 0 {}
    assert!(is_readable(&one, SOON), "nobody woke the sender");
    while kept.frames.len() < pushed {
        one.pull(&mut Kept::default()).unwrap();
        two.pull(&mut kept).unwrap();
    }
    assert!(push(&one, head(1, &body), &body));
}

#[test]
fn a_side_that_sleeps_is_woken() {
    let [one, two] = pair();
    let mut kept = Kept::default();
    assert!(push(&one, head(1, b"a"), b"a"));
    assert!(!is_readable(&two, Duration::ZERO));
    standin::settle();
    assert!(two.arm().unwrap(), "a frame lies there");
    pull(&two, &mut kept, 1);
    while two.arm().unwrap() {}
    assert!(!is_readable(&two, Duration::ZERO));
    assert!(push(&one, head(1, b"a"), b"a"));
    assert!(is_readable(&two, SOON));
    pull(&two, &mut kept, 2);
    assert!(!is_readable(&two, Duration::ZERO), "the event was taken");
}

/// Both sides sleep whenever they can, from several threads.
#[test]
fn no_wake_up_is_lost() {
    const FRAMES: usize = 2000;
    let [one, two] = pair();
    // One thread at a time takes what comes.
    let door = Mutex::new(());
    let push = |wire: &VerbsWire, kind: u16, body: &[u8]| {
        if push(wire, head(kind, body), body) {
            return;
        }
        let _door = lock(&door);
        while !push(wire, head(kind, body), body) {
            if wire.pull(&mut Kept::default()).unwrap() == 0 && !wire.arm().unwrap() {
                assert!(is_readable(wire, SOON), "nobody made room");
            }
        }
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2_u16)
            .map(|kind| {
                let (one, push) = (&one, &push);
                scope.spawn(move || {
                    (0..FRAMES).for_each(|index| push(one, kind, &body(index % 3000)));
                    // A frame without credits leaves once this side takes new ones.
                    while !one.kick().unwrap() {
                        std::thread::yield_now();
                    }
                })
            })
            .collect();
        let mut kept = Kept::default();
        while kept.frames.len() < 2 * FRAMES {
            if two.pull(&mut kept).unwrap() == 0 && !two.arm().unwrap() {
                assert!(is_readable(&two, SOON), "slept over a frame, {} came", kept.frames.len());
            }
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let mut next = [0; 2];
        for (number, (head, bytes)) in kept.frames.iter().enumerate() {
            let index = &mut next[usize::from(head.kind)];
            assert_eq!((head.sequence, bytes), (number as u32, &body(*index % 3000)));
            *index += 1;
        }
    });
}

/// A piece that its device has brought wakes a side that sleeps, too.
#[test]
fn a_side_that_sleeps_is_woken_by_what_it_reads() {
    let [one, two] = pair();
    let (reader, owner) = (one.one_sided().unwrap(), two.one_sided().unwrap());
    let memory = Lent::of(body(100));
    let region = owner.register(&memory).unwrap();
    let offered = reader.prepare().unwrap().unwrap();
    reader.connect(&owner.admit(&offered).unwrap()).unwrap();
    let number = reader.number().unwrap();
    for _ in 0..3 {
        standin::hold(number);
        let mut left = Some(region.remote().range(1, 9).unwrap());
        reader.begin(&mut || Ok(left.take().map(wanted))).unwrap();
        while one.arm().unwrap() {}
        assert!(!is_readable(&one, Duration::ZERO));
        standin::release(number);
        assert!(is_readable(&one, SOON), "nobody woke the reader");
        let deadline = Deadline::after(SOON);
        while !one.arm().unwrap() {
            assert!(!deadline.expired(), "a piece lies there");
        }
        one.pull(&mut Kept::default()).unwrap();
        let piece = reader.take().unwrap().unwrap();
        assert_eq!(piece.brought.bytes(), &body(100)[1..10]);
        reader.release(piece.pair);
    }
}
