//! The trait [`Bootstrap`], and `all_gather`, `broadcast`, `barrier` and `group_barrier` over its `send` and `recv`, in
//! ceil(log2(n)) rounds.
//!
//! In round k, rank r sends to r - 2^k and receives from r + 2^k (modulo n), so no rank is special and no step is
//! O(n) messages long. All-gather: J. Bruck et al., "Efficient Algorithms for All-to-All Communications in Multiport
//! Message-Passing Systems", 1997. Barrier: D. Hensgen, R. Finkel, U. Manber, "Two Algorithms for Barrier
//! Synchronization", 1988. Broadcast: a binomial tree, whose edges are among those of the rounds if rank 0 is the
//! root. Consecutive calls reuse their tags: messages of one (peer, tag) are ordered. The tags of a group barrier are
//! made from its ranks, so that barriers of different groups may overlap.
//!
//! A rank that fails sends the reason to the ranks it would have sent to in later rounds, and they do the same. So each rank
//! learns which rank was lost, and not only that the rank it waits for has given up. Those that do not wait for it in this call learn it
//! when it leaves (see `TcpBootstrap`).
#![forbid(unsafe_code)]

use std::fmt::Debug;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::net::Secret;
use crate::wire::{Reader, WireError, WireResult, Writer};

/// Tags from here on belong to the collective calls of [`Bootstrap`]; users' tags are below.
pub const RESERVED_TAGS: u64 = 1 << 63;

/// The longest message that [`Bootstrap::send`] takes.
pub const MAX_MESSAGE: usize = 16 << 20;

/// Messages between the ranks of a job while it starts.
///
/// Messages of one (sender, receiver, tag) arrive in order; different tags are independent. Every wait has a
/// deadline. The implementation may be used from several threads; collective calls ([`all_gather`], [`broadcast`],
/// [`barrier`]) are made by all ranks in the same order, one at a time, and each [`group_barrier`] by its ranks.
///
/// The collective calls are provided over `send` and `recv`; a bootstrap over a library that has its own may use them instead.
/// `&B`, `Box<B>` and `Arc<B>` are bootstraps if `B` is one.
///
/// [`all_gather`]: Bootstrap::all_gather
/// [`broadcast`]: Bootstrap::broadcast
/// [`barrier`]: Bootstrap::barrier
/// [`group_barrier`]: Bootstrap::group_barrier
pub trait Bootstrap: Debug + Send + Sync {
    /// This process's rank, `0 .. size`.
    fn rank(&self) -> u32;

    /// Number of ranks.
    fn size(&self) -> u32;

    /// Sends `bytes` to `peer`. Returns when the message is on its way, without waiting for the peer to receive
    /// it. Sending to oneself is allowed.
    ///
    /// A `Timeout` says that the message is not all on its way yet. It is not taken back: it may still arrive, whole, before later
    /// messages, so sending it again can deliver it twice.
    fn send(&self, peer: u32, tag: u64, bytes: &[u8], deadline: Deadline) -> Result<()>;

    /// Receives the next message that `peer` sent with `tag`, waiting for it until `deadline`.
    fn recv(&self, peer: u32, tag: u64, deadline: Deadline) -> Result<Vec<u8>>;

    /// The secret that only the ranks of this bootstrap share, if there is one. Provided: none.
    fn secret(&self) -> Option<Secret> {
        None
    }

    /// Returns every rank's `mine`, in rank order; the lengths may differ. Collective. Provided: Bruck's algorithm over
    /// `send` and `recv`, ceil(log2(size)) rounds.
    ///
    /// # Errors
    /// `InvalidUsage` on a rank whose `mine` has more than [`MAX_MESSAGE`] bytes, which the other ranks learn as `Remote`, with that
    /// rank, and all can go on; `Timeout`, with the rank that was waited for, if that one does not come. After a `Timeout` the ranks are
    /// out of step: a later call may return bytes of this one.
    fn all_gather(&self, mine: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        all_gather(self, mine, deadline)
    }

