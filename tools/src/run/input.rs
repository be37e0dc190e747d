//! Standard input of a job: rank 0 reads the launcher's, the others nothing.
//!
//! Rank 0 gets a file or a pipe itself, so that a job which reads nothing takes nothing from it, as in
//! `while read host; do aqueduct run ...; done < hosts`. It cannot get a terminal: its process group is in the
//! background, where the kernel stops readers. So the launcher reads the terminal for it.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::process::{ChildStdin, Stdio};
use std::time::Duration;

/// How long a launcher in the background waits before it tries to read the terminal again.
const RETRY: Duration = Duration::from_millis(200);

/// Standard input of `rank`. If it is a pipe, give it to [`from_terminal`].
pub(super) fn of_rank(rank: u32, passed_on: bool) -> io::Result<Stdio> {
    if rank > 0 || !passed_on {
        return nothing();
    }
    Ok(if io::stdin().is_terminal() { Stdio::piped() } else { Stdio::inherit() })
}

/// An input that is at its end, also where `/dev` is missing.
fn nothing() -> io::Result<Stdio> {
    match File::open("/dev/null") {
        Ok(null) => Ok(null.into()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let (reader, _) = io::pipe()?;
            Ok(reader.into())
        }
        Err(error) => Err(error),
    }
}

/// Copies the terminal to rank 0 until either ends. The thread never keeps the launcher from exiting.
pub(super) fn from_terminal(mut to: ChildStdin) -> io::Result<()> {
    let copy = move || {
        // With SIGTTIN blocked, a read from the background is an error instead of a stop of the whole launcher.
        block(libc::SIGTTIN);
        let mut chunk = [0; 4096];
        loop {
            match io::stdin().read(&mut chunk) {
                Ok(0) => return,
                Ok(read) => {
                    // Rank 0 has ended or closed its input.
                    let Ok(()) = to.write_all(&chunk[..read]) else { return };
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::EIO) => std::thread::sleep(RETRY),
                Err(_) => return,
            }
        }
    };
    std::thread::Builder::new().name("run-input".to_owned()).spawn(copy).map(drop)
}

/// Blocks `signal` in the calling thread.
fn block(signal: i32) {
    // SAFETY: sigset_t is plain data, for which zeros are valid.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a live output.
    unsafe { libc::sigemptyset(&raw mut set) };
    // SAFETY: `set` is initialised. Fails only for a signal that does not exist.
    unsafe { libc::sigaddset(&raw mut set, signal) };
    // SAFETY: `set` is a live input, and the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}
