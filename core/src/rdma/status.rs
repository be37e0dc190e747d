//! From the results of libibverbs to errors.

use std::ffi::{CStr, c_char, c_int};
use std::io;

use crate::error::{Error, ErrorKind};

/// The errno in the result of a function that returns 0, an errno, a negative errno, or -1 with `errno` set: the library
/// and its providers use all four.
pub(super) fn errno_of(result: c_int) -> Result<(), i32> {
    match result {
        0 => Ok(()),
        -1 => Err(last_errno()),
        other => Err(other.saturating_abs()),
    }
}

/// The errno after a function that returned null.
pub(super) fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().filter(|code| *code != 0).unwrap_or(libc::EIO)
}

/// An error of operation `op` with the system's words for `errno`.
pub(super) fn failed(op: &'static str, errno: i32, message: impl Into<String>) -> Error {
    let kind = if errno == libc::EOPNOTSUPP { ErrorKind::Unsupported } else { ErrorKind::Verbs };
    Error::new(kind, op, message.into()).with_code(errno).with_source(io::Error::from_raw_os_error(errno))
}

/// The text at `text`, which libibverbs owns, or an empty one.
///
/// # Safety
/// `text` is null or a C string that lives during the call.
pub(super) unsafe fn words(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The text in a `char` array that C terminates with 0.
pub(super) fn text_of(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().flat_map(|c| c.to_ne_bytes()).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_convention_gives_the_errno() {
        assert_eq!(errno_of(0), Ok(()));
        assert_eq!(errno_of(libc::EINVAL), Err(libc::EINVAL));
        assert_eq!(errno_of(-libc::EBUSY), Err(libc::EBUSY));
        // SAFETY: an invalid descriptor sets errno and does nothing else.
        unsafe { libc::close(-1) };
        assert_eq!(errno_of(-1), Err(libc::EBADF));
        assert_eq!(errno_of(c_int::MIN), Err(c_int::MAX));
    }
}
