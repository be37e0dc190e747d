//! Large messages whose buffers the peers do not reach: slice by slice through memory that they do.

use std::sync::Arc;

use super::call::Call;
use crate::comm::{Communicator, ScratchShare};
use crate::deadline::Deadline;
use crate::error::Result;
use crate::gpu::{DeviceSlice, GpuBuffer, Stream};
use crate::plan::{Element, Executor, Kind, PlanBuffers, Reduction, Rows};

/// An input and an output of the library's own, shown to the peers.
#[derive(Debug)]
pub(super) struct Staging {
    input: Arc<GpuBuffer>,
    output: Arc<GpuBuffer>,
    shown: PlanBuffers,
    /// Whether this rank's input takes part, and whether it gets a result.
    takes_part: [bool; 2],
    _share: ScratchShare,
}

impl Staging {
    /// Allocates and shows memory for calls of `executor`, whose plan is not in place. Collective.
    pub(super) fn prepare(
        comm: &Communicator,
        executor: &Executor,
        bytes: usize,
        deadline: Deadline,
    ) -> Result<Self> {
        let ([input, output], shown) = executor.allocate_buffers(bytes, deadline)?;
        let me = comm.rank();
        let takes_part = match executor.plan().collective.kind {
            Kind::Broadcast { root } | Kind::Scatter { root } => [me == root, true],
            Kind::Reduce { root } | Kind::Gather { root } => [true, me == root],
            _ => [true, true],
        };
        let share = comm.scratch().take(2 * bytes as u64);
        Ok(Self { input, output, shown, takes_part, _share: share })
    }

    /// Bytes of the input and of the output.
    pub(super) fn bytes(&self) -> usize {
        self.input.len()
    }

    /// Enqueues a call of parts of sizes that only the device knows: all of both buffers is copied in, and all of the output is copied
    /// out, with what lay between its parts. The input is read before a result is written, so both may be one memory.
    pub(super) fn launch_by_rows(
        &self,
        executor: &Executor,
        stream: &Stream,
        [input, output]: [&DeviceSlice; 2],
        rows: &Rows,
        variant: (Element, Option<Reduction>),
    ) -> Result<()> {
        stream.copy(&self.input.slice(..input.len())?, input)?;
        stream.copy(&self.output.slice(..output.len())?, output)?;
        executor.execute_by_rows(stream, &self.shown, rows, variant)?;
        stream.copy(output, &self.output.slice(..output.len())?)
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use cuda_driver_sys::CUresult;

    use super::*;
    use crate::collective::{Collective, CollectiveConfig};
    use crate::comm::{CommunicatorConfig, together};
    use crate::error::ErrorKind;
    use crate::gpu::{Context, Device, Driver, Hooks};

    const LIMIT: Duration = Duration::from_secs(120);
    /// Longer than anything else that the ranks allocate.
    const SLICE: usize = 3 << 20;

    thread_local! {
        /// This thread gets no memory for slices.
        static FULL: Cell<bool> = const { Cell::new(false) };
    }

    struct NoSlices;

    impl Hooks for NoSlices {
        fn before_allocation(&self, _: &'static str, bytes: usize) -> Option<CUresult> {
            (FULL.get() && bytes >= SLICE).then_some(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
        }
    }

    /// And the ranks agree about what they set up next.
    #[test]
    fn a_rank_without_memory_for_slices_is_an_error_of_all() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap().with_hooks(Arc::new(NoSlices));
        let device = &Device::all(&driver).unwrap()[0];
        let contexts = [(); 2].map(|()| Context::new(device).unwrap());
        let config = CommunicatorConfig::default().with_peer_timeout(None);
        let comms = Communicator::local(&contexts, config, LIMIT).unwrap();
        let prepare = |comm: &Communicator| {
            let config = CollectiveConfig::default().with_staging_bytes(SLICE);
            Collective::prepare(comm, Kind::AllGather, config, LIMIT)
        };
        let results = together(&comms, |comm| {
            FULL.set(comm.rank() == 1);
            Ok(prepare(comm))
        });
        let kinds = results.unwrap().into_iter().map(|result| result.map(drop).unwrap_err().kind());
        assert_eq!(kinds.collect::<Vec<_>>(), [ErrorKind::Remote, ErrorKind::Cuda]);
        together(&comms, prepare).unwrap();
        together(&comms, |comm| comm.close(LIMIT)).unwrap();
    }
}
