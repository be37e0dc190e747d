//! The driver API on top of the machine, with one family of calls per file.

mod capture;
mod context;
mod copy;
mod device;
mod dmabuf;
mod entry;
mod error;
mod event;
mod function;
mod graph;
mod host;
mod init;
mod ipc;
mod launch;
mod link;
mod memop;
mod memory;
mod module;
mod multicast;
mod pointer;
mod stream;
mod user_object;
mod vmm;

#[cfg(test)]
mod tests;

use cuda_driver_sys::DriverTable;

use crate::abi::INVALID_VALUE;
use crate::config;
use context::unsafe_call;
use entry::entries;

/// Returns the driver API of the software device.
///
/// Functions that it does not have return `CUDA_ERROR_NOT_SUPPORTED` or are missing from the table, as with an old
/// driver. The same goes for those that [`Config::lacks`](crate::Config) names.
pub fn driver_table() -> DriverTable {
    let mut t = DriverTable::not_supported();
    init::install(&mut t);
    device::install(&mut t);
    context::install(&mut t);
    memory::install(&mut t);
    host::install(&mut t);
    pointer::install(&mut t);
    copy::install(&mut t);
    ipc::install(&mut t);
    stream::install(&mut t);
    event::install(&mut t);
    capture::install(&mut t);
    graph::install(&mut t);
    user_object::install(&mut t);
    module::install(&mut t);
    link::install(&mut t);
    function::install(&mut t);
    launch::install(&mut t);
    let lacks = config::current().map(|c| c.lacks).unwrap_or_default();
    if !lacks.vmm {
        vmm::install(&mut t);
        multicast::install(&mut t);
    }
    if !lacks.stream_mem_ops {
        memop::install(&mut t);
    }
    if !lacks.dma_buf {
        dmabuf::install(&mut t);
    }
    t
}
