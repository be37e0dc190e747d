//! The parts of a port channel.

use aqueduct_ptx::abi::{AbortHandle, Fifo};

use super::ids::{MemoryId, SemaphoreId};
use super::proxy_service::ProxyService;
use super::registry::Parts;
use crate::comm::{Host2DeviceSemaphore, RegisteredMemory};
use crate::error::Result;
use crate::gpu::KeepAlive;
use crate::sync::lock;

/// The parts of a port channel, kept alive.
#[derive(Debug)]
pub(crate) struct Port {
    pub(super) service: ProxyService,
    pub(super) id: SemaphoreId,
    pub(crate) semaphore: Host2DeviceSemaphore,
    pub(crate) dst: RegisteredMemory,
    pub(crate) src: RegisteredMemory,
    pub(crate) fifo: Fifo,
    pub(crate) abort: AbortHandle,
    pub(crate) flushed: u64,
    pub(super) _keep: [KeepAlive; 3],
}

impl Port {
    pub(crate) fn service(&self) -> &ProxyService {
        &self.service
    }

    pub(crate) fn id(&self) -> SemaphoreId {
        self.id
    }

    /// `Ok` while requests for it are served.
    pub(crate) fn check(&self) -> Result<()> {
        self.service.check(self.id)
    }
}

impl ProxyService {
    /// The parts of a port channel.
    pub(crate) fn port(&self, id: SemaphoreId, dst: MemoryId, src: MemoryId) -> Result<Port> {
        let Parts { semaphore, shard, dst, src } = lock(&self.inner.registry).port(id, dst, src)?;
        let (proxy, ports) = (&self.inner.shards[shard].proxy, &self.inner.ports);
        proxy.check()?;
        let [queue, words] = proxy.keep_alive();
        Ok(Port {
            service: self.clone(),
            id,
            semaphore,
            dst,
            src,
            fifo: proxy.fifo(),
            abort: ports.abort_handle(id),
            flushed: ports.flushed_ptr(id),
            _keep: [queue, words, ports.keep_alive()],
        })
    }
}
