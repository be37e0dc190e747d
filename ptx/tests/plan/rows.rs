//! Chunks of sizes of their own: ranks show each other rows, judge them, and move what they say.

mod job;

use aqueduct_ptx::plan::{Element, Reduction};

use self::job::{Each, Job, NONE, Numbers, OTHER, One, Rank, Zero};
use crate::rig::noise;

/// Parts of many sizes, some of them aligned; in both directions from 0 to 120 elements, with gaps between.
fn uneven(ranks: usize, seed: u64, exact: bool) -> Vec<Rank> {
    const COUNTS: [u64; 13] = [0, 1, 2, 3, 15, 16, 17, 31, 32, 48, 64, 101, 120];
    let noise = noise(seed, 4 * ranks * ranks);
    let count = |from: usize, to: usize| {
        COUNTS[usize::from(noise[if exact { to } else { from * ranks + to }]) % COUNTS.len()]
    };
    let aligned = seed.is_multiple_of(2);
    let offsets = |rank: usize, counts: &[u64]| {
        let mut at = 0;
        let gaps = &noise[2 * ranks * ranks + rank * ranks..];
        let offset = |(&count, &gap): (&u64, &u8)| {
            let offset: u64 = at + u64::from(gap % 3);
            let offset = if aligned { offset.next_multiple_of(16) } else { offset };
            at = offset + count;
            offset
        };
        counts.iter().zip(gaps).map(offset).collect::<Vec<_>>()
    };
    let rank = |rank: usize| {
        let sent: Vec<_> = (0..ranks).map(|to| count(rank, to)).collect();
        let came: Vec<_> = (0..ranks).map(|from| count(from, rank)).collect();
        let (from, to) = (offsets(rank, &sent), offsets(rank, &came));
        let spare = u64::from(noise[rank] % 2) * u64::from(!exact);
        let room = came.iter().map(|came| came + spare).collect();
        Rank { sent: Each(sent), from: Each(from), room: Each(room), to: Each(to) }
    };
    (0..ranks).map(rank).collect()
}

/// Each rank sends `count` elements to each.
fn even(ranks: usize, count: u64) -> Vec<Rank> {
    let each = |number: u64| Each(vec![number; ranks]);
    let offsets = || Each((0..ranks as u64).map(|rank| count * rank).collect());
    vec![Rank { sent: each(count), from: offsets(), room: each(count), to: offsets() }; ranks]
}

/// Changes one number of an array.
fn set(numbers: &mut Numbers, rank: usize, value: u64) {
    let Each(numbers) = numbers else { panic!("an array") };
    numbers[rank] = value;
}

const ELEMENTS: [Element; 4] = [Element::U8, Element::F16, Element::U32, Element::F64];

#[test]
fn parts_have_sizes_of_their_own() {
    for element in ELEMENTS {
        let mut job = Job::new(3, 2, element, None);
        let size = element.bytes() as u64;
        for (seed, skew) in [[0, 0], [0, 0], [size, 0], [16, 3 * size], [0, 0]].into_iter().enumerate() {
            job.skew = skew;
            job.fits(&uneven(3, seed as u64 + 2 * size, false), seed % 2 == 0);
        }
    }
}

#[test]
fn parts_of_sizes_of_their_own_are_reduced() {
    for element in [Element::F16, Element::U32] {
        let mut job = Job::new(3, 2, element, Some(Reduction::Sum));
        let size = element.bytes() as u64;
        for (seed, skew) in [[0, 0], [0, 0], [size, 0], [16, 3 * size], [0, 0]].into_iter().enumerate() {
            job.skew = skew;
            job.fits(&uneven(3, seed as u64 + 2 * size, true), seed % 2 == 0);
        }
    }
}

/// One number for all ranks, and none at all.
#[test]
fn ranks_may_share_a_number() {
    let mut job = Job::new(3, 2, Element::U32, None);
    let to = || Each(vec![40, 0, 20]);
    let all = |count| Rank { sent: One(count), from: One(7), room: One(19), to: to() };
    job.fits(&vec![all(19); 3], true);
    job.fits(&[all(3), all(0), all(11)], true);
    job.fits(&vec![Rank { from: Zero, ..all(12) }; 3], false);
    job.fits(&vec![Rank { sent: Zero, from: Zero, room: Zero, to: Zero }; 3], true);
    let silent = Rank { sent: Zero, ..all(1) };
    job.fits(&[all(9), silent.clone(), silent], true);
}

/// One of the arrays of a rank.
type Array = fn(&mut Rank) -> &mut Numbers;

