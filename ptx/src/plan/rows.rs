//! Numbers that blocks of one shape do not share, and where kernels find them.

use std::fmt::Write as _;

use super::{Kernel, Step};
use crate::abi::PlanArgs;

/// Largest size of a kernel's parameters on every architecture.
pub(super) const MAX_ARGS: usize = 4096;
/// Bytes of constants that are put into the constant bank, which has 64 KiB.
const MAX_CONST: usize = 32 << 10;

impl Kernel {
    /// Bytes of the kernel's one parameter: the fixed part, the addresses, and [`args_rows`](Self::args_rows).
    pub fn args_bytes(&self) -> usize {
        self.rows_at() + 4 * self.args_rows().len()
    }

    /// Words of the parameter behind the addresses, the same in every call: the numbers of the blocks, if there is room. From memory
    /// they would come a microsecond later, because the caches of constants are empty when a kernel begins.
    pub fn args_rows(&self) -> Vec<u32> {
        let rows = Rows::of(self);
        if rows.space == Space::Param { rows.padded() } else { Vec::new() }
    }

    /// Bytes of the parameter in front of the rows.
    pub(super) fn rows_at(&self) -> usize {
        size_of::<PlanArgs>() + 8 * self.addresses as usize
    }
}

/// The rows of all blocks that have numbers of their own.
pub(super) struct Rows {
    pub(super) table: Vec<u32>,
    /// Bytes from the table to the row of each block.
    pub(super) starts: Vec<u32>,
    /// Bytes of a row of each shape, if its blocks differ, or the turns of a repetition.
    pub(super) strides: Vec<Option<u32>>,
    pub(super) space: Space,
}

/// Where the table lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    /// Behind the addresses in the kernel's parameter.
    Param,
    /// In the module's constants.
    Const,
    /// In a variable of the module.
    Global,
}

impl Space {
    /// The state space, as in a load.
    pub(super) fn loads(self) -> &'static str {
        match self {
            Self::Param => "param",
            Self::Const => "const",
            Self::Global => "weak.global",
        }
    }
}

impl Rows {
    pub(super) fn of(kernel: &Kernel) -> Self {
        let stride = |shape: usize| {
            // Its only numbers are shares, which the block finds without a row.
            if kernel.runs_with_any_grid() {
                return None;
            }
            let mut rows =
                kernel.blocks.iter().filter(|block| block.shape as usize == shape).map(|block| &block.row);
            let first = rows.next()?;
            let by_turn = kernel.shapes[shape].steps.iter().any(|step| matches!(step, Step::Repeat { .. }));
            let differ = rows.any(|row| row != first) || by_turn && !first.is_empty();
            differ.then_some(4 * u32::try_from(first.len()).ok()?)
        };
        let strides: Vec<_> = (0..kernel.shapes.len()).map(stride).collect();
        let (mut table, mut starts) = (Vec::new(), Vec::new());
        for block in &kernel.blocks {
            starts.push(4 * u32::try_from(table.len()).unwrap_or(u32::MAX / 4));
            if strides[block.shape as usize].is_some() {
                table.extend(&block.row);
            }
        }
        let space = match 4 * table.len() {
            bytes if kernel.rows_at() + bytes.next_multiple_of(8) <= MAX_ARGS => Space::Param,
            bytes if bytes <= MAX_CONST => Space::Const,
            _ => Space::Global,
        };
        Self { table, starts, strides, space }
    }

    /// The table in whole words of 8 bytes, as parameters are.
    fn padded(mut self) -> Vec<u32> {
        self.table.resize(self.table.len().next_multiple_of(2), 0);
        self.table
    }

    pub(super) fn name(&self, kernel: &Kernel) -> String {
        format!("{}_rows", kernel.symbol)
    }

    pub(super) fn declaration(&self, kernel: &Kernel) -> String {
        let space = if self.space == Space::Const { ".const" } else { ".global" };
        let mut text = format!("{space} .align 4 .b32 {}[{}] = {{", self.name(kernel), self.table.len());
        for (index, value) in self.table.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            let line = if index % 16 == 0 { "\n    " } else { " " };
            let _ = write!(text, "{separator}{line}{value}");
        }
        text.push_str("\n};");
        text
    }
}
