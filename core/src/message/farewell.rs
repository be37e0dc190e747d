//! The orderly end of links: goodbyes after what was sent.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::engine::Engine;
use super::head::Head;
use super::line::Line;
use super::member::{Connecting, Member};
use super::transfers::settled;
use super::wire::{Landing, Sink};
use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

impl Engine {
    /// Says goodbye to `members` after what was sent, and ends them.
    pub(super) fn part(&self, members: &[Arc<Member>], deadline: Deadline) -> Result<()> {
        let why = Error::new(ErrorKind::Stopped, "close", "it was closed here");
        // From here on nothing more is sent, so that the goodbye is the last that the peer hears. Half of the time is left for what
        // was sent.
        let connected = deadline.half();
        let finished = members
            .iter()
            .filter_map(|member| finish_once_connected(member, &why, connected).map(|lines| (member, lines)));
        let all: Vec<(&Arc<Member>, Vec<Arc<Line>>)> = finished.collect();
        for line in all.iter().flat_map(|(_, lines)| lines) {
            let _ = line.part();
        }
        let sent = self.flush(&all, deadline);
        let settled = settled();
        for (member, lines) in all {
            lines.iter().filter_map(|line| line.wire()).for_each(|wire| wire.close(false));
            self.add_burial(member, lines, &why, settled);
        }
        self.bury_these(members, settled);
        sent
    }

    /// Waits until what is queued for `all` has arrived at their hosts.
    fn flush(&self, all: &[(&Arc<Member>, Vec<Arc<Line>>)], deadline: Deadline) -> Result<()> {
        let mut backoff = Backoff::new();
        // A line that has failed sends nothing more, so nothing waits for it.
        let has_arrived = |line: &Line| line.wire().is_none_or(|wire| wire.has_arrived());
        let has_ended = |line: &Line| line.wire().is_some_and(|wire| wire.has_ended());
        let is_done =
            |line: &Arc<Line>| line.kick().map_or(true, |sent| sent && has_arrived(line)) || has_ended(line);
        loop {
            // All of them are kicked: none waits for another one that takes nothing.
            let mut late = None;
            for (member, lines) in all {
                let done = lines.iter().filter(|line| is_done(line)).count();
                late = late.or((done < lines.len()).then_some(member));
            }
            let Some(member) = late else { return Ok(()) };
            self.make_room(all);
            if deadline.expired() {
                let text = format!("rank {} did not take what was sent to it in time", member.rank);
                return Err(Error::timeout("close", text).with_peer(member.rank));
            }
            backoff.pause(deadline);
        }
    }

    /// Takes what the peers still send, and drops it: a peer that leaves at the same time, with full buffers, takes nothing from this side
    /// before there is room for its own last words.
    fn make_room(&self, all: &[(&Arc<Member>, Vec<Arc<Line>>)]) {
        // One thread at a time pulls, the one that has the turn.
        let Ok(_turn) = self.turn.try_lock() else { return };
        for line in all.iter().flat_map(|(_, lines)| lines) {
            // Fails only for a peer that is lost or has left, and then nothing more is to be taken.
            let _ = line.wire().map(|wire| wire.pull(&mut Unheard));
        }
    }

    /// Says goodbye to all peers, and ends. Returns what is left to dispatch.
    pub(super) fn leave(&self, deadline: Deadline) -> (Vec<Arc<Member>>, Result<()>) {
        let members: Vec<Arc<Member>> = lock(&self.members).values().cloned().collect();
        let sent = self.part(&members, deadline);
        let why = Error::new(ErrorKind::Stopped, "close", "it was closed here");
        let settled = settled();
        for member in self.earlier() {
            if let Some(lines) = member.finish(&why) {
                self.add_burial(&member, lines, &why, settled);
            }
        }
        self.hub.close();
        let mut turn = lock(&self.turn);
        let links = std::mem::take(&mut turn.links);
        links.iter().for_each(|(_, link)| self.unwatch(link));
        let mut left = std::mem::take(&mut turn.timed);
        drop((std::mem::take(&mut turn.dirty), std::mem::take(&mut turn.unsent)));
        drop(std::mem::take(&mut turn.leaving));
        drop(turn);
        // No peer ends from here on.
        self.bury_all();
        drop((links, std::mem::take(&mut *lock(&self.arrivals))));
        self.hub.clear();
        left.clear();
        left.extend(std::iter::from_fn(|| self.hub.take_ready()));
        left.extend(self.hub.departures.clear());
        (left, sent)
    }

    /// Peers that have connected again in a later life, and of which an earlier link was not read to its end. They have ended that
    /// link themselves, and hear no goodbye on it.
    fn earlier(&self) -> Vec<Arc<Member>> {
        let turn = lock(&self.turn);
        let arrivals = lock(&self.arrivals);
        let served = turn.links.iter().map(|(_, link)| &link.member).chain(&turn.leaving);
        let held = self.burials.held();
        let all = served.chain(arrivals.iter().map(|(member, _)| member)).chain(&held);
        all.filter(|member| member.end().is_none()).cloned().collect()
    }
}

/// Drops all that comes.
struct Unheard;

impl Sink for Unheard {
    fn frame(&mut self, _: Head, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn begin(&mut self, _: Head) -> Result<()> {
        Ok(())
    }

    fn landing(&mut self, _: Head, _: usize) -> Result<Landing> {
        Ok(Landing::Nowhere)
    }

    fn landed(&mut self, _: Head, _: usize) -> Result<()> {
        Ok(())
    }
}

/// Ends `member` when no handshake with it is under way, at the latest at `deadline`; returns its links at the first call. The peer may
/// have a link already that this side is still making. If that ended without a goodbye, the peer would take this side for lost, and
/// not wait for what is on its way on the others.
fn finish_once_connected(member: &Member, why: &Error, deadline: Deadline) -> Option<Vec<Arc<Line>>> {
    let mut backoff = Backoff::new();
    loop {
        match member.finish_between_handshakes(why) {
            Ok(lines) => return lines,
            Err(Connecting) if deadline.expired() => return member.finish(why),
            Err(Connecting) => backoff.pause(deadline),
        }
    }
}