    /// Returns `root`'s `bytes` on every rank; the other ranks' `bytes` are not looked at. Collective, with the same
    /// `root` everywhere. Provided: a binomial tree, ceil(log2(size)) rounds.
    ///
    /// # Errors
    /// `InvalidUsage` for a root that does not exist, and on the root for more than [`MAX_MESSAGE`] bytes, which the other ranks
    /// learn as `Remote`; `Timeout`, with the rank that was waited for, if that one does not come or names another root. After a
    /// `Timeout` the ranks are out of step: a later broadcast may return the bytes of this one.
    fn broadcast(&self, root: u32, bytes: &[u8], deadline: Deadline) -> Result<Vec<u8>> {
        broadcast(self, root, bytes, deadline)
    }

    /// Returns when every rank has called it. Collective. Provided: dissemination, ceil(log2(size)) rounds.
    fn barrier(&self, deadline: Deadline) -> Result<()> {
        barrier(self, deadline)
    }

    /// Returns when each of `ranks`, of which this rank is one, has called it with the same ranks, in any order.
    /// Other ranks do not take part. Barriers of different ranks may overlap, also on one rank; those of the same
    /// ranks come one after the other. Provided: dissemination, ceil(log2(ranks)) rounds.
    ///
    /// # Errors
    /// `InvalidUsage` for a rank that does not exist or is named twice, and if this rank is not among them; `Timeout`, with
    /// the rank that was waited for, if that one does not come or names other ranks.
    fn group_barrier(&self, ranks: &[u32], deadline: Deadline) -> Result<()> {
        group_barrier(self, ranks, deadline)
    }
}

const GATHER: u64 = RESERVED_TAGS;
const BARRIER: u64 = RESERVED_TAGS | 1 << 32;
/// The lower bits of these tags are the root.
const BROADCAST: u64 = RESERVED_TAGS | 2 << 32;
/// The lower bits of these tags are made from the ranks of the group and the step.
const GROUP: u64 = RESERVED_TAGS | 1 << 62;

/// How many ranks an error names.
const MAX_NAMED: usize = 16;

/// How a message begins.
const FINE: u8 = 0;
const FAILED: u8 = 1;
/// As failed, and all ranks go through all rounds.
const REFUSED: u8 = 2;
const MAX_TEXT: usize = 1024;
/// Bytes of a message that belong to no block, at most: the reason of a failure is the longest.
const MAX_HEAD: u64 = MAX_TEXT as u64 + 64;
/// How long a rank that gives up may take to say so.
const FAREWELL: Duration = Duration::from_millis(500);

/// The ranks that `rank` sends to, then the ranks it receives from, for every round.
pub(super) fn rounds(rank: u32, size: u32) -> impl Iterator<Item = (u32, u32, u32)> {
    let (rank, size) = (u64::from(rank), u64::from(size));
    (0..u64::BITS).map(|k| 1_u64 << k).take_while(move |step| *step < size).map(move |step| {
        let to = (rank + size - step) % size;
        let from = (rank + step) % size;
        (to as u32, from as u32, step as u32)
    })
}

