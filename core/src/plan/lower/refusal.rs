//! How a plan is refused that has no kernel.

use crate::error::{Error, ErrorKind};

pub(super) fn refused(reason: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Plan, "plan::lower", reason)
}
