//! How long a wait spins before it sleeps. Spinning answers sooner where cores are idle, and steals time where they are not.
//!
//! Which it is cannot be known beforehand, so each wait learns from those before it, as adaptive locks do.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use crate::sync::{AtomicU32, Ordering};

/// The longest spin, in microseconds: several times the cost of sleeping and being woken.
const MOST: u32 = 50;
/// After spinning was in vain, one wait in so many tries it again.
const RETRY: u32 = 256;

/// The spin budget of one connection. One thread waits at a time; others may see old values, which does no harm.
#[derive(Debug)]
pub(super) struct SpinBudget {
    /// Microseconds that the next wait looks for.
    most: AtomicU32,
    /// Waits since looking was given up.
    waits: AtomicU32,
}

/// One wait.
#[derive(Debug)]
pub(super) struct Spin {
    /// When to sleep instead; not known before the first look that finds nothing.
    until: Option<Instant>,
    most: u32,
    /// It has come to sleeping.
    slept: bool,
}

impl Default for SpinBudget {
    fn default() -> Self {
        Self { most: AtomicU32::new(MOST), waits: AtomicU32::new(0) }
    }
}

impl SpinBudget {
    pub(super) fn begin(&self) -> Spin {
        Spin { until: None, most: self.most.load(Ordering::Relaxed), slept: false }
    }

    pub(super) fn learn(&self, spin: &Spin) {
        let next = match (spin.slept, spin.until) {
            // The first look found something: the wait teaches nothing.
            (false, None) => return,
            (false, Some(_)) => MOST,
            (true, _) if spin.most > 0 => spin.most / 2,
            (true, _) if self.waits.fetch_add(1, Ordering::Relaxed) % RETRY == RETRY - 1 => MOST,
            (true, _) => 0,
        };
        self.most.store(next, Ordering::Relaxed);
    }
}

impl Spin {
    /// Whether to look again, after others have had a chance to run; sleep otherwise.
    pub(super) fn again(&mut self) -> bool {
        if self.slept || self.most == 0 {
            self.slept = true;
            return false;
        }
        let until =
            *self.until.get_or_insert_with(|| Instant::now() + Duration::from_micros(self.most.into()));
        self.slept = Instant::now() >= until;
        if !self.slept {
            std::thread::yield_now();
        }
        !self.slept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One wait that comes to sleeping, however busy the machine is.
    fn wait_in_vain(budget: &SpinBudget) {
        let mut spin = budget.begin();
        while spin.again() {}
        budget.learn(&spin);
    }

    #[test]
    fn looking_in_vain_is_given_up_and_tried_again_later() {
        let budget = SpinBudget::default();
        for _ in 0..2 {
            // 50, 25, 12, 6, 3 and 1 microseconds.
            (0..6).for_each(|_| wait_in_vain(&budget));
            assert_eq!(budget.begin().most, 0);
            let looks_again = |_: &u32| {
                wait_in_vain(&budget);
                budget.begin().most > 0
            };
            assert_eq!((1..=RETRY).find(looks_again), Some(RETRY));
        }
    }

    #[test]
    fn a_wait_looks_until_its_time_is_over_and_then_sleeps() {
        let budget = SpinBudget::default();
        let (mut spin, before) = (budget.begin(), Instant::now());
        spin.again();
        assert!(spin.until.is_some_and(|until| until >= before + Duration::from_micros(MOST.into())));
        let far = Some(before + Duration::from_secs(3600));
        let looks = |until, slept| Spin { until, most: MOST, slept }.again();
        assert!(looks(far, false) && !looks(Some(before), false));
        assert!(!looks(far, true), "it has come to sleeping");
        assert!(!Spin { until: far, most: 0, slept: false }.again(), "looking was given up");
    }

    #[test]
    fn what_is_there_already_teaches_nothing() {
        let budget = SpinBudget::default();
        let spin = budget.begin();
        budget.learn(&spin);
        assert_eq!(budget.begin().most, MOST);
        assert!(!spin.slept);
    }
}
