//! The ring without a messenger, for benchmarks: its share of a message's time.

use super::memory::RingMemory;
use super::protocol::{Consumer, Producer, Push};
use crate::error::{Error, ErrorKind, Result};

/// One end of a pair of rings.
#[derive(Debug)]
pub struct BareRing {
    outbound: RingMemory,
    producer: Producer,
    inbound: RingMemory,
    consumer: Consumer,
}

impl BareRing {
    /// Both ends, in one process.
    ///
    /// # Errors
    /// `System` if there is no memory.
    pub fn pair() -> Result<[Self; 2]> {
        let (here, from_there) = Self::ring()?;
        let (there, from_here) = Self::ring()?;
        Ok([Self::end(here, from_here), Self::end(there, from_there)])
    }

    /// A ring, as its reader and as its writer map it.
    fn ring() -> Result<(RingMemory, RingMemory)> {
        let (ring, fd) = RingMemory::create(8 << 10)?;
        let size = ring.size();
        Ok((ring, RingMemory::open(fd, size)?))
    }

    fn end(inbound: RingMemory, outbound: RingMemory) -> Self {
        let consumer = Consumer::new(&inbound, 0, usize::MAX);
        Self { outbound, producer: Producer::new(0), inbound, consumer }
    }

    /// Sends one frame; false if there is no room.
    ///
    /// # Errors
    /// `Remote` if the other end broke the protocol.
    #[inline]
    pub fn push(&self, body: &[u8]) -> Result<bool> {
        let pushed = self.producer.push(&self.outbound, |number| [number.into(); 2], body);
        pushed.map(|pushed| pushed != Push::Full).map_err(broken)
    }

    /// Takes one frame; the length of its body if there was one.
    ///
    /// # Errors
    /// `Remote` if the other end broke the protocol.
    #[inline]
    pub fn pull(&mut self) -> Result<Option<usize>> {
        let Some(frame) = self.consumer.peek(&self.inbound).map_err(broken)? else { return Ok(None) };
        let len = frame.body.len();
        let _ = self.consumer.pop(&self.inbound, len);
        Ok(Some(len))
    }
}

#[cold]
fn broken(violation: super::protocol::Violation) -> Error {
    Error::new(ErrorKind::Remote, "pull", violation.to_string())
}
