//! A member's handle on its group.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::control::Control;
use super::links::Links;
use super::peer::PeerInfo;
use crate::abort::Abort;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::outcome::Outcome;

/// Membership in a group of ranks. Everything that is made with peers (connections, received memory, semaphores) holds a
/// clone; when the last is dropped, this rank leaves in good order.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    links: Arc<Links>,
}

impl Group {
    pub(crate) fn new(links: Links) -> Self {
        Self { links: Arc::new(links) }
    }

    pub(crate) fn rank(&self) -> u32 {
        self.links.rank()
    }

    /// The same for all members of this group, different for all other groups that a process is in.
    pub(crate) fn scope(&self) -> u64 {
        self.links.scope()
    }

    pub(crate) fn size(&self) -> u32 {
        u32::try_from(self.peers().len()).unwrap_or(u32::MAX)
    }

    /// The description of every rank, in rank order.
    pub(crate) fn peers(&self) -> &[PeerInfo] {
        self.links.peers()
    }

    pub(crate) fn peer(&self, rank: u32) -> &PeerInfo {
        &self.links.peers()[rank as usize]
    }

    /// The description of this rank, as the others received it.
    pub(crate) fn me(&self) -> &PeerInfo {
        self.peer(self.rank())
    }

    pub(crate) fn links(&self) -> &Links {
        &self.links
    }

    pub(crate) fn control(&self) -> &Arc<Control> {
        self.links.control()
    }

    pub(crate) fn abort(&self) -> &Abort {
        self.control().abort()
    }

    /// Tells waits for streams whether kernels that wait for this group gave up.
    pub(crate) fn outcome(&self) -> Arc<dyn Outcome> {
        self.control().clone()
    }

    /// Whether both are the same group.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.links, &other.links)
    }

    /// Whether this process is a forked child of the member.
    pub(crate) fn forked(&self) -> bool {
        self.control().forked()
    }

    /// `Ok` while calls can be made: not in a forked child, not aborted.
    #[inline]
    pub(crate) fn check(&self, op: &'static str) -> Result<()> {
        if self.forked() {
            return Err(Error::usage(
                op,
                "a communicator does not survive fork; make a new one in the child, after exec",
            ));
        }
        self.control().check(op)
    }

    /// `Ok` while `peer` can be talked to.
    #[inline]
    pub(crate) fn check_peer(&self, op: &'static str, peer: u32) -> Result<()> {
        if peer == self.rank() { Ok(()) } else { self.control().check_peer(op, peer) }
    }

    /// Makes sure that there is a control link to `peer`; to oneself none is needed.
    pub(crate) fn open_link(&self, peer: u32, deadline: Deadline) -> Result<()> {
        self.links.ensure(peer, deadline)
    }

    /// Sends a frame to the subscriber of `kind` at `peer`, another rank to which there is a link.
    ///
    /// # Errors
    /// Of a lost peer, with the reason why it was lost.
    pub(crate) fn post(
        &self,
        op: &'static str,
        peer: u32,
        kind: u16,
        payload: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<()> {
        let control = self.control();
        control.post(peer, kind, payload, fds).map_err(|error| control.explained(op, error))
    }

    /// [`post`](Self::post) of something that does not matter any more if the peer is gone. Never waits.
    pub(crate) fn post_quietly(&self, peer: u32, kind: u16, payload: &[u8]) {
        if let Err(error) = self.control().post(peer, kind, payload, Vec::new()) {
            log::debug!("cannot send a frame of kind {kind} to rank {peer}: {error}");
        }
    }

    /// Says BYE and waits until it is on its way.
    pub(crate) fn leave(&self, deadline: Deadline) -> Result<()> {
        self.links.leave(deadline)
    }
}
