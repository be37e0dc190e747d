//! Passes: plans made out of plans.
//!
//! A pass takes a plan of right structure and gives one with the same result. `docs/plans.md` has each pass's rules as a table.

pub(super) mod effects;
mod fuse;
mod item;
mod join;
mod list;
mod pipeline;
mod renumber;
mod replicate;
mod requests;
mod resources;
mod stab;
mod sync;

#[cfg(test)]
mod fuse_tests;
#[cfg(test)]
mod sync_tests;
#[cfg(test)]
pub(super) mod tests;

pub use fuse::{Shapes, fuse};
pub use list::{Options, PASSES, Pass, run};
pub use pipeline::pipeline;
pub use replicate::{Policy, replicate};
pub use resources::resources;
pub(super) use resources::works;
pub use sync::sync;

use super::check;
use super::ir::{self, Plan};
use super::{collective, file, geometry};
use crate::error::{Error, ErrorKind, Result};

/// Refuses a plan whose structure is wrong, so that passes need not look at ranges again, or that has too many chunks to
/// look at each.
fn checked(plan: &Plan) -> Result<()> {
    if let Some(finding) = check::structure(plan).first() {
        return Err(refused(finding.to_string()));
    }
    effects::Map::of(plan)
        .small()
        .then_some(())
        .ok_or_else(|| refused("the buffers have more than 134217728 chunks; use fewer"))
}

fn refused(reason: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Plan, "plan::pass", reason)
}
