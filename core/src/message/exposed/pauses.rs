//! Memory with which a device has refused to do something: it is not asked again for a moment.
//!
//! A message with long data is an exposure of its own, so the pause belongs to the allocation where there is one. Otherwise each message
//! of an allocation that cannot be registered would be a call of the kernel in vain, and cost others the registrations that make room.

use std::time::Duration;

use crate::deadline::Deadline;
use crate::message::one_sided::Exposure;

/// How long after a refusal the device is asked again.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// What a device has refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Memory of which windows show a part.
    Stock,
    /// A registration of the memory for the peer.
    Key,
}

/// The memory with which it has refused that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Allocation(u64),
    /// Nobody knows when other memory is freed, and what comes after it.
    Exposure(Exposure),
}

/// The pauses of all exposed memory.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    all: Vec<(Whose, Refused, Deadline)>,
}

impl Pauses {
    /// Begins one. Those that are over are forgotten.
    pub(super) fn begin(&mut self, whose: Whose, what: Refused) {
        self.all.retain(|(.., until)| !until.expired());
        self.all.push((whose, what, Deadline::after(RETRY)));
    }

    /// Whether `what` was refused for this memory a moment ago.
    pub(super) fn holds(&self, whose: Whose, what: Refused) -> bool {
        self.all.iter().any(|known| (known.0, known.1) == (whose, what) && !known.2.expired())
    }
}
