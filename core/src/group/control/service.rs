//! The control links' side of the service thread: every event goes straight to the shared state.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::Control;
use crate::error::{Error, Result};
use crate::net::{Frame, Handler, Link};

/// What the service thread calls.
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
