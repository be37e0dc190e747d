//! The sending part of progress, and deadlines.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::copying::PIECE;
use super::engine::{Engine, Turn};
use super::links::Link;
use super::member::Member;
use crate::error::Error;

/// How exactly deadlines are kept.
pub(super) const TICK: Duration = Duration::from_millis(1);

impl Engine {
    /// Sends what is held back. Returns for how many peers something has changed: not
    /// for those that still have no room, or whoever calls until nothing happens would never sleep.
    pub(super) fn send_all(&self, turn: &mut Turn) -> usize {
        if turn.unsent.is_empty() && !self.hub.has_dirty() {
            return 0;
        }
        let mut peers = std::mem::take(&mut turn.dirty);
        let late = turn.unsent.len();
        peers.append(&mut turn.unsent);
        self.hub.take_dirty(&mut peers);
        let mut count = 0;
        for (nth, member) in peers.drain(..).enumerate() {
            member.clear_dirty();
            let (all_sent, copied) = self.tend(turn, &member);
            // Old ones that a thread asleep knows of wait for room, of which descriptors tell.
            turn.unannounced |= !all_sent && (nth >= late || copied > 0);
            count += copied + usize::from(all_sent || nth >= late);
        }
        turn.dirty = peers;
        count
    }

    /// Looks after one peer. Returns whether nothing is left to do for it, and how much was done beside: copies of mapped memory, turns
    /// of answers, and room for a send that was refused.
    fn tend(&self, turn: &mut Turn, member: &Arc<Member>) -> (bool, usize) {
        if member.end().is_some() {
            self.forget(turn, member);
            return (true, 0);
        }
        let (mut all_sent, mut copied, mut failed) = (true, 0, false);
        for line in member.lines() {
            all_sent &= line.kick().unwrap_or(true);
            if line.take_room() {
                copied += 1;
                member.found_room();
            }
            copied += member.copy(&line, PIECE) + member.fetch(&line, PIECE) + member.transfer(&line);
            let waits = line.waits_for_turn();
            all_sent &= !waits;
            copied += usize::from(waits);
            failed |= line.failure().is_some();
        }
        if failed && self.end_broken(turn, member) {
            return (true, 1);
        }
        if !all_sent && !turn.unsent.iter().any(|other| Arc::ptr_eq(other, member)) {
            turn.unsent.push(member.clone());
        }
        (all_sent, copied)
    }

    /// Looks at deadlines now and then, and less often whether hosts answer; returns the links of those that do not.
    pub(super) fn watch_clock(&self, turn: &mut Turn) -> Vec<(u64, Error)> {
        let now = Instant::now();
        if turn.looked.is_none_or(|looked| now - looked >= TICK) {
            turn.looked = Some(now);
            self.expire(turn);
        }
        if turn.checked.is_none_or(|checked| now - checked >= self.checks) {
            turn.checked = Some(now);
            let failed = self.check_links(turn);
            // After links have let go of what was revoked.
            self.hub.exposures.resources.look();
            return failed;
        }
        Vec::new()
    }

    /// The links whose peers' hosts do not answer, and why.
    fn check_links(&self, turn: &Turn) -> Vec<(u64, Error)> {
        let failed = |(token, link): (u64, &Link)| {
            let failed = link.line.look_after().err().map(|error| (token, error));
            if link.line.is_fetching() {
                // Of a device that has failed, no descriptor tells.
                link.member.mark_dirty();
            }
            failed
        };
        turn.links.iter().filter_map(failed).collect()
    }

    /// Ends operations whose deadline has passed.
    fn expire(&self, turn: &mut Turn) {
        self.hub.take_timed(&mut turn.timed);
        turn.timed.retain(|member| member.expire().is_some());
    }
}
