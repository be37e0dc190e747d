//! Settings of a collective.

use std::ops::RangeInclusive;

use crate::plan::{Element, ExecutorConfig, Plan, Reduction};

/// Settings of [`Collective::prepare`](super::Collective::prepare). Every rank must pass the same.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CollectiveConfig {
    pub(super) variants: Vec<(Element, Option<Reduction>)>,
    pub(super) plans: Vec<(Plan, RangeInclusive<u64>)>,
    pub(super) packet_bytes: Option<u64>,
    pub(super) staging_bytes: Option<usize>,
}

impl CollectiveConfig {
    /// The same with these element types and reductions, each of which is a kernel to compile for every plan. A collective that
    /// reduces needs at least one; one that only moves data needs none and moves every type.
    #[must_use]
    pub fn with_variants(mut self, variants: impl IntoIterator<Item = (Element, Reduction)>) -> Self {
        self.variants = variants.into_iter().map(|(element, op)| (element, Some(op))).collect();
        self
    }

    /// The same with a plan of the user's own for messages of these sizes, in bytes of the larger of a rank's two buffers. It serves
    /// the calls that it can: in place or not as it says, on shown buffers only if peers reach its buffers, and sizes
    /// that its chunks divide. Where several serve a call, the first one given does; where none does, a built-in plan.
    #[must_use]
    pub fn with_plan(mut self, plan: Plan, bytes: RangeInclusive<u64>) -> Self {
        self.plans.push((plan, bytes));
        self
    }

    /// The same with packets for messages of up to this many bytes of the larger of a rank's two buffers, which decides how much
    /// scratch they take. By default a limit that falls with the ranks.
    #[must_use]
    pub fn with_packet_bytes(mut self, bytes: u64) -> Self {
        self.packet_bytes = Some(bytes);
        self
    }

    /// The same with this many bytes of memory, for input and output each, through which large messages go whose buffers were not
    /// shown to the peers. By default 8 MiB, 256 KiB on the software device, at most a quarter of the communicator's scratch.
    #[must_use]
    pub fn with_staging_bytes(mut self, bytes: usize) -> Self {
        self.staging_bytes = Some(bytes);
        self
    }

    pub(super) fn executor(&self, max_bytes: Option<u64>) -> ExecutorConfig {
        let config = ExecutorConfig::default().with_variants(self.variants.iter().copied());
        match max_bytes {
            Some(bytes) => config.with_max_bytes(bytes),
            None => config,
        }
    }
}
