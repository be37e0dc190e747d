//! The control links' side of the service thread: every event goes straight to the shared state.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::shared::Control;
use crate::error::{Error, ErrorKind, Result};
use crate::group::frames;
use crate::group::subscriber::Reaction;
use crate::net::{Frame, Handler, Link};
use crate::sync::lock;

/// The callbacks of the group's service thread.
#[derive(Debug)]
pub(crate) struct Service(pub(crate) Arc<Control>);

impl Handler for Service {
    fn accepted(&mut self, link: &Link) {
        if !self.0.adopt(link) {
            log::warn!(
                "closing a control link from rank {}: it does not exist, or was given up",
                link.peer().from
            );
            link.close();
        }
    }

    fn frame(&mut self, link: &Link, frame: Frame) -> Result<()> {
        self.0.receive(link, frame)
    }

    fn closed(&mut self, link: &Link, why: &Error) {
        self.0.end(link, Some(why));
    }

    fn tick(&mut self) {
        self.0.tick();
    }
}

impl Control {
    /// One frame from `peer`. An error is the peer's, and ends it.
    fn receive(&self, link: &Link, frame: Frame) -> Result<()> {
        let peer = link.peer().from;
        lock(&self.state).hear(link);
        match frame.kind {
            frames::FAILURE => {
                let size = lock(&self.state).size();
                self.hear_failure(peer, frames::decode_failure(&frame.payload, size)?);
            }
            frames::BYE => self.end(link, None),
            frames::HEARTBEAT => {}
            frames::MAIL => self.hear_mail(peer, &frame.payload)?,
            frames::MEMBERSHIP => self.hear_membership(peer, &frame.payload)?,
            other => {
                if let Some(subscriber) = self.subscribers.of(other) {
                    let mut reaction = Reaction::default();
                    let taken = subscriber.frame(peer, &frame.payload, frame.fds, &mut reaction);
                    self.released.keep(reaction.later);
                    for (kind, payload) in reaction.answers {
                        if let Err(error) = self.post(peer, kind, &payload, Vec::new()) {
                            log::debug!("cannot answer rank {peer}: {error}");
                        }
                    }
                    return taken;
                }
                let message =
                    format!("a frame of unknown kind {other}; use one version of aqueduct everywhere");
                return Err(Error::new(ErrorKind::Remote, "control_link", message).with_peer(peer));
            }
        }
        Ok(())
    }
}
