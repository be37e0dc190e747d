//! Errors of collectives name the call that the program made, and the collective.

use crate::error::Result;
use crate::plan::Kind;

/// The collective, with its root if it has one.
pub(super) fn described(kind: &Kind) -> String {
    match kind.root() {
        Some(root) => format!("{} of root {root}", kind.name()),
        None => kind.name().to_owned(),
    }
}

/// An error of an executor below as one of `op`, which the program called. Errors of the driver and the system keep their names.
pub(super) fn called<T>(op: &'static str, result: Result<T>) -> Result<T> {
    result.map_err(|error| error.called("Executor::", op))
}

/// [`called`] for a call in which ranks may differ about the collective.
pub(super) fn called_for<T>(op: &'static str, kind: &Kind, result: Result<T>) -> Result<T> {
    called(op, result).map_err(|error| if error.op() == op { error.about(&described(kind)) } else { error })
}
