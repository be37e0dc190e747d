//! [`ProxyService`]: proxies that put, signal and flush over connections, for port channels.

use std::fmt;
use std::sync::{Arc, mpsc};

use super::ids::{MemoryId, SemaphoreId};
use super::registry::{Added, Registry};
use super::router::{Command, End, Removal, Router};
use super::state::{PortCounters, Ports};
use crate::comm::{
    AbortReport, Communicator, Connection, Dependency, Host2DeviceSemaphore, Pending, RegisteredMemory,
};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::proxy::config::{Idle, ProxyConfig};
use crate::proxy::fifo::Fifo;
use crate::proxy::thread::{Proxy, ProxyCounters};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// A trigger's number of a memory has 16 bits.
const MAX_MEMORIES: usize = 1 << 16;

/// Settings of a [`ProxyService`].
#[derive(Clone, Debug)]
pub struct ProxyServiceConfig {
    /// Threads, each with a FIFO of its own; connections are spread over them. 1 unless set.
    pub proxies: usize,
    /// Slots of each FIFO, a power of two; [`Fifo::DEFAULT_SIZE`] unless set.
    pub fifo_size: usize,
    /// How many semaphores the service can have at a time, removed ones whose numbers are not free yet included; 4,096 unless
    /// set, at most 65,536. Each takes 64 bytes of pinned memory from the start.
    pub max_semaphores: usize,
    /// How the threads wait while there is nothing to do.
    pub idle: Idle,
    /// Cores of the threads, in their order. Threads without one run on the cores beside the GPU.
    pub cpus: Vec<usize>,
}

impl Default for ProxyServiceConfig {
    fn default() -> Self {
        Self {
            proxies: 1,
            fifo_size: Fifo::DEFAULT_SIZE,
            max_semaphores: 4096,
            idle: Idle::default(),
            cpus: Vec::new(),
        }
    }
}

/// Threads that put, signal and flush for kernels, over connections of any transport.
///
/// The service gives numbers to semaphores and memories, and a [`PortChannel`](crate::channel::PortChannel) is made of such
/// numbers. Adding and removing is safe while kernels push. One thread serves all requests of a connection, in the order in
/// which they were pushed; between connections there is no order.
///
/// A failed operation fails its connection: kernels that wait for one of its channels leave, [`check`](Self::check) returns
/// the reason, later requests are dropped, and other connections continue. While a connection has no room, its requests wait
/// in a queue of its own, as long as the FIFO; once that is full, the whole proxy waits, because a longer queue would only
/// delay flushes.
///
/// Cheap to clone; clones are one service, which ends when the last of it and of its channels is dropped, or by
/// [`stop`](Self::stop).
#[derive(Clone)]
pub struct ProxyService {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    communicator: Communicator,
    pub(super) shards: Vec<Shard>,
    pub(super) ports: Arc<Ports>,
    pub(super) registry: Mutex<Registry>,
}

/// One proxy, and the sender to its router.
pub(super) struct Shard {
    pub(super) proxy: Proxy,
    commands: Mutex<mpsc::Sender<Command>>,
    /// Commands sent so far. The router compares it before each trigger.
    sent: Arc<AtomicU64>,
}

/// Counts of a service's work so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceCounters {
    /// Per proxy.
    pub proxies: Vec<ProxyCounters>,
    /// Requests that waited because their connection had no room.
    pub deferred: u64,
    /// Requests dropped because their connection had failed or their semaphore did not exist.
    pub dropped: u64,
}

/// A semaphore that the next [`setup()`](Communicator::setup) makes and that gets its number then.
#[derive(Debug)]
pub struct PendingSemaphore {
    service: ProxyService,
    semaphore: Pending<Host2DeviceSemaphore>,
    id: Mutex<Option<SemaphoreId>>,
}

