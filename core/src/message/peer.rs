//! Handles to peers.

use std::sync::Arc;

use super::copying::IN_CALL;
use super::device::{ReadTarget, Target};
use super::head::{Head, Operation};
use super::line::Line;
use super::member::Member;
use super::memory::Memory;
use super::offers::{Delivery, Offers};
use super::one_sided::{PIECE, is_worth_registering};
use super::placing::Placing;
use super::read::Read;
use super::reading::Completion;
use super::sending::Sending;
use super::sent::{Begun, Reason, Refused, Sent};
use super::tokens::Token;
use super::transfer::Transfer;
use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// A peer of one generation. Cheap to clone.
///
/// A peer whose process died and was started again is another `Peer`: this handle's calls fail with
/// [`PeerLost`](crate::ErrorKind::PeerLost) from the moment the loss is noticed.
#[derive(Clone)]
pub struct Peer {
    pub(super) member: Arc<Member>,
}

impl Peer {
    /// Names the wire that carries messages to it: `tcp`, `shared memory` or `verbs`.
    pub fn transport(&self) -> &'static str {
        // A member gets its first link before its first handle is given out, and keeps it.
        self.member.sender("transport").map_or("none", |line| line.name)
    }

    /// Its rank.
    pub fn rank(&self) -> u32 {
        self.member.rank
    }

    /// Its generation, see [`Address::generation`](super::Address::generation).
    pub fn generation(&self) -> u64 {
        self.member.generation
    }

    /// Why nothing can be sent any more; `None` while the peer is there.
    pub fn lost(&self) -> Option<Error> {
        self.member.end().cloned()
    }

    /// The longest message that [`send`](Self::send) takes: the smaller limit of the two sides, in bytes.
    pub fn eager_limit(&self) -> usize {
        self.member.eager
    }

    /// Sends a message to whatever the peer has registered for `kind`. Copies `bytes` and waits for no peer; any thread may call it,
    /// callbacks too. The call that finds a peer lost waits up to a second for devices that copy for its reads.
    ///
    /// Messages to one peer are dispatched there in the order in which their sends returned. `Done` does not say that the peer
    /// has it: if the peer dies, or either side closes meanwhile, what was under way is lost.
    ///
    /// # Errors
    /// `InvalidUsage` for more than [`eager_limit`](Self::eager_limit) bytes; `PeerLost`; `Remote` once after the peer had nothing
    /// registered for an earlier message of this kind.
    #[inline]
    pub fn send(&self, kind: u16, bytes: &[u8]) -> Result<Sent> {
        let member = &self.member;
        member.hub.check_process("send")?;
        member.check("send")?;
        if bytes.len() > member.eager {
            return Err(self.too_long(bytes.len()));
        }
        member.unknown.check("send", member.rank, kind)?;
        let head = Head::new(Operation::Message, kind, 0, bytes.len());
        match member.push("send", head, bytes, bytes.len()) {
            Ok(true) => Ok(Sent::Done),
            Ok(false) => Ok(Sent::Retry(Reason::Full)),
            Err(error) => Err(member.broken("send", &error)),
        }
    }

    /// As [`send`](Self::send), but makes progress while there is no room. Callbacks should not wait here: they hold up the
    /// other messages of their peer.
    ///
    /// # Errors
    /// As [`send`](Self::send), `Timeout`, and `Stopped` if there is no room while this messenger is being closed.
    pub fn send_within(&self, kind: u16, bytes: &[u8], deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = deadline.into();
        let mut backoff = Backoff::new();
        loop {
            if self.send(kind, bytes)? == Sent::Done {
                return Ok(());
            }
            if self.progress()? > 0 {
                backoff = Backoff::new();
            }
            if self.member.hub.is_closing() {
                return Err(Error::new(ErrorKind::Stopped, "send_within", "the messenger is being closed"));
            }
            deadline.check("send_within", "a peer that receives too slowly")?;
            backoff.pause(deadline);
        }
    }

    /// Sends a message with long data, which the receiver reads when and where it likes, or refuses. `head` is sent at once, as with
    /// [`send`](Self::send), and is at most [`eager_limit`](Self::eager_limit) bytes long.
    ///
    /// `completion` runs in dispatch, exactly once: delivered, refused, or the error that the peer was lost, that `deadline` has
    /// passed, or that the data was [taken back](Sending::cancel); after that nobody can read the data any more. `Retry` gives it back, with
    /// the data. After errors it does not run.
    ///
    /// # Errors
    /// As [`send`](Self::send); `Exhausted` if too much memory is exposed.
    pub fn send_long<C>(
        &self,
        kind: u16,
        head: &[u8],
        data: impl Into<Memory>,
        deadline: impl Into<Deadline>,
        completion: C,
    ) -> Result<Begun<Sending, Memory, C>>
    where
        C: FnOnce(Result<Delivery>) + Send + 'static,
    {
        let member = &self.member;
        member.hub.check_process("send_long")?;
        member.check("send_long")?;
        if head.len() > member.eager {
            return Err(self.too_long(head.len()));
        }
        member.unknown.check("send_long", member.rank, kind)?;
        let line = member.sender("send_long")?;
        let data = data.into();
        let too_many = |data, completion| Refused { reason: Reason::TooManyLong, data, completion };
        // To expose costs more than to look. Others may send meanwhile.
        if !self.has_room_for_long(&lock(&line.offers))? {
            return Ok(Begun::Retry(too_many(data, completion)));
        }
        let exposed = member.hub.exposures.expose(data.clone())?;
        let mut offers = lock(&line.offers);
        if !self.has_room_for_long(&offers)? {
            return Ok(Begun::Retry(too_many(data, completion)));
        }
        let serial = offers.next()?;
        let body = [&exposed.token().to_bytes(), head].concat();
        let frame = Head::new(Operation::Long, kind, serial as u32, body.len());
        match member.push("send_long", frame, &body, head.len()) {
            Ok(true) => {}
            Ok(false) => return Ok(Begun::Retry(Refused { reason: Reason::Full, data, completion })),
            Err(error) => {
                drop(offers);
                return Err(member.broken("send_long", &error));
            }
        }
        offers.add(exposed, deadline.into(), Box::new(completion));
        drop(offers);
        member.mark_timed();
        Ok(Begun::Posted(Sending::new(member, line, serial)))
    }

    /// Whether there may be another long message beside `offers`. If not, whoever ends one afterwards sees the note: they are locked. So does
    /// whoever ends the peer, or the end shows here.
    fn has_room_for_long(&self, offers: &Offers) -> Result<bool> {
        let has_room = offers.len() < self.member.hub.limits.longs;
        if !has_room {
            self.member.note_refused();
            self.member.check("send_long")?;
        }
        Ok(has_room)
    }

    /// Reads `into.len()` bytes at `offset` of the memory that `token` stands for; the owner's program does nothing for it but
    /// make progress. Never waits. `completion` runs in dispatch, exactly once, with the filled vector or an error.
    ///
    /// [`SharedMemory`](super::SharedMemory) of a process of this host and user is mapped at the first read. From then on this side copies it
    /// without the owner: up to 1 MiB in this call, the rest in progress. Over RDMA, this side's device reads memory of any kind without
    /// the owner, once the owner has given its key: it is asked for that at the first long read, or the second one, of a token.
    ///
    /// Many reads may be under way, but not too many: `Retry` gives the vector and the completion back. Completions run in the order of the
    /// calls; only reads that end early, by [`cancel`](Read::cancel) or their deadline, do not wait for their turn. A read of 0 bytes
    /// completes, too.
    ///
    /// The completion's errors: `Authentication` for a token that the peer did not give away, `Remote` for one that it has revoked,
    /// `Timeout`, `Aborted` if it was cancelled, `PeerLost`.
    ///
    /// # Errors
    /// `InvalidUsage` for a token of another messenger, or of the peer before it was restarted, and for a range past the end;
    /// `PeerLost`. Then `completion` does not run.
    pub fn read<C>(
        &self,
        token: &Token,
        offset: u64,
        into: Vec<u8>,
        deadline: impl Into<Deadline>,
        completion: C,
    ) -> Result<Begun<Read, Vec<u8>, C>>
    where
        C: FnOnce(Result<Vec<u8>>) + Send + 'static,
    {
        self.read_and_tell((token, offset), into, deadline.into(), completion, |completion| {
            Box::new(completion)
        })
    }

    /// As [`read`](Self::read), with a completion that `make` makes once nothing is to be given back.
    pub(super) fn read_and_tell<C>(
        &self,
        (token, offset): (&Token, u64),
        into: Vec<u8>,
        deadline: Deadline,
        completion: C,
        make: impl FnOnce(C) -> Completion,
    ) -> Result<Begun<Read, Vec<u8>, C>> {
        let (member, line) = (&self.member, self.check_read(token, offset, into.len())?);
        let mut reads = lock(&line.reads);
        if !reads.has_room(member.hub.limits.reads)? {
            drop(reads);
            self.note_refused_read()?;
            return Ok(Begun::Retry(Refused { reason: Reason::TooManyReads, data: into, completion }));
        }
        let id = reads.add((*token, offset), into, deadline, make(completion));
        drop(reads);
        if let Err(error) = line.ask() {
            // The error goes to the caller if the completion has not been told of another one.
            let error = member.lost("read", &error);
            let cancelled = lock(&line.reads).cancel(id, error.clone());
            let lost = member.broken("read", &error);
            if cancelled.is_some() {
                return Err(lost);
            }
        }
        member.copy(line, IN_CALL);
        member.fetch(line, IN_CALL);
        if !lock(&line.reads).is_empty() {
            member.mark_timed();
            member.mark_dirty();
        }
        Ok(Begun::Posted(Read::new(member, line, id)))
    }

    /// As [`read`](Self::read), into all of the memory of a device, or into [`SharedMemory`](super::SharedMemory) of this process; into a part of
    /// it with [`GpuBuffer::slice`](crate::gpu::GpuBuffer::slice) or [`SharedMemory::part`](super::SharedMemory::part). Nothing else may use that
    /// memory until `completion` has run; a read that is cancelled or too late ends when nothing writes there any more. After an error it
    /// may hold anything.
    ///
    /// Device memory of the same host is mapped at the first read, where both ends can, and copied by the reader's device. Over a queue pair, this
    /// side's RDMA device reads into `SharedMemory` itself, without a copy. Else the data comes through other memory of the host, a bounded
    /// part at a time.
    ///
    /// # Errors
    /// As [`read`](Self::read); those of the driver.
    pub fn read_into<C>(
        &self,
        token: &Token,
        offset: u64,
        into: impl Into<Target>,
        deadline: impl Into<Deadline>,
        completion: C,
    ) -> Result<Begun<Read, Target, C>>
    where
        C: FnOnce(Result<()>) + Send + 'static,
    {
        self.read_into_and_tell((token, offset), into.into(), deadline.into(), completion, |completion| {
            Box::new(move |outcome| completion(outcome.map(drop)))
        })
    }

    /// As [`read_into`](Self::read_into), with a completion that `make` makes once nothing is to be given back.
    pub(super) fn read_into_and_tell<C>(
        &self,
        (token, offset): (&Token, u64),
        Target(mut target): Target,
        deadline: Deadline,
        completion: C,
        make: impl FnOnce(C) -> Completion,
    ) -> Result<Begun<Read, Target, C>> {
        let (member, line) = (&self.member, self.check_read(token, offset, target.len())?);
        let resource = target.prepare().map_err(|error| error.of("read"))?;
        resource.into_iter().for_each(|resource| member.hub.exposures.resources.keep(resource));
        // Without the lock: memory may have to be registered.
        let place = Self::place_of(&*target, token, line);
        let mut reads = lock(&line.reads);
        if !reads.has_room(member.hub.limits.reads)? {
            drop(reads);
            self.note_refused_read()?;
            let data = Target(target);
            return Ok(Begun::Retry(Refused { reason: Reason::TooManyReads, data, completion }));
        }
        let completion = make(completion);
        let transfer = Transfer { id: 0, token: *token, offset, deadline, completion, target, place };
        let id = reads.add_transfer(transfer);
        line.note_transfers(&reads);
        drop(reads);
        member.transfer(line);
        member.mark_timed();
        member.mark_dirty();
        Ok(Begun::Posted(Read::new(member, line, id)))
    }

    /// The place of `target`, if what is read of the memory of `token` may be brought there without another copy. An RDMA device needs all of the
    /// memory registered, and so locked, which is not done for a short read, nor for a small part of a lot of memory.
    fn place_of(target: &dyn ReadTarget, token: &Token, line: &Line) -> Option<Placing> {
        let (memory, at) = target.placing().filter(|_| !token.device)?;
        let wire = line.wire()?;
        if token.shared && wire.passes_descriptors() {
            return Some(Placing::shared(memory, at));
        }
        let is_worth_it =
            target.len() >= PIECE && is_worth_registering(memory.len() as u64, target.len() as u64);
        let device = wire.one_sided().filter(|device| is_worth_it && device.is_able())?;
        device.target(memory).map(|region| Placing::registered(region, at))
    }

    /// A read was refused: its thread may sleep next, until there is room or the peer ends. Reads tell of room themselves, because the
    /// refusal has noted itself there under their lock; the note here is for whoever ends the peer, or the end shows here.
    #[cold]
    fn note_refused_read(&self) -> Result<()> {
        self.member.note_refused();
        self.member.check("read")
    }

    /// The link for a read of `length` bytes at `offset` of the memory that `token` stands for, if that can be.
    fn check_read(&self, token: &Token, offset: u64, length: usize) -> Result<&Arc<Line>> {
        let member = &self.member;
        member.hub.check_process("read")?;
        member.check("read")?;
        if token.generation != member.generation {
            let text = format!(
                "the token is not of rank {} as it runs now: ask its owner for a new one, and read from the owner",
                member.rank
            );
            return Err(Error::usage("read", text));
        }
        token.check_range("read", offset, length as u64)?;
        member.sender("read")
    }

    /// Says goodbye to the peer after what was sent, and ends the link; what is under way with it ends with `Stopped`. The
    /// peer learns that this side left. Every handle of it is closed.
    ///
    /// # Errors
    /// `Timeout` if the peer did not take what was sent until `deadline`; the link has ended all the same. `InvalidUsage` in a forked
    /// child.
    pub fn close(&self, deadline: impl Into<Deadline>) -> Result<()> {
        self.member.hub.check_process("close")?;
        match self.member.hub.engine() {
            Some(engine) => engine.close(&self.member, deadline.into()),
            None => Ok(()),
        }
    }

    /// Pieces of the peer's memory that this side has mapped.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn mappings(&self) -> usize {
        self.member.lines().iter().map(|line| lock(&line.reads).mappings()).sum()
    }

    /// Whether the locks are free that calls of this peer, and answers to it, take.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn has_free_locks(&self) -> bool {
        let is_free = |line: &Arc<Line>| line.reads.try_lock().is_ok() && line.serving.try_lock().is_ok();
        self.member.lines().iter().all(is_free)
    }

    fn progress(&self) -> Result<usize> {
        match self.member.hub.engine() {
            Some(engine) => engine.progress(),
            None => Err(Error::new(ErrorKind::Stopped, "progress", "the messenger was closed")),
        }
    }

    #[cold]
    fn too_long(&self, length: usize) -> Error {
        let limit = self.member.eager;
        let text =
            format!("a message of {length} bytes is longer than the eager limit of {limit}; use `send_long`");
        Error::usage("send", text)
    }
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Member { rank, generation, .. } = &*self.member;
        f.debug_struct("Peer")
            .field("rank", rank)
            .field("generation", generation)
            .field("transport", &self.transport())
            .finish_non_exhaustive()
    }
}

impl PartialEq for Peer {
    /// Whether both are the same peer: of the same generation, and without a `close` of either side in between.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.member, &other.member)
    }
}

impl Eq for Peer {}
