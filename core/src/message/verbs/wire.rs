//! Frames to and from a process over a queue pair.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::credits::{Credits, RECEIVES};
use super::draft::{Parts, VerbsLink};
use super::inbound::Inbound;
use super::memory::Slots;
use super::nic::Nic;
use super::outbound::Outbound;
use super::packet::{Header, broken};
use super::pairs::Pairs;
use super::reports::Watch;
use super::{PACKET, RECEIVE};
use crate::error::{Error, ErrorKind, Result};
use crate::message::head::Head;
use crate::message::one_sided::OneSided;
use crate::message::tcp::Liveness;
use crate::message::wire::{Sink, Wire};
use crate::net::RawStream;
use crate::net::ready::has_hung_up;
use crate::rdma::{Cause, Completion, CompletionChannel, CompletionQueue};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// The most frames that one pull gives.
const SHARE: usize = 128;
/// How long a device may take to end the receives of a queue pair that was moved to the error state.
const DRAIN: Duration = Duration::from_secs(1);

/// One link over a queue pair.
pub(in crate::message) struct VerbsWire {
    // The queue pair in it ends before the memory of its requests.
    state: Mutex<State>,
    inbound: Mutex<Inbound>,
    /// The pairs for reads.
    pairs: Pairs,
    completions: CompletionQueue,
    channel: CompletionChannel,
    slots: Slots,
    longest: usize,
    /// Hears what the device reports of the queue pair.
    watch: Watch,
    /// Something has completed after a push was refused. Written with the state locked.
    made_room: AtomicBool,
    closed: AtomicBool,
    nic: Arc<Nic>,
    socket: Box<dyn RawStream>,
    liveness: Liveness,
}

/// State that pushing and pulling threads share.
#[derive(Debug)]
struct State {
    outbound: Outbound,
    credits: Credits,
    /// Packets with data, in order: slot, and bytes behind the header.
    arrived: VecDeque<(u32, usize)>,
    /// Receives that have not completed.
    posted: u32,
    /// An event was asked for, or the socket may have ended.
    armed: bool,
    /// A push was refused for lack of room, and nothing has completed since.
    wanting: bool,
    /// The socket has ended: the peer sends nothing more, and what has come ends with the last receive.
    ended: Option<Instant>,
    /// Why requests failed.
    cause: Cause,
    /// The error that ended the link.
    failure: Option<Error>,
}

impl VerbsWire {
    /// A link over `link`, whose peer is connected, too. `socket` joins both processes, and nothing is on its way on it.
    /// A peer whose host does not answer for `timeout` is lost.
    pub(in crate::message) fn new(
        socket: Box<dyn RawStream>,
        link: VerbsLink,
        timeout: Option<Duration>,
    ) -> Self {
        let VerbsLink { queue_pair, parts, gives_keys } = link;
        let Parts { completions, channel, slots, sends, depth, longest, watch, nic } = parts;
        let state = State {
            outbound: Outbound::new(queue_pair, sends, depth, nic.inline),
            credits: Credits::new(),
            arrived: VecDeque::with_capacity(RECEIVES as usize),
            posted: RECEIVES,
            armed: false,
            wanting: false,
            ended: None,
            cause: Cause::default(),
            failure: None,
        };
        let liveness = Liveness::new(&*socket, timeout);
        Self {
            state: Mutex::new(state),
            inbound: Mutex::new(Inbound::new(longest)),
            pairs: Pairs::new(nic.clone(), &completions, &channel, watch.link(), gives_keys),
            completions,
            channel,
            slots,
            longest,
            watch,
            made_room: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            nic,
            socket,
            liveness,
        }
    }

