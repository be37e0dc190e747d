//! A prepared plan of a collective, and the calls that it is for.

use super::call::Call;
use super::selector::PlanSelector;
use crate::error::Result;
use crate::gpu::{DeviceSlice, Stream};
use crate::plan::{Executor, PlanBuffers, Reduction, Window};

/// Bytes of a vector.
const VECTOR: usize = 16;

/// A plan and the calls that it is for.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) executor: Executor,
    pub(super) calls: PlanSelector,
    /// A longer call than the plan's scratch serves is cut into slices. Only of a collective whose input and output are alike.
    pub(super) sliced: bool,
}

impl Entry {
    /// Enqueues a call: one launch, or one for each slice. Peers reach the same part of `shown`, the buffers that were shown to them.
    pub(super) fn execute(
        &self,
        stream: &Stream,
        shown: Option<&PlanBuffers>,
        [input, output]: [&DeviceSlice; 2],
        call: &Call,
        reduction: Option<Reduction>,
    ) -> Result<()> {
        let (bytes, size) = (call.lengths()[0], call.element.bytes());
        let longest = usize::try_from(self.executor.max_bytes()).unwrap_or(usize::MAX);
        let launch = |from: usize, [input, output]: [&DeviceSlice; 2], count: usize| match shown {
            Some(buffers) => {
                // All ranks cut alike, so a slice begins at the same byte of every rank's buffers.
                let window = Window { from: from as u64, whole: if self.sliced { bytes as u64 } else { 0 } };
                let variant = (call.element, reduction);
                self.executor.execute_within(stream, (buffers, window), [input, output], count, variant)
            }
            None => self.executor.execute(stream, input, output, count, call.element, reduction),
        };
        if bytes <= longest {
            return launch(0, [input, output], call.count);
        }
        // Behind whole vectors the next slice is aligned as the buffer is.
        let longest = (longest / VECTOR * VECTOR).max(VECTOR);
        for start in (0..bytes).step_by(longest) {
            let slice = start..bytes.min(start + longest);
            let (input, output) = (input.slice(slice.clone())?, output.slice(slice.clone())?);
            launch(start, [&input, &output], slice.len() / size)?;
        }
        Ok(())
    }

    pub(super) fn in_place(&self) -> bool {
        self.executor.plan().collective.in_place
    }

    /// Whether a call has the bytes from which on its author means the plan.
    pub(super) fn is_long_enough(&self, call: &Call) -> bool {
        call.lengths()[0] as u64 >= self.executor.plan().settings.min_bytes
    }

    /// Whether the plan's chunks divide a call whose parts must not end within one.
    pub(super) fn divides(&self, call: &Call) -> bool {
        let chunks = self.executor.plan().ranks.first().map_or(1, |rank| rank.input_chunks.max(1) as usize);
        call.parts == [1, 1] || call.count.is_multiple_of(chunks)
    }
}
