//! `all_gather`, `broadcast` and `barrier` over any [`Bootstrap`]'s `send` and `recv`, in ceil(log2(n)) rounds.
//!
//! In round k, rank r sends to r - 2^k and receives from r + 2^k (modulo n), so no rank is special and no step is
//! O(n) messages long. All-gather: J. Bruck et al., "Efficient Algorithms for All-to-All Communications in
//! Multiport Message-Passing Systems", 1997. Barrier: D. Hensgen, R. Finkel, U. Manber, "Two Algorithms for
//! Barrier Synchronization", 1988. Broadcast: a binomial tree, whose
//! edges are among those of the rounds. Consecutive calls reuse their tags: messages of one (peer, tag) are ordered.
#![forbid(unsafe_code)]

use super::{Bootstrap, MAX_MESSAGE, RESERVED_TAGS};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::wire::{Reader, WireError, Writer};

const GATHER: u64 = RESERVED_TAGS;
const BARRIER: u64 = RESERVED_TAGS | 1 << 32;
const BROADCAST: u64 = RESERVED_TAGS | 2 << 32;

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
    let size = b.size() as usize;
    // Block i belongs to rank (rank + i) mod size.
    let mut blocks: Vec<Vec<u8>> = vec![mine.to_vec()];
    for (to, from, step) in rounds(b.rank(), b.size()) {
        let count = (step as usize).min(size - step as usize);
        let mut message = Writer::new();
        message.count(count);
        blocks[..count].iter().for_each(|block| {
            message.bytes(block);
        });
        send_long(b, to, GATHER | u64::from(step), message.as_bytes(), deadline)?;
        let reply = recv_long(b, from, GATHER | u64::from(step), deadline)?;
        let mut reader = Reader::new(&reply);
        let received = reader.count(size, 4)?;
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
        reader.finish()?;
    }
    blocks.rotate_right(b.rank() as usize);
    Ok(blocks)
}

/// Rank 0's `mine`, on every rank. The parent of a rank is the one without its lowest set bit, so that rank 0 sends
/// ceil(log2(n)) messages and every other rank at most as many.
pub(crate) fn broadcast<B: Bootstrap + ?Sized>(b: &B, mine: &[u8], deadline: Deadline) -> Result<Vec<u8>> {
    let (rank, size) = (b.rank(), b.size());
    let (bytes, below) = match rank {
        0 => (mine.to_vec(), u32::BITS),
        _ => (recv_long(b, rank & (rank - 1), BROADCAST, deadline)?, rank.trailing_zeros()),
    };
    // The largest subtree first: it has the longest way to go.
    for child in (0..below).rev().filter_map(|bit| rank.checked_add(1 << bit)) {
        if child < size {
            send_long(b, child, BROADCAST, &bytes, deadline)?;
        }
    }
    Ok(bytes)
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

fn recv_long<B: Bootstrap + ?Sized>(b: &B, from: u32, tag: u64, deadline: Deadline) -> Result<Vec<u8>> {
    let mut bytes = b.recv(from, tag, deadline)?;
    let total = Reader::new(&bytes).u64()?;
    bytes.drain(..8);
    while (bytes.len() as u64) < total {
        bytes.extend(b.recv(from, tag, deadline)?);
    }
    if bytes.len() as u64 == total {
        Ok(bytes)
    } else {
        Err(WireError::Trailing { bytes: bytes.len() }.into())
    }
}

pub(super) fn barrier<B: Bootstrap + ?Sized>(b: &B, deadline: Deadline) -> Result<()> {
    for (to, from, step) in rounds(b.rank(), b.size()) {
        b.send(to, BARRIER | u64::from(step), &[], deadline)?;
        b.recv(from, BARRIER | u64::from(step), deadline)?;
    }
    Ok(())
}
