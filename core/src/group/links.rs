//! Opening and owning control links.
#![forbid(unsafe_code)]

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::abort::AbortCause;
use crate::deadline::Deadline;
use crate::env::Selection;
use crate::error::{Error, ErrorKind, Result};
use crate::group::config::GroupConfig;
use crate::group::control::{Control, Outcome, Service};
use crate::group::first_links::{eager_openers, eager_peers};
use crate::group::membership::Ranks;
use crate::group::peer::PeerInfo;
use crate::net::heartbeat::TICK;
use crate::net::{Address, Claims, Listener, Network, Reactor, ReactorConfig, Secret, tells_of_loss};

/// The purpose of control links in [`Claims`].
const PURPOSE: u16 = crate::net::purpose::CONTROL;
/// The purpose of the sockets of connections.
const DATA_PURPOSE: u16 = crate::net::purpose::DATA;

/// The secret of one communicator's links, and the claims that a rank proves with it.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    secret: Secret,
    network: Network,
    scope: u64,
    rank: u32,
    size: u32,
}

impl Identity {
    /// The identity of `rank` in the communicator that `seed`, which all ranks know, names. `secret` is the job's;
    /// where the bootstrap has none, the seed takes its place.
    pub(crate) fn new(rank: u32, size: u32, seed: [u8; 32], secret: Option<Secret>) -> Self {
        let seed = Secret::from_bytes(seed);
        let named = seed.derive("control scope");
        let mut scope = [0; 8];
        scope.copy_from_slice(&named.expose()[..8]);
        let secret = secret.unwrap_or(seed);
        let network = Network::new(secret.derive("control links")).with_max_frame(128 << 10).with_ranks(size);
        Self { secret, network, scope: u64::from_le_bytes(scope), rank, size }
    }

    /// The same with what `config` puts between the links and their sockets.
    pub(crate) fn through(mut self, config: &GroupConfig) -> Self {
        self.network = self.network.with_faults(config.faults.as_ref());
        if let Some(layer) = &config.layer {
            self.network = self.network.with_layer(layer.clone());
        }
        self
    }

    fn claims(&self, to: u32) -> Claims {
        Claims { purpose: PURPOSE, scope: self.scope, from: self.rank, to }
    }

    /// For the data of the connection to `peer` with `tag`.
    fn data_claims(&self, peer: u32, tag: u64) -> Claims {
        let scope = self.scope.wrapping_add(tag.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Claims { purpose: DATA_PURPOSE, scope, from: self.rank, to: peer }
    }
}

/// The sockets at which the other ranks find this one. A communicator of one rank has none.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    tcp: Vec<Listener>,
    unix: Option<Listener>,
}

impl Listeners {
    pub(crate) fn bind(identity: &Identity, config: &GroupConfig) -> Result<Self> {
        if identity.size == 1 {
            return Ok(Self::default());
        }
        let claims = identity.claims(Claims::ANY);
        let ip = match config.local_address {
            Some(ip) => ip,
            None => default_ip(&config.interfaces)?,
        };
        Ok(Self {
            tcp: vec![identity.network.listen_tcp(ip, claims)?],
            unix: Some(identity.network.listen_unix(claims)?),
        })
    }

    pub(crate) fn tcp(&self) -> Vec<SocketAddr> {
        self.tcp
            .iter()
            .filter_map(|listener| match listener.address() {
                Address::Tcp(address) => Some(*address),
                Address::Unix(_) => None,
            })
            .collect()
    }

    pub(crate) fn unix(&self) -> PathBuf {
        match self.unix.as_ref().map(Listener::address) {
            Some(Address::Unix(path)) => path.clone(),
            _ => PathBuf::new(),
        }
    }
}

/// The first address that other hosts can reach, of the interfaces that `sockets` names.
pub(crate) fn default_ip(sockets: &Selection) -> Result<IpAddr> {
    let chosen = crate::net::choose(sockets)?;
    chosen.first().map(|interface| interface.ip).ok_or_else(|| {
        Error::usage(
            "Communicator::new",
            "this host has no network interface that is up, not even the loopback",
        )
    })
}

/// How long a rank that cannot join stays to tell the others why.
const LINGER: Duration = Duration::from_millis(800);

/// The links of one communicator and the thread that serves them. Dropping it says BYE.
#[derive(Debug)]
pub(crate) struct Links {
    control: Arc<Control>,
    reactor: Reactor,
    identity: Identity,
    peers: Arc<[PeerInfo]>,
    peer_timeout: Option<Duration>,
}

impl Links {
    /// Starts the service thread, which answers those who open links to this rank, before this one knows them.
    pub(crate) fn serve(
        control: Arc<Control>,
        identity: Identity,
        listeners: Listeners,
        peer_timeout: Option<Duration>,
    ) -> Result<Self> {
        let reactor = Reactor::start(
            "aqueduct-ctl",
            ReactorConfig { tick: Some(TICK) },
            Box::new(Service(control.clone())),
        )?;
        listeners.tcp.into_iter().chain(listeners.unix).for_each(|listener| reactor.listen(listener));
        Ok(Self { control, reactor, identity, peers: Arc::default(), peer_timeout })
    }

