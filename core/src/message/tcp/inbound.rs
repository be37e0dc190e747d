//! The receiving half: bytes into frames, and the bodies of data frames straight to their place.

use std::io;

use crate::error::{Error, ErrorKind, Result};
use crate::message::config::MAX_EAGER;
use crate::message::head::{Head, Operation};
use crate::message::tokens::Token;
use crate::message::wire::{Landing, Sink};
use crate::net::RawStream;
use crate::wire::WireError;

/// The longest body of a frame: long enough for one system call to move much, short enough that messages between the
/// frames of a large read do not wait long.
pub(super) const MAX_BODY: usize = 512 << 10;
/// How much is received at once.
const SCRATCH: usize = 128 << 10;
/// Shorter data frames are received with others and copied: splitting a system call costs more.
const IN_PLACE: usize = 4 << 10;
/// How much is received with the rest of a body that goes to its place: the next head, and short messages. What is there of the next body is
/// copied, so more would have half of a large read copied.
const BEHIND: usize = IN_PLACE;
/// The longest body of a frame that is received whole: it has to fit the scratch.
const MAX_WHOLE: usize = MAX_EAGER + Token::BYTES;
/// System calls of one pull, so that one peer does not hold up the others.
const TURNS: usize = 8;

/// Where all wires of a messenger receive, one at a time: an idle connection needs no buffer.
#[derive(Debug)]
pub(in crate::message) struct Scratch(Box<[u8]>);

impl Default for Scratch {
    fn default() -> Self {
        Self(vec![0; SCRATCH].into())
    }
}

#[derive(Debug, Default)]
pub(in crate::message) struct Inbound {
    /// Bytes that were received and are no whole frame yet.
    rest: Vec<u8>,
    /// A data frame that has begun, and how much of its body has landed.
    body: Option<(Head, usize)>,
}

impl Inbound {
    /// As [`Wire::pull`](crate::message::wire::Wire::pull).
    pub(in crate::message) fn pull(
        &mut self,
        raw: &dyn RawStream,
        scratch: &mut Scratch,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let scratch = &mut scratch.0[..];
        let (mut filled, mut given) = (self.rest.len(), 0);
        scratch[..filled].copy_from_slice(&self.rest);
        self.rest.clear();
        for _ in 0..TURNS {
            let received = self.receive(raw, &mut scratch[filled..], sink)?;
            let Some((landed, came, drained)) = received else { break };
            filled += came;
            let (used, count) = self.parse(&scratch[..filled], sink)?;
            given += usize::from(landed) + count;
            scratch.copy_within(used..filled, 0);
            filled -= used;
            if drained {
                break;
            }
        }
        self.rest.extend_from_slice(&scratch[..filled]);
        if self.rest.is_empty() && self.rest.capacity() > 0 {
            // An idle connection keeps nothing.
            self.rest = Vec::new();
        }
        Ok(given)
    }

    /// Receives once: the rest of a data frame to its place, what follows, or some of it, to `room`. Says whether something landed, how many
    /// bytes came to `room`, and whether the socket is empty now; `None` if nothing came.
    fn receive(
        &mut self,
        raw: &dyn RawStream,
        room: &mut [u8],
        sink: &mut dyn Sink,
    ) -> Result<Option<(bool, usize, bool)>> {
        let behind = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        let Some((head, done)) = self.body else {
            // SAFETY: `room` is borrowed across the call.
            let Some(came) = received(unsafe { raw.read_parts(&mut [behind]) })? else { return Ok(None) };
            return Ok(Some((false, came, came < room.len())));
        };
        let left = head.length as usize - done;
        let (wanted, got) = match sink.landing(head, done)? {
            Landing::Memory(place) => {
                let place = libc::iovec { iov_base: place.cast(), iov_len: left };
                let behind = libc::iovec { iov_len: room.len().min(BEHIND), ..behind };
                // SAFETY: the sink vouches for its place until the next call to it; `room` is borrowed across the call.
                (left + behind.iov_len, received(unsafe { raw.read_parts(&mut [place, behind]) })?)
            }
            Landing::Nowhere => {
                let some = left.min(room.len());
                let part = libc::iovec { iov_len: some, ..behind };
                // SAFETY: as above.
                (some, received(unsafe { raw.read_parts(&mut [part]) })?)
            }
        };
        let Some(got) = got else { return Ok(None) };
        let landed = got.min(left);
        self.land(head, done, landed, sink)?;
        Ok(Some((true, got - landed, got < wanted)))
    }

