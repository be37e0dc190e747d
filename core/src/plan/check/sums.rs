//! Where sums are complete: the moves whose result holds a chunk of every rank.

use std::collections::{HashMap, HashSet};

use super::position::Position;
use super::values::Leaf;

/// The sums that the reducing moves of a plan make.
#[derive(Debug)]
pub(in crate::plan) struct Sums {
    /// Hashes of the sums of all ranks' inputs, chunk by chunk.
    whole: HashSet<u128>,
    /// Whether an operation had results that are no such sum, and results that are.
    seen: HashMap<Position, [bool; 2]>,
}

/// The kind of an operation's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::plan) enum Sum {
    /// Of all ranks.
    Whole,
    /// Of some ranks.
    Part,
    /// Of all ranks in some chunks, and of some ranks in others.
    Both,
}

impl Sums {
    /// Knows the sums of the first call's inputs, and no results yet.
    pub(super) fn new(ranks: u32, chunks: u32, atoms: u32) -> Self {
        let sum = |chunk, atom| {
            let leaves = (0..ranks).map(|rank| Leaf { rank, chunk, atom, call: 1 }.hash());
            leaves.fold(0, u128::wrapping_add)
        };
        let whole = (0..chunks).flat_map(|chunk| (0..atoms).map(move |atom| sum(chunk, atom))).collect();
        Self { whole, seen: HashMap::new() }
    }

    /// Notes a result of an operation.
    pub(super) fn note(&mut self, position: Position, hash: u128) {
        self.seen.entry(position).or_default()[usize::from(self.whole.contains(&hash))] = true;
    }

    /// The kind of an operation's results; a part if it has never run.
    pub(in crate::plan) fn at(&self, position: Position) -> Sum {
        match self.seen.get(&position) {
            Some([true, true]) => Sum::Both,
            Some([false, true]) => Sum::Whole,
            _ => Sum::Part,
        }
    }
}
