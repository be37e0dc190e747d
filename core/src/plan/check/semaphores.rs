//! Semaphores between the blocks of a rank.

use std::collections::{HashMap, VecDeque};

use super::clock::Knowledge;
use super::ir::{Op, RankPlan};
use super::structure::flat;

/// One semaphore of a run.
#[derive(Debug, Default)]
pub(super) struct Semaphore {
    value: u64,
    initial: u64,
    /// Several blocks release, or several acquire: which release an acquire takes is open.
    open: bool,
    /// The clock of each release that may still be acquired.
    releases: VecDeque<Knowledge>,
    released: u64,
    acquired: HashMap<u32, u64>,
    /// All that releases told so far.
    sum: Option<Knowledge>,
    pub(super) waiters: Vec<u32>,
}

impl Semaphore {
    /// The semaphores of a rank.
    pub(super) fn of(rank: &RankPlan) -> Vec<Self> {
        let mut users: Vec<[Vec<usize>; 2]> = vec![Default::default(); rank.semaphores.len()];
        for (block, contents) in rank.blocks.iter().enumerate() {
            for op in contents.ops.iter().flat_map(flat) {
                let (semaphore, side) = match *op {
                    Op::Release { semaphore } => (semaphore, 0),
                    Op::Acquire { semaphore } => (semaphore, 1),
                    _ => continue,
                };
                let blocks = &mut users[semaphore as usize][side];
                if blocks.last() != Some(&block) {
                    blocks.push(block);
                }
            }
        }
        let one = |(&initial, users): (&u32, &[Vec<usize>; 2])| Self {
            value: u64::from(initial),
            initial: u64::from(initial),
            open: users.iter().any(|blocks| blocks.len() > 1),
            ..Self::default()
        };
        rank.semaphores.iter().zip(&users).map(one).collect()
    }

    pub(super) fn release(&mut self, know: &Knowledge) {
        self.value += 1;
        self.released += 1;
        if self.open {
            self.sum.get_or_insert_with(|| know.clone()).join(know);
        } else {
            self.releases.push_back(know.clone());
        }
    }

    /// Takes one for a block, and returns what this tells it for sure. `None` if there is none to take.
    pub(super) fn acquire(&mut self, block: u32) -> Option<Option<Knowledge>> {
        self.value = self.value.checked_sub(1)?;
        let acquired = self.acquired.entry(block).or_default();
        *acquired += 1;
        if !self.open {
            let told = *acquired > self.initial;
            return Some(if told { self.releases.pop_front() } else { None });
        }
        // Only a block that has taken as many as were released has them all before it.
        let all = *acquired >= self.initial + self.released;
        Some(if all { self.sum.clone() } else { None })
    }
}
