//! How links to other messengers come to be: over shared memory to processes of the same host and user; to the others over
//! queue pairs if both have a device and use it, otherwise over TCP.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::address::Address;
use super::carrier::Carrier;
use super::handshake::Handshake;
use super::hello::{CONNECTED, Heard, Hearing, Hello, NOT_CONNECTED, Verdict};
use super::line::Line;
use super::member::Member;
use super::messenger::Core;
use super::ring::{RingMemory, RingWire, Rings};
use super::tcp::TcpWire;
use super::verbs::{Draft, Offer, VerbsWire};
use super::wire::Wire;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::net::ready::wait_readable;
use crate::net::{Claims, RawStream, purpose, tells_of_loss};
use crate::sync::{lock, lock_until};

/// For how long refusals over TCP may come from a host that is overloaded.
const REFUSALS: Duration = Duration::from_secs(1);

impl Core {
    /// The living peer of this rank and generation, if its life is not over.
    fn known(&self, rank: u32, generation: u64) -> Option<Arc<Member>> {
        let is_there = |member: &&Arc<Member>| {
            member.generation == generation && member.end().is_none() && !member.is_superseded()
        };
        lock(&self.engine.members).get(&rank).filter(is_there).cloned()
    }

    /// See [`Messenger::connect`](super::Messenger::connect).
    pub(super) fn connect(&self, address: &Address, deadline: Deadline) -> Result<Arc<Member>> {
        self.engine.hub.check_process("connect")?;
        let (rank, generation) = (address.rank, address.generation);
        if rank == self.me.rank {
            let text =
                format!("rank {rank} is this messenger's own; call what the message would have called");
            return Err(Error::usage("connect", text));
        }
        if let Some(member) = self.known(rank, generation) {
            return Ok(member);
        }
        let slot = lock(&self.connecting).entry((rank, generation)).or_default().clone();
        let guard = lock_until(&slot, deadline, "connect", "another thread to connect to the same peer")?;
        let connected = loop {
            if let Some(member) = self.known(rank, generation) {
                break Ok(member);
            }
            let life = self.engine.hub.lives.life(rank, generation);
            let dialled = self.dial(address, deadline);
            // Another link may have been made meanwhile, and this one be of an earlier life of the peer.
            if dialled.is_ok()
                && let Some(member) = self.known(rank, generation)
            {
                break Ok(member);
            }
            // A link of an earlier life may have ended meanwhile: the peer must be told so.
            if dialled.is_ok() || self.engine.hub.lives.life(rank, generation) == life || deadline.expired() {
                break dialled;
            }
        };
        drop(guard);
        lock(&self.connecting).remove(&(rank, generation));
        connected
    }

    fn dial(&self, address: &Address, deadline: Deadline) -> Result<Arc<Member>> {
        let rank = address.rank;
        let claims = Claims { purpose: purpose::MESSAGES, scope: 0, from: self.me.rank, to: rank };
        if let Some(member) = self.dial_here(address, claims, deadline)? {
            return Ok(member);
        }
        // An address is known once its messenger listens, so a refusal never means "not yet". It comes before the deadline.
        let patience = REFUSALS.min(deadline.remaining() / 2);
        let network = self.network.clone().with_patience(patience);
        let stream = network.connect_tcp(&address.ips, claims, deadline).map_err(|error| {
            if error.kind() != ErrorKind::Timeout && tells_of_loss(&error) {
                return Error::peer_lost("connect", rank, "nobody answers at its address").with_source(error);
            }
            error.of("connect").with_peer(rank)
        })?;
        let raw = stream.into_raw();
        let handshake = Handshake::begin(&self.engine.hub, rank, address.generation);
        let draft = self.draft(rank);
        let offer = draft.as_ref().map(Draft::offer);
        let heard = self
            .introduce(&*raw, handshake.life, None, offer, address, deadline)
            .map_err(|error| error.with_peer(rank))?;
        let carrier = match (draft, heard.offer) {
            (Some(draft), Some(theirs)) => meet(&*raw, rank, draft, &theirs)?,
            _ => Carrier::Socket,
        };
        self.establish(heard.hello, handshake, raw, carrier, false)
    }