pub(super) fn all_gather<B: Bootstrap + ?Sized>(
    b: &B,
    mine: &[u8],
    deadline: Deadline,
) -> Result<Vec<Vec<u8>>> {
    // Block i belongs to rank (rank + i) mod size.
    const OP: &str = "all_gather";
    // From here on, or from where another rank tells of such an error, the rounds carry it in the place of blocks: every rank hears of it,
    // and none leaves a message behind that a later call would take for its own.
    let mut refused = (mine.len() > MAX_MESSAGE).then(|| {
        let text = format!("{} bytes are above the limit of {MAX_MESSAGE}; gather them in parts", mine.len());
        Error::usage(OP, text).with_peer(b.rank())
    });
    let mut blocks: Vec<Vec<u8>> = vec![if refused.is_some() { Vec::new() } else { mine.to_vec() }];
    let call = Call::of_all(OP, GATHER, b);
    call.in_rounds(b, deadline, |Round { to, from, step, tag }| {
        let count = (step as usize).min(b.size() as usize - step as usize);
        let message = match &refused {
            Some(error) => told(REFUSED, error),
            None => {
                let mut message = Writer::new();
                message.u8(FINE).count(count);
                blocks[..count].iter().for_each(|block| {
                    message.bytes(block);
                });
                message.finish()
            }
        };
        send_long(b, to, tag, &message, deadline)?;
        let reply = recv_long(b, from, tag, count, deadline)?;
        let mut reader = match open(OP, from, &reply) {
            Err(error) if reply.first() == Some(&REFUSED) => {
                refused.get_or_insert(error);
                return Ok(());
            }
            opened => opened?,
        };
        if refused.is_some() {
            return Ok(());
        }
        let received = reader.count(b.size() as usize, 4)?;
        if received != count {
            return Err(Error::new(
                ErrorKind::Remote,
                OP,
                format!("rank {from} sent {received} blocks instead of {count}; all ranks must make the same calls"),
            )
            .with_peer(from));
        }
        for _ in 0..received {
            blocks.push(reader.bytes(MAX_MESSAGE)?.to_vec());
        }
        Ok(reader.finish()?)
    })?;
    if let Some(error) = refused {
        return Err(error);
    }
    blocks.rotate_right(b.rank() as usize);
    Ok(blocks)
}

/// A call that some or all ranks make together, in rounds.
struct Call<'a> {
    op: &'static str,
    /// The tag of step 0. Other steps differ from it in their low bits.
    tag: u64,
    /// The ranks in order; all of them if `None`.
    ranks: Option<&'a [u32]>,
    /// This rank's place among them.
    place: u32,
    count: u32,
}

/// One round of a call.
struct Round {
    to: u32,
    from: u32,
    step: u32,
    tag: u64,
}

impl<'a> Call<'a> {
    fn of_all<B: Bootstrap + ?Sized>(op: &'static str, tag: u64, b: &B) -> Self {
        Self { op, tag, ranks: None, place: b.rank(), count: b.size() }
    }

    fn rounds(&self) -> impl Iterator<Item = Round> + '_ {
        let rank = |place: u32| self.ranks.map_or(place, |ranks| ranks[place as usize]);
        rounds(self.place, self.count).map(move |(to, from, step)| Round {
            to: rank(to),
            from: rank(from),
            step,
            tag: self.tag ^ u64::from(step),
        })
    }

    /// Runs `round` for every round. After an error, tells the ranks that wait for this one in later rounds why.
    fn in_rounds<B: Bootstrap + ?Sized>(
        &self,
        b: &B,
        deadline: Deadline,
        mut round: impl FnMut(Round) -> Result<()>,
    ) -> Result<()> {
        let mut rounds = self.rounds();
        while let Some(this) = rounds.next() {
            let from = this.from;
            let Err(error) = round(this) else { continue };
            let error = self.explained(from, error);
            let deadline = deadline.min(Deadline::after(FAREWELL));
            for Round { to, tag, .. } in rounds.filter(|round| Some(round.to) != error.peer()) {
                // A rank that cannot be told is lost itself, or notices the loss by itself.
                let _ = send_long(b, to, tag, &failure(&error), deadline);
            }
            return Err(error);
        }
        Ok(())
    }

    /// `error`, or what it means that `from` sent nothing.
    fn explained(&self, from: u32, error: Error) -> Error {
        if error.kind() != ErrorKind::Timeout {
            return error;
        }
        let same = match self.ranks {
            Some(ranks) => format!("; all name the same ranks, here {}", named(ranks)),
            None => String::new(),
        };
        absent(self.op, from, &same)
    }
}

fn absent(op: &'static str, from: u32, same: &str) -> Error {
    let text = format!(
        "rank {from} has not called {op}() before the deadline, or waits there for another rank that has not{same}"
    );
    Error::timeout(op, text).with_peer(from)
}

