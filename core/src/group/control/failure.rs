//! Speaking to peers, and losing them: what follows here, and how all others hear of it. The two belong together: a peer that
//! does not read what it is sent is lost, and its loss is told to the others.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::time::Instant;

use super::shared::Control;
use crate::abort::{AbortCause, AbortListener};
use crate::error::{Error, ErrorKind, Result};
use crate::group::frames;
use crate::group::membership::{Envelope, Message};
use crate::group::peer_state::PeerState;
use crate::net::Link;
use crate::sync::lock;

impl Control {
    /// Sends a frame to `peer`, to which there is a link. Never waits.
    pub(crate) fn post(&self, peer: u32, kind: u16, payload: &[u8], fds: Vec<OwnedFd>) -> Result<()> {
        if self.forked() {
            return Err(Error::usage("post", "control links do not survive fork"));
        }
        let link = {
            let mut state = lock(&self.state);
            let monitored = state.links[peer as usize].first_mut();
            monitored.map(|monitored| {
                monitored.say(Instant::now());
                monitored.link.clone()
            })
        };
        let Some(link) = link else {
            // A peer that has left or is lost has none: that is the better reason.
            self.check_reach("post", peer)?;
            return Err(Error::peer_lost("post", peer, "there is no control link to it"));
        };
        let posted = link.post_fds(kind, payload, fds);
        if let Err(error) = &posted
            && error.kind() == ErrorKind::Remote
        {
            // The peer has not read for 64 MiB: it will not read again.
            self.lose(peer, error.message());
        }
        posted
    }

    /// Sends the messages about membership that wait, to ranks to which there are links.
    pub(super) fn send_membership(&self) {
        let outbox = lock(&self.state).membership.take_outbox();
        for (to, envelope) in outbox {
            self.send_one(to, &envelope);
        }
    }

    pub(super) fn send_one(&self, to: u32, envelope: &Envelope) {
        let payload = envelope.encode();
        if let Message::Vote(_) = envelope.message {
            // On every link: the peer must have read it when the last of them ends.
            let links: Vec<_> =
                lock(&self.state).links[to as usize].iter().map(|monitored| monitored.link.clone()).collect();
            for link in links {
                if let Err(error) = link.post(frames::MEMBERSHIP, &payload) {
                    log::debug!("cannot tell rank {to} of a vote: {error}");
                }
            }
        } else if let Err(error) = self.post(to, frames::MEMBERSHIP, &payload, Vec::new()) {
            log::debug!("cannot tell rank {to} about membership: {error}");
        }
    }

    /// The peer is lost: aborts, remembers why, and cuts it off.
    pub(crate) fn lose(&self, peer: u32, why: impl std::fmt::Display) {
        self.lose_after(peer, why, false);
    }

    /// `heard_out`: a link has ended and all that came on it was read, so that the end of the peer's process is evidence.
    fn lose_after(&self, peer: u32, why: impl std::fmt::Display, heard_out: bool) {
        let why = why.to_string();
        // An error about the peer says that itself.
        let why = why.strip_prefix(&format!("rank {peer} was lost: ")).unwrap_or(&why);
        let why = format!("{why} (noticed by rank {})", self.rank);
        let gap = {
            let state = lock(&self.state);
            if self.has_left() || state.peer_states[peer as usize].is_gone() {
                return;
            }
            state.watch.given_up(Instant::now())
        };
        // A stopped process finds its links closed when it runs again: it is the one that was lost.
        if let Some(gap) = gap {
            let gap = gap.as_secs_f64();
            self.is_lost(&format!(
                "it did not run for {gap:.1} s, and rank {peer} is not there any more: {why}"
            ));
        }
        self.part_with(peer, &AbortCause::peer_lost(peer, why), heard_out);
    }

    /// There is no path to `peer` any more: ends everything, and tells everyone, unless this rank was given up itself and
    /// should blame nobody.
    fn part_with(&self, peer: u32, cause: &AbortCause, heard_out: bool) {
        let blames = lock(&self.state).given_up.is_none();
        // Before the peer counts as gone here: a caller that finds it gone must find the reason, too.
        let told = blames && self.abort.abort(cause.clone());
        let (links, passed_on) = {
            let mut state = lock(&self.state);
            if self.has_left() || state.peer_states[peer as usize].is_gone() {
                return;
            }
            let passed_on = matches!(state.peer_states[peer as usize], PeerState::Suspected(_));
            let links = state.lose(self.rank, peer, cause, heard_out);
            self.tell_gone(peer);
            self.wake(&mut state);
            (links, passed_on)
        };
        self.send_membership();
        if blames {
            say(&links, cause);
        }
        links.iter().for_each(Link::close);
        if blames && !told && !passed_on {
            // The abort had another cause, and told the others only that one.
            self.tell_all(cause);
        }
    }

