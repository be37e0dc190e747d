//! Device memory in messages: what [`message`](crate::message) asks of the memory of devices, kept for GPUs.
//!
//! A [`GpuBuffer`] is exposed like other memory, and a read may go into a [`DeviceSlice`]. Copies run in streams of their own, so
//! they wait for no kernel of the user's, and go through a bounded stock of pinned memory; between processes of one host, the reader's device
//! copies from the owner's memory itself, which it has mapped.

mod blocks;
mod copies;
mod mapped;
mod pool;
mod source;
mod target;

#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;

use crate::gpu::{DeviceSlice, GpuBuffer};
use crate::message::{Memory, Target};

impl From<&Arc<GpuBuffer>> for Memory {
    /// All of the buffer. What writes it must have ended when a peer reads.
    fn from(buffer: &Arc<GpuBuffer>) -> Self {
        Self::of_device(Arc::new(source::Source::new(buffer)))
    }
}

impl From<Arc<GpuBuffer>> for Memory {
    fn from(buffer: Arc<GpuBuffer>) -> Self {
        (&buffer).into()
    }
}

impl From<DeviceSlice> for Target {
    fn from(slice: DeviceSlice) -> Self {
        Self::new(Box::new(target::Slice::new(slice)))
    }
}

impl From<&Arc<GpuBuffer>> for Target {
    /// All of the buffer.
    fn from(buffer: &Arc<GpuBuffer>) -> Self {
        buffer.slice(..).expect("all of it").into()
    }
}
