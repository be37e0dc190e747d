//! This rank's memory: allocations of which ranges are registered.

use std::sync::Arc;

use super::host::HostBuffer;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::vmm::PhysicalAllocation;
use crate::gpu::{CUdeviceptr, Context, GpuBuffer};

/// An allocation of this process of which ranges are registered. One per buffer, however often it is registered.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(super) number: u64,
    pub(super) base: CUdeviceptr,
    pub(super) size: usize,
    pub(super) context: Context,
    pub(super) source: Source,
}

#[derive(Debug)]
pub(super) enum Source {
    Buffer(Arc<GpuBuffer>),
    /// Memory that the user keeps alive, as the contract of registering it says.
    Raw(Vec<Arc<PhysicalAllocation>>),
    Host(Arc<HostBuffer>),
}

impl Allocation {
    /// Its number among the allocations of this process.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn base(&self) -> CUdeviceptr {
        self.base
    }

    pub(super) fn buffer(&self) -> Option<&Arc<GpuBuffer>> {
        match &self.source {
            Source::Buffer(buffer) => Some(buffer),
            Source::Raw(_) | Source::Host(_) => None,
        }
    }

    pub(super) fn host(&self) -> Option<&Arc<HostBuffer>> {
        match &self.source {
            Source::Host(buffer) => Some(buffer),
            Source::Buffer(_) | Source::Raw(_) => None,
        }
    }

    /// Its physical memory in order of address; none for a plain allocation.
    pub(super) fn pieces(&self) -> Vec<Arc<PhysicalAllocation>> {
        match &self.source {
            Source::Buffer(buffer) => buffer.allocation().into_iter().cloned().collect(),
            Source::Raw(pieces) => pieces.clone(),
            Source::Host(_) => Vec::new(),
        }
    }

    /// Lets another rank's device of this process use it.
    pub(super) fn allow(&self, context: &Context) -> Result<()> {
        if *context == self.context {
            return Ok(());
        }
        match &self.source {
            Source::Buffer(buffer) => buffer.allow(context.device()),
            // Registered as portable: every device has access.
            Source::Host(_) => Ok(()),
            Source::Raw(pieces) if pieces.is_empty() => context.enable_peer_access(&self.context),
            Source::Raw(_) => Err(Error::new(
                ErrorKind::Unsupported,
                "recv_memory",
                "memory that another library has mapped cannot be opened to another device of this process; register a GpuBuffer",
            )),
        }
    }
}
