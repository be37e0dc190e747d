//! An owning GPU buffer, shareable with other devices and processes.

use std::ops::RangeBounds;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use cuda_driver_sys::{CUdeviceptr, CUresult};

use super::context::Context;
use super::device::Device;
use super::disposal::{Action, Users};
use super::driver::call;
use super::keep::KeepAlive;
use super::pod::Pod;
use super::slice::{DeviceSlice, resolve};
use super::vmm::{HandleTypes, Mapping, PhysicalAllocation};
use crate::deadline::Deadline;
pub use crate::env::HandlePolicy;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// How to make a [`GpuBuffer`].
#[derive(Clone, Copy, Debug)]
pub struct BufferOptions {
    /// Whether its bytes start as zero. Otherwise they are undefined.
    pub zeroed: bool,
    /// How it can be shared.
    pub handles: HandlePolicy,
}

/// Device memory of this process, freed when dropped.
///
/// Where the device supports virtual memory management it is one physical allocation of its own, rounded up to the
/// granularity (commonly 2 MiB), and mapped; otherwise a plain allocation. Its bytes are never a Rust reference:
/// kernels and peers write them.
#[derive(Debug)]
pub struct GpuBuffer {
    len: usize,
    memory: Arc<Memory>,
}

/// The memory of a buffer. Unfinished copies keep it alive.
#[derive(Debug)]
struct Memory {
    ptr: CUdeviceptr,
    size: usize,
    backing: Backing,
    context: Context,
}

#[derive(Debug)]
enum Backing {
    Mapped(Mapping),
    Plain {
        /// Other devices that were given access. The driver may wait for them when the memory is freed.
        allowed: Mutex<Vec<Device>>,
    },
}

/// Whether the driver has refused a fabric handle on this device. Remembered, so that it is asked only once.
#[derive(Default)]
struct FabricRefused(AtomicBool);

/// How long zeroing may take before the device counts as stuck.
const ZEROING: Duration = Duration::from_secs(60);

impl GpuBuffer {
    /// A zeroed buffer of `len` bytes, shareable by the kind of handle that [`Driver::handle_policy`](super::Driver::handle_policy)
    /// names.
    ///
    /// # Errors
    /// Invalid usage for zero bytes; out of memory and any other driver error.
    pub fn new(context: &Context, len: usize) -> Result<Self> {
        Self::with_options(
            context,
            len,
            BufferOptions { zeroed: true, handles: context.driver().handle_policy() },
        )
    }

