//! Progress: reads links that have something, and sends what is held back.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::batch::Batch;
use super::engine::{Engine, Turn};
use super::hub::Progress;
use super::links::Link;
use super::member::Member;
use super::tending::TICK;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::sync::{MutexGuard, Ordering};

/// While links are polled directly, progress looks at all descriptors each time that its rounds have cost so much.
const LOOK: u32 = 1024;
/// Cost of a round with a system call. A look costs about as much as one.
const CALL: u32 = LOOK / 16;
/// Cost of a round that has brought something: callbacks may take their time.
const BUSY: u32 = LOOK / 64;
/// Progress looks at the clock after so many rounds, and at all descriptors if time enough has passed: whoever polls rarely would
/// otherwise look as rarely.
const GLANCE: u32 = 16;
/// Rounds without a frame after which a link is no longer polled directly, if polling costs a system call each.
const PATIENCE: u32 = 1000;
/// As [`PATIENCE`], of all links together that are polled by a load from memory. Each gets at least [`PATIENCE`].
const MEMORY_PATIENCE: u32 = 16_000;
/// More links than this are not polled directly if polling costs a system call each.
const MAX_POLLED: usize = 4;

impl Engine {
    /// Moves what can be moved now. Returns how much has happened: 0 if nothing, or if another thread is at it.
    /// The caller dispatches the messages that `batch` has afterwards.
    ///
    /// A look at all descriptors is a system call, which takes several times as long as a round that only looks at memory. So
    /// looks are rarer there. Links that are not polled, and deadlines, wait for 1024 idle rounds, or 64 rounds with frames, at most, and where
    /// rounds are far apart for 16.
    pub(super) fn advance(&self, mut batch: Option<&mut Batch>) -> Result<usize> {
        let mut moved = 0;
        loop {
            let mut turn = match self.turn.try_lock() {
                Ok(turn) => turn,
                Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(std::sync::TryLockError::WouldBlock) => return Ok(moved),
            };
            let outcome = self.move_all(&mut turn, batch.take());
            self.relieve(&mut turn);
            let lost = self.end_turn(turn);
            moved += outcome?;
            // The next life of a peer that has ended may have waited for that.
            if !lost || !self.has_arrivals.load(Ordering::Acquire) {
                return Ok(moved);
            }
        }
    }

    /// Lets others have their turn, and ends what is under way with peers that have ended in this one. Returns whether there were any.
    pub(super) fn end_turn(&self, mut turn: MutexGuard<'_, Turn>) -> bool {
        let lost = std::mem::take(&mut turn.lost);
        drop(turn);
        if lost {
            self.bury();
        }
        lost
    }

    fn move_all(&self, turn: &mut Turn, mut batch: Option<&mut Batch>) -> Result<usize> {
        turn.disarm(&self.hub.alarm);
        let mut moved = 0;
        if self.has_arrivals.load(Ordering::Acquire) {
            moved += self.welcome(turn);
        }
        turn.rounds = turn.rounds.wrapping_add(1);
        let is_late = || {
            turn.rounds.is_multiple_of(GLANCE) && turn.looked.is_none_or(|looked| looked.elapsed() >= TICK)
        };
        let looks = turn.credit == 0 || turn.polled.is_empty() || is_late();
        if looks {
            turn.credit = LOOK;
            self.look(turn)?;
        }
        let (pulled, calls) = self.pull_all(turn, &mut batch);
        moved += pulled + self.send_all(turn);
        if !turn.leaving.is_empty() {
            moved += self.end_left(turn);
        }
        let cost = if calls {
            CALL
        } else if moved > 0 {
            BUSY
        } else {
            1
        };
        turn.credit = turn.credit.saturating_sub(cost);
        if looks {
            for (token, error) in self.watch_clock(turn) {
                self.fail(turn, token, &error);
            }
        }
        Ok(moved)
    }

    /// Asks the system which links have something.
    fn look(&self, turn: &mut Turn) -> Result<()> {
        let mut events = std::mem::take(&mut turn.events);
        let failed = |error| Error::system("progress", "cannot wait for events", error);
        let looked = self.epoll.wait(0, &mut events).map_err(failed);
        self.activate(turn, &events);
        events.clear();
        turn.events = events;
        looked
    }

    /// Takes what polled links have brought. Returns how much that was, and whether it took system calls.
    fn pull_all(&self, turn: &mut Turn, batch: &mut Option<&mut Batch>) -> (usize, bool) {
        let (mut moved, mut calls, mut index) = (0, false, 0);
        let count = turn.polled.len();
        while let Some(token) = turn.polled.get(index).copied() {
            let Some(link) = turn.links.get_mut(token) else {
                turn.polled.swap_remove(index);
                continue;
            };
            calls |= link.calls;
            let pulled = match self.pull(link, batch) {
                Ok(0) => self.bear_silence(link, count),
                Ok(frames) => {
                    moved += frames;
                    link.silent = 0;
                    Ok(())
                }
                Err(error) => Err(error),
            };
            if pulled.is_ok() && link.polled {
                index += 1;
                continue;
            }
            link.polled = false;
            turn.polled.swap_remove(index);
            if let Err(error) = pulled {
                self.fail(turn, token, &error);
            }
        }
        (moved, calls)
    }

    /// Ends the polling of a link, one of `count` that are polled, that has brought nothing for long.
    #[inline]
    fn bear_silence(&self, link: &mut Link, count: usize) -> Result<()> {
        link.silent += 1;
        let patience = match (link.calls, count > MAX_POLLED) {
            (true, true) => 1,
            (true, false) => PATIENCE,
            (false, _) if link.silent < PATIENCE => return Ok(()),
            (false, _) => PATIENCE.max(MEMORY_PATIENCE / count.max(1) as u32),
        };
        if link.silent > patience {
            link.polled = link.wire.arm()?;
            link.silent = 0;
        }
        Ok(())
    }
}

impl Progress<Member> for Engine {
    fn progress(&self) -> Result<usize> {
        self.advance(None)
    }

    fn close(&self, peer: &Arc<Member>, deadline: Deadline) -> Result<()> {
        if peer.end().is_some() { Ok(()) } else { self.part(std::slice::from_ref(peer), deadline) }
    }

    fn end_if_broken(&self, peer: &Arc<Member>) {
        match self.turn.try_lock() {
            Ok(mut turn) => {
                self.end_broken(&mut turn, peer);
                self.end_turn(turn);
            }
            // The thread that makes progress sees the failure at the end of its turn.
            Err(_) => peer.mark_dirty(),
        }
    }
}