    /// The number of its queue pair.
    #[cfg(all(test, not(loom)))]
    pub(super) fn number(&self) -> u32 {
        lock(&self.state).outbound.queue_pair().number()
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Takes what has completed, and sends what has credits now. Returns how many requests and receives have completed.
    fn poll(&self, state: &mut State) -> Result<usize> {
        let mut outcome = Ok(());
        let most = self.completions.capacity() as usize;
        let polled = self.completions.poll(most, |completion| {
            if outcome.is_ok() {
                outcome = state.take(&self.slots, completion);
            }
        });
        let count = polled.and_then(|count| outcome.map(|()| count)).map_err(|error| state.fail(error))?;
        if let Some(failure) = state.cause.known() {
            state.fail(failure.to_error("progress"));
        }
        if count > 0 {
            if std::mem::take(&mut state.wanting) {
                self.made_room.store(true, Ordering::Relaxed);
            }
            self.issue(state)?;
        }
        Ok(count)
    }

    /// Sends what has credits now.
    #[inline]
    fn issue(&self, state: &mut State) -> Result<()> {
        if !state.is_open() {
            return Ok(());
        }
        state.outbound.issue(&self.slots, &mut state.credits).map_err(|error| state.fail(error))
    }

    /// Looks at the socket, on which the peer says nothing: only its end is news.
    fn listen(&self, state: &mut State) -> Result<()> {
        let (mut bytes, mut fds) = ([0; 1], Vec::new());
        match self.socket.read(&mut bytes, &mut fds) {
            Ok(0) => {}
            Ok(_) => return Err(broken("it sent bytes beside its queue pair".into())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            Err(error) => {
                return Err(
                    Error::new(ErrorKind::PeerLost, "recv", "its connection broke").with_source(error)
                );
            }
        }
        if state.ended.is_none() {
            state.ended = Some(Instant::now());
            // All receives complete then, so that it is known when all that has come was seen.
            state.outbound.queue_pair().abort()?;
        }
        Ok(())
    }

    /// The error of a link on which nothing more comes.
    fn check_end(&self, state: &State) -> Result<()> {
        match (&state.failure, state.ended) {
            (Some(failure), _) => Err(failure.clone()),
            (None, Some(since)) if state.posted == 0 || since.elapsed() > DRAIN => {
                Err(Error::new(ErrorKind::PeerLost, "recv", "its process ended or closed the link"))
            }
            _ => Ok(()),
        }
    }

    /// The packet in front was used up: its receive is posted again.
    fn give_back(&self, state: &mut State) -> Result<()> {
        let Some((slot, _)) = state.arrived.pop_front() else { return Ok(()) };
        if !state.is_open() {
            return Ok(());
        }
        state.post_receive(&self.slots, slot).map_err(|error| state.fail(error))?;
        state.credits.used();
        if state.credits.owes_bundle() { self.issue(state) } else { Ok(()) }
    }
}

impl State {
    /// Whether the queue pair still sends and receives.
    fn is_open(&self) -> bool {
        self.failure.is_none() && self.ended.is_none() && !self.cause.has_failed()
    }

    /// Keeps what ends the link for whoever reads it, if it is the first; returns it.
    #[cold]
    fn fail(&mut self, error: Error) -> Error {
        self.failure.get_or_insert(error).clone()
    }

    fn post_receive(&mut self, slots: &Slots, slot: u32) -> Result<()> {
        let range = slots.range(slot, PACKET)?;
        self.outbound.queue_pair().post_receive(RECEIVE | u64::from(slot), Some(range))?;
        self.posted += 1;
        Ok(())
    }

    fn take(&mut self, slots: &Slots, completion: Completion) -> Result<()> {
        let is_receive = completion.id & RECEIVE != 0;
        if is_receive {
            self.posted = self.posted.saturating_sub(1);
        }
        let done = match completion.result {
            Ok(done) => done,
            Err(failure) => {
                // A request that a known end has flushed is no failure.
                if !failure.is_flushed() || self.ended.is_none() {
                    self.cause.add(failure);
                }
                return Ok(());
            }
        };
        if !is_receive {
            self.outbound.complete(completion.id);
            return Ok(());
        }
        let slot = (completion.id & !RECEIVE) as u32;
        // SAFETY: the receive has completed, so that the device does not write there until it is posted again.
        let header = Header::decode(unsafe { slots.bytes(slot, done.bytes as usize) })?;
        self.credits.arrived(header.returned, header.length > 0)?;
        if header.length > 0 {
            self.arrived.push_back((slot, header.length as usize));
        } else if self.is_open() {
            self.post_receive(slots, slot)?;
        }
        Ok(())
    }
}

impl Wire for VerbsWire {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn max_body(&self) -> usize {
        self.longest
    }

    fn push(&self, head: Head, body: &[u8]) -> Result<bool> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Stopped, "send", "the link was closed"));
        }
        if body.len() > self.longest {
            let text = format!("a frame of {} bytes does not fit this link", body.len());
            return Err(Error::new(ErrorKind::Internal, "send", text));
        }
        let mut state = lock(&self.state);
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if state.ended.is_some() {
            return Err(Error::new(ErrorKind::PeerLost, "send", "its process ended or closed the link"));
        }
        let mut pushed = state.outbound.append(&self.slots, head, body);
        if !pushed {
            self.poll(&mut state)?;
            pushed = state.outbound.append(&self.slots, head, body);
        }
        // Before the poll below, which may find the room.
        state.wanting |= !pushed;
        self.issue(&mut state)?;
        if state.outbound.is_stuck() {
            // The credits for it may have come.
            self.poll(&mut state)?;
        }
        Ok(pushed)
    }

    fn kick(&self) -> Result<bool> {
        let mut state = lock(&self.state);
        state.outbound.flush();
        if state.outbound.is_empty() {
            return state.failure.clone().map_or(Ok(true), Err);
        }
        self.issue(&mut state)?;
        if !state.outbound.is_empty() {
            self.poll(&mut state)?;
            self.check_end(&state)?;
        }
        Ok(state.outbound.is_empty())
    }

    fn pull(&self, sink: &mut dyn Sink) -> Result<usize> {
        let mut inbound = lock(&self.inbound);
        let mut state = lock(&self.state);
        if std::mem::take(&mut state.armed) {
            self.channel.clear()?;
            self.listen(&mut state)?;
        }
        self.poll(&mut state)?;
        let mut given = 0;
        while let Some(&(slot, length)) = state.arrived.front() {
            drop(state);
            // SAFETY: the receive has completed, and is posted again only below, by this thread: it holds the lock of `inbound`.
            let packet = unsafe { self.slots.bytes(slot, Header::BYTES + length) };
            let outcome = inbound.take(&packet[Header::BYTES..], SHARE - given, sink);
            state = lock(&self.state);
            let (count, is_used_up) = outcome.map_err(|error| state.fail(error))?;
            given += count;
            if !is_used_up {
                return Ok(given);
            }
            self.give_back(&mut state)?;
        }
        if given == 0 {
            self.check_end(&state)?;
        }
        Ok(given)
    }

    fn arm(&self) -> Result<bool> {
        let mut state = lock(&self.state);
        self.listen(&mut state)?;
        self.channel.clear()?;
        self.completions.request_event()?;
        state.armed = true;
        self.poll(&mut state)?;
        Ok(self.pairs.arm()
            || self.made_room.load(Ordering::Relaxed)
            || !state.arrived.is_empty()
            || !state.is_open())
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.channel.as_fd(), self.socket.fd()]
    }

    /// A packet that gives back receives makes the first descriptor readable.
    fn waits_for_room(&self) -> bool {
        false
    }

    fn take_room(&self) -> bool {
        self.made_room.load(Ordering::Relaxed) && self.made_room.swap(false, Ordering::Relaxed)
    }

    fn pull_is_syscall(&self) -> bool {
        false
    }

    fn check(&self) -> Result<()> {
        self.nic.check()?;
        if let Some(error) = self.watch.failure() {
            // Its requests may never complete.
            return Err(lock(&self.state).fail(error));
        }
        self.pairs.check();
        self.liveness.check(&*self.socket)
    }

    fn one_sided(&self) -> Option<&dyn OneSided> {
        Some(&self.pairs)
    }

    fn has_arrived(&self) -> bool {
        let mut state = lock(&self.state);
        // An error shows when the link is read or kicked; nothing more arrives then.
        let arrived = self.poll(&mut state).and_then(|_| state.outbound.has_arrived());
        arrived.unwrap_or(true) || state.failure.is_some() || state.ended.is_some()
    }

    /// A device notices only after its retries that the queue pair of the peer is gone.
    fn has_ended(&self) -> bool {
        has_hung_up(self.socket.fd())
    }

    fn close(&self, both: bool) {
        self.closed.store(true, Ordering::Relaxed);
        // A socket whose peer is gone needs no shutdown.
        let _ = self.socket.shutdown(both);
        if both {
            self.pairs.close();
        }
        if both && let Err(error) = lock(&self.state).outbound.queue_pair().abort() {
            log::debug!("a queue pair was left to end by itself: {error}");
        }
    }
}

impl fmt::Debug for VerbsWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsWire").field("nic", &self.nic.name()).finish_non_exhaustive()
    }
}
