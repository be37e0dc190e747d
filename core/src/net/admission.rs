//! Which peers a listener takes once they have proved the secret, and how many connections of each.
//!
//! Every holder of the secret can prove it, so the proof alone bounds nothing: a broken or hostile rank could open
//! connections without end, or claim to be a rank that the job does not have. A connection is counted by a [`Permit`]
//! that lives as long as its descriptor.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::claims::Claims;
use crate::error::{Error, ErrorKind};
use crate::sync::{Mutex, lock};

/// How many connections with one listener a rank may have at a time. A rank needs one, or two if both sides connect at the
/// same time; the others are room for closed connections whose end has not been read yet.
pub(super) const MAX_PER_RANK: usize = 8;

/// Limits of one listener on the connections it accepts, and the count of its open ones.
#[derive(Debug)]
pub(super) struct Admission {
    /// Peers have numbers below this, if it is known.
    ranks: Option<u32>,
    most: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    by_rank: HashMap<u32, usize>,
    all: usize,
}

/// The right to have one connection. Dropping it gives the place to another.
#[derive(Debug)]
pub(super) struct Permit {
    admission: Arc<Admission>,
    rank: u32,
}

/// Why a peer that knows the secret is not taken; the number is the limit that it met. Crosses the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The job has only so many ranks.
    NoSuchRank(u32),
    /// This rank has so many connections.
    RankIsFull(u32),
    /// All ranks together have so many connections.
    IsFull(u32),
}

impl Admission {
    /// Takes ranks below `ranks`, or any, and at most `most` connections in all.
    pub(super) fn new(ranks: Option<u32>, most: usize) -> Arc<Self> {
        Arc::new(Self { ranks, most, open: Mutex::default() })
    }

    /// Takes a connection of a peer that has proved the secret, or says why not.
    pub(super) fn admit(self: &Arc<Self>, peer: Claims) -> Result<Permit, Refusal> {
        if let Some(ranks) = self.ranks.filter(|ranks| peer.from >= *ranks) {
            return Err(Refusal::NoSuchRank(ranks));
        }
        let mut open = lock(&self.open);
        let open = &mut *open;
        if open.all >= self.most {
            return Err(Refusal::IsFull(open.all as u32));
        }
        let of_rank = open.by_rank.entry(peer.from).or_default();
        if *of_rank >= MAX_PER_RANK {
            return Err(Refusal::RankIsFull(*of_rank as u32));
        }
        *of_rank += 1;
        open.all += 1;
        Ok(Permit { admission: self.clone(), rank: peer.from })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut open = lock(&self.admission.open);
        open.all -= 1;
        if let Entry::Occupied(mut of_rank) = open.by_rank.entry(self.rank) {
            *of_rank.get_mut() -= 1;
            if *of_rank.get() == 0 {
                of_rank.remove();
            }
        }
    }
}

impl Refusal {
    /// Code and number.
    pub(super) fn encode(self) -> [u8; 8] {
        let (code, number) = match self {
            Self::NoSuchRank(ranks) => (1_u32, ranks),
            Self::RankIsFull(connections) => (2, connections),
            Self::IsFull(connections) => (3, connections),
        };
        (u64::from(number) << 32 | u64::from(code)).to_le_bytes()
    }

    /// The counterpart of [`encode`](Self::encode); `None` for a code of another version.
    pub(super) fn decode(bytes: [u8; 8]) -> Option<Self> {
        let both = u64::from_le_bytes(bytes);
        let number = (both >> 32) as u32;
        match both as u32 {
            1 => Some(Self::NoSuchRank(number)),
            2 => Some(Self::RankIsFull(number)),
            3 => Some(Self::IsFull(number)),
            _ => None,
        }
    }

    /// The error that both sides report for a refused connection of rank `from`.
    pub(super) fn error(self, from: u32) -> Error {
        let (kind, text) = match self {
            Self::NoSuchRank(ranks) => (
                ErrorKind::InvalidUsage,
                format!("a connection of rank {from} was refused: there are {ranks} ranks, numbered from 0"),
            ),
            Self::RankIsFull(count) => (
                ErrorKind::Remote,
                format!(
                    "a connection was refused: rank {from} has {count} connections with this listener already"
                ),
            ),
            Self::IsFull(count) => (
                ErrorKind::Remote,
                format!(
                    "a connection of rank {from} was refused: the listener has {count} connections already"
                ),
            ),
        };
        Error::new(kind, "handshake", text)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn rank(from: u32) -> Claims {
        Claims { purpose: 1, scope: 2, from, to: 0 }
    }

    #[test]
    fn places_are_counted_by_rank_and_in_all_and_come_back() {
        let admission = Admission::new(Some(4), MAX_PER_RANK + 2);
        assert_eq!(admission.admit(rank(4)).unwrap_err(), Refusal::NoSuchRank(4));
        assert_eq!(admission.admit(rank(Claims::ANY)).unwrap_err(), Refusal::NoSuchRank(4));
        let mut permits: Vec<Permit> = (0..MAX_PER_RANK).map(|_| admission.admit(rank(1)).unwrap()).collect();
        assert_eq!(admission.admit(rank(1)).unwrap_err(), Refusal::RankIsFull(8));
        permits.push(admission.admit(rank(2)).unwrap());
        permits.push(admission.admit(rank(3)).unwrap());
        assert_eq!(admission.admit(rank(0)).unwrap_err(), Refusal::IsFull(10));
        drop(permits);
        let open = lock(&admission.open);
        assert_eq!((open.all, open.by_rank.len()), (0, 0));
        let unknown = Admission::new(None, 1);
        let _taken = unknown.admit(rank(u32::MAX)).unwrap();
    }

    #[test]
    fn refusals_cross_the_wire() {
        for refusal in [Refusal::NoSuchRank(7), Refusal::RankIsFull(u32::MAX), Refusal::IsFull(0)] {
            assert_eq!(Refusal::decode(refusal.encode()), Some(refusal));
        }
        assert_eq!(Refusal::decode([0; 8]), None);
        assert_eq!(Refusal::decode([9; 8]), None);
    }
}
