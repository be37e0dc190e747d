//! Peers that have ended, of whose operations nobody has been told, in their order, and what has come of their next lives.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use super::line::Line;
use super::links::Arrival;
use super::member::Member;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::sync::{Mutex, lock};

#[derive(Default)]
pub(super) struct Burials {
    /// In order; the first may be under way. Locked after the engine's arrivals.
    pub(super) queue: Mutex<VecDeque<Burial>>,
    /// Held by the thread that works on the queue.
    pub(super) at_it: Mutex<()>,
}

pub(super) struct Burial {
    pub(super) member: Arc<Member>,
    pub(super) lines: Vec<Arc<Line>>,
    pub(super) why: Error,
    /// Devices that copy have until then.
    pub(super) settled: Deadline,
    /// Links, and news of them, of later lives of this rank: served once this one has ended.
    pub(super) successors: VecDeque<(Arc<Member>, Arrival)>,
}

impl Burials {
    pub(super) fn add(&self, member: Arc<Member>, lines: Vec<Arc<Line>>, why: Error, settled: Deadline) {
        let successors = VecDeque::new();
        lock(&self.queue).push_back(Burial { member, lines, why, settled, successors });
    }

    /// Whether links of `member` wait for an earlier life to end.
    pub(super) fn hold(&self, member: &Arc<Member>) -> bool {
        let queue = lock(&self.queue);
        queue.iter().flat_map(|burial| &burial.successors).any(|(held, _)| Arc::ptr_eq(held, member))
    }

    /// The members whose links wait for an earlier life to end.
    pub(super) fn held(&self) -> Vec<Arc<Member>> {
        let queue = lock(&self.queue);
        queue.iter().flat_map(|burial| &burial.successors).map(|(member, _)| member.clone()).collect()
    }
}
