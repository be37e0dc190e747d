//! Sockets in the file system: a directory only this user can enter, and who is at the other end.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::sys;
use crate::error::{Error, ErrorKind, Result};

/// Prefix of the names of this library's directories; `mkdtemp` appends six characters.
const PREFIX: &str = "aqueduct-";

/// A fresh directory of mode 0700 with a socket's path in it; removed with the value.
///
/// While its process lives, the directory is locked (flock(2)). The kernel drops the lock with the process, however that
/// ends, and so tells [`sweep`] what was left behind.
#[derive(Debug)]
pub(super) struct SocketDir {
    directory: PathBuf,
    _lock: File,
    socket: PathBuf,
    /// A forked child inherits the value; only the process that made the directory removes it.
    creator: u32,
    removed: bool,
}

impl SocketDir {
    /// In `$XDG_RUNTIME_DIR` if that is a directory of ours, otherwise in `/tmp`.
    pub(super) fn create() -> Result<Self> {
        sweep();
        let parent = parent();
        let template = parent.join(format!("{PREFIX}XXXXXX"));
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
            let text = format!(
                "cannot create a directory for sockets in {parent}; set XDG_RUNTIME_DIR to a directory of this user's \
                 with mode 0700"
            );
            Error::system("mkdtemp", text, error)
        })?;
        // Before the socket is there: a directory without one is left alone.
        let lock =
            File::open(&directory).and_then(|file| try_lock(&file).map(|_| file)).map_err(|error| {
                // Nobody has seen it yet, and whoever looks leaves it alone.
                let _ = std::fs::remove_dir(&directory);
                Error::system("flock", format!("cannot lock {}", directory.display()), error)
            })?;
        let socket = directory.join("s");
        Ok(Self { directory, _lock: lock, socket, creator: std::process::id(), removed: false })
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

/// Removes the sockets of processes that were killed before they could.
pub(crate) fn sweep() {
    // Ignores errors: an entry that this process cannot read or remove is not its to clean up.
    let Ok(entries) = std::fs::read_dir(parent()) else { return };
    // SAFETY: no arguments, cannot fail.
    let user = unsafe { libc::geteuid() };
    for entry in entries.flatten().filter(|entry| entry.file_name().as_bytes().starts_with(PREFIX.as_bytes()))
    {
        let (directory, socket) = (entry.path(), entry.path().join("s"));
        let ours = entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == user);
        let is_socket =
            |path: &Path| std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
        if ours && is_socket(&socket) {
            let Ok(file) = File::open(&directory) else { continue };
            if try_lock(&file).is_ok_and(|locked| locked) {
                log::debug!("removing {}, which a process left behind", directory.display());
                let _ = std::fs::remove_file(&socket);
                let _ = std::fs::remove_dir(&directory);
            }
        }
    }
}

/// Whether `file` could be locked for this process alone.
fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: no pointers are passed.
    match sys::check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// Where directories for sockets are made.
fn parent() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| is_private(path));
    // A socket's path has at most 107 bytes; ours adds 18 to its parent.
    runtime.filter(|path| path.as_os_str().len() < 80).unwrap_or_else(|| PathBuf::from("/tmp"))
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
