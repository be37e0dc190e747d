//! The receiving side of a link that a [`Reactor`](super::Reactor) serves.
#![forbid(unsafe_code)]

use std::io;
use std::time::Instant;

use super::frame::Decoder;
use super::link::Link;
use super::reactor::Handler;
use super::stream::{ended, lost};
use crate::error::Result;

/// Reads in one turn: one busy peer must not starve the others.
const READS: usize = 8;
/// Reads for what a peer said before its link failed: more than a socket holds.
const LAST_READS: usize = 4096;

/// A link and what has come on it.
pub(super) struct Served {
    pub(super) link: Link,
    pub(super) decoder: Decoder,
    /// Set when it was closed here: from then on only the peer's end of stream is waited for, until then.
    pub(super) close_by: Option<Instant>,
}

impl Served {
    /// Reads and delivers what is there, up to a bound.
    pub(super) fn read(&mut self, handler: &mut dyn Handler, buffer: &mut [u8]) -> Result<()> {
        for _ in 0..READS {
            match self.receive(handler, buffer)? {
                Some(count) if count == buffer.len() => {}
                // Nothing more was there, or only what lies behind descriptors; epoll tells of both.
                _ => break,
            }
        }
        Ok(())
    }

    /// Reads and delivers all that is there, when nobody will tell of more. How that ends changes nothing.
    pub(super) fn drain(&mut self, handler: &mut dyn Handler, buffer: &mut [u8]) {
        let mut reads = 0;
        while reads < LAST_READS && matches!(self.receive(handler, buffer), Ok(Some(_))) {
            reads += 1;
        }
    }

    /// Reads once, which ends where descriptors begin, and delivers: how many bytes there were, if any.
    fn receive(&mut self, handler: &mut dyn Handler, buffer: &mut [u8]) -> Result<Option<usize>> {
        let (mut fds, peer) = (Vec::new(), self.link.peer());
        let count = match self.link.inner.raw.read(buffer, &mut fds) {
            Ok(0) => return Err(ended("recv", peer, &self.decoder)),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(lost("recv", peer, error)),
        };
        if self.close_by.is_none() {
            self.decoder.push(&buffer[..count], &mut fds)?;
            while let Some(frame) = self.decoder.pop() {
                handler.frame(&self.link, frame)?;
            }
        }
        Ok(Some(count))
    }
}
