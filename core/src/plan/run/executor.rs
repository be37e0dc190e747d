//! The executor of one plan.
#![allow(unsafe_code, reason = "launches kernels")]

use std::sync::Arc;

use aqueduct_ptx::abi::PlanArgs;
use aqueduct_ptx::plan::Element;

use super::agreement::{all_done, all_done_for};
use super::buffers::{PendingBuffers, PlanBuffers, Shown, Window};
use super::call::Call;
use super::cost::Span;
use super::ir::{Plan, Reduction};
use super::kernel::Variant;
use super::ports::Memories;
use super::prepared::Prepared;
use super::staged::Staging;
use crate::comm::ScratchShare;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::gpu::{DeviceSlice, GpuBuffer, KeepAlive, Stream};
use crate::setup::key::SETUP;
use crate::sync::lock;

pub(super) const EXECUTE: &str = "Executor::execute";

/// A plan over the ranks of a communicator: prepared once, then executed on streams.
///
/// Each call of [`execute`](Self::execute) is one kernel launch, or kernels and copies where the plan gives blocks to copy engines. A
/// graph can capture it; nothing of a call is decided by the host at replay. Every rank calls with the same size, type and
/// reduction, in the same order; all calls of one executor belong on one stream, or on streams that the caller orders, because
/// they share scratch. Calls of several executors of a communicator may come in different orders on different ranks: where there is no room
/// for all on a device, the ranks agree on one ([`in_call_order`](super::ExecutorConfig::in_call_order) spares that). Cheap to clone.
#[derive(Clone, Debug)]
pub struct Executor {
    pub(super) inner: Arc<Prepared>,
    /// For calls on buffers that were not shown.
    pub(super) staging: Option<Arc<Staging>>,
}

impl Executor {
    #[cfg(test)]
    pub(super) fn prepared(&self) -> &Prepared {
        &self.inner
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.inner.plan
    }

    /// The operations of this rank's last call and when it did them: nanoseconds of the device's `%globaltimer`, which begins
    /// anywhere, and is the same for devices of one host as far as the driver keeps it so. Call it once the stream has been
    /// waited for. Empty unless prepared with [`ExecutorConfig::with_trace`](super::ExecutorConfig::with_trace), and where a call was
    /// given up.
    ///
    /// A time is that of a block's first thread: another one may still be loading when it comes to the next operation. What does
    /// not fit into the 4,096 records of a block is left out.
    ///
    /// # Errors
    /// A driver error; `Timeout`.
    pub fn trace(&self, deadline: impl Into<Deadline>) -> Result<Vec<Span>> {
        let rank = self.inner.comm.rank();
        self.inner.trace.as_ref().map_or(Ok(Vec::new()), |trace| trace.spans(rank, deadline.into()))
    }

    /// The longest message, in bytes of the input (of the output, if no rank has an input).
    pub fn max_bytes(&self) -> u64 {
        self.inner.scratch.1
    }

    /// Whether switches are on multicast: asked for by all ranks with
    /// [`ExecutorConfig::with_multicast`](super::ExecutorConfig::with_multicast), and possible for all. Calls
    /// on shown buffers reach members one by one all the same where a buffer cannot be bound, or where the message is no multiple
    /// of 16 bytes.
    pub fn uses_multicast(&self) -> bool {
        self.inner.multicast.is_some()
    }

    /// Whether peers or proxies reach this plan's input or output, so that calls need [`prepare_buffers`](Self::prepare_buffers), or memory
    /// of the library's own that [`ExecutorConfig::with_staging_bytes`](super::ExecutorConfig::with_staging_bytes) asks for.
    pub fn reaches_buffers(&self) -> bool {
        self.inner.reaches_buffers
    }

    /// Shows an input and an output to the peers, for [`execute_on`](Self::execute_on). They may be one buffer. Ranks need not
    /// place them alike. Collective.
    ///
    /// # Errors
    /// `InvalidUsage` for a buffer of another device, or if ranks show buffers for different executors; `Remote` if another rank fails, with
    /// its reason; `Timeout`; a driver error. Every rank gets an error if one does, but for a `Timeout`, as in [`prepare`](Self::prepare).
    pub fn prepare_buffers(
        &self,
        input: &Arc<GpuBuffer>,
        output: &Arc<GpuBuffer>,
        deadline: impl Into<Deadline>,
    ) -> Result<PlanBuffers> {
        self.show(Ok([input.clone(), output.clone()]), None, deadline.into())
    }

