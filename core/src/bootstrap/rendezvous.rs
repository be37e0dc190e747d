//! The meeting point: every rank says who it is and where it listens, and learns its first neighbours.
//!
//! This is the only step that goes through one process, and all it does is take one small message from every rank
//! and give one back with ceil(log2(n)) addresses. The ranks exchange the rest among themselves.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::collective::rounds;
use super::config::BootstrapConfig;
use super::unique_id::{UniqueId, read_address, write_address};
use super::{MAX_RANKS, check_size};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::net::{
    Address, Claims, Frame, Handler, Interface, Link, Reactor, ReactorConfig, Secret, purpose, random_bytes,
};
use crate::wire::{Reader, WireError, WireResult, Writer};

/// A rank's hello and the answers to it.
pub(super) const HELLO: u16 = 1;
pub(super) const NEIGHBOURS: u16 = 2;
pub(super) const REFUSED: u16 = 3;

const VERSION: u16 = 1;
const MAX_TEXT: usize = 4096;
/// How many missing ranks an error names.
const MAX_NAMED: usize = 16;
/// How long after an error ranks that come late are told about it.
const AFTERWORD: Duration = Duration::from_secs(5);
/// How long a rendezvous waits for the first rank: a batch system may hold back a job that has its id already.
const LONELY: Duration = Duration::from_secs(24 * 3600);
/// How often the deadlines are checked.
const TICK: Duration = Duration::from_millis(20);

/// The message of a rank that arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) rank: u32,
    pub(super) size: u32,
    /// How long the rank is willing to wait.
    pub(super) patience: Duration,
    pub(super) address: SocketAddr,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u16(VERSION).u32(self.rank).u32(self.size).u64(self.patience.as_millis() as u64);
        write_address(&mut w, Some(&self.address));
        w.finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> WireResult<Self> {
        let mut r = Reader::new(bytes);
        r.version(VERSION)?;
        let (rank, size, patience) = (r.u32()?, r.u32()?, Duration::from_millis(r.u64()?));
        let address = read_address(&mut r)?.ok_or(WireError::Invalid { what: "listening address" })?;
        r.finish()?;
        if rank >= size {
            return Err(WireError::Invalid { what: "rank, it is not below the number of ranks" });
        }
        Ok(Self { rank, size, patience, address })
    }
}

/// Reads the answer to a hello: the addresses of the ranks to send to first.
pub(super) fn read_answer(frame: &Frame, size: u32) -> Result<BTreeMap<u32, SocketAddr>> {
    let mut r = Reader::new(&frame.payload);
    r.version(VERSION)?;
    if frame.kind == REFUSED {
        let kind = match r.u32()? {
            code if code == ErrorKind::Timeout as u32 => ErrorKind::Timeout,
            code if code == ErrorKind::PeerLost as u32 => ErrorKind::PeerLost,
            _ => ErrorKind::InvalidUsage,
        };
        let text = r.text(MAX_TEXT)?;
        return Err(Error::new(kind, "bootstrap", text));
    }
    let mut neighbours = BTreeMap::new();
    for _ in 0..r.count(32, 28)? {
        let rank = r.u32()?;
        let address = read_address(&mut r)?.filter(|_| rank < size);
        neighbours.insert(rank, address.ok_or(WireError::Invalid { what: "neighbour" })?);
    }
    r.finish()?;
    Ok(neighbours)
}

/// Serves the start of one job with a thread of its own: for a launcher that makes the unique id and gives it to
/// the ranks it starts. Dropping it stops the service; ranks that have met already do not need it any more.
#[derive(Debug)]
pub struct Rendezvous {
    id: UniqueId,
    reactor: Reactor,
}

impl Rendezvous {
    /// Listens on the interface that the environment asks for (see [`choose`](crate::net::choose)). `size` is how many ranks will
    /// come; if it is `None`, the first one says so.
    pub fn start(size: Option<u32>) -> Result<Self> {
        Self::with_config(size, &BootstrapConfig::from_env()?)
    }

    /// [`start`](Self::start) with settings of its own.
    pub fn with_config(size: Option<u32>, config: &BootstrapConfig) -> Result<Self> {
        Self::listen(&config.choose()?, size, config)
    }

    /// [`start`](Self::start) on given interfaces; the id names the first [`UniqueId::MAX_ADDRESSES`] of them.
    #[doc(hidden)]
    pub fn start_on(interfaces: &[Interface], size: Option<u32>) -> Result<Self> {
        Self::listen(interfaces, size, &BootstrapConfig::from_env()?)
    }

    fn listen(interfaces: &[Interface], size: Option<u32>, config: &BootstrapConfig) -> Result<Self> {
        size.map_or(Ok(()), |size| check_size("UniqueId", size))?;
        if interfaces.is_empty() {
            return Err(Error::usage("UniqueId", "no network interface to listen on"));
        }
        let at =
            interfaces.iter().take(UniqueId::MAX_ADDRESSES).map(|interface| SocketAddr::new(interface.ip, 0));
        Self::serve(at, Secret::random()?, u64::from_le_bytes(random_bytes()?), size, config)
    }

