//! How the rooms above the group hear what peers tell them: each subscribes to one kind of frame.
#![forbid(unsafe_code)]

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::error::Result;

/// Something whose drop may block, so that no service thread may drop it.
pub(crate) type Deferred = Arc<dyn Any + Send + Sync>;

/// Work that a subscriber leaves to the group after a frame; the group does it once the subscriber has returned.
#[derive(Default)]
pub(crate) struct Reaction {
    /// Values whose drop may block.
    pub(crate) later: Vec<Deferred>,
    /// Frames for the sender: kind and payload.
    pub(crate) answers: Vec<(u16, Vec<u8>)>,
}

/// A room that peers speak to. Its methods run on the service thread, some with the group locked: they must neither block
/// nor call the group.
pub(crate) trait Subscriber: Send + Sync {
    /// Takes a frame of the subscribed kind that `peer` sent.
    ///
    /// # Errors
    /// The frame breaks the protocol. The error is the peer's and ends the link to it.
    fn frame(&self, peer: u32, payload: &[u8], fds: Vec<OwnedFd>, reaction: &mut Reaction) -> Result<()>;

    /// `peer` has left or is lost: it will say nothing more, and uses nothing of this rank any more.
    fn gone(&self, peer: u32, later: &mut Vec<Deferred>);

    /// The group has changed: a peer has come or gone, or the communicator has failed. Wakes threads that wait here.
    fn changed(&self);
}

/// The subscribers of one group, by kind of frame.
#[derive(Clone, Default)]
pub(crate) struct Subscribers(Vec<(u16, Arc<dyn Subscriber>)>);

impl Subscribers {
    /// The same and `subscriber` for frames of `kind`.
    pub(crate) fn with(mut self, kind: u16, subscriber: Arc<dyn Subscriber>) -> Self {
        self.0.push((kind, subscriber));
        self
    }

    pub(crate) fn of(&self, kind: u16) -> Option<&dyn Subscriber> {
        self.0.iter().find(|(known, _)| *known == kind).map(|(_, subscriber)| &**subscriber)
    }

    pub(crate) fn gone(&self, peer: u32, later: &mut Vec<Deferred>) {
        self.0.iter().for_each(|(_, subscriber)| subscriber.gone(peer, later));
    }

    pub(crate) fn changed(&self) {
        self.0.iter().for_each(|(_, subscriber)| subscriber.changed());
    }
}
