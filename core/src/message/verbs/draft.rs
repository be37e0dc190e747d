//! A link in the making: a queue pair with its receives posted, before the peer is known.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::credits::{CREDITS, RECEIVES};
use super::memory::Slots;
use super::nic::Nic;
use super::offer::Offer;
use super::packet::PAYLOAD;
use super::reports::Watch;
use super::{PACKET, RECEIVE, longest_body};
use crate::error::Result;
use crate::message::head::Head;
use crate::rdma::{Access, CompletionChannel, CompletionQueue, Init, QpOptions, QueuePair, ReadyToSend};

/// The fewest slots for sends: with the receives, 64 KiB.
const MIN_SENDS: u32 = 14;

/// One end, before the other one is known.
#[derive(Debug)]
pub(in crate::message) struct Draft {
    // The queue pair ends before the memory of its receives.
    queue_pair: QueuePair<Init>,
    parts: Parts,
}

/// A queue pair that is connected, and what belongs to it.
#[derive(Debug)]
pub(in crate::message) struct VerbsLink {
    pub(super) queue_pair: QueuePair<ReadyToSend>,
    pub(super) parts: Parts,
    /// Whether the peer gives keys of its memory.
    pub(super) gives_keys: bool,
}

/// The memory and the completion queue of a link, besides its queue pair.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) completions: CompletionQueue,
    pub(super) channel: CompletionChannel,
    /// Receives first, then sends.
    pub(super) slots: Slots,
    pub(super) sends: u32,
    /// Requests that may be outstanding.
    pub(super) depth: u32,
    pub(super) longest: usize,
    pub(super) watch: Watch,
    pub(super) nic: Arc<Nic>,
}

impl Draft {
    /// An end on `nic` of a side that takes messages of `eager` bytes.
    ///
    /// # Errors
    /// Those of the device, for instance if too little memory may be locked.
    pub(in crate::message) fn new(nic: &Arc<Nic>, eager: usize) -> Result<Self> {
        let longest = longest_body(eager);
        // Twice the longest frame, so that one fits while the sends of another are not known to have ended.
        let sends = MIN_SENDS.max(2 * (Head::BYTES + longest).div_ceil(PAYLOAD) as u32);
        let most = nic.context.attributes().max_work_requests;
        let depth = (sends + 2 * CREDITS).min(most);
        let slots = Slots::new(&nic.domain, &nic.regions, RECEIVES + sends, PACKET)?;
        let channel = nic.context.completion_channel()?;
        // Each request may fail, and a failure completes although it was not signalled.
        let completions = nic.context.completion_queue_with(depth + RECEIVES, &channel)?;
        let options = QpOptions::default()
            .with_max_send(depth)
            .with_max_receive(RECEIVES)
            .with_max_inline(nic.inline as u32);
        let new = nic.domain.queue_pair(&options, &completions, &completions)?;
        let watch = nic.reports.link().watch(new.number(), Some(&completions));
        // No memory is registered for the peer to write to, and reads have pairs of their own. Writes of no bytes need the right
        // all the same.
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let queue_pair = new.init(&nic.port, &nic.settings, access)?;
        for slot in 0..RECEIVES {
            queue_pair.post_receive(RECEIVE | u64::from(slot), Some(slots.range(slot, PACKET)?))?;
        }
        let parts = Parts { completions, channel, slots, sends, depth, longest, watch, nic: nic.clone() };
        Ok(Self { queue_pair, parts })
    }

    /// The offer that the other end needs to connect to this one.
    pub(in crate::message) fn offer(&self) -> Offer {
        Offer { address: self.queue_pair.address() }
    }

    /// Connects it to the peer's.
    ///
    /// # Errors
    /// `InvalidUsage` if the two devices cannot reach each other; those of the device.
    pub(in crate::message) fn connect(self, theirs: &Offer) -> Result<VerbsLink> {
        let queue_pair = self.queue_pair.connect(&theirs.address)?.ready_to_send()?;
        let gives_keys = theirs.address.max_read_atomic > 0;
        Ok(VerbsLink { queue_pair, parts: self.parts, gives_keys })
    }
}