    /// A queue pair to offer to rank `rank`, if this side has a device.
    fn draft(&self, rank: u32) -> Option<Draft> {
        let draft = Draft::new(self.nic.as_ref()?, self.me.eager as usize);
        draft.inspect_err(|error| log::info!("messages with rank {rank} go over TCP: {error}")).ok()
    }

    /// Connects over shared memory. `None` if the other side is not a process of this host and user that can be reached so:
    /// then TCP says what is wrong, or works.
    fn dial_here(
        &self,
        address: &Address,
        claims: Claims,
        deadline: Deadline,
    ) -> Result<Option<Arc<Member>>> {
        let Some(path) = address.unix().filter(|_| self.config.shared_memory) else { return Ok(None) };
        // Other containers of the host have other directories.
        if address.host != self.address.host || !path.exists() {
            return Ok(None);
        }
        // A process that was killed leaves its socket's name behind. TCP has the last word.
        let network = self.network.clone().with_patience(Duration::ZERO);
        let stream = match network.connect_unix(path, claims, deadline) {
            Ok(stream) => stream,
            Err(error) => {
                log::debug!("rank {} is not reached over shared memory: {error}", address.rank);
                return Ok(None);
            }
        };
        let raw = stream.into_raw();
        let handshake = Handshake::begin(&self.engine.hub, address.rank, address.generation);
        let made = RingMemory::for_rank(address.rank, self.me.eager as usize);
        let heard = self
            .introduce(&*raw, handshake.life, made.as_ref(), None, address, deadline)
            .map_err(|error| error.with_peer(address.rank))?;
        if heard.hello.ring > 0 && heard.ring.is_none() {
            // The peer uses the rings from here on.
            let text = "no descriptor is left for the memory that the peer hands over";
            let error = Error::system("connect", text, std::io::Error::from_raw_os_error(libc::EMFILE));
            return Err(error.with_peer(address.rank));
        }
        let rings = made.zip(heard.ring).map(|((inbound, _), outbound)| Rings { inbound, outbound });
        let carrier = rings.map_or(Carrier::Socket, Carrier::Rings);
        self.establish(heard.hello, handshake, raw, carrier, false).map(Some)
    }

    /// Introduces this side, which is in its `life` with the peer and has made the ring in `made` for the other one or has a
    /// queue pair to offer, and hears the other.
    fn introduce(
        &self,
        raw: &dyn RawStream,
        life: u32,
        made: Option<&(RingMemory, OwnedFd)>,
        offer: Option<Offer>,
        address: &Address,
        deadline: Deadline,
    ) -> Result<Heard> {
        let rank = address.rank;
        if !(Hello { meant: address.generation, life, ..self.me }).send(raw, made, offer) {
            return Err(Error::peer_lost("connect", rank, "it closed the connection at once"));
        }
        let mut hearing = Hearing::new();
        let heard = loop {
            if let Some(heard) = hearing.hear(raw)? {
                break heard;
            }
            wait_readable(raw.fd(), deadline)
                .map_err(|error| Error::system("connect", "cannot wait on a socket", error))?;
            deadline.check("connect", "a peer to introduce itself")?;
        };
        if heard.offer.is_some() && offer.is_none() {
            let text = "it answered with a queue pair that nobody asked for";
            return Err(Error::new(ErrorKind::Remote, "connect", text));
        }
        let hello = heard.hello;
        match hello.verdict {
            Verdict::Taken if (hello.rank, hello.generation) == (rank, address.generation) => Ok(heard),
            Verdict::Taken => {
                Err(Error::new(ErrorKind::Remote, "connect", "another messenger than the one meant answered"))
            }
            Verdict::OtherGeneration => {
                Err(Error::peer_lost("connect", rank, "it was restarted; get its new address"))
            }
        }
    }

