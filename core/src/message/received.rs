//! A received message.
#![forbid(unsafe_code)]

use super::inbox::Bytes;
use super::long::Long;
use super::peer::Peer;
use super::sent::Sent;
use crate::error::Result;

/// A message that has arrived.
#[derive(Debug)]
pub struct Message {
    pub(super) peer: Peer,
    pub(super) kind: u16,
    pub(super) bytes: Bytes,
    pub(super) long: Option<Box<Long>>,
}

impl Message {
    /// The sender.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The kind that the sender gave.
    pub fn kind(&self) -> u16 {
        self.kind
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    /// The long data that came with it, if it was sent with [`Peer::send_long`]. Dropping the message refuses data that
    /// was not taken.
    pub fn long(&mut self) -> Option<Long> {
        self.long.take().map(|long| *long)
    }

    /// The bytes as a vector; a copy for short messages.
    pub fn into_vec(mut self) -> Vec<u8> {
        match std::mem::replace(&mut self.bytes, Bytes::EMPTY) {
            Bytes::Buffer(bytes) => bytes,
            short @ Bytes::Inline(_) => short.as_slice().to_vec(),
        }
    }

    /// Sends a message to the sender; as [`Peer::send`].
    ///
    /// # Errors
    /// As those of [`Peer::send`].
    pub fn reply(&self, kind: u16, bytes: &[u8]) -> Result<Sent> {
        self.peer.send(kind, bytes)
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Bytes::Buffer(bytes) = std::mem::replace(&mut self.bytes, Bytes::EMPTY) {
            self.peer.member.hub.give_back(bytes);
        }
    }
}
