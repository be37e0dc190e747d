//! Plan files: MSCCL++'s execution-plan JSON.
//!
//! [`read`] is strict: an unknown key, an index out of range or a value of another kind is an error that names its path in
//! the file. [`write()`] gives a file that [`read`] gives back as an equal plan. `docs/plans.md` lists where the meaning
//! differs from MSCCL++'s executor, which ignores parts of its own format.

mod names;
mod read;
mod read_ops;
mod repair;
mod tree;
mod write;

#[cfg(test)]
mod tests;

pub use read::{MAX_BYTES, read};
pub use write::write;

use super::json;
use super::{collective, ir};

/// Whether files have a name for a move.
pub(super) fn named(moved: &ir::Move) -> bool {
    names::Shape::of(moved).is_some_and(|shape| shape.reduces() == moved.reduction.is_some())
}

/// Whether files write two neighbours of one origin as one operation.
pub(super) fn listed(a: &ir::Op, b: &ir::Op) -> bool {
    write::fuses(a, b)
}
