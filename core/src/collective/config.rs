//! Settings of a collective.

use super::plans::{Averages, in_place_differs};
use super::selector::PlanSelector;
use super::tuning::Tuning;
use crate::comm::{Communicator, Transport};
use crate::error::{Error, Result};
use crate::plan::{Element, ExecutorConfig, Kind, Plan, Reduction};

/// Settings of [`Collective::prepare`](super::Collective::prepare). Every rank must pass the same.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CollectiveConfig {
    pub(super) variants: Vec<(Element, Option<Reduction>)>,
    pub(super) plans: Vec<(Plan, PlanSelector)>,
    pub(super) packet_bytes: Option<u64>,
    pub(super) line_bytes: Option<u64>,
    pub(super) copy_bytes: Option<u64>,
    pub(super) push_bytes: Option<u64>,
    pub(super) staging_bytes: Option<usize>,
    pub(super) port_transport: Option<Transport>,
    pub(super) tuning: Option<Tuning>,
    pub(super) any_order: bool,
    pub(super) call_order: bool,
}

impl CollectiveConfig {
    /// The same with these element types and reductions, each of which is a kernel to compile for every plan. A collective that
    /// reduces needs at least one; one that only moves data needs none and moves every type.
    #[must_use]
    pub fn with_variants(mut self, variants: impl IntoIterator<Item = (Element, Reduction)>) -> Self {
        self.variants = variants.into_iter().map(|(element, op)| (element, Some(op))).collect();
        self
    }

    /// The same with a plan of the user's own for these calls: a range of sizes, in bytes of the larger of a rank's two buffers, or a
    /// [`PlanSelector`]. It serves the calls that it can: in place or not as it says, on shown buffers only if peers reach its buffers, and sizes
    /// that its chunks divide and that it was written for ([`message_bytes`](crate::plan::program::CollectiveProgram::message_bytes), of a
    /// rank's input). Where several serve a call, the first one given does; where none does, a built-in plan. Gather and
    /// scatter take none, and plans whose chunks have sizes of their own run in [`Executor`](crate::plan::Executor)s only.
    /// [`prepare`](super::Collective::prepare) refuses a range without a size.
    #[must_use]
    pub fn with_plan(mut self, plan: Plan, calls: impl Into<PlanSelector>) -> Self {
        self.plans.push((plan, calls.into()));
        self
    }

    /// The same with packets for messages of up to this many bytes of the larger of a rank's two buffers, which decides how much
    /// scratch they take. By default that of a table, and where none speaks, a limit that falls with the ranks.
    #[must_use]
    pub fn with_packet_bytes(mut self, bytes: u64) -> Self {
        self.packet_bytes = Some(bytes);
        self
    }

    /// The same with LL128 packets for longer messages than packets serve, up to this many bytes of the larger of a rank's two buffers.
    /// Ranks that NVLink does not join take none, whatever is given. By default as a table says, and where none speaks, never.
    #[must_use]
    pub fn with_line_bytes(mut self, bytes: u64) -> Self {
        self.line_bytes = Some(bytes);
        self
    }

    /// The same with copy engines for messages of this many bytes and more of the larger of a rank's two buffers, on buffers shown to
    /// the peers; 0 for none. They take next to no multiprocessors. Reduce has no such way, nor have a reduce-scatter of more than two ranks, and
    /// an all-to-all and a send-receive in place. By default as a table says, and where none speaks, large messages of collectives that only move data.
    #[must_use]
    pub fn with_copy_bytes(mut self, bytes: u64) -> Self {
        self.copy_bytes = Some(bytes);
        self
    }

    /// The same with all-reduces of this many bytes and more pushed into the peers' scratch, on buffers shown to the peers, instead of read
    /// from the peers' inputs; 0 for none. A message is cut into slices, for which two plans take up to 64 MiB of scratch each; where there
    /// are not 16 MiB for each, none is pushed. Copy engines come first where [`with_copy_bytes`](Self::with_copy_bytes) or a table gives them
    /// the message. Two ranks push nothing, whatever is given, and no other collective does. By default 32 MiB
    /// where NVLink joins all ranks and every device has at least 112 multiprocessors, otherwise never.
    #[must_use]
    pub fn with_push_bytes(mut self, bytes: u64) -> Self {
        self.push_bytes = Some(bytes);
        self
    }

    /// The same with this many bytes of memory, for input and output each, through which large messages go whose buffers were not
    /// shown to the peers: the length of a slice, and the longest buffer of
    /// [`VariableCollective::launch_staged`](super::VariableCollective::launch_staged), which has none by default. For a
    /// [`PointToPoint`](super::PointToPoint) it is one memory: see [`prepare_with`](super::PointToPoint::prepare_with). Otherwise by default 16 MiB, 256 KiB on the software device, at most a sixteenth of the
    /// communicator's scratch.
    #[must_use]
    pub fn with_staging_bytes(mut self, bytes: usize) -> Self {
        self.staging_bytes = Some(bytes);
        self
    }

    /// The same with port channels to ranks of other hosts over `transport`, `Ethernet` or an RDMA device; `Ethernet`.
    #[must_use]
    pub fn with_port_transport(mut self, transport: Transport) -> Self {
        self.port_transport = Some(transport);
        self
    }

