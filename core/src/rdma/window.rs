//! Which requests to signal, and how many may still be posted.
#![forbid(unsafe_code)]

/// The arithmetic of a send queue in which only some requests are signalled.
///
/// Requests are numbered from 0; the number is the request's id. A queue pair executes in order, so the completion of number
/// n means that all up to n are done and their places in the queue free. Every k-th request is signalled, and k is at most
/// the size of the queue, so that a full queue always has a signalled request in it.
///
/// A failed request completes whether it was signalled or not, so that with it everything outstanding is known to have ended.
#[derive(Clone, Debug)]
pub struct Window {
    capacity: u64,
    every: u64,
    /// Requests numbered so far.
    posted: u64,
    /// Requests known to be done: all below this number.
    done: u64,
    /// All below this number are covered by a signalled request.
    signalled: u64,
}

impl Window {
    /// For a send queue of `capacity` requests of which every `every`-th is signalled, at least one in `capacity`.
    pub fn new(capacity: u32, every: u32) -> Self {
        let capacity = u64::from(capacity.max(1));
        Self { capacity, every: u64::from(every).clamp(1, capacity), posted: 0, done: 0, signalled: 0 }
    }

    /// Numbers the next request; whether it must be signalled. `None` while the queue is full: poll for completions.
    #[inline]
    pub fn take(&mut self) -> Option<(u64, bool)> {
        if self.free() == 0 {
            return None;
        }
        let number = self.posted;
        self.posted += 1;
        let signal = self.posted - self.signalled >= self.every;
        if signal {
            self.signalled = self.posted;
        }
        Some((number, signal))
    }

    /// Like [`take`](Self::take), signalled in any case: for the request whose end is waited for.
    #[inline]
    pub fn take_signalled(&mut self) -> Option<u64> {
        let (number, _) = self.take()?;
        self.signalled = self.posted;
        Some(number)
    }

    /// Notes that request `number` has completed. A number that was not given out or is known to be done changes nothing.
    #[inline]
    pub fn complete(&mut self, number: u64) {
        if number < self.posted {
            self.done = self.done.max(number + 1);
        }
    }

    /// How many requests fit now.
    pub fn free(&self) -> u64 {
        self.capacity - (self.posted - self.done)
    }

    /// Requests whose end is not known.
    pub fn outstanding(&self) -> u64 {
        self.posted - self.done
    }

    /// The number that the next request gets: what has to be done for everything so far to be.
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// All requests below this number are done.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Whether a completion will tell the end of everything posted; if not, the next wait needs a signalled request.
    pub fn is_covered(&self) -> bool {
        self.signalled == self.posted
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_kth_is_signalled_and_covers_those_before() {
        let mut window = Window::new(100, 16);
        let signals: Vec<u64> = (0..64).filter_map(|_| window.take().filter(|t| t.1).map(|t| t.0)).collect();
        assert_eq!(signals, [15, 31, 47, 63]);
        assert!(window.is_covered());
        window.complete(31);
        assert_eq!((window.done(), window.outstanding(), window.free()), (32, 32, 68));
        window.complete(15);
        assert_eq!(window.done(), 32, "completions do not go back");
        assert_eq!(window.take(), Some((64, false)));
        assert!(!window.is_covered());
        assert_eq!(window.take_signalled(), Some(65));
        assert!(window.is_covered());
        assert_eq!(window.take(), Some((66, false)), "counting begins anew");
    }

    proptest! {
        /// A queue executes in order and completes what is signalled: whatever the sizes, the window never gets stuck, never
        /// exceeds the queue, and knows in the end that everything is done.
        #[test]
        fn it_never_gets_stuck(capacity in 1u32..40, every in 0u32..60, polls in proptest::collection::vec(any::<bool>(), 1..400)) {
            let mut window = Window::new(capacity, every);
            let mut completions = std::collections::VecDeque::new();
            for poll in polls {
                if poll && let Some(number) = completions.pop_front() {
                    window.complete(number);
                }
                match window.take() {
                    Some((number, true)) => completions.push_back(number),
                    Some((_, false)) => {}
                    None => prop_assert!(!completions.is_empty(), "full, and nothing will complete"),
                }
                prop_assert!(window.outstanding() <= u64::from(capacity));
            }
            completions.into_iter().for_each(|number| window.complete(number));
            prop_assert!(window.outstanding() < u64::from(every.max(1)).min(u64::from(capacity)));
            prop_assert_eq!(window.outstanding() == 0, window.is_covered());
        }
    }
}
