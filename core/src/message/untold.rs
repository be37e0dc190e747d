//! Reads of a link that has ended, until somebody is told.
#![forbid(unsafe_code)]

use super::reading::{Finished, Queue};
use super::transfers::Failed;
use crate::deadline::Deadline;
use crate::error::Error;

/// The reads of a link that has ended, of which nobody has been told.
pub(super) struct Ended {
    pub(super) queue: Queue,
    pub(super) transfers: Failed,
    pub(super) why: Error,
}

impl Ended {
    /// All of them, in order; devices that copy have until `settled`. Call it without the lock of the reads: it waits for those.
    pub(super) fn settle(self, settled: Deadline) -> Vec<Finished> {
        let Self { queue, transfers, why } = self;
        let reads = queue.into_iter().filter(|reading| reading.transfer.is_none());
        let mut all: Vec<Finished> =
            reads.filter_map(|reading| reading.end(Err(why.clone().of("read")))).collect();
        all.extend(transfers.end(&why, settled));
        all.sort_by_key(|finished| finished.id);
        all
    }
}