fn named(ranks: &[u32]) -> String {
    let mut names: Vec<String> = ranks.iter().take(MAX_NAMED).map(u32::to_string).collect();
    if ranks.len() > MAX_NAMED {
        names.push(format!("and {} more", ranks.len() - MAX_NAMED));
    }
    names.join(", ")
}

fn failure(error: &Error) -> Vec<u8> {
    told(FAILED, error)
}

fn told(how: u8, error: &Error) -> Vec<u8> {
    let mut w = Writer::new();
    w.u8(how);
    write_reason(&mut w, error);
    w.finish()
}

/// Why a rank has given up.
pub(super) fn write_reason(w: &mut Writer, error: &Error) {
    w.u8(u8::from(error.kind() == ErrorKind::PeerLost)).u32(error.peer().unwrap_or(u32::MAX));
    w.str_cut(error.message(), MAX_TEXT);
}

/// The rest of a message from rank `from`; an error if it is why that rank gave up.
fn open<'a>(op: &'static str, from: u32, message: &'a [u8]) -> Result<Reader<'a>> {
    let mut r = Reader::new(message);
    if r.u8()? == FINE {
        return Ok(r);
    }
    Err(read_reason(op, from, r)?)
}

/// Why rank `from` has given up, which the rest of a message says.
pub(super) fn read_reason(op: &'static str, from: u32, mut r: Reader<'_>) -> WireResult<Error> {
    let (lost, peer, text) = (r.bool()?, r.u32()?, r.text(MAX_TEXT)?);
    r.finish()?;
    let kind = if lost { ErrorKind::PeerLost } else { ErrorKind::Remote };
    let heard = " (heard from rank ";
    let text = text.split(heard).next().unwrap_or(&text);
    let error = Error::new(kind, op, format!("{text}{heard}{from})"));
    Ok(error.with_peer(if peer == u32::MAX { from } else { peer }))
}

/// The parent of a rank, counted from the root, is the one without its lowest set bit, so that the root sends
/// ceil(log2(n)) messages and every other rank at most as many.
pub(super) fn broadcast<B: Bootstrap + ?Sized>(
    b: &B,
    root: u32,
    mine: &[u8],
    deadline: Deadline,
) -> Result<Vec<u8>> {
    const OP: &str = "broadcast";
    exists(OP, root, b.size())?;
    let (size, tag) = (u64::from(b.size()), BROADCAST | u64::from(root));
    let place = ((u64::from(b.rank()) + size - u64::from(root)) % size) as u32;
    let rank = |place: u32| ((u64::from(place) + u64::from(root)) % size) as u32;
    let (bytes, below) = match place {
        0 if mine.len() > MAX_MESSAGE => {
            let text =
                format!("{} bytes are above the limit of {MAX_MESSAGE}; broadcast them in parts", mine.len());
            (Err(Error::usage(OP, text)), u32::BITS)
        }
        0 => (Ok(mine.to_vec()), u32::BITS),
        _ => (receive(b, rank(place & (place - 1)), tag, deadline), place.trailing_zeros()),
    };
    let (message, until) = match &bytes {
        Ok(bytes) => ([&[FINE], &bytes[..]].concat(), deadline),
        Err(error) => (failure(error), deadline.min(Deadline::after(FAREWELL))),
    };
    // The largest subtree first: it has the longest way to go.
    let children = (0..below).rev().filter_map(|bit| place.checked_add(1 << bit));
    let children = children.filter(|child| u64::from(*child) < size).map(rank);
    let sent = children.map(|child| send_long(b, child, tag, &message, until)).fold(Ok(()), Result::and);
    let bytes = bytes?;
    sent.map(|()| bytes)
}

fn receive<B: Bootstrap + ?Sized>(b: &B, parent: u32, tag: u64, deadline: Deadline) -> Result<Vec<u8>> {
    const OP: &str = "broadcast";
    let message = recv_long(b, parent, tag, 1, deadline).map_err(|error| match error.kind() {
        ErrorKind::Timeout => absent(OP, parent, "; all name the same root"),
        _ => error,
    })?;
    let mut reader = open(OP, parent, &message)?;
    Ok(reader.raw(reader.remaining())?.to_vec())
}

