//! The path of this program.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;

use anyhow::{Context, Result};

/// A path by which this program can be executed again, also if `/proc` is not mounted.
pub(crate) fn path() -> Result<PathBuf> {
    std::env::current_exe()
        .or_else(|error| as_executed().ok_or(error))
        .context("cannot find this program's own path")
}

/// The path that execve(2) was called with.
fn as_executed() -> Option<PathBuf> {
    // SAFETY: no pointers are passed.
    let address = unsafe { libc::getauxval(libc::AT_EXECFN) };
    let path = ptr::with_exposed_provenance(usize::try_from(address).ok()?);
    if address == 0 {
        return None;
    }
    // SAFETY: the kernel has put a NUL-terminated string there, which lives as long as the process.
    let path = unsafe { CStr::from_ptr(path) };
    Some(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_lead_to_the_same_file() {
        let canonical = |path: PathBuf| std::fs::canonicalize(path).unwrap();
        assert_eq!(canonical(as_executed().unwrap()), canonical(std::env::current_exe().unwrap()));
    }
}
