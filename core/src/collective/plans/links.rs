//! A rank's channels to ranks of its host and of others.
//!
//! A port channel's put reads its source after the block has asked for it, so each call ends with a flush: then the caller may write
//! its buffers. One block asks and waits for ports; the others meet it where they use what has come, or where it sends what they have
//! made.

use super::hosts::Hosts;
use super::shape::{Shape, exchange};
use crate::plan::program::{Chunk, MemoryChannel, PortChannel, Rank, SyncType};

/// The block that asks and waits for ports.
const ASKS: u32 = 0;

/// A rank's channels to some of the others.
pub(super) struct Links<'p> {
    rank: Rank<'p>,
    blocks: u32,
    /// To ranks of the same host, of each block its own.
    near: Vec<Vec<MemoryChannel<'p>>>,
    far: Vec<PortChannel<'p>>,
}

impl<'p> Links<'p> {
    pub(super) fn new(shape: &Shape, hosts: &Hosts, rank: Rank<'p>, peers: &[u32]) -> Self {
        let (near, far): (Vec<u32>, Vec<u32>) =
            peers.iter().partition(|&&peer| hosts.share(rank.index(), peer));
        let far = far.into_iter().map(|peer| rank.port_channel(peer)).collect();
        Self { rank, blocks: shape.blocks, near: shape.channels(&rank, &near), far }
    }

    /// Waits until all these ranks have begun the call.
    pub(super) fn begin(&self) {
        self.tell();
        self.told();
    }

    /// Tells the ranks of other hosts that this one has begun the call. What takes longest begins first.
    pub(super) fn tell(&self) {
        self.far.iter().for_each(|channel| channel.relaxed_signal(ASKS, SyncType::None));
    }

    /// The rest of [`begin`](Self::begin).
    pub(super) fn told(&self) {
        for (block, channels) in (0..).zip(&self.near) {
            channels.iter().for_each(|channel| channel.relaxed_signal(block, SyncType::None));
            channels.iter().for_each(|channel| channel.wait(block, SyncType::After));
        }
        self.far.iter().for_each(|channel| channel.wait(ASKS, SyncType::After));
    }

    /// Puts to each of these ranks what `what` says: the chunk there, and the one here.
    pub(super) fn put(&self, shape: &Shape, what: impl Fn(u32) -> Option<(Chunk, Chunk)>) {
        // First, so that proxies work beside the kernel.
        for channel in &self.far {
            if let Some((there, here)) = what(channel.peer()) {
                channel.put_with_signal(there, here, ASKS);
            }
        }
        for channel in self.near.first().into_iter().flatten() {
            if let Some((there, here)) = what(channel.peer()) {
                channel.put(there, here, &shape.group());
            }
        }
    }

    /// Waits until what these ranks have put has come; those of other hosts put something if `sends` says so.
    pub(super) fn come(&self, sends: impl Fn(u32) -> bool) {
        exchange(0.., &self.near);
        self.far
            .iter()
            .filter(|channel| sends(channel.peer()))
            .for_each(|channel| channel.wait(ASKS, SyncType::After));
        self.meet();
    }

    /// Orders what one block does behind this after what all have done before it.
    pub(super) fn meet(&self) {
        if !self.far.is_empty() {
            self.rank.barrier(0..self.blocks);
        }
    }

    /// Waits until ports have read what they were asked to send.
    pub(super) fn end(&self) {
        self.far.iter().for_each(|channel| channel.flush(ASKS, SyncType::None));
    }
}
