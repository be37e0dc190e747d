//! The sending half: what waits to be sent, and when it leaves.

use std::collections::VecDeque;
use std::io;

use crate::error::{Error, ErrorKind, Result};
use crate::message::head::Head;
use crate::message::lent::Lent;
use crate::net::RawStream;

/// As many gathered bytes leave without waiting for the next progress.
const BATCH: usize = 16 << 10;
/// Frames up to this size are put together on the stack, for one plain `send`.
const SMALL: usize = 512;
/// Parts of one system call.
const MAX_PARTS: usize = 16;
/// Lent bytes on their way. One frame more is taken as long as there are fewer.
const MAX_LENT: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Outbound {
    sequence: u32,
    waiting: VecDeque<Piece>,
    /// Gathered bytes in `waiting`, and lent ones.
    gathered: usize,
    lent: usize,
    limit: usize,
    /// Something has been sent since the last kick: what comes now is gathered.
    sent: bool,
    /// The socket had no room.
    full: bool,
    /// A push was refused, and nothing has left since.
    wanting: bool,
    /// Something has left after a push was refused.
    made_room: bool,
    closed: bool,
    /// A buffer to use again.
    spare: Vec<u8>,
}

#[derive(Debug)]
enum Piece {
    Gathered(Vec<u8>, usize),
    Lent(Lent, usize),
}

impl Outbound {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            sequence: 0,
            waiting: VecDeque::new(),
            gathered: 0,
            lent: 0,
            limit,
            sent: false,
            full: false,
            wanting: false,
            made_room: false,
            closed: false,
            spare: Vec::new(),
        }
    }

    /// As [`Wire::push`](crate::message::wire::Wire::push).
    pub(super) fn push(&mut self, raw: &dyn RawStream, mut head: Head, body: &[u8]) -> Result<bool> {
        self.check()?;
        let length = Head::BYTES + body.len();
        // A frame longer than the limit goes alone: no limit may keep it back for good.
        if self.gathered > 0 && self.gathered + length > self.limit {
            self.wanting = true;
            return Ok(false);
        }
        head.sequence = self.sequence;
        let head = head.encode();
        if !self.sent && self.waiting.is_empty() {
            let sent = self.send_now(raw, &head, body)?;
            self.sent = true;
            if sent < length {
                self.full = true;
                self.gather(&head[sent.min(head.len())..]);
                self.gather(&body[sent.saturating_sub(head.len())..]);
            }
        } else {
            self.gather(&head);
            self.gather(body);
            if self.gathered + self.lent >= BATCH && !self.full {
                self.flush(raw)?;
            }
        }
        self.sequence = self.sequence.wrapping_add(1);
        Ok(true)
    }

    /// As [`Wire::push_lent`](crate::message::wire::Wire::push_lent).
    pub(super) fn push_lent(&mut self, raw: &dyn RawStream, mut head: Head, body: Lent) -> Result<bool> {
        self.check()?;
        if self.lent >= MAX_LENT {
            return Ok(false);
        }
        head.sequence = self.sequence;
        self.sequence = self.sequence.wrapping_add(1);
        self.gather(&head.encode());
        self.lent += body.len();
        self.waiting.push_back(Piece::Lent(body, 0));
        if !self.full {
            self.flush(raw)?;
        }
        self.sent = true;
        Ok(true)
    }

    /// As [`Wire::kick`](crate::message::wire::Wire::kick).
    pub(super) fn kick(&mut self, raw: &dyn RawStream) -> Result<bool> {
        self.sent = false;
        if self.closed {
            return Ok(true);
        }
        self.flush(raw)?;
        Ok(self.waiting.is_empty())
    }

    /// As [`Wire::take_room`](crate::message::wire::Wire::take_room).
    pub(super) fn take_room(&mut self) -> bool {
        std::mem::take(&mut self.made_room)
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
        self.waiting.clear();
        (self.gathered, self.lent) = (0, 0);
    }

    fn check(&self) -> Result<()> {
        if self.closed {
            return Err(Error::new(ErrorKind::PeerLost, "send", "the link is closed"));
        }
        Ok(())
    }

    /// Sends what the socket takes of one frame at once; returns how many bytes that were.
    fn send_now(&mut self, raw: &dyn RawStream, head: &[u8], body: &[u8]) -> Result<usize> {
        let length = head.len() + body.len();
        if length <= SMALL {
            let mut whole = [0; SMALL];
            whole[..head.len()].copy_from_slice(head);
            whole[head.len()..length].copy_from_slice(body);
            return none_if_full(raw.write(&whole[..length], &[]));
        }
        let parts = [part(head), part(body)];
        // SAFETY: both parts are borrowed across the call.
        none_if_full(unsafe { raw.write_parts(&parts) })
    }

    fn gather(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.gathered += bytes.len();
        if let Some(Piece::Gathered(buffer, _)) = self.waiting.back_mut()
            && buffer.len() + bytes.len() <= 4 * BATCH
        {
            return buffer.extend_from_slice(bytes);
        }
        let mut buffer = std::mem::take(&mut self.spare);
        buffer.clear();
        buffer.extend_from_slice(bytes);
        self.waiting.push_back(Piece::Gathered(buffer, 0));
    }

    /// Sends until the socket is full or nothing is left.
    fn flush(&mut self, raw: &dyn RawStream) -> Result<()> {
        self.full = false;
        while !self.waiting.is_empty() {
            let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX_PARTS];
            let mut count = 0;
            for (to, piece) in parts.iter_mut().zip(&self.waiting) {
                *to = match piece {
                    Piece::Gathered(buffer, start) => part(&buffer[*start..]),
                    Piece::Lent(lent, start) => libc::iovec {
                        iov_base: lent.address().wrapping_add(*start).cast_mut().cast(),
                        iov_len: lent.len() - start,
                    },
                };
                count += 1;
            }
            // SAFETY: gathered parts are borrowed from `self`, lent ones live as long as their pieces, which are only removed below.
            match none_if_full(unsafe { raw.write_parts(&parts[..count]) })? {
                0 => {
                    self.full = true;
                    return Ok(());
                }
                sent => self.advance(sent),
            }
        }
        Ok(())
    }

    fn advance(&mut self, mut sent: usize) {
        self.made_room |= std::mem::take(&mut self.wanting);
        while let Some(piece) = self.waiting.front_mut() {
            let (start, length) = match piece {
                Piece::Gathered(buffer, start) => (start, buffer.len()),
                Piece::Lent(lent, start) => (start, lent.len()),
            };
            let step = sent.min(length - *start);
            *start += step;
            sent -= step;
            let whole = *start == length;
            match piece {
                Piece::Gathered(..) => self.gathered -= step,
                Piece::Lent(..) => self.lent -= step,
            }
            if !whole {
                return;
            }
            if let Some(Piece::Gathered(buffer, _)) = self.waiting.pop_front()
                && buffer.capacity() <= BATCH * 2
            {
                self.spare = buffer;
            }
        }
        if self.waiting.capacity() > 64 {
            // An idle connection keeps little.
            self.waiting = VecDeque::new();
        }
    }
}

