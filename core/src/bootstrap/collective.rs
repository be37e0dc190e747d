//! The trait [`Bootstrap`], and `all_gather`, `broadcast` and `barrier` over its `send` and `recv`, in ceil(log2(n)) rounds.
//!
//! In round k, rank r sends to r - 2^k and receives from r + 2^k (modulo n), so no rank is special and no step is
//! O(n) messages long. All-gather: J. Bruck et al., "Efficient Algorithms for All-to-All Communications in
//! Multiport Message-Passing Systems", 1997. Barrier: D. Hensgen, R. Finkel, U. Manber, "Two Algorithms for
//! Barrier Synchronization", 1988. Broadcast: a binomial tree, whose
//! edges are among those of the rounds. Consecutive calls reuse their tags: messages of one (peer, tag) are ordered.
//!
//! A rank that fails sends the reason to the ranks it would have sent to in later rounds, and they do the same. So each rank
//! learns which rank was lost, and not only that the rank it waits for has given up.
#![forbid(unsafe_code)]

use std::fmt::Debug;
use std::time::Duration;

use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::net::Secret;
use crate::wire::{Reader, WireError, Writer};

/// Tags from here on belong to [`Bootstrap::all_gather`] and [`Bootstrap::barrier`]; users' tags are below.
pub const RESERVED_TAGS: u64 = 1 << 63;

/// The longest message that [`Bootstrap::send`] takes.
pub const MAX_MESSAGE: usize = 16 << 20;

/// Messages between the ranks of a job while it starts.
///
/// Messages of one (sender, receiver, tag) arrive in order; different tags are independent. Every wait has a
/// deadline. The implementation may be used from several threads; collective calls ([`all_gather`], [`barrier`])
/// are made by all ranks in the same order, one at a time.
///
/// [`all_gather`]: Bootstrap::all_gather
/// [`barrier`]: Bootstrap::barrier
pub trait Bootstrap: Debug + Send + Sync {
    /// This process's rank, `0 .. size`.
    fn rank(&self) -> u32;

    /// Number of ranks.
    fn size(&self) -> u32;

    /// Sends `bytes` to `peer`. Returns when the message is on its way, without waiting for the peer to receive
    /// it. Sending to oneself is allowed.
    fn send(&self, peer: u32, tag: u64, bytes: &[u8], deadline: Deadline) -> Result<()>;

    /// Receives the next message that `peer` sent with `tag`, waiting for it until `deadline`.
    fn recv(&self, peer: u32, tag: u64, deadline: Deadline) -> Result<Vec<u8>>;

    /// The secret that only the ranks of this bootstrap share, if there is one. Provided: none.
    fn secret(&self) -> Option<Secret> {
        None
    }

    /// Returns every rank's `mine`, in rank order; the lengths may differ. Collective. Provided: Bruck's algorithm over
    /// `send` and `recv`, ceil(log2(size)) rounds.
    fn all_gather(&self, mine: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        all_gather(self, mine, deadline)
    }

    /// Returns when every rank has called it. Collective. Provided: dissemination, ceil(log2(size)) rounds.
    fn barrier(&self, deadline: Deadline) -> Result<()> {
        barrier(self, deadline)
    }
}

const GATHER: u64 = RESERVED_TAGS;
const BARRIER: u64 = RESERVED_TAGS | 1 << 32;
const BROADCAST: u64 = RESERVED_TAGS | 2 << 32;

/// How a message begins.
const FINE: u8 = 0;
const FAILED: u8 = 1;
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
    let mut blocks: Vec<Vec<u8>> = vec![mine.to_vec()];
    in_rounds(b, GATHER, deadline, |to, from, step| {
        let tag = GATHER | u64::from(step);
        let count = (step as usize).min(b.size() as usize - step as usize);
        let mut message = Writer::new();
        message.u8(FINE).count(count);
        blocks[..count].iter().for_each(|block| {
            message.bytes(block);
        });
        send_long(b, to, tag, message.as_bytes(), deadline)?;
        let reply = recv_long(b, from, tag, count, deadline)?;
        let mut reader = open("all_gather", from, &reply)?;
        let received = reader.count(b.size() as usize, 4)?;
        if received != count {
            return Err(Error::new(
                ErrorKind::Remote,
                "all_gather",
                format!("rank {from} sent {received} blocks instead of {count}; all ranks must make the same calls"),
            )
            .with_peer(from));
        }
        for _ in 0..received {
            blocks.push(reader.bytes(MAX_MESSAGE)?.to_vec());
        }
        Ok(reader.finish()?)
    })?;
    blocks.rotate_right(b.rank() as usize);
    Ok(blocks)
}

