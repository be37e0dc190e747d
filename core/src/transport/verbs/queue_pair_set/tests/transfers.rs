//! Reads and writes: inline, spread over queue pairs, and behind a fence.

use super::*;

/// The caller may change the memory at once; a read has none to copy.
#[test]
fn small_writes_from_host_memory_are_copied_when_they_are_asked_for() {
    const AT: usize = 40;
    with_ends(&endpoint(), |rig| {
        rig.ours.memory().write(AT, &[1; 64]).unwrap();
        rig.theirs.memory().write(AT, &[2; 64]).unwrap();
        rig.hold();
        for (at, len) in [(1000, 64), (2000, 1)] {
            assert!(rig.write(at, AT, len));
        }
        rig.near.kick().unwrap();
        rig.ours.memory().write(AT, &[9; 64]).unwrap();
        assert!(rig.read(3000, AT, 64));
        rig.near.kick().unwrap();
        rig.release();
        rig.flush();
        assert_eq!(bytes(&rig.theirs, 1000, 64), [1; 64]);
        assert_eq!(bytes(&rig.theirs, 2000, 2), [1, 0]);
        assert_eq!(bytes(&rig.ours, 3000, 64), [2; 64]);
        assert_eq!(bytes(&rig.theirs, AT, 64), [2; 64]);
    });
}

/// So are those that wait for room, once there is some; and a NIC may take less inline.
#[test]
fn small_writes_that_cannot_be_copied_are_sent_from_where_they_lie() {
    with_ends_of(&endpoint().with_max_outstanding(8), 8, |rig| {
        rig.ours.memory().write(100, &[1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
        rig.hold();
        for _ in 0..QUEUE {
            assert!(rig.write(LARGE, LARGE, LARGE));
        }
        assert!(rig.write(500, 102, 7) && rig.write(600, 100, 9));
        rig.release();
        rig.flush();
        assert_eq!(bytes(&rig.theirs, 500, 8), [3, 4, 5, 6, 7, 8, 9, 0]);
        assert_eq!(bytes(&rig.theirs, 600, 10), [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]);
    });
}

#[test]
fn large_writes_are_spread_and_the_signal_waits_for_all_parts() {
    with_ends(&endpoint().with_queue_pairs(2), |rig| {
        let data: Vec<u8> = (0..LEN).map(|at| (at / 1000 % 251) as u8).collect();
        rig.ours.memory().write(0, &data).unwrap();
        rig.hold();
        assert!(rig.write(64, 8, 2 * STRIPE - 8));
        rig.near.kick().unwrap();
        // On a busy machine the service thread may have asked for an acknowledgement meanwhile, which is a request more.
        let are = |expected: [u64; 2]| {
            let mut pairs = rig.requests().into_iter().zip(expected);
            pairs.all(|(seen, expected)| seen == expected || expected > 0 && seen == expected + 1)
        };
        assert!(are([1, 0]), "one queue pair is enough: {:?}", rig.requests());
        assert!(rig.write(64 + 2 * STRIPE - 8, 2 * STRIPE, 3 * STRIPE + 5));
        assert!(rig.signal(1));
        rig.near.kick().unwrap();
        assert!(are([3, 3]), "the second tells when it is done: {:?}", rig.requests());
        standin::release(rig.numbers[0]);
        rig.near.kick().unwrap();
        let word = || rig.theirs.memory().word64(0).unwrap().load(Ordering::Acquire);
        assert_eq!(word(), 0, "the other has not done its part");
        rig.release();
        rig.flush();
        assert_eq!(word(), 1);
        let len = 5 * STRIPE - 3;
        assert!(bytes(&rig.theirs, 64, len) == data[8..8 + len]);
    });
    with_ends(&endpoint(), |rig| {
        rig.hold();
        assert!(rig.write(0, 0, LEN));
        rig.near.kick().unwrap();
        assert!(rig.requests()[0] <= 2, "there is nothing to spread it over");
    });
}

#[test]
fn large_reads_are_spread_and_each_part_arrives_at_its_place() {
    with_ends(&endpoint().with_queue_pairs(2), |rig| {
        let data: Vec<u8> = (0..LEN).map(|at| (at / 1000 % 251) as u8).collect();
        rig.theirs.memory().write(0, &data).unwrap();
        let (to, from, len) = (64, 8, 4 * STRIPE + 5);
        assert!(rig.read(to, from, len));
        rig.flush();
        assert!(rig.requests().iter().all(|requests| *requests >= 2), "both have parts");
        assert!(bytes(&rig.ours, to, len) == data[from..from + len]);
        assert_eq!(bytes(&rig.ours, to + len, 8), [0; 8], "nothing behind it");
    });
}

/// A NIC may fetch what it sends before the data of an earlier read are there.
#[test]
fn what_was_read_is_sent_behind_a_fence() {
    let fenced = |rig: &Rig<'_>| {
        rig.near.kick().unwrap();
        rig.counts().iter().map(|counts| counts.fenced).collect::<Vec<_>>()
    };
    with_ends(&endpoint(), |rig| {
        assert!(rig.write(0, 0, LARGE) && rig.read(0, 0, LARGE) && rig.read(0, 0, LARGE));
        assert_eq!(fenced(&rig), [0], "nothing was read before");
        assert!(rig.write(0, 0, LARGE));
        assert_eq!(fenced(&rig), [1]);
        assert!(rig.write(0, 0, LARGE) && rig.signal(1));
        assert_eq!(fenced(&rig), [1], "one is enough");
        assert!(rig.read(0, 0, LARGE) && rig.signal(2));
        assert_eq!(fenced(&rig), [2]);
        assert!(rig.signal(3) && rig.write(0, 0, LARGE));
        assert_eq!(fenced(&rig), [2]);
        rig.flush();
    });
    // A fence concerns one queue pair: a write that takes another one waits for the read itself.
    with_ends(&endpoint().with_queue_pairs(2), |rig| {
        assert!(rig.read(0, 0, LARGE) && rig.write(STRIPE, 0, LARGE));
        assert!(
            rig.read(2 * STRIPE, 2 * STRIPE, 2 * STRIPE) && rig.write(4 * STRIPE, 4 * STRIPE, 2 * STRIPE)
        );
        assert_eq!(fenced(&rig), [2, 1]);
        rig.flush();
    });
}
