//! One error type for the whole library.
//!
//! An [`Error`] says which operation failed, of which kind the failure is ([`ErrorKind`], stable integers for the C ABI), and
//! in one sentence what happened and what to do about it. The place that first knows that something failed logs it; callers
//! above add nothing.
//!
//! The operation is a name to search for, without spaces: a function of this library (`write`, `Communicator::new`), or the failing
//! function of the driver, libibverbs or the system (`cuMemCreate`, `ibv_reg_mr`, `bind`). Often it is the step that failed inside
//! the call that the program made: `all_gather` in `Communicator::new`, or `put` for all variants of a put. Programs decide by the
//! kind; the operation is for people.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::descriptors;

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Category of an [`Error`]. The numbers are part of the C ABI and never change meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(i32)]
pub enum ErrorKind {
    /// The caller passed something invalid: a size, an offset, a rank, an order of calls.
    InvalidUsage = 1,
    /// The CUDA driver returned an error. [`Error::code`] is the `CUresult`.
    Cuda = 2,
    /// libibverbs or a NIC returned an error.
    Verbs = 3,
    /// The operating system returned an error. [`Error::cause`] is the `std::io::Error`, [`Error::code`] its `errno`.
    System = 4,
    /// A peer reported an error or broke the protocol.
    Remote = 5,
    /// A peer was lost: its process died, its link closed or it stopped answering.
    PeerLost = 6,
    /// A deadline passed.
    Timeout = 7,
    /// The communicator was aborted, here or by a peer.
    Aborted = 8,
    /// The device, driver, transport or platform cannot do this.
    Unsupported = 9,
    /// A peer could not prove that it knows the job's secret.
    Authentication = 10,
    /// An execution plan is invalid or does not fit.
    Plan = 11,
    /// A defect of this library. Please report it.
    Internal = 12,
    /// The object was stopped or closed by its user and accepts no more calls.
    Stopped = 13,
    /// A resource with a limit is used up: memory, file descriptors, semaphores. The message names the limit.
    Exhausted = 14,
}

impl ErrorKind {
    /// The stable lower-case name, as printed at the head of every error.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InvalidUsage => "invalid usage",
            Self::Cuda => "cuda error",
            Self::Verbs => "verbs error",
            Self::System => "system error",
            Self::Remote => "remote error",
            Self::PeerLost => "peer lost",
            Self::Timeout => "timeout",
            Self::Aborted => "aborted",
            Self::Unsupported => "unsupported",
            Self::Authentication => "authentication failed",
            Self::Plan => "plan error",
            Self::Internal => "internal error",
            Self::Stopped => "stopped",
            Self::Exhausted => "exhausted",
        }
    }
}

/// An error of this library. Cheap to clone, so that every waiter can have it.
///
/// [`Display`](fmt::Display) says everything, the cause included. [`source`](std::error::Error::source) is therefore none, or
/// printers of chains would say the cause twice; [`cause`](Self::cause) gives it to programs.
///
/// [`Debug`](fmt::Debug) says the same, because it is what `fn main() -> aqueduct::Result<()>` and `unwrap` print; `{:#?}` shows
/// the fields.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    op: &'static str,
    message: Cow<'static, str>,
    peer: Option<u32>,
    origin: Option<u32>,
    code: i32,
    cause: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of `kind` from operation `op`; `message` is one sentence that says what to do.
    pub fn new(kind: ErrorKind, op: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        #[cfg(test)]
        assert!(!op.contains(' '), "`{op}` is no name of an operation");
        Self { kind, op, message: message.into(), peer: None, origin: None, code: 0, cause: None }
    }

    /// Shorthand for [`ErrorKind::InvalidUsage`].
    pub fn usage(op: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidUsage, op, message)
    }

    /// Shorthand for [`ErrorKind::System`] from an operating-system error; [`ErrorKind::Exhausted`] if there are no file
    /// descriptors left.
    pub fn system(op: &'static str, message: impl Into<Cow<'static, str>>, source: std::io::Error) -> Self {
        let code = source.raw_os_error().unwrap_or(0);
        let message = match remedy(code) {
            Some(remedy) => Cow::Owned(format!("{} ({remedy})", message.into())),
            None => message.into(),
        };
        let kind = match code {
            libc::EMFILE | libc::ENFILE => ErrorKind::Exhausted,
            _ => ErrorKind::System,
        };
        Self::new(kind, op, message).with_code(code).with_source(source)
    }

    /// Shorthand for [`ErrorKind::Timeout`]. If this process has no file descriptors left, the message says so: what was
    /// waited for may have needed one.
    pub fn timeout(op: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        let message = match descriptors::exhausted() {
            Some(why) => Cow::Owned(format!("{} ({why})", message.into())),
            None => message.into(),
        };
        Self::new(ErrorKind::Timeout, op, message)
    }

    /// Shorthand for [`ErrorKind::PeerLost`]: `rank` was lost because of `reason`.
    pub(crate) fn peer_lost(op: &'static str, rank: u32, reason: impl fmt::Display) -> Self {
        Self::new(ErrorKind::PeerLost, op, format!("rank {rank} was lost: {reason}")).with_peer(rank)
    }

    /// The same failure, found by operation `op`.
    #[must_use]
    pub(crate) fn of(mut self, op: &'static str) -> Self {
        self.op = op;
        self
    }

    /// The same failure as one of `op`, which the program called, if it was found by an operation whose name begins with `inner`.
    /// The message names `op` instead, too: as a call, and where it has a peer's error in it.
    #[must_use]
    pub(crate) fn called(mut self, inner: &str, op: &'static str) -> Self {
        if self.op.starts_with(inner) {
            for end in ["()", ": "] {
                let named = format!("{}{end}", self.op);
                if self.message.contains(&named) {
                    self.message = self.message.replace(&named, &format!("{op}{end}")).into();
                }
            }
            self.op = op;
        }
        self
    }

    /// The same failure with `what` it is about before its message.
    #[must_use]
    pub(crate) fn about(mut self, what: &str) -> Self {
        self.message = format!("{what}: {}", self.message).into();
        self
    }

    /// Names the peer this error is about.
    #[must_use]
    pub fn with_peer(mut self, rank: u32) -> Self {
        self.peer = Some(rank);
        self
    }

    /// Says that this failure happened at `rank`, which told of it, and names that rank as the peer.
    #[must_use]
    pub(crate) fn with_origin(mut self, rank: u32) -> Self {
        self.origin = Some(rank);
        self.with_peer(rank)
    }

    /// Adds the code of the failing library (`CUresult`, `errno`, work-completion status).
    #[must_use]
    pub(crate) fn with_code(mut self, code: i32) -> Self {
        self.code = code;
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.cause = Some(Arc::from(source.into()));
        self
    }

    /// The category of this failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The operation that failed: the function called, or a step inside it.
    pub fn op(&self) -> &'static str {
        self.op
    }

    /// The sentence, without kind and operation.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The rank this error is about, if it is about one.
    pub fn peer(&self) -> Option<u32> {
        self.peer
    }

    /// The rank at which this failure happened, if it was a peer's own and that peer told of it. `None` for a failure that this
    /// process found itself, such as the loss of a peer.
    pub fn origin(&self) -> Option<u32> {
        self.origin
    }

    /// The failing library's own code, or 0.
    pub fn code(&self) -> i32 {
        self.code
    }

    /// The error of the driver, a library or the system that caused this one, if one did.
    pub fn cause(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as _)
    }
}

