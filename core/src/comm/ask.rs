//! Asking for connections, memory and semaphores, and `setup()`, which makes them together with the peers.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::comm::asked::CallTurn;
use crate::comm::communicator::Communicator;
use crate::comm::connection::{ConnectItem, Connection};
use crate::comm::semaphore::{
    Device2DeviceSemaphore, Flavour, Host2DeviceSemaphore, Host2HostSemaphore, SemaphoreItem,
};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::transports::Transports;
use crate::memory::{self, BindingPlace, RecvItem, RegisteredMemory, SendItem, TeamItem, Teammate};
use crate::setup::key::{Key, Kind, Namespace};
use crate::setup::mailbox::Post;
use crate::setup::pending::{Dependency, Pending};
use crate::setup::run;
use crate::transport::endpoint::{EndpointConfig, Transport};

impl Communicator {
    /// Asks for a connection to `peer`, which must ask for one to this rank with the same `tag` and transport. Two
    /// ranks can have several connections, with different tags. A connection to this rank itself copies within the
    /// device.
    ///
    /// # Errors
    /// `InvalidUsage` for a rank that does not exist, for the same connection asked for twice before `setup()`, and for an
    /// endpoint with a timeout of 0; `Unsupported` if the transport cannot reach the peer.
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
    /// As for [`connect`](Self::connect); `InvalidUsage` for memory that was received, belongs to another rank of this process, or is
    /// registered for no transport; `Unsupported`, naming how to allocate it, for memory that the peer cannot open.
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
    /// Items are matched by kind, peer and tag (semaphores of all flavours are one kind), never by the order of calls, and each is
    /// created as soon as both ends are ready, which needs the peer's `setup` to run as well. If later calls ask for the same kind, peer and tag
    /// again, the n-th item of one rank belongs to the n-th of the other, failed ones included. An item that fails at
    /// one end fails at both, and so does everything built on it; the other items are created.
    ///
    /// # Errors
    /// The failure of the item that was asked for first; each `Pending` has its own. `Timeout` names the kind, peer
    /// and tag of an item whose other end was not asked for before `deadline`.
    pub fn setup(&self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = deadline.into();
        let _running = self.asked.setup_turn(deadline)?;
        let items = self.asked.take();
        let checked = self.group().check("setup");
        // Signals of this rank that arrive give back slots of its peers. A peer that is out of slots asks this rank for nothing, so it
        // must not wait for this rank's next call.
        let made = run::run(&self.post(), items, deadline, || self.context().reap());
        checked.and(made)
    }

