//! The state that the control links keep: of each peer, of the links to it, and of what it has sent.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::mail::{Mail, Needs};
use crate::abort::AbortCause;
use crate::error::{Error, ErrorKind, Result};
use crate::group::membership::{Membership, Ranks};
use crate::group::peer::PeerInfo;
use crate::group::peer_state::PeerState;
use crate::net::Link;
use crate::net::heartbeat::{Monitor, MonitoredLink};

pub(super) struct State {
    pub(super) peer_states: Vec<PeerState>,
    /// Whether it was waited for that a peer which has closed a connection says that it leaves.
    pub(super) ended: Vec<bool>,
    pub(super) links: Vec<Vec<MonitoredLink>>,
    pub(super) watch: Monitor,
    /// Tells whether a path is silent enough to believe another rank that has lost its peer.
    pub(super) doubt: Monitor,
    pub(super) mail: Mail,
    pub(super) membership: Membership,
    /// The description of every rank, once all are known.
    pub(super) peers: Arc<[PeerInfo]>,
    /// Why others have given this rank up, once one has.
    pub(super) given_up: Option<String>,
    /// The ranks that said so themselves: their links end because of that, and not with their processes.
    pub(super) given_up_by: Ranks,
    /// Why this rank can be a member of no later group, once that is so.
    pub(super) outside: Option<String>,
    /// When this rank left in good order, until the kernels that still wait are told.
    pub(super) left_at: Option<Instant>,
    /// The failure that came before this rank left, if one did. Failures after it are no concern of the others.
    pub(super) left_because: Option<AbortCause>,
    /// Counts changes that a waiter may care about.
    pub(super) version: u64,
}

impl State {
    pub(super) fn new(rank: u32, size: u32, succeeds: bool, peer_timeout: Option<Duration>) -> Self {
        Self {
            peer_states: vec![PeerState::Present; size as usize],
            ended: vec![false; size as usize],
            links: vec![Vec::new(); size as usize],
            watch: Monitor::new(peer_timeout),
            doubt: Monitor::new(peer_timeout.map(|timeout| timeout / 2)),
            mail: Mail::default(),
            membership: Membership::new(rank, (0..size).collect(), succeeds),
            peers: Arc::default(),
            given_up: None,
            given_up_by: Ranks::new(),
            outside: None,
            left_at: None,
            left_because: None,
            version: 0,
        }
    }

    /// The first of `peers` that is there and has no link to us.
    pub(super) fn unlinked(&self, peers: &[u32]) -> Option<u32> {
        let there = |p: u32| !self.links[p as usize].is_empty() || self.peer_states[p as usize].is_failed();
        peers.iter().copied().find(|p| !there(*p))
    }

    pub(super) fn all_links(&self) -> Vec<Link> {
        self.links.iter().flatten().map(|monitored| monitored.link.clone()).collect()
    }

    pub(super) fn size(&self) -> u32 {
        u32::try_from(self.peer_states.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn check(&self, op: &'static str, peer: u32) -> Result<()> {
        self.peer_states[peer as usize].check(op, peer)
    }

    /// `link` has carried something.
    pub(super) fn hear(&mut self, link: &Link) {
        let mut links = self.links[link.peer().from as usize].iter_mut();
        if let Some(monitored) = links.find(|monitored| monitored.link.id() == link.id()) {
            monitored.hear(Instant::now());
        }
    }

    /// `Ok` while a group can be made.
    pub(super) fn check_needs(&self, needs: &Needs) -> Result<()> {
        let gone = |rank: &&u32| self.peer_states[**rank as usize].is_gone();
        if let Some(rank) = needs.ranks.iter().find(gone) {
            return self.check(needs.op, *rank);
        }
        match needs.generation {
            Some(generation) if self.membership.is_superseded(generation) => Err(Error::new(
                ErrorKind::PeerLost,
                needs.op,
                "another rank has lost a member and begins anew",
            )),
            _ => Ok(()),
        }
    }

    /// The ranks that are lost, or that another rank has lost.
    pub(super) fn lost(&self) -> impl Iterator<Item = u32> {
        let ranks = (0..).zip(&self.peer_states);
        let lost =
            |peer_state: &PeerState| matches!(peer_state, PeerState::Lost(_) | PeerState::Suspected(_));
        ranks.filter(move |(_, peer_state)| lost(peer_state)).map(|(rank, _)| rank)
    }

    /// Gives up every path from `me` to `peer`; the links to it. `heard_out`: all that the peer has said was read.
    pub(super) fn lose(&mut self, me: u32, peer: u32, cause: &AbortCause, heard_out: bool) -> Vec<Link> {
        let info = |rank: u32| self.peers.get(rank as usize);
        let ended = heard_out && info(peer).zip(info(me)).is_some_and(|(peer, me)| peer.has_ended(me));
        self.membership.lost(peer, ended && !self.given_up_by.contains(&peer));
        self.peer_states[peer as usize] = PeerState::Lost(cause.reason.clone());
        std::mem::take(&mut self.links[peer as usize]).into_iter().map(|monitored| monitored.link).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::birth::Birth;
    use crate::group::links::tests::{KIND, recorded, wait_for};
    use crate::group::membership::Verdict;
    use crate::group::peer::tests::info;
    use crate::sync::lock;

    #[test]
    fn whatever_comes_on_a_link_is_a_sign_of_life() {
        let (links, _recorders) = recorded(2);
        let monitor = Monitor::new(Some(Duration::from_secs(60)));
        let late = Instant::now() + Duration::from_secs(60);
        let is_silent = || {
            let state = lock(&links[0].control().state);
            monitor.silence(&state.links[1][0], late).is_some()
        };
        links[1].control().post(0, KIND, b"here", Vec::new()).unwrap();
        wait_for("the frame was not heard", || !is_silent());
    }

    /// It closed the link because it had given this rank up, and ended later: it may have gone on, and voted, in between.
    #[test]
    fn the_end_of_a_process_that_gave_this_rank_up_is_not_seen_to_be_its_death() {
        for given_up in [false, true] {
            let mut state = State::new(1, 2, false, None);
            state.membership.set_hosts(vec![0, 0]);
            let birth = Birth { namespace: 1, started: 1 };
            // No process has this number.
            let peer = |rank| PeerInfo { birth, pid: i32::MAX.cast_unsigned() - rank, ..info(rank, 2) };
            state.peers = [peer(0), peer(1)].into();
            if given_up {
                state.given_up_by.insert(0);
            }
            state.lose(1, 0, &AbortCause::peer_lost(0, "it has ended"), true);
            state.membership.call(Ranks::new());
            // Alone it may decide only if the lower rank counts no more.
            let decided = matches!(state.membership.verdict(), Verdict::Agreed { .. });
            assert_eq!(decided, !given_up);
        }
    }
}
