//! Links from their first turn to their last: new ones are taken, each is read, and those that fail end with their peers.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::batch::Batch;
use super::copying::PIECE;
use super::engine::{Engine, Turn};
use super::incoming::Incoming;
use super::links::{Arrival, Link};
use super::member::Member;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Ordering;

/// Pulls from the links of a peer once one of them has failed: more than its rings and sockets hold.
const LAST_PULLS: usize = 64;

impl Engine {
    /// Takes links that have been made.
    pub(super) fn welcome(&self, turn: &mut Turn) -> usize {
        self.has_arrivals.store(false, Ordering::Release);
        let mut count = 0;
        while let Some((member, arrival)) = self.next_arrival() {
            count += 1;
            let line = match arrival {
                Arrival::Link(line) => line,
                Arrival::Successor { restarted } => {
                    self.end_replaced(turn, &member, restarted);
                    continue;
                }
            };
            if member.end().is_none() {
                member.arrive();
            }
            // One that has ended meanwhile is not served.
            let Some(link) = Link::new(member, line) else { continue };
            let wire = link.wire.clone();
            let token = turn.links.insert(link);
            match self.watch(token, &*wire) {
                Ok(()) => {
                    turn.polled.push(token);
                    turn.unannounced = true;
                }
                Err(error) => self.fail(turn, token, &error),
            }
        }
        count
    }

    /// Takes what one link has brought.
    pub(super) fn pull(&self, link: &mut Link, batch: &mut Option<&mut Batch>) -> Result<usize> {
        let batch = batch.as_deref_mut();
        let mut incoming = Incoming::new(&self.handlers, &link.member, &link.line, batch);
        let pulled = link.wire.pull(&mut incoming);
        incoming.end();
        if link.line.has_left() {
            // The end of the connection may have come with the goodbye.
            return Err(Error::new(ErrorKind::PeerLost, "recv", "it left"));
        }
        let mut count = pulled? + link.member.fetch(&link.line, PIECE);
        if link.wire.take_room() {
            // Room is news, too, for whoever sleeps when nothing moves.
            count += 1;
            link.member.found_room();
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
            if let Some(link) = turn.links.get_mut(*other) {
                // Bounded: the peer may go on sending.
                (0..LAST_PULLS).take_while(|_| matches!(self.pull(link, &mut None), Ok(1..))).for_each(drop);
            }
        }
        if link.line.has_left() && member.end().is_none() && !member.has_left() {
            // The goodbye on another link is still on its way. That link may not be there yet.
            link.line.end();
            if !turn.leaving.iter().any(|leaving| Arc::ptr_eq(leaving, &member)) {
                turn.leaving.push(member);
            }
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
        self.lose(turn, &member, &error);
    }

    /// Ends peers that have left, and of which no link is to come any more. Returns how many. Links of theirs that are still here bring
    /// nothing, because frames behind a goodbye are dropped; whoever ends a peer has the next turn forget them.
    pub(super) fn end_left(&self, turn: &mut Turn) -> usize {
        let leaving = turn.leaving.extract_if(.., |member| member.end().is_some() || member.has_left());
        let ended: Vec<Arc<Member>> = leaving.collect();
        for member in &ended {
            self.lose(turn, member, &Error::peer_lost("recv", member.rank, "it left"));
        }
        ended.len()
    }

    /// Takes what the links of a peer have brought whose rank has connected anew, and ends it: it may have left in good order while nobody
    /// looked. If only the end of a link is still on its way, and its process lives, that link is read to its own end, and nothing of the next
    /// life is dispatched before that.
    fn end_replaced(&self, turn: &mut Turn, member: &Arc<Member>, restarted: bool) {
        if member.end().is_some() {
            return;
        }
        let last = turn.links.of(member).into_iter().filter_map(|token| self.last_words(turn, token)).last();
        let why = match &last {
            Some(left) => left.message(),
            // It waited for a handshake, which turns out to be that of its next life.
            None if member.has_left_all() => "it left",
            None if restarted => "it came back under another generation",
            None => {
                // Another thread of its process says goodbye on it.
                self.hub.departures.add(member.rank, member.clone());
                return;
            }
        };
        self.forget(turn, member);
        self.lose(turn, member, &Error::peer_lost("recv", member.rank, why));
    }

    /// Takes what a link that is about to end has brought. Returns the error if that ends with a goodbye.
    fn last_words(&self, turn: &mut Turn, token: u64) -> Option<Error> {
        let link = turn.links.get_mut(token)?;
        // Bounded: the peer may go on sending.
        for _ in 0..LAST_PULLS {
            match self.pull(link, &mut None) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => return Some(error).filter(|_| link.line.has_left()),
            }
        }
        None
    }

    /// Ends `member` if sending on one of its links has failed, and says whether it did. What the link has brought before is
    /// taken first.
    pub(super) fn end_broken(&self, turn: &mut Turn, member: &Arc<Member>) -> bool {
        let lines = member.lines();
        let Some((line, why)) = lines.iter().find_map(|line| Some((line, line.failure()?))) else {
            return false;
        };
        // The link may be a new one. One that waits for an earlier life of the rank is read when it is served. Another thread may be at
        // that, and hand the link over before it is looked for or before it is welcomed.
        if self.burials.hold(member) {
            return false;
        }
        self.welcome(turn);
        if self.burials.hold(member) {
            return false;
        }
        let token = turn.links.iter().find(|(_, link)| Arc::ptr_eq(&link.line, line)).map(|(token, _)| token);
        let Some(token) = token else {
            let why = Error::peer_lost("send", member.rank, why.message()).with_source(why.clone());
            self.lose(turn, member, &why);
            return true;
        };
        let last = self.last_words(turn, token);
        self.fail(turn, token, last.as_ref().unwrap_or(why));
        true
    }
}
