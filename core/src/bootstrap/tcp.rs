//! The bootstrap over TCP: each rank listens, and they talk directly.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::collective::{self, read_reason, write_reason};
use super::local::{check_length, no_such_rank};
use super::mailbox::Mailbox;
use super::unique_id::{UniqueId, read_address, write_address};
use super::{Bootstrap, MAX_MESSAGE};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::fork::Creator;
use crate::net::heartbeat::{Monitor, MonitoredLink, TICK};
use crate::net::{
    Address, Claims, Frame, Handler, Link, Network, Reactor, ReactorConfig, Secret, Stream, purpose,
    tells_of_loss,
};
use crate::sync::{Mutex, lock, lock_until};
use crate::wire::{Reader, WireError, WireResult, Writer};

pub(super) const MESSAGE: u16 = 1;
/// A frame without content: a sign of life.
const ALIVE: u16 = 2;
/// The last frame of a rank that leaves because it has lost another one: why.
const FAREWELL: u16 = 3;

/// A rank's bootstrap over TCP.
///
/// Every connection proves the unique id's secret. Connections to other ranks are made at the first message to
/// them; each rank has one service thread, which also gives signs of life: a rank that is stopped, or cannot be reached any
/// more, counts as lost after `AQUEDUCT_PEER_TIMEOUT`. A rank that has got `PeerLost` from a call and is dropped tells the
/// ranks it is connected with: whoever waits for it learns which rank was lost first, and not only that this one has left.
#[derive(Debug)]
pub struct TcpBootstrap {
    rank: u32,
    size: u32,
    scope: u64,
    ip: IpAddr,
    secret: Secret,
    network: Network,
    peer_timeout: Option<Duration>,
    addresses: Vec<Option<SocketAddr>>,
    /// The link that this rank sends on, per peer: one and the same for good, so that messages stay in order.
    outgoing: Mutex<HashMap<u32, Arc<Mutex<Option<Link>>>>>,
    peers: Arc<Peers>,
    /// The first loss that a call has returned.
    loss: Mutex<Option<Error>>,
    creator: Creator,
    // Last: its drop closes the links in an orderly way.
    reactor: Reactor,
}

impl TcpBootstrap {
    /// Rank `rank` of `size` of the job with this `id`, listening at `ip` and knowing no other rank yet; and where
    /// others reach it.
    pub(super) fn listen(
        (rank, size): (u32, u32),
        id: &UniqueId,
        network: Network,
        ip: IpAddr,
        peer_timeout: Option<Duration>,
    ) -> Result<(Self, SocketAddr)> {
        let scope = id.nonce();
        let peers = Arc::new(Peers::new(peer_timeout));
        let listener = network
            .listen_tcp(ip, Claims { purpose: purpose::BOOTSTRAP, scope, from: rank, to: Claims::ANY })?;
        let Address::Tcp(address) = *listener.address() else {
            return Err(Error::new(ErrorKind::Internal, "bootstrap", "a TCP listener without an IP address"));
        };
        let reactor = Reactor::start(
            "aq-bootstrap",
            ReactorConfig { tick: Some(TICK) },
            Box::new(Receiver(peers.clone())),
        )?;
        reactor.listen(listener);
        let (addresses, outgoing) = (vec![None; size as usize], Mutex::default());
        let secret = id.secret().derive("communicators");
        let this = Self {
            rank,
            size,
            scope,
            ip,
            secret,
            network,
            peer_timeout,
            addresses,
            outgoing,
            peers,
            loss: Mutex::default(),
            creator: Creator::current(),
            reactor,
        };
        Ok((this, address))
    }

    /// Learns the addresses of all ranks over those of the first `neighbours`, and tells them this rank's own, `mine`.
    pub(super) fn meet(
        &mut self,
        neighbours: BTreeMap<u32, SocketAddr>,
        mine: SocketAddr,
        deadline: Deadline,
    ) -> Result<()> {
        for (neighbour, address) in neighbours {
            self.addresses[neighbour as usize] = Some(address);
        }
        self.addresses = self.learn_addresses(mine, deadline)?;
        Ok(())
    }

