//! Registering memory with a communicator.

use std::path::Path;
use std::sync::Arc;

use crate::comm::communicator::Communicator;
use crate::error::{Error, Result};
use crate::gpu::{CUdeviceptr, GpuBuffer};
use crate::memory::{self, HostBuffer, RegisteredMemory};
use crate::transport::endpoint::{Transport, Transports};

impl Communicator {
    /// Registers all of `buffer` for `transports`. Nothing is sent; registering twice is harmless.
    ///
    /// # Errors
    /// `InvalidUsage` if the buffer is on another device than this communicator's.
    pub fn register_memory(
        &self,
        buffer: &Arc<GpuBuffer>,
        transports: impl Into<Transports>,
    ) -> Result<RegisteredMemory> {
        self.register_range(buffer, 0, buffer.len(), transports)
    }

    /// Registers bytes `offset .. offset + len` of `buffer`.
    ///
    /// # Errors
    /// `InvalidUsage` for a range that is empty or not inside (overflow included), or a buffer on another device.
    pub fn register_range(
        &self,
        buffer: &Arc<GpuBuffer>,
        offset: usize,
        len: usize,
        transports: impl Into<Transports>,
    ) -> Result<RegisteredMemory> {
        const OP: &str = "register_memory";
        self.group().check(OP)?;
        if buffer.context() != self.context() {
            let message = format!(
                "the buffer is on device {} and this communicator uses device {}; allocate it in Communicator::context()",
                buffer.context().device().ordinal(),
                self.context().device().ordinal()
            );
            return Err(Error::usage(OP, message));
        }
        self.resources().register(memory::register_buffer(buffer, offset, len, transports.into())?)
    }

    /// Registers all of `buffer`, host memory, for `transports`. For CudaIpc it is page-locked and opened to devices.
    ///
    /// # Errors
    /// `InvalidUsage` if the buffer is of another context; what the driver says to locking it.
    pub fn register_host(
        &self,
        buffer: &Arc<HostBuffer>,
        transports: impl Into<Transports>,
    ) -> Result<RegisteredMemory> {
        self.register_host_range(buffer, 0, buffer.len(), transports)
    }

    /// Registers bytes `offset .. offset + len` of `buffer`.
    ///
    /// # Errors
    /// As for [`register_host`](Self::register_host); `InvalidUsage` for a range that is empty or not inside.
    pub fn register_host_range(
        &self,
        buffer: &Arc<HostBuffer>,
        offset: usize,
        len: usize,
        transports: impl Into<Transports>,
    ) -> Result<RegisteredMemory> {
        const OP: &str = "register_memory";
        self.group().check(OP)?;
        if buffer.context() != self.context() {
            let message = "the buffer is of another context; make it in Communicator::context()";
            return Err(Error::usage(OP, message));
        }
        self.resources().register(memory::register_host(buffer, offset, len, transports.into())?)
    }

    /// Registers `len` bytes of device memory at `ptr` that somebody else allocated, with the driver or the runtime API.
    /// Whether other processes can open it depends on how it was allocated, and is found out when it is sent.
    ///
    /// # Safety
    /// The memory must stay allocated, and nobody may hold Rust references into it, until the last [`RegisteredMemory`]
    /// made from this registration is dropped, here and at every peer.
    ///
    /// # Errors
    /// `InvalidUsage` if it is not device memory of this communicator's device, or not that much.
    pub unsafe fn register_raw(
        &self,
        ptr: CUdeviceptr,
        len: usize,
        transports: impl Into<Transports>,
    ) -> Result<RegisteredMemory> {
        self.group().check("register_memory")?;
        // SAFETY: the caller's promise is the same.
        let memory = unsafe { memory::register_raw(self.context(), ptr, len, transports.into()) }?;
        self.resources().register(memory)
    }

    /// The NIC that is nearest to this rank's device on the PCIe bus, to connect over and to register memory for:
    /// [`Transport::Ib`] with its number. Ranks of a host for which several are equally near take them in turn; NICs whose
    /// ports are all down come last.
    ///
    /// `AQUEDUCT_IB_DEVICES` says which NICs are considered, and naming `Transport::Ib(n)` instead chooses one.
    ///
    /// # Errors
    /// `InvalidUsage` if there is none; what listing them says.
    pub fn nearest_nic(&self) -> Result<Transport> {
        let (group, me) = (self.group(), self.rank());
        let mine = group.me();
        let turn = group.peers().iter().filter(|peer| peer.rank < me && peer.same_host(mine)).count();
        let gpu = self.context().device().pci_bus_id()?;
        let (number, distance) = self.resources().nics()?.nearest(Path::new("/sys"), &gpu, turn)?;
        log::debug!("rank {me}: nearest to {gpu} is Ib{number}: {distance}");
        Ok(Transport::Ib(number))
    }
}