impl ProxyService {
    /// Starts a service for the channels of `communicator`.
    ///
    /// # Errors
    /// `InvalidUsage` for settings that make no sense; what the driver says.
    pub fn start(communicator: &Communicator, config: ProxyServiceConfig) -> Result<Self> {
        const OP: &str = "ProxyService::start";
        if !(1..=256).contains(&config.proxies) {
            return Err(Error::usage(OP, format!("{} proxies: choose 1 to 256", config.proxies)));
        }
        if !(1..=1 << 16).contains(&config.max_semaphores) {
            let message =
                format!("room for {} semaphores: a trigger's number has 16 bits", config.max_semaphores);
            return Err(Error::usage(OP, message));
        }
        let context = communicator.context();
        let ports = Ports::new(context, communicator.rank(), config.max_semaphores)?;
        let start = |index: usize| {
            let (sender, receiver) = mpsc::channel();
            let sent = Arc::new(AtomicU64::new(0));
            let router = Router::new(receiver, sent.clone(), ports.clone(), config.fifo_size);
            let settings = ProxyConfig {
                fifo_size: config.fifo_size,
                idle: config.idle,
                cpu: config.cpus.get(index).copied(),
                rank: communicator.rank(),
            };
            let proxy = Proxy::start(context, settings, router)?;
            Ok(Shard { proxy, commands: Mutex::new(sender), sent })
        };
        let shards = (0..config.proxies).map(start).collect::<Result<Vec<_>>>()?;
        let fifos = shards.iter().map(|shard| shard.proxy.queue().clone()).collect();
        let registry = Mutex::new(Registry::new(context, config.max_semaphores, MAX_MEMORIES, fifos));
        let inner = Inner { communicator: communicator.clone(), shards, ports, registry };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Asks for a semaphore on `connection`. The next `setup()` makes it; [`PendingSemaphore::get`] adds it.
    ///
    /// # Errors
    /// As for [`Communicator::build_host2device_semaphore`].
    pub fn build_and_add_semaphore(
        &self,
        connection: impl Into<Dependency<Connection>>,
        tag: u64,
    ) -> Result<PendingSemaphore> {
        let semaphore = self.inner.communicator.build_host2device_semaphore(connection, tag)?;
        Ok(PendingSemaphore { service: self.clone(), semaphore, id: Mutex::new(None) })
    }

    /// Adds a semaphore, and with it its connection.
    ///
    /// # Errors
    /// `InvalidUsage` if the connection belongs to another service, which gives it up when it has removed all semaphores of it and
    /// served the requests for them that it had taken, or when its threads have ended (a service that was dropped ends them a little
    /// later; [`stop`](Self::stop) waits for them); `Exhausted` if no number is free, see
    /// [`remove_semaphore`](Self::remove_semaphore); `Stopped`, or the failure that ended the service.
    pub fn add_semaphore(&self, semaphore: &Host2DeviceSemaphore) -> Result<SemaphoreId> {
        let inner = &*self.inner;
        if semaphore.context() != inner.communicator.context() {
            return Err(Error::usage(
                "add_semaphore",
                "the semaphore belongs to another device than the service",
            ));
        }
        inner.shards.iter().try_for_each(|shard| shard.proxy.check())?;
        let full = lock(&inner.registry).is_full();
        if full {
            // Without the lock: it drops values of others.
            inner.communicator.context().reap();
        }
        let mut registry = lock(&inner.registry);
        let Added { id, number, shard, claim } = registry.add_semaphore(semaphore)?;
        // Before the proxy hears of it, which may have a failure of the connection to tell. No request in the FIFO names it yet.
        inner.ports.open(id, number);
        inner.shards[shard].send(Command::AddSemaphore(id, semaphore.clone(), claim))?;
        Ok(id)
    }

    /// Adds a memory, of this rank or of a peer.
    ///
    /// # Errors
    /// `Exhausted` if no number of 65,536 is free, see [`remove_memory`](Self::remove_memory); `Stopped`, or the failure that ended the service.
    pub fn add_memory(&self, memory: &RegisteredMemory) -> Result<MemoryId> {
        let full = lock(&self.inner.registry).is_full_of_memories();
        if full {
            // Without the lock: it drops values of others.
            self.inner.communicator.context().reap();
        }
        let id = lock(&self.inner.registry).add_memory(memory)?;
        self.inner.tell_all(|_| Command::AddMemory(id, memory.clone()))?;
        Ok(id)
    }

    /// Removes a semaphore: kernels that wait for one of its channels leave. Requests that its proxy has taken from the FIFO are
    /// served, and all others are dropped, those included that kernels pushed before this call: flush first what must be served.
    ///
    /// Its number is reused only after all others, and only once the requests for it have completed or were dropped, its channels
    /// and the graphs that contain them are dropped, and no stream of this process has work that could still use it.
    ///
    /// # Errors
    /// `InvalidUsage` if there is none of this number.
    pub fn remove_semaphore(&self, id: SemaphoreId) -> Result<()> {
        let shard = lock(&self.inner.registry).remove_semaphore(id)?;
        self.inner.shards[shard].send(Command::Remove(Removal::Semaphore(id)))
    }

    /// Removes a memory. Puts that the proxy has taken from the FIFO are served and keep the memory alive; those that it finds
    /// there later, also if kernels pushed them before this call, fail their connection: flush first what must be served.
    ///
    /// Its number is reused only after all others, and only once its channels and the graphs that contain them are dropped, no stream
    /// of this process has work that could still use it, and the proxies have taken from their FIFOs what was pushed before.
    ///
    /// # Errors
    /// `InvalidUsage` if there is none of this number.
    pub fn remove_memory(&self, id: MemoryId) -> Result<()> {
        let removed = lock(&self.inner.registry).remove_memory(id)?;
        let told = self.inner.tell_all(|_| Command::Remove(Removal::Memory(id)));
        // Behind the commands: nobody can add a memory of this number before the proxies have dropped this one.
        drop(removed);
        told
    }

    /// As [`remove_semaphore`](Self::remove_semaphore), but what kernels that have ended have pushed is served first.
    pub(crate) fn retire_semaphore(&self, id: SemaphoreId) -> Result<()> {
        let shard = lock(&self.inner.registry).remove_semaphore(id)?;
        let shard = &self.inner.shards[shard];
        shard.send(Command::RemoveBehind(shard.end(), Removal::Semaphore(id)))
    }

    /// As [`remove_memory`](Self::remove_memory), but what kernels that have ended have pushed is served first.
    pub(crate) fn retire_memory(&self, id: MemoryId) -> Result<()> {
        let removed = lock(&self.inner.registry).remove_memory(id)?;
        let told = self.inner.tell_all(|shard| Command::RemoveBehind(shard.end(), Removal::Memory(id)));
        // As above.
        drop(removed);
        told
    }

    /// Lets a semaphore fail, as if its connection had.
    #[cfg(test)]
    pub(crate) fn fail(&self, id: SemaphoreId, error: &Error) {
        self.inner.ports.fail(id, error);
    }

    /// How many semaphores and how many memories more would get numbers now.
    pub(crate) fn room(&self) -> (usize, usize) {
        self.inner.communicator.context().reap();
        lock(&self.inner.registry).room()
    }

    /// `Ok` while requests for this semaphore are served.
    ///
    /// # Errors
    /// The failure of its connection or of the service; `InvalidUsage` if it was removed; `Stopped` if the service was.
    pub fn check(&self, id: SemaphoreId) -> Result<()> {
        let shard = lock(&self.inner.registry).shard(id)?;
        self.inner.ports.check(id)?;
        self.inner.shards[shard].proxy.check()
    }

    /// Counts of its work so far.
    pub fn counters(&self) -> ServiceCounters {
        let Inner { shards, ports, .. } = &*self.inner;
        let proxies = shards.iter().map(|shard| shard.proxy.counters()).collect();
        ServiceCounters { proxies, deferred: ports.deferred(), dropped: ports.dropped() }
    }

    /// Counts of the work for one semaphore.
    ///
    /// # Errors
    /// `InvalidUsage` if there is none of this number.
    pub fn port_counters(&self, id: SemaphoreId) -> Result<PortCounters> {
        lock(&self.inner.registry).shard(id)?;
        Ok(self.inner.ports.counters(id))
    }

    /// The record of the first kernel that gave up a wait on this service.
    pub fn abort_report(&self) -> Option<AbortReport> {
        let fifo = |shard: &Shard| shard.proxy.abort_report();
        self.inner.ports.abort_report().or_else(|| self.inner.shards.iter().find_map(fifo))
    }

    /// The communicator whose channels it serves.
    pub fn communicator(&self) -> &Communicator {
        &self.inner.communicator
    }

    /// Ends the service: it refuses pushes from now on, serves what was pushed before, flushes included, and then tells kernels
    /// that wait for one of its channels to leave. Kernels may be pushing meanwhile.
    ///
    /// # Errors
    /// `Timeout` if requests were still unserved at the deadline; the service then ends without serving them. The failure that
    /// ended the service, if one did.
    pub fn stop(&self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = deadline.into();
        let shards = &self.inner.shards;
        shards.iter().for_each(|shard| shard.proxy.begin_stop(deadline));
        let latest = Proxy::latest(deadline);
        shards.iter().map(|shard| shard.proxy.end_stop(latest)).fold(Ok(()), Result::and)
    }
}

impl PendingSemaphore {
    /// Its number.
    ///
    /// # Errors
    /// `InvalidUsage` before `setup()`; afterwards the reason if it was not made; otherwise as for [`ProxyService::add_semaphore`].
    pub fn get(&self) -> Result<SemaphoreId> {
        let mut id = lock(&self.id);
        match *id {
            Some(id) => Ok(id),
            None => Ok(*id.insert(self.service.add_semaphore(&self.semaphore.get()?)?)),
        }
    }

