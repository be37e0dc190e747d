//! The memory of a barrier of a whole grid.

use std::sync::Arc;

use aqueduct_ptx::abi::{AbortHandle, GridBarrierHandle, GridBarrierState};

use crate::error::Result;
use crate::gpu::{BufferOptions, Context, GpuBuffer, HandlePolicy, KeepAlive};

/// A barrier of all threads of a kernel: what `grid.sync()` is in cooperative groups, and it spreads a status, so that
/// all threads leave together when one wait was given up.
///
/// Pass [`device_handle`](Self::device_handle) to the kernel, which calls `grid_sync` of the device library, and launch
/// it with [`LaunchConfig::cooperative`](crate::gpu::LaunchConfig::cooperative). One kernel uses it at a time, with any
/// grid; launches on one stream share it. It is never reset, also not after a kernel that left early. Cheap to clone;
/// all clones are one barrier.
#[derive(Clone, Debug)]
pub struct GridBarrier {
    state: Arc<GpuBuffer>,
}

impl GridBarrier {
    /// A barrier for the kernels of `context`.
    ///
    /// # Errors
    /// A driver error, of the allocation.
    pub fn new(context: &Context) -> Result<Self> {
        let plain = BufferOptions { zeroed: true, handles: HandlePolicy::Legacy };
        let state = GpuBuffer::with_options(context, size_of::<GridBarrierState>(), plain)?;
        Ok(Self { state: Arc::new(state) })
    }

    /// The handle for kernels. Blocks that wait for one that has returned leave when `abort` is raised: pass
    /// [`Communicator::abort_handle`](crate::comm::Communicator::abort_handle), or, for a kernel that waits for a proxy
    /// only, the field `abort` of its FIFO's handle.
    ///
    /// Plain addresses: retain [`keep_alive`](Self::keep_alive), and what keeps `abort` alive, while a kernel uses them.
    pub fn device_handle(&self, abort: AbortHandle) -> GridBarrierHandle {
        GridBarrierHandle { state: self.state.ptr(), abort }
    }

    /// The owner that a stream must retain while a kernel uses the handle.
    pub fn keep_alive(&self) -> KeepAlive {
        self.state.clone()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::gpu::{Device, Driver};

    /// A stream that retains it keeps the memory that its kernels use.
    #[test]
    fn the_owner_keeps_the_memory_when_the_barrier_is_dropped() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let barrier = GridBarrier::new(&Context::new(&Device::new(&driver, 0).unwrap()).unwrap()).unwrap();
        let (owner, memory) = (barrier.keep_alive(), Arc::downgrade(&barrier.state));
        drop(barrier);
        assert!(memory.upgrade().is_some());
        drop(owner);
        assert!(memory.upgrade().is_none());
    }
}