/// Nothing is moved, and each rank names the same row: the first, or one that its rank cannot keep to.
#[test]
fn ranks_leave_a_call_of_which_a_row_does_not_fit() {
    let mut job = Job::new(3, 2, Element::U32, None);
    let length = job.length();
    let with = |changes: &[(usize, Array, usize, u64)]| {
        let mut ranks = even(3, 4);
        for &(rank, numbers, about, value) in changes {
            set(numbers(&mut ranks[rank]), about, value);
        }
        ranks
    };
    let sent: Array = |rank| &mut rank.sent;
    let from: Array = |rank| &mut rank.from;
    let room: Array = |rank| &mut rank.room;
    let to: Array = |rank| &mut rank.to;
    job.fits(&with(&[]), true);
    job.misfits(&with(&[(0, sent, 2, 5)]), [0, 2, 20, 16]);
    job.misfits(&with(&[(2, room, 2, 3)]), [2, 2, 16, 12]);
    job.misfits(&with(&[(2, sent, 1, 7), (1, sent, 0, 9)]), [1, 0, 36, 16]);
    // The last element of a buffer, and the one behind.
    job.fits(&with(&[(1, from, 0, length - 4)]), true);
    job.fits(&with(&[(1, to, 0, length - 4)]), true);
    job.misfits(&with(&[(1, from, 0, length - 3)]), [1, 0, NONE, 16]);
    job.misfits(&with(&[(1, to, 0, length - 3)]), [1, 0, NONE, 16]);
    job.misfits(&with(&[(1, sent, 2, length + 1)]), [1, 2, NONE, 16]);
    job.misfits(&with(&[(2, room, 0, length + 1)]), [2, 0, NONE, 16]);
    // Rank 1 has no room then, either: others do not fit only for that reason.
    job.misfits(&with(&[(1, from, 2, NONE), (0, sent, 2, 5)]), [1, 2, NONE, 16]);
    job.fits(&with(&[]), true);
}

/// Nothing is moved, and each rank names the same pair. More does not fit where others pass other buffers, so they are named first.
#[test]
fn ranks_leave_a_call_on_buffers_of_different_numbers() {
    for reduction in [None, Some(Reduction::Sum)] {
        let mut job = Job::new(3, 2, Element::U32, reduction);
        let mut tight = even(3, 4);
        set(&mut tight[0].sent, 1, 5);
        for number in [0xfffe, 0x1_ffff, 0, 1 << 63 | 0xffff] {
            job.shown[1] = number;
            job.misfits(&even(3, 4), [2, 1, OTHER, 16]);
            job.misfits(&tight, [2, 1, OTHER, 16]);
        }
        job.shown[1] = job.shown[0];
        job.fits(&even(3, 4), true);
        job.shown = vec![5, 6, 6];
        job.misfits(&even(3, 4), [2, 0, OTHER, 16]);
    }
}

/// A part that must fill the room.
#[test]
fn ranks_leave_a_reduction_of_parts_that_differ() {
    let mut job = Job::new(3, 2, Element::U32, Some(Reduction::Sum));
    let mut ranks = even(3, 4);
    set(&mut ranks[1].sent, 2, 3);
    job.misfits(&ranks, [1, 2, 12, 16]);
    job.fits(&even(3, 4), true);
}

/// A kernel numbers fewer than 2^30 vectors.
#[test]
fn a_part_has_a_largest_size() {
    let mut job = Job::new(2, 1, Element::U8, None);
    job.sizes.input = u64::MAX;
    let mut ranks = even(2, 4);
    set(&mut ranks[1].sent, 0, 0x3_ffff_fff0);
    job.misfits(&ranks, [1, 0, 0x3_ffff_fff0, 4]);
    set(&mut ranks[1].sent, 0, 0x3_ffff_fff1);
    job.misfits(&ranks, [1, 0, NONE, 4]);
}

/// A rank that leaves begins its next call while others still judge the last one.
#[test]
fn calls_that_are_left_follow_each_other() {
    let mut job = Job::new(3, 2, Element::U32, None);
    let [inputs, mut outputs] = job.fill(1);
    let mut wrong = even(3, 4);
    set(&mut wrong[0].sent, 1, 5);
    let calls = [&wrong, &wrong, &even(3, 6), &wrong, &even(3, 8), &wrong];
    let launches = calls.map(|ranks| job.prepare(ranks, true));
    job.call(&launches);
    job.apply(calls[2], &inputs, &mut outputs);
    job.apply(calls[4], &inputs, &mut outputs);
    job.compare(&outputs, "the last call that fits");
    assert_eq!(job.records(), vec![[4, 20, 16, 1 << 32]; 3]);
}

/// Each thread judges several pairs of ranks.
#[test]
fn there_may_be_more_pairs_of_ranks_than_threads() {
    let mut job = Job::new(6, 1, Element::U8, None);
    job.fits(&uneven(6, 9, false), true);
    let mut ranks = even(6, 4);
    set(&mut ranks[5].sent, 4, 5);
    job.misfits(&ranks, [5, 4, 5, 4]);
    // A row about the rank itself says both: neither sent, nor room.
    set(&mut ranks[5].from, 5, NONE);
    job.misfits(&ranks, [5, 5, NONE, 0]);
}
