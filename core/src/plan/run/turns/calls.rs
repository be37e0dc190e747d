//! The calls that have begun, and whether more may begin.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Calls take turns.
const TAKEN: u64 = 1 << 63;
/// No call may begin: the ranks are agreeing on the first one that takes turns.
const CLOSED: u64 = 1 << 62;
/// No call may begin any more: this rank does not know whether the others take turns.
const BROKEN: u64 = 1 << 61;
const FLAGS: u64 = TAKEN | CLOSED | BROKEN;

/// Where the sum of callers begins, above the number of calls.
const CALLERS_AT: u32 = 32;

/// How many calls have begun, modulo 2^32, and a sum of 29 bits over their callers. Ranks that have made the same calls have the same, in
/// whatever order each of them made its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Calls(u64);

/// Why a call may not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Until the ranks have agreed.
    Closed,
    Broken,
}

/// How an agreement of the ranks ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Calls go on as before.
    Unchanged,
    /// Calls take turns, on all ranks.
    Taken,
    /// This rank does not know.
    Broken,
}

/// Counts calls of a communicator's executors.
#[derive(Debug, Default)]
pub(super) struct Count {
    /// [`Calls`] that have begun, and flags.
    begun: AtomicU64,
    /// How many of them have been enqueued, or have failed, modulo 2^32.
    ended: AtomicU32,
}

impl Calls {
    /// From [`bits`](Self::bits) of another rank.
    pub(in super::super) fn from_bits(bits: u64) -> Self {
        Self(bits & !FLAGS)
    }

    pub(in super::super) fn bits(self) -> u64 {
        self.0
    }

    pub(super) fn number(self) -> u32 {
        self.0 as u32
    }

    /// These and one of `caller`.
    pub(super) fn and(self, caller: u32) -> Self {
        let callers = (self.0 >> CALLERS_AT).wrapping_add(mixed(caller)) << CALLERS_AT & !FLAGS;
        Self(callers | u64::from(self.number().wrapping_add(1)))
    }
}

