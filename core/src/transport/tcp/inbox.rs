//! The receiving half: bytes from the socket become data in this rank's memory.
//!
//! Checks every frame against the rights that this rank granted to the peer before it writes anything. Data for host
//! memory is received in place, or copied if all of it is small and already in the buffer. Data for device memory
//! goes through pinned memory and a copy on one stream, so that it lands in order; later frames land after it.

use std::io;
use std::sync::Arc;

use super::frame::{Frame, HEADER_BYTES};
use super::landing::{Bytes, Effect, Landing, Turn};
use super::landings::Landings;
use super::outbox::SMALL;
use super::reads::Reads;
use super::staging::Staging;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{DeviceSlice, Event};
use crate::memory::{HostSlice, Place, Regions, Use};
use crate::net::RawStream;
use crate::sync::Ordering;
use crate::wire::printable;

const BUFFER_BYTES: usize = 64 << 10;
/// Frames that come in parts are cut at multiples of this.
const LINE: usize = 64;
/// System calls in one turn: one connection must not starve the others.
const READS: usize = 16;
/// Frames that may wait for a device at one time. With more, nothing is read, so that TCP slows the peer down: otherwise the peer
/// decides how much memory they take.
const MAX_LANDINGS: usize = 1024;
/// Frames for device memory in one turn. Giving one to the device takes microseconds, and this rank's own operations,
/// acknowledgements among them, are sent between turns: a peer that writes fast must not keep them back.
pub(super) const COPIES: usize = 64;

/// Receives frames and applies them in order.
pub(super) struct Inbox {
    peer: u32,
    /// Bytes received and not yet looked at.
    buffer: Box<[u8; BUFFER_BYTES]>,
    start: usize,
    end: usize,
    target: Target,
    landings: Landings<Landing>,
    /// Where the answers to this rank's reads belong.
    reads: Arc<Reads>,
    /// Answers among the landings.
    answers: usize,
    staging: Staging,
    ended: bool,
    /// Nothing more is received.
    closed: bool,
    /// Memory of frames of a turn that failed.
    given_up: Vec<Place>,
}

/// Where the next bytes belong.
enum Target {
    Header,
    Host {
        to: HostSlice,
        done: usize,
        kind: Bytes,
    },
    /// There is no pinned memory for them yet.
    Full {
        to: DeviceSlice,
        kind: Bytes,
    },
    Staged {
        to: DeviceSlice,
        at: usize,
        done: usize,
        kind: Bytes,
    },
    Reason {
        text: Vec<u8>,
        len: usize,
    },
}

impl Inbox {
    /// Takes the answers to what is noted in `reads`.
    pub(super) fn new(staging: Staging, peer: u32, reads: Arc<Reads>) -> Self {
        Self {
            peer,
            buffer: Box::new([0; BUFFER_BYTES]),
            start: 0,
            end: 0,
            target: Target::Header,
            landings: Landings::new(),
            reads,
            answers: 0,
            staging,
            ended: false,
            closed: false,
            given_up: Vec::new(),
        }
    }

    /// The stream of its copies.
    #[cfg(any(feature = "fuzzing", all(test, not(loom))))]
    pub(super) fn stream(&self) -> &crate::gpu::Stream {
        self.staging.stream()
    }

    /// Number of counted frames that have landed.
    pub(super) fn landed(&self) -> u64 {
        self.landings.landed()
    }

    /// Receives what is there, of which up to `copies` frames may be for device memory. An error is the connection's end.
    pub(super) fn progress(
        &mut self,
        socket: &dyn RawStream,
        regions: &Regions,
        copies: usize,
    ) -> Result<Turn> {
        let mut turn = Turn { copies, ..Turn::default() };
        if self.closed {
            return Ok(turn);
        }
        match self.advance(socket, regions, &mut turn) {
            Ok(()) => Ok(turn),
            Err(error) => {
                self.give_up(turn);
                Err(error)
            }
        }
    }