    fn post(&self) -> Post<'_> {
        Post { group: self.group(), mail: &self.shared.mail, ledger: &self.exchange().ledger }
    }

    /// Begins a call that all ranks make together: the first thing that such a call does, whatever becomes of it. Until the result is
    /// dropped, calls of other threads wait. The n-th call of one rank belongs to the n-th of the others, also after calls that only some
    /// ranks came to an end with.
    pub(crate) fn collective_call(&self, op: &'static str, deadline: Deadline) -> Result<CallTurn<'_>> {
        self.asked.call_turn(op, deadline, |missed| self.group().links().control().begin_call(missed))
    }

    /// The next tag of the library's own. The same on all ranks as long as all ask for them in the same order.
    pub(crate) fn next_internal_tag(&self) -> u64 {
        self.asked.next_internal_tag()
    }

    /// The call of all ranks within which this thread is, as its caller knows it.
    pub(super) fn called(&self) -> Option<&'static str> {
        self.asked.called()
    }

    /// Number of the call that all ranks make together and that is underway, or was last. The same on all ranks within such a call.
    pub(crate) fn call_number(&self) -> u64 {
        self.asked.call_number()
    }

    /// Withdraws the items with these `tags` that are not set up yet, so that the next `setup()` does not wait for
    /// them.
    pub(crate) fn withdraw(&self, tags: &[u64]) {
        self.withdraw_where(|key| key.space == Namespace::Library && tags.contains(&key.tag));
    }

    /// Withdraws the items whose keys are `named`.
    pub(super) fn withdraw_where(&self, named: impl Fn(&Key) -> bool) {
        self.asked.withdraw_where(named);
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

    /// As [`connect`](Self::connect), with a tag reserved for the library.
    pub(crate) fn connect_internal(
        &self,
        peer: u32,
        tag: u64,
        endpoint: EndpointConfig,
    ) -> Result<Pending<Connection>> {
        self.enqueue_connection(self.library_key(Kind::Connection, peer, tag)?, endpoint)
    }

    /// As [`build_host2device_semaphore`](Self::build_host2device_semaphore), with a tag reserved for the library.
    pub(crate) fn build_host2device_semaphore_internal(
        &self,
        connection: impl Into<Dependency<Connection>>,
        tag: u64,
    ) -> Result<Pending<Host2DeviceSemaphore>> {
        let connection = connection.into();
        let key = self.library_key(Kind::Semaphore, connection_peer(&connection), tag)?;
        self.enqueue_semaphore(connection, key)
    }

    /// Exchanges promises with `peer`, a member of the same multicast object, under a tag reserved for the library: each keeps what
    /// it binds until the other drops what it gets here. The rank that has made the object passes its descriptor on.
    pub(crate) fn join_team_internal(
        &self,
        peer: u32,
        tag: u64,
        fd: Option<OwnedFd>,
        place: &Arc<BindingPlace>,
    ) -> Result<Pending<Arc<Teammate>>> {
        let key = self.library_key(Kind::Multicast, peer, tag)?;
        let pending = Pending::new(key);
        let exchange = self.shared.exchange.clone();
        self.asked.add(Box::new(TeamItem::new(exchange, key, fd, place.clone(), pending.clone())))?;
        Ok(pending)
    }

    fn enqueue_connection(&self, key: Key, endpoint: EndpointConfig) -> Result<Pending<Connection>> {
        if endpoint.timeout.is_zero() {
            let message = format!(
                "{key}: the endpoint's timeout is 0; give EndpointConfig::with_timeout the longest time that it may take to \
                 connect, and a call to wait for earlier operations (30 s by default)"
            );
            return Err(Error::usage("connect", message));
        }
        match endpoint.transport {
            Transport::CudaIpc => self.check_reach(key)?,
            Transport::Ethernet | Transport::Ib(_) if key.peer == self.rank() => {
                let message = format!(
                    "a connection over {} leads to another rank; to oneself use CudaIpc",
                    endpoint.transport
                );
                return Err(Error::usage("connect", message));
            }
            Transport::Ethernet | Transport::Ib(_) => {
                Transports::from(endpoint.transport).check("connect")?
            }
        }
        let pending = Pending::new(key);
        self.asked.add(Box::new(ConnectItem::new(
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
        if memory.is_local() && memory.context() != self.context() {
            let message = "the memory was registered by another rank of this process, or with another context; register it with this \
                           communicator";
            return Err(Error::usage(key.kind.op(), message));
        }
        let export = memory::export(self.exchange(), memory, key.peer)?;
        let pending = Pending::new(key);
        self.asked.add(Box::new(SendItem::new(
            self.shared.exchange.clone(),
            key,
            export,
            pending.clone(),
        )))?;
        Ok(pending)
    }

    pub(super) fn enqueue_recv(&self, key: Key) -> Result<Pending<RegisteredMemory>> {
        let pending = Pending::new(key);
        self.asked.add(Box::new(RecvItem::new(self.shared.exchange.clone(), key, pending.clone())))?;
        Ok(pending)
    }

    fn enqueue_semaphore<S: Flavour>(
        &self,
        connection: Dependency<Connection>,
        key: Key,
    ) -> Result<Pending<S>> {
        let pending = Pending::new(key);
        self.asked.add(Box::new(SemaphoreItem::new(
            self.shared.semaphores.clone(),
            key,
            connection,
            pending.clone(),
        )))?;
        Ok(pending)
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