fn exists(op: &'static str, rank: u32, size: u32) -> Result<()> {
    if rank < size {
        return Ok(());
    }
    Err(Error::usage(op, format!("there is no rank {rank}; ranks are 0 to {}", size.saturating_sub(1))))
}

/// A round's blocks together can be longer than one message: the length first, then as many parts as it takes.
fn send_long<B: Bootstrap + ?Sized>(
    b: &B,
    to: u32,
    tag: u64,
    bytes: &[u8],
    deadline: Deadline,
) -> Result<()> {
    let (first, rest) = bytes.split_at(bytes.len().min(MAX_MESSAGE - 8));
    let mut head = Writer::new();
    head.u64(bytes.len() as u64).raw(first);
    b.send(to, tag, head.as_bytes(), deadline)?;
    rest.chunks(MAX_MESSAGE).try_for_each(|part| b.send(to, tag, part, deadline))
}

/// Receives what [`send_long`] sent: at most `blocks` blocks. A peer that announces more is refused before it sends them.
fn recv_long<B: Bootstrap + ?Sized>(
    b: &B,
    from: u32,
    tag: u64,
    blocks: usize,
    deadline: Deadline,
) -> Result<Vec<u8>> {
    let mut bytes = b.recv(from, tag, deadline)?;
    let total = Reader::new(&bytes).u64()?;
    // Each block has its length before it. In front of all, or instead of them, is a head or the reason of a failure.
    let limit = blocks as u64 * (MAX_MESSAGE as u64 + 4) + MAX_HEAD;
    if total > limit {
        return Err(WireError::TooLong { length: total, limit }.into());
    }
    bytes.drain(..8);
    while (bytes.len() as u64) < total {
        let part = b.recv(from, tag, deadline)?;
        if part.is_empty() {
            return Err(WireError::Invalid { what: "part of a message, it is empty" }.into());
        }
        bytes.extend(part);
    }
    if bytes.len() as u64 == total {
        Ok(bytes)
    } else {
        Err(WireError::Trailing { bytes: bytes.len() }.into())
    }
}

pub(super) fn barrier<B: Bootstrap + ?Sized>(b: &B, deadline: Deadline) -> Result<()> {
    Call::of_all("barrier", BARRIER, b).meet(b, deadline)
}

pub(super) fn group_barrier<B: Bootstrap + ?Sized>(b: &B, ranks: &[u32], deadline: Deadline) -> Result<()> {
    const OP: &str = "group_barrier";
    let mut ranks = ranks.to_vec();
    ranks.sort_unstable();
    ranks.iter().try_for_each(|rank| exists(OP, *rank, b.size()))?;
    if let Some(twice) = ranks.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Error::usage(OP, format!("rank {} is named twice; name each rank once", twice[0])));
    }
    let Ok(place) = ranks.binary_search(&b.rank()) else {
        let text = format!(
            "this rank, {}, is not among the ranks {}; only those that meet call it",
            b.rank(),
            named(&ranks)
        );
        return Err(Error::usage(OP, text));
    };
    let mut hash = Sha256::new();
    ranks.iter().for_each(|rank| hash.update(rank.to_le_bytes()));
    let hash = hash.finalize().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let call = Call {
        op: OP,
        tag: GROUP | hash,
        ranks: Some(&ranks),
        place: place as u32,
        count: ranks.len() as u32,
    };
    call.meet(b, deadline)
}

impl Call<'_> {
    /// A barrier of these ranks.
    fn meet<B: Bootstrap + ?Sized>(&self, b: &B, deadline: Deadline) -> Result<()> {
        self.in_rounds(b, deadline, |Round { to, from, tag, .. }| {
            send_long(b, to, tag, &[FINE], deadline)?;
            open(self.op, from, &recv_long(b, from, tag, 0, deadline)?)?;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
