//! Frames over a link: every size, floods, gathering, and data that lands in place.

use super::super::credits::RECEIVES;
use super::super::packet::PAYLOAD;
use super::*;
use crate::error::ErrorKind;

#[test]
fn frames_of_every_size_arrive_whole_and_numbered() {
    for inline in [256, 220, 16, 4, 0] {
        standin::limit_inline(inline);
        let [one, two] = pair();
        let longest = one.max_body();
        assert!(longest >= (8 << 10) + 40);
        let sizes = (0..300).chain([PAYLOAD - 17, PAYLOAD - 16, PAYLOAD - 15, 2 * PAYLOAD, 8 << 10, longest]);
        let mut kept = Kept::default();
        for (number, size) in sizes.enumerate() {
            let body = body(size);
            assert!(push(&one, head(3, &body), &body), "{size}");
            pull(&two, &mut kept, 1);
            let expected = Head { sequence: number as u32, ..head(3, &body) };
            assert_eq!(kept.frames.pop().unwrap(), (expected, body));
        }
        let long = vec![0; longest + 1];
        assert_eq!(one.push(head(3, &long), &long).unwrap_err().kind(), ErrorKind::Internal);
    }
    standin::limit_inline(256);
}

#[test]
fn the_longest_eager_limit_fits() {
    let [one, two] = pair_of(64 << 10);
    let mut kept = Kept::default();
    for round in 1..=20 {
        let body = body((64 << 10) + 40);
        while !one.push(head(3, &body), &body).unwrap() {
            two.pull(&mut kept).unwrap();
        }
        // Most packets wait for credits.
        assert!(one.kick().is_ok_and(|all| !all) || round > 1);
    }
    while kept.frames.len() < 20 {
        two.pull(&mut kept).unwrap();
        one.pull(&mut Kept::default()).unwrap();
    }
    assert!(kept.frames.iter().all(|(_, bytes)| *bytes == body((64 << 10) + 40)));
}

#[test]
fn a_link_has_at_most_64_kib() {
    let [(_, link), _] = ends(8 << 10);
    let bytes = (RECEIVES + link.parts.sends) as usize * PACKET;
    assert!(bytes <= 64 << 10, "{bytes}");
}

/// Without credits, frames gather in packets; with room again, all arrive. A packet without a receive would end the link.
#[test]
fn a_flood_both_ways_meets_receives_and_gathers() {
    let wires = pair();
    let mut kept = [Kept::default(), Kept::default()];
    let (mut sent, frames) = ([0; 2], 5000);
    let deadline = Deadline::after(SOON);
    while kept.iter().any(|kept| kept.frames.len() < frames) {
        for side in 0..2 {
            while sent[side] < frames
                && wires[side].push(head(1, &body(sent[side] % 90)), &body(sent[side] % 90)).unwrap()
            {
                sent[side] += 1;
            }
            wires[side].kick().unwrap();
        }
        for side in 0..2 {
            wires[side].pull(&mut kept[side]).unwrap();
        }
        assert!(!deadline.expired(), "{sent:?}");
    }
    for kept in &kept {
        for (number, (head, bytes)) in kept.frames.iter().enumerate() {
            assert_eq!((head.sequence, bytes), (number as u32, &body(number % 90)));
        }
    }
    let counts = wires.each_ref().map(|wire| standin::counts(number(wire)));
    for counts in counts {
        assert!(counts.requests < frames as u64 / 4, "frames did not gather: {counts:?}");
        assert!(counts.completions <= counts.requests / 2, "not one in several was signalled: {counts:?}");
    }
}

/// The device may take more than it was asked for, or less.
#[test]
fn packets_leave_inline_up_to_what_is_set_and_what_the_device_takes() {
    let cases = [(256, 256, 2), (64, 256, 1), (256, 64, 1), (24, 256, 1), (23, 256, 0), (0, 256, 0)];
    for ((set, device, expected), generous) in
        cases.into_iter().flat_map(|case| [(case, false), (case, true)])
    {
        standin::limit_inline(device);
        standin::give_all_inline(generous);
        let [one, two] = pair_with(&Choice { inline: set, ..Choice::default() });
        standin::limit_inline(256);
        standin::give_all_inline(false);
        let mut kept = Kept::default();
        for (size, count) in [0, 232, 233].into_iter().zip(1..) {
            assert!(push(&one, head(3, &body(size)), &body(size)));
            pull(&two, &mut kept, count);
        }
        let inline = standin::counts(number(&one)).inline;
        assert_eq!(inline, expected, "{set} bytes are set, {device} the device's, generous: {generous}");
        let sizes: Vec<_> = kept.frames.iter().map(|(_, body)| body.len()).collect();
        assert_eq!(sizes, [0, 232, 233]);
    }
}

/// Both ends are full of long frames and have no credits left, on a device that takes nothing inline: what gives credits back needs a
/// slot, too.
#[test]
fn credits_come_back_although_all_slots_wait_for_credits() {
    standin::limit_inline(0);
    let wires = pair();
    standin::limit_inline(256);
    let mut kept = [Kept::default(), Kept::default()];
    let frame = body(2000);
    let (mut sent, frames) = ([0; 2], 300);
    let deadline = Deadline::after(SOON);
    while kept.iter().any(|kept| kept.frames.len() < frames) {
        for side in 0..2 {
            while sent[side] < frames && push(&wires[side], head(1, &frame), &frame) {
                sent[side] += 1;
            }
        }
        for side in 0..2 {
            wires[side].pull(&mut kept[side]).unwrap();
        }
        assert!(!deadline.expired(), "{sent:?}");
    }
}

/// Answers to reads leave room to messages.
#[test]
fn messages_pass_between_data() {
    for eager in [8 << 10, 64 << 10] {
        let [one, two] = pair_of(eager);
        let data = body(one.max_body());
        let data_head = Head::new(Operation::Data, 0, 9, data.len());
        let mut frames = 0;
        while push(&one, data_head, &data) {
            frames += 1;
        }
        let short = body(100);
        for n in 0..50 {
            assert!(push(&one, head(n, &short), &short), "{n}");
            // A late device holds slots until it has told.
            standin::settle();
        }
        let mut kept = Kept::default();
        while kept.frames.len() < frames + 50 {
            two.pull(&mut kept).unwrap();
            one.pull(&mut Kept::default()).unwrap();
        }
        assert!(push(&one, data_head, &data), "with nothing else, the longest fits");
    }
}

/// A packet takes a receive, whatever is in it: many short frames arrive although nobody gives receives back.
#[test]
fn a_burst_takes_few_receives() {
    let [one, two] = pair();
    let mut kept = Kept::default();
    (0..200).for_each(|n| assert!(one.push(head(n, b"x"), b"x").unwrap()));
    pull(&two, &mut kept, 1);
    standin::settle();
    two.pull(&mut kept).unwrap();
    assert!(kept.frames.len() < 200, "the last ones left before the flush");
    assert!(one.kick().unwrap());
    pull(&two, &mut kept, 200);
    assert_eq!(standin::counts(number(&one)).requests, 3);
}

#[test]
fn long_data_lands_in_place() {
    let [one, two] = pair();
    let (data, other) = (body(8000), body(10));
    let head_of = |body: &[u8]| Head::new(Operation::Data, 0, 9, body.len());
    assert!(push(&one, head_of(&data), &data) && push(&one, head(4, &other), &other));
    let mut kept = Kept::default();
    pull(&two, &mut kept, 2);
    assert_eq!((kept.parts, &kept.frames[0].1, &kept.frames[1].1), (4, &data, &other));
}
