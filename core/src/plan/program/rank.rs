//! A rank: its buffers, channels and semaphores, and operations on its own memory.

use super::blocks::Blocks;
use super::chunk::{Buffer, Chunk, Side, moved};
use super::ir::{Buffer as BufferType, Form, Move, RankPlan, Reduction};
use super::memory_channel::MemoryChannel;
use super::port_channel::PortChannel;
use super::record::{Call, Fault, Recorder};
use super::semaphore::Semaphore;

/// A rank of a program.
#[derive(Clone, Copy, Debug)]
pub struct Rank<'p> {
    pub(super) recorder: &'p Recorder,
    pub(super) index: u32,
}

impl<'p> Rank<'p> {
    /// Its number.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The numbers of all other ranks, beginning with the next one, so that ranks that go through them in step do not all
    /// reach for the same peer.
    pub fn peers(&self) -> impl Iterator<Item = u32> + use<> {
        let (index, ranks) = (self.index, self.recorder.ranks());
        (1..ranks).map(move |step| (index + step) % ranks)
    }

    /// Its input buffer.
    #[track_caller]
    pub fn input(&self) -> Buffer<'p> {
        self.message(Call::of("Rank::input"), BufferType::Input)
    }

    /// Its output buffer.
    #[track_caller]
    pub fn output(&self) -> Buffer<'p> {
        self.message(Call::of("Rank::output"), BufferType::Output)
    }

    /// A new buffer of that many chunks in its scratch, behind those made before. Memory of the library's, as large per chunk as
    /// chunks of the message, and kept between calls.
    #[track_caller]
    pub fn scratch(&self, chunks: u32) -> Buffer<'p> {
        let grown = |rank: &mut RankPlan| {
            let first = rank.scratch_chunks;
            let too_many = || format!("{first} scratch chunks and {chunks} more are too many");
            rank.scratch_chunks = first.checked_add(chunks).ok_or_else(too_many)?;
            Ok(first)
        };
        let first = self.recorder.declare(Call::of("Rank::scratch"), self.index, grown).unwrap_or(0);
        self.buffer(BufferType::Scratch, first, chunks)
    }

    /// A new memory channel to `peer`. The k-th from here to there pairs with the k-th from there to here.
    #[track_caller]
    pub fn memory_channel(&self, peer: u32) -> MemoryChannel<'p> {
        MemoryChannel::new(Call::of("Rank::memory_channel"), self.recorder, self.index, peer)
    }

    /// A new port channel to `peer`, paired like memory channels.
    #[track_caller]
    pub fn port_channel(&self, peer: u32) -> PortChannel<'p> {
        PortChannel::new(Call::of("Rank::port_channel"), self.recorder, self.index, peer)
    }

    /// A new semaphore between blocks of this rank.
    #[track_caller]
    pub fn semaphore(&self, initial_value: u32) -> Semaphore<'p> {
        Semaphore::new(Call::of("Rank::semaphore"), self.recorder, self.index, initial_value)
    }

    /// Gives block `tb` of this rank to a copy engine, wherever in the program this stands. Its copies (`copy`, `put`, `get` of plain
    /// data) are then done by the device's copy engines, one behind the other in a stream of the block's own, and its signals,
    /// waits and semaphores by a kernel of one warp between them: a large message moves at the full rate of the links and takes
    /// next to no multiprocessor. It cannot reduce, share a range, loop, meet others in a barrier or use packets, ports and switches;
    /// nor touch scratch in a program with double scratch.
    #[track_caller]
    pub fn copy_engine(&self, tb: u32) {
        self.recorder.copy_engine(Call::of("Rank::copy_engine"), self.index, tb);
    }

    /// All threads of these blocks have done what stands before when any begins what stands after. Of one block, its threads
    /// meet.
    #[track_caller]
    pub fn barrier(&self, blocks: impl IntoIterator<Item = u32>) {
        self.recorder.barrier(Call::of("Rank::barrier"), self.index, blocks.into_iter().collect());
    }

    /// Copies `src` to `dst`.
    #[track_caller]
    pub fn copy<'b>(&self, dst: Chunk, src: Chunk, tb: impl Into<Blocks<'b>>) {
        let made = self.made(self.plain(dst), &[self.plain(src)], None);
        self.recorder.moved(Call::of("Rank::copy"), self.index, tb.into(), made);
    }

    /// Copies data to packets in scratch.
    #[track_caller]
    pub fn copy_packets<'b>(&self, dst: Chunk, src: Chunk, tb: impl Into<Blocks<'b>>) {
        let made = self.made(self.packets(dst), &[self.plain(src)], None);
        self.recorder.moved(Call::of("Rank::copy_packets"), self.index, tb.into(), made);
    }

    /// Waits for packets in scratch and copies their data.
    #[track_caller]
    pub fn unpack_packets<'b>(&self, dst: Chunk, src: Chunk, tb: impl Into<Blocks<'b>>) {
        let made = self.made(self.plain(dst), &[self.packets(src)], None);
        self.recorder.moved(Call::of("Rank::unpack_packets"), self.index, tb.into(), made);
    }

    /// Reduces `others` into `dst`, in that order: `dst = dst + others[0] + ..`.
    #[track_caller]
    pub fn reduce<'b>(
        &self,
        dst: Chunk,
        others: impl IntoIterator<Item = Chunk>,
        reduction: Reduction,
        tb: impl Into<Blocks<'b>>,
    ) {
        let made = self.reduced(dst, dst, others, reduction, Self::plain);
        self.recorder.moved(Call::of("Rank::reduce"), self.index, tb.into(), made);
    }

    /// Reduces `src` and `others` to `dst`, in that order: `dst = src + others[0] + ..`.
    #[track_caller]
    pub fn reduce_to<'b>(
        &self,
        dst: Chunk,
        src: Chunk,
        others: impl IntoIterator<Item = Chunk>,
        reduction: Reduction,
        tb: impl Into<Blocks<'b>>,
    ) {
        let made = self.reduced(dst, src, others, reduction, Self::plain);
        self.recorder.moved(Call::of("Rank::reduce_to"), self.index, tb.into(), made);
    }

    /// Waits for `packets` in scratch and reduces their data into `dst`.
    #[track_caller]
    pub fn reduce_packets<'b>(
        &self,
        dst: Chunk,
        packets: impl IntoIterator<Item = Chunk>,
        reduction: Reduction,
        tb: impl Into<Blocks<'b>>,
    ) {
        let made = self.reduced(dst, dst, packets, reduction, Self::packets);
        self.recorder.moved(Call::of("Rank::reduce_packets"), self.index, tb.into(), made);
    }

    /// Waits for `packets` in scratch and reduces `src` and their data to `dst`.
    #[track_caller]
    pub fn reduce_packets_to<'b>(
        &self,
        dst: Chunk,
        src: Chunk,
        packets: impl IntoIterator<Item = Chunk>,
        reduction: Reduction,
        tb: impl Into<Blocks<'b>>,
    ) {
        let made = self.reduced(dst, src, packets, reduction, Self::packets);
        self.recorder.moved(Call::of("Rank::reduce_packets_to"), self.index, tb.into(), made);
    }

    /// Reduces `sources` to `dst`, in exactly that order, so that all ranks that reduce the same data get the same bits. Each is a
    /// chunk of this rank, plain or as packets in its scratch, or a plain one of a peer that this rank has a memory channel to;
    /// `dst` is of this rank or of such a peer.
    #[track_caller]
    pub fn reduce_in_order<'b>(
        &self,
        dst: Chunk,
        sources: impl IntoIterator<Item = (Chunk, Form)>,
        reduction: Reduction,
        tb: impl Into<Blocks<'b>>,
    ) {
        let sources: Vec<Side> =
            sources.into_iter().map(|(chunk, form)| Side { chunk, rank: chunk.rank(), form }).collect();
        let made = self.made(Side::plain(dst, dst.rank()), &sources, Some(reduction));
        self.recorder.moved(Call::of("Rank::reduce_in_order"), self.index, tb.into(), made);
    }

    fn message(&self, call: Call, buffer: BufferType) -> Buffer<'p> {
        let count = self.recorder.declare(call, self.index, |rank| Ok(rank.chunks(buffer)));
        self.buffer(buffer, 0, count.unwrap_or(0))
    }

    fn buffer(&self, buffer: BufferType, first: u32, count: u32) -> Buffer<'p> {
        Buffer { recorder: self.recorder, rank: self.index, buffer, first, count }
    }

    fn plain(&self, chunk: Chunk) -> Side {
        Side::plain(chunk, self.index)
    }

    fn packets(&self, chunk: Chunk) -> Side {
        Side::packets(chunk, self.index)
    }

    fn made(&self, target: Side, sources: &[Side], reduction: Option<Reduction>) -> Result<Move, Fault> {
        moved(self.index, target, sources, reduction)
    }

    fn reduced(
        &self,
        dst: Chunk,
        src: Chunk,
        others: impl IntoIterator<Item = Chunk>,
        reduction: Reduction,
        side: impl Fn(&Self, Chunk) -> Side,
    ) -> Result<Move, Fault> {
        let others = others.into_iter().map(|chunk| side(self, chunk));
        let sources: Vec<Side> = std::iter::once(self.plain(src)).chain(others).collect();
        self.made(self.plain(dst), &sources, Some(reduction))
    }
}
