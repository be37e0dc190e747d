//! A member of a job that sends and receives messages.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::address::Address;
use super::config::MessengerConfig;
use super::credit::Amount;
use super::dispatch::{Watcher, finish};
use super::door::Door;
use super::engine::Engine;
use super::hello::{Hello, Verdict};
use super::hub::Hub;
use super::peer::Peer;
use super::tcp::Scratch;
use super::thread::Runner;
use super::verbs::Nic;
use crate::bootstrap::Bootstrap;
use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::logging::host_identity;
use crate::net::{
    Address as Socket, Claims, Frame, Handler as LinkHandler, Link, Listener, Network, Reactor,
    ReactorConfig, choose, purpose, random_bytes,
};
use crate::sync::{Mutex, OnceLock, lock};

/// The most interfaces to listen on.
const MAX_INTERFACES: usize = 8;

/// One member of a job: it listens, connects to others by their [`Address`], sends messages and dispatches those that
/// arrive.
///
/// Bytes move when somebody makes progress: [`poll`](Self::poll) in a loop for the lowest latency,
/// [`wait`](Self::wait) to sleep meanwhile. [`progress`](Self::progress) moves bytes and runs no code of the user's;
/// [`dispatch`](Self::dispatch) runs callbacks. Connections of others are answered by a service thread in any case.
#[derive(Debug)]
pub struct Messenger {
    pub(super) core: Arc<Core>,
    /// Ends before `core` does: it calls into it.
    reactor: Option<Reactor>,
    door: Arc<Door>,
    pub(super) runners: Mutex<Vec<Runner>>,
}

/// Held while connecting to one peer.
type Connecting = Arc<Mutex<()>>;

/// State that the messenger shares with callbacks of its service thread.
pub(super) struct Core {
    pub(super) engine: Arc<Engine>,
    pub(super) config: MessengerConfig,
    pub(super) address: Address,
    pub(super) network: Network,
    pub(super) me: Hello,
    /// The RDMA device, if one is wanted and there.
    pub(super) nic: Option<Arc<Nic>>,
    pub(super) scratch: Arc<Mutex<Scratch>>,
    pub(super) watcher: OnceLock<Box<Watcher>>,
    /// Where the ranks of a bootstrap that was joined are reached.
    addresses: Vec<Address>,
    /// Held while connecting to a peer, so that two threads make one connection.
    pub(super) connecting: Mutex<HashMap<(u32, u64), Connecting>>,
}

impl Messenger {
    /// Rank `rank` among those who know the secret of `config`, listening and knowing nobody yet. Ranks only name peers: they
    /// need not be dense, but two living messengers of a job must not have the same.
    ///
    /// # Errors
    /// `InvalidUsage` for settings that cannot be, and without a secret; `System`, `Exhausted`.
    pub fn new(rank: u32, config: MessengerConfig) -> Result<Self> {
        Self::start(rank, config, |_| Ok(Vec::new()))
    }

    /// As [`new`](Self::new), with the rank of `bootstrap`, and with its secret unless `config` has one; learns the addresses of all its
    /// ranks, for [`peer`](Self::peer). Collective; connects to nobody. A bootstrap without a secret, such as one of
    /// [`bootstrap::local`](crate::bootstrap::local), needs [`MessengerConfig::with_secret`], the same on all ranks.
    ///
    /// # Errors
    /// As [`new`](Self::new), and those of the bootstrap.
    pub fn join(
        bootstrap: &dyn Bootstrap,
        mut config: MessengerConfig,
        deadline: impl Into<Deadline>,
    ) -> Result<Self> {
        let deadline = deadline.into();
        config.secret = config.secret.or_else(|| bootstrap.secret());
        Self::start(bootstrap.rank(), config, |mine| {
            let all = bootstrap.all_gather(&mine.to_bytes(), deadline)?;
            all.iter().map(|bytes| Address::from_bytes(bytes)).collect()
        })
    }

