//! Settings of an executor.

use aqueduct_ptx::plan::Element;

use super::ir::Reduction;
use crate::comm::Transport;
use crate::gpu::Series;

/// Times that a block of a traced kernel can note in a call: 64 KiB.
const RECORDS: u32 = 4096;

/// Settings of [`Executor::prepare`](super::Executor::prepare). Every rank must pass the same, but for [`with_trace`](Self::with_trace) and
/// [`unchecked`](Self::unchecked), which are each rank's own.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ExecutorConfig {
    pub(super) variants: Vec<(Element, Option<Reduction>)>,
    pub(super) max_bytes: Option<u64>,
    pub(super) staging_bytes: Option<usize>,
    pub(super) unchecked: bool,
    pub(super) any_order: bool,
    pub(super) call_order: bool,
    pub(super) either_place: bool,
    pub(super) port_transport: Option<Transport>,
    pub(super) trace: bool,
    pub(super) series: Option<Series>,
    /// Of a plan whose chunks have sizes of their own: what may be wrong about a rank's numbers.
    pub(super) misfit: Option<&'static str>,
    pub(super) multicast: Option<bool>,
}

impl ExecutorConfig {
    /// The same with these element types and reductions, each of which is a kernel to compile; `None` stands for the plan's own
    /// reduction. A plan that only moves data needs none.
    #[must_use]
    pub fn with_variants(mut self, variants: impl IntoIterator<Item = (Element, Option<Reduction>)>) -> Self {
        self.variants = variants.into_iter().collect();
        self
    }

    /// The same for messages of up to this many bytes, which decides how much scratch is allocated. By default the plan's own
    /// limit, or as many as a sixteenth of what is left of the communicator's scratch serves if that is less.
    #[must_use]
    pub fn with_max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// The same with this many bytes of memory, for input and output each, through which calls of [`execute`](super::Executor::execute)
    /// go whose plan has its buffers reached by peers: copied in before, copied out behind. It is a part of the communicator's scratch. By
    /// default there is none, and such calls are refused; so are those of which a rank's input or output is longer: they are not cut into
    /// slices, as those of a built-in collective are.
    #[must_use]
    pub fn with_staging_bytes(mut self, bytes: usize) -> Self {
        self.staging_bytes = Some(bytes);
        self
    }

    /// The same with port channels over this transport. By default they use CudaIpc where the peer's device is reached, and
    /// Ethernet elsewhere. A plan that puts packets through them is refused over [`Transport::Ib`]: a NIC may write a packet's flag
    /// before its data.
    #[must_use]
    pub fn with_port_transport(mut self, transport: Transport) -> Self {
        self.port_transport = Some(transport);
        self
    }

    /// The same with switches on multicast hardware (NVSwitch), or without; by default as
    /// [`CommunicatorConfig::with_multicast`](crate::comm::CommunicatorConfig::with_multicast) says, which is off. **No hardware has
    /// confirmed it**: it has run on the software device only.
    ///
    /// It is used if all ranks ask for it and all of them can ([`Executor::uses_multicast`](super::Executor::uses_multicast));
    /// otherwise all reach the members of a switch one by one, and the log says why. Hardware adds in an order of its own: do
    /// not ask for it where floating-point sums must have the same bits as without.
    #[must_use]
    pub fn with_multicast(mut self, multicast: bool) -> Self {
        self.multicast = Some(multicast);
        self
    }

    /// The same with kernels that note when each operation begins, for [`Executor::trace`](super::Executor::trace). They are
    /// slower, most where a block signals and waits much.
    #[must_use]
    pub fn with_trace(mut self) -> Self {
        self.trace = true;
        self
    }

    /// Times that each block can note in a call.
    pub(super) fn records(&self) -> Option<u32> {
        self.trace.then_some(RECORDS)
    }

    /// The same for calls that run beside those of other executors on different streams, in any order on each rank. The kernels then need
    /// room on the device beside those of all other executors of this context, and `prepare` returns an error where there is none, also for
    /// later executors. Without it, executors may have more blocks together than the device runs at once; if those of this
    /// communicator alone do, the calls of all its executors but those in call order take turns, in an order on which the ranks agree,
    /// whatever the order in which each of them calls. `prepare` begins that, and needs to come between the same calls on all ranks. With
    /// [`in_call_order`](Self::in_call_order) as well, this counts.
    #[must_use]
    pub fn in_any_order(mut self) -> Self {
        self.any_order = true;
        self
    }

    /// The same for calls that all ranks make in one order among those of other executors: where there is no room on the device for
    /// all, they follow each other on each rank as they were made, and take no turns. This spares what turns cost: small kernels and
    /// stream operations in each call. On one stream there is one order anyway. Where ranks call in different orders on different
    /// streams, they may wait for each other for ever.
    #[must_use]
    pub fn in_call_order(mut self) -> Self {
        self.call_order = true;
        self
    }

    /// The same without [`check`](crate::plan::check::check), for plans that are known to be right, or to be fragments. A wrong
    /// plan may wait for ever, until the communicator is aborted, or give a wrong result; it touches no memory but its own and
    /// its buffers'.
    #[must_use]
    pub fn unchecked(mut self) -> Self {
        self.unchecked = true;
        self
    }

    /// The same with words for the error of a call by rows of which a rank's numbers are wrong by themselves, behind "rank 0".
    pub(crate) fn with_misfit(mut self, words: &'static str) -> Self {
        self.misfit = Some(words);
        self
    }

    /// The same for an executor of a series: its calls and those of the others come one behind the other.
    pub(crate) fn in_series(mut self, series: Series) -> Self {
        self.series = Some(series);
        self
    }

    /// The same for a plan that is not in place and yet right for buffers that lie as in a call in place.
    pub(crate) fn in_either_place(mut self) -> Self {
        self.either_place = true;
        self
    }
}
