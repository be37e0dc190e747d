//! Signs of life, and what kernels that wait for a rank are told when it has left.
#![forbid(unsafe_code)]

use std::time::Instant;

use super::shared::Control;
use super::state::State;
use crate::group::frames;
use crate::group::peer_state::{GRACE, PeerState};
use crate::sync::{Ordering, lock};

impl Control {
    /// Called from time to time: tells kernels that wait for a rank that has left, gives signs of life and looks for
    /// those of others.
    pub(super) fn tick(&self) {
        let (mut departed, mut quiet, mut silent) = (Vec::new(), Vec::new(), Vec::new());
        {
            let mut state = lock(&self.state);
            if self.has_left() {
                let over = state.left_at.take_if(|at| at.elapsed() >= GRACE).is_some();
                let size = state.size();
                drop(state);
                // Signals that kernels of this rank still wait for can no longer come.
                if over {
                    // First: whoever finds a kernel gone must find this, too.
                    self.dismissed.store(true, Ordering::Release);
                    (0..size).for_each(|rank| self.waiters.dismiss(rank));
                }
                return self.notice_abandoned();
            }
            let now = Instant::now();
            let State { peer_states, links, watch, .. } = &mut *state;
            watch.look(now, links.iter_mut().flatten());
            for (rank, peer_state) in (0..).zip(peer_states) {
                if let PeerState::Left { at, told: told @ false } = peer_state
                    && at.elapsed() >= GRACE
                {
                    *told = true;
                    departed.push(rank);
                }
            }
            for monitored in links.iter_mut().flatten() {
                if let Some(silence) = watch.silence(monitored, now) {
                    silent.push((monitored.link.peer().from, silence));
                } else if watch.is_on() && monitored.beat(now) {
                    quiet.push(monitored.link.clone());
                }
            }
        }
        for link in quiet {
            if let Err(error) = link.post(frames::HEARTBEAT, &[]) {
                log::debug!("cannot give rank {} a sign of life: {error}", link.peer().from);
            }
        }
        for (peer, why) in silent {
            self.lose(peer, why);
        }
        for rank in departed {
            self.dismissed.store(true, Ordering::Release);
            self.waiters.dismiss(rank);
        }
        self.notice_abandoned();
    }
}
