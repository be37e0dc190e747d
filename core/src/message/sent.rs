//! The outcome of a send, which never waits.
#![forbid(unsafe_code)]

/// The outcome of a send, which never waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a message that has to be sent again was not sent"]
pub enum Sent {
    /// The bytes were copied: the message is on its way, or leaves at the next progress.
    Done,
    /// Nothing was sent. Make progress, or [`wait`](super::Messenger::wait), and try again.
    Retry(Reason),
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
