//! Who is still there: signs of life, and kernels that wait for a rank that has left.
#![forbid(unsafe_code)]

use std::time::Instant;

use super::{Control, State};
use crate::abort::AbortCause;
use crate::group::frames;
use crate::group::standing::{GRACE, Standing};
use crate::net::Link;
use crate::sync::{Ordering, lock};

impl Control {
    /// Called from time to time: tells kernels that wait for a rank that has left, gives signs of life and looks for
    /// those of others.
    pub(super) fn tick(&self) {
        let (mut departed, mut quiet, mut silent) = (Vec::new(), Vec::new(), Vec::new());
        {
            let mut state = lock(&self.state);
            if state.leaving {
                return;
            }
            let now = Instant::now();
            let State { standing, lines, watch, .. } = &mut *state;
            watch.look(now, lines.iter_mut().flatten());
            for (rank, standing) in (0..).zip(standing) {
                if let Standing::Left { at, told: told @ false } = standing
                    && at.elapsed() >= GRACE
                {
                    *told = true;
                    departed.push(rank);
                }
            }
            for line in lines.iter_mut().flatten() {
                if let Some(silence) = watch.silence(line, now) {
                    silent.push((line.link.peer().from, silence));
                } else if watch.is_on() && line.beat(now) {
                    quiet.push(line.link.clone());
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
            self.waiters.dismiss(rank);
            self.dismissed.store(true, Ordering::Relaxed);
        }
        self.notice_abandoned();
    }

    /// Aborts if a kernel has left because the rank that it waited for had.
    #[inline]
    pub(super) fn notice_abandoned(&self) {
        if self.dismissed.load(Ordering::Relaxed) && !self.abort.is_aborted() {
            self.look_for_abandoned();
        }
    }

    #[cold]
    fn look_for_abandoned(&self) {
        let Some(awaited) = self.waiters.abandoned() else { return };
        let departed = {
            let state = lock(&self.state);
            let left = |rank: u32| matches!(state.standing.get(rank as usize), Some(Standing::Left { .. }));
            awaited.filter(|rank| left(*rank)).or_else(|| (0..state.size()).find(|rank| left(*rank)))
        };
        if let Some(rank) = departed {
            let reason = format!(
                "it left the communicator in good order while a kernel of rank {} waited for it; let all ranks finish \
                 their work before one leaves",
                self.rank
            );
            self.abort.abort(AbortCause::peer_lost(rank, reason));
        }
    }
}

impl State {
    pub(super) fn hear(&mut self, link: &Link) {
        let mut lines = self.lines[link.peer().from as usize].iter_mut();
        if let Some(line) = lines.find(|line| line.link.id() == link.id()) {
            line.hear(Instant::now());
        }
    }
}
