//! Large messages whose buffers the peers do not reach: slice by slice through memory that they do.

use std::sync::Arc;

use super::call::Call;
use crate::comm::Communicator;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::gpu::{DeviceSlice, GpuBuffer, Stream};
use crate::plan::{Executor, Kind, PlanBuffers, Reduction};

/// An input and an output of the library's own, shown to the peers.
#[derive(Debug)]
pub(super) struct Staging {
    input: Arc<GpuBuffer>,
    output: Arc<GpuBuffer>,
    shown: PlanBuffers,
    /// Whether this rank's input takes part, and whether it gets a result.
    takes_part: [bool; 2],
}

impl Staging {
    /// Allocates and shows memory for calls of `executor`, whose plan is not in place. Collective.
    pub(super) fn prepare(
        comm: &Communicator,
        executor: &Executor,
        bytes: usize,
        deadline: Deadline,
    ) -> Result<Self> {
        let new = || Ok::<_, crate::Error>(Arc::new(GpuBuffer::new(comm.context(), bytes)?));
        let (input, output) = (new()?, new()?);
        let shown = executor.prepare_buffers(&input, &output, deadline)?;
        let me = comm.rank();
        let takes_part = match executor.plan().collective.kind {
            Kind::Broadcast { root } => [me == root, true],
            Kind::Reduce { root } => [true, me == root],
            _ => [true, true],
        };
        Ok(Self { input, output, shown, takes_part })
    }

    /// Enqueues a call: the same part of each part of the input is copied in, goes to the peers, and is copied out, then the next.
    /// A slice is read before its result is written, so input and output may be one memory.
    pub(super) fn launch(
        &self,
        executor: &Executor,
        stream: &Stream,
        [input, output]: [&DeviceSlice; 2],
        call: &Call,
        reduction: Option<Reduction>,
    ) -> Result<()> {
        let longest = longest_slice(self.input.len(), call);
        for start in (0..call.part).step_by(longest) {
            let len = longest.min(call.part - start);
            for part in (0..call.parts[0]).filter(|_| self.takes_part[0]) {
                let from = part * call.part + start;
                stream.copy(
                    &self.input.slice(part * len..(part + 1) * len)?,
                    &input.slice(from..from + len)?,
                )?;
            }
            let count = call.parts[0] * len / call.element.bytes();
            executor.execute_on(stream, &self.shown, count, call.element, reduction)?;
            for part in (0..call.parts[1]).filter(|_| self.takes_part[1]) {
                let to = part * call.part + start;
                stream
                    .copy(&output.slice(to..to + len)?, &self.output.slice(part * len..(part + 1) * len)?)?;
            }
        }
        Ok(())
    }
}

/// Bytes of the longest slice of a part: whole elements, and whole vectors of 16 bytes as long as one fits.
fn longest_slice(staging: usize, call: &Call) -> usize {
    let each = staging / call.parts[0].max(call.parts[1]);
    let grain = if each >= 16 { 16 } else { call.element.bytes() };
    (each / grain * grain).max(call.element.bytes())
}
