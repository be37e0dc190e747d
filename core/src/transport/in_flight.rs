//! Keeps alive what operations in flight use, until they are acknowledged.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

/// How many recent entries are searched before a value is held a second time: data and signals often alternate.
const RECENT: usize = 4;

/// Values by the latest operation that uses each. A value that is used again moves to the end instead of being cloned:
/// counting references for every operation would cost more than a small operation itself.
pub(super) struct InFlight<T> {
    /// In the order of the operations.
    things: VecDeque<(u64, T)>,
}

impl<T> InFlight<T> {
    pub(super) fn new() -> Self {
        Self { things: VecDeque::new() }
    }

    /// Holds a value until operation `id`, the latest so far, is acknowledged: the held one for which `same` is true, else the
    /// result of `make`.
    #[inline]
    pub(super) fn hold(&mut self, id: u64, same: impl Fn(&T) -> bool, make: impl FnOnce() -> T) {
        match self.things.back_mut() {
            Some((last, thing)) if same(thing) => *last = id,
            _ => {
                let back = self.things.iter().rev().take(RECENT).position(|(_, thing)| same(thing));
                let known = back.and_then(|back| self.things.remove(self.things.len() - 1 - back));
                let thing = known.map_or_else(make, |(_, thing)| thing);
                self.things.push_back((id, thing));
            }
        }
    }

    /// The value that the latest operation uses.
    pub(super) fn latest(&self) -> Option<&T> {
        self.things.back().map(|(_, thing)| thing)
    }

    /// A value that only operations below `done` used; `None` once all others are still in use.
    pub(super) fn release(&mut self, done: u64) -> Option<T> {
        self.things.front().filter(|(id, _)| *id < done)?;
        self.things.pop_front().map(|(_, thing)| thing)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Every value is held exactly until the last operation that uses it is done, whatever is used in between.
        #[test]
        fn each_is_kept_until_its_last_use_is_done(steps in prop::collection::vec((0..9_usize, any::<bool>()), 1..200)) {
            let (mut held, mut last, mut done) = (InFlight::new(), [None; 9], 0);
            for (id, (thing, completes)) in steps.into_iter().enumerate() {
                let id = id as u64;
                held.hold(id, |known| *known == thing, || thing);
                last[thing] = Some(id);
                prop_assert_eq!(held.latest(), Some(&thing));
                if completes {
                    done += (id + 1 - done).div_ceil(2);
                    while held.release(done).is_some() {}
                }
                for (thing, last) in last.iter().enumerate() {
                    let there = held.things.iter().any(|(_, kept)| *kept == thing);
                    prop_assert_eq!(there, last.is_some_and(|last| last >= done), "{}", thing);
                }
            }
        }

        /// Four values that alternate are held once each.
        #[test]
        fn few_things_are_kept_once(uses in prop::collection::vec(0..RECENT, 1..100)) {
            let mut held = InFlight::new();
            for (id, thing) in uses.into_iter().enumerate() {
                held.hold(id as u64, |known| *known == thing, || thing);
            }
            prop_assert!(held.things.len() <= RECENT);
        }
    }
}
