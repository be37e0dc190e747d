//! Collectives whose sizes only the device knows.

use std::sync::Arc;

use super::agreement::agree_on_place;
use super::config::CollectiveConfig;
use super::geometry::agreed_geometry;
use super::named::{called, called_for};
use super::plans::{self, Hosts, Shape};
use super::sizes::{shape as shape_of, usual_blocks};
use crate::comm::Communicator;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{DeviceSlice, GpuBuffer, Stream};
use crate::plan::{Element, Executor, Kind, Numbers, PlanBuffers, Reduction, Rows, Staging};

const PREPARE: &str = "VariableCollective::prepare";
const LAUNCH: &str = "VariableCollective::launch";

/// An all-to-all, all-gather or reduce-scatter of parts of any sizes, which lie in device memory: the host need not know them.
///
/// Each call is one kernel launch, which moves as many bytes as the counts say. Between hosts, proxies move them. The kernel exchanges
/// all counts first, so that every rank sees whether every part fits. If one does not, nothing is moved anywhere, and on every rank the
/// next wait for the stream returns an error that names the two ranks, or the one whose numbers are wrong by themselves. Later calls are not
/// affected. A graph can capture calls; a replay reads the counts anew.
///
/// Every rank calls with the same type and reduction, in the same order. All calls of one `VariableCollective` belong on one stream,
/// or on streams that the caller orders. Cheap to clone.
#[derive(Clone, Debug)]
pub struct VariableCollective {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    comm: Communicator,
    kind: Kind,
    executor: Executor,
    /// For calls on buffers that the peers do not reach.
    staging: Option<Staging>,
}

/// An input and an output that every rank has shown its peers: see [`VariableCollective::buffers`].
#[derive(Clone, Debug)]
pub struct VariableBuffers {
    of: Arc<Inner>,
    shown: PlanBuffers,
    in_place: bool,
}

/// Counts and offsets of one rank's call in elements: arrays of one u64 for each rank, in memory that the device reads. They must not
/// change until the call has ended. The offset of an empty part, too, lies within its buffer.
#[derive(Clone, Debug)]
pub struct VariableCounts {
    arrays: Arrays,
    received: Option<DeviceSlice>,
}

#[derive(Clone, Debug)]
enum Arrays {
    Pairs { send: [DeviceSlice; 2], receive: [DeviceSlice; 2] },
    Parts { counts: DeviceSlice, offsets: DeviceSlice },
}

impl VariableCounts {
    /// For an all-to-all: `send_counts[r]` elements from `send_offsets[r]` of the input on go to rank r, and there is room for
    /// `receive_counts[r]` elements of rank r from `receive_offsets[r]` of the output on. Fewer may come.
    pub fn of_pairs(
        send_counts: &DeviceSlice,
        send_offsets: &DeviceSlice,
        receive_counts: &DeviceSlice,
        receive_offsets: &DeviceSlice,
    ) -> Self {
        let send = [send_counts.clone(), send_offsets.clone()];
        let receive = [receive_counts.clone(), receive_offsets.clone()];
        Self { arrays: Arrays::Pairs { send, receive }, received: None }
    }

    /// For an all-gather, rank r's part of the output, and for a reduce-scatter, rank r's part of the input: `counts[r]` elements from
    /// `offsets[r]` on. A rank's own part begins where its input or output does. Of an all-gather, a rank may have room for more than
    /// comes; the counts of a reduce-scatter are the same on all ranks.
    pub fn of_parts(counts: &DeviceSlice, offsets: &DeviceSlice) -> Self {
        let arrays = Arrays::Parts { counts: counts.clone(), offsets: offsets.clone() };
        Self { arrays, received: None }
    }

    /// The same, with an array of one u64 for each rank, where the call writes how many elements have come from it.
    #[must_use]
    pub fn with_received(mut self, received: &DeviceSlice) -> Self {
        self.received = Some(received.clone());
        self
    }

