//! Sockets in the file system: a directory only this user can enter, and who is at the other end.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::sys;
use crate::error::{Error, ErrorKind, Result};

/// A fresh directory of mode 0700 with a socket's path in it; removed with the value.
#[derive(Debug)]
pub(super) struct SocketDir {
    directory: PathBuf,
    socket: PathBuf,
    /// A forked child inherits the value; only the process that made the directory removes it.
    creator: u32,
    removed: bool,
}

impl SocketDir {
    /// In `$XDG_RUNTIME_DIR` if that is a directory of ours, otherwise in `/tmp`.
    pub(super) fn create() -> Result<Self> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| is_private(path));
        // A socket's path has at most 107 bytes; ours adds 18 to its parent.
        let parent =
            runtime.filter(|path| path.as_os_str().len() < 80).unwrap_or_else(|| PathBuf::from("/tmp"));
        let template = parent.join("aqueduct-XXXXXX");
        let template = CString::new(template.into_os_string().into_vec())
            .map_err(|_| Error::usage("mkdtemp", "XDG_RUNTIME_DIR contains a zero byte"))?;
        let raw = template.into_raw();
        // SAFETY: `raw` is a writable, zero-terminated string that mkdtemp changes in place without resizing; it
        // is taken back exactly once, so it is freed exactly once.
        let (made, template) = unsafe {
            let made = libc::mkdtemp(raw);
            (if made.is_null() { Err(io::Error::last_os_error()) } else { Ok(()) }, CString::from_raw(raw))
        };
        let directory = PathBuf::from(OsStr::from_bytes(template.as_bytes()));
        made.map_err(|error| {
            let parent = parent.display();
            Error::system("mkdtemp", format!("cannot create a directory for sockets in {parent}"), error)
        })?;
        let socket = directory.join("s");
        Ok(Self { directory, socket, creator: std::process::id(), removed: false })
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Removes socket and directory now; connections that exist stay.
    pub(super) fn remove(&mut self) {
        if self.removed || self.creator != std::process::id() {
            return;
        }
        self.removed = true;
        for result in [std::fs::remove_file(&self.socket), std::fs::remove_dir(&self.directory)] {
            match result {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    log::warn!("cannot remove {}: {error}", self.directory.display());
                }
                _ => {}
            }
        }
    }
}

impl Drop for SocketDir {
    fn drop(&mut self) {
        self.remove();
    }
}

fn is_private(path: &Path) -> bool {
    // SAFETY: no arguments, cannot fail.
    let user = unsafe { libc::geteuid() };
    path.is_absolute()
        && std::fs::metadata(path)
            .is_ok_and(|m| m.is_dir() && m.uid() == user && m.permissions().mode() & 0o022 == 0)
}

/// Refuses a peer of another user (`SO_PEERCRED`).
pub(super) fn check_peer(socket: BorrowedFd<'_>) -> Result<()> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `who` and `size` live across the call and describe each other.
    sys::check(unsafe {
        let option = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        libc::getsockopt(socket.as_raw_fd(), option.0, option.1, (&raw mut who).cast(), &mut size)
    })
    .map_err(|error| {
        Error::system("getsockopt", "cannot tell who is at the other end of a unix socket", error)
    })?;
    // SAFETY: no arguments, cannot fail.
    let user = unsafe { libc::geteuid() };
    if who.uid == user {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Authentication,
        "unix socket",
        format!("process {} of user {} is at the other end, this is user {user}", who.pid, who.uid),
    ))
}
