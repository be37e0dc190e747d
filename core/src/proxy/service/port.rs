//! The parts of a port channel.

use std::fmt;
use std::sync::Arc;

use aqueduct_ptx::abi::{AbortHandle, FifoHandle};

use super::ids::{MemoryId, SemaphoreId, unknown_semaphore};
use super::proxy_service::ProxyService;
use super::registry::Parts;
use super::state::Ports;
use crate::comm::{Host2DeviceSemaphore, RegisteredMemory};
use crate::error::{Error, ErrorKind, Result};
use crate::failure::Failure;
use crate::gpu::KeepAlive;
use crate::group::control::Control;
use crate::outcome::Outcome;
use crate::sync::lock;

/// The parts of a port channel, kept alive.
pub(crate) struct Port {
    pub(super) service: ProxyService,
    pub(super) id: SemaphoreId,
    pub(crate) semaphore: Host2DeviceSemaphore,
    pub(crate) dst: RegisteredMemory,
    pub(crate) src: RegisteredMemory,
    pub(crate) fifo: FifoHandle,
    pub(crate) abort: AbortHandle,
    pub(crate) flushed: u64,
    /// Tells a wait for a stream whether kernels that wait for this port gave up.
    pub(crate) outcome: Arc<dyn Outcome>,
    pub(super) _keep: [KeepAlive; 6],
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

/// The outcome of kernels that use a port's channels: they give up waits once the semaphore has failed or is removed,
/// and their pushes are refused once the proxy stops or fails.
#[derive(Debug)]
struct PortOutcome {
    semaphore: Arc<Failure>,
    proxy: Arc<dyn Outcome>,
    ports: Arc<Ports>,
    control: Arc<Control>,
}

impl PortOutcome {
    /// `failure`, the semaphore's, if kernels may have given up for it.
    fn told(&self, failure: Result<()>) -> Option<Error> {
        let error = failure.err()?;
        // The communicator was closed, or the proxy was stopped or dropped, perhaps when nothing waited any more. Each kernel that gives up
        // records that, or another has before it.
        (error.kind() != ErrorKind::Stopped || self.ports.abort_report().is_some()).then_some(error)
    }
}

impl Outcome for PortOutcome {
    fn outcome(&self, op: &'static str) -> Result<()> {
        let failure = self.told(self.semaphore.check());
        failure.map_or_else(|| self.proxy.outcome(op), |error| Err(self.control.ended(op, error)))
    }

    fn has_failed(&self) -> bool {
        // The library asks, so no caller has the reason.
        self.told(self.semaphore.look()).is_some() || self.proxy.has_failed()
    }
}

impl ProxyService {
    /// The parts of a port channel.
    pub(crate) fn port(&self, id: SemaphoreId, dst: MemoryId, src: MemoryId) -> Result<Port> {
        let ports = &self.inner.ports;
        // Under the lock, so that both belong to the same user of the number.
        let registry = lock(&self.inner.registry);
        let Parts { semaphore, shard, dst, src, numbers: [dst_number, src_number] } =
            registry.port(id, dst, src)?;
        let (failure, number) = (ports.failure(id), ports.number(id));
        drop(registry);
        let number = number.ok_or_else(|| unknown_semaphore(id))?;
        let proxy = &self.inner.shards[shard].proxy;
        proxy.check()?;
        let ([queue, words], peer) = (proxy.keep_alive(), semaphore.peer());
        let control = semaphore.connection().group().control().clone();
        Ok(Port {
            service: self.clone(),
            id,
            semaphore,
            dst,
            src,
            fifo: proxy.fifo(),
            abort: AbortHandle { peer, ..ports.abort_handle(id) },
            flushed: ports.flushed_ptr(id),
            outcome: Arc::new(PortOutcome {
                semaphore: failure,
                proxy: proxy.outcome(),
                ports: ports.clone(),
                control,
            }),
            _keep: [queue, words, ports.keep_alive(), number, dst_number, src_number],
        })
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("service", &self.service).field("id", &self.id).finish_non_exhaustive()
    }
}