    /// The rows of `rank`.
    fn rows(&self, kind: &Kind, rank: u32, in_place: bool) -> Result<Rows> {
        let refuse = |message: &'static str| Err(Error::usage(LAUNCH, message));
        let each = |slice: &DeviceSlice| Numbers::Each(slice.clone());
        let mine = |slice: &DeviceSlice| -> Result<Numbers> {
            let at = 8 * rank as usize;
            let one = slice.slice(at..at + 8).map_err(|_| {
                let message = format!("an array of {} bytes has no number of rank {rank}", slice.len());
                Error::usage(LAUNCH, message)
            })?;
            Ok(Numbers::One(one))
        };
        // In place, a rank's own part lies in the other buffer.
        let own = |offsets: &DeviceSlice| if in_place { mine(offsets) } else { Ok(Numbers::Zero) };
        let (sent, received) = match (kind, &self.arrays) {
            (Kind::AllToAll, Arrays::Pairs { send, receive }) => {
                ([each(&send[0]), each(&send[1])], [each(&receive[0]), each(&receive[1])])
            }
            (Kind::AllGather, Arrays::Parts { counts, offsets }) => {
                ([mine(counts)?, own(offsets)?], [each(counts), each(offsets)])
            }
            (Kind::ReduceScatter, Arrays::Parts { counts, offsets }) => {
                ([each(counts), each(offsets)], [mine(counts)?, own(offsets)?])
            }
            (Kind::AllToAll, _) => return refuse("an all-to-all needs VariableCounts::of_pairs()"),
            _ => return refuse("an all-gather and a reduce-scatter need VariableCounts::of_parts()"),
        };
        let ([send_counts, send_offsets], [receive_counts, receive_offsets]) = (sent, received);
        Ok(Rows {
            send_counts,
            send_offsets,
            receive_counts,
            receive_offsets,
            received: self.received.clone(),
            anywhere: None,
            within: None,
        })
    }
}

impl VariableCollective {
    /// Compiles the plan and shows its memory to the peers. `kind` is `AllToAll`, `AllGather` or `ReduceScatter`; of `config`, only the
    /// variants play a part, and only in a reduce-scatter, [`in_any_order`](CollectiveConfig::in_any_order),
    /// [`in_call_order`](CollectiveConfig::in_call_order), [`with_port_transport`](CollectiveConfig::with_port_transport), and
    /// [`with_staging_bytes`](CollectiveConfig::with_staging_bytes), without
    /// which there is no memory for [`launch_staged`](Self::launch_staged). Between hosts, a part of a reduce-scatter may be as long as
    /// a sixteenth of what is left of the communicator's scratch, divided by twice the ranks of other hosts. Collective: every rank calls it with the same, in the same
    /// order as other collective calls.
    ///
    /// # Errors
    /// `InvalidUsage` for another collective, a reduce-scatter without variants, or settings that differ between ranks;
    /// `Unsupported` where the memory of a peer of this host cannot be reached; otherwise as for [`Executor::prepare`].
    pub fn prepare(
        comm: &Communicator,
        kind: Kind,
        config: CollectiveConfig,
        deadline: impl Into<Deadline>,
    ) -> Result<Self> {
        let deadline = deadline.into();
        let _turn = comm.collective_call(PREPARE, deadline)?;
        if let Err(error) = check(&kind, &config) {
            return Err(Executor::decline(comm, error, deadline));
        }
        // An all-gather sends every rank the same part.
        let planned = if kind == Kind::AllGather { Kind::AllToAll } else { kind.clone() };
        let plan = plans::variable(&planned, shape(comm), &Hosts::of(comm));
        let mut plan = plan.ok_or_else(|| Error::new(ErrorKind::Internal, PREPARE, "no plan"))??;
        // Ranks compare it, and two collectives have the same plan.
        plan.name = format!("{} of variable sizes", kind.name());
        let staging = config.staging_bytes.filter(|&bytes| bytes > 0);
        if let Some(bytes) = staging {
            plan.name += &format!(" through {bytes} bytes");
        }
        // Tests check the built-in plans.
        let executor = Executor::prepare(comm, &plan, config.executor(None).unchecked(), deadline);
        let executor = called_for(PREPARE, &kind, executor)?;
        let staging = staging.map(|bytes| Staging::prepare(&executor, bytes, deadline));
        let staging = called_for(PREPARE, &kind, staging.transpose())?;
        Ok(Self { inner: Arc::new(Inner { comm: comm.clone(), kind, executor, staging }) })
    }

    /// Which collective it is.
    pub fn kind(&self) -> &Kind {
        &self.inner.kind
    }

    /// Shows an input and an output to the peers. If they are one buffer, as on all ranks or on none, calls are in place: the input of an all-gather is this rank's
    /// part of the output, the output of a reduce-scatter this rank's part of the input. Collective.
    ///
    /// # Errors
    /// `InvalidUsage` for one buffer of an all-to-all, a buffer of another device, or if ranks differ in whether it is one; `Timeout`; a
    /// driver error.
    pub fn buffers(
        &self,
        input: &Arc<GpuBuffer>,
        output: &Arc<GpuBuffer>,
        deadline: impl Into<Deadline>,
    ) -> Result<VariableBuffers> {
        const OP: &str = "VariableCollective::buffers";
        let deadline = deadline.into();
        let _turn = self.inner.comm.collective_call(OP, deadline)?;
        let in_place = Arc::ptr_eq(input, output);
        agree_on_place(OP, &self.inner.comm, in_place, deadline)?;
        if in_place && self.inner.kind == Kind::AllToAll {
            let message = "an all-to-all of variable sizes cannot be in place: parts that come would replace parts that have not gone; \
                 use two buffers";
            return Err(Error::usage(OP, message));
        }
        let shown = self.inner.executor.prepare_buffers(input, output, deadline);
        let shown = called_for(OP, &self.inner.kind, shown)?;
        Ok(VariableBuffers { of: Arc::clone(&self.inner), shown, in_place })
    }