    /// A buffer of `len` bytes.
    ///
    /// # Errors
    /// Invalid usage for zero bytes; unsupported if the device has no such handles; out of memory and any
    /// other driver error.
    pub fn with_options(context: &Context, len: usize, options: BufferOptions) -> Result<Self> {
        if len == 0 {
            return Err(Error::usage("GpuBuffer", "a buffer of zero bytes cannot be allocated"));
        }
        context.reap();
        let buffer = match options.handles {
            HandlePolicy::Legacy => Self::plain(context, len)?,
            HandlePolicy::Fd => Self::mapped(context, len, HandleTypes::FD)?,
            HandlePolicy::Fabric if !context.device().supports_fabric_handles()? => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "GpuBuffer",
                    "this device has no fabric handles, which need an NVLink domain and an IMEX channel in \
                     /dev/nvidia-caps-imex-channels; use HandlePolicy::Fd or Auto (AQUEDUCT_HANDLE=fd or auto)",
                ));
            }
            HandlePolicy::Fabric => Self::mapped(context, len, HandleTypes::FABRIC)?,
            HandlePolicy::Auto if !context.device().supports_vmm()? => Self::plain(context, len)?,
            HandlePolicy::Auto => Self::mapped_by_any(context, len)?,
        };
        if options.zeroed {
            let (memory, keep) = (&buffer.memory, buffer.keep());
            context.fill(memory.ptr, memory.size, 0, &keep, Deadline::after(ZEROING))?;
        }
        Ok(buffer)
    }

    fn mapped_by_any(context: &Context, len: usize) -> Result<Self> {
        let device = context.device();
        let fd = if device.supports_fd_handles()? { HandleTypes::FD } else { HandleTypes::NONE };
        let refused = &context.slot::<FabricRefused>().0;
        let mut refusal = None;
        if !refused.load(Ordering::Relaxed) && device.supports_fabric_handles()? {
            match Self::mapped(context, len, fd | HandleTypes::FABRIC) {
                // The hardware supports it, but this process has no access to an IMEX channel.
                Err(error) if is_refusal(&error) => refusal = Some(error),
                other => return other,
            }
        }
        // Mapped memory without a handle could never be shared; a plain allocation can, by its legacy handle.
        let buffer =
            if fd == HandleTypes::NONE { Self::plain(context, len) } else { Self::mapped(context, len, fd) }?;
        // The same allocation works without the handle, so the driver refused the handle, not the allocation.
        if let Some(error) = refusal
            && !refused.swap(true, Ordering::Relaxed)
        {
            log::debug!(
                "device {} gives no fabric handles, and is not asked again: {error}",
                device.ordinal()
            );
        }
        Ok(buffer)
    }

    fn mapped(context: &Context, len: usize, types: HandleTypes) -> Result<Self> {
        if !context.device().supports_vmm()? {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "GpuBuffer",
                "this device has no virtual memory management; use AQUEDUCT_HANDLE=ipc or HandlePolicy::Auto",
            ));
        }
        let allocation = Arc::new(PhysicalAllocation::create(context, len, types)?);
        let size = allocation.size();
        let mapping = Mapping::new(context, vec![allocation])?;
        Ok(Self::of(len, mapping.ptr(), size, Backing::Mapped(mapping), context))
    }

    fn plain(context: &Context, len: usize) -> Result<Self> {
        let _entered = context.enter()?;
        let mut ptr = 0;
        // SAFETY: `ptr` is a live output; the memory is freed once, after this buffer is dropped.
        context.noted(unsafe { call!(context.driver(), allocate len, cuMemAlloc_v2(&raw mut ptr, len)) })?;
        Ok(Self::of(len, ptr, len, Backing::Plain { allowed: Mutex::default() }, context))
    }

    fn of(len: usize, ptr: CUdeviceptr, size: usize, backing: Backing, context: &Context) -> Self {
        Self { len, memory: Arc::new(Memory { ptr, size, backing, context: context.clone() }) }
    }

    fn keep(&self) -> KeepAlive {
        Arc::clone(&self.memory) as KeepAlive
    }

    /// The device address.
    pub fn ptr(&self) -> CUdeviceptr {
        self.memory.ptr
    }

    /// The bytes asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a buffer has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The bytes allocated: [`GpuBuffer::len`] rounded up to the granularity.
    pub fn allocated(&self) -> usize {
        self.memory.size
    }

    /// The context it was made in.
    pub fn context(&self) -> &Context {
        &self.memory.context
    }

    /// Its physical memory, unless it is a plain allocation.
    pub(crate) fn allocation(&self) -> Option<&Arc<PhysicalAllocation>> {
        match &self.memory.backing {
            Backing::Mapped(mapping) => mapping.parts().first(),
            Backing::Plain { .. } => None,
        }
    }

    /// Lets `device`, another device of the same process, read and write it at the same address.
    ///
    /// # Errors
    /// A driver error, for example that the GPUs cannot reach each other.
    pub(crate) fn allow(&self, device: &Device) -> Result<()> {
        match &self.memory.backing {
            Backing::Mapped(mapping) => mapping.allow(device),
            Backing::Plain { allowed } => {
                Context::new(device)?.enable_peer_access(self.context())?;
                let mut allowed = lock(allowed);
                if !allowed.contains(device) {
                    allowed.push(device.clone());
                }
                Ok(())
            }
        }
    }

    /// A range of it, in bytes, that keeps it alive.
    ///
    /// # Errors
    /// Invalid usage if the range does not lie within.
    pub fn slice(self: &Arc<Self>, range: impl RangeBounds<usize>) -> Result<DeviceSlice> {
        let (start, len) = resolve(self.len, range)?;
        let keep = Arc::clone(self) as KeepAlive;
        // SAFETY: the range lies within the buffer, which lives as long as `keep`.
        Ok(unsafe { DeviceSlice::from_raw(self.context(), self.ptr() + start as u64, len, keep) })
    }

    /// Copies `data` to byte `offset` and waits until it is there.
    ///
    /// # Errors
    /// Invalid usage if it does not fit; timeout; a driver error.
    pub fn upload<T: Pod>(&self, offset: usize, data: &[T], deadline: impl Into<Deadline>) -> Result<()> {
        super::slice::check(self.len, offset, size_of_val(data))?;
        let (to, data) = (self.ptr() + offset as u64, super::pod::bytes_of(data));
        self.context().upload(to, data, &self.keep(), deadline.into())
    }

    /// Copies what is at byte `offset` into `data`.
    ///
    /// # Errors
    /// Invalid usage if there is not as much; timeout; a driver error.
    pub fn download<T: Pod>(
        &self,
        offset: usize,
        data: &mut [T],
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        super::slice::check(self.len, offset, size_of_val(data))?;
        let (data, from) = (super::pod::bytes_of_mut(data), self.ptr() + offset as u64);
        self.context().download(data, from, &self.keep(), deadline.into())
    }

    /// Sets every byte to `value` and waits until that is done.
    ///
    /// # Errors
    /// Timeout, or a driver error.
    pub fn fill(&self, value: u8, deadline: impl Into<Deadline>) -> Result<()> {
        self.context().fill(self.ptr(), self.len, value, &self.keep(), deadline.into())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A mapping frees itself.
        if let Backing::Plain { allowed } = &mut self.backing {
            let ptr = self.ptr;
            let users = std::mem::take(allowed.get_mut().unwrap_or_else(PoisonError::into_inner));
            // SAFETY: ours, freed once; this context and those of all devices with access are quiet when it runs, so nothing uses it.
            let free: Action = Box::new(move |driver| unsafe { call!(driver, cuMemFree_v2(ptr)) });
            self.context.dispose(Users::Devices(users), free);
        }
    }
}

/// Whether the driver refused a kind of handle, rather than failing: it does not know the kind, or the user may not use it.
pub fn is_refusal(error: &Error) -> bool {
    [
        CUresult::CUDA_ERROR_NOT_PERMITTED,
        CUresult::CUDA_ERROR_NOT_SUPPORTED,
        CUresult::CUDA_ERROR_INVALID_VALUE,
        CUresult::CUDA_ERROR_INVALID_DEVICE,
    ]
    .iter()
    .any(|code| code.0.cast_signed() == error.code())
}
