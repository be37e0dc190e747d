//! The agreement of all ranks that they run the same plan in the same way.

use std::fmt::{self, Write as _};

use sha2::{Digest, Sha256};

use super::config::ExecutorConfig;
use super::ir::{Op, Plan};
use crate::comm::Communicator;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::wire::{Reader, WireError, WireResult, Writer};

const OP: &str = "Executor::prepare";
/// Longest text of a failure that is told to the others.
const MOST_TEXT: usize = 1024;

/// The result of an agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    /// The least limit of scratch of all ranks, in bytes.
    pub(super) scratch_bytes: u64,
    /// The granularity of multicast objects, if all ranks ask for them and can have them.
    pub(super) multicast: Option<u64>,
}

/// A rank's word: how far it came, and the settings that must be equal.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Ready {
        digest: [u8; 32],
        max_bytes: u64,
        scratch_bytes: u64,
        /// Granularity of multicast objects; 0 without.
        multicast: u64,
    },
    /// With a later step.
    Done,
    Failed(String),
}

/// Meets all ranks. Every rank calls it, also one whose own preparations failed: then every rank gets an error.
pub(super) fn agree<T>(
    comm: &Communicator,
    plan: &Plan,
    config: &ExecutorConfig,
    mine: Result<T>,
    multicast: Option<u64>,
    deadline: Deadline,
) -> Result<(T, Agreed)> {
    let said = match &mine {
        Ok(_) => Said::Ready {
            digest: digest(plan, config),
            max_bytes: config.max_bytes.unwrap_or(u64::MAX),
            scratch_bytes: comm.config().scratch_bytes as u64,
            multicast: multicast.unwrap_or(0),
        },
        Err(error) => Said::failed(error),
    };
    let (mine, all) = meet(comm, OP, &said, mine, deadline)?;
    let mut agreed = Agreed { scratch_bytes: u64::MAX, multicast };
    for (rank, theirs) in (0..).zip(&all) {
        agreed.scratch_bytes = agreed.scratch_bytes.min(compare(OP, rank, &said, theirs)?);
        let Said::Ready { multicast: theirs, .. } = theirs else { continue };
        if *theirs == 0 && agreed.multicast.is_some() {
            log::warn!("{}: switches go without multicast, which rank {rank} does not offer", plan.name);
        }
        // Granularities are powers of two: the largest is a multiple of all.
        agreed.multicast = agreed.multicast.map(|mine| mine.max(*theirs)).filter(|_| *theirs != 0);
    }
    Ok((mine, agreed))
}

/// Meets all ranks after a step of `op` that may have failed on some of them: then every rank gets an error, and no rank waits
/// for one that has given up.
pub(super) fn all_done<T>(
    comm: &Communicator,
    op: &'static str,
    mine: Result<T>,
    deadline: Deadline,
) -> Result<T> {
    let said = mine.as_ref().map_or_else(Said::failed, |_| Said::Done);
    let (mine, all) = meet(comm, op, &said, mine, deadline)?;
    (0..).zip(&all).try_for_each(|(rank, theirs)| compare(op, rank, &said, theirs).map(drop))?;
    Ok(mine)
}

/// Meets all ranks after a step that any of them may fail at without harm. Returns `None` if one has, with a line in the log, and
/// an error only where the ranks did not meet.
pub(super) fn all_can<T>(
    comm: &Communicator,
    op: &'static str,
    mine: Result<T>,
    deadline: Deadline,
) -> Result<Option<T>> {
    let said = mine.as_ref().map_or_else(Said::failed, |_| Said::Done);
    let (_, all) = meet(comm, op, &said, Ok(()), deadline)?;
    for (rank, theirs) in (0..).zip(&all) {
        match theirs {
            Said::Done => {}
            Said::Failed(why) => {
                log::warn!("switches go without multicast, which rank {rank} cannot have: {why}");
                return Ok(None);
            }
            Said::Ready { .. } => return Err(called_something_else(op, rank)),
        }
    }
    mine.map(Some)
}

/// This rank's own error, or what all ranks say.
fn meet<T>(
    comm: &Communicator,
    op: &'static str,
    said: &Said,
    mine: Result<T>,
    deadline: Deadline,
) -> Result<(T, Vec<Said>)> {
    let all = comm.gather(op, &said.encode(), deadline);
    let mine = mine?;
    let decode = |(rank, bytes): (u32, Vec<u8>)| {
        Said::decode(&bytes).map_err(|error| called_something_else(op, rank).with_source(error))
    };
    Ok((mine, (0..).zip(all?).map(decode).collect::<Result<_>>()?))
}

fn called_something_else(op: &'static str, rank: u32) -> Error {
    let message = format!("rank {rank} called something else; make the same calls on all ranks");
    Error::new(ErrorKind::Remote, op, message).with_peer(rank)
}

