//! The PTX compiler's logs, and the errors made of them.

use std::ffi::{c_uint, c_void};
use std::ptr;

use cuda_driver_sys::CUjit_option;

use crate::error::{Error, ErrorKind};

/// Bytes of each of the compiler's logs.
const LOG: usize = 16 << 10;

/// Log buffers for the compiler, which writes its texts to them and replaces the buffers' sizes with those of the
/// texts.
pub(super) struct JitLog {
    info: Vec<u8>,
    errors: Vec<u8>,
    options: Box<[CUjit_option; 4]>,
    values: Box<[*mut c_void; 4]>,
}

impl JitLog {
    pub(super) fn new() -> Self {
        let (mut info, mut errors) = (vec![0; LOG], vec![0; LOG]);
        // The driver takes integers in the place of pointers.
        let size = || ptr::without_provenance_mut::<c_void>(LOG);
        let values = Box::new([info.as_mut_ptr().cast(), size(), errors.as_mut_ptr().cast(), size()]);
        let options = Box::new([
            CUjit_option::CU_JIT_INFO_LOG_BUFFER,
            CUjit_option::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ]);
        Self { info, errors, options, values }
    }

    /// The arrays of four options and their values. They stay valid while this value lives, even if it is moved; the
    /// driver writes to them.
    pub(super) fn options(&mut self) -> (c_uint, *mut CUjit_option, *mut *mut c_void) {
        (4, self.options.as_mut_ptr(), self.values.as_mut_ptr())
    }

    pub(super) fn errors(&self) -> String {
        text(&self.errors)
    }

    /// Logs the compiler's remarks that are not errors.
    pub(super) fn tell(&self, doing: &str) {
        let info = text(&self.info);
        if !info.is_empty() {
            log::debug!("{doing} PTX: {info}");
        }
    }
}

/// The text in a log buffer.
fn text(log: &[u8]) -> String {
    let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
    String::from_utf8_lossy(&log[..end]).trim().to_owned()
}

/// `error`, with the compiler's log and the first line of `ptx` it names.
pub(super) fn explain(error: &Error, ptx: &str, log: &str) -> Error {
    let mut message = error.message().to_owned();
    if !log.is_empty() {
        message.push_str("\n  the PTX compiler says: ");
        message.push_str(&log.replace('\n', "\n  "));
    }
    if let Some((number, line)) = line_named(log).and_then(|n| Some((n, ptx.lines().nth(n.checked_sub(1)?)?)))
    {
        message.push_str(&format!("\n  line {number} is: {}", line.trim()));
    }
    Error::new(ErrorKind::Cuda, error.op(), message).with_code(error.code())
}

/// The number behind the first "line" in `log`.
fn line_named(log: &str) -> Option<usize> {
    log.match_indices("line ").find_map(|(at, word)| {
        let rest = &log[at + word.len()..];
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jit_failure_shows_log_and_line() {
        let error = Error::new(ErrorKind::Cuda, "cuModuleLoadDataEx", "invalid PTX").with_code(218);
        let log = "ptxas application ptx input, line 2; error : unknown opcode 'addd'";
        let shown = explain(&error, ".version 7.0\n  addd.u32 %r1;\n", log);
        assert_eq!(shown.code(), 218);
        assert!(shown.message().contains("unknown opcode 'addd'"), "{shown}");
        assert!(shown.message().ends_with("line 2 is: addd.u32 %r1;"), "{shown}");
    }

    #[test]
    fn a_log_without_a_line_or_beyond_the_text_is_shown_alone() {
        assert_eq!(line_named("no number on this line "), None);
        assert_eq!(line_named("outline of line 17"), Some(17));
        let error = Error::new(ErrorKind::Cuda, "cuModuleLoadDataEx", "invalid PTX");
        assert!(!explain(&error, "one\n", "line 9").message().contains(" is: "));
        assert!(!explain(&error, "one\n", "line 0").message().contains(" is: "));
    }
}
