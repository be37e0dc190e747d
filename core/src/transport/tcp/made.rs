//! The next frame to send, or the reason why there is none now.

use super::frame::Frame;
use super::piece::Payload;
use super::staging::Staging;
use crate::memory::Place;

/// A look for the next frame.
pub(super) enum Made {
    Nothing,
    /// A frame with the bytes behind it, and memory that is no longer needed.
    Frame(Frame, Payload, Option<Place>),
    Waits(Obstacle),
}

/// The obstacle to further sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// Nothing is left to be sent.
    Nothing,
    /// The socket takes no more now.
    Socket,
    /// A device has not finished a copy, or the work that the user ordered operations behind.
    Device,
    /// Other connections have all the pinned memory. The service thread is nudged when there is some.
    Memory,
    /// The peer has not answered reads that come first.
    Answers,
}

impl Obstacle {
    /// Why `staging` has no room now.
    pub(super) fn of(staging: &Staging) -> Self {
        if staging.waits_in_line() { Self::Memory } else { Self::Device }
    }
}
