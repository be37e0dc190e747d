//! Memory of the library's own, which the peers reach, for calls on buffers that they do not.

use std::sync::Arc;

use super::buffers::PlanBuffers;
use crate::gpu::GpuBuffer;

/// An input and an output, shown to the peers. One buffer is both for a plan in place.
#[derive(Debug)]
pub(crate) struct Staging {
    pub(super) buffers: [Arc<GpuBuffer>; 2],
    pub(super) shown: PlanBuffers,
    /// Whether this rank has an input, and an output, in a call that is cut into slices.
    pub(super) takes_part: [bool; 2],
    /// Which buffers are copied in before a call of a whole message.
    pub(super) copied_in: [bool; 2],
    /// And which are copied out behind it.
    pub(super) copied_out: [bool; 2],
}

impl Staging {
    /// Bytes of each buffer.
    pub(crate) fn bytes(&self) -> usize {
        self.buffers[0].len()
    }
}