    /// The address at which the other ranks reach this one: where its further listeners belong.
    pub fn local_ip(&self) -> IpAddr {
        self.ip
    }

    /// How many connections with other ranks this one has, and how many bytes it has sent on them so far, handshakes and
    /// the hello to the rendezvous left out.
    #[doc(hidden)]
    pub fn traffic(&self) -> (usize, u64) {
        let links = lock(&self.peers.links);
        let links = links.values().flat_map(|peer| &peer.open);
        links.fold((0, 0), |(count, bytes), line| (count + 1, bytes + line.link.sent()))
    }

    /// Everybody's address, exchanged in ceil(log2(n)) rounds with the neighbours known so far.
    fn learn_addresses(&self, mine: SocketAddr, deadline: Deadline) -> Result<Vec<Option<SocketAddr>>> {
        let mut w = Writer::new();
        write_address(&mut w, Some(&mine));
        let all = self.all_gather(w.as_bytes(), deadline)?;
        all.iter()
            .map(|bytes| {
                let mut r = Reader::new(bytes);
                let address = read_address(&mut r)?;
                r.finish()?;
                Ok(address)
            })
            .collect()
    }

    /// Returns an error unless `peer` exists and this process joined the job: a forked child would speak in its parent's name,
    /// over the same sockets.
    fn check_peer(&self, op: &'static str, peer: u32) -> Result<()> {
        if self.creator.forked() {
            return Err(Error::usage(
                op,
                "a bootstrap does not survive fork; join the job in the parent, or after exec",
            ));
        }
        if peer >= self.size {
            return Err(no_such_rank(op, peer, self.size));
        }
        Ok(())
    }

    /// The link to send to `peer` on: the one in use, or one that the peer has opened, or a new one.
    fn link_to(&self, peer: u32, deadline: Deadline) -> Result<Link> {
        let slot = lock(&self.outgoing).entry(peer).or_default().clone();
        let mut slot = lock_until(&slot, deadline, "send", "another thread to connect to the same rank")?;
        if let Some(link) = slot.as_ref() {
            return Ok(link.clone());
        }
        if let Some(error) = self.peers.mailbox.lost(peer) {
            return Err(error.of("send"));
        }
        let link = match self.peers.open_link_or_connecting(peer) {
            Some(link) => link,
            None => {
                let stream = self.connect(peer, deadline);
                self.peers.connected(peer, stream, &self.reactor)?
            }
        };
        Ok(slot.insert(link).clone())
    }

    /// Remembers the first loss, for those who will wait for this rank when it has left.
    fn remember(&self, error: &Error) {
        if error.kind() == ErrorKind::PeerLost {
            lock(&self.loss).get_or_insert_with(|| error.clone());
        }
    }

    fn connect(&self, peer: u32, deadline: Deadline) -> Result<Stream> {
        let address = self.addresses[peer as usize].ok_or_else(|| {
            Error::new(ErrorKind::Internal, "send", format!("the address of rank {peer} is not known"))
        })?;
        let me = Claims { purpose: purpose::BOOTSTRAP, scope: self.scope, from: self.rank, to: peer };
        // A rank that is there answers at once: its service thread does.
        let answer = self.peer_timeout.map_or(deadline, |timeout| deadline.min(Deadline::after(timeout)));
        let stream = self.network.connect_tcp(&[address], me, answer);
        stream.map_err(|error| {
            if tells_of_loss(&error) {
                return Error::peer_lost("send", peer, "it cannot be reached").with_source(error);
            }
            let text = format!("cannot connect to rank {peer}");
            Error::new(error.kind(), "send", text).with_code(error.code()).with_peer(peer).with_source(error)
        })
    }
}

impl Bootstrap for TcpBootstrap {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn send(&self, peer: u32, tag: u64, bytes: &[u8], deadline: Deadline) -> Result<()> {
        check_length(bytes)?;
        self.check_peer("send", peer)?;
        if peer == self.rank {
            return self.peers.mailbox.deliver(peer, tag, bytes.to_vec());
        }
        let mut w = Writer::new();
        w.u64(tag).raw(bytes);
        let link = self.link_to(peer, deadline);
        // Wait until the kernel has it, so that dropping the bootstrap right after this loses nothing.
        let sent = link.and_then(|link| link.send(MESSAGE, w.as_bytes(), deadline));
        sent.map_err(|error| self.peers.farewell(peer).unwrap_or(error).of("send"))
            .inspect_err(|error| self.remember(error))
    }

