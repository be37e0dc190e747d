//! How two messengers introduce themselves on a new connection, after both have proved the job's secret.
//!
//! The side that connected speaks first and says whom it means; the other side answers. Both records have one size, so that
//! neither side reads further than the introduction. One that has a queue pair to offer describes it behind its record
//! ([`Offer`]). If both do, the side that connected says in one more byte whether it could connect its queue pair: only then may the other one
//! send.
//!
//! The first six bytes are the same in every version: a side that finds another version there answers with its own record, so that both
//! can say which versions met.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::credit::Amount;
use super::ring::RingMemory;
use super::verbs::Offer;
use crate::error::{Error, ErrorKind, Result};
use crate::net::RawStream;
use crate::wire::{Reader, WireError, WireResult, Writer};

const MAGIC: u32 = u32::from_le_bytes(*b"AQM1");
const VERSION: u16 = 4;

/// The description that each side sends of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) rank: u32,
    pub(super) generation: u64,
    /// The generation that the speaker takes the other side for.
    pub(super) meant: u64,
    /// The longest message that it takes.
    pub(super) eager: u32,
    /// How many reads it may be asked for at a time.
    pub(super) read_depth: u32,
    /// Cells of the ring that the speaker has made for the other side, and whose descriptor comes along; 0 if there is none.
    pub(super) ring: u32,
    /// Bytes of the description of a queue pair that follow; 0 if the speaker has none.
    pub(super) verbs: u32,
    /// How often the speaker has ended a link with this generation of the other side before. A change says that its earlier
    /// links, and the credit on them, are gone, even if their end has not arrived yet.
    pub(super) life: u32,
    /// The room in its inbox.
    pub(super) inbox: Amount,
    pub(super) verdict: Verdict,
}

/// The byte by which the side that connected says that its queue pair is connected.
pub(super) const CONNECTED: u8 = 1;
/// The same if it could not connect it: frames follow on the socket.
pub(super) const NOT_CONNECTED: u8 = 0;

/// Whether a side takes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Verdict {
    Taken = 0,
    /// It is another generation than the one that was meant: it has been restarted.
    OtherGeneration = 1,
}

/// Magic number and version, with which a record of any version begins.
const PREFIX: usize = 6;

impl Hello {
    pub(super) const BYTES: usize = 56;

    /// Checks how a record begins.
    fn begin(r: &mut Reader<'_>) -> WireResult<()> {
        let found = r.u32()?;
        if found != MAGIC {
            return Err(WireError::Magic { found });
        }
        r.version(VERSION)
    }

    pub(super) fn encode(self) -> [u8; Self::BYTES] {
        let mut w = Writer::new();
        w.u32(MAGIC).u16(VERSION).u8(self.verdict as u8).u8(0).u32(self.rank).u32(self.eager);
        w.u64(self.generation)
            .u64(self.meant)
            .u32(self.read_depth)
            .u32(self.ring)
            .u32(self.verbs)
            .u32(self.life);
        w.raw(&self.inbox.encode());
        let mut out = [0; Self::BYTES];
        out.copy_from_slice(w.as_bytes());
        out
    }

    /// Sends the introduction of a side that has made the ring in `made` for the other one, and has its descriptor, or that
    /// has the queue pair `offer`. True if all of it left: the socket is new and its buffer empty, so it fits unless the peer
    /// has broken the connection.
    pub(super) fn send(
        self,
        raw: &dyn RawStream,
        made: Option<&(RingMemory, OwnedFd)>,
        offer: Option<Offer>,
    ) -> bool {
        let verbs = offer.map_or(0, |_| Offer::BYTES as u32);
        let mut hello =
            Self { ring: made.map_or(0, |(ring, _)| ring.size()), verbs, ..self }.encode().to_vec();
        hello.extend(offer.iter().flat_map(|offer| offer.encode()));
        let fds: Vec<BorrowedFd<'_>> = made.iter().map(|(_, fd)| fd.as_fd()).collect();
        let (mut rest, mut fds) = (&hello[..], &fds[..]);
        // A layer for fault injection may take less at a time.
        while !rest.is_empty() {
            match raw.write(rest, fds) {
                Ok(0) | Err(_) => return false,
                Ok(count) => (rest, fds) = (&rest[count..], &[]),
            }
        }
        true
    }

    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> WireResult<Self> {
        let mut r = Reader::new(bytes);
        Self::begin(&mut r)?;
        let verdict = match r.u8()? {
            0 => Verdict::Taken,
            1 => Verdict::OtherGeneration,
            _ => return Err(WireError::Invalid { what: "verdict of an introduction" }),
        };
        let reserved = r.u8()?;
        let (rank, eager) = (r.u32()?, r.u32()?);
        let (generation, meant, read_depth, ring) = (r.u64()?, r.u64()?, r.u32()?, r.u32()?);
        let (verbs, life) = (r.u32()?, r.u32()?);
        let inbox = Amount::from_word(r.u64()?);
        if reserved != 0 {
            return Err(WireError::Invalid { what: "reserved field of an introduction" });
        }
        if eager == 0 || read_depth == 0 || inbox.messages == 0 || inbox.bytes < eager {
            return Err(WireError::Invalid { what: "limit in an introduction" });
        }
        if verbs != 0 && (verbs as usize != Offer::BYTES || ring != 0) {
            return Err(WireError::Invalid { what: "queue pair of an introduction" });
        }
        r.finish()?;
        Ok(Self { rank, generation, meant, eager, read_depth, ring, verbs, life, inbox, verdict })
    }
}

