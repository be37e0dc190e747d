//! The outcome of a send, which never waits.
#![forbid(unsafe_code)]

use super::sending::Sending;

/// The outcome of [`Peer::send`](super::Peer::send).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a message that has to be sent again was not sent"]
pub enum Sent {
    /// The bytes were copied: the message is on its way, or leaves at the next progress.
    Done,
    /// Nothing was sent. Make progress, or [`wait`](super::Messenger::wait), and try again.
    Retry(Reason),
}

/// The outcome of [`Peer::send_long`](super::Peer::send_long).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a message that has to be sent again was not sent"]
pub enum SentLong {
    /// The message is on its way, as after [`Sent::Done`]. What becomes of the data is told to the completion.
    Posted(Sending),
    /// Nothing was sent. Make progress, or [`wait`](super::Messenger::wait), and try again.
    Retry(Reason),
}

impl SentLong {
    /// Whether the message is on its way.
    #[must_use]
    pub fn is_posted(&self) -> bool {
        matches!(self, Self::Posted(_))
    }
}

/// Why nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// As many bytes as the send buffer holds wait for this peer, or as many messages as its inbox holds wait there to be
    /// dispatched: it receives more slowly than this side sends.
    Full,
    /// As many long messages to this peer are under way as there may be.
    TooManyLong,
}