    /// The same with this table of measured choices instead of that of the communicator
    /// ([`with_tuning`](crate::comm::CommunicatorConfig::with_tuning)) or the library.
    #[must_use]
    pub fn with_tuning(mut self, table: Tuning) -> Self {
        self.tuning = Some(table);
        self
    }

    /// The same for calls that run beside those of other collectives and executors on different streams, in any order on each rank. There must
    /// be room for it: see [`ExecutorConfig::in_any_order`].
    #[must_use]
    pub fn in_any_order(mut self) -> Self {
        self.any_order = true;
        self
    }

    /// The same for calls that all ranks make in one order among those of other collectives and executors, so that they need not agree on
    /// one where there is no room for all: see [`ExecutorConfig::in_call_order`].
    #[must_use]
    pub fn in_call_order(mut self) -> Self {
        self.call_order = true;
        self
    }

    /// The same without the plans that are not for these ranks, or for none of the types and reductions.
    pub(super) fn for_these(mut self, kind: &Kind, comm: &Communicator) -> Self {
        let mut plans = std::mem::take(&mut self.plans);
        plans.retain(|(plan, calls)| {
            let serves = calls.is_for(comm) && (!reduces(kind) || self.variants_of(calls).next().is_some());
            if !serves {
                log::info!("{}: no call here is one of {calls}", plan.name);
            }
            serves
        });
        Self { plans, ..self }
    }

    /// The types and reductions of the calls that a plan is for.
    pub(super) fn variants_of(
        &self,
        calls: &PlanSelector,
    ) -> impl Iterator<Item = (Element, Option<Reduction>)> {
        self.variants.iter().copied().filter(|&(element, reduction)| calls.takes(element, reduction))
    }

    /// Which averages are among the variants.
    pub(super) fn averages(&self) -> Averages {
        let average = |(_, reduction): &&(Element, Option<Reduction>)| *reduction == Some(Reduction::Avg);
        let mut averages = self.variants.iter().filter(average).map(|(element, _)| element);
        let narrow = |element: &Element| matches!(element, Element::F16 | Element::F8E4m3 | Element::F8E5m2);
        match (averages.clone().next(), averages.any(narrow)) {
            (None, _) => Averages::None,
            (_, false) => Averages::Wide,
            (_, true) => Averages::Narrow,
        }
    }

    pub(super) fn executor(&self, max_bytes: Option<u64>) -> ExecutorConfig {
        let config = ExecutorConfig::default().with_variants(self.variants.iter().copied());
        let config = if self.any_order { config.in_any_order() } else { config };
        let config = if self.call_order { config.in_call_order() } else { config };
        let config = match self.port_transport {
            Some(transport) => config.with_port_transport(transport),
            None => config,
        };
        match max_bytes {
            Some(bytes) => config.with_max_bytes(bytes),
            None => config,
        }
    }

    /// An error of `op` unless these are settings for this collective of so many ranks.
    pub(super) fn check(&self, op: &'static str, kind: &Kind, ranks: u32) -> Result<()> {
        let refuse = |message: String| Err(Error::usage(op, message));
        if let Some(root) = kind.root().filter(|&root| root >= ranks) {
            let name = kind.name();
            return refuse(format!(
                "{name}: the root, rank {root}, is none of the {ranks} ranks; use at most {}",
                ranks - 1
            ));
        }
        if let Kind::Custom(name) = kind {
            return refuse(format!("{name} is no built-in collective; run its plan with plan::Executor"));
        }
        if reduces(kind) && self.variants.is_empty() {
            return refuse(format!(
                "{} reduces; name its element types and reductions with CollectiveConfig::with_variants",
                kind.name()
            ));
        }
        if let Some((plan, _)) = self.plans.first().filter(|_| !in_place_differs(kind)) {
            return refuse(format!(
                "the plan {}: {} takes no plans of users, because its root alone decides whether a call is in place, and each plan must \
             serve both; run the plan with plan::Executor",
                plan.name,
                kind.name()
            ));
        }
        if let Some((plan, calls)) = self.plans.iter().find(|(_, calls)| calls.bytes.is_empty()) {
            let (from, to) = (calls.bytes.start(), calls.bytes.end());
            return refuse(format!(
                "the plan {} is for {from} to {to} bytes, which no message has; give CollectiveConfig::with_plan a range \
                 that ends where it begins, or above",
                plan.name
            ));
        }
        if let Some((plan, _)) =
            self.plans.iter().find(|(_, calls)| calls.reductions.is_some()).filter(|_| !reduces(kind))
        {
            return refuse(format!(
                "the plan {} is for some reductions only, and {} has none; drop PlanSelector::with_reductions",
                plan.name,
                kind.name()
            ));
        }
        if let Some((plan, _)) = self.plans.iter().find(|(plan, _)| plan.settings.variable_chunks) {
            return refuse(format!(
                "the chunks of the plan {} have sizes of their own, and calls here have one",
                plan.name
            ));
        }
        match self.plans.iter().find(|(plan, _)| plan.collective.kind != *kind) {
            None => Ok(()),
            Some((plan, _)) => {
                let theirs = &plan.collective.kind;
                refuse(format!("the plan {} is one of {theirs:?}, not of {kind:?}", plan.name))
            }
        }
    }
}

/// Whether a collective combines elements.
pub(super) fn reduces(kind: &Kind) -> bool {
    matches!(kind, Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce { .. })
}