    /// [`prepare_buffers`](Self::prepare_buffers) of a rank that may have none: then every rank gets an error. `share` goes back when nothing
    /// uses the buffers any more.
    pub(super) fn show(
        &self,
        buffers: Result<[Arc<GpuBuffer>; 2]>,
        share: Option<ScratchShare>,
        deadline: Deadline,
    ) -> Result<PlanBuffers> {
        const OP: &str = "Executor::prepare_buffers";
        let (inner, comm) = (&*self.inner, &self.inner.comm);
        let _turn = comm.collective_call(OP, deadline)?;
        let tags = [comm.next_internal_tag(), comm.next_internal_tag()];
        let begun = buffers.and_then(|[input, output]| {
            PendingBuffers::begin(comm, &inner.plan, [&input, &output], tags, inner.transports)
        });
        let pending =
            all_done_for(comm, OP, inner.agreed, begun, deadline).inspect_err(|_| comm.withdraw(&tags))?;
        let set_up = comm.setup(deadline).map_err(|error| error.called(SETUP, OP));
        let made = set_up.and_then(|()| {
            let mut shown = pending.finish(inner.number)?;
            if let Some((ports, _)) = &inner.ports {
                let mut memories = Memories::of(ports);
                shown.add_to(&mut memories)?;
                shown.handles = inner.port_handles(vec![Arc::new(memories)], deadline)?;
            }
            Ok(shown)
        });
        let mut shown = all_done(comm, OP, made, deadline)?;
        if let Some(multicast) = inner.multicast.as_ref().filter(|multicast| multicast.reaches_users()) {
            let memory = shown.memory();
            shown.multicast = multicast.over_buffers(comm, OP, memory, tags[0], deadline)?;
        }
        shown._share = share;
        Ok(PlanBuffers { inner: Arc::new(shown) })
    }

    /// As [`execute`](Self::execute), on buffers that were shown to the peers, from their beginning. Every rank passes those
    /// of one call of [`prepare_buffers`](Self::prepare_buffers).
    ///
    /// # Errors
    /// As for [`execute`](Self::execute).
    pub fn execute_on(
        &self,
        stream: &Stream,
        buffers: &PlanBuffers,
        count: usize,
        element: Element,
        reduction: impl Into<Option<Reduction>>,
    ) -> Result<()> {
        let [input, output] = self.inner.placed(&buffers.inner, count, element)?;
        let variant = (element, reduction.into());
        self.inner.check_shown(&buffers.inner)?;
        self.launch(stream, [&input, &output], Some((buffers, None)), count, variant)
    }

    /// As [`execute_on`](Self::execute_on) on a part of the buffers, with this rank's own input and output anywhere. Peers still find
    /// what they reach in that part of the shown buffers.
    pub(crate) fn execute_within(
        &self,
        stream: &Stream,
        (buffers, window): (&PlanBuffers, Window),
        slices: [&DeviceSlice; 2],
        count: usize,
        variant: (Element, Option<Reduction>),
    ) -> Result<()> {
        self.inner.check_shown(&buffers.inner)?;
        self.launch(stream, slices, Some((buffers, Some(window))), count, variant)
    }

    /// Allocates nothing once the stream keeps what a call needs, if the call before it on this device was on the same stream, and of the same
    /// communicator unless all kernels fit; such a call takes no lock that other streams hold. A call behind one on another stream locks the
    /// order of launches for a moment, one that takes its turn also the table of streams, and calls of a plan with copy engines' blocks
    /// follow each other while they enqueue. `shown`: the shown buffers if there are any, and the part of them that the
    /// call is for unless input and output are these buffers.
    pub(super) fn launch(
        &self,
        stream: &Stream,
        [input, output]: [&DeviceSlice; 2],
        shown: Option<(&PlanBuffers, Option<Window>)>,
        count: usize,
        variant: Variant,
    ) -> Result<()> {
        let args = self.inner.args(input, output, count, variant.0)?;
        let bytes = (count * variant.0.bytes()) as u64;
        let placed = shown.is_none_or(|(_, window)| window.is_none());
        let window = shown.and_then(|(_, window)| window).unwrap_or_default();
        let shown = shown.map(|(buffers, _)| &buffers.inner);
        let multicast = self.inner.goes_by_multicast(shown.map(|shown| &**shown), placed, bytes, args.chunk);
        let keep = [Arc::clone(input.keep_alive()), Arc::clone(output.keep_alive())];
        let buffers = [input.ptr(), output.ptr()];
        self.enqueue(stream, Request { buffers, shown, window, args, variant, rows: None, multicast }, keep)
    }