/// A number without a pattern (that of `SplitMix64`), so that sums over different callers differ.
fn mixed(caller: u32) -> u64 {
    let mut bits = (u64::from(caller) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (bits ^ bits >> 31) >> 3
}

impl Count {
    pub(super) fn calls(&self) -> Calls {
        Calls::from_bits(self.begun.load(Ordering::Acquire))
    }

    pub(super) fn are_taken(&self) -> bool {
        self.begun.load(Ordering::Acquire) & TAKEN != 0
    }

    pub(super) fn is_broken(&self) -> bool {
        self.begun.load(Ordering::Acquire) & BROKEN != 0
    }

    /// Counts a call of `caller`, which is to [`end`](Self::end). Returns whether it takes a turn.
    pub(super) fn begin(&self, caller: u32) -> Result<bool, Refusal> {
        let mut begun = self.begun.load(Ordering::Acquire);
        loop {
            if begun & BROKEN != 0 {
                return Err(Refusal::Broken);
            }
            if begun & CLOSED != 0 {
                return Err(Refusal::Closed);
            }
            let next = begun & FLAGS | Calls::from_bits(begun).and(caller).0;
            match self.begun.compare_exchange(begun, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(begun & TAKEN != 0),
                Err(other) => begun = other,
            }
        }
    }

    /// A call that has begun has been enqueued, or has failed.
    pub(super) fn end(&self) {
        self.ended.fetch_add(1, Ordering::Release);
    }

    /// Lets no call begin until [`open`](Self::open). `false`, and nothing is changed, if calls have begun that are not among `calls`.
    pub(super) fn close(&self, calls: Calls) -> bool {
        self.begun.compare_exchange(calls.0, calls.0 | CLOSED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether all of `calls`, behind which no other may begin, have ended.
    pub(super) fn have_ended(&self, calls: Calls) -> bool {
        self.ended.load(Ordering::Acquire) == calls.number()
    }

    /// Lets calls begin again, unless this rank does not know how.
    pub(super) fn open(&self, outcome: Outcome) {
        let flag = match outcome {
            Outcome::Unchanged => 0,
            Outcome::Taken => TAKEN,
            Outcome::Broken => BROKEN,
        };
        // No call begins meanwhile.
        let begun = self.begun.load(Ordering::Acquire);
        self.begun.store(begun & !CLOSED | flag, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn of(callers: &[u32]) -> Calls {
        callers.iter().fold(Calls::default(), |calls, &caller| calls.and(caller))
    }

    #[test]
    fn calls_are_equal_in_any_order_and_of_the_same_callers_only() {
        assert_eq!(of(&[0, 1, 7, 1]), of(&[1, 7, 1, 0]));
        assert_ne!(of(&[0]), of(&[1]));
        assert_ne!(of(&[0, 3]), of(&[1, 2]));
        assert_ne!(of(&[0, 0, 1]), of(&[0, 1, 1]));
        assert_eq!(of(&[5; 9]).number(), 9);
        assert_eq!(Calls::from_bits(of(&[4, 5]).bits() | FLAGS), of(&[4, 5]));
        for caller in 1..super::super::CALLERS {
            assert_ne!(of(&[caller - 1]), of(&[caller]), "{caller}");
        }
    }

    /// Neither number runs into what stands beside it.
    #[test]
    fn numbers_of_calls_go_around() {
        let count = Count::default();
        let last = Calls(u64::from(u32::MAX) | (!FLAGS >> CALLERS_AT) << CALLERS_AT);
        count.begun.store(last.0, Ordering::Relaxed);
        count.ended.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(count.begin(3), Ok(false));
        let calls = count.calls();
        assert_eq!((calls.number(), count.are_taken(), count.is_broken()), (0, false, false));
        assert!(count.close(calls) && !count.have_ended(calls));
        count.end();
        assert!(count.have_ended(calls));
        assert_eq!(count.begin(3), Err(Refusal::Closed));
        count.open(Outcome::Taken);
        assert_eq!(count.begin(3), Ok(true));
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use loom::thread;

    use super::*;

    /// A call that has begun is enqueued before turns begin, and each later one takes a turn.
    #[test]
    fn loom_no_call_is_enqueued_without_a_turn_behind_the_beginning_of_turns() {
        loom::model(|| {
            // These stand for the launches of calls and for the line of turns, which order nothing by themselves.
            let shared = Arc::new((Count::default(), AtomicU32::new(0), AtomicU32::new(0)));
            let calls = shared.clone();
            let caller = thread::spawn(move || {
                let (count, enqueued, line) = &*calls;
                let taken = loop {
                    match count.begin(1) {
                        Ok(taken) => break taken,
                        Err(Refusal::Closed) => thread::yield_now(),
                        Err(Refusal::Broken) => unreachable!("nobody breaks it"),
                    }
                };
                if taken {
                    assert_eq!(
                        line.load(Ordering::Relaxed),
                        1,
                        "a call takes its turn in a line that is not there"
                    );
                } else {
                    enqueued.store(1, Ordering::Relaxed);
                }
                count.end();
                taken
            });
            let (count, enqueued, line) = &*shared;
            let calls = count.calls();
            let closed = count.close(calls);
            if closed {
                while !count.have_ended(calls) {
                    thread::yield_now();
                }
                let before = enqueued.load(Ordering::Relaxed);
                assert_eq!(before, calls.number(), "a call is on its way that takes no turn");
                line.store(1, Ordering::Relaxed);
                count.open(Outcome::Taken);
            }
            let taken = caller.join().unwrap();
            assert_eq!(taken, closed && calls.number() == 0);
        });
    }

    /// Nobody waits for ever behind an agreement that has failed on this rank alone.
    #[test]
    fn loom_calls_are_refused_once_the_ranks_have_not_agreed() {
        loom::model(|| {
            let count = Arc::new(Count::default());
            let calls = count.clone();
            let caller = thread::spawn(move || {
                loop {
                    match calls.begin(1) {
                        Err(Refusal::Closed) => thread::yield_now(),
                        other => {
                            other.is_ok().then(|| calls.end());
                            return other;
                        }
                    }
                }
            });
            let closed = count.close(Calls::default());
            if closed {
                count.open(Outcome::Broken);
            }
            let expected = if closed { Err(Refusal::Broken) } else { Ok(false) };
            assert_eq!(caller.join().unwrap(), expected);
            assert_eq!(count.is_broken(), closed);
        });
    }
}
