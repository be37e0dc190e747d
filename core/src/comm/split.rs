//! Several communicators from one, while that goes on.
#![forbid(unsafe_code)]

use crate::bootstrap::Bootstrap as _;
use crate::comm::communicator::Communicator;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::group::control::Needs;
use crate::group::subset::Subset;
use crate::wire::{Reader, WireResult, Writer};

impl Communicator {
    /// One new communicator for each `color`: of the ranks that call this with the same one, numbered by `key`, and by their old
    /// numbers where keys are equal. A rank without a color takes part and gets none. As `MPI_Comm_split`. Each has links and
    /// a thread of its own, and fails by itself; this one goes on. Nothing from outside is needed.
    ///
    /// Collective: all ranks call it, and calls of this and of [`duplicate`](Self::duplicate) come in the same order everywhere,
    /// one at a time.
    ///
    /// # Errors
    /// `Timeout`, naming a rank that did not call it before `deadline`; `PeerLost` if a rank is gone; the first cause if this
    /// communicator was aborted; as for [`new`](Self::new).
    pub fn split(&self, color: Option<u32>, key: i32, deadline: impl Into<Deadline>) -> Result<Option<Self>> {
        split(self, "split", color, key, deadline.into())
    }

    /// A new communicator of the same ranks with the same numbers, which fails by itself. Otherwise as [`split`](Self::split).
    ///
    /// # Errors
    /// As for [`split`](Self::split).
    pub fn duplicate(&self, deadline: impl Into<Deadline>) -> Result<Self> {
        const OP: &str = "duplicate";
        let made = split(self, OP, Some(0), 0, deadline.into())?;
        made.ok_or_else(|| Error::new(ErrorKind::Internal, OP, "a rank with a color got no communicator"))
    }
}

fn split(
    old: &Communicator,
    op: &'static str,
    color: Option<u32>,
    key: i32,
    deadline: Deadline,
) -> Result<Option<Communicator>> {
    old.group().check(op)?;
    let links = old.group().links();
    let number = links.control().next_meeting();
    let needs = |ranks| Needs { op, ranks, generation: None };
    let said = {
        let all = Subset::new(links, needs((0..old.size()).collect()), number);
        gather(&all, op, &encode(color, key), deadline)?
    };
    if said.len() != old.size() as usize {
        let message = "rank 0 called something else; make the same calls on all ranks";
        return Err(Error::new(ErrorKind::Remote, op, message).with_peer(0));
    }
    let mut members = Vec::new();
    for (rank, bytes) in (0..).zip(said) {
        let (theirs, key) = decode(&bytes).map_err(|error| {
            let message = format!("rank {rank} called something else; make the same calls on all ranks");
            Error::new(ErrorKind::Remote, op, message).with_peer(rank).with_source(error)
        })?;
        if theirs == color {
            members.push((key, rank));
        }
    }
    if color.is_none() {
        return Ok(None);
    }
    members.sort_unstable();
    let ranks = members.into_iter().map(|(_, rank)| rank).collect();
    // Not the number of the meeting of all, which may still go on elsewhere: of all ranks with one color it has the same members.
    let mine = Subset::new(links, needs(ranks), number | 1 << 63);
    Communicator::make(&mine, old.context(), old.config().clone(), false, deadline).map(Some)
}

/// Gathers the bytes of every rank, in rank order, through rank 0, so that all ranks learn which one did not call.
fn gather(all: &Subset<'_>, op: &'static str, mine: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
    const TAG: u64 = 0;
    if all.rank() > 0 {
        all.send(0, TAG, mine, deadline)?;
        let answer = all.recv(0, TAG, deadline)?;
        return decode_answer(&answer)
            .map_err(|error| {
                let message = "rank 0 called something else; make the same calls on all ranks";
                Error::new(ErrorKind::Remote, op, message).with_peer(0).with_source(error)
            })?
            .map_err(|rank| absent(op, rank));
    }
    let others = (1..all.size()).map(|rank| all.recv(rank, TAG, deadline).map_err(|error| (rank, error)));
    let said: std::result::Result<Vec<_>, _> = std::iter::once(Ok(mine.to_vec())).chain(others).collect();
    let answer = encode_answer(&said);
    let answered = (1..all.size()).try_for_each(|rank| all.send(rank, TAG, &answer, deadline));
    match said {
        Ok(said) => answered.map(|()| said),
        Err((rank, error)) if error.kind() == ErrorKind::Timeout => Err(absent(op, rank)),
        Err((_, error)) => Err(error),
    }
}

fn absent(op: &'static str, rank: u32) -> Error {
    Error::timeout(op, format!("rank {rank} did not call {op}() before the deadline")).with_peer(rank)
}

fn encode_answer(said: &std::result::Result<Vec<Vec<u8>>, (u32, Error)>) -> Vec<u8> {
    let mut w = Writer::new();
    match said {
        Ok(said) => {
            w.u8(1).count(said.len());
            for bytes in said {
                w.bytes(bytes);
            }
        }
        Err((rank, _)) => {
            w.u8(0).u32(*rank);
        }
    }
    w.finish()
}

/// The bytes of every rank, or the rank that sent none.
fn decode_answer(bytes: &[u8]) -> WireResult<std::result::Result<Vec<Vec<u8>>, u32>> {
    const MOST: usize = 1 << 20;
    let mut r = Reader::new(bytes);
    let answer = if r.bool()? {
        let count = r.count(MOST, 4)?;
        Ok((0..count).map(|_| r.bytes(MOST).map(<[u8]>::to_vec)).collect::<WireResult<Vec<_>>>()?)
    } else {
        Err(r.u32()?)
    };
    r.finish()?;
    Ok(answer)
}

fn encode(color: Option<u32>, key: i32) -> Vec<u8> {
    let mut w = Writer::new();
    w.u8(u8::from(color.is_some())).u32(color.unwrap_or(0)).u32(key.cast_unsigned());
    w.finish()
}

fn decode(bytes: &[u8]) -> WireResult<(Option<u32>, i32)> {
    let mut r = Reader::new(bytes);
    let has = r.bool()?;
    let (color, key) = (r.u32()?, r.u32()?.cast_signed());
    r.finish()?;
    Ok((has.then_some(color), key))
}
