//! Standard output, checked: whatever cannot be written is an error.
//!
//! `println!` panics, and std's own handle takes a closed or read-only descriptor for success. So everything that this
//! command prints goes through [`Stdout`].

use std::fmt;
use std::fs::File;
use std::io::{self, LineWriter, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, TryLockError};

/// The exit code after the reader has closed the pipe: 128 + SIGPIPE, as a shell reports it for other commands.
pub(crate) const PIPE_CLOSED: u8 = 141;

/// Standard output. What one call of `write_all` or `writeln!` writes stays together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock().write(bytes).map_err(unwritable)
    }

    fn flush(&mut self) -> io::Result<()> {
        lock().flush().map_err(unwritable)
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        lock().write_all(bytes).map_err(unwritable)
    }

    fn write_fmt(&mut self, text: fmt::Arguments<'_>) -> io::Result<()> {
        lock().write_fmt(text).map_err(unwritable)
    }
}

/// Writes what is still buffered, at the end of the program. What another thread is stuck in writing is lost: the caller
/// has given up on it before.
pub(crate) fn finish() -> io::Result<()> {
    match WRITER.try_lock() {
        Ok(mut writer) => writer.flush().map_err(unwritable),
        Err(TryLockError::Poisoned(writer)) => writer.into_inner().flush().map_err(unwritable),
        Err(TryLockError::WouldBlock) => Ok(()),
    }
}

/// Whether `error` says that nobody reads standard output any more, as after `| head -1`.
pub(crate) fn is_closed_pipe(error: &io::Error) -> bool {
    let ours = error.get_ref().is_some_and(|cause| cause.is::<Unwritable>());
    ours && error.kind() == io::ErrorKind::BrokenPipe
}

/// The cause in every error of [`Stdout`]; errors of other files lack it.
#[derive(Debug)]
struct Unwritable(io::Error);

impl fmt::Display for Unwritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write standard output: {}", self.0)
    }
}

impl std::error::Error for Unwritable {}

fn unwritable(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), Unwritable(error))
}

static WRITER: LazyLock<Mutex<LineWriter<Descriptor>>> =
    LazyLock::new(|| Mutex::new(LineWriter::new(Descriptor::new())));

fn lock() -> MutexGuard<'static, LineWriter<Descriptor>> {
    WRITER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Descriptor 1. Unlike std's handle it reports `EBADF`.
struct Descriptor(ManuallyDrop<File>);

impl Descriptor {
    fn new() -> Self {
        // SAFETY: standard output belongs to the whole process, nothing in it closes descriptor 1, and `ManuallyDrop`
        // keeps this value from doing so.
        Self(ManuallyDrop::new(unsafe { File::from_raw_fd(libc::STDOUT_FILENO) }))
    }

    /// Waits until there is room. Another process that shares the terminal or pipe may have made it non-blocking.
    fn wait(&self) {
        let mut interest = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: `interest` is one live entry. After an error the caller writes again, and that reports it.
        unsafe { libc::poll(&raw mut interest, 1, -1) };
    }
}

impl Write for Descriptor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if CLOSED.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        loop {
            match self.0.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(),
                done => return done,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the process was started with standard output closed.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Runs before std's start-up code, which opens `/dev/null` in place of a closed descriptor.
extern "C" fn note_closed() {
    // SAFETY: fcntl(2) only looks at the descriptor; nothing of this program has run yet that could close it meanwhile.
    let closed = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } == -1;
    CLOSED.store(closed, Ordering::Relaxed);
}

/// The C runtime calls the functions of this section before main. This one needs nothing that is initialised later.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_CLOSED: extern "C" fn() = note_closed;
