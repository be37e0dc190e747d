//! How a prediction is refused.

use crate::error::{Error, ErrorKind};

pub(super) fn refused(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Plan, "plan::cost", message)
}
