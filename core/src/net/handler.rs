//! The owner of a [`Reactor`](super::Reactor) handles incoming frames and links through [`Handler`].
#![forbid(unsafe_code)]

use super::frame::Frame;
use super::link::Link;
use crate::error::{Error, Result};

/// Receives what happens on the links of a [`Reactor`](super::Reactor). Called on the service thread; must not wait.
///
/// A handler holds the state it needs, never the owner of the reactor: the owner's drop joins the thread.
pub trait Handler: Send {
    /// A listener has accepted `link`.
    fn accepted(&mut self, _link: &Link) {}

    /// A frame has arrived. An error closes the link, with that error.
    fn frame(&mut self, link: &Link, frame: Frame) -> Result<()>;

    /// The peer has closed the link, it has failed, or the service thread has. Called once; not for a link closed on
    /// this side.
    fn closed(&mut self, link: &Link, why: &Error);

    /// Called about every [`ReactorConfig::tick`](super::ReactorConfig::tick).
    fn tick(&mut self) {}

    /// Asked after every round of events: once true, the reactor stops as if it had been dropped.
    fn finished(&self) -> bool {
        false
    }
}
