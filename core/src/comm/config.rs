//! What a communicator may be told, and what it assumes otherwise.
#![forbid(unsafe_code)]

use std::net::IpAddr;

/// Settings of a [`Communicator`](super::Communicator). Every rank should use the same.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommunicatorConfig {
    /// Bytes of device memory per rank that collectives may use as scratch; 64 MiB.
    pub scratch_bytes: usize,
    /// How many Device2Device semaphores this rank can have at one time; 4096. They share one small allocation.
    pub semaphores: u32,
    /// The address whose interface control links to other hosts use; chosen by the system if `None`.
    pub interface: Option<IpAddr>,
    /// What identifies this host; host name and boot id if `None`. Ranks with equal host ids pass memory handles to
    /// each other through unix sockets, so set it apart for containers that do not share `/tmp`.
    pub host_id: Option<String>,
}

impl Default for CommunicatorConfig {
    fn default() -> Self {
        Self { scratch_bytes: 64 << 20, semaphores: 4096, interface: None, host_id: None }
    }
}

impl CommunicatorConfig {
    /// The defaults, changed where the environment says so.
    ///
    /// # Errors
    /// `InvalidUsage` for a variable that cannot be read.
    pub fn from_env() -> crate::Result<Self> {
        let env = crate::env::Env::get()?;
        Ok(Self { scratch_bytes: env.scratch_bytes, ..Self::default() })
    }

    /// The same with another bound on scratch memory.
    #[must_use]
    pub fn with_scratch_bytes(mut self, bytes: usize) -> Self {
        self.scratch_bytes = bytes;
        self
    }

    /// The same with another number of semaphores.
    #[must_use]
    pub fn with_semaphores(mut self, count: u32) -> Self {
        self.semaphores = count;
        self
    }

    /// The same with control links on the interface of `address`.
    #[must_use]
    pub fn with_interface(mut self, address: IpAddr) -> Self {
        self.interface = Some(address);
        self
    }

    /// The same with another host identity.
    #[must_use]
    pub fn with_host_id(mut self, id: impl Into<String>) -> Self {
        self.host_id = Some(id.into());
        self
    }
}
