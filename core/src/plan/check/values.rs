//! Symbolic values: the contributions that a chunk is made of.
//!
//! A value is a multiset of inputs. It is held as a hash to which every input adds its own number, so that values are compared
//! at once however they were computed; how a value was reduced is kept as a graph, to explain a wrong one. The hash has 128
//! bits, and no mistake is made to fool it.

use std::collections::BTreeMap;

use super::ir::Reduction;

/// Number of a value; 0 is memory that nobody has written.
pub(super) type ValueId = u32;

/// Most steps of an explanation.
const STEPS: usize = 1 << 16;

/// An atom of a rank's input in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Leaf {
    pub(super) rank: u32,
    pub(super) chunk: u32,
    pub(super) atom: u32,
    pub(super) call: u32,
}

#[derive(Clone, Debug)]
struct Value {
    hash: u128,
    call: u32,
    kind: ValueKind,
}

#[derive(Clone, Debug)]
enum ValueKind {
    Leaf(Leaf),
    /// A reduction of the values in this range of `terms`.
    Reduced {
        reduction: Reduction,
        first: u32,
        count: u32,
    },
}

/// All values of a run.
#[derive(Debug)]
pub(super) struct Values {
    values: Vec<Value>,
    terms: Vec<ValueId>,
}

impl Leaf {
    pub(super) fn hash(self) -> u128 {
        let Self { rank, chunk, atom, call } = self;
        mix(u128::from(rank) << 96 | u128::from(chunk) << 64 | u128::from(atom) << 32 | u128::from(call))
    }
}

/// A bijection that spreads every bit (two rounds of multiply and fold).
fn mix(value: u128) -> u128 {
    const ODD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    let mut mixed = (value ^ (value >> 61) ^ ODD).wrapping_mul(ODD);
    mixed = (mixed ^ (mixed >> 67)).wrapping_mul(ODD.rotate_left(31) | 1);
    mixed ^ (mixed >> 59)
}

impl Values {
    pub(super) fn new() -> Self {
        let none = Leaf { rank: u32::MAX, chunk: 0, atom: 0, call: 0 };
        Self { values: vec![Value { hash: 0, call: 0, kind: ValueKind::Leaf(none) }], terms: Vec::new() }
    }

    fn add(&mut self, value: Value) -> ValueId {
        self.values.push(value);
        u32::try_from(self.values.len() - 1).unwrap_or(0)
    }

    pub(super) fn leaf(&mut self, leaf: Leaf) -> ValueId {
        self.add(Value { hash: leaf.hash(), call: leaf.call, kind: ValueKind::Leaf(leaf) })
    }

    /// The reduction of several values.
    pub(super) fn reduced(&mut self, terms: &[ValueId], reduction: Reduction) -> ValueId {
        // The order and grouping of sums do not matter; a sum within a product does.
        let hash = |&term: &ValueId| {
            let value = &self.values[term as usize];
            match value.kind {
                ValueKind::Reduced { reduction: other, .. } if other != reduction => mix(!value.hash),
                _ => value.hash,
            }
        };
        let sum = terms.iter().map(hash).fold(0u128, u128::wrapping_add);
        let call = terms.iter().map(|&term| self.values[term as usize].call).min().unwrap_or(0);
        let first = u32::try_from(self.terms.len()).unwrap_or(0);
        self.terms.extend_from_slice(terms);
        let count = u32::try_from(terms.len()).unwrap_or(0);
        self.add(Value { hash: sum, call, kind: ValueKind::Reduced { reduction, first, count } })
    }

    pub(super) fn hash(&self, value: ValueId) -> u128 {
        self.values[value as usize].hash
    }

    /// The call whose inputs the value is made of, the oldest if of several; 0 if it is nothing.
    pub(super) fn call(&self, value: ValueId) -> u32 {
        self.values[value as usize].call
    }

    /// How a value differs from what is expected of it.
    pub(super) fn explain(&self, value: ValueId, expected: &[Leaf]) -> String {
        if value == 0 {
            return "was not written".into();
        }
        let mut found: BTreeMap<Leaf, i64> = BTreeMap::new();
        let mut mixed = false;
        let mut stack = vec![(value, None)];
        for _ in 0..STEPS {
            let Some((value, outer)) = stack.pop() else { break };
            match self.values[value as usize].kind {
                ValueKind::Leaf(leaf) => *found.entry(leaf).or_default() += 1,
                ValueKind::Reduced { reduction, first, count } => {
                    mixed |= outer.is_some_and(|outer| outer != reduction);
                    let terms = &self.terms[first as usize..(first + count) as usize];
                    stack.extend(terms.iter().map(|&term| (term, Some(reduction))));
                }
            }
        }
        if !stack.is_empty() {
            return "is made of other inputs than it should be".into();
        }
        let call = expected.first().map_or(0, |leaf| leaf.call);
        for leaf in expected {
            *found.entry(*leaf).or_default() -= 1;
        }
        let name = |leaf: &Leaf| match leaf {
            Leaf { rank: u32::MAX, .. } => "memory that nobody wrote".to_owned(),
            Leaf { rank, chunk, call: of, .. } if *of != call => {
                format!("input chunk {chunk} of rank {rank} of the call before")
            }
            Leaf { rank, chunk, .. } => format!("input chunk {chunk} of rank {rank}"),
        };
        let list = |keep: fn(i64) -> bool| {
            let names: Vec<String> =
                found.iter().filter(|&(_, &count)| keep(count)).map(|(leaf, _)| name(leaf)).collect();
            match names.len() {
                0..=4 => names.join(", "),
                more => format!("{}, and {} more", names[..4].join(", "), more - 4),
            }
        };
        let (lacks, extra) = (list(|count| count < 0), list(|count| count > 0));
        match (lacks.is_empty(), extra.is_empty()) {
            (false, false) => format!("lacks {lacks} and has instead {extra}"),
            (false, true) => format!("lacks {lacks}"),
            (true, false) => format!("has {extra} too often"),
            (true, true) if mixed => "mixes several reductions".into(),
            (true, true) => "has its parts in another order".into(),
        }
    }
}