    /// Listens at the address of `id`, which the ranks know without having been given the id.
    pub(super) fn at(id: &UniqueId, size: u32, config: &BootstrapConfig) -> Result<Self> {
        let at = id.addresses().iter().copied();
        Self::serve(at, id.secret().clone(), id.nonce(), Some(size), config)
    }

    fn serve(
        at: impl Iterator<Item = SocketAddr>,
        secret: Secret,
        nonce: u64,
        size: Option<u32>,
        config: &BootstrapConfig,
    ) -> Result<Self> {
        let local = Claims { purpose: purpose::RENDEZVOUS, scope: nonce, from: Claims::ANY, to: Claims::ANY };
        // All ranks may come at once, and none is to be sent away because of the others.
        let waiting = size.map_or(0, |size| size as usize).clamp(128, 4096);
        // Twice as many as needed, so that one rank too many is heard, and told what is wrong.
        let most = size.map_or(MAX_RANKS as usize, |size| 64 + 2 * size as usize);
        let network = config.network(&secret).with_max_pending(waiting).with_max_connections(most);
        let ticks = ReactorConfig { tick: Some(TICK) };
        let reactor = Reactor::start("aq-rendezvous", ticks, Box::new(Meeting::new(size, LONELY)))?;
        let mut addresses = Vec::new();
        for wanted in at {
            let listener = network.listen_tcp_at(wanted, local)?;
            if let Address::Tcp(address) = listener.address() {
                addresses.push(*address);
            }
            reactor.listen(listener);
        }
        Ok(Self { id: UniqueId::new(addresses, secret, nonce), reactor })
    }

    /// The id with which ranks find this rendezvous.
    pub fn unique_id(&self) -> &UniqueId {
        &self.id
    }

    /// Lets the service run on without an owner. It ends once all ranks have met or been told why they cannot, or after a
    /// day in which no rank came.
    pub fn detach(self) -> UniqueId {
        self.reactor.detach();
        self.id
    }
}

/// The state of one rendezvous.
struct Meeting {
    size: Option<u32>,
    /// When to end if no rank has come.
    lonely: Deadline,
    arrived: BTreeMap<u32, (Hello, Link)>,
    /// Hellos so far, refused ones included.
    hellos: u32,
    deadline: Option<Deadline>,
    failed: Option<Error>,
    until: Option<Deadline>,
}

impl Handler for Meeting {
    fn frame(&mut self, link: &Link, frame: Frame) -> Result<()> {
        if frame.kind != HELLO {
            return Err(WireError::Invalid { what: "message to a rendezvous" }.into());
        }
        let hello = Hello::decode(&frame.payload)?;
        if hello.rank != link.peer().from {
            return Err(WireError::Invalid { what: "rank, it differs from the one in the handshake" }.into());
        }
        self.hellos = self.hellos.saturating_add(1);
        if let Some(error) = &self.failed {
            return refuse(link, error);
        }
        if let Err(error) = self.admit(hello, link) {
            let _ = refuse(link, &error);
            self.fail(error);
        } else if self.size.is_some_and(|size| self.arrived.len() == size as usize) {
            self.introduce();
        }
        Ok(())
    }

    fn closed(&mut self, link: &Link, why: &Error) {
        let rank = link.peer().from;
        let theirs = self.arrived.get(&rank).is_some_and(|(_, known)| known.id() == link.id());
        if theirs && self.until.is_none() {
            self.fail(Error::peer_lost(
                "bootstrap",
                rank,
                format!("while ranks were joining: {}", why.message()),
            ));
        }
    }

    fn tick(&mut self) {
        if self.until.is_none() && self.deadline.is_some_and(Deadline::expired) {
            let error = self.missing();
            self.fail(error);
        } else if self.until.is_none() && self.hellos == 0 && self.lonely.expired() {
            log::debug!("nobody came to a rendezvous; it ends");
            self.until = Some(self.lonely);
        }
    }

    fn finished(&self) -> bool {
        self.until.is_some_and(|until| until.expired() || self.size.is_some_and(|size| self.hellos >= size))
    }
}

impl Meeting {
    fn new(size: Option<u32>, patience: Duration) -> Self {
        let (arrived, lonely) = (BTreeMap::new(), Deadline::after(patience));
        Self { size, lonely, arrived, hellos: 0, deadline: None, failed: None, until: None }
    }