    /// Counts `landed` bytes of the body.
    fn land(&mut self, head: Head, done: usize, landed: usize, sink: &mut dyn Sink) -> Result<()> {
        sink.landed(head, landed)?;
        let done = done + landed;
        self.body = (done < head.length as usize).then_some((head, done));
        Ok(())
    }

    /// Gives the frames at the beginning of `bytes` to `sink`. Returns how many bytes were used and how many frames given.
    fn parse(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> Result<(usize, usize)> {
        let (mut used, mut given) = (0, 0);
        while self.body.is_none() {
            let Some(head) = bytes[used..].first_chunk() else { break };
            let head = Head::decode(head, MAX_BODY as u32)?;
            let rest = &bytes[used + Head::BYTES..];
            let length = head.length as usize;
            if head.operation != Operation::Data && length > MAX_WHOLE {
                return Err(WireError::TooLong { length: length as u64, limit: MAX_WHOLE as u64 }.into());
            }
            if let Some(body) = rest.get(..length) {
                sink.frame(head, body)?;
                used += Head::BYTES + length;
            } else if head.operation == Operation::Data && length >= IN_PLACE {
                // The part of the frame that has come is copied; the rest is received in place.
                sink.begin(head)?;
                if let Landing::Memory(place) = sink.landing(head, 0)? {
                    // SAFETY: the sink vouches for `length` bytes there, and `rest` is shorter.
                    unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), place, rest.len()) };
                }
                used = bytes.len();
                self.land(head, 0, rest.len(), sink)?;
            } else {
                break;
            }
            given += 1;
        }
        Ok((used, given))
    }
}

/// How many bytes came; `None` if there are none now.
fn received(read: io::Result<usize>) -> Result<Option<usize>> {
    match read {
        Ok(0) => Err(Error::new(ErrorKind::PeerLost, "recv", "its connection ended without a goodbye")),
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM)) => Ok(None),
        Err(error) => Err(Error::new(ErrorKind::PeerLost, "recv", "its connection broke").with_source(error)),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::net::recorded::Recorded;

    /// Where data lands, and how much of it at a time.
    #[derive(Default)]
    struct Place {
        bytes: Vec<u8>,
        landed: Vec<usize>,
    }

    impl Sink for Place {
        fn frame(&mut self, _: Head, _: &[u8]) -> Result<()> {
            Ok(())
        }

        fn begin(&mut self, head: Head) -> Result<()> {
            self.bytes.resize(head.length as usize, 0);
            Ok(())
        }

        fn landing(&mut self, _: Head, done: usize) -> Result<Landing> {
            Ok(Landing::Memory(self.bytes[done..].as_mut_ptr()))
        }

        fn landed(&mut self, _: Head, bytes: usize) -> Result<()> {
            self.landed.push(bytes);
            Ok(())
        }
    }

    /// All frames are there. Only the first one begins in the scratch.
    #[test]
    fn long_data_is_received_in_place() {
        let body = vec![7; MAX_BODY];
        let frame = [&Head::new(Operation::Data, 0, 0, MAX_BODY).encode()[..], &body].concat();
        let raw = Recorded::new(&frame.repeat(3), usize::MAX);
        let (mut inbound, mut scratch, mut place) =
            (Inbound::default(), Scratch::default(), Place::default());
        while !raw.is_empty() {
            inbound.pull(&raw, &mut scratch, &mut place).unwrap();
        }
        assert_eq!(place.landed.iter().sum::<usize>(), 3 * MAX_BODY);
        let copied: usize = place.landed.iter().step_by(2).skip(1).sum();
        assert!(copied <= 8 << 10, "{copied} bytes of the later frames are copied: {:?}", place.landed);
        assert!(place.bytes == body);
    }
}
