//! Memory of the library's own, which the peers reach, for calls on buffers that they do not.

use std::sync::Arc;

use super::buffers::PlanBuffers;
use crate::comm::ScratchShare;
use crate::gpu::GpuBuffer;

/// An input and an output, shown to the peers. One buffer is both for a plan in place.
#[derive(Debug)]
pub(crate) struct Staging {
    pub(super) buffers: [Arc<GpuBuffer>; 2],
    pub(super) shown: PlanBuffers,
    /// Whether this rank's input is read, and whether its output gets a result.
    pub(super) takes_part: [bool; 2],
    /// A call writes all of an output that gets a result.
    pub(super) fills: bool,
    pub(super) _share: ScratchShare,
}

impl Staging {
    /// Bytes of each buffer.
    pub(crate) fn bytes(&self) -> usize {
        self.buffers[0].len()
    }
}