/// A remedy for an operating-system error whose own text does not name one.
fn remedy(code: i32) -> Option<String> {
    Some(match code {
        libc::EMFILE => format!("too few file descriptors: {}", descriptors::RAISE),
        libc::ENFILE => format!("the host has no file descriptors left: {}", descriptors::RAISE_HOST),
        libc::ENOSPC => "free space there".to_owned(),
        libc::EROFS => "it is read-only".to_owned(),
        _ => return None,
    })
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.op, self.kind.name(), self.message)?;
        match &self.cause {
            Some(cause) => write!(f, ": {cause}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        f.debug_struct("Error")
            .field("kind", &self.kind)
            .field("op", &self.op)
            .field("message", &self.message)
            .field("peer", &self.peer)
            .field("origin", &self.origin)
            .field("code", &self.code)
            .field("cause", &self.cause)
            .finish()
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_names_operation_kind_and_cause() {
        let e = Error::system("bind", "cannot bind 127.0.0.1:1", std::io::Error::from_raw_os_error(13));
        assert_eq!(
            e.to_string(),
            "bind: system error: cannot bind 127.0.0.1:1: Permission denied (os error 13)"
        );
        assert_eq!(e.code(), 13);
        assert_eq!(e.clone().to_string(), e.to_string());
        assert!(e.cause().is_some() && std::error::Error::source(&e).is_none());
    }

    /// `main` prints the error that it returns by `{:?}`.
    #[test]
    fn debug_is_for_people_and_its_alternate_for_programmers() {
        let e = Error::peer_lost("wait", 3, "connection reset").with_source(std::io::Error::other("gone"));
        assert_eq!(format!("{e:?}"), e.to_string());
        let boxed: Box<dyn std::error::Error> = e.clone().into();
        assert_eq!(format!("{boxed:?}"), e.to_string());
        let fields = format!("{e:#?}");
        for field in ["kind: PeerLost", "op: \"wait\"", "peer: Some(", "code: 0", "gone"] {
            assert!(fields.contains(field), "{field} in {fields}");
        }
    }

    #[test]
    fn a_lack_of_descriptors_is_exhaustion_and_names_the_limit() {
        for (code, words) in [(libc::EMFILE, "ulimit -n"), (libc::ENFILE, "fs.file-max")] {
            let e = Error::system("open", "cannot open a", std::io::Error::from_raw_os_error(code));
            assert_eq!((e.kind(), e.code()), (ErrorKind::Exhausted, code));
            assert!(e.message().contains(words), "{e}");
        }
    }

    #[test]
    fn peer_lost_names_the_rank() {
        let e = Error::peer_lost("wait", 3, "connection reset");
        assert_eq!((e.kind(), e.peer()), (ErrorKind::PeerLost, Some(3)));
    }
}
