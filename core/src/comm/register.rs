//! Registering memory with a communicator.

use std::path::Path;
use std::sync::Arc;

use crate::comm::communicator::Communicator;
use crate::error::{Error, Result};
use crate::gpu::{CUdeviceptr, GpuBuffer};
use crate::memory::{self, HostBuffer, RegisteredMemory, Registration};
use crate::transport::endpoint::Transport;
use crate::transport::table;

impl Communicator {
    /// Registers all of `buffer` for `registration`: a [`Transport`], a set of them, or a [`Registration`] with
    /// [`Rights`](crate::memory::Rights). Nothing is sent. A buffer can be registered several times, with different
    /// rights.
    ///
    /// # Errors
    /// `InvalidUsage` if the buffer is on another device than this communicator's.
    pub fn register_memory(
        &self,
        buffer: &Arc<GpuBuffer>,
        registration: impl Into<Registration>,
    ) -> Result<RegisteredMemory> {
        self.register_range(buffer, 0, buffer.len(), registration)
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
        registration: impl Into<Registration>,
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
        table::register(self.resources(), memory::register_buffer(buffer, offset, len, registration.into())?)
    }

    /// Registers all of `buffer`, host memory, for `registration`. For CudaIpc it is page-locked and opened to devices.
    ///
    /// # Errors
    /// `InvalidUsage` if the buffer is of another context; a driver error if the memory cannot be page-locked.
    pub fn register_host(
        &self,
        buffer: &Arc<HostBuffer>,
        registration: impl Into<Registration>,
    ) -> Result<RegisteredMemory> {
        self.register_host_range(buffer, 0, buffer.len(), registration)
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
        registration: impl Into<Registration>,
    ) -> Result<RegisteredMemory> {
        const OP: &str = "register_memory";
        self.group().check(OP)?;
        if buffer.context() != self.context() {
            let message = "the buffer is of another context; make it in Communicator::context()";
            return Err(Error::usage(OP, message));
        }
        table::register(self.resources(), memory::register_host(buffer, offset, len, registration.into())?)
    }

    /// Registers `len` bytes of device memory at `ptr` that other code allocated, with the driver or the runtime API.
    /// Whether other processes can open it depends on how it was allocated; `setup()` fails the sending of memory
    /// that they cannot.
    ///
    /// # Safety
    /// The memory must stay allocated, and nobody may hold Rust references into it, until the last [`RegisteredMemory`]
    /// made from this registration is dropped, here and at every peer.
    ///
    /// # Errors
    /// `InvalidUsage` if the range is not device memory of this communicator's device.
    pub unsafe fn register_raw(
        &self,
        ptr: CUdeviceptr,
        len: usize,
        registration: impl Into<Registration>,
    ) -> Result<RegisteredMemory> {
        self.group().check("register_memory")?;
        // SAFETY: the caller's promise is the same.
        let memory = unsafe { memory::register_raw(self.context(), ptr, len, registration.into()) }?;
        table::register(self.resources(), memory)
    }

    /// The NIC that is nearest to this rank's device on the PCIe bus, to connect over and to register memory for:
    /// [`Transport::Ib`] with its number. Ranks of one host that are equally near to several NICs take them in turn;
    /// NICs whose ports are all down come last.
    ///
    /// `AQUEDUCT_IB_DEVICES` limits the choice. To choose a NIC yourself, use `Transport::Ib(n)`.
    ///
    /// # Errors
    /// `InvalidUsage` if there is none; the failure of listing them.
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
