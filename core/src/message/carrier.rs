//! Names the carrier of the frames of a connection that has introduced itself: its socket, or something beside it.
#![forbid(unsafe_code)]

use super::ring::Rings;
use super::verbs::VerbsLink;

/// The carrier of a link.
#[derive(Debug)]
pub(super) enum Carrier {
    /// The TCP connection itself.
    Socket,
    /// Shared memory. The unix socket tells of the end and wakes.
    Rings(Rings),
    /// A queue pair. The TCP connection tells of the end.
    Verbs(Box<VerbsLink>),
}
