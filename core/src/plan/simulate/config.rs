//! How a plan is run, and how a run is refused.

use super::ir::Reduction;
use crate::error::{Error, ErrorKind};

/// How a plan is run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Decides all that the plan leaves open.
    pub seed: u64,
    /// Replaces the plan's own reductions.
    pub reduction: Option<Reduction>,
}

pub(super) fn refused(reason: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Plan, "plan::simulate", reason)
}