    /// Opens the links that every communicator has; returns when those that others open to this rank are there too. A
    /// peer that does neither answer nor open its link counts as lost after the peer timeout, of which the others hear.
    pub(crate) fn meet(mut self, peers: Arc<[PeerInfo]>, deadline: Deadline) -> Result<Self> {
        let (rank, size) = (self.identity.rank, self.identity.size);
        self.peers = peers;
        self.control.introduce(&self.peers);
        let mine = &self.peers[rank as usize];
        if self.peers.iter().all(|peer| peer.same_host(mine)) {
            self.reactor.stop_listening_tcp();
        }
        let (to, from) = (eager_peers(rank, size), eager_openers(rank, size));
        // A rank may close the communicator as soon as it has it. It has met this one all the same.
        let opened = to.iter().try_for_each(|peer| match self.ensure(*peer, deadline) {
            Err(_) if self.control.has_said_bye(*peer) => Ok(()),
            ensured => ensured,
        });
        // Half as long again: a peer may have spent that time on one that is lost, which it will tell.
        let limit = self.peer_timeout.map(|timeout| timeout.saturating_mul(3) / 2);
        opened
            .and_then(|()| self.wait_linked(&from, limit, deadline))
            .map_err(|error| self.give_up(error))?;
        if to.len() + from.len() + 1 == size as usize {
            // Everyone is linked: stop listening, so that no socket file stays behind if this process is killed.
            self.reactor.stop_listening();
        }
        Ok(self)
    }

    /// This rank cannot join, for the reason `error`: sees to it that the others hear why, and not only that it has gone.
    pub(crate) fn give_up(&self, error: Error) -> Error {
        self.give_up_within(error, LINGER)
    }

    fn give_up_within(&self, error: Error, linger: Duration) -> Error {
        let (rank, size) = (self.identity.rank, self.identity.size);
        match (error.kind(), error.peer()) {
            (ErrorKind::PeerLost, Some(peer)) if peer < size && peer != rank => {
                self.control.lose(peer, error.message());
            }
            _ => {
                let reason = format!("it could not join: {}", error.message());
                self.control.abort().abort(AbortCause::requested(rank, reason));
            }
        }
        // The ranks that are told pass it on. A new link carries the reason first of all.
        let until = Deadline::after(linger);
        for peer in eager_peers(rank, size) {
            if !self.peers.is_empty() && self.control.check_reach("connect", peer).is_ok() {
                // A peer that cannot be reached is lost itself.
                let _ = self.ensure(peer, until);
            }
        }
        self.control.linger(&eager_openers(rank, size), until);
        error
    }

    pub(crate) fn rank(&self) -> u32 {
        self.identity.rank
    }

    /// The same for all ranks of this communicator, different for all others that a process is in.
    pub(crate) fn scope(&self) -> u64 {
        self.identity.scope
    }

    /// The description of every rank, in rank order.
    pub(crate) fn peers(&self) -> &[PeerInfo] {
        &self.peers
    }

    pub(crate) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// The network and the claims of this rank for the data socket of the connection to `peer` with `tag`.
    pub(crate) fn for_data(&self, peer: u32, tag: u64) -> (&Network, Claims) {
        (&self.identity.network, self.identity.data_claims(peer, tag))
    }

    /// Makes sure that there is a link to `peer`; to oneself none is needed.
    pub(crate) fn ensure(&self, peer: u32, deadline: Deadline) -> Result<()> {
        if peer == self.identity.rank {
            return Ok(());
        }
        self.control.check_reach("connect", peer)?;
        if self.control.link(peer).is_some() {
            return Ok(());
        }
        let (mine, theirs) = (&self.peers[self.identity.rank as usize], &self.peers[peer as usize]);
        let (network, claims) = (&self.identity.network, self.identity.claims(peer));
        // A peer that is there answers at once: its service thread does.
        let answer = self.peer_timeout.map_or(deadline, |timeout| deadline.min(Deadline::after(timeout)));
        let stream = if mine.same_host(theirs) {
            network.connect_unix(&theirs.unix, claims, answer)
        } else {
            network.connect_tcp(&theirs.tcp, claims, answer)
        };
        let stream = stream.map_err(|error| {
            let message =
                format!("cannot open a control link to rank {peer} (process {}): {error}", theirs.pid);
            if tells_of_loss(&error) && !deadline.expired() {
                self.control.lose(peer, &message);
            }
            // The first rank to notice may know better.
            match self.control.check("Communicator") {
                Err(cause) => cause,
                Ok(()) => Error::new(error.kind(), "Communicator", message).with_peer(peer),
            }
        })?;
        let link = self.reactor.add(stream);
        self.control.adopt(&link);
        // A rank that has left answers with BYE, which may have come already.
        self.control.check_reach("connect", peer)
    }

    fn wait_linked(&self, peers: &[u32], limit: Option<Duration>, deadline: Deadline) -> Result<()> {
        let until = limit.map_or(deadline, |limit| deadline.min(Deadline::after(limit)));
        let waited = self.control.wait_linked(peers, until);
        match waited.as_ref().map_err(|error| (error.kind(), error.peer())) {
            Err((ErrorKind::Timeout, Some(peer))) if !deadline.expired() => {
                self.control.lose(peer, "it did not open its control link");
                self.control.check("Communicator::new")
            }
            _ => waited,
        }
    }

    /// Takes part in agreeing on the next group, without the ranks `without`.
    pub(crate) fn agree(&self, without: &Ranks, deadline: Deadline) -> Result<Outcome> {
        self.control.agree(without, |peer| self.ensure(peer, deadline), deadline)
    }

    /// The secret of communicators that ranks of this one make among themselves.
    pub(crate) fn secret_of_successors(&self) -> Secret {
        self.identity.secret.derive("successors")
    }

    /// Says BYE and waits until it is on its way.
    pub(crate) fn leave(&self, deadline: Deadline) -> Result<()> {
        self.control.close().iter().try_for_each(|link| match link.flush(deadline) {
            // A peer that leaves, too, may have closed its end before it heard of us.
            Err(error) if error.kind() == ErrorKind::PeerLost => Ok(()),
            flushed => flushed,
        })
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.control.leave();
        if self.control.abort().is_aborted() {
            // Perhaps because a process was killed, which could not remove its socket.
            crate::net::sweep_sockets();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
