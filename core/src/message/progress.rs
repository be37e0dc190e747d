//! Progress: takes new links, reads those that have something, and sends what is held back.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::batch::Batch;
use super::engine::{Engine, Turn};
use super::hub::Progress;
use super::incoming::Incoming;
use super::links::Link;
use super::member::Member;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Ordering, lock};

/// While links are polled directly, progress looks at all descriptors each time that its rounds have cost so much.
const LOOK: u32 = 1024;
/// Cost of a round with a system call. A look costs about as much as one.
const CALL: u32 = LOOK / 16;
/// Cost of a round that has brought something: callbacks may take their time.
const BUSY: u32 = LOOK / 64;
/// Rounds without a frame after which a link is no longer polled directly, if polling costs a system call each.
const PATIENCE: u32 = 1000;
/// As [`PATIENCE`], of all links together that are polled by a load from memory. Each gets at least [`PATIENCE`].
const MEMORY_PATIENCE: u32 = 16_000;
/// Pulls from a peer's other links once one of them has failed: more than its rings and sockets hold.
const LAST_PULLS: usize = 64;
/// More links than this are not polled directly if polling costs a system call each.
const MAX_POLLED: usize = 4;

impl Engine {
    /// Moves what can be moved now. Returns how much has happened: 0 if nothing, or if another thread is at it.
    /// The caller dispatches the messages that `batch` has afterwards.
    ///
    /// A look at all descriptors is a system call, which takes several times as long as a round that only looks at memory. So
    /// looks are rarer there. Links that are not polled wait for 1024 idle rounds, or 64 rounds with frames, at most.
    pub(super) fn advance(&self, mut batch: Option<&mut Batch>) -> Result<usize> {
        let mut turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return Ok(0),
        };
        let turn = &mut *turn;
        if std::mem::take(&mut turn.armed) {
            self.hub.awake();
        }
        let mut moved = 0;
        if self.has_arrivals.load(Ordering::Acquire) {
            moved += self.welcome(turn);
        }
        let looks = turn.credit == 0 || turn.polled.is_empty();
        if looks {
            turn.credit = LOOK;
            self.look(turn)?;
        }
        let (pulled, calls) = self.pull_all(turn, &mut batch);
        moved += pulled + self.send_all(turn);
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

    /// Takes links that have been made.
    fn welcome(&self, turn: &mut Turn) -> usize {
        self.has_arrivals.store(false, Ordering::Release);
        let arrivals = std::mem::take(&mut *lock(&self.arrivals));
        let count = arrivals.len();
        for (member, line) in arrivals {
            // One that has ended meanwhile is not served.
            let Some(link) = Link::new(member, line) else { continue };
            let wire = link.wire.clone();
            let token = turn.links.insert(link);
            match self.watch(token, &*wire) {
                Ok(()) => turn.polled.push(token),
                Err(error) => self.fail(turn, token, &error),
            }
        }
        count
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
            if pulled.is_ok() && link.polled && !link.blocked {
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

    /// Takes what one link has brought.
    fn pull(&self, link: &mut Link, batch: &mut Option<&mut Batch>) -> Result<usize> {
        let batch = batch.as_deref_mut();
        let mut incoming = Incoming::new(&self.handlers, &link.member, &link.line, batch);
        let pulled = link.wire.pull(&mut incoming);
        let blocked = incoming.end();
        let count = pulled?;
        if blocked {
            (link.blocked, link.wants_room) = (true, false);
            self.unwatch(link);
            // Room may have come between the refusal and now.
            if !link.member.inbox.is_blocked() {
                link.member.mark_dirty();
            }
        }
        if link.line.has_left() {
            return Err(Error::new(ErrorKind::PeerLost, "recv", "it left"));
        }
        Ok(count)
    }

    /// Ends a link that has failed, and with it the peer. What its other links have brought before is taken first.
    pub(super) fn fail(&self, turn: &mut Turn, token: u64, why: &Error) {
        let Some(link) = turn.links.remove(token) else { return };
        self.unwatch(&link);
        let member = link.member.clone();
        let others = turn.links.of(&member);
        for other in &others {
            if let Some(link) = turn.links.get_mut(*other).filter(|link| !link.blocked) {
                // Bounded: the peer may go on sending.
                (0..LAST_PULLS).take_while(|_| matches!(self.pull(link, &mut None), Ok(1..))).for_each(drop);
            }
        }
        if link.line.has_left()
            && others.iter().any(|other| turn.links.get(*other).is_some_and(|l| !l.line.has_left()))
        {
            // The goodbye on the other link is still on its way.
            link.line.end();
            return;
        }
        self.forget(turn, &member);
        let error = match why.kind() {
            ErrorKind::PeerLost => Error::peer_lost("recv", member.rank, why.message()),
            _ => Error::peer_lost("recv", member.rank, why.message()).with_source(why.clone()),
        };
        if !link.line.has_left() && member.end().is_none() {
            log::warn!("{error}");
        }
        self.lose(&member, &error);
    }

    /// Ends `member` if sending on one of its links has failed, and says whether it did. What the link has brought before is taken first.
    pub(super) fn end_broken(&self, turn: &mut Turn, member: &Arc<Member>) -> bool {
        let lines = member.lines();
        let Some((line, why)) = lines.iter().find_map(|line| Some((line, line.failure()?))) else {
            return false;
        };
        if self.has_arrivals.load(Ordering::Acquire) {
            // The link may be a new one.
            self.welcome(turn);
        }
        let token = turn.links.iter().find(|(_, link)| Arc::ptr_eq(&link.line, line)).map(|(token, _)| token);
        let Some(token) = token else {
            self.lose(member, &Error::peer_lost("send", member.rank, why.message()).with_source(why.clone()));
            return true;
        };
        if why.kind() == ErrorKind::PeerLost && turn.links.get(token).is_some_and(|link| link.blocked) {
            // The connection has ended, but messages have come before: they are read once there is room, and then the end.
            return false;
        }
        let mut last = None;
        if let Some(link) = turn.links.get_mut(token).filter(|link| !link.blocked) {
            // Bounded: the peer may go on sending.
            for _ in 0..LAST_PULLS {
                match self.pull(link, &mut None) {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) => {
                        last = Some(error).filter(|_| link.line.has_left());
                        break;
                    }
                }
            }
        }
        self.fail(turn, token, last.as_ref().unwrap_or(why));
        true
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
        Self::end_if_broken(self, peer);
    }
}