    /// Rank `from` says that it, or another one, has failed.
    pub(super) fn hear_failure(&self, from: u32, cause: AbortCause) {
        match (cause.kind, cause.rank) {
            (ErrorKind::PeerLost, Some(rank)) if rank == self.rank => {
                lock(&self.state).given_up_by.insert(from);
                self.is_lost(&cause.reason);
            }
            (ErrorKind::PeerLost, Some(rank)) => self.suspect(rank, &cause),
            _ => drop(self.abort.abort(cause)),
        }
    }

    /// Another rank has lost `peer`, which ends the communicator. A path from here to it is given up only if it, too, has
    /// been silent for a while: the path from there may be all that is broken.
    fn suspect(&self, peer: u32, cause: &AbortCause) {
        let silent = {
            let state = lock(&self.state);
            let now = Instant::now();
            let mut links = state.links[peer as usize].iter();
            links.len() > 0 && links.all(|monitored| state.doubt.silence(monitored, now).is_some())
        };
        if silent {
            return self.part_with(peer, cause, false);
        }
        let told = self.abort.abort(cause.clone());
        {
            let mut state = lock(&self.state);
            if self.has_left() || state.peer_states[peer as usize].is_failed() {
                return;
            }
            state.peer_states[peer as usize] = PeerState::Suspected(cause.reason.clone());
            self.wake(&mut state);
        }
        if !told {
            self.tell_all(cause);
        }
    }

    /// Others have given this rank up.
    fn is_lost(&self, why: &str) {
        let reason = format!(
            "others have given up this process, which is rank {}: {why}; see why it did not run, or what broke its network",
            self.rank
        );
        lock(&self.state).given_up.get_or_insert_with(|| reason.clone());
        self.abort.abort(AbortCause::peer_lost(self.rank, reason));
    }

    /// `link` carries nothing more: after a BYE, or because it ended for the reason `why`.
    pub(super) fn end(&self, link: &Link, why: Option<&Error>) {
        let peer = link.peer().from;
        let mut state = lock(&self.state);
        let Some(links) = state.links.get_mut(peer as usize) else { return };
        links.retain(|known| known.link.id() != link.id());
        let last = links.is_empty();
        match (&state.peer_states[peer as usize], why) {
            (PeerState::Present | PeerState::Suspected(_), Some(why)) => {
                drop(state);
                // Other errors end a link that may still have something to read.
                return self.lose_after(peer, why.message(), why.kind() == ErrorKind::PeerLost);
            }
            (PeerState::Present | PeerState::Suspected(_) | PeerState::Leaving, _) if last => {
                state.peer_states[peer as usize] = PeerState::Left { at: Instant::now(), told: false };
            }
            (PeerState::Present | PeerState::Suspected(_), _) => {
                state.peer_states[peer as usize] = PeerState::Leaving
            }
            _ => return,
        }
        if last {
            self.tell_gone(peer);
            state.membership.left(peer);
        }
        self.wake(&mut state);
        drop(state);
        self.send_membership();
    }

    fn tell_all(&self, cause: &AbortCause) {
        let links = lock(&self.state).all_links();
        self.tell(&links, cause);
    }

    /// Tells those at the other ends of `links` of a failure.
    pub(super) fn tell(&self, links: &[Link], cause: &AbortCause) {
        // The rank that gave this one up tells the others itself.
        if (cause.kind, cause.rank) != (ErrorKind::PeerLost, Some(self.rank)) {
            say(links, cause);
        }
    }
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
        // A rank that has left in good order takes nobody with it. Leaving tells of a failure that came before.
        if !self.has_left() {
            self.tell_all(cause);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::group::links::tests::{recorded, wait_for};
    use crate::net::heartbeat::Monitor;

    /// Its peers have closed their links meanwhile.
    #[test]
    fn a_rank_that_did_not_run_for_so_long_that_others_gave_it_up_blames_nobody() {
        const PATIENCE: Duration = Duration::from_secs(60);
        for (gap, blamed) in [(PATIENCE / 2, 2), (PATIENCE, 0)] {
            let (links, _recorders) = recorded(3);
            let control = links[0].control();
            {
                let mut state = lock(&control.state);
                state.watch = Monitor::new(Some(PATIENCE));
                state.watch.look(Instant::now() + gap, std::iter::empty());
            }
            control.lose(2, "it has gone");
            assert_eq!(control.abort().cause().and_then(|cause| cause.rank), Some(blamed), "{gap:?}");
        }
    }

    /// The members that make the next generation with it begin anew, and do not wait for it.
    #[test]
    fn a_generation_that_is_being_made_is_superseded_when_a_member_is_lost() {
        let (links, _recorders) = recorded(3);
        let control = links[0].control();
        wait_for("the links are there", || !control.is_superseded(1));
        control.lose(2, "it has gone");
        assert!(control.is_superseded(1));
    }
}
