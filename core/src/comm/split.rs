//! Several communicators from one, while that goes on.
#![forbid(unsafe_code)]

use crate::comm::communicator::Communicator;
use crate::comm::meeting::{called_something_else, gather};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::group::control::Needs;
use crate::group::subset::{Step, Subset};
use crate::wire::{Reader, WireResult, Writer};

impl Communicator {
    /// One new communicator for each `color`: of the ranks that call this with the same one, numbered by `key`, and by their old
    /// numbers where keys are equal. A rank without a color takes part and gets none. As `MPI_Comm_split`. Each has links and
    /// a thread of its own, and fails by itself; this one goes on. Nothing from outside is needed.
    ///
    /// Collective: all ranks call it, and calls of this and of others that all ranks make together come in the same order everywhere.
    /// Those of several threads take turns.
    ///
    /// # Errors
    /// `Timeout`, naming a rank that did not call it before `deadline`, or rank 0, which may have waited for one that did not;
    /// `InvalidUsage` if a rank has made another call in its place, naming both; `PeerLost` if a rank is gone; the first cause if this
    /// communicator was aborted; as for [`new`](Self::new).
    ///
    /// After a `Timeout` the communicator can be used on, and further calls meet once every rank has made as many of them: one that
    /// had not called makes the call that it missed, which fails, too.
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
    let _turn = old.collective_call(op, deadline)?;
    old.group().check(op)?;
    let links = old.group().links();
    let meeting = links.control().meet();
    let needs = |ranks| Needs { op, ranks, generation: None };
    let all = Subset::new(links, needs((0..old.size()).collect()), &meeting, Step::Gathering);
    let said = gather(&all, op, &encode(color, key), deadline)?;
    let mut members = Vec::new();
    for (rank, bytes) in (0..).zip(said) {
        let (theirs, key) = decode(&bytes).map_err(|error| called_something_else(op, rank, error))?;
        if theirs == color {
            members.push((key, rank));
        }
    }
    if color.is_none() {
        return Ok(None);
    }
    members.sort_unstable();
    let ranks = members.into_iter().map(|(_, rank)| rank).collect();
    let mine = Subset::new(links, needs(ranks), &meeting, Step::Making);
    Communicator::make(&mine, old.context(), old.config().clone(), false, deadline).map(Some)
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
