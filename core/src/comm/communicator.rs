//! The communicator: a group of ranks with one device each.

use std::collections::HashSet;
use std::sync::Arc;

use aqueduct_ptx::abi::{ABI_VERSION, AbortHandle};

use crate::abort::{Abort, AbortCause};
use crate::bootstrap::Bootstrap;
use crate::comm::abort_memory::AbortMemory;
use crate::comm::config::CommunicatorConfig;
use crate::comm::connection::{ConnectItem, Connection};
use crate::comm::report::AbortReport;
use crate::comm::semaphore::Site;
use crate::comm::semaphore::{
    Device2DeviceSemaphore, Flavour, Host2DeviceSemaphore, Host2HostSemaphore, SemaphoreItem,
};
use crate::comm::tokens::Tokens;
use crate::comm::topology::Topology;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Context, Device, KeepAlive, Stream};
use crate::group::control::Member;
use crate::group::peer::{DeviceIdentity, DriverKind, PeerInfo};
use crate::group::subscriber::Subscribers;
use crate::group::wire_up::{self, Description, Introduction};
use crate::group::{Group, frames};
use crate::ledger::Ledger;
use crate::memory::Exchange;
use crate::memory::{self, RecvItem, RegisteredMemory, SendItem, registry};
use crate::setup::key::{Key, Kind, Namespace};
use crate::setup::mailbox::{Post, SetupMail};
use crate::setup::pending::{Dependency, Pending};
use crate::setup::run::{self, Item};
use crate::sync::{Mutex, MutexGuard, lock, lock_until};
use crate::transport::Resources;
use crate::transport::endpoint::{EndpointConfig, Transport};

/// A group of ranks with one device each: their control links, and the objects that they set up together.
///
/// All ranks create it together. Then each rank asks for connections, memory and semaphores and calls
/// [`setup`](Self::setup). These objects keep the group alive: its links close, in good order, when the last of them is
/// dropped, or by [`close`](Self::close).
///
/// If a rank is lost or aborts, every call on every rank fails with the reason, and every waiting kernel is told to
/// leave. A rank that leaves in good order fails only the calls that need it, with `PeerLost`. Kernels that still
/// wait for it two seconds later leave, and the communicator aborts because their work is not done.
///
/// Cheap to clone; clones share one communicator. Every method can be called from any thread. One `setup` runs at a
/// time; another call waits for it.
#[derive(Clone, Debug)]
pub struct Communicator {
    setup: Arc<Setup>,
    shared: Arc<Shared>,
}

/// State shared by the clones of a communicator. Objects that it creates hold parts of this, never the whole.
#[derive(Debug)]
struct Shared {
    config: CommunicatorConfig,
    topology: Arc<Topology>,
    mail: Arc<SetupMail>,
    exchange: Arc<Exchange>,
    resources: Arc<Resources>,
    semaphores: Arc<Site>,
    abort: Arc<AbortMemory>,
    context: Context,
}

/// State used only by collective calls. Kept outside `Shared`, whose parts the queued items hold.
#[derive(Debug, Default)]
struct Setup {
    queue: Mutex<Queue>,
    /// Held while `setup` runs.
    running: Mutex<()>,
    /// Held while `shrink` runs.
    shrinking: Mutex<()>,
}

#[derive(Default)]
struct Queue {
    items: Vec<Box<dyn Item>>,
    keys: HashSet<Key>,
    internal_tags: u64,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(&self.keys).finish()
    }
}

impl Communicator {
    /// Creates the communicator of all ranks of `bootstrap`. Collective: every rank calls it. `bootstrap` is not used
    /// afterwards.
    ///
    /// # Errors
    /// `InvalidUsage` if the ranks do not fit together: one rank given twice, different world sizes or versions, GPUs
    /// mixed with software devices. `Timeout` at `deadline`; other kinds with the failure of the step.
    pub fn new(
        bootstrap: &dyn Bootstrap,
        context: &Context,
        config: CommunicatorConfig,
        deadline: impl Into<Deadline>,
    ) -> Result<Self> {
        Self::make(bootstrap, context, config, false, deadline.into())
    }

