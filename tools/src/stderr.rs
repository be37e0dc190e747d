//! Messages on standard error.

use std::fmt;
use std::io::Write;

/// Writes one line. `eprintln!` would panic if nobody reads it; then there is nobody to tell either.
pub(crate) fn say(line: impl fmt::Display) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