    fn recv(&self, peer: u32, tag: u64, deadline: Deadline) -> Result<Vec<u8>> {
        self.check_peer("recv", peer)?;
        self.peers.mailbox.take(peer, tag, deadline).inspect_err(|error| self.remember(error))
    }

    fn all_gather(&self, mine: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        collective::all_gather(self, mine, deadline).inspect_err(|error| self.remember(error))
    }

    fn broadcast(&self, root: u32, bytes: &[u8], deadline: Deadline) -> Result<Vec<u8>> {
        collective::broadcast(self, root, bytes, deadline).inspect_err(|error| self.remember(error))
    }

    fn barrier(&self, deadline: Deadline) -> Result<()> {
        collective::barrier(self, deadline).inspect_err(|error| self.remember(error))
    }

    fn group_barrier(&self, ranks: &[u32], deadline: Deadline) -> Result<()> {
        collective::group_barrier(self, ranks, deadline).inspect_err(|error| self.remember(error))
    }

    fn secret(&self) -> Option<Secret> {
        Some(self.secret.clone())
    }
}

impl Drop for TcpBootstrap {
    fn drop(&mut self) {
        if self.creator.forked() {
            return;
        }
        let Some(error) = lock(&self.loss).take() else { return };
        let mut w = Writer::new();
        write_reason(&mut w, &error);
        for link in self.peers.all_links() {
            // The reactor sends it before it closes the link. A peer that cannot be told notices that this rank has gone.
            let _ = link.post(FAREWELL, w.as_bytes());
        }
    }
}

/// State shared by the service thread and the callers.
#[derive(Debug)]
struct Peers {
    mailbox: Mailbox,
    links: Mutex<HashMap<u32, PeerLinks>>,
    watch: Mutex<Monitor>,
}

/// The connections with one peer.
#[derive(Debug, Default)]
struct PeerLinks {
    /// Two if both sides connected at the same time.
    open: Vec<MonitoredLink>,
    /// Set while this side connects: the peer may have sent on that connection and closed all others already.
    connecting: bool,
    /// Why the last link closed, while it is not known yet whether there will be another.
    closed: Option<Error>,
    /// Why the peer leaves, if it has said so.
    farewell: Option<Error>,
}

impl Peers {
    fn new(patience: Option<Duration>) -> Self {
        let (mailbox, links) = (Mailbox::default(), Mutex::default());
        Self { mailbox, links, watch: Mutex::new(Monitor::new(patience)) }
    }

    fn accepted(&self, peer: u32, link: &Link) {
        lock(&self.links).entry(peer).or_default().open.push(MonitoredLink::new(link.clone()));
    }

    fn heard(&self, link: &Link) {
        let mut links = lock(&self.links);
        let mut lines = links.entry(link.peer().from).or_default().open.iter_mut();
        if let Some(line) = lines.find(|line| line.link.id() == link.id()) {
            line.hear(Instant::now());
        }
    }

    fn all_links(&self) -> Vec<Link> {
        let links = lock(&self.links);
        links.values().flat_map(|peer| &peer.open).map(|line| line.link.clone()).collect()
    }

    /// Why `peer` leaves, if it has said so.
    fn farewell(&self, peer: u32) -> Option<Error> {
        lock(&self.links).get(&peer)?.farewell.clone()
    }

    fn leaves(&self, peer: u32, why: Error) {
        lock(&self.links).entry(peer).or_default().farewell.get_or_insert(why);
    }

