//! Passes: plans made out of plans.
//!
//! A pass takes a plan of right structure and gives one with the same result. `docs/plans.md` has each pass's rules as a table.

mod effects;
mod stab;
mod sync;

#[cfg(test)]
mod sync_tests;
#[cfg(test)]
mod tests;

pub use sync::sync;

use super::check;
use super::geometry;
use super::ir::{self, Plan};
use crate::error::{Error, ErrorKind, Result};

/// Refuses a plan whose structure is wrong, so that passes need not look at ranges again.
fn checked(plan: &Plan) -> Result<()> {
    check::structure(plan).first().map_or(Ok(()), |finding| Err(refused(finding.to_string())))
}

fn refused(reason: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Plan, "plan::pass", reason)
}
