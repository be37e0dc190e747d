//! The choices that the machine makes where the memory model leaves them open.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::config::{Lines, Weak};

/// A stream of choices that a seed determines. With one engine thread, the same seed and the same calls of the host give
/// the same run.
#[derive(Debug)]
pub(crate) struct Chance {
    state: AtomicU64,
    rules: Mutex<Weak>,
}

/// The step of the generator (SplitMix64, Steele, Lea and Flood 2014).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Chance {
    pub(crate) fn new(rules: Weak) -> Self {
        let chance = Self { state: AtomicU64::new(0), rules: Mutex::new(rules) };
        chance.begin(rules);
        chance
    }

    /// Begins the choices anew.
    pub(crate) fn begin(&self, rules: Weak) {
        *self.rules.lock() = rules;
        self.state.store(mix(rules.seed), Ordering::Relaxed);
    }

    pub(crate) fn seed(&self) -> u64 {
        self.rules.lock().seed
    }

    pub(crate) fn lines(&self) -> Lines {
        self.rules.lock().lines
    }

    /// A number below `count`, which is not zero.
    pub(crate) fn below(&self, count: usize) -> usize {
        let drawn = mix(self.state.fetch_add(STEP, Ordering::Relaxed));
        (drawn % count as u64) as usize
    }

    /// True once in `count` times.
    pub(crate) fn one_in(&self, count: usize) -> bool {
        self.below(count) == 0
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_all_choices_and_others_differ() {
        let draws = |seed| {
            let chance = Chance::new(Weak { seed, ..Weak::default() });
            (0..64).map(|_| chance.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(draws(5), draws(5));
        assert_ne!(draws(5), draws(6));
        let chance = Chance::new(Weak::default());
        let hits = (0..8000).filter(|_| chance.one_in(4)).count();
        assert!((1800..2200).contains(&hits), "{hits}");
    }
}
