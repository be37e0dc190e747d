//! Ranks without devices become a group, so that the start of a job can be measured with more ranks than devices.
#![forbid(unsafe_code)]

use std::sync::Arc;

use aqueduct_ptx::abi::ABI_VERSION;

use crate::abort::Abort;
use crate::bootstrap::Bootstrap;
use crate::comm::config::CommunicatorConfig;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::group::control::Member;
use crate::group::peer::DeviceIdentity;
use crate::group::subscriber::Subscribers;
use crate::group::wire_up::{Description, Introduction, NoKernels};
use crate::memory::registry;

impl Introduction {
    /// Tells all ranks of `bootstrap` about this one and its `device`, if it has one, and learns about them. Collective: a broadcast
    /// and an all-gather, about ceil(log2(size)) messages per rank.
    ///
    /// # Errors
    /// As for [`Communicator::new`](super::Communicator::new).
    pub fn new(
        bootstrap: &dyn Bootstrap,
        device: Option<DeviceIdentity>,
        config: &CommunicatorConfig,
        deadline: Deadline,
    ) -> Result<Self> {
        let (abort, subscribers) = (Abort::new(), Subscribers::default());
        let member = Member { abort, waiters: Arc::new(NoKernels), subscribers, succeeds: false };
        let process = registry::process_number()?;
        let description = Description { device, process, abi: ABI_VERSION };
        Self::with(bootstrap, description, &config.of_group(), member, deadline)
    }
}