    fn start(
        rank: u32,
        config: MessengerConfig,
        learn: impl FnOnce(&Address) -> Result<Vec<Address>>,
    ) -> Result<Self> {
        config.check()?;
        let Some(secret) = &config.secret else {
            let text =
                "messengers prove a secret to each other: give the job's with `MessengerConfig::with_secret`";
            return Err(Error::usage("Messenger", text));
        };
        if rank == Claims::ANY {
            return Err(Error::usage("Messenger", format!("{rank} cannot be a rank; use a smaller number")));
        }
        let network = config.network(secret);
        let nic = config.nic();
        let generation = u64::from_le_bytes(random_bytes()?);
        let claims = Claims { purpose: purpose::MESSAGES, scope: 0, from: rank, to: Claims::ANY };
        let (mut listeners, mut ips) = (Vec::<Listener>::new(), Vec::<SocketAddr>::new());
        for interface in choose(&config.interfaces)?.into_iter().take(MAX_INTERFACES) {
            let listener = network.listen_tcp(interface.ip, claims).map_err(|error| {
                if error.kind() == ErrorKind::Exhausted {
                    return error.of("Messenger");
                }
                let text = "no peer can connect; choose another interface with `MessengerConfig::with_interfaces` or `with_local_address`";
                Error::new(error.kind(), "Messenger", text).with_code(error.code()).with_source(error)
            })?;
            if let Socket::Tcp(ip) = listener.address() {
                ips.push(*ip);
            }
            listeners.push(listener);
        }
        let mut unix = None;
        // Without a place for sockets, processes of this host are reached over TCP.
        match config.shared_memory.then(|| network.listen_unix(claims)) {
            Some(Ok(listener)) => {
                if let Socket::Unix(path) = listener.address() {
                    unix = Some(path.clone());
                }
                listeners.push(listener);
            }
            Some(Err(error)) => log::warn!("messages within this host go over TCP: {error}"),
            None => {}
        }
        let address = Address { rank, generation, host: host_identity(), ips, unix };
        let addresses = learn(&address)?;
        let limits = config.limits;
        let me = Hello {
            rank,
            generation,
            meant: 0,
            eager: limits.eager as u32,
            read_depth: u32::try_from(limits.read_depth).unwrap_or(u32::MAX),
            ring: 0,
            verbs: 0,
            life: 0,
            inbox: Amount::of(&limits),
            verdict: Verdict::Taken,
        };
        let hub = Arc::new(Hub::new(limits, generation)?);
        let engine = Arc::new(Engine::new(hub.clone(), config.checks)?);
        let as_progress = Arc::downgrade(&engine);
        hub.set_engine(as_progress);
        let core = Arc::new(Core {
            engine,
            config,
            address,
            network,
            me,
            nic: nic.clone(),
            scratch: Arc::default(),
            watcher: OnceLock::default(),
            addresses,
            connecting: Mutex::default(),
        });
        let reactor = Reactor::start("aq-message", ReactorConfig::default(), Box::new(NoLinks))?;
        let (host, answering) = (Arc::downgrade(&core), Arc::downgrade(&core));
        let door = Arc::new(Door::new(
            me,
            nic,
            Box::new(move |hello| answering.upgrade().map(|core| core.engine.answer(hello))),
            Box::new(move |hello, handshake, raw, carrier| {
                if let Some(core) = host.upgrade() {
                    core.accepted(hello, handshake, raw, carrier);
                }
            }),
        )?);
        reactor.reserve().serve(door.clone());
        for listener in listeners {
            let door = door.clone();
            reactor.accept(
                listener,
                Box::new(move |stream| {
                    door.admit(stream);
                    true
                }),
            );
        }
        Ok(Self { core, reactor: Some(reactor), door, runners: Mutex::default() })
    }

    /// Where others reach this messenger.
    pub fn address(&self) -> &Address {
        &self.core.address
    }

