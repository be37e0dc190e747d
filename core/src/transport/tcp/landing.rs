//! Frames that a connection has received, on their last way, and the result of one turn.
#![forbid(unsafe_code)]

use crate::gpu::Event;
use crate::memory::{HostSlice, Place};

/// Whose bytes come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bytes {
    /// The peer writes them.
    Written,
    /// This rank reads them.
    Read,
}

/// A frame whose bytes are here.
pub(super) struct Landing {
    /// The copy that it waits for; none if it only waits for those before it.
    pub(super) copied: Option<Event>,
    pub(super) staged: bool,
    pub(super) effect: Effect,
}

pub(super) enum Effect {
    None,
    Store(HostSlice, u64),
    Acknowledge,
    /// The peer reads so many bytes there.
    Answer(Place, usize),
    /// The bytes of an answer are where they belong.
    Read,
    /// The peer has acknowledged so many frames.
    Acknowledged(u64),
}

/// Result of one turn.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// There may be more to do now, or a device has not finished.
    pub(super) again: bool,
    /// The peer will send nothing more, and everything has landed.
    pub(super) ended: bool,
    /// Something was received.
    pub(super) progress: bool,
    /// The peer asks for an acknowledgement of this count.
    pub(super) acknowledge: Option<u64>,
    /// The peer has acknowledged this count of frames.
    pub(super) acknowledged: Option<u64>,
    /// Reads that the peer asks for: places and sizes in bytes.
    pub(super) asked: Vec<(Place, usize)>,
    /// The peer has let go of the connection.
    pub(super) bye: bool,
    /// Memory that was written and need not be kept alive any more; drop it where blocking is allowed.
    pub(super) spent: Vec<Place>,
    /// How many more frames for device memory may begin.
    pub(super) copies: usize,
}