    /// As [`new`](Self::new). With `succeeds`, this communicator is the next generation of another one, whose ranks it
    /// takes over.
    pub(super) fn make(
        bootstrap: &dyn Bootstrap,
        context: &Context,
        config: CommunicatorConfig,
        succeeds: bool,
        deadline: Deadline,
    ) -> Result<Self> {
        let (rank, size) = (bootstrap.rank(), bootstrap.size());
        wire_up::check(bootstrap, &config.of_group())?;
        // Before other ranks learn of this rank: from then on they allow its links only the peer timeout.
        let abort = Abort::new();
        let abort_memory = AbortMemory::new(context, &abort, rank, size)?;
        let device = Some(identify(context.device())?);
        let description = Description { device, process: registry::process_number()?, abi: ABI_VERSION };
        let (mail, ledger) = (Arc::new(SetupMail::new(rank, size)), Arc::new(Ledger::new(rank)));
        let subscribers =
            Subscribers::default().with(frames::SETUP, mail.clone()).with(frames::RELEASE, ledger.clone());
        let member = Member { abort, waiters: abort_memory.clone(), subscribers, succeeds };
        let met = Introduction::with(bootstrap, description, &config.of_group(), member, deadline)?;
        let group = Group::new(met.open(deadline)?);
        let topology = Arc::new(Topology::discover(context.device(), group.me(), group.peers()));
        let exchange = Exchange::new(context.clone(), group.clone(), ledger);
        let regions = exchange.regions.clone();
        let resources = Resources::new(context.clone(), group.clone(), regions, config.of_transports());
        let semaphores = Arc::new(Site {
            exchange: exchange.clone(),
            resources: resources.clone(),
            tokens: Tokens::new(context.clone(), config.semaphores),
            abort: abort_memory.clone(),
            topology: topology.clone(),
        });
        log::debug!("rank {rank} of {size}: communicator ready on {}", group.me().device_label());
        let (abort, context) = (abort_memory, context.clone());
        let shared = Shared { config, topology, mail, exchange, resources, semaphores, abort, context };
        Ok(Self { setup: Arc::default(), shared: Arc::new(shared) })
    }

    /// This rank, `0 .. size`.
    pub fn rank(&self) -> u32 {
        self.group().rank()
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.group().size()
    }

    /// The context of this rank's device.
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// The settings that it was created with.
    pub fn config(&self) -> &CommunicatorConfig {
        &self.shared.config
    }

    /// Host, process and device of every rank, in rank order.
    pub fn peers(&self) -> &[PeerInfo] {
        self.group().peers()
    }

    /// Which ranks share this host or device, and how this rank's device reaches theirs.
    pub fn topology(&self) -> &Topology {
        &self.shared.topology
    }

    /// Asks for a connection to `peer`, which must ask for one to this rank with the same `tag` and transport. Two
    /// ranks can have several connections, with different tags. A connection to this rank itself copies within the
    /// device.
    ///
    /// # Errors
    /// `InvalidUsage` for a rank that does not exist, and for the same connection asked for twice before `setup()`;
    /// `Unsupported` if the transport cannot reach the peer.
    pub fn connect(
        &self,
        peer: u32,
        tag: u64,
        endpoint: impl Into<EndpointConfig>,
    ) -> Result<Pending<Connection>> {
        self.enqueue_connection(self.user_key(Kind::Connection, peer, tag)?, endpoint.into())
    }

    /// Offers `memory` of this rank to `peer`, which must call [`recv_memory`](Self::recv_memory) with the same
    /// `tag`. After `setup()` the peer can use it over the transports that it is registered for; over CudaIpc it is
    /// mapped there.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect); `InvalidUsage` for memory that was received, or is registered for no
    /// transport; `Unsupported`, naming how to allocate it, for memory that the peer cannot open.
    pub fn send_memory(&self, memory: &RegisteredMemory, peer: u32, tag: u64) -> Result<Pending<()>> {
        self.enqueue_send(memory, self.user_key(Kind::MemorySend, peer, tag)?)
    }