    fn advance(&mut self, socket: &dyn RawStream, regions: &Regions, turn: &mut Turn) -> Result<()> {
        self.staging.unpark();
        for _ in 0..READS {
            self.land(turn)?;
            self.parse(regions, turn)?;
            if self.must_stop(turn) || self.ended {
                break;
            }
            match self.receive(socket) {
                Ok((0, _)) => self.ended = true,
                Ok((_, room)) => {
                    turn.progress = true;
                    if room {
                        // The socket is empty, and its descriptor wakes the waiter for more. Saves one system call
                        // per message.
                        self.parse(regions, turn)?;
                        return self.rest(turn);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return self.rest(turn),
                Err(error) => {
                    return Err(Error::peer_lost(
                        "recv",
                        self.peer,
                        format!("its connection failed: {error}"),
                    ));
                }
            }
        }
        self.land(turn)?;
        if self.ended && !(matches!(self.target, Target::Header) && self.start == self.end) {
            return Err(Error::peer_lost("recv", self.peer, "its connection ended inside a message"));
        }
        turn.ended = self.ended && self.landings.waiting() == 0;
        turn.again = !turn.ended;
        Ok(())
    }

    /// The end of a turn after which the socket has nothing more.
    fn rest(&mut self, turn: &mut Turn) -> Result<()> {
        // No descriptor reports frames that lie unread in the buffer. `land` may make room for them, so this is asked first.
        let unread = self.must_stop(turn);
        self.spare_memory()?;
        self.land(turn)?;
        turn.again = unread || self.landings.waiting() > 0;
        Ok(())
    }

    /// The rest of a frame for device memory has not come, and the peer decides when it will. If no memory would be left for
    /// other connections meanwhile, gives back that of this frame: what has come goes to the device now.
    fn spare_memory(&mut self) -> Result<()> {
        let Target::Staged { to, at, done, kind } = &self.target else { return Ok(()) };
        if self.staging.park() {
            return Ok(());
        }
        let (to, at, come, kind) = (to.clone(), *at, *done, *kind);
        // What has come of the last line waits in the buffer, which is empty: words go to the device in one piece.
        let done = come - come.min((to.ptr() + come as u64) as usize % LINE);
        self.staging.read(at + done, &mut self.buffer[..come - done])?;
        (self.start, self.end) = (0, come - done);
        self.staging.trim(to.len(), done);
        self.target = Target::Full { to: to.slice(done..)?, kind };
        if done > 0 {
            self.staging.stream().copy(&to.slice(..done)?, &self.staging.device(at, done)?)?;
            let copied = Some(self.staging.event()?);
            self.landings.push_part(Landing { copied, staged: true, effect: Effect::None });
        }
        Ok(())
    }

    /// Nothing more is received: gives pinned memory back. What else it holds goes with it, where blocking is allowed.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.staging.clear();
    }

    /// Keeps the memory of a turn that failed: the caller may be a thread that must not block, as dropping it may.
    pub(super) fn give_up(&mut self, mut turn: Turn) {
        self.given_up.append(&mut turn.spent);
        self.given_up.extend(turn.asked.into_iter().map(|(place, _)| place));
    }

    /// Memory of frames of the turn that failed; drop it where blocking is allowed.
    pub(super) fn take_given_up(&mut self) -> Vec<Place> {
        std::mem::take(&mut self.given_up)
    }

    /// Whether no further frame begins in this turn, and perhaps not before a device has finished something.
    fn must_stop(&self, turn: &Turn) -> bool {
        matches!(self.target, Target::Full { .. })
            || self.landings.waiting() >= MAX_LANDINGS
            || turn.copies == 0
    }

    /// Reads into where the bytes belong, and what comes behind them into the buffer: how many, and whether there was room
    /// for more.
    fn receive(&mut self, socket: &dyn RawStream) -> io::Result<(usize, bool)> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let (base, len) = match &self.target {
            Target::Host { to, done, .. } => {
                (to.memory().as_ptr().wrapping_add(*done), to.memory().len() - done)
            }
            Target::Staged { to, at, done, .. } => (self.staging.host(at + done), to.len() - done),
            Target::Header | Target::Full { .. } | Target::Reason { .. } => (std::ptr::null_mut(), 0),
        };
        let free = &mut self.buffer[self.end..];
        let mut parts = [
            libc::iovec { iov_base: base.cast(), iov_len: len },
            libc::iovec { iov_base: free.as_mut_ptr().cast(), iov_len: free.len() },
        ];
        let wanted = len + free.len();
        let parts = if len == 0 { &mut parts[1..] } else { &mut parts[..] };
        // SAFETY: the first part lies in memory that the target keeps alive or in the ring, both of which nobody holds a
        // reference into; the second is the free part of our buffer, which is not used otherwise meanwhile.
        let got = unsafe { socket.read_parts(parts) }?;
        let direct = got.min(len);
        match &mut self.target {
            Target::Host { done, .. } | Target::Staged { done, .. } => *done += direct,
            Target::Header | Target::Full { .. } | Target::Reason { .. } => {}
        }
        self.end += got - direct;
        Ok((got, got < wanted))
    }

