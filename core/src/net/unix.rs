//! Sockets in the file system: a directory only this user can enter, and who is at the other end.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::sys;
use crate::error::{Error, ErrorKind, Result};

/// Prefix of the names of this library's directories; `mkdtemp` appends six characters.
const PREFIX: &str = "aqueduct-socket-";
/// Directories that a process tries to make while others remove each before it is locked.
const TRIES: usize = 100;

/// A fresh directory of mode 0700 with a socket's path in it; removed with the value.
///
/// While its process lives, the directory is locked (flock(2)). The kernel drops the lock with the process, however that
/// ends, and so tells [`sweep`] what was left behind. A directory that is not locked yet looks the same, so its maker locks it
/// and then looks whether it is still there.
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
        Self::create_in(&here())
    }

    fn create_in(parent: &Path) -> Result<Self> {
        for _ in 0..TRIES {
            let directory = make_directory(parent)?;
            let failed =
                |error| Error::system("flock", format!("cannot lock {}", directory.display()), error);
            let lock = match lock_directory(&directory) {
                Ok(Some(lock)) => lock,
                // Somebody took it for left behind.
                Ok(None) => continue,
                Err(error) => {
                    // Otherwise the next search for directories that were left behind removes it.
                    let _ = std::fs::remove_dir(&directory);
                    return Err(failed(error));
                }
            };
            let socket = directory.join("s");
            return Ok(Self { directory, _lock: lock, socket, creator: std::process::id(), removed: false });
        }
        let text = format!("other processes remove what is made in {}", parent.display());
        Err(Error::new(ErrorKind::System, "mkdtemp", text))
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
        // Ignores errors: a later process sweeps what is left here.
        let _ = std::fs::remove_file(&self.socket);
        let _ = std::fs::remove_dir(&self.directory);
    }
}

impl Drop for SocketDir {
    fn drop(&mut self) {
        self.remove();
    }
}

fn make_directory(parent: &Path) -> Result<PathBuf> {
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
    made.map_err(|error| {
        let parent = parent.display();
        let text = format!(
            "cannot create a directory for sockets in {parent}; set XDG_RUNTIME_DIR to a directory of this user's \
             with mode 0700"
        );
        Error::system("mkdtemp", text, error)
    })?;
    Ok(PathBuf::from(OsStr::from_bytes(template.as_bytes())))
}

