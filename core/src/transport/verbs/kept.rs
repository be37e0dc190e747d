//! What outstanding requests keep alive, each thing once.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

/// How many things are looked through before one is kept once more: data and signals take turns.
const RECENT: usize = 4;

/// Things by the latest request that uses them. What is used again moves to the end: counting its owners for every request
/// would cost more than the request.
pub(super) struct Kept<T> {
    /// In the order of the requests.
    things: VecDeque<(u64, T)>,
}

impl<T> Kept<T> {
    pub(super) fn new() -> Self {
        Self { things: VecDeque::new() }
    }

    /// Keeps something until request `id`, the latest, has completed: what `same` recognises, else what `make` makes.
    #[inline]
    pub(super) fn keep(&mut self, id: u64, same: impl Fn(&T) -> bool, make: impl FnOnce() -> T) {
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

    /// What the latest request uses.
    pub(super) fn latest(&self) -> Option<&T> {
        self.things.back().map(|(_, thing)| thing)
    }

    /// Something that only requests below `done` used, until there is no more.
    pub(super) fn release(&mut self, done: u64) -> Option<T> {
        self.things.pop_front_if(|(id, _)| *id < done).map(|(_, thing)| thing)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Things are there exactly until the last request that uses them is done, whatever is used in between.
        #[test]
        fn each_is_kept_until_its_last_use_is_done(steps in prop::collection::vec((0..9_usize, any::<bool>()), 1..200)) {
            let (mut kept, mut last, mut done) = (Kept::new(), [None; 9], 0);
            for (id, (thing, completes)) in steps.into_iter().enumerate() {
                let id = id as u64;
                kept.keep(id, |known| *known == thing, || thing);
                last[thing] = Some(id);
                prop_assert_eq!(kept.latest(), Some(&thing));
                if completes {
                    done += (id + 1 - done).div_ceil(2);
                    while kept.release(done).is_some() {}
                }
                for (thing, last) in last.iter().enumerate() {
                    let there = kept.things.iter().any(|(_, kept)| *kept == thing);
                    prop_assert_eq!(there, last.is_some_and(|last| last >= done), "{}", thing);
                }
            }
        }

        /// Four things that take turns are there once.
        #[test]
        fn few_things_are_kept_once(uses in prop::collection::vec(0..RECENT, 1..100)) {
            let mut kept = Kept::new();
            for (id, thing) in uses.into_iter().enumerate() {
                kept.keep(id as u64, |known| *known == thing, || thing);
            }
            prop_assert!(kept.things.len() <= RECENT);
        }
    }
}
