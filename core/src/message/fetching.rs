//! Reads that this side's device makes: what it has brought is copied, piece by piece, and it is asked for more.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::fetches::Step;
use super::line::Line;
use super::member::Member;
use crate::sync::lock;

/// The least that a piece counts for, so that many short ones do not hold up others either.
const LEAST: usize = 256;

impl Member {
    /// Has the device read for the oldest reads of `line`, and copies up to `budget` bytes that it has brought, or a piece more.
    /// Returns how many pieces those were.
    pub(super) fn fetch(self: &Arc<Self>, line: &Line, mut budget: usize) -> usize {
        if !line.is_fetching() {
            return 0;
        }
        let Some(wire) = line.wire() else { return 0 };
        let Some(device) = wire.one_sided() else { return 0 };
        let (mut pieces, mut again) = (0, false);
        while !again {
            let mut reads = lock(&line.reads);
            match reads.fetch(device) {
                Step::Idle => {
                    line.set_fetching(reads.is_fetching(), false);
                    // Cancelled ones leave their places here.
                    self.note_room_for_reads(&mut reads);
                    again = pieces > 0 && reads.has_unasked();
                    drop(reads);
                    if again {
                        break;
                    }
                    return pieces;
                }
                Step::Failed => {
                    line.set_fetching(false, false);
                    (pieces, again) = (pieces + 1, true);
                }
                Step::Come(mut arrival) => {
                    drop(reads);
                    // Without the lock: others queue reads, and cancel this one, meanwhile.
                    budget = budget.saturating_sub(arrival.copy().max(LEAST));
                    let (length, into, pair) = arrival.finish();
                    device.release(pair);
                    let mut reads = lock(&line.reads);
                    // Delivered under the lock: the next read cannot end before.
                    if let Some(finished) = reads.fetched(length, into) {
                        self.read_ended(line, &mut reads, finished);
                    }
                    self.note_room_for_reads(&mut reads);
                    pieces += 1;
                    again = budget == 0;
                    line.set_fetching(reads.is_fetching(), again);
                }
            }
        }
        // Some have to be asked for, or the device has room that nobody fills, and no descriptor tells of that.
        self.mark_dirty();
        pieces
    }
}
