//! The lives of this side with each peer, and the connections that are just being made.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::sync::{Mutex, lock};

/// How often links with each peer have ended here, and which handshakes are under way. One lock covers both: a peer that is told a
/// life either gets its link in that life, or is known to be about to.
#[derive(Default)]
pub(super) struct Lives {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By rank: the latest generation, and how often it was ended.
    ended: HashMap<u32, (u64, u32)>,
    /// Handshakes under way, by rank and generation.
    handshakes: HashMap<(u32, u64), usize>,
}

impl State {
    fn life(&self, rank: u32, generation: u64) -> u32 {
        self.ended.get(&rank).filter(|(latest, _)| *latest == generation).map_or(0, |(_, lives)| *lives)
    }

    fn end(&mut self, rank: u32, generation: u64) {
        let (latest, count) = self.ended.entry(rank).or_default();
        if *latest != generation {
            (*latest, *count) = (generation, 0);
        }
        *count = count.wrapping_add(1);
    }
}

impl Lives {
    /// How often this side has ended a peer of `rank` and `generation` before. The two sides of a new link tell each other.
    pub(super) fn life(&self, rank: u32, generation: u64) -> u32 {
        lock(&self.state).life(rank, generation)
    }

    /// Notes that a peer of `rank` and `generation` ends.
    pub(super) fn end(&self, rank: u32, generation: u64) {
        lock(&self.state).end(rank, generation);
    }

    /// As [`end`](Self::end), unless a handshake with the peer is under way: then false.
    pub(super) fn end_between_handshakes(&self, rank: u32, generation: u64) -> bool {
        let mut state = lock(&self.state);
        let is_free = !state.handshakes.contains_key(&(rank, generation));
        if is_free {
            state.end(rank, generation);
        }
        is_free
    }

    /// Begins a handshake; returns the life to tell the peer.
    pub(super) fn begin_handshake(&self, rank: u32, generation: u64) -> u32 {
        let mut state = lock(&self.state);
        *state.handshakes.entry((rank, generation)).or_default() += 1;
        state.life(rank, generation)
    }

    /// Ends one: its link is there, or there will be none.
    pub(super) fn end_handshake(&self, rank: u32, generation: u64) {
        let mut state = lock(&self.state);
        if let Some(count) = state.handshakes.get_mut(&(rank, generation)) {
            *count -= 1;
            if *count == 0 {
                state.handshakes.remove(&(rank, generation));
            }
        }
    }

    /// Whether a handshake with this peer is under way. Once there is none, the links that came of earlier ones show.
    pub(super) fn is_connecting(&self, rank: u32, generation: u64) -> bool {
        lock(&self.state).handshakes.contains_key(&(rank, generation))
    }

    /// Whether any handshake is under way.
    pub(super) fn has_handshakes(&self) -> bool {
        !lock(&self.state).handshakes.is_empty()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_end_waits_for_every_handshake_with_that_peer() {
        let lives = Lives::default();
        assert_eq!([lives.begin_handshake(1, 5), lives.begin_handshake(1, 5)], [0, 0]);
        assert!(lives.end_between_handshakes(1, 6) && lives.end_between_handshakes(2, 5), "other peers");
        lives.end_handshake(1, 5);
        assert!(lives.is_connecting(1, 5) && !lives.end_between_handshakes(1, 5));
        lives.end_handshake(1, 5);
        assert!(!lives.has_handshakes() && lives.end_between_handshakes(1, 5));
        assert_eq!(
            (lives.begin_handshake(1, 5), lives.life(1, 6)),
            (1, 0),
            "only the latest generation counts"
        );
    }
}