    /// Does what the bytes in the buffer say.
    fn parse(&mut self, regions: &Regions, turn: &mut Turn) -> Result<()> {
        loop {
            let available = &self.buffer[self.start..self.end];
            match &mut self.target {
                Target::Header => {
                    if self.must_stop(turn) {
                        return Ok(());
                    }
                    let Some(header) = available.first_chunk::<HEADER_BYTES>() else { return Ok(()) };
                    let frame = Frame::decode(header).map_err(|error| {
                        let message = format!(
                            "rank {} sent something that is no message of this connection",
                            self.peer
                        );
                        Error::new(ErrorKind::Remote, "recv", message).with_peer(self.peer).with_source(error)
                    })?;
                    self.start += HEADER_BYTES;
                    self.begin(frame, regions, turn)?;
                }
                Target::Host { to, done, kind } => {
                    let kind = *kind;
                    let step = available.len().min(to.memory().len() - *done);
                    to.memory().write(*done, &available[..step])?;
                    (*done, self.start) = (*done + step, self.start + step);
                    if *done < to.memory().len() {
                        return Ok(());
                    }
                    let Target::Host { to, .. } = std::mem::replace(&mut self.target, Target::Header) else {
                        continue;
                    };
                    turn.spent.push(Place::Host(to, None));
                    self.have_come(kind, None);
                }
                Target::Full { to, kind } => {
                    let Some(at) = self.staging.take(to.len()) else { return Ok(()) };
                    self.target = Target::Staged { to: to.clone(), at, done: 0, kind: *kind };
                }
                Target::Staged { to, at, done, kind } => {
                    let kind = *kind;
                    let staging = &mut self.staging;
                    let step = available.len().min(to.len() - *done);
                    staging.fill(*at + *done, &available[..step])?;
                    (*done, self.start) = (*done + step, self.start + step);
                    if *done < to.len() {
                        return Ok(());
                    }
                    staging.stream().copy(to, &staging.device(*at, to.len())?)?;
                    let copied = staging.event()?;
                    let Target::Staged { to, .. } = std::mem::replace(&mut self.target, Target::Header)
                    else {
                        continue;
                    };
                    turn.spent.push(Place::Device(to));
                    self.have_come(kind, Some(copied));
                }
                Target::Reason { text, len } => {
                    let step = available.len().min(*len - text.len());
                    text.extend_from_slice(&available[..step]);
                    self.start += step;
                    if text.len() < *len {
                        return Ok(());
                    }
                    let reason = printable(&String::from_utf8_lossy(text));
                    let message = format!("rank {} gave the connection up: {reason}", self.peer);
                    return Err(Error::new(ErrorKind::Remote, "recv", message).with_peer(self.peer));
                }
            }
        }
    }

    /// A frame has come, but for its bytes.
    fn begin(&mut self, frame: Frame, regions: &Regions, turn: &mut Turn) -> Result<()> {
        match frame {
            Frame::Write { region, offset, len } => {
                if self.put(region, offset, len as usize, regions)? {
                    return self.ended_now(turn);
                }
                let to = regions.find(region, self.peer, offset, u64::from(len), Use::Write)?;
                self.expect(to, Bytes::Written, turn)?;
            }
            Frame::Read { region, offset, len } => {
                let from = regions.find(region, self.peer, offset, u64::from(len), Use::Read)?;
                self.arrived(None, false, Effect::Answer(from, len as usize));
            }
            Frame::Data { len } => {
                let to = self.reads.begin(len as usize)?;
                self.expect(to, Bytes::Read, turn)?;
            }
            Frame::Update { region, offset, value } => {
                if self.landings.waiting() == 0 && self.store(region, offset, value, regions)? {
                    return self.ended_now(turn);
                }
                self.update(region, offset, value, regions, turn)?;
            }
            Frame::Ask => self.arrived(None, false, Effect::Acknowledge),
            // It is behind the bytes of the reads that it counts, some of which are still on their way to a device.
            Frame::Ack { count } if self.answers > 0 => {
                let effect = Effect::Acknowledged(count);
                self.landings.push_part(Landing { copied: None, staged: false, effect });
            }
            // Two threads of the peer may have overtaken each other: the higher count holds.
            Frame::Ack { count } => turn.acknowledged = turn.acknowledged.max(Some(count)),
            Frame::Bye => turn.bye = true,
            Frame::Fail { len } => self.target = Target::Reason { text: Vec::new(), len: len as usize },
        }
        self.land(turn)
    }

    /// The next bytes belong to `to`.
    fn expect(&mut self, to: Place, kind: Bytes, turn: &mut Turn) -> Result<()> {
        self.target = match to {
            Place::Host(to, _) => Target::Host { to, done: 0, kind },
            Place::Device(to) => {
                turn.copies -= 1;
                Target::Full { to, kind }
            }
            Place::Elsewhere => return Err(self.nowhere()),
        };
        Ok(())
    }

    /// All bytes of a frame have come; those for a device are there once `copied` is over.
    fn have_come(&mut self, kind: Bytes, copied: Option<Event>) {
        let staged = copied.is_some();
        match kind {
            Bytes::Written => self.arrived(copied, staged, Effect::None),
            Bytes::Read => {
                self.answers += 1;
                self.landings.push_part(Landing { copied, staged, effect: Effect::Read });
            }
        }
    }

