//! Readable report of the wait in which a kernel was aborted.
#![forbid(unsafe_code)]

use std::fmt;

use aqueduct_ptx::abi::{AbortRecord, NO_PEER, Operation};

/// The wait that the first kernel thread to leave early had given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortReport {
    /// The rank that waited: this one.
    pub rank: u32,
    /// The operation that waited.
    pub operation: Operation,
    /// The rank it waited for; `None` for a wait within one grid.
    pub peer: Option<u32>,
    /// Index of its block in the grid.
    pub block: u32,
    /// The packet flag it waited for; 0 for counters.
    pub epoch: u32,
    /// The counter value it waited for; 0 for packets.
    pub awaited: u64,
    /// The value it saw last.
    pub seen: u64,
}

impl From<AbortRecord> for AbortReport {
    fn from(record: AbortRecord) -> Self {
        Self {
            rank: record.rank,
            operation: Operation(record.operation),
            peer: (record.peer != NO_PEER).then_some(record.peer),
            block: record.block,
            epoch: record.epoch,
            awaited: record.awaited,
            seen: record.seen,
        }
    }
}

impl fmt::Display for AbortReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} block {}: {}", self.rank, self.block, self.operation.name())?;
        if let Some(peer) = self.peer {
            write!(f, " on rank {peer}")?;
        }
        match self.epoch {
            0 => write!(f, ", counter at {} of {}", self.seen, self.awaited),
            epoch => write!(f, ", epoch {epoch}, last flag seen {}", self.seen),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_who_waited_for_whom() {
        let mut record =
            AbortRecord { rank: 2, operation: Operation::WAIT.0, peer: 5, ..AbortRecord::default() };
        (record.awaited, record.seen) = (7, 6);
        assert_eq!(
            AbortReport::from(record).to_string(),
            "rank 2 block 0: semaphore wait on rank 5, counter at 6 of 7"
        );
        (record.peer, record.epoch) = (NO_PEER, 9);
        assert_eq!(AbortReport::from(record).peer, None);
        assert!(AbortReport::from(record).to_string().contains("epoch 9"));
    }
}
