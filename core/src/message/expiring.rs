//! Deadlines of what is under way with a peer.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::head::Operation;
use super::inbox::Item;
use super::line::Line;
use super::member::Member;
use crate::deadline::Deadline;
use crate::sync::{Ordering, lock};

impl Member {
    /// Has progress look at the deadlines of operations of this peer.
    pub(super) fn mark_timed(self: &Arc<Self>) {
        if !self.timed.swap(true, Ordering::AcqRel) {
            self.hub.add_timed(self.clone());
        }
    }

    /// Ends the operations whose deadline has passed; returns when the next one is due. `None`: there are none; then the
    /// peer is no longer in the list.
    pub(super) fn expire(self: &Arc<Self>) -> Option<Deadline> {
        // Before looking: what comes after that marks the peer again.
        self.timed.store(false, Ordering::SeqCst);
        let mut next: Option<Deadline> = None;
        for line in self.lines() {
            let (late, due) = {
                let mut reads = lock(&line.reads);
                // Those into devices end in a turn, when their devices write nothing more.
                let has_late = reads.expire_transfers();
                let late: Vec<(u64, bool)> = reads
                    .expire()
                    .into_iter()
                    .map(|(id, finished, asked)| {
                        // Under the lock: whoever ends the peer meanwhile ends the reads before it tells of the end.
                        self.deliver(Item::Read(finished));
                        (id, asked)
                    })
                    .collect();
                self.note_room_for_reads(&mut reads);
                if has_late || !late.is_empty() {
                    line.note_transfers(&reads);
                    // Those behind them may have their turn.
                    self.leave_to_progress();
                }
                (late, reads.next_deadline())
            };
            for (id, _) in late.into_iter().filter(|(_, asked)| *asked) {
                // If the link is gone, nothing comes either.
                let _ = self.tell(&line, Operation::Cancel, 0, id as u32, &[]);
            }
            let (has_ended, long_due) = {
                let mut offers = lock(&line.offers);
                let ended = offers.expire();
                let has_ended = !ended.is_empty();
                ended.into_iter().for_each(|ended| self.deliver(Item::Long(ended)));
                (has_ended, offers.next_deadline())
            };
            if has_ended {
                self.found_room();
            }
            next = [next, due, long_due].into_iter().flatten().min();
        }
        if next.is_some() && self.timed.swap(true, Ordering::AcqRel) {
            // Another thread has put it into the hub's list meanwhile: once is enough.
            return None;
        }
        next
    }

    /// When the first operation under way is too late.
    pub(super) fn next_deadline(&self) -> Option<Deadline> {
        // One lock after the other, never both: `send_long` asks for reads with the offers locked.
        let of = |line: &Arc<Line>| {
            let reads = lock(&line.reads).next_deadline();
            let offers = lock(&line.offers).next_deadline();
            [reads, offers]
        };
        self.lines().iter().flat_map(of).flatten().min()
    }
}
