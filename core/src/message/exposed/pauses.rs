//! Memory with which a device has refused to do something: it is not asked again for a moment.
//!
//! A message with long data is an exposure of its own, so the pause belongs to the allocation where there is one. Otherwise each message
//! of an allocation that cannot be registered would be a call of the kernel in vain, and cost others the registrations that make room.

use std::collections::HashMap;
use std::time::Duration;

use crate::deadline::Deadline;
use crate::message::one_sided::Exposure;

/// How long after a refusal the device is asked again.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// A request that a device may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Refused {
    /// Memory of which windows show a part.
    Stock,
    /// A registration of the memory for the peer.
    Key,
}

/// The memory with which it has refused that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Whose {
    Allocation(u64),
    /// Nobody knows when other memory is freed, and what comes after it.
    Exposure(Exposure),
}

/// The pauses of all exposed memory.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    all: HashMap<(Whose, Refused), Deadline>,
    /// So many were left when those that are over were last forgotten.
    left: usize,
}

impl Pauses {
    /// Begins one.
    pub(super) fn begin(&mut self, whose: Whose, what: Refused) {
        // There may be one for each of many messages: to look at all of them each time would take longer than the messages.
        if self.all.len() >= 2 * self.left.max(32) {
            self.all.retain(|_, until| !until.expired());
            self.left = self.all.len();
        }
        self.all.insert((whose, what), Deadline::after(RETRY));
    }

    /// Whether `what` was refused for this memory a moment ago.
    pub(super) fn holds(&self, whose: Whose, what: Refused) -> bool {
        self.all.get(&(whose, what)).is_some_and(|until| !until.expired())
    }
}
