//! An authenticated stream of frames, used by one thread that may wait.

use std::io;
use std::os::fd::BorrowedFd;

use super::claims::Claims;
use super::frame::{self, Decoder, Frame};
use super::network::Network;
use super::raw::RawStream;
use super::sys;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};

/// How much is read from a socket at once.
pub(super) const READ_BYTES: usize = 64 << 10;

/// Frames to and from one peer that has proved the job's secret.
///
/// Hand it to a [`Reactor`](super::Reactor) to be served without a thread of its own.
#[derive(Debug)]
pub struct Stream {
    pub(super) raw: Box<dyn RawStream>,
    pub(super) decoder: Decoder,
    pub(super) peer: Claims,
}

impl Stream {
    pub(super) fn new(network: &Network, local: Claims, peer: Claims, raw: Box<dyn RawStream>) -> Self {
        Self { raw: network.wrap(local, peer, raw), decoder: Decoder::new(network.max_frame), peer }
    }

    /// Claims of the peer, which it proved with the secret.
    pub fn peer(&self) -> Claims {
        self.peer
    }

    /// The stream of bytes below, for a protocol of its own. Nothing may have been received on it.
    pub fn into_raw(self) -> Box<dyn RawStream> {
        self.raw
    }

    /// Sends one frame; returns when all of it is with the kernel.
    pub fn send(&mut self, kind: u16, payload: &[u8], deadline: Deadline) -> Result<()> {
        self.send_fds(kind, payload, &[], deadline)
    }

    /// Sends one frame with at most [`MAX_FDS`](super::MAX_FDS) descriptors. Unix sockets only.
    pub fn send_fds(
        &mut self,
        kind: u16,
        payload: &[u8],
        mut fds: &[BorrowedFd<'_>],
        deadline: Deadline,
    ) -> Result<()> {
        let bytes = frame::encode(kind, payload, fds.len(), self.decoder.max())?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match self.raw.write(rest, fds) {
                Ok(0) => return Err(lost("send", self.peer, "its socket takes no more bytes")),
                Ok(count) => {
                    rest = &rest[count..];
                    fds = &[];
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait("send", sys::WRITE, deadline)?
                }
                Err(error) if sys::exhausted(&error) && !deadline.expired() => {
                    std::thread::sleep(sys::REST.min(deadline.remaining()));
                }
                Err(error) => return Err(lost("send", self.peer, &error)),
            }
        }
        Ok(())
    }

    /// The next frame.
    pub fn recv(&mut self, deadline: Deadline) -> Result<Frame> {
        let mut buffer = [0; READ_BYTES];
        let mut fds = Vec::new();
        loop {
            if let Some(frame) = self.decoder.pop() {
                return Ok(frame);
            }
            match self.raw.read(&mut buffer, &mut fds) {
                Ok(0) => return Err(ended("recv", self.peer, &self.decoder)),
                Ok(count) => self.decoder.push(&buffer[..count], &mut fds)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait("recv", sys::READ, deadline)?
                }
                Err(error) if sys::exhausted(&error) => {
                    if deadline.expired() {
                        return Err(starved(self.peer, error));
                    }
                    std::thread::sleep(sys::REST.min(deadline.remaining()));
                }
                Err(error) => return Err(lost("recv", self.peer, &error)),
            }
        }
    }

    fn wait(&self, op: &'static str, events: u32, deadline: Deadline) -> Result<()> {
        match sys::wait(self.raw.fd(), events, deadline) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::timeout(op, format!("{} did not answer in time", name(self.peer)))),
            Err(error) => Err(Error::system(op, "cannot wait on a socket", error)),
        }
    }
}

/// The error for a stream that ended: inside a frame it is a cut message, otherwise the peer closed it.
pub(super) fn ended(op: &'static str, peer: Claims, decoder: &Decoder) -> Error {
    let how = if decoder.inside_frame() {
        "its connection ended inside a message"
    } else {
        "it closed its connection"
    };
    lost(op, peer, how)
}

/// The error for a peer that cannot be talked to any more.
pub(super) fn lost(op: &'static str, peer: Claims, reason: impl std::fmt::Display) -> Error {
    if peer.from == Claims::ANY {
        Error::new(ErrorKind::PeerLost, op, format!("the peer was lost: {reason}"))
    } else {
        Error::peer_lost(op, peer.from, reason)
    }
}

/// The error for descriptors that a peer has sent while this process is out of descriptors.
pub(super) fn starved(peer: Claims, error: io::Error) -> Error {
    let text = format!("out of file descriptors: what {} has sent waits until some are closed", name(peer));
    Error::system("recv", text, error)
}

fn name(peer: Claims) -> String {
    if peer.from == Claims::ANY { "the peer".into() } else { format!("rank {}", peer.from) }
}