    /// Asks for memory of `peer`, which must call [`send_memory`](Self::send_memory) with the same `tag`.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub fn recv_memory(&self, peer: u32, tag: u64) -> Result<Pending<RegisteredMemory>> {
        self.enqueue_recv(self.user_key(Kind::MemoryRecv, peer, tag)?)
    }

    /// Asks for a semaphore with the peer of `connection`, which must ask for one with the same `tag`. `connection`
    /// may be a [`Pending`] of the same `setup()`. Over a connection to this rank itself it signals this rank.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect). The `Pending` fails if the connection is not CudaIpc.
    pub fn build_semaphore(
        &self,
        connection: impl Into<Dependency<Connection>>,
        tag: u64,
    ) -> Result<Pending<Device2DeviceSemaphore>> {
        let connection = connection.into();
        let key = self.user_key(Kind::Semaphore, connection_peer(&connection), tag)?;
        self.enqueue_semaphore(connection, key)
    }

    /// Asks for a semaphore that hosts signal through `connection` and devices wait for; otherwise as
    /// [`build_semaphore`](Self::build_semaphore).
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub fn build_host2device_semaphore(
        &self,
        connection: impl Into<Dependency<Connection>>,
        tag: u64,
    ) -> Result<Pending<Host2DeviceSemaphore>> {
        let connection = connection.into();
        let key = self.user_key(Kind::Semaphore, connection_peer(&connection), tag)?;
        self.enqueue_semaphore(connection, key)
    }

    /// Asks for a semaphore that hosts signal through `connection` and hosts wait for; otherwise as
    /// [`build_semaphore`](Self::build_semaphore).
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub fn build_host2host_semaphore(
        &self,
        connection: impl Into<Dependency<Connection>>,
        tag: u64,
    ) -> Result<Pending<Host2HostSemaphore>> {
        let connection = connection.into();
        let key = self.user_key(Kind::Semaphore, connection_peer(&connection), tag)?;
        self.enqueue_semaphore(connection, key)
    }

    /// Creates everything that was asked for since the last call, together with the peers, which call it too.
    ///
    /// Items are matched by kind, peer and tag, never by the order of calls, and each is created as soon as both ends
    /// are ready, which needs the peer's `setup` to run as well. If later calls ask for the same kind, peer and tag
    /// again, the n-th item of one rank belongs to the n-th of the other, failed ones included. An item that fails at
    /// one end fails at both, and so does everything built on it; the other items are created.
    ///
    /// # Errors
    /// The failure of the item that was asked for first; each `Pending` has its own. `Timeout` names the kind, peer
    /// and tag of an item whose other end was not asked for before `deadline`.
    pub fn setup(&self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = deadline.into();
        let _running = lock_until(&self.setup.running, deadline, "setup", "a setup of another thread")?;
        let items = {
            let mut queue = lock(&self.setup.queue);
            queue.keys.clear();
            std::mem::take(&mut queue.items)
        };
        let checked = self.group().check("setup");
        let made = run::run(&self.post(), items, deadline);
        checked.and(made)
    }

    /// Aborts the communicator on all ranks: every call fails with `reason` from now on, and waiting kernels leave.
    /// Calls after the first cause have no effect.
    pub fn abort(&self, reason: impl Into<String>) {
        if !self.group().forked() {
            self.group().abort().abort(AbortCause::requested(self.rank(), reason));
        }
    }

    /// Returns `Ok` while nothing has failed, otherwise the reason of the abort.
    ///
    /// # Errors
    /// `PeerLost` with the rank, `Aborted`, or the kind of another first cause.
    pub fn check(&self) -> Result<()> {
        self.group().check("check")
    }

    /// As [`check`](Self::check), for `op`, which needs every rank: also an error if a rank has left in good order.
    pub(crate) fn check_all(&self, op: &'static str) -> Result<()> {
        self.group().check(op)?;
        self.group().control().check_all(op)
    }

    /// The ranks known to be lost, in rank order, without those that left in good order.
    pub fn lost(&self) -> Vec<u32> {
        self.group().control().lost()
    }

    pub(crate) fn group(&self) -> &Group {
        &self.shared.exchange.group
    }

    pub(crate) fn exchange(&self) -> &Arc<Exchange> {
        &self.shared.exchange
    }

    /// Waits for `shrink` calls of other threads, up to `deadline`.
    pub(super) fn one_at_a_time(&self, op: &'static str, deadline: Deadline) -> Result<MutexGuard<'_, ()>> {
        lock_until(&self.setup.shrinking, deadline, op, "a shrink of another thread")
    }

    fn post(&self) -> Post<'_> {
        Post { group: self.group(), mail: &self.shared.mail, ledger: &self.exchange().ledger }
    }

    pub(crate) fn resources(&self) -> &Resources {
        &self.shared.resources
    }

    /// Has waits for `stream` return an error if kernels that wait for this group give up. Channels and collectives
    /// do this by themselves; call it after launching a kernel of your own that waits by
    /// [`abort_handle`](Self::abort_handle).
    pub fn report_to(&self, stream: &Stream) {
        stream.depend_on(&self.group().outcome());
    }

    /// The abort word and record for kernels that wait for any rank. Plain addresses: let the stream retain
    /// [`keep_alive`](Self::keep_alive) while a kernel uses them.
    pub fn abort_handle(&self) -> AbortHandle {
        self.shared.abort.handle()
    }

    /// Keeps the memory behind [`abort_handle`](Self::abort_handle) alive.
    pub fn keep_alive(&self) -> KeepAlive {
        self.shared.abort.keep_alive()
    }

    /// What the first kernel of this rank that left early was waiting for; `None` until one has left.
    pub fn abort_record(&self) -> Option<AbortReport> {
        self.shared.abort.record().map(AbortReport::from)
    }

    /// Leaves in good order, once this rank's streams are idle: waits until peers have acknowledged every operation of its
    /// connections, dropped ones included, and have closed what they opened of this rank's memory by legacy handles; then says
    /// goodbye. Calls on this communicator and on connections made by it fail afterwards. Without it, dropping the last object
    /// does the same, except that nobody waits.
    ///
    /// # Errors
    /// `Timeout`, naming a peer, if operations are not acknowledged or the peer still has memory of this rank open: nothing has
    /// changed then, and it can be called again. The failure by which accepted operations of a connection were lost, if no call
    /// has returned it before.
    pub fn close(&self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = deadline.into();
        self.group().check("close")?;
        self.shared.resources.outstanding.wait(|| self.group().check("close"), deadline)?;
        let holder = self.shared.exchange.ledger.wait_released(self.group().abort(), deadline);
        self.group().check("close")?;
        if let Some(peer) = holder {
            let message = format!(
                "rank {peer} still has memory of this rank open by a legacy handle; drop it there first"
            );
            return Err(Error::timeout("close", message).with_peer(peer));
        }
        self.group().leave(deadline)
    }

    /// How many things of this rank are kept because a peer uses them: memory, semaphore slots. For tests.
    #[doc(hidden)]
    pub fn held_by_peers(&self) -> usize {
        self.shared.exchange.ledger.len()
    }

    /// The next tag of the library's own. The same on all ranks as long as all ask for them in the same order.
    pub(crate) fn next_internal_tag(&self) -> u64 {
        let mut queue = lock(&self.setup.queue);
        queue.internal_tags += 1;
        queue.internal_tags
    }

    /// Withdraws the items with these `tags` that are not set up yet, so that the next `setup()` does not wait for
    /// them.
    pub(crate) fn withdraw(&self, tags: &[u64]) {
        self.withdraw_where(|key| key.space == Namespace::Library && tags.contains(&key.tag));
    }

    /// Withdraws the items whose keys are `named`.
    pub(super) fn withdraw_where(&self, named: impl Fn(&Key) -> bool) {
        let withdrawn: Vec<_> = {
            let mut queue = lock(&self.setup.queue);
            queue.keys.retain(|key| !named(key));
            queue.items.extract_if(.., |item| named(&item.key())).collect()
        };
        drop(withdrawn);
    }

    /// As [`send_memory`](Self::send_memory), with a tag reserved for the library.
    pub(crate) fn send_memory_internal(
        &self,
        memory: &RegisteredMemory,
        peer: u32,
        tag: u64,
    ) -> Result<Pending<()>> {
        self.enqueue_send(memory, self.library_key(Kind::MemorySend, peer, tag)?)
    }

    /// As [`recv_memory`](Self::recv_memory), with a tag reserved for the library.
    pub(crate) fn recv_memory_internal(&self, peer: u32, tag: u64) -> Result<Pending<RegisteredMemory>> {
        self.enqueue_recv(self.library_key(Kind::MemoryRecv, peer, tag)?)
    }

    fn enqueue_connection(&self, key: Key, endpoint: EndpointConfig) -> Result<Pending<Connection>> {
        match endpoint.transport {
            Transport::CudaIpc => self.check_reach(key)?,
            Transport::Ethernet | Transport::Ib(_) if key.peer == self.rank() => {
                let message = format!(
                    "a connection over {} leads to another rank; to oneself use CudaIpc",
                    endpoint.transport
                );
                return Err(Error::usage("connect", message));
            }
            Transport::Ethernet | Transport::Ib(_) => {}
        }
        let pending = Pending::new(key);
        self.enqueue(Box::new(ConnectItem::new(
            self.shared.resources.clone(),
            key,
            endpoint,
            pending.clone(),
        )))?;
        Ok(pending)
    }

    pub(super) fn enqueue_send(&self, memory: &RegisteredMemory, key: Key) -> Result<Pending<()>> {
        if memory.transports().is_empty() {
            let message = "the memory is registered for no transport; name those that the peer is to use when registering";
            return Err(Error::usage(key.kind.op(), message));
        }
        let export = memory::export(self.exchange(), memory, key.peer)?;
        let pending = Pending::new(key);
        self.enqueue(Box::new(SendItem::new(self.shared.exchange.clone(), key, export, pending.clone())))?;
        Ok(pending)
    }

    pub(super) fn enqueue_recv(&self, key: Key) -> Result<Pending<RegisteredMemory>> {
        let pending = Pending::new(key);
        self.enqueue(Box::new(RecvItem::new(self.shared.exchange.clone(), key, pending.clone())))?;
        Ok(pending)
    }

    fn enqueue_semaphore<S: Flavour>(
        &self,
        connection: Dependency<Connection>,
        key: Key,
    ) -> Result<Pending<S>> {
        let pending = Pending::new(key);
        self.enqueue(Box::new(SemaphoreItem::new(
            self.shared.semaphores.clone(),
            key,
            connection,
            pending.clone(),
        )))?;
        Ok(pending)
    }

    fn enqueue(&self, item: Box<dyn Item>) -> Result<()> {
        let key = item.key();
        let mut queue = lock(&self.setup.queue);
        if !queue.keys.insert(key) {
            let message =
                format!("{} was asked for twice; give each its own tag, or call setup() in between", key);
            return Err(Error::usage(key.kind.op(), message));
        }
        queue.items.push(item);
        Ok(())
    }

    fn user_key(&self, kind: Kind, peer: u32, tag: u64) -> Result<Key> {
        self.check_key(Key::user(kind, peer, tag))
    }

    fn library_key(&self, kind: Kind, peer: u32, tag: u64) -> Result<Key> {
        self.check_key(Key::library(kind, peer, tag))
    }

    pub(super) fn check_key(&self, key: Key) -> Result<Key> {
        self.group().check(key.kind.op())?;
        if key.peer >= self.size() {
            let message = format!("there is no rank {}; ranks are 0 to {}", key.peer, self.size() - 1);
            return Err(Error::usage(key.kind.op(), message));
        }
        Ok(key)
    }

    /// Returns an error if this rank's device is known not to reach the peer's.
    fn check_reach(&self, key: Key) -> Result<()> {
        let Some(peer) = self.topology().peer(key.peer) else { return Ok(()) };
        if peer.is_reachable() || !peer.same_host {
            // Another host may be in the same NVLink domain; importing its memory shows whether it is.
            return Ok(());
        }
        let (mine, theirs) = (self.group().me().device_label(), self.group().peer(key.peer).device_label());
        let message = format!(
            "{key}: {mine} cannot access {theirs} directly; CudaIpc needs peer access (see nvidia-smi topo -p2p r)"
        );
        Err(Error::new(ErrorKind::Unsupported, key.kind.op(), message).with_peer(key.peer))
    }
}

fn connection_peer(connection: &Dependency<Connection>) -> u32 {
    match connection {
        Dependency::Ready(connection) => connection.peer(),
        Dependency::Pending(pending) => pending.peer(),
    }
}

fn identify(device: &Device) -> Result<DeviceIdentity> {
    let driver = device.driver();
    Ok(DeviceIdentity {
        // Drivers before CUDA 11.4 report none; then the PCI address identifies the device.
        uuid: device.uuid().unwrap_or_default(),
        pci_bus_id: device.pci_bus_id()?,
        name: device.name()?,
        kind: if driver.is_software() { DriverKind::Software } else { DriverKind::Hardware },
        driver_version: driver.version(),
        multiprocessors: device.sm_count()?,
    })
}
