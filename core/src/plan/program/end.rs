//! This rank's end of a channel.

use super::blocks::SyncType;
use super::chunk::{Chunk, Side};
use super::ir::{Channel, ChannelKind, Op, RankPlan};
use super::record::{Call, Recorder};

/// This rank's end of a memory or port channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct End<'p> {
    pub(super) recorder: &'p Recorder,
    pub(super) rank: u32,
    pub(super) peer: u32,
    pub(super) channel: Channel,
}

impl<'p> End<'p> {
    pub(super) fn new(call: Call, recorder: &'p Recorder, rank: u32, peer: u32, kind: ChannelKind) -> Self {
        let known = recorder.known(peer);
        let added = recorder.declare(call, rank, |plan: &mut RankPlan| {
            known?;
            if peer == rank {
                return Err(format!("a channel of rank {rank} to itself; name another rank"));
            }
            let peers = match kind {
                ChannelKind::Memory => &mut plan.memory_channels,
                ChannelKind::Port => &mut plan.port_channels,
            };
            peers.push(peer);
            Ok(peers.len() - 1)
        });
        let index = added.and_then(|index| u32::try_from(index).ok()).unwrap_or(0);
        Self { recorder, rank, peer, channel: Channel { kind, index } }
    }

    pub(super) fn signal(&self, call: Call, tb: u32, sync: SyncType, relaxed: bool) {
        let op = Op::Signal { channel: self.channel, relaxed };
        self.recorder.op(call, (self.rank, tb), sync, Ok(op));
    }

    pub(super) fn wait(&self, call: Call, tb: u32, sync: SyncType) {
        let op = Op::Wait { channel: self.channel };
        self.recorder.op(call, (self.rank, tb), sync, Ok(op));
    }

    /// A chunk that must be of this rank.
    pub(super) fn here(&self, chunk: Chunk) -> Side {
        Side::plain(chunk, self.rank)
    }

    /// A chunk that must be of the peer.
    pub(super) fn there(&self, chunk: Chunk) -> Side {
        Side::plain(chunk, self.peer)
    }
}
