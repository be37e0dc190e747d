//! Losing a peer: what follows here, and how all others hear of it.
#![forbid(unsafe_code)]

use std::time::Instant;

use super::{Control, State};
use crate::abort::{AbortCause, AbortListener};
use crate::error::{Error, ErrorKind};
use crate::group::frames;
use crate::group::standing::Standing;
use crate::net::Link;
use crate::sync::lock;

impl Control {
    /// The peer is lost: aborts, remembers why, and cuts it off.
    pub(crate) fn lose(&self, peer: u32, why: impl std::fmt::Display) {
        let why = why.to_string();
        // An error about the peer says that itself.
        let why = why.strip_prefix(&format!("rank {peer} was lost: ")).unwrap_or(&why);
        let why = format!("{why} (noticed by rank {})", self.rank);
        {
            let state = lock(&self.state);
            if state.leaving || state.standing[peer as usize].is_gone() {
                return;
            }
            // A stopped process finds its links closed when it runs again: it is the one that was lost.
            if let Some(gap) = state.watch.given_up(Instant::now()) {
                drop(state);
                let gap = gap.as_secs_f64();
                let why =
                    format!("it did not run for {gap:.1} s, and rank {peer} is not there any more: {why}");
                return self.is_lost(&why);
            }
        }
        self.part_with(peer, &AbortCause::peer_lost(peer, why));
    }

    /// Ends everything because `peer` is lost, and tells everyone.
    fn part_with(&self, peer: u32, cause: &AbortCause) {
        // Before it counts as gone here: who finds it gone must find the reason, too.
        let told = self.abort.abort(cause.clone());
        let links = {
            let mut state = lock(&self.state);
            if state.leaving || state.standing[peer as usize].is_gone() {
                return;
            }
            let links = state.lose(peer, cause);
            self.tell_gone(&mut state, peer);
            self.wake(&mut state);
            links
        };
        cut(&links, cause);
        if !told {
            // The abort had another cause, and told that.
            self.tell_all(cause);
        }
    }

    /// A rank says that it, or another one, has failed.
    pub(super) fn hear_failure(&self, cause: AbortCause) {
        match (cause.kind, cause.rank) {
            (ErrorKind::PeerLost, Some(rank)) if rank == self.rank => self.is_lost(&cause.reason),
            (ErrorKind::PeerLost, Some(rank)) => {
                self.part_with(rank, &cause);
            }
            _ => drop(self.abort.abort(cause)),
        }
    }

    /// This rank itself is lost to the others.
    fn is_lost(&self, why: &str) {
        let reason = format!(
            "the others have given up this process, which is rank {}, and go on without it: {why}; see why it did not run",
            self.rank
        );
        self.abort.abort(AbortCause::peer_lost(self.rank, reason));
    }

    /// `link` carries nothing more: after a BYE, or because it ended for the reason `why`.
    pub(super) fn end(&self, link: &Link, why: Option<&Error>) {
        let peer = link.peer().from;
        let mut state = lock(&self.state);
        let Some(lines) = state.lines.get_mut(peer as usize) else { return };
        lines.retain(|known| known.link.id() != link.id());
        let last = lines.is_empty();
        match (&state.standing[peer as usize], why) {
            (Standing::Present, Some(why)) => {
                drop(state);
                return self.lose(peer, why.message());
            }
            (Standing::Present | Standing::Leaving, _) if last => {
                state.standing[peer as usize] = Standing::Left { at: Instant::now(), told: false };
            }
            (Standing::Present, _) => state.standing[peer as usize] = Standing::Leaving,
            _ => return,
        }
        if last {
            self.tell_gone(&mut state, peer);
        }
        self.wake(&mut state);
    }

    fn tell_all(&self, cause: &AbortCause) {
        let links = lock(&self.state).all_links();
        self.tell(&links, cause);
    }

    /// Tells those at the other ends of `links` of a failure.
    pub(super) fn tell(&self, links: &[Link], cause: &AbortCause) {
        // Who gave this rank up tells the others itself.
        if (cause.kind, cause.rank) != (ErrorKind::PeerLost, Some(self.rank)) {
            say(links, cause);
        }
    }
}

impl State {
    /// Takes `peer` out of the group; the links to it.
    fn lose(&mut self, peer: u32, cause: &AbortCause) -> Vec<Link> {
        self.standing[peer as usize] = Standing::Lost(cause.reason.clone());
        std::mem::take(&mut self.lines[peer as usize]).into_iter().map(|line| line.link).collect()
    }
}

/// Tells a rank that was given up, should it still be there, and says no more to it.
fn cut(links: &[Link], cause: &AbortCause) {
    say(links, cause);
    links.iter().for_each(Link::close);
}

fn say(links: &[Link], cause: &AbortCause) {
    let payload = frames::encode_failure(cause);
    for link in links {
        if let Err(error) = link.post(frames::FAILURE, &payload) {
            log::debug!("cannot tell rank {} of the failure: {error}", link.peer().from);
        }
    }
}

impl AbortListener for Control {
    /// Tells everyone we have a link to, and wakes who waits here.
    fn aborted(&self, cause: &AbortCause) {
        self.wake(&mut lock(&self.state));
        self.tell_all(cause);
    }
}
