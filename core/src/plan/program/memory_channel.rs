//! Memory channels: loads from and stores to a peer's memory.

use super::blocks::{Blocks, SyncType};
use super::chunk::{Chunk, Side, moved};
use super::end::End;
use super::ir::{ChannelKind, Form, Reduction};
use super::record::{Call, Recorder};

/// This rank's end of a channel through which its threads load from and store to the peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct MemoryChannel<'p> {
    end: End<'p>,
}

impl<'p> MemoryChannel<'p> {
    pub(super) fn new(call: Call, recorder: &'p Recorder, rank: u32, peer: u32) -> Self {
        Self { end: End::new(call, recorder, rank, peer, ChannelKind::Memory) }
    }

    /// The rank at the other end.
    pub fn peer(&self) -> u32 {
        self.end.peer
    }

    /// Adds one to the peer's count and publishes what the block had synced before.
    #[track_caller]
    pub fn signal(&self, tb: u32, sync: SyncType) {
        self.end.signal(Call::of("MemoryChannel::signal"), tb, sync, false);
    }

    /// Waits for one more signal of the peer and makes visible, from the next sync on, what it published.
    #[track_caller]
    pub fn wait(&self, tb: u32, sync: SyncType) {
        self.end.wait(Call::of("MemoryChannel::wait"), tb, sync);
    }

    /// A signal that publishes what the rank's stream did before the call, and nothing that the call has done: "this call has begun: you may
    /// read and write now", not "this is written".
    #[track_caller]
    pub fn relaxed_signal(&self, tb: u32, sync: SyncType) {
        self.end.signal(Call::of("MemoryChannel::relaxed_signal"), tb, sync, true);
    }

    /// Stores `src`, of this rank, to the peer's `dst`.
    #[track_caller]
    pub fn put<'b>(&self, dst: Chunk, src: Chunk, tb: impl Into<Blocks<'b>>) {
        let sides = (self.end.there(dst), self.end.here(src));
        self.move_one(Call::of("MemoryChannel::put"), sides, tb.into());
    }

    /// Loads the peer's `src` to `dst`, of this rank.
    #[track_caller]
    pub fn get<'b>(&self, dst: Chunk, src: Chunk, tb: impl Into<Blocks<'b>>) {
        let sides = (self.end.here(dst), self.end.there(src));
        self.move_one(Call::of("MemoryChannel::get"), sides, tb.into());
    }

    /// Stores `src` as packets to `dst` in the peer's scratch.
    #[track_caller]
    pub fn put_packets<'b>(&self, dst: Chunk, src: Chunk, tb: impl Into<Blocks<'b>>) {
        let sides = (packets(self.end.there(dst)), self.end.here(src));
        self.move_one(Call::of("MemoryChannel::put_packets"), sides, tb.into());
    }

    /// Waits for packets at `src`, in this rank's scratch, and stores them to `dst` in the peer's.
    #[track_caller]
    pub fn read_put_packets<'b>(&self, dst: Chunk, src: Chunk, tb: impl Into<Blocks<'b>>) {
        let sides = (packets(self.end.there(dst)), packets(self.end.here(src)));
        self.move_one(Call::of("MemoryChannel::read_put_packets"), sides, tb.into());
    }

    /// Reduces the peer's chunks into `dst`, of this rank, in that order: `dst = dst + remotes[0] + ..`.
    #[track_caller]
    pub fn reduce<'b>(
        &self,
        dst: Chunk,
        remotes: impl IntoIterator<Item = Chunk>,
        reduction: Reduction,
        tb: impl Into<Blocks<'b>>,
    ) {
        self.reduced(Call::of("MemoryChannel::reduce"), (dst, dst), remotes, reduction, tb.into());
    }

    /// Reduces `src`, of this rank, and the peer's chunks to `dst`, of this rank: `dst = src + remotes[0] + ..`.
    #[track_caller]
    pub fn reduce_to<'b>(
        &self,
        dst: Chunk,
        src: Chunk,
        remotes: impl IntoIterator<Item = Chunk>,
        reduction: Reduction,
        tb: impl Into<Blocks<'b>>,
    ) {
        self.reduced(Call::of("MemoryChannel::reduce_to"), (dst, src), remotes, reduction, tb.into());
    }

    fn move_one(&self, call: Call, (target, source): (Side, Side), blocks: Blocks<'_>) {
        let rank = self.end.rank;
        self.end.recorder.moved(call, rank, blocks, moved(rank, target, &[source], None));
    }

    fn reduced(
        &self,
        call: Call,
        (dst, src): (Chunk, Chunk),
        remotes: impl IntoIterator<Item = Chunk>,
        reduction: Reduction,
        blocks: Blocks<'_>,
    ) {
        let rank = self.end.rank;
        let remotes = remotes.into_iter().map(|chunk| self.end.there(chunk));
        let sources: Vec<Side> = std::iter::once(self.end.here(src)).chain(remotes).collect();
        let made = moved(rank, self.end.here(dst), &sources, Some(reduction));
        self.end.recorder.moved(call, rank, blocks, made);
    }
}

fn packets(side: Side) -> Side {
    Side { form: Form::Packets, ..side }
}
