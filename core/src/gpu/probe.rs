//! Probes a device's capabilities by using them: a driver may refuse what its attributes promise, because of the host, the
//! container or the rights of this process.

use std::sync::Arc;

use cuda_driver_sys::CUdevice_attribute;

use super::buffer::{BufferOptions, GpuBuffer, HandlePolicy};
use super::context::Context;
use super::device::Device;
use super::dmabuf::DmaBuf;
use super::ipc::LegacyHandle;
use super::vmm::{HandleTypes, Mapping, PhysicalAllocation};
use crate::error::{Error, ErrorKind, Result};

pub use super::buffer::is_refusal;

/// Whether something works here.
#[derive(Clone, Debug)]
pub enum Finding {
    /// It was tried and works.
    Works,
    /// The device or the driver does not offer it.
    Absent,
    /// The device offers it, and the attempt failed.
    Refused(Error),
}

impl Finding {
    fn of(offered: Result<bool>, attempt: impl FnOnce() -> Result<()>) -> Self {
        match offered.and_then(|offered| offered.then(attempt).transpose()) {
            Ok(Some(())) => Self::Works,
            Ok(None) => Self::Absent,
            Err(error) => Self::Refused(error),
        }
    }
}

/// Tries each way to share memory of the context's device: as a file descriptor (`posix-fd`), in an NVLink domain
/// (`fabric`), by legacy handle (`legacy-ipc`), and with the drivers of NICs (`dma-buf`). Each takes the smallest allocation
/// and frees it.
pub fn sharing(context: &Context) -> [(&'static str, Finding); 4] {
    let device = context.device();
    let vmm = device.supports_vmm();
    let with_vmm = |offered: Result<bool>| Ok(vmm.clone()? && offered?);
    let fabric = device.can(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
    let dma_buf = device.can(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
    [
        (
            "posix-fd",
            Finding::of(with_vmm(device.supports_fd_handles()), || {
                PhysicalAllocation::create(context, 1, HandleTypes::FD)?.export_fd().map(drop)
            }),
        ),
        (
            "fabric",
            Finding::of(with_vmm(fabric), || {
                if !device.supports_fabric_handles()? {
                    let message = "the device can, but this host or container has no IMEX channel in \
                                   /dev/nvidia-caps-imex-channels";
                    return Err(Error::new(ErrorKind::Unsupported, "cuMemCreate", message));
                }
                PhysicalAllocation::create(context, 1, HandleTypes::FABRIC)?.export_fabric().map(drop)
            }),
        ),
        ("legacy-ipc", legacy(context)),
        (
            "dma-buf",
            Finding::of(dma_buf, || match DmaBuf::export(&plain(context)?.slice(..)?)? {
                Some(_) => Ok(()),
                None => {
                    Err(Error::new(ErrorKind::Unsupported, "dma-buf", "the device does not export memory"))
                }
            }),
        ),
    ]
}

/// No attribute tells of legacy handles.
fn legacy(context: &Context) -> Finding {
    match Finding::of(Ok(true), || LegacyHandle::export(context, plain(context)?.ptr()).map(drop)) {
        Finding::Refused(error) if error.kind() == ErrorKind::Unsupported => Finding::Absent,
        other => other,
    }
}

fn plain(context: &Context) -> Result<Arc<GpuBuffer>> {
    let options = BufferOptions { zeroed: false, handles: HandlePolicy::Legacy };
    Ok(Arc::new(GpuBuffer::with_options(context, 1, options)?))
}

/// Tries whether `from` can be given access to memory of `to`'s device.
pub fn peer_access(from: &Device, to: &Context) -> Finding {
    Finding::of(from.can_access_peer(to.device()), || {
        // Without virtual memory management the driver's word has to do.
        if !to.device().supports_vmm()? {
            return Ok(());
        }
        let memory = PhysicalAllocation::create(to, 1, HandleTypes::NONE)?;
        Mapping::new(to, vec![Arc::new(memory)])?.allow(from)
    })
}