/// Runs `round` for every round. After an error, tells the ranks that wait for this one in later rounds why.
fn in_rounds<B: Bootstrap + ?Sized>(
    b: &B,
    base: u64,
    deadline: Deadline,
    mut round: impl FnMut(u32, u32, u32) -> Result<()>,
) -> Result<()> {
    let mut rounds = rounds(b.rank(), b.size());
    while let Some((to, from, step)) = rounds.next() {
        let Err(error) = round(to, from, step) else { continue };
        let deadline = deadline.min(Deadline::after(FAREWELL));
        for (to, _, step) in rounds.filter(|(to, ..)| Some(*to) != error.peer()) {
            // A rank that cannot be told is lost itself, or notices the loss by itself.
            let _ = send_long(b, to, base | u64::from(step), &failure(&error), deadline);
        }
        return Err(error);
    }
    Ok(())
}

fn failure(error: &Error) -> Vec<u8> {
    let mut w = Writer::new();
    w.u8(FAILED).u8(u8::from(error.kind() == ErrorKind::PeerLost)).u32(error.peer().unwrap_or(u32::MAX));
    w.str_cut(error.message(), MAX_TEXT);
    w.finish()
}

/// The rest of a message from rank `from`; an error if it is why that rank gave up.
fn open<'a>(op: &'static str, from: u32, message: &'a [u8]) -> Result<Reader<'a>> {
    let mut r = Reader::new(message);
    if r.u8()? == FINE {
        return Ok(r);
    }
    let (lost, peer, text) = (r.bool()?, r.u32()?, r.str(MAX_TEXT)?);
    r.finish()?;
    let kind = if lost { ErrorKind::PeerLost } else { ErrorKind::Remote };
    let heard = " (heard from rank ";
    let text = text.split(heard).next().unwrap_or(text);
    let error = Error::new(kind, op, format!("{text}{heard}{from})"));
    Err(error.with_peer(if peer == u32::MAX { from } else { peer }))
}

/// Rank 0's `mine`, on every rank. The parent of a rank is the one without its lowest set bit, so that rank 0 sends
/// ceil(log2(n)) messages and every other rank at most as many.
pub(crate) fn broadcast<B: Bootstrap + ?Sized>(b: &B, mine: &[u8], deadline: Deadline) -> Result<Vec<u8>> {
    let (rank, size) = (b.rank(), b.size());
    let (bytes, below) = match rank {
        0 => (Ok(mine.to_vec()), u32::BITS),
        _ => (receive(b, rank & (rank - 1), deadline), rank.trailing_zeros()),
    };
    let (message, until) = match &bytes {
        Ok(bytes) => ([&[FINE], &bytes[..]].concat(), deadline),
        Err(error) => (failure(error), deadline.min(Deadline::after(FAREWELL))),
    };
    // The largest subtree first: it has the longest way to go.
    let children =
        (0..below).rev().filter_map(|bit| rank.checked_add(1 << bit)).filter(|child| *child < size);
    let sent =
        children.map(|child| send_long(b, child, BROADCAST, &message, until)).fold(Ok(()), Result::and);
    let bytes = bytes?;
    sent.map(|()| bytes)
}

fn receive<B: Bootstrap + ?Sized>(b: &B, parent: u32, deadline: Deadline) -> Result<Vec<u8>> {
    let message = recv_long(b, parent, BROADCAST, 1, deadline)?;
    let mut reader = open("broadcast", parent, &message)?;
    Ok(reader.raw(reader.remaining())?.to_vec())
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
    in_rounds(b, BARRIER, deadline, |to, from, step| {
        let tag = BARRIER | u64::from(step);
        send_long(b, to, tag, &[FINE], deadline)?;
        open("barrier", from, &recv_long(b, from, tag, 0, deadline)?)?;
        Ok(())
    })
}
