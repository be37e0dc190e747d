//! The receiving side of a link that a [`Reactor`](super::Reactor) serves.
#![forbid(unsafe_code)]

use std::io;
use std::time::Instant;

use super::frame::Decoder;
use super::handler::Handler;
use super::link::Link;
use super::stream::{ended, lost};
use super::sys;
use crate::error::Result;

/// Reads in one turn: one busy peer must not starve the others.
const READS: usize = 8;
/// Reads for what a peer said before its link failed: more than a socket holds.
const LAST_READS: usize = 4096;

/// Reads from a link, and gives the frames to a handler.
pub(super) struct LinkReader {
    pub(super) link: Link,
    pub(super) decoder: Decoder,
    /// Set when it was closed here: from then on only the peer's end of stream is waited for, until then.
    pub(super) close_by: Option<Instant>,
    /// Set while this process has no descriptors for what the peer has sent, or cannot send any: when to try again.
    pub(super) resume_at: Option<Instant>,
}

/// How a turn of reading ended.
pub(super) enum Turn {
    /// Bytes were read.
    Read(usize),
    /// There is nothing to read now.
    Empty,
    /// The process has no descriptors left for those that have come; they can be read later.
    Starved(io::Error),
}

impl LinkReader {
    /// Reads and delivers what is there, up to a bound.
    pub(super) fn read(&mut self, handler: &mut dyn Handler, buffer: &mut [u8]) -> Result<Turn> {
        let mut turn = Turn::Empty;
        for _ in 0..READS {
            turn = self.receive(handler, buffer)?;
            // After a part of the buffer nothing more was there, or only what lies behind descriptors; epoll tells of both.
            if !matches!(turn, Turn::Read(count) if count == buffer.len()) {
                break;
            }
        }
        Ok(turn)
    }

    /// Reads and delivers all that is there, when nobody will tell of more. How that ends changes nothing.
    pub(super) fn drain(&mut self, handler: &mut dyn Handler, buffer: &mut [u8]) {
        let mut reads = 0;
        while reads < LAST_READS && matches!(self.receive(handler, buffer), Ok(Turn::Read(_))) {
            reads += 1;
        }
    }

    /// Reads once, which ends where descriptors begin, and delivers.
    fn receive(&mut self, handler: &mut dyn Handler, buffer: &mut [u8]) -> Result<Turn> {
        let (mut fds, peer) = (Vec::new(), self.link.peer());
        let count = match self.link.inner.raw.read(buffer, &mut fds) {
            Ok(0) => return Err(ended("recv", peer, &self.decoder)),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Turn::Empty),
            Err(error) if sys::exhausted(&error) => return Ok(Turn::Starved(error)),
            Err(error) => return Err(lost("recv", peer, error)),
        };
        if self.close_by.is_none() {
            self.decoder.push(&buffer[..count], &mut fds)?;
            while let Some(frame) = self.decoder.pop() {
                self.link.inner.set_starved(false);
                handler.frame(&self.link, frame)?;
            }
        }
        Ok(Turn::Read(count))
    }
}