    /// Enqueues a call. Every rank passes the buffers of one call of [`buffers`](Self::buffers). Parts lie within the shown buffers and do
    /// not overlap. `reduction` is one of the prepared ones. The stream keeps buffers and counts alive.
    ///
    /// # Errors
    /// `InvalidUsage` for counts of another collective, arrays that are too short or misaligned, a variant that was not prepared, or
    /// buffers of another `VariableCollective`; `PeerLost` once a rank is lost or has left; `Aborted` once the communicator is
    /// aborted; a driver error. A part that does not fit is an error of the next wait for the stream, on every rank; so are buffers of
    /// different calls of [`buffers`](Self::buffers), and a part of a reduce-scatter between hosts that is longer than there is scratch for one.
    pub fn launch(
        &self,
        stream: &Stream,
        buffers: &VariableBuffers,
        counts: &VariableCounts,
        element: Element,
        reduction: impl Into<Option<Reduction>>,
    ) -> Result<()> {
        if !Arc::ptr_eq(&self.inner, &buffers.of) {
            return Err(Error::usage(LAUNCH, "these buffers were shown for another collective"));
        }
        let rows = counts.rows(&self.inner.kind, self.inner.comm.rank(), buffers.in_place)?;
        let variant = (element, reduction.into());
        called(LAUNCH, self.inner.executor.execute_by_rows(stream, &buffers.shown, &rows, variant))
    }

    /// Enqueues a call on any buffers, which the peers do not reach: through memory of the library, which
    /// [`with_staging_bytes`](CollectiveConfig::with_staging_bytes) has asked for. Because the host does not know the sizes, all of the
    /// input and of the output is copied in, and all of the output is copied out: what lies between its parts is written with
    /// what was there when the call began. Parts of `counts` lie within the two, a rank's own part of an all-gather or a
    /// reduce-scatter at the beginning of its input or output. The two may overlap. Every
    /// rank makes the same kind of call: if some call [`launch`](Self::launch), the next wait for the stream is an error of every rank. Otherwise as that.
    ///
    /// # Errors
    /// `InvalidUsage` for buffers that are longer than that memory, or where there is none; otherwise as for [`launch`](Self::launch).
    pub fn launch_staged(
        &self,
        stream: &Stream,
        input: &DeviceSlice,
        output: &DeviceSlice,
        counts: &VariableCounts,
        element: Element,
        reduction: impl Into<Option<Reduction>>,
    ) -> Result<()> {
        const OP: &str = "VariableCollective::launch_staged";
        let inner = &*self.inner;
        let Some(staging) = &inner.staging else {
            let message = "there is no memory for buffers that were not shown; ask for it with CollectiveConfig::with_staging_bytes, \
                 or show the buffers and call launch()";
            return Err(Error::usage(OP, message));
        };
        for (name, slice) in [("input", input), ("output", output)] {
            slice.check_context(OP, inner.comm.context())?;
            if slice.len() > staging.bytes() {
                let message = format!(
                    "the {name} has {} bytes, and the memory for such calls {}; give CollectiveConfig::with_staging_bytes({}) or more, \
                     or show the buffers and call launch()",
                    slice.len(),
                    staging.bytes(),
                    slice.len()
                );
                return Err(Error::usage(OP, message));
            }
        }
        let within = Some([input.len() as u64, output.len() as u64]);
        let rows = Rows { within, ..counts.rows(&inner.kind, inner.comm.rank(), false)? };
        let variant = (element, reduction.into());
        called(OP, staging.launch_by_rows(&inner.executor, stream, [input, output], &rows, variant))
    }
}

/// An error unless there are such collectives, with what they need.
fn check(kind: &Kind, config: &CollectiveConfig) -> Result<()> {
    match kind {
        Kind::ReduceScatter if config.variants.is_empty() => {
            let message = "a reduce-scatter reduces; name its element types and reductions with CollectiveConfig::with_variants";
            Err(Error::usage(PREPARE, message))
        }
        Kind::AllToAll | Kind::AllGather | Kind::ReduceScatter => Ok(()),
        _ => {
            let message =
                format!("{} of variable sizes: use AllToAll, AllGather or ReduceScatter", kind.name());
            Err(Error::usage(PREPARE, message))
        }
    }
}

/// The shape of kernels whose parts have sizes of their own.
pub(super) fn shape(comm: &Communicator) -> Shape {
    let geometry = agreed_geometry(comm);
    Shape { ranks: comm.size(), ..shape_of(geometry, usual_blocks(geometry).1) }
}

#[cfg(all(test, not(loom)))]
mod tests;
