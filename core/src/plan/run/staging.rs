//! Calls on buffers that the peers do not reach, through memory of the library's own that they do.

use std::sync::Arc;

use super::collective::Kind;
use super::executor::{EXECUTE, Executor};
use super::ir::{Buffer, Reduction};
use super::rows::Rows;
use super::staged::Staging;
use super::touched::written;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::gpu::{DeviceSlice, GpuBuffer, Stream};
use crate::plan::Element;

/// How a message divides, by which it is cut into slices: the same piece of each part is one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Division {
    /// Parts of a rank's input and output, all equally long.
    pub(crate) parts: [usize; 2],
    /// Bytes of a part.
    pub(crate) part: usize,
}

impl Staging {
    /// Allocates and shows memory for calls of `executor`: `bytes` for each buffer. Collective.
    ///
    /// # Errors
    /// Of every rank, if one has too little of the communicator's scratch left, or no memory.
    pub(crate) fn prepare(executor: &Executor, bytes: usize, deadline: Deadline) -> Result<Self> {
        let (comm, plan) = (&executor.inner.comm, &executor.inner.plan);
        let count = if plan.collective.in_place { 1 } else { 2 };
        let needed = (bytes as u64).saturating_mul(count);
        let share = comm.scratch().take_within(needed).ok_or_else(|| {
            let message = format!(
                "memory for buffers that were not shown takes {needed} bytes of scratch, and this rank has {} left; ask for less with \
                 with_staging_bytes(), set AQUEDUCT_SCRATCH_BYTES (or CommunicatorConfig::with_scratch_bytes), or show all buffers",
                comm.scratch().left()
            );
            Error::usage("Executor::prepare", message)
        });
        let new = || GpuBuffer::new(comm.context(), bytes).map(Arc::new);
        let made = share.and_then(|share| {
            let input = new()?;
            let output = if count == 1 { Arc::clone(&input) } else { new()? };
            Ok(([input, output], share))
        });
        let (buffers, share) =
            made.map_or_else(|error| (Err(error), None), |(buffers, share)| (Ok(buffers), Some(share)));
        let shown = executor.show(buffers.clone(), share, deadline)?;
        let me = comm.rank();
        let takes_part = match plan.collective.kind {
            Kind::Broadcast { root } | Kind::Scatter { root } => [me == root, true],
            Kind::Reduce { root } | Kind::Gather { root } => [true, me == root],
            _ => [true, true],
        };
        let (touched, written) = (executor.inner.touched, written(plan, me));
        let known = !matches!(plan.collective.kind, Kind::Custom(_));
        let [input, output] = [0, 1].map(|side| takes_part[side] && touched[side]);
        let (copied_in, copied_out) = match (known, plan.collective.in_place) {
            // All of the output is written, and the input is nobody's result.
            (true, false) => ([input, false], [false, output]),
            // A plan may name either where both are one memory.
            (true, true) => ([input, output && !input], written),
            (false, _) => (touched, written),
        };
        Ok(Self { buffers: buffers?, shown, takes_part, copied_in, copied_out })
    }

    /// Enqueues a call of a message that fits as a whole.
    ///
    /// # Errors
    /// `InvalidUsage` for one that does not; otherwise as for [`Executor::execute_on`].
    pub(super) fn launch_whole(
        &self,
        executor: &Executor,
        stream: &Stream,
        slices: [&DeviceSlice; 2],
        (count, element): (usize, Element),
        reduction: Option<Reduction>,
    ) -> Result<()> {
        let prepared = &*executor.inner;
        let args = prepared.args(slices[0], slices[1], count, element)?;
        let lengths =
            [args.input_bytes, args.output_bytes].map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        // Of any rank, so that all refuse a call or none does.
        let of = |rank| [Buffer::Input, Buffer::Output].map(|buffer| prepared.length(rank, buffer, &args));
        let longest = (0..prepared.comm.size()).flat_map(of).max().unwrap_or(0);
        if longest > self.bytes() as u64 {
            let message = format!(
                "this call needs {longest} bytes of a buffer, and the memory for buffers that were not shown has {}; give \
                 ExecutorConfig::with_staging_bytes({longest}) or more, or show the buffers with prepare_buffers() and call execute_on()",
                self.bytes()
            );
            return Err(Error::usage(EXECUTE, message));
        }
        let whole = prepared.placed(&self.shown.inner, count, element)?;
        let staged = |side: usize| whole[side].slice(..lengths[side]);
        let given = |side: usize| slices[side].slice(..lengths[side]);
        for side in (0..2).filter(|&side| self.copied_in[side]) {
            stream.copy(&staged(side)?, &given(side)?)?;
        }
        executor.execute_on(stream, &self.shown, count, element, reduction)?;
        let mut out = (0..2).filter(|&side| self.copied_out[side]);
        out.try_for_each(|side| stream.copy(&given(side)?, &staged(side)?))
    }

