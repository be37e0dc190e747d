//! The orderly end of links: goodbyes after what was sent.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::engine::Engine;
use super::head::Operation;
use super::line::Line;
use super::member::Member;
use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

impl Engine {
    /// Says goodbye to `members` after what was sent, and ends them.
    pub(super) fn part(&self, members: &[Arc<Member>], deadline: Deadline) -> Result<()> {
        let why = Error::new(ErrorKind::Stopped, "close", "it was closed here");
        // From here on nothing more is sent, so that the goodbye is the last that the peer hears.
        let finished = members.iter().filter_map(|member| member.finish(&why).map(|lines| (member, lines)));
        let all: Vec<(&Arc<Member>, Vec<Arc<Line>>)> = finished.collect();
        for line in all.iter().flat_map(|(_, lines)| lines) {
            // Fails only for a peer that is lost.
            let _ = line.tell(Operation::Goodbye, 0, 0, &[]);
        }
        let sent = self.flush(&all, deadline);
        for (member, lines) in all {
            lines.iter().filter_map(|line| line.wire()).for_each(|wire| wire.close(false));
            self.bury(member, lines, &why);
        }
        sent
    }

    /// Waits until what is queued for `all` has arrived at their hosts.
    fn flush(&self, all: &[(&Arc<Member>, Vec<Arc<Line>>)], deadline: Deadline) -> Result<()> {
        let mut backoff = Backoff::new();
        // A line that has failed sends nothing more, so nothing waits for it.
        let has_arrived = |line: &Line| line.wire().is_none_or(|wire| wire.has_arrived());
        let is_sent = |line: &Arc<Line>| line.kick().is_ok_and(|sent| sent && has_arrived(line));
        let is_broken = |line: &Arc<Line>| line.kick().is_err();
        loop {
            let late =
                all.iter().find(|(_, lines)| !lines.iter().all(|line| is_sent(line) || is_broken(line)));
            let Some((member, _)) = late else { return Ok(()) };
            if deadline.expired() {
                let text = format!("rank {} did not take what was sent to it in time", member.rank);
                return Err(Error::timeout("close", text).with_peer(member.rank));
            }
            backoff.pause(deadline);
        }
    }

    /// Says goodbye to all peers, and ends. Returns what is left to dispatch.
    pub(super) fn leave(&self, deadline: Deadline) -> (Vec<Arc<Member>>, Result<()>) {
        let members: Vec<Arc<Member>> = lock(&self.members).values().cloned().collect();
        let sent = self.part(&members, deadline);
        self.hub.close();
        let mut turn = lock(&self.turn);
        let links = std::mem::take(&mut turn.links);
        links.iter().for_each(|(_, link)| self.unwatch(link));
        let mut left = std::mem::take(&mut turn.timed);
        drop((std::mem::take(&mut turn.dirty), std::mem::take(&mut turn.unsent)));
        drop(turn);
        drop((links, std::mem::take(&mut *lock(&self.arrivals))));
        self.hub.clear();
        left.clear();
        left.extend(std::iter::from_fn(|| self.hub.take_ready()));
        (left, sent)
    }
}
