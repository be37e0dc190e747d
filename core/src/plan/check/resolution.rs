//! Atoms: the parts of a chunk that operations handle separately.
//!
//! Loops and groups of blocks cut chunks. A chunk is modelled as so many atoms that every cut falls between two, with three
//! iterations of the loop of the largest unit for each chunk: a first, a last and one between.

use super::geometry::operands;
use super::ir::{Loop, Op, Plan};
use super::structure::flat;

/// Most atoms of a chunk.
const ATOMS: u64 = 4096;
/// Iterations, for one chunk, of the loop of the largest unit.
const TURNS: u64 = 3;

#[derive(Clone, Copy, Debug)]
pub(super) struct Resolution {
    /// Atoms of a chunk.
    pub(super) atoms: u64,
    /// Bytes that loops count in, and atoms of each.
    bytes: u64,
    per: u64,
}

impl Resolution {
    /// `None` if the cuts are too many and too different.
    pub(super) fn of(plan: &Plan) -> Option<Self> {
        let blocks = || plan.ranks.iter().flat_map(|rank| &rank.blocks).flat_map(|block| &block.ops);
        let units = || {
            blocks().filter_map(|operation| match &operation.op {
                Op::Loop(repeated) => Some(repeated.unit),
                _ => None,
            })
        };
        let bytes = units().fold(0, gcd).max(1);
        let steps = units().max().map_or(1, |unit| TURNS.saturating_mul(unit / bytes));
        let mut per = 1;
        for operation in blocks() {
            let unit = match &operation.op {
                Op::Loop(repeated) => Some(repeated.unit / bytes),
                _ => None,
            };
            for op in flat(operation) {
                let Op::Move(moved) = op else { continue };
                let Some(share) = moved.share else { continue };
                debug_assert!(operands(moved).count() > 0);
                let cut = unit.unwrap_or(steps.saturating_mul(u64::from(moved.count)));
                let of = u64::from(share.of);
                per = lcm(per, of / gcd(of, cut));
                if per.saturating_mul(steps) > ATOMS {
                    return None;
                }
            }
        }
        let atoms = steps.checked_mul(per).filter(|&atoms| atoms <= ATOMS)?;
        Some(Self { atoms, bytes, per })
    }

    /// Atoms of a loop's slice.
    pub(super) fn unit(&self, repeated: &Loop) -> u64 {
        repeated.unit / self.bytes * self.per
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn lcm(a: u64, b: u64) -> u64 {
    (a / gcd(a, b)).saturating_mul(b)
}
