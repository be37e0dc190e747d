//! The order in which ranks failed. Exit statuses do not show it: a rank that fails first may take longer to end than one
//! that fails after it.
//!
//! The launcher makes a file without a name, and each rank of this program appends its number when it fails, before it
//! says so. Ranks that are other programs write nothing; they are ordered by their exit.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::OnceLock;
use std::time::Duration;

/// Set for ranks: where the file is.
pub(super) const PATH: &str = "AQUEDUCT_FAILURES";

/// How long a rank that failed later waits before it says so.
const PRECEDENCE: Duration = Duration::from_millis(100);

/// The end of a rank.
static FILE: OnceLock<(File, String)> = OnceLock::new();

/// The end of the launcher.
pub(crate) struct Failures(File);

impl Failures {
    /// Opens the launcher's file in a rank, at its start: later it may have no descriptor left. Without `/proc`, or under
    /// another launcher, nothing is noted.
    pub(crate) fn open() {
        let (Some(path), Ok(rank)) = (std::env::var_os(PATH), std::env::var("AQUEDUCT_RANK")) else { return };
        let Ok(file) = OpenOptions::new().read(true).append(true).open(path) else { return };
        // The launcher's file has no name. A user may have set the variable to one that has.
        if file.metadata().is_ok_and(|about| about.is_file() && about.nlink() == 0) {
            let _ = FILE.set((file, format!("{rank}\n")));
        }
    }

    /// Notes that this rank has failed, by no fault of another one. Lets a rank that did so before speak first: its reason
    /// is the one that a user wants to read.
    pub(crate) fn note() {
        let Some((mut file, line)) = FILE.get().map(|(file, line)| (file, line)) else { return };
        let mut first = vec![0; line.len()];
        // Without the note, the exit status still shows the failure.
        let noted = file.write_all(line.as_bytes()).and_then(|()| file.read_exact_at(&mut first, 0));
        if noted.is_ok() && first != line.as_bytes() {
            std::thread::sleep(PRECEDENCE);
        }
    }

    pub(super) fn new() -> aqueduct::Result<Self> {
        // SAFETY: the name is a C string with static life.
        let file = unsafe { libc::memfd_create(c"aqueduct-failures".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            let what = "cannot make the file in which ranks note their failures";
            return Err(aqueduct::Error::system("run", what, std::io::Error::last_os_error()));
        }
        // SAFETY: the call above has made the descriptor for this owner.
        Ok(Self(unsafe { File::from_raw_fd(file) }))
    }

    /// Where ranks find the file.
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// The ranks that have failed, the first one first.
    pub(super) fn order(&self) -> Vec<usize> {
        let mut text = vec![0; self.0.metadata().map_or(0, |about| about.len()) as usize];
        if self.0.read_exact_at(&mut text, 0).is_err() {
            return Vec::new();
        }
        String::from_utf8_lossy(&text).lines().filter_map(|line| line.parse().ok()).collect()
    }
}
