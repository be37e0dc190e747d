//! Synchronisation between blocks and ranks: syncs, barriers, signals, proxies.

use super::super::clock::{Epoch, Knowledge};
use super::super::ir::{Barrier, Channel};
use super::state::{Meeting, Run};

impl Run<'_> {
    /// Ends the interval: what the block did and learned is known from here on.
    pub(super) fn sync(&mut self, index: u32) {
        let timeline = self.timeline(index);
        let state = &mut self.blocks[index as usize];
        if let Some(pending) = state.pending.take() {
            state.control.join(&pending);
        }
        state.control.set(Epoch { timeline, event: state.event });
        state.base = state.control.clone();
    }

    pub(super) fn meet(&mut self, index: u32, barrier: Barrier) -> bool {
        let state = &self.blocks[index as usize];
        if state.at_barrier {
            return true;
        }
        self.sync(index);
        let state = &mut self.blocks[index as usize];
        state.at_barrier = true;
        let barriers = &mut self.ranks[state.rank as usize].barriers;
        let meeting = barriers
            .entry(barrier.id)
            .or_insert_with(|| Meeting { came: Vec::new(), know: state.base.clone() });
        meeting.know.join(&state.base);
        meeting.came.push(index);
        if meeting.came.len() < barrier.blocks as usize {
            return false;
        }
        let Some(Meeting { came, know }) = barriers.remove(&barrier.id) else { return true };
        for other in came {
            let state = &mut self.blocks[other as usize];
            (state.base, state.control) = (know.clone(), know.clone());
            if other != index {
                self.ready.push(other);
            }
        }
        true
    }

    pub(super) fn signal(&mut self, rank: u32, channel: Channel, know: Knowledge) {
        if let Some(other) = self.ends.other(self.ends.end(rank, channel)) {
            self.signals[other].push_back(know);
            self.ready.append(&mut self.signal_waiters[other]);
        }
    }

    /// Hands a request to a proxy, which learns what the block knows. Returns the proxy.
    pub(super) fn ask(&mut self, index: u32, channel: u32) -> usize {
        let state = &self.blocks[index as usize];
        let number = self.first_proxy[state.rank as usize] + channel as usize;
        let timeline = self.proxy_timeline(number);
        let proxy = &mut self.proxies[number];
        proxy.know.join(&state.control);
        proxy.event += 1;
        proxy.asked.push((index, state.event));
        proxy.know.set(Epoch { timeline, event: proxy.event });
        number
    }

    pub(super) fn flush(&mut self, index: u32, channel: u32) {
        let state = &mut self.blocks[index as usize];
        let proxy = &self.proxies[self.first_proxy[state.rank as usize] + channel as usize];
        state.control.join(&proxy.know);
    }
}
