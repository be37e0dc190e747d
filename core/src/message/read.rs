//! Reads under way, on the side of the reader.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::head::Operation;
use super::inbox::Item;
use super::line::Line;
use super::member::Member;
use crate::error::{Error, ErrorKind};
use crate::sync::lock;

/// A read under way. Dropping it changes nothing.
#[derive(Debug)]
pub struct Read {
    member: Arc<Member>,
    line: Arc<Line>,
    id: u64,
}

impl Read {
    pub(super) fn new(member: &Arc<Member>, line: &Arc<Line>, id: u64) -> Self {
        Self { member: member.clone(), line: line.clone(), id }
    }

    /// As if so many more had been begun.
    #[cfg(all(test, not(loom)))]
    pub(super) fn skip(&self, count: u64) {
        lock(&self.line.reads).next += count;
    }

    /// Gives the read up: its completion gets an `Aborted` error soon, and its vector is dropped. A read into other memory ends when nothing writes
    /// there any more. False if it has ended already, and in a forked child.
    pub fn cancel(&self) -> bool {
        let member = &self.member;
        if member.hub.forked() {
            return false;
        }
        let error = Error::new(ErrorKind::Aborted, "read", "the read was cancelled").with_peer(member.rank);
        let mut reads = lock(&self.line.reads);
        if reads.cancel_transfer(self.id, error.clone()) {
            self.line.note_transfers(&reads);
            member.note_room_for_reads(&mut reads);
            drop(reads);
            member.mark_dirty();
            return true;
        }
        let Some((finished, asked)) = reads.cancel(self.id, error) else { return false };
        // Under the lock: whoever closes the messenger meanwhile ends the reads and then runs what was delivered.
        member.deliver(Item::Read(finished));
        member.note_room_for_reads(&mut reads);
        // It may have been the turn of a read into a device that comes after it.
        self.line.note_transfers(&reads);
        drop(reads);
        if asked {
            // If the link is gone, nothing comes either.
            let _ = member.tell(&self.line, Operation::Cancel, 0, self.id as u32, &[]);
        } else {
            // The one behind it may have its turn.
            member.mark_dirty();
        }
        true
    }
}
