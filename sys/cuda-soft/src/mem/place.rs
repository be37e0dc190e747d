//! Where a memory object is: the process that holds it, and the number of its descriptor there.
//!
//! Another process of the same user opens the descriptor through `/proc`, so nothing is left behind in the file system. The
//! start time of the process and the identity of the object are part of the place, so that a process id or descriptor
//! number that was reused since is refused.

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use cuda_driver_sys::CUresult;

use super::object::{Object, lacks_descriptors};
use crate::abi::Result;

/// The place of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) pid: u32,
    pub(crate) started: u64,
    pub(crate) fd: u32,
    pub(crate) identity: [u64; 2],
}

impl Place {
    /// The place of an object of this process. It is valid as long as this process holds the object.
    ///
    /// # Errors
    /// `CUDA_ERROR_OPERATING_SYSTEM` if this process cannot read its own start time.
    pub(crate) fn of(object: &Object) -> Result<Self> {
        let pid = std::process::id();
        let started = start_time(pid)?.ok_or(CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
        Ok(Self { pid, started, fd: object.fd().as_raw_fd() as u32, identity: object.identity() })
    }

    /// Opens the object, if the process and its allocation still exist.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` if one of them is gone, `CUDA_ERROR_MAP_FAILED` if this process has no permission to
    /// open descriptors of the other, `CUDA_ERROR_OPERATING_SYSTEM` if it has no descriptors left.
    pub(crate) fn open(&self) -> Result<Arc<Object>> {
        if start_time(self.pid)? != Some(self.started) {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        let path = format!("/proc/{}/fd/{}", self.pid, self.fd);
        let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(path);
        let file = opened.map_err(|e| match e.kind() {
            _ if lacks_descriptors(&e) => CUresult::CUDA_ERROR_OPERATING_SYSTEM,
            std::io::ErrorKind::PermissionDenied => CUresult::CUDA_ERROR_MAP_FAILED,
            _ => CUresult::CUDA_ERROR_INVALID_HANDLE,
        })?;
        let object = Object::open(OwnedFd::from(file)).map_err(|_| CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        if object.identity() == self.identity { Ok(object) } else { Err(CUresult::CUDA_ERROR_INVALID_HANDLE) }
    }
}

/// The start time of a process (field 22 of `stat` in proc(5)). Together with the process id it identifies a process,
/// even after the id is reused. `None` if the process has ended.
///
/// # Errors
/// `CUDA_ERROR_OPERATING_SYSTEM` if this process has no descriptors left.
fn start_time(pid: u32) -> Result<Option<u64>> {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => Ok(started(&stat)),
        Err(error) if lacks_descriptors(&error) => Err(CUresult::CUDA_ERROR_OPERATING_SYSTEM),
        Err(_) => Ok(None),
    }
}

fn started(stat: &str) -> Option<u64> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    // A zombie has no descriptors left to open.
    let mut fields = after_name.split_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_process_has_no_start_time() {
        let mut child = std::process::Command::new("/bin/true").spawn().expect("spawn");
        let pid = child.id();
        child.wait().expect("wait");
        assert_eq!(start_time(pid), Ok(None));
        assert!(start_time(std::process::id()).is_ok_and(|time| time.is_some()));
    }
}