    fn admit(&mut self, hello: Hello, link: &Link) -> Result<()> {
        if hello.size > MAX_RANKS {
            return Err(Error::usage(
                "bootstrap",
                format!(
                    "rank {} says there are {} ranks, the limit is {MAX_RANKS}; give all the same world size",
                    hello.rank, hello.size
                ),
            ));
        }
        let size = *self.size.get_or_insert(hello.size);
        if hello.size != size {
            let other = match self.arrived.keys().next() {
                Some(first) => format!("rank {first} says"),
                None => "the launcher says".to_owned(),
            };
            return Err(Error::usage(
                "bootstrap",
                format!(
                    "rank {} says there are {} ranks, {other} {size}; give all the same world size",
                    hello.rank, hello.size
                ),
            ));
        }
        if let Some((first, _)) = self.arrived.get(&hello.rank) {
            return Err(Error::usage(
                "bootstrap",
                format!(
                    "two ranks say they are rank {} (at {} and {}); every rank needs its own number",
                    hello.rank, first.address, hello.address
                ),
            ));
        }
        // The answer must reach the least patient rank before it gives up, so that it learns who is missing.
        let margin = (hello.patience / 10).clamp(Duration::from_millis(50), Duration::from_secs(1));
        let deadline = Deadline::after(hello.patience.saturating_sub(margin));
        self.deadline = Some(self.deadline.map_or(deadline, |known| known.min(deadline)));
        self.arrived.insert(hello.rank, (hello, link.clone()));
        Ok(())
    }

    /// All ranks are here: tells each the addresses of the ranks it sends to first.
    fn introduce(&mut self) {
        let size = self.arrived.len() as u32;
        for (rank, (_, link)) in &self.arrived {
            let first: Vec<u32> = rounds(*rank, size).map(|(to, _, _)| to).collect();
            let mut w = Writer::new();
            w.u16(VERSION).count(first.len());
            for neighbour in first {
                w.u32(neighbour);
                write_address(&mut w, self.arrived.get(&neighbour).map(|(hello, _)| &hello.address));
            }
            if let Err(error) = link.post(NEIGHBOURS, w.as_bytes()) {
                log::debug!("rank {rank} left the rendezvous early: {error}");
            }
        }
        self.until = Some(Deadline::after(Duration::ZERO));
    }

    fn fail(&mut self, error: Error) {
        // The lowest rank last: if it shares our process and exits at once, the others know already.
        for (_, link) in self.arrived.values().rev() {
            let _ = refuse(link, &error);
        }
        self.failed = Some(error);
        self.until = Some(Deadline::after(AFTERWORD));
    }

    /// Names the first ranks that are missing and counts the others, in time proportional to the ranks that are here.
    fn missing(&self) -> Error {
        let size = self.size.unwrap_or(0);
        let absent = size as usize - self.arrived.len();
        let first = (0..size).filter(|rank| !self.arrived.contains_key(rank)).take(MAX_NAMED);
        let mut names: Vec<String> = first.map(|rank| rank.to_string()).collect();
        if absent > names.len() {
            names.push(format!("and {} more", absent - names.len()));
        }
        let ranks = if absent == 1 { "rank" } else { "ranks" };
        Error::timeout(
            "bootstrap",
            format!(
                "{ranks} {} of {size} did not arrive in time; see whether they were started, and with the \
                 same unique id, address or file",
                names.join(", ")
            ),
        )
    }
}

fn refuse(link: &Link, error: &Error) -> Result<()> {
    let mut w = Writer::new();
    w.u16(VERSION).u32(error.kind() as u32).str_cut(error.message(), MAX_TEXT);
    link.post(REFUSED, w.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_when_nobody_comes_and_not_before() {
        let mut meeting = Meeting::new(None, Duration::from_secs(60));
        meeting.tick();
        assert!(!meeting.finished());
        let mut meeting = Meeting::new(Some(2), Duration::ZERO);
        meeting.tick();
        assert!(meeting.finished());
    }

    /// A rank that comes later may be the one that waits for the shortest time, and would give up without knowing for whom.
    #[cfg(not(loom))]
    #[test]
    fn the_least_patient_rank_is_told_in_time_who_is_missing() {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        let network = crate::net::Network::new(Secret::from_bytes([7; 32]));
        let claims = |from, to| Claims { purpose: purpose::RENDEZVOUS, scope: 1, from, to };
        let soon = Deadline::after(Duration::from_secs(30));
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = network.listen_tcp_at(address, claims(Claims::ANY, Claims::ANY)).unwrap();
        let Address::Tcp(address) = *listener.address() else { panic!("not TCP") };
        let handler = Box::new(Meeting::new(None, DAY));
        let reactor = Reactor::start("aq-test", ReactorConfig::default(), handler).unwrap();
        reactor.listen(listener);
        let stream = network.connect_tcp(&[address], claims(0, Claims::ANY), soon).unwrap();
        let link = reactor.add(stream);
        let admit = |meeting: &mut Meeting, rank, patience| {
            meeting.admit(Hello { rank, size: 4, patience, address }, &link).unwrap();
            meeting.tick();
        };
        for last in [0, 1] {
            let mut meeting = Meeting::new(Some(4), DAY);
            admit(&mut meeting, 1 - last, DAY);
            assert!(meeting.failed.is_none());
            admit(&mut meeting, 3, Duration::ZERO);
            let error = meeting.failed.unwrap();
            assert_eq!(error.kind(), ErrorKind::Timeout);
            assert!(error.message().contains(&format!("ranks {last}, 2 of 4 did not arrive")), "{error}");
        }
    }
}