/// The introduction of one side.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) hello: Hello,
    /// The ring that it has made for this side; `None` also if this process had no descriptor left for it.
    pub(super) ring: Option<RingMemory>,
    /// Its queue pair.
    pub(super) offer: Option<Offer>,
}

/// Receives one introduction, and what descriptors come with it, in as many calls as it takes.
#[derive(Debug)]
pub(super) struct Hearing {
    bytes: [u8; Hello::BYTES + Offer::BYTES],
    done: usize,
    fds: Vec<OwnedFd>,
    /// Descriptors came for which this process had no room.
    lost: bool,
}

impl Hearing {
    pub(super) fn new() -> Self {
        Self { bytes: [0; Hello::BYTES + Offer::BYTES], done: 0, fds: Vec::new(), lost: false }
    }

    /// The introduction once all of it has come; `None` before. Does not wait, and reads nothing behind it.
    ///
    /// # Errors
    /// [`Authentication`](ErrorKind::Authentication) for another version, before the rest of its record has come, which may be shorter.
    pub(super) fn hear(&mut self, raw: &dyn RawStream) -> Result<Option<Heard>> {
        if !self.fill(raw, PREFIX)? {
            return Ok(None);
        }
        match Hello::begin(&mut Reader::new(&self.bytes[..PREFIX])) {
            Err(WireError::Version { found, supported }) => {
                let text = format!(
                    "the peer speaks version {found} of messages, and this side version {supported}; use one version of aqueduct in a job"
                );
                return Err(Error::new(ErrorKind::Authentication, "connect", text));
            }
            begun => begun?,
        }
        if !self.fill(raw, Hello::BYTES)? {
            return Ok(None);
        }
        let hello = Hello::decode(self.bytes.first_chunk().expect("so long"))?;
        let has_offer = hello.verbs != 0;
        if has_offer && !self.fill(raw, Hello::BYTES + Offer::BYTES)? {
            return Ok(None);
        }
        let behind = self.bytes.last_chunk().expect("so long");
        let offer = if has_offer { Some(Offer::decode(behind)?) } else { None };
        let mut fds = std::mem::take(&mut self.fds);
        match (hello.ring, fds.pop(), fds.is_empty()) {
            (0, None, _) => Ok(Some(Heard { hello, ring: None, offer })),
            (_, None, _) if self.lost => Ok(Some(Heard { hello, ring: None, offer })),
            (cells @ 1.., Some(fd), true) => {
                Ok(Some(Heard { hello, ring: Some(RingMemory::open(fd, cells)?), offer }))
            }
            _ => {
                let text = "an introduction came with other descriptors than it announced";
                Err(Error::new(ErrorKind::Remote, "connect", text))
            }
        }
    }