    /// The semaphore itself.
    ///
    /// # Errors
    /// `InvalidUsage` before `setup()`; afterwards why it was not made.
    pub fn semaphore(&self) -> Result<Host2DeviceSemaphore> {
        self.semaphore.get()
    }
}

impl Inner {
    fn tell_all(&self, command: impl Fn(&Shard) -> Command) -> Result<()> {
        self.shards.iter().map(|shard| shard.send(command(shard))).fold(Ok(()), Result::and)
    }
}

impl Shard {
    /// Of what kernels that have ended have pushed to it.
    fn end(&self) -> End {
        End::of(self.proxy.queue())
    }

    /// Sends a command, which takes effect before any trigger that a kernel pushes after this call.
    fn send(&self, command: Command) -> Result<()> {
        self.proxy.check()?;
        let sender = lock(&self.commands);
        if sender.send(command).is_err() {
            self.proxy.check()?;
        }
        // After the command, so that a router that sees the count finds the command.
        self.sent.fetch_add(1, Ordering::Release);
        #[cfg(all(test, not(loom)))]
        super::tests::sent();
        Ok(())
    }
}

impl fmt::Debug for ProxyService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyService")
            .field("communicator", &self.inner.communicator)
            .field("proxies", &self.inner.shards.len())
            .finish_non_exhaustive()
    }
}
