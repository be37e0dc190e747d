//! Reads of mapped memory: copies by the reader itself, piece by piece.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::inbox::Item;
use super::line::Line;
use super::member::Member;
use super::reading::Finished;
use super::reads::Reads;
use crate::error::{Error, ErrorKind};
use crate::sync::{Ordering, lock};

/// Bytes of one peer that progress copies before it goes on with others.
pub(super) const PIECE: usize = 512 << 10;
/// Bytes that the call which asks for a read copies itself.
pub(super) const IN_CALL: usize = 1 << 20;
/// The least that a read counts for, so that many short ones do not hold up others either.
const LEAST: usize = 256;

impl Member {
    /// Copies up to `budget` bytes for the oldest reads of `line`, if they are of mapped memory. Returns how many pieces.
    pub(super) fn copy(self: &Arc<Self>, line: &Line, mut budget: usize) -> usize {
        let mut pieces = 0;
        while budget > 0 && line.has_copies() {
            let mut reads = lock(&line.reads);
            let Some(mut copy) = reads.begin_copy() else {
                line.copies.store(false, Ordering::Relaxed);
                break;
            };
            drop(reads);
            // Without the lock: others queue reads, and cancel this one, meanwhile.
            let (bytes, valid) = copy.step(budget);
            budget = budget.saturating_sub(bytes.max(LEAST));
            let mut reads = lock(&line.reads);
            // Delivered under the lock: the next read cannot end before.
            if let Some(finished) = reads.end_copy(copy, valid, || self.revoked()) {
                self.read_ended(line, &mut reads, finished);
            }
            self.note_room_for_reads(&mut reads);
            line.copies.store(reads.can_copy(), Ordering::Relaxed);
            pieces += 1;
        }
        if pieces > 0 {
            // The next ones may have to be asked for. An error shows when the link is read.
            let _ = line.ask();
        }
        pieces
    }

    /// A read of `line`, whose reads the caller has locked, has ended. Its completion is dispatched, unless it has to wait for an earlier one into a device.
    pub(super) fn read_ended(self: &Arc<Self>, line: &Line, reads: &mut Reads, finished: Finished) {
        if reads.settle(finished, &mut |finished| self.deliver(Item::Read(finished))) {
            line.note_transfers(reads);
            self.leave_to_progress();
        }
    }

    /// Moves reads into the memory of devices on. Returns how much has happened.
    pub(super) fn transfer(self: &Arc<Self>, line: &Line) -> usize {
        if !line.has_transfers() {
            return 0;
        }
        let mut reads = lock(&line.reads);
        // Before the turn: what happens later is a new reason.
        line.transfers_wait.store(false, Ordering::Relaxed);
        let turn =
            reads.step_transfers(&|| self.revoked(), &mut |finished| self.deliver(Item::Read(finished)));
        if turn.waits || turn.moved > 0 {
            line.note_transfers(&reads);
        }
        self.note_room_for_reads(&mut reads);
        drop(reads);
        if turn.moved > 0 {
            self.hub.exposures.resources.note();
            // Parts may have to be asked for. An error shows when the link is read.
            let _ = line.ask();
            self.mark_dirty();
        }
        turn.moved
    }

    /// The error for memory that is not exposed any more.
    pub(super) fn revoked(&self) -> Error {
        let why = "the memory is not exposed any more: its token was revoked";
        Error::new(ErrorKind::Remote, "read", format!("rank {} refused a read: {why}", self.rank))
            .with_peer(self.rank)
    }
}