fn part(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

fn none_if_full(written: io::Result<usize>) -> Result<usize> {
    written.or_else(|error| match error.raw_os_error() {
        _ if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Some(libc::ENOBUFS | libc::ENOMEM) => Ok(0),
        _ => Err(Error::new(ErrorKind::PeerLost, "send", "its connection broke").with_source(error)),
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Write as _;
    use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::message::head::Operation;

    /// Takes whatever is sent.
    #[derive(Debug)]
    struct Socket(UnixStream);

    impl RawStream for Socket {
        fn read(&self, _: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }

        fn write(&self, from: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
            (&self.0).write(from)
        }

        fn shutdown(&self, _: bool) -> io::Result<()> {
            Ok(())
        }

        fn fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    /// A request for a read is longer than the least limit that a user may set.
    #[test]
    fn a_frame_longer_than_the_limit_goes_alone() {
        let (mine, _theirs) = UnixStream::pair().unwrap();
        let (raw, body) = (Socket(mine), [7; 100]);
        let mut outbound = Outbound::new(10);
        let push = |outbound: &mut Outbound| {
            outbound.push(&raw, Head::new(Operation::Read, 0, 1, body.len()), &body).unwrap()
        };
        assert!(push(&mut outbound), "it is sent at once");
        assert!(push(&mut outbound), "nothing waits before it");
        assert!(!push(&mut outbound), "one waits");
        assert!(outbound.kick(&raw).unwrap());
        assert!(push(&mut outbound) && push(&mut outbound));
    }
}
