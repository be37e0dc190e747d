//! How sizes of a collective relate.

use aqueduct::plan::{Kind, Plan};

use super::data::{Call, Expected};

/// How sizes of a collective relate. A size is that of the larger of a rank's two buffers, as nccl-tests has it.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    kind: Kind,
    ranks: usize,
    /// A size is a multiple of so many elements.
    grain: u64,
    /// Chunks of the input and the output of a collective of the author's own; of an input that no rank has, those of the output.
    chunks: [usize; 2],
}

impl Shape {
    pub(super) fn of_plan(plan: &Plan, ranks: u32) -> Self {
        let most = |count: fn(&aqueduct::plan::RankPlan) -> u32| {
            u64::from(plan.ranks.iter().map(count).max().unwrap_or(0)).max(1)
        };
        let (input, output) = (most(|rank| rank.input_chunks), most(|rank| rank.output_chunks));
        let none = plan.ranks.iter().all(|rank| rank.input_chunks == 0);
        let results = plan.ranks.iter().map(|rank| rank.output_chunks as usize).max().unwrap_or(0);
        let chunks = [if none { output } else { input } as usize, results];
        Self { chunks, ..Self::new(plan.collective.kind.clone(), ranks, input.max(output)) }
    }

    /// Of a built-in collective.
    pub(super) fn built_in(kind: Kind, ranks: u32) -> Self {
        Self::new(kind, ranks, u64::from(ranks))
    }

    /// Of a collective whose buffers have up to `chunks` chunks.
    fn new(kind: Kind, ranks: u32, chunks: u64) -> Self {
        let grain = match kind {
            Kind::AllReduce | Kind::Broadcast { .. } | Kind::Reduce { .. } | Kind::SendRecv => 1,
            _ => chunks,
        };
        Self { kind, ranks: ranks.max(1) as usize, grain, chunks: [1; 2] }
    }

    pub(super) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// A size is a multiple of so many elements.
    pub(super) fn grain(&self) -> u64 {
        self.grain
    }

    /// Whether data is combined.
    pub(super) fn reduces(&self) -> bool {
        matches!(self.kind, Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce { .. } | Kind::Custom(_))
    }

    /// Bytes of a rank's input and output.
    pub(super) fn buffers(&self, bytes: usize) -> (usize, usize) {
        match self.kind {
            Kind::AllGather | Kind::Gather { .. } => (bytes / self.ranks, bytes),
            Kind::ReduceScatter | Kind::Scatter { .. } => (bytes, bytes / self.ranks),
            Kind::Custom(_) => {
                let chunk = bytes / self.chunks[0].max(self.chunks[1]);
                (self.chunks[0] * chunk, self.chunks[1] * chunk)
            }
            _ => (bytes, bytes),
        }
    }

    /// Where input and output begin in one buffer that holds both.
    pub(super) fn in_place(&self, rank: usize, bytes: usize) -> (usize, usize) {
        let (input, output) = self.buffers(bytes);
        match self.kind {
            Kind::AllGather => (rank * input, 0),
            Kind::ReduceScatter => (0, rank * output),
            Kind::Gather { root } if root as usize == rank => (rank * input, 0),
            Kind::Scatter { root } if root as usize == rank => (0, rank * output),
            _ => (0, 0),
        }
    }

    /// Parts of a rank's output in bytes, the data that each must be, and the element that the part's data begins with.
    pub(super) fn expected(
        &self,
        call: &Call,
        rank: usize,
        bytes: usize,
    ) -> Vec<(usize, usize, Expected, u64)> {
        let (_, output) = self.buffers(bytes);
        let element = call.ty.bytes();
        let of = |rank: usize| call.operand(rank as u32);
        let parts = |each: usize, start: u64| {
            (0..self.ranks).map(move |peer| (peer * each, each, call.operand(peer as u32), start)).collect()
        };
        let whole = |expected: Expected, start: usize| vec![(0, output, expected, (start / element) as u64)];
        match self.kind {
            Kind::AllReduce => whole(call.result(), 0),
            Kind::AllGather => parts(bytes / self.ranks, 0),
            Kind::Gather { root } if root as usize == rank => parts(bytes / self.ranks, 0),
            Kind::Scatter { root } => {
                vec![(0, output, of(root as usize), (rank * output / element) as u64)]
            }
            Kind::ReduceScatter => whole(call.result(), rank * output),
            Kind::AllToAll => {
                let each = bytes / self.ranks;
                parts(each, (rank * each / element) as u64)
            }
            Kind::Broadcast { root } => whole(of(root as usize), 0),
            Kind::Reduce { root } if root as usize == rank => whole(call.result(), 0),
            Kind::SendRecv => whole(of((rank + self.ranks - 1) % self.ranks), 0),
            Kind::Reduce { .. } | Kind::Gather { .. } | Kind::Custom(_) => Vec::new(),
        }
    }

    /// Bytes that cross a rank's link for each byte of a call, as nccl-tests counts them.
    pub(super) fn bus_factor(&self) -> f64 {
        let others = (self.ranks as f64 - 1.0) / self.ranks as f64;
        match self.kind {
            Kind::AllReduce => 2.0 * others,
            Kind::AllGather
            | Kind::ReduceScatter
            | Kind::AllToAll
            | Kind::Gather { .. }
            | Kind::Scatter { .. } => others,
            _ => 1.0,
        }
    }
}