    /// Copies the bytes of a small write into host memory, if they are all here; false if not.
    fn put(&mut self, region: u64, offset: u64, len: usize, regions: &Regions) -> Result<bool> {
        let Some(bytes) = self.buffer[self.start..self.end].get(..len).filter(|_| len <= SMALL) else {
            return Ok(false);
        };
        let put =
            regions.visit(region, self.peer, offset, len as u64, Use::Write, |place, at| {
                match place.host() {
                    Some(host) => host.memory().write(at, bytes).map(|()| true),
                    None => Ok(false),
                }
            })??;
        self.start += if put { len } else { 0 };
        Ok(put)
    }

    /// Stores a signal in host memory, everything before it having landed; false if it belongs elsewhere.
    fn store(&self, region: u64, offset: u64, value: u64, regions: &Regions) -> Result<bool> {
        // SYNC connection.signal: the data of earlier frames was received by this thread, or by one that gave this inbox back
        // through a lock.
        regions.visit(region, self.peer, offset, 8, Use::Write, |place, at| match place.host() {
            Some(host) => {
                let word = host.memory().word64(at).map_err(|error| self.no_word().with_source(error))?;
                word.store(value, Ordering::Release);
                Ok(true)
            }
            None => Ok(false),
        })?
    }

    /// A counted frame whose effect is there. It has landed unless earlier ones have not.
    fn ended_now(&mut self, turn: &mut Turn) -> Result<()> {
        if self.landings.land_at_once() {
            turn.progress = true;
            return Ok(());
        }
        self.arrived(None, false, Effect::None);
        self.land(turn)
    }

    fn update(
        &mut self,
        region: u64,
        offset: u64,
        value: u64,
        regions: &Regions,
        turn: &mut Turn,
    ) -> Result<()> {
        match regions.find(region, self.peer, offset, 8, Use::Write)? {
            Place::Host(to, _) => {
                // Found out now, so that the peer is told: a word that is not aligned cannot be stored.
                if let Err(error) = to.memory().word64(0) {
                    turn.spent.push(Place::Host(to, None));
                    return Err(self.no_word().with_source(error));
                }
                self.arrived(None, false, Effect::Store(to, value));
            }
            Place::Device(to) if !to.ptr().is_multiple_of(8) => {
                turn.spent.push(Place::Device(to));
                return Err(self.no_word());
            }
            Place::Device(to) => {
                let staging = &mut self.staging;
                // SYNC connection.signal: the value follows the copies on the stream, and comes with a fence.
                let written = staging.stream().write_value64(&to, value);
                turn.spent.push(Place::Device(to));
                written?;
                let copied = staging.event()?;
                turn.copies -= 1;
                self.arrived(Some(copied), false, Effect::None);
            }
            Place::Elsewhere => return Err(self.nowhere()),
        }
        Ok(())
    }

    /// The peer asks for the update of something that is no word.
    fn no_word(&self) -> Error {
        let message = format!("rank {} updated a word at a place that is not aligned to 8 bytes", self.peer);
        Error::new(ErrorKind::Remote, "recv", message).with_peer(self.peer)
    }

    fn nowhere(&self) -> Error {
        Error::new(ErrorKind::Internal, "recv", "a region of this rank that is not mapped")
            .with_peer(self.peer)
    }

    fn arrived(&mut self, copied: Option<Event>, staged: bool, effect: Effect) {
        self.landings.push(Landing { copied, staged, effect });
    }

    /// Ends what has landed, in order.
    fn land(&mut self, turn: &mut Turn) -> Result<()> {
        let done = |landing: &Landing| landing.copied.as_ref().map_or(Ok(true), Event::is_done);
        while let Some(Landing { copied, staged, effect }) = self.landings.land(done)? {
            copied.into_iter().for_each(|event| self.staging.recycle(event));
            if staged {
                self.staging.free_oldest();
            }
            turn.progress = true;
            match effect {
                Effect::None => {}
                // SYNC connection.signal: the data of earlier frames was received by this thread, or by one that gave this
                // inbox back through a lock.
                Effect::Store(to, value) => {
                    let stored = to.memory().word64(0).map(|word| word.store(value, Ordering::Release));
                    turn.spent.push(Place::Host(to, None));
                    stored?;
                }
                Effect::Acknowledge => turn.acknowledge = Some(self.landed()),
                Effect::Answer(from, len) => turn.asked.push((from, len)),
                Effect::Read => {
                    self.answers -= 1;
                    self.reads.landed();
                }
                Effect::Acknowledged(count) => turn.acknowledged = turn.acknowledged.max(Some(count)),
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
