//! Peers that have ended, or whose rank is known to be in a later life, and of whose end the program has not been told: nothing of a later life
//! is dispatched before.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::sync::{AtomicUsize, Mutex, Ordering, lock};

/// By rank, over the type `P` of a peer.
pub(super) struct Departures<P> {
    /// In the order of the lives.
    ranks: Mutex<HashMap<u32, VecDeque<Departure<P>>>>,
    /// How many ranks there are, so that rounds without any take no lock. Written with them locked.
    count: AtomicUsize,
}

struct Departure<P> {
    peer: Arc<P>,
    /// Later lives that have something to dispatch.
    waiting: Vec<Arc<P>>,
}

impl<P> Default for Departures<P> {
    fn default() -> Self {
        Self { ranks: Mutex::default(), count: AtomicUsize::new(0) }
    }
}

impl<P> Departures<P> {
    /// `peer`, of `rank`, has ended, and the news waits to be dispatched; or it is about to end. From here on nothing of later lives is
    /// dispatched before the news. Does nothing for one that is there already.
    pub(super) fn add(&self, rank: u32, peer: Arc<P>) {
        let mut ranks = lock(&self.ranks);
        let departures = ranks.entry(rank).or_default();
        if departures.iter().any(|departure| Arc::ptr_eq(&departure.peer, &peer)) {
            return;
        }
        departures.push_back(Departure { peer, waiting: Vec::new() });
        self.count.store(ranks.len(), Ordering::Release);
    }

    /// Whether something of an earlier life is to be dispatched before anything of `peer`.
    #[inline]
    pub(super) fn precede(&self, rank: u32, peer: &Arc<P>) -> bool {
        self.count.load(Ordering::Acquire) > 0 && {
            let ranks = lock(&self.ranks);
            first(&ranks, rank).is_some_and(|first| !Arc::ptr_eq(&first.peer, peer))
        }
    }

    /// Keeps `peer`, which has something to dispatch, until its earlier lives are over; gives it back if they are.
    #[inline]
    pub(super) fn hold_back(&self, rank: u32, peer: Arc<P>) -> Option<Arc<P>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Some(peer);
        }
        let mut ranks = lock(&self.ranks);
        match ranks.get_mut(&rank).and_then(VecDeque::front_mut) {
            Some(first) if !Arc::ptr_eq(&first.peer, &peer) => first.waiting.push(peer),
            _ => return Some(peer),
        }
        None
    }

    /// The program has been told of the end of `peer`. Returns those that have waited for it.
    pub(super) fn end(&self, rank: u32, peer: &Arc<P>) -> Vec<Arc<P>> {
        let mut ranks = lock(&self.ranks);
        let Some(departures) = ranks.get_mut(&rank) else { return Vec::new() };
        let place = departures.iter().position(|departure| Arc::ptr_eq(&departure.peer, peer));
        let ended = place.and_then(|place| departures.remove(place));
        if departures.is_empty() {
            ranks.remove(&rank);
        }
        self.count.store(ranks.len(), Ordering::Release);
        ended.map(|ended| ended.waiting).unwrap_or_default()
    }

    /// Forgets them all: nobody is told any more. Returns those that have waited.
    pub(super) fn clear(&self) -> Vec<Arc<P>> {
        let ranks = std::mem::take(&mut *lock(&self.ranks));
        self.count.store(0, Ordering::Release);
        ranks.into_values().flatten().flat_map(|departure| departure.waiting).collect()
    }
}

fn first<P>(ranks: &HashMap<u32, VecDeque<Departure<P>>>, rank: u32) -> Option<&Departure<P>> {
    ranks.get(&rank).and_then(VecDeque::front)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_later_life_waits_for_all_earlier_ones_and_for_no_other_rank() {
        let departures = Departures::default();
        let [first, second, third, other] = [0, 1, 2, 3].map(Arc::new);
        assert!(!departures.precede(1, &first));
        departures.add(1, first.clone());
        departures.add(1, second.clone());
        departures.add(1, first.clone());
        assert!(!departures.precede(1, &first) && departures.precede(1, &second));
        assert!(departures.hold_back(1, first.clone()).is_some(), "its own end is dispatched");
        assert!(departures.hold_back(2, other).is_some());
        assert!(departures.hold_back(1, third.clone()).is_none());
        assert!(departures.hold_back(1, second.clone()).is_none());
        let mut waited = departures.end(1, &first);
        assert_eq!(waited.iter().map(|peer| **peer).collect::<Vec<_>>(), [2, 1]);
        assert!(departures.hold_back(1, waited.remove(0)).is_none(), "the second life is not over");
        assert!(departures.hold_back(1, waited.remove(0)).is_some());
        let waited = departures.end(1, &second);
        assert!(waited.len() == 1 && !departures.precede(1, &third));
    }

    #[test]
    fn nobody_waits_once_they_are_cleared() {
        let departures = Departures::default();
        let [first, second] = [0, 1].map(Arc::new);
        departures.add(1, first.clone());
        assert!(departures.hold_back(1, second.clone()).is_none());
        assert_eq!(departures.clear(), std::slice::from_ref(&second));
        assert!(departures.end(1, &first).is_empty() && departures.hold_back(1, second).is_some());
    }
}
