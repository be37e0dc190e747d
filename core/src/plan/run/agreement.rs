//! The agreement of all ranks that they run the same plan in the same way.

use std::fmt::{self, Write as _};

use sha2::{Digest, Sha256};

use super::config::ExecutorConfig;
use super::ir::Plan;
use crate::comm::Communicator;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::wire::{Reader, WireResult, Writer};

const OP: &str = "Executor::prepare";
/// Longest text of a failure that is told to the others.
const MOST_TEXT: usize = 1024;

/// The result of an agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    /// The least limit of scratch of all ranks, in bytes.
    pub(super) scratch_bytes: u64,
}

/// A rank's word: how far it came, and the settings that must be equal.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Ready { digest: [u8; 32], max_bytes: u64, scratch_bytes: u64 },
    Failed(String),
}

/// Meets all ranks. Every rank calls it, also one whose own preparations failed: then every rank gets an error.
pub(super) fn agree<T>(
    comm: &Communicator,
    plan: &Plan,
    config: &ExecutorConfig,
    mine: Result<T>,
    deadline: Deadline,
) -> Result<(T, Agreed)> {
    let said = match &mine {
        Ok(_) => Said::Ready {
            digest: digest(plan, config),
            max_bytes: config.max_bytes.unwrap_or(u64::MAX),
            scratch_bytes: comm.config().scratch_bytes as u64,
        },
        Err(error) => Said::Failed(error.to_string().chars().take(MOST_TEXT / 4).collect()),
    };
    let all = comm.gather(OP, &said.encode(), deadline);
    let mine = mine?;
    let mut agreed = Agreed { scratch_bytes: u64::MAX };
    for (rank, bytes) in (0..).zip(all?) {
        let theirs = Said::decode(&bytes).map_err(|error| {
            let message = format!("rank {rank} called something else; make the same calls on all ranks");
            Error::new(ErrorKind::Remote, OP, message).with_peer(rank).with_source(error)
        })?;
        agreed.scratch_bytes = agreed.scratch_bytes.min(compare(rank, &said, &theirs)?);
    }
    Ok((mine, agreed))
}

/// The scratch of a rank that says the same as this one, otherwise an error.
fn compare(rank: u32, mine: &Said, theirs: &Said) -> Result<u64> {
    let differs = |what: &str| {
        let message = format!("rank {rank} has {what} than this rank; give every rank the same");
        Err(Error::usage(OP, message).with_peer(rank))
    };
    match (mine, theirs) {
        (_, Said::Failed(why)) => {
            let message = format!("rank {rank} cannot run the plan: {why}");
            Err(Error::new(ErrorKind::Remote, OP, message).with_peer(rank))
        }
        (
            Said::Ready { digest: my_digest, max_bytes: my_max, .. },
            Said::Ready { digest, max_bytes, scratch_bytes },
        ) => match () {
            () if digest != my_digest => differs("another plan or other variants"),
            () if max_bytes != my_max => differs("another largest message"),
            () => Ok(*scratch_bytes),
        },
        (Said::Failed(_), _) => Ok(u64::MAX),
    }
}

/// A digest of everything that a kernel is made of.
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
    let written = write!(hasher, "{plan:?} {:?}", config.variants);
    debug_assert!(written.is_ok());
    hasher.0.finalize().into()
}

impl Said {
    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        match self {
            Self::Ready { digest, max_bytes, scratch_bytes } => {
                w.u8(1).raw(digest).u64(*max_bytes).u64(*scratch_bytes);
            }
            Self::Failed(why) => {
                w.u8(0).str(why);
            }
        }
        w.finish()
    }

    fn decode(bytes: &[u8]) -> WireResult<Self> {
        let mut r = Reader::new(bytes);
        let said = if r.bool()? {
            Self::Ready { digest: r.array()?, max_bytes: r.u64()?, scratch_bytes: r.u64()? }
        } else {
            Self::Failed(r.str(MOST_TEXT)?.to_owned())
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
            Said::Ready { digest: [7; 32], max_bytes: 3, scratch_bytes: 9 },
            Said::Failed("no memory".to_owned()),
        ] {
            let bytes = said.encode();
            assert_eq!(Said::decode(&bytes).unwrap(), said);
            assert!(Said::decode(&bytes[..bytes.len() - 1]).is_err());
        }
    }

    #[test]
    fn differences_are_named() {
        let mine = Said::Ready { digest: [1; 32], max_bytes: 3, scratch_bytes: 9 };
        let other =
            |digest, max_bytes| compare(1, &mine, &Said::Ready { digest, max_bytes, scratch_bytes: 5 });
        assert_eq!(other([1; 32], 3).unwrap(), 5);
        assert!(other([2; 32], 3).unwrap_err().to_string().contains("another plan"));
        assert!(other([1; 32], 4).unwrap_err().to_string().contains("largest message"));
        let failed = compare(1, &mine, &Said::Failed("no memory".to_owned())).unwrap_err();
        assert!(failed.to_string().contains("no memory") && failed.peer() == Some(1), "{failed}");
    }
}