/// Locks `directory` for this process alone; `None` if another process has it locked or has removed it.
fn lock_directory(directory: &Path) -> io::Result<Option<File>> {
    match File::open(directory) {
        Ok(file) => lock_opened(directory, file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// [`lock_directory`] for a directory that was opened as `file`; another one may have its name by now, or none.
fn lock_opened(directory: &Path, file: File) -> io::Result<Option<File>> {
    if !try_lock(&file)? {
        return Ok(None);
    }
    let inode = |m: std::fs::Metadata| (m.dev(), m.ino());
    match std::fs::symlink_metadata(directory) {
        Ok(there) => Ok((inode(there) == inode(file.metadata()?)).then_some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes the sockets, and their directories, of processes that were killed before they could.
pub(crate) fn sweep() {
    sweep_in(&here());
}

/// A directory as a process leaves it that is killed.
#[cfg(test)]
pub(crate) fn left_behind() -> PathBuf {
    make_directory(&here()).unwrap()
}

fn sweep_in(parent: &Path) {
    // Ignores errors: an entry that this process cannot read or remove is not its to clean up.
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    // SAFETY: no arguments, cannot fail.
    let user = unsafe { libc::geteuid() };
    for entry in entries.flatten().filter(|entry| entry.file_name().as_bytes().starts_with(PREFIX.as_bytes()))
    {
        let directory = entry.path();
        let ours = entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == user);
        // Held until the directory is gone, so that its maker, if it is a new one, finds out.
        if ours && let Ok(Some(_lock)) = lock_directory(&directory) {
            log::debug!("removing {}, which a process left behind", directory.display());
            let _ = std::fs::remove_file(directory.join("s"));
            let _ = std::fs::remove_dir(&directory);
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

/// Where this process makes directories for sockets.
fn here() -> PathBuf {
    parent(std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from))
}

/// `runtime` if only this user can write there and its path is short enough, otherwise `/tmp`.
fn parent(runtime: Option<PathBuf>) -> PathBuf {
    // A socket's path has at most 107 bytes; ours adds 25 to its parent.
    let runtime = runtime.filter(|path| is_private(path) && path.as_os_str().len() < 80);
    runtime.unwrap_or_else(|| PathBuf::from("/tmp"))
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
        "getsockopt",
        format!("process {} of user {} is at the other end, this is user {user}", who.pid, who.uid),
    ))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A folder of this test's, removed at the end with all that lies in it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("aqueduct-test-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(&self.0).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// A process is killed before its socket is there, while it is, or when it has just removed it.
    #[test]
    fn what_killed_processes_leave_is_removed_and_what_living_ones_use_is_not() {
        let folder = Folder::new("left");
        let [bare, with_socket] = [(); 2].map(|()| make_directory(&folder.0).unwrap());
        drop(UnixListener::bind(with_socket.join("s")).unwrap());
        let used = SocketDir::create_in(&folder.0).unwrap();
        let foreign = folder.0.join("aqueduct-other");
        std::fs::create_dir(&foreign).unwrap();
        sweep_in(&folder.0);
        assert!(!bare.exists() && !with_socket.exists(), "{:?}", folder.names());
        assert!(used.directory.exists() && foreign.exists(), "{:?}", folder.names());
        let listener = UnixListener::bind(used.socket()).unwrap();
        sweep_in(&folder.0);
        assert!(used.socket().exists());
        drop(listener);
        drop(used);
        assert_eq!(folder.names(), ["aqueduct-other"]);
    }

    #[test]
    fn a_directory_that_was_removed_before_it_was_locked_is_not_taken_for_made() {
        let folder = Folder::new("gone");
        let directory = make_directory(&folder.0).unwrap();
        let opened = [(); 2].map(|()| File::open(&directory).unwrap());
        sweep_in(&folder.0);
        let [first, second] = opened;
        assert!(lock_opened(&directory, first).unwrap().is_none());
        std::fs::create_dir(&directory).unwrap();
        assert!(lock_opened(&directory, second).unwrap().is_none(), "another one has its name");
        let file = folder.0.join("file");
        std::fs::write(&file, b"").unwrap();
        let failed = lock_opened(&file.join("d"), File::open(&file).unwrap()).unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::NotADirectory, "it was not seen that somebody took it");
    }

    #[test]
    fn whoever_makes_a_directory_clears_what_was_left_beside_it() {
        let left = left_behind();
        let made = SocketDir::create().unwrap();
        assert!(!left.exists(), "{}", left.display());
        assert!(made.directory.is_absolute(), "{}", made.directory.display());
    }

    /// Roots may remove everything, and must not.
    #[test]
    fn what_is_of_another_user_is_not_removed() {
        // SAFETY: no arguments, cannot fail.
        if unsafe { libc::geteuid() } == 0 {
            let folder = Folder::new("others");
            let foreign = make_directory(&folder.0).unwrap();
            std::os::unix::fs::chown(&foreign, Some(65534), None).unwrap();
            sweep_in(&folder.0);
            assert!(foreign.exists());
        }
    }

    #[test]
    fn a_directory_is_removed_once_and_by_its_own_process() {
        let folder = Folder::new("once");
        let mut made = SocketDir::create_in(&folder.0).unwrap();
        // As a forked child sees it.
        made.creator += 1;
        made.remove();
        assert!(made.directory.exists());
        made.creator -= 1;
        made.remove();
        assert!(!made.directory.exists());
        // Another process may have got the name.
        std::fs::create_dir(&made.directory).unwrap();
        made.remove();
        assert!(made.directory.exists());
    }

    #[test]
    fn a_lock_that_cannot_be_had_differs_from_one_that_another_has() {
        use std::os::unix::fs::OpenOptionsExt;

        let folder = Folder::new("locks");
        let [first, second] = [(); 2].map(|()| File::open(&folder.0).unwrap());
        assert!(try_lock(&first).unwrap());
        assert!(!try_lock(&second).unwrap());
        let bare = File::options().read(true).custom_flags(libc::O_PATH).open(&folder.0).unwrap();
        assert_eq!(try_lock(&bare).unwrap_err().raw_os_error(), Some(libc::EBADF));
        let file = folder.0.join("file");
        std::fs::write(&file, b"").unwrap();
        assert!(lock_directory(&folder.0.join("missing")).unwrap().is_none());
        let failed = lock_directory(&file.join("d")).unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::NotADirectory);
    }

    /// The kernel knows no user at the other end of a TCP connection.
    #[test]
    fn a_peer_that_the_kernel_does_not_know_is_refused() {
        use std::os::fd::AsFd;

        let (here, _there) = std::os::unix::net::UnixStream::pair().unwrap();
        check_peer(here.as_fd()).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stranger = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let error = check_peer(stranger.as_fd()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
    }

    #[test]
    fn a_directory_is_not_taken_from_its_maker() {
        use crate::sync::{AtomicBool, Ordering};

        let (folder, done) = (Folder::new("made"), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    sweep_in(&folder.0);
                }
            });
            let made: Vec<_> = (0..500).map(|_| SocketDir::create_in(&folder.0)).collect();
            let there = made.iter().flatten().filter(|made| made.directory.exists()).count();
            done.store(true, Ordering::Relaxed);
            assert_eq!(there, 500, "{:?}", made.iter().find_map(|made| made.as_ref().err()));
        });
        assert!(folder.names().is_empty());
    }

    #[test]
    fn sockets_lie_in_the_runtime_directory_only_if_nobody_else_can_write_there() {
        let folder = Folder::new("runtime");
        let with_mode = |name: &str, mode| {
            let path = folder.0.join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            path
        };
        let file = folder.0.join("file");
        std::fs::write(&file, b"").unwrap();
        // The longest path that leaves room for the name of a socket.
        let longest = "l".repeat(79 - folder.0.as_os_str().len() - 1);
        for (path, good) in [
            (with_mode("private", 0o700), true),
            (with_mode("readable", 0o755), true),
            (with_mode("of_the_group", 0o770), false),
            (with_mode("of_all", 0o777), false),
            (with_mode(&longest, 0o700), true),
            (with_mode(&format!("{longest}l"), 0o700), false),
            (file, false),
            (folder.0.join("missing"), false),
            // A directory of this user's, but not of the one who starts the next process elsewhere.
            (PathBuf::from("."), false),
        ] {
            let expected = if good { path.clone() } else { PathBuf::from("/tmp") };
            assert_eq!(parent(Some(path)), expected);
        }
        assert_eq!(parent(None), PathBuf::from("/tmp"));
        // SAFETY: no arguments, cannot fail.
        if unsafe { libc::geteuid() } == 0 {
            let foreign = with_mode("foreign", 0o700);
            std::os::unix::fs::chown(&foreign, Some(65534), None).unwrap();
            assert_eq!(parent(Some(foreign)), PathBuf::from("/tmp"));
        } else {
            assert_eq!(parent(Some(PathBuf::from("/"))), PathBuf::from("/tmp"), "root's");
        }
    }
}