    /// Enqueues a call whose sizes have been checked. `keep` is what keeps its memory alive, but for what the executor owns.
    pub(super) fn enqueue(
        &self,
        stream: &Stream,
        request: Request<'_>,
        keep: impl IntoIterator<Item = KeepAlive, IntoIter: Clone>,
    ) -> Result<()> {
        let inner = &*self.inner;
        let Request { buffers, shown, window, mut args, variant, rows, multicast } = request;
        inner.comm.check_all(EXECUTE)?;
        let (kernel, lanes) = (inner.kernel(variant, multicast)?, inner.lanes.as_ref());
        args.abort = inner.comm.abort_handle();
        let handles = shown.map_or(&inner.handles, |shown| &shown.handles).as_ref();
        if let Some(handles) = handles {
            handles.check()?;
        }
        let call = Call { prepared: inner, buffers, shown, window, handles, args, rows };
        // The same objects in every call: a stream keeps each once. `Prepared` and `Shown` own the arenas and the peers' buffers.
        let owners: [Option<KeepAlive>; 3] = [
            Some(self.inner.clone()),
            shown.map(|shown| Arc::clone(shown) as KeepAlive),
            handles.map(|handles| Arc::clone(handles) as KeepAlive),
        ];
        let keep = keep.into_iter().chain(owners.into_iter().flatten());
        let calling = inner.place.turns.begin(EXECUTE, &inner.comm, inner.place.caller.as_deref())?;
        let turn = calling.turn;
        // The other ranks do without this one, but for its turn.
        if kernel.is_none() && lanes.is_none() && turn.is_none() {
            return Ok(());
        }
        if turn.is_some() {
            // Nobody may wait for the rest of a call that has taken its turn.
            call.check(lanes, kernel, stream)?;
        }
        let enqueuing = turn.map(|(line, _)| line.enqueuing(stream));
        let _enqueuing = enqueuing.as_ref().map(|enqueuing| lock(enqueuing));
        inner.room.stand_behind_others(stream, turn.is_some())?;
        if let Some((line, caller)) = turn {
            line.enter(&inner.comm, stream, caller)?;
        }
        let left_behind = keep.clone();
        let launched = match (kernel, lanes) {
            // SAFETY: buffers are large enough (`args` checked them), arena and peers' memories were sized by `Parts`; the stream
            // retains all of them, and none is a Rust reference.
            (Some(kernel), None) => unsafe { call.launch(kernel, stream, keep) },
            // SAFETY: as above.
            (kernel, Some(lanes)) => unsafe { call.enqueue_all(lanes, kernel, stream, keep) },
            (None, None) => Ok(()),
        };
        // Also behind a failure: others wait for their turns.
        let left = turn.map_or(Ok(()), |(line, caller)| line.leave(&inner.comm, stream, caller, left_behind));
        inner.comm.report_to(stream);
        handles.iter().for_each(|handles| handles.report_to(stream));
        launched.and(left)
    }
}

/// The words that a structure consists of.
pub(super) fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|word| word.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
}

/// What is asked of a call, with sizes that its buffers have.
pub(super) struct Request<'c> {
    /// Addresses of input and output.
    pub(super) buffers: [u64; 2],
    pub(super) shown: Option<&'c Arc<Shown>>,
    /// Which part of them.
    pub(super) window: Window,
    /// The fixed part of the kernel's parameter, without the abort handle.
    pub(super) args: PlanArgs,
    pub(super) variant: Variant,
    /// The words of [`PlanRows`](aqueduct_ptx::abi::PlanRows), for a plan whose chunks have sizes of their own.
    pub(super) rows: Option<&'c [u64]>,
    /// By multicast addresses, as on all ranks.
    pub(super) multicast: bool,
}