    /// Reads up to byte `end`; false if not all of that has come.
    fn fill(&mut self, raw: &dyn RawStream, end: usize) -> Result<bool> {
        while self.done < end {
            let into = &mut self.bytes[self.done..end];
            let mut came = raw.read(into, &mut self.fds);
            if came.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EMFILE)) {
                // They would stay in the socket: the bytes are taken without them.
                self.lost = true;
                let mut part = [libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() }];
                // SAFETY: `into` is writable, as long as stated, and not used meanwhile.
                came = unsafe { raw.read_parts(&mut part) };
            }
            match came {
                Ok(0) => {
                    let text = "the peer closed the connection before it introduced itself";
                    return Err(Error::new(ErrorKind::PeerLost, "connect", text));
                }
                Ok(count) => self.done += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => {
                    let text = "the connection broke before the peer introduced itself";
                    return Err(Error::new(ErrorKind::PeerLost, "connect", text).with_source(error));
                }
            }
        }
        Ok(true)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;
    use crate::message::ring::tests::Socket;
    use crate::message::ring::tests::descriptors::Exhausted;
    use crate::sync::{Mutex, lock};

    proptest! {
        #[test]
        fn introductions_round_trip_and_garbage_is_refused(
            rank: u32, generation: u64, meant: u64, eager in 1u32.., read_depth in 1u32.., ring: u32, has_verbs: bool,
            life: u32, messages in 1u32.., more: u32, at in 0usize..56, change in 1u8..,
        ) {
            let (ring, verbs) = if has_verbs { (0, Offer::BYTES as u32) } else { (ring, 0) };
            let inbox = Amount { messages, bytes: eager.saturating_add(more) };
            for verdict in [Verdict::Taken, Verdict::OtherGeneration] {
                let hello =
                    Hello { rank, generation, meant, eager, read_depth, ring, verbs, life, inbox, verdict };
                let mut bytes = hello.encode();
                prop_assert_eq!(Hello::decode(&bytes), Ok(hello));
                bytes[at] ^= change;
                if let Ok(other) = Hello::decode(&bytes) {
                    prop_assert!(other != hello && other.encode() == bytes);
                }
            }
        }
    }

    /// A socket that takes few bytes at a time. Keeps them, and notes behind how many of them descriptors came.
    #[derive(Debug, Default)]
    struct Narrow(Mutex<(Vec<u8>, Vec<usize>)>);

    impl RawStream for Narrow {
        fn read(&self, _: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
            unreachable!("it only sends")
        }

        fn write(&self, from: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
            let (bytes, places) = &mut *lock(&self.0);
            places.extend(fds.iter().map(|_| bytes.len()));
            let taken = from.len().min(5);
            bytes.extend_from_slice(&from[..taken]);
            Ok(taken)
        }

        fn shutdown(&self, _: bool) -> io::Result<()> {
            unreachable!("nobody ends it")
        }

        fn fd(&self) -> BorrowedFd<'_> {
            unreachable!("nobody waits for it")
        }
    }

    #[test]
    fn an_introduction_that_leaves_in_pieces_has_its_descriptor_once() {
        let (ring, fd) = RingMemory::create(1 << 16).unwrap();
        let size = ring.size();
        let narrow = Narrow::default();
        assert!(HELLO.send(&narrow, Some(&(ring, fd)), None));
        let (bytes, places) = std::mem::take(&mut *lock(&narrow.0));
        assert_eq!(bytes, Hello { ring: size, ..HELLO }.encode());
        assert_eq!(places, [0], "with the first byte");
    }

    #[test]
    fn a_ring_that_is_lost_for_want_of_descriptors_is_none_and_a_ring_that_never_came_is_an_error() {
        for exhausted in [true, false] {
            let (one, two) = UnixStream::pair().unwrap();
            let introduction = Hello { ring: 512, ..HELLO };
            assert_eq!(Socket(one).write(&introduction.encode(), &[]).unwrap(), Hello::BYTES);
            let mut hearing = Hearing::new();
            let heard = match exhausted {
                true => hearing.hear(&Exhausted(Socket(two))),
                false => hearing.hear(&Socket(two)),
            };
            if exhausted {
                let Heard { hello, ring, .. } = heard.unwrap().unwrap();
                assert!(hello == introduction && ring.is_none());
            } else {
                assert_eq!(heard.unwrap_err().kind(), ErrorKind::Remote);
            }
        }
    }

    const HELLO: Hello = Hello {
        rank: 1,
        generation: 2,
        meant: 3,
        eager: 1,
        read_depth: 1,
        ring: 0,
        verbs: 0,
        life: 0,
        inbox: Amount { messages: 1, bytes: 1 },
        verdict: Verdict::Taken,
    };

    #[test]
    fn limits_of_zero_are_refused() {
        let hello = HELLO;
        assert!(Hello::decode(&hello.encode()).is_ok());
        assert!(
            Hello::decode(&Hello { eager: 2, ..hello }.encode()).is_err(),
            "no room for the longest message"
        );
        let inbox = Amount { messages: 0, bytes: 1 };
        assert!(Hello::decode(&Hello { inbox, ..hello }.encode()).is_err());
        assert!(Hello::decode(&Hello { verbs: 1, ..hello }.encode()).is_err());
        assert!(Hello::decode(&Hello { eager: 0, ..hello }.encode()).is_err());
        assert!(Hello::decode(&Hello { read_depth: 0, ..hello }.encode()).is_err());
    }
}
