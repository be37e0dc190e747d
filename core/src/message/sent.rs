//! The outcome of a send, which never waits.
#![forbid(unsafe_code)]

use std::fmt;

use crate::error::{Error, ErrorKind, Result};

/// The outcome of [`Peer::send`](super::Peer::send).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a message that has to be sent again was not sent"]
pub enum Sent {
    /// The bytes were copied: the message is on its way, or leaves at the next progress.
    Done,
    /// Nothing was sent. Make progress, or [`wait`](super::Messenger::wait), and try again.
    Retry(Reason),
}

/// The outcome of a call that begins something: of [`Peer::send_long`](super::Peer::send_long), with a [`Sending`](super::Sending), of
/// [`Peer::read`](super::Peer::read) and the others that read, with a [`Read`](super::Read).
#[must_use = "what was refused was not begun"]
pub enum Begun<Handle, Data, Completion> {
    /// It is under way. How it ends is told to the completion.
    Posted(Handle),
    /// Nothing was begun. Make progress, or [`wait`](super::Messenger::wait), and try again with what is given back.
    Retry(Refused<Data, Completion>),
}

/// A call that has begun nothing, and what it was given.
pub struct Refused<Data, Completion> {
    /// Says for want of what.
    pub reason: Reason,
    /// The memory to send, or to read into.
    pub data: Data,
    /// Not called.
    pub completion: Completion,
}

impl<Handle, Data, Completion> Begun<Handle, Data, Completion> {
    /// Whether it is under way.
    #[must_use]
    pub fn is_posted(&self) -> bool {
        matches!(self, Self::Posted(_))
    }

    /// Why it was refused.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Posted(_) => None,
            Self::Retry(refused) => Some(refused.reason),
        }
    }

    /// The handle of what is under way, for those who never begin so much that they are refused. A refusal drops the data and the completion,
    /// which then never runs; of [`Long::read`](super::Long::read) it refuses the message to its sender.
    ///
    /// # Errors
    /// `Exhausted` if it was refused.
    pub fn posted(self) -> Result<Handle> {
        match self {
            Self::Posted(handle) => Ok(handle),
            Self::Retry(refused) => {
                let text = format!("nothing was begun: {}", refused.reason.text());
                Err(Error::new(ErrorKind::Exhausted, "posted", text))
            }
        }
    }
}

/// Without data and completion, which need not be printable.
impl<Handle: fmt::Debug, Data, Completion> fmt::Debug for Begun<Handle, Data, Completion> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Posted(handle) => f.debug_tuple("Posted").field(handle).finish(),
            Self::Retry(refused) => f.debug_tuple("Retry").field(&refused.reason).finish(),
        }
    }
}

impl<Data, Completion> fmt::Debug for Refused<Data, Completion> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("reason", &self.reason).finish_non_exhaustive()
    }
}

/// Why nothing was sent, or begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// As many bytes as the send buffer holds wait for this peer, or as many messages as its inbox holds wait there to be
    /// dispatched: it receives more slowly than this side sends.
    Full,
    /// As many long messages to this peer are under way as there may be.
    TooManyLong,
    /// As many reads from this peer are under way as there may be.
    TooManyReads,
}

impl Reason {
    /// Says what to do about it.
    fn text(self) -> &'static str {
        match self {
            Self::Full => "the peer receives too slowly; make progress and try again",
            Self::TooManyLong => "too many long messages to this peer are under way; wait for some of them",
            Self::TooManyReads => {
                "too many reads from this peer are under way; wait for some of them, or raise `with_reads`"
            }
        }
    }
}
