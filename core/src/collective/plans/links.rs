//! A rank's channels to some of the others: memory channels within its host, port channels to other hosts.
//!
//! A port channel's put reads its source after the block has asked for it, so each call ends with a flush: then the caller may write
//! its buffers. One block asks and waits for ports; the others meet it where they use what has come, or where it sends what they have
//! made.

use super::hosts::Hosts;
use super::shape::{Shape, exchange};
use crate::plan::program::{Blocks, Chunk, MemoryChannel, PortChannel, Rank, SyncType};

/// The block that asks and waits for ports.
const ASKS: u32 = 0;

/// Channels to ranks of the same host, of each block its own.
pub(super) struct Near<'p> {
    channels: Vec<Vec<MemoryChannel<'p>>>,
}

/// Channels to ranks of other hosts.
pub(super) struct Far<'p> {
    rank: Rank<'p>,
    blocks: u32,
    channels: Vec<PortChannel<'p>>,
}

/// Channels to these peers, by which of them share the rank's host.
pub(super) fn links<'p>(shape: &Shape, hosts: &Hosts, rank: Rank<'p>, peers: &[u32]) -> (Near<'p>, Far<'p>) {
    let (near, far): (Vec<u32>, Vec<u32>) = peers.iter().partition(|&&peer| hosts.share(rank.index(), peer));
    let channels = far.into_iter().map(|peer| rank.port_channel(peer)).collect();
    (Near { channels: shape.channels(&rank, &near) }, Far { rank, blocks: shape.blocks, channels })
}

/// The beginning of a plan whose parts have sizes of their own: each rank tells all others that it has begun, with its rows, and has heard
/// the same of all. Within one host, each block meets those of its number; otherwise one block meets all ranks for the others.
pub(super) fn meet_with_rows(near: &Near<'_>, far: &Far<'_>) {
    if far.channels.is_empty() {
        return near.begin();
    }
    far.tell(|_| true);
    let channels = near.channels.get(ASKS as usize).into_iter().flatten();
    channels.clone().for_each(|channel| channel.relaxed_signal(ASKS, SyncType::None));
    channels.for_each(|channel| channel.wait(ASKS, SyncType::After));
    far.told(|_| true);
    far.meet();
}

impl Near<'_> {
    /// Tells these ranks that this one has begun the call, and waits until they have told it.
    pub(super) fn begin(&self) {
        for (block, channels) in (0..).zip(&self.channels) {
            channels.iter().for_each(|channel| channel.relaxed_signal(block, SyncType::None));
            channels.iter().for_each(|channel| channel.wait(block, SyncType::After));
        }
    }

    /// Has blocks put to each of these ranks what `what` says: the chunk there, and the one here.
    pub(super) fn put(&self, blocks: Blocks<'_>, what: impl Fn(u32) -> Option<(Chunk, Chunk)>) {
        for channel in self.channels.first().into_iter().flatten() {
            if let Some((there, here)) = what(channel.peer()) {
                channel.put(there, here, blocks);
            }
        }
    }

    /// Each block waits until the block of its number has put everything at these ranks.
    pub(super) fn come(&self) {
        exchange(0.., &self.channels);
    }
}

impl Far<'_> {
    /// Tells ranks that write to this one that it has begun the call.
    pub(super) fn tell(&self, writes: impl Fn(u32) -> bool) {
        let writers = self.channels.iter().filter(|channel| writes(channel.peer()));
        writers.for_each(|channel| channel.relaxed_signal(ASKS, SyncType::None));
    }

    /// Waits until ranks that this one writes to have begun the call.
    pub(super) fn told(&self, is_written: impl Fn(u32) -> bool) {
        let written = self.channels.iter().filter(|channel| is_written(channel.peer()));
        written.for_each(|channel| channel.wait(ASKS, SyncType::After));
    }

    /// Puts to each of these ranks what `what` says: the chunk there, and the one here.
    pub(super) fn put(&self, what: impl Fn(u32) -> Option<(Chunk, Chunk)>) {
        for channel in &self.channels {
            if let Some((there, here)) = what(channel.peer()) {
                channel.put_with_signal(there, here, ASKS);
            }
        }
    }

    /// All blocks wait until what ranks have put has come from those that put something.
    pub(super) fn come(&self, puts: impl Fn(u32) -> bool) {
        let putters = self.channels.iter().filter(|channel| puts(channel.peer()));
        putters.for_each(|channel| channel.wait(ASKS, SyncType::After));
        self.meet();
    }

    /// Orders what one block does behind this after what all have done before it, and the other way round.
    pub(super) fn meet(&self) {
        if !self.channels.is_empty() {
            self.rank.barrier(0..self.blocks);
        }
    }

    /// Waits until ports have read what they were asked to send.
    pub(super) fn end(&self) {
        self.channels.iter().for_each(|channel| channel.flush(ASKS, SyncType::None));
    }
}