/// The scratch of a rank that says the same as this one, otherwise an error.
fn compare(op: &'static str, rank: u32, mine: &Said, theirs: &Said) -> Result<u64> {
    let differs = |what: &str| {
        let message = format!("rank {rank} has {what} than this rank; give every rank the same");
        Err(Error::usage(op, message).with_peer(rank))
    };
    match (mine, theirs) {
        (_, Said::Failed(why)) => {
            let message = format!("rank {rank} cannot run the plan: {why}");
            Err(Error::new(ErrorKind::Remote, op, message).with_origin(rank))
        }
        (Said::Done, Said::Done) => Ok(u64::MAX),
        (Said::Done, Said::Ready { .. }) | (Said::Ready { .. }, Said::Done) => {
            Err(called_something_else(op, rank))
        }
        (
            Said::Ready { digest: my_digest, max_bytes: my_max, .. },
            Said::Ready { digest, max_bytes, scratch_bytes, .. },
        ) => match () {
            () if digest != my_digest => differs("another plan or other variants"),
            () if max_bytes != my_max => differs("another largest message"),
            () => Ok(*scratch_bytes),
        },
        (Said::Failed(_), _) => Ok(u64::MAX),
    }
}

/// The plan without the places that its operations have in a program or file: equal plans may have others.
fn unplaced(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    let blocks = plan.ranks.iter_mut().flat_map(|rank| &mut rank.blocks);
    for operation in blocks.flat_map(|block| &mut block.ops) {
        operation.origin = 0;
        if let Op::Loop(repeated) = &mut operation.op {
            repeated.body.iter_mut().for_each(|inner| inner.origin = 0);
        }
    }
    plan
}

/// A digest of everything that a kernel is made of, and of how ports reach peers.
fn digest(plan: &Plan, config: &ExecutorConfig) -> [u8; 32] {
    struct Hasher(Sha256);
    impl fmt::Write for Hasher {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.update(text);
            Ok(())
        }
    }
    let mut hasher = Hasher(Sha256::new());
    // The debug form names every field; all ranks run one version of the library.
    let (plan, ExecutorConfig { variants, any_order, port_transport, .. }) = (unplaced(plan), config);
    let written = write!(hasher, "{plan:?} {variants:?} {any_order} {port_transport:?}");
    debug_assert!(written.is_ok());
    hasher.0.finalize().into()
}

impl Said {
    fn failed(error: &Error) -> Self {
        Self::Failed(error.to_string().chars().take(MOST_TEXT / 4).collect())
    }

    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        match self {
            Self::Ready { digest, max_bytes, scratch_bytes, multicast } => {
                w.u8(1).raw(digest).u64(*max_bytes).u64(*scratch_bytes).u64(*multicast);
            }
            Self::Done => {
                w.u8(2);
            }
            Self::Failed(why) => {
                w.u8(0).str(why);
            }
        }
        w.finish()
    }

    fn decode(bytes: &[u8]) -> WireResult<Self> {
        let mut r = Reader::new(bytes);
        let said = match r.u8()? {
            0 => Self::Failed(r.str(MOST_TEXT)?.to_owned()),
            1 => Self::Ready {
                digest: r.array()?,
                max_bytes: r.u64()?,
                scratch_bytes: r.u64()?,
                multicast: r.u64()?,
            },
            2 => Self::Done,
            _ => return Err(WireError::Invalid { what: "word of a rank" }),
        };
        r.finish()?;
        Ok(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_arrives() {
        for said in [
            Said::Ready { digest: [7; 32], max_bytes: 3, scratch_bytes: 9, multicast: 1 << 21 },
            Said::Failed("no memory".to_owned()),
            Said::Done,
        ] {
            let bytes = said.encode();
            assert_eq!(Said::decode(&bytes).unwrap(), said);
            assert!(Said::decode(&bytes[..bytes.len() - 1]).is_err());
        }
    }

    #[test]
    fn differences_are_named() {
        let mine = Said::Ready { digest: [1; 32], max_bytes: 3, scratch_bytes: 9, multicast: 0 };
        let other = |digest, max_bytes| {
            let theirs = Said::Ready { digest, max_bytes, scratch_bytes: 5, multicast: 0 };
            compare(OP, 1, &mine, &theirs)
        };
        assert_eq!(other([1; 32], 3).unwrap(), 5);
        assert!(other([2; 32], 3).unwrap_err().to_string().contains("another plan"));
        assert!(other([1; 32], 4).unwrap_err().to_string().contains("largest message"));
        let failed = compare(OP, 1, &mine, &Said::Failed("no memory".to_owned())).unwrap_err();
        assert!(failed.to_string().contains("no memory") && failed.origin() == Some(1), "{failed}");
    }
}
