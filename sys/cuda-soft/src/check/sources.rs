//! Where accesses come from: instructions of kernels and calls of the driver.

use std::collections::HashMap;
use std::fmt;

/// An instruction or a call, as reports name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Instruction { kernel: String, function: String, line: u32 },
    Call(&'static str),
}

/// All sources, by number.
#[derive(Debug, Default)]
pub(super) struct Sources {
    list: Vec<Source>,
    numbers: HashMap<(u64, u32, u32), u32>,
}

impl Sources {
    /// The number of the source with this key, which `make` makes when it is new.
    pub(super) fn number(&mut self, key: (u64, u32, u32), make: impl FnOnce() -> Source) -> u32 {
        *self.numbers.entry(key).or_insert_with(|| {
            self.list.push(make());
            self.list.len() as u32 - 1
        })
    }

    pub(super) fn get(&self, number: u32) -> Option<&Source> {
        self.list.get(number as usize)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instruction { kernel, function, line } if kernel == function => {
                write!(f, "{kernel}, line {line}")
            }
            Self::Instruction { kernel, function, line } => write!(f, "{kernel}, line {line} ({function})"),
            Self::Call(call) => f.write_str(call),
        }
    }
}
