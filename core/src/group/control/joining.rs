//! Taking links into use, and saying BYE on them.
#![forbid(unsafe_code)]

use std::time::Instant;

use super::shared::Control;
use crate::abort::AbortCause;
use crate::group::frames;
use crate::group::peer_state::PeerState;
use crate::net::Link;
use crate::net::heartbeat::MonitoredLink;
use crate::sync::{Ordering, lock};

impl Control {
    /// Takes a link into use. False if it is from nobody we know, or from a rank that was given up.
    pub(crate) fn adopt(&self, link: &Link) -> bool {
        let mut state = lock(&self.state);
        let peer = link.peer().from;
        let known = state.peer_states.get(peer as usize).filter(|_| peer != self.rank);
        if known.is_none_or(|peer_state| matches!(peer_state, PeerState::Lost(_))) {
            return false;
        }
        state.links[peer as usize].push(MonitoredLink::new(link.clone()));
        state.membership.linked(peer);
        self.wake(&mut state);
        // With the state locked, as `leave` sets it: either leaving finds the link in the list, or it is found here.
        let left = self.has_left().then(|| state.left_because.clone());
        drop(state);
        self.send_membership();
        let link = std::slice::from_ref(link);
        match left {
            Some(cause) => self.say_bye(link, cause.as_ref()),
            // After the link is in the list: either the abort finds it there, or it is found here.
            None => self.abort.cause().into_iter().for_each(|cause| self.tell(link, cause)),
        }
        true
    }

    /// [`leave`](Self::leave), because the program has closed the communicator.
    pub(crate) fn close(&self) -> Vec<Link> {
        self.closed.store(true, Ordering::Release);
        self.leave()
    }

    /// Says BYE on every link, once; on those that others open later, [`adopt`](Self::adopt) says it. The links it was said on.
    pub(crate) fn leave(&self) -> Vec<Link> {
        if self.forked() {
            return Vec::new();
        }
        let mut state = lock(&self.state);
        if self.left.swap(true, Ordering::AcqRel) {
            return Vec::new();
        }
        state.left_at = Some(Instant::now());
        let cause = self.abort.cause().cloned();
        state.left_because.clone_from(&cause);
        let links = state.all_links();
        state.membership.last_words();
        // Calls of other threads that wait for peers end now.
        self.wake(&mut state);
        drop(state);
        self.send_membership();
        self.say_bye(&links, cause.as_ref());
        links
    }

    /// If this rank has left because of a failure, peers hear of the failure before they read BYE, which means good order.
    fn say_bye(&self, links: &[Link], failure: Option<&AbortCause>) {
        if let Some(cause) = failure {
            self.tell(links, cause);
        }
        for link in links {
            if let Err(error) = link.post(frames::BYE, &[]) {
                log::debug!("cannot say BYE to rank {}: {error}", link.peer().from);
            }
        }
    }
}