    /// Enqueues a call of parts of sizes that only the device knows: all of both buffers is copied in, and all of the output is copied
    /// out, with what lay between its parts. The input is read before a result is written, so both may be one memory.
    pub(crate) fn launch_by_rows(
        &self,
        executor: &Executor,
        stream: &Stream,
        [input, output]: [&DeviceSlice; 2],
        rows: &Rows,
        variant: (Element, Option<Reduction>),
    ) -> Result<()> {
        stream.copy(&self.buffers[0].slice(..input.len())?, input)?;
        stream.copy(&self.buffers[1].slice(..output.len())?, output)?;
        executor.execute_by_rows(stream, &self.shown, rows, variant)?;
        stream.copy(output, &self.buffers[1].slice(..output.len())?)
    }

    /// Enqueues a call of a plan that is not in place: the same piece of each part of the input is copied in, goes to the peers, and is
    /// copied out, then the next. A slice is read before its result is written, so input and output may be one memory.
    pub(crate) fn launch(
        &self,
        executor: &Executor,
        stream: &Stream,
        [input, output]: [&DeviceSlice; 2],
        (division, element): (Division, Element),
        reduction: Option<Reduction>,
    ) -> Result<()> {
        let Division { parts, part: bytes } = division;
        let longest = longest_slice(self.bytes(), division, element);
        for start in (0..bytes).step_by(longest) {
            let len = longest.min(bytes - start);
            for part in (0..parts[0]).filter(|_| self.takes_part[0]) {
                let from = part * bytes + start;
                stream.copy(
                    &self.buffers[0].slice(part * len..(part + 1) * len)?,
                    &input.slice(from..from + len)?,
                )?;
            }
            let count = parts[0] * len / element.bytes();
            executor.execute_on(stream, &self.shown, count, element, reduction)?;
            for part in (0..parts[1]).filter(|_| self.takes_part[1]) {
                let to = part * bytes + start;
                stream.copy(
                    &output.slice(to..to + len)?,
                    &self.buffers[1].slice(part * len..(part + 1) * len)?,
                )?;
            }
        }
        Ok(())
    }
}

impl Executor {
    /// Enqueues one call: `count` elements of `input` on each rank (of `output`, if no rank has an input), `reduction` in place
    /// of the plan's own if there is one. The stream keeps buffers and scratch alive.
    ///
    /// Where peers reach the buffers of the plan, the call goes through memory of the library's own, if
    /// [`ExecutorConfig::with_staging_bytes`](super::ExecutorConfig::with_staging_bytes) has asked for it, with copies before and
    /// behind. Then all ranks call this, or all call [`execute_on`](Self::execute_on).
    ///
    /// # Errors
    /// `InvalidUsage` for a size that the plan cannot have, buffers that are too small, misaligned or overlap otherwise than the
    /// plan says, a variant that was not prepared, or a plan of which peers reach the buffers, without such memory or with too
    /// little; `PeerLost` once a rank is lost or has left; `Aborted` once the communicator is aborted; a driver error: then the call may have begun in part, and peers wait for the
    /// rest of it until the communicator is aborted.
    pub fn execute(
        &self,
        stream: &Stream,
        input: &DeviceSlice,
        output: &DeviceSlice,
        count: usize,
        element: Element,
        reduction: impl Into<Option<Reduction>>,
    ) -> Result<()> {
        if !self.reaches_buffers() {
            return self.launch(stream, [input, output], None, count, (element, reduction.into()));
        }
        let Some(staging) = &self.staging else {
            let message = "peers reach the buffers of this plan; show them with prepare_buffers() and call execute_on(), or ask for memory \
                 through which others go with ExecutorConfig::with_staging_bytes";
            return Err(Error::usage(EXECUTE, message));
        };
        staging.launch_whole(self, stream, [input, output], (count, element), reduction.into())
    }
}

/// Bytes of the longest slice of a part: whole elements, and whole vectors of 16 bytes as long as one fits.
fn longest_slice(staging: usize, Division { parts, .. }: Division, element: Element) -> usize {
    let each = staging / parts[0].max(parts[1]);
    let grain = if each >= 16 { 16 } else { element.bytes() };
    (each / grain * grain).max(element.bytes())
}
