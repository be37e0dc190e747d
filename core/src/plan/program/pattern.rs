//! Collectives as a program's author names them: with ranks and chunks.

use super::collective::{Collective, Kind};

/// Which collective a program is, of how many ranks, and how many chunks its buffers have.
///
/// `chunk_factor` says how finely a message is cut: an all-reduce of n ranks has n * `chunk_factor` chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    pub(super) collective: Collective,
    pub(super) ranks: u32,
    pub(super) input_chunks: u32,
    pub(super) output_chunks: u32,
}

impl Pattern {
    /// Every rank gets the reduction of all inputs: n * `chunk_factor` chunks in and out.
    pub fn all_reduce(ranks: u32, chunk_factor: u32) -> Self {
        Self::even(Kind::AllReduce, ranks, ranks.saturating_mul(chunk_factor))
    }

    /// Every rank gets all inputs: `chunk_factor` chunks in, n times as many out.
    pub fn all_gather(ranks: u32, chunk_factor: u32) -> Self {
        Self::new(Kind::AllGather, ranks, chunk_factor, ranks.saturating_mul(chunk_factor))
    }

    /// Rank r gets part r of the reduction: n * `chunk_factor` chunks in, `chunk_factor` out.
    pub fn reduce_scatter(ranks: u32, chunk_factor: u32) -> Self {
        Self::new(Kind::ReduceScatter, ranks, ranks.saturating_mul(chunk_factor), chunk_factor)
    }

    /// Rank r gets part r of every input: n * `chunk_factor` chunks in and out.
    pub fn all_to_all(ranks: u32, chunk_factor: u32) -> Self {
        Self::even(Kind::AllToAll, ranks, ranks.saturating_mul(chunk_factor))
    }

    /// Every rank gets the input of `root`: n * `chunk_factor` chunks in and out.
    pub fn broadcast(ranks: u32, chunk_factor: u32, root: u32) -> Self {
        Self::even(Kind::Broadcast { root }, ranks, ranks.saturating_mul(chunk_factor))
    }

    /// `root` gets the reduction of all inputs: n * `chunk_factor` chunks in and out.
    pub fn reduce(ranks: u32, chunk_factor: u32, root: u32) -> Self {
        Self::even(Kind::Reduce { root }, ranks, ranks.saturating_mul(chunk_factor))
    }

    /// `root` gets all inputs: `chunk_factor` chunks in, n times as many out.
    pub fn gather(ranks: u32, chunk_factor: u32, root: u32) -> Self {
        Self::new(Kind::Gather { root }, ranks, chunk_factor, ranks.saturating_mul(chunk_factor))
    }

    /// Rank r gets part r of the input of `root`: n * `chunk_factor` chunks in, `chunk_factor` out.
    pub fn scatter(ranks: u32, chunk_factor: u32, root: u32) -> Self {
        Self::new(Kind::Scatter { root }, ranks, ranks.saturating_mul(chunk_factor), chunk_factor)
    }

    /// Every rank gets the input of the rank before it: `chunk_factor` chunks in and out.
    pub fn send_recv(ranks: u32, chunk_factor: u32) -> Self {
        Self::even(Kind::SendRecv, ranks, chunk_factor)
    }

    /// A collective of the author's own, of whose result checks know nothing.
    pub fn custom(name: impl Into<String>, ranks: u32, input_chunks: u32, output_chunks: u32) -> Self {
        Self::new(Kind::Custom(name.into()), ranks, input_chunks, output_chunks)
    }

    /// The same, where input and output are the same memory: in an all-gather or a gather the input is the rank's part of the output,
    /// in a reduce-scatter or a scatter the output is the rank's part of the input, otherwise both are the same chunks.
    #[must_use]
    pub fn in_place(mut self) -> Self {
        self.collective.in_place = true;
        self
    }

    /// The same, where input and output have so many chunks: an all-reduce, a broadcast and a reduce of a single step need not be
    /// cut for the ranks. Of no effect on the others, whose parts are the ranks'.
    #[must_use]
    pub fn cut_into(mut self, chunks: u32) -> Self {
        if self.collective.kind.divides_freely() {
            (self.input_chunks, self.output_chunks) = (chunks, chunks);
        }
        self
    }

    fn even(kind: Kind, ranks: u32, chunks: u32) -> Self {
        Self::new(kind, ranks, chunks, chunks)
    }

    fn new(kind: Kind, ranks: u32, input_chunks: u32, output_chunks: u32) -> Self {
        Self { collective: Collective { kind, in_place: false }, ranks, input_chunks, output_chunks }
    }
}
