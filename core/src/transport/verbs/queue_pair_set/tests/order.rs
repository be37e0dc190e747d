//! Transfers over several queue pairs take effect in the order of the calls, and wait for each other only where they must.

use super::*;

/// Seeded choices (SplitMix64, Steele, Lea and Flood 2014).
struct Choices(u64);

impl Choices {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % count as u64) as usize
    }
}

/// Bytes of a transfer that is spread.
const SPREAD: usize = 2 * STRIPE;

fn waiting(rig: &Rig<'_>) -> usize {
    lock(&rig.near.set.state).waiting.len()
}

/// Asks for transfers and signals between queue pairs that are held and released at random; compares both memories with what
/// the same copies make one after the other.
fn random_transfers(rig: &Rig<'_>, seed: u64) {
    let mut choices = Choices(seed);
    let [mut ours, mut theirs] = [&rig.ours, &rig.theirs].map(|buffer| {
        let data: Vec<u8> = (0..LEN).map(|at| (at ^ at >> 8 ^ choices.below(256)) as u8).collect();
        buffer.memory().write(0, &data).unwrap();
        data
    });
    for value in 1..=24 {
        let number = rig.numbers[choices.below(rig.numbers.len())];
        match choices.below(3) {
            0 => standin::release(number),
            _ => standin::hold(number),
        }
        let len = match choices.below(4) {
            0 => 1 + choices.below(64),
            1 => 65 + choices.below(STRIPE),
            _ => SPREAD + choices.below(SPREAD),
        };
        let [to, from] = [(); 2].map(|()| choices.below(LEN - len));
        match choices.below(12) {
            0 => {
                assert!(rig.signal(value));
                theirs[..8].copy_from_slice(&value.to_le_bytes());
            }
            1..=5 => {
                assert!(rig.read(to, from, len));
                ours[to..to + len].copy_from_slice(&theirs[from..from + len]);
            }
            _ => {
                assert!(rig.write(to, from, len));
                theirs[to..to + len].copy_from_slice(&ours[from..from + len]);
            }
        }
        rig.near.kick().unwrap();
    }
    rig.release();
    rig.flush();
    for (name, buffer, expected) in [("ours", &rig.ours, &ours), ("theirs", &rig.theirs, &theirs)] {
        let wrong = bytes(buffer, 0, LEN).iter().zip(expected).position(|(seen, expected)| seen != expected);
        assert_eq!(wrong, None, "{name}: a transfer passed another, seed {seed}");
    }
}

#[test]
fn transfers_over_several_queue_pairs_take_effect_in_order() {
    for queue_pairs in [2, 3] {
        with_ends(&endpoint().with_queue_pairs(queue_pairs), |rig| {
            (0..8).for_each(|seed| random_transfers(&rig, seed));
        });
    }
}

/// Releases the queue pairs in both orders: one of them lets the older bytes arrive last.
#[test]
fn a_small_write_is_not_overwritten_by_a_large_one_before_it() {
    for first in [0, 1] {
        with_ends(&endpoint().with_queue_pairs(2), |rig| {
            rig.ours.memory().fill(1);
            rig.ours.memory().write(SPREAD, &[2; LARGE]).unwrap();
            rig.hold();
            assert!(rig.write(0, 0, SPREAD));
            let places = [0, STRIPE / 2, STRIPE, SPREAD - LARGE];
            for to in places {
                assert!(rig.write(to, SPREAD, LARGE));
            }
            rig.near.kick().unwrap();
            standin::release(rig.numbers[first]);
            rig.near.kick().unwrap();
            rig.release();
            rig.flush();
            for to in places {
                assert_eq!(bytes(&rig.theirs, to, LARGE), [2; LARGE], "at {to}");
            }
        });
    }
}

#[test]
fn a_write_from_memory_that_a_large_read_fills_sends_what_was_read() {
    with_ends(&endpoint().with_queue_pairs(2), |rig| {
        rig.theirs.memory().write(0, &vec![3; SPREAD]).unwrap();
        rig.hold();
        assert!(rig.read(0, 0, SPREAD));
        // One of each piece, of which one is on the other queue pair.
        let places = [0, STRIPE, SPREAD - LARGE];
        for from in places {
            assert!(rig.write(SPREAD + from, from, LARGE));
        }
        rig.near.kick().unwrap();
        standin::release(rig.numbers[0]);
        rig.near.kick().unwrap();
        rig.release();
        rig.flush();
        for from in places {
            assert_eq!(bytes(&rig.theirs, SPREAD + from, LARGE), [3; LARGE], "from {from}");
        }
    });
}

#[test]
fn transfers_wait_for_other_queue_pairs_only_where_they_touch() {
    with_ends(&endpoint().with_queue_pairs(2), |rig| {
        rig.hold();
        for to in [0, 0, STRIPE / 2, SPREAD] {
            assert!(rig.write(to, 0, SPREAD) && rig.write(to, STRIPE, SPREAD + 5));
        }
        assert!(rig.write(3 * SPREAD, 0, LARGE) && rig.write(3 * SPREAD, LARGE, LARGE));
        assert_eq!(waiting(&rig), 0, "large writes, or what touches none");
        assert!(rig.write(0, 3 * SPREAD, LARGE));
        assert_eq!(waiting(&rig), 1, "into the same memory");
        rig.release();
        rig.flush();

        rig.hold();
        for from in [0, 0, SPREAD] {
            assert!(rig.read(0, from, SPREAD) && rig.read(STRIPE / 2, from, SPREAD));
        }
        assert!(rig.write(3 * SPREAD, 3 * SPREAD, SPREAD) && rig.write(3 * SPREAD, 3 * SPREAD, 1));
        assert_eq!(waiting(&rig), 1, "for the large write of the same bytes");
        rig.release();
        rig.flush();

        rig.hold();
        assert!(
            rig.read(0, 0, SPREAD) && rig.write(SPREAD, SPREAD, SPREAD) && rig.read(0, SPREAD / 2, LARGE)
        );
        assert_eq!(waiting(&rig), 1, "for the large read into the same memory");
        rig.release();
        rig.flush();

        rig.hold();
        assert!(rig.write(0, 0, LARGE) && rig.write(LARGE, 0, SPREAD) && rig.write(0, SPREAD, SPREAD));
        assert_eq!(waiting(&rig), 1, "a large write for a small one");
        rig.release();
        rig.flush();

        rig.hold();
        assert!(rig.signal(1) && rig.write(8, 0, SPREAD));
        assert_eq!(waiting(&rig), 0, "beside the signal");
        rig.release();
        rig.flush();
        rig.hold();
        assert!(rig.signal(2) && rig.write(0, 0, SPREAD));
        assert_eq!(waiting(&rig), 1, "a large write over the signal");
        rig.release();
        rig.flush();
    });
}

/// Host memory that a small write copies into the request must not be copied before an earlier read has filled it.
#[test]
fn a_small_write_sends_what_an_earlier_read_has_brought() {
    for queue_pairs in [1, 2] {
        with_ends(&endpoint().with_queue_pairs(queue_pairs), |rig| {
            rig.theirs.memory().write(0, &[4; 64]).unwrap();
            rig.hold();
            // The second is fenced no more, and still behind the read.
            assert!(rig.read(0, 0, 64) && rig.write(1000, 0, 64) && rig.write(2000, 0, 64));
            rig.near.kick().unwrap();
            rig.release();
            rig.flush();
            for at in [1000, 2000] {
                assert_eq!(bytes(&rig.theirs, at, 64), [4; 64], "at {at}");
            }
        });
    }
}