    /// Sends signs of life where one is due, and gives up peers that have been silent for too long.
    fn keep_watch(&self) {
        let (now, mut quiet, mut silent) = (Instant::now(), Vec::new(), Vec::new());
        {
            let (mut links, mut watch) = (lock(&self.links), lock(&self.watch));
            watch.look(now, links.values_mut().flat_map(|links| &mut links.open));
            for line in links.values_mut().flat_map(|links| &mut links.open) {
                match watch.silence(line, now) {
                    Some(why) => silent.push((line.link.clone(), why)),
                    None if watch.is_on() && line.beat(now) => quiet.push(line.link.clone()),
                    None => {}
                }
            }
        }
        for link in quiet {
            // An error is found by the service thread, too.
            let _ = link.post(ALIVE, &[]);
        }
        for (link, why) in silent {
            let peer = link.peer().from;
            let why = Error::peer_lost("recv", peer, why);
            link.give_up(&why);
            self.closed(peer, &link, &why);
        }
    }

    /// A link that the peer has opened; `None` marks the start of a connection, which [`Self::connected`] ends.
    fn open_link_or_connecting(&self, peer: u32) -> Option<Link> {
        let mut links = lock(&self.links);
        let links = links.entry(peer).or_default();
        links.connecting = links.open.is_empty();
        links.open.first().map(|line| line.link.clone())
    }

    fn connected(&self, peer: u32, stream: Result<Stream>, reactor: &Reactor) -> Result<Link> {
        let mut links = lock(&self.links);
        let links = links.entry(peer).or_default();
        links.connecting = false;
        let closed = links.closed.take();
        match stream {
            Ok(stream) => {
                // Under the lock: the service thread cannot close the link before it is in the list.
                let link = reactor.add(stream);
                links.open.push(MonitoredLink::new(link.clone()));
                Ok(link)
            }
            Err(error) => {
                if let Some(why) = closed.filter(|_| links.open.is_empty()) {
                    self.mailbox.lose(peer, why);
                }
                Err(error)
            }
        }
    }

    fn closed(&self, peer: u32, link: &Link, why: &Error) {
        let mut links = lock(&self.links);
        let links = links.entry(peer).or_default();
        links.open.retain(|known| known.link.id() != link.id());
        let why = links.farewell.as_ref().unwrap_or(why);
        // The last link: what came over the others has been delivered before, and a connection that the peer made
        // before it closed this one is in the list, because it does not count as made before we have taken it.
        if links.open.is_empty() {
            if links.connecting {
                links.closed = Some(why.clone());
            } else {
                self.mailbox.lose(peer, why.clone());
            }
        }
    }
}

/// The content of a frame.
pub(super) enum Heard {
    /// A message with its tag.
    Message(u64, Vec<u8>),
    SignOfLife,
    /// Why the peer leaves.
    Farewell(Error),
}

/// Decodes a frame of rank `from`.
pub(super) fn read_frame(from: u32, mut frame: Frame) -> WireResult<Heard> {
    match frame.kind {
        MESSAGE => {}
        ALIVE => return Ok(Heard::SignOfLife),
        FAREWELL => return read_reason("recv", from, Reader::new(&frame.payload)).map(Heard::Farewell),
        _ => return Err(WireError::Invalid { what: "kind of a bootstrap message" }),
    }
    let mut r = Reader::new(&frame.payload);
    let tag = r.u64()?;
    if r.remaining() > MAX_MESSAGE {
        return Err(WireError::TooLong { length: r.remaining() as u64, limit: MAX_MESSAGE as u64 });
    }
    frame.payload.drain(..8);
    Ok(Heard::Message(tag, frame.payload))
}

/// The service thread's side. Holds the shared state, never the bootstrap.
struct Receiver(Arc<Peers>);

impl Handler for Receiver {
    fn accepted(&mut self, link: &Link) {
        self.0.accepted(link.peer().from, link);
    }

    fn frame(&mut self, link: &Link, frame: Frame) -> Result<()> {
        self.0.heard(link);
        let from = link.peer().from;
        match read_frame(from, frame)? {
            Heard::Message(tag, message) => self.0.mailbox.deliver(from, tag, message)?,
            Heard::Farewell(why) => self.0.leaves(from, why),
            Heard::SignOfLife => {}
        }
        Ok(())
    }

    fn closed(&mut self, link: &Link, why: &Error) {
        self.0.closed(link.peer().from, link, why);
    }

    fn tick(&mut self) {
        self.0.keep_watch();
    }
}