    /// A peer has connected. On the service thread.
    pub(super) fn accepted(
        &self,
        hello: Hello,
        handshake: Handshake,
        raw: Box<dyn RawStream>,
        carrier: Carrier,
    ) {
        if let Err(error) = self.establish(hello, handshake, raw, carrier, true) {
            log::warn!("{error}");
        }
    }

    /// Makes a link of an introduced connection, and a peer if there is none yet. The handshake ends when the link can be seen.
    fn establish(
        &self,
        hello: Hello,
        handshake: Handshake,
        raw: Box<dyn RawStream>,
        carrier: Carrier,
        accepted: bool,
    ) -> Result<Arc<Member>> {
        let limits = &self.config.limits;
        let wire: Box<dyn Wire> = match carrier {
            Carrier::Rings(rings) => Box::new(RingWire::new(raw, rings)),
            Carrier::Verbs(link) => Box::new(VerbsWire::new(raw, *link, self.config.peer_timeout)),
            Carrier::Socket => Box::new(TcpWire::new(
                raw,
                limits.send_buffer,
                self.scratch.clone(),
                self.config.peer_timeout,
            )),
        };
        let longest = wire.max_body();
        let exposures = self.engine.hub.exposures.clone();
        let line = Arc::new(Line::new(self.config.wrap(wire), hello.read_depth as usize, exposures));
        let mut stale = None;
        let mut members = lock(&self.engine.members);
        let known = members.get(&hello.rank).filter(|member| member.generation == hello.generation);
        if let Some(earlier) = known.filter(|member| member.is_before(hello.life)) {
            // It was in another link's handshake that this side heard of the later life, after it had told its own life in this one.
            earlier.supersede();
        }
        let is_outdated = known.is_some_and(|member| member.is_behind(hello.life));
        if self.engine.hub.lives.life(hello.rank, hello.generation) != handshake.life {
            // The peer takes this link for one of those that have ended.
            let text = "its links were closed here meanwhile; connect again";
            return Err(Error::peer_lost("connect", hello.rank, text));
        }
        // A peer in a later life has ended its earlier links, and counts its credit anew.
        let is_same = |member: &&Arc<Member>| {
            (member.generation, member.life) == (hello.generation, hello.life) && member.end().is_none()
        };
        let known = members.get(&hello.rank).filter(is_same).cloned();
        let member = known.unwrap_or_else(|| {
            let identity = (hello.rank, hello.generation, hello.life);
            let eager = limits.eager.min(hello.eager as usize).min(longest);
            let member = Arc::new(Member::new(identity, self.engine.hub.clone(), eager, hello.inbox));
            if is_outdated {
                // The peer has ended this link, and has connected anew, before it was made here: it is read to its end, which does not end the
                // life of the link that came after it, and nobody gets it. What has not been dispatched of the later life waits for that.
                member.leave_uncounted();
                self.engine.hub.departures.add(member.rank, member.clone());
            } else {
                stale = members.insert(hello.rank, member.clone());
            }
            member
        });
        let added = member.add_line(line.clone());
        drop(members);
        if let Some(stale) = stale {
            let restarted = stale.generation != hello.generation;
            self.engine.replace(stale, restarted);
        }
        added?;
        if accepted {
            member.accept();
        }
        self.engine.add(member.clone(), line);
        drop(handshake);
        Ok(member)
    }
}

/// Connects the queue pair `draft` to `theirs`, and tells the peer, rank `rank`, whether that was possible.
fn meet(raw: &dyn RawStream, rank: u32, draft: Draft, theirs: &Offer) -> Result<Carrier> {
    let (word, carrier) = match draft.connect(theirs) {
        Ok(link) => (CONNECTED, Carrier::Verbs(Box::new(link))),
        Err(error) => {
            log::info!("messages with rank {rank} go over TCP: {error}");
            (NOT_CONNECTED, Carrier::Socket)
        }
    };
    match raw.write(&[word], &[]) {
        Ok(1) => Ok(carrier),
        _ => Err(Error::peer_lost("connect", rank, "it closed the connection at once")),
    }
}