    /// Pieces of memory that this messenger has registered with its RDMA device so far, those that are gone included; 0 without one.
    /// Neither messages nor reads of changing lengths let it grow for long: see docs/messages.md.
    pub fn registrations(&self) -> u64 {
        self.core.nic.as_ref().map_or(0, |nic| nic.registrations())
    }

    /// Connects to the messenger at `address`, or returns the peer if there is a link with it already, whichever side has
    /// made it. Any thread may call it; others go on meanwhile.
    ///
    /// # Errors
    /// `InvalidUsage` for the messenger's own rank. `PeerLost` if nobody answers there, or if it has been restarted since: then it has another
    /// address. `Authentication` if it has another secret or speaks another version, also where another job has got the port of one that
    /// ended. `Timeout`. `Remote` if it refuses: it has as many connections as it takes, in all or from this rank, for instance while earlier
    /// ones are still ending. `Exhausted` if this process has too few descriptors left.
    pub fn connect(&self, address: &Address, deadline: impl Into<Deadline>) -> Result<Peer> {
        self.core.connect(address, deadline.into()).map(|member| Peer { member })
    }

    /// The peer of rank `rank` of the bootstrap that was joined; connects to it if there is no link yet.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); `InvalidUsage` for a rank that the bootstrap does not have.
    pub fn peer(&self, rank: u32, deadline: impl Into<Deadline>) -> Result<Peer> {
        let Some(address) = self.core.addresses.get(rank as usize) else {
            let count = self.core.addresses.len();
            let text =
                format!("rank {rank} is not among the {count} that this messenger has joined; use `connect`");
            return Err(Error::usage("peer", text));
        };
        self.connect(address, deadline)
    }

    /// Says goodbye to all peers after what was sent to them, and ends. Dropping does the same, within the linger time.
    ///
    /// Messages that other threads send meanwhile may be dropped although their sends return `Done`. So are messages that have
    /// come and were not dispatched, and those that peers send before they learn of the end.
    ///
    /// Every completion has run when it returns, with one exception: a callback may close its own messenger, also on the thread
    /// of [`start_thread`](Self::start_thread). Then operations with that callback's peer end with `Stopped` when the callback
    /// has returned, nothing else is dispatched, and the thread ends after it. Callbacks that run on other threads of that kind end before
    /// this call returns, whoever makes it.
    ///
    /// # Errors
    /// `Timeout` if a peer did not take what was sent until `deadline`; the others got theirs.
    pub fn close(mut self, deadline: impl Into<Deadline>) -> Result<()> {
        self.end(deadline.into())
    }

    fn end(&mut self, deadline: Deadline) -> Result<()> {
        let Some(reactor) = self.reactor.take() else { return Ok(()) };
        let runners = std::mem::take(&mut *lock(&self.runners));
        if self.core.engine.hub.forked() {
            // The threads are the parent's.
            std::mem::forget(runners);
            return Ok(());
        }
        // Peers that were answered count on their links: they hear a goodbye on those as well.
        self.door.close();
        // One that never says that it has connected takes no more than half of the time: the others must get theirs.
        let (mut backoff, connected) = (Backoff::new(), deadline.half());
        while self.core.engine.hub.lives.has_handshakes() && !connected.expired() {
            backoff.pause(connected);
        }
        drop(reactor);
        // Before their callbacks are waited for, which may wait for room.
        self.core.engine.hub.begin_close();
        Runner::stop_all(runners, || self.core.engine.hub.alarm.wake());
        let (left, sent) = self.core.engine.leave(deadline);
        finish(&self.core.engine, left);
        sent
    }
}

impl Drop for Messenger {
    fn drop(&mut self) {
        if let Err(error) = self.end(Deadline::after(self.core.config.linger)) {
            log::warn!("{error}");
        }
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The service thread has listeners and the door, but no framed links.
struct NoLinks;

impl LinkHandler for NoLinks {
    fn frame(&mut self, _: &Link, _: Frame) -> Result<()> {
        Ok(())
    }

    fn closed(&mut self, _: &Link, _: &Error) {}
}
