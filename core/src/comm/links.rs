//! Opening and owning control links.
#![forbid(unsafe_code)]

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use super::config::CommunicatorConfig;
use super::control::{Control, Service};
use super::neighbours::{eager_openers, eager_peers};
use super::peer::PeerInfo;
use super::standing::TICK;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::net::{Address, Claims, Listener, Network, Reactor, ReactorConfig, Secret};

/// The purpose of control links in [`Claims`].
const PURPOSE: u16 = 2;

/// Who proves what to whom on the links of one communicator.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    network: Network,
    scope: u64,
    rank: u32,
    size: u32,
}

impl Identity {
    /// The identity of `rank` in the communicator that `seed`, which all ranks know, names. `secret` is the job's;
    /// where the bootstrap has none, the seed takes its place.
    pub(super) fn new(rank: u32, size: u32, seed: [u8; 32], secret: Option<Secret>) -> Self {
        let seed = Secret::from_bytes(seed);
        let named = seed.derive("control scope");
        let mut scope = [0; 8];
        scope.copy_from_slice(&named.expose()[..8]);
        let network = Network::new(secret.unwrap_or(seed).derive("control links")).with_max_frame(128 << 10);
        Self { network, scope: u64::from_le_bytes(scope), rank, size }
    }

    fn claims(&self, to: u32) -> Claims {
        Claims { purpose: PURPOSE, scope: self.scope, from: self.rank, to }
    }
}

/// The sockets at which the other ranks find this one. A communicator of one rank has none.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    tcp: Vec<Listener>,
    unix: Option<Listener>,
}

impl Listeners {
    pub(super) fn bind(identity: &Identity, config: &CommunicatorConfig) -> Result<Self> {
        if identity.size == 1 {
            return Ok(Self::default());
        }
        let claims = identity.claims(Claims::ANY);
        let ip = match config.interface {
            Some(ip) => ip,
            None => default_ip()?,
        };
        Ok(Self {
            tcp: vec![identity.network.listen_tcp(ip, claims)?],
            unix: Some(identity.network.listen_unix(claims)?),
        })
    }

    pub(super) fn tcp(&self) -> Vec<SocketAddr> {
        self.tcp
            .iter()
            .filter_map(|listener| match listener.address() {
                Address::Tcp(address) => Some(*address),
                Address::Unix(_) => None,
            })
            .collect()
    }

    pub(super) fn unix(&self) -> PathBuf {
        match self.unix.as_ref().map(Listener::address) {
            Some(Address::Unix(path)) => path.clone(),
            _ => PathBuf::new(),
        }
    }
}

/// The first address that other hosts can reach, by the environment's wishes.
fn default_ip() -> Result<IpAddr> {
    let chosen = crate::net::choose(&crate::env::Env::get()?.selection())?;
    chosen.first().map(|interface| interface.ip).ok_or_else(|| {
        Error::usage(
            "Communicator::new",
            "this host has no network interface that is up, not even the loopback",
        )
    })
}

/// The links of one communicator and the thread that serves them. Dropping it says BYE.
#[derive(Debug)]
pub(super) struct Links {
    control: Arc<Control>,
    reactor: Reactor,
    identity: Identity,
    peers: Arc<[PeerInfo]>,
}

impl Links {
    /// Starts the service thread and opens the links that every communicator has; returns when those that others
    /// open to this rank are there too.
    pub(super) fn open(
        control: Arc<Control>,
        identity: Identity,
        listeners: Listeners,
        peers: Arc<[PeerInfo]>,
        deadline: Deadline,
    ) -> Result<Self> {
        let (rank, size) = (identity.rank, identity.size);
        let mine = &peers[rank as usize];
        let reactor = Reactor::start(
            "aqueduct-ctl",
            ReactorConfig { tick: Some(TICK) },
            Box::new(Service(control.clone())),
        )?;
        // Nobody is served a door that nobody needs.
        if peers.iter().any(|peer| !peer.same_host(mine)) {
            listeners.tcp.into_iter().for_each(|listener| reactor.listen(listener));
        }
        if let Some(unix) = listeners.unix {
            reactor.listen(unix);
        }
        let (to, from) = (eager_peers(rank, size), eager_openers(rank, size));
        let links = Self { control, reactor, identity, peers };
        for peer in &to {
            links.ensure(*peer, deadline)?;
        }
        links.control.wait_linked(&from, deadline)?;
        if to.len() + from.len() + 1 == size as usize {
            // Everyone is linked: close the doors, and leave no path behind if this process is killed.
            links.reactor.stop_listening();
        }
        Ok(links)
    }

    pub(super) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Makes sure that there is a link to `peer`; to oneself none is needed.
    pub(super) fn ensure(&self, peer: u32, deadline: Deadline) -> Result<()> {
        if peer == self.identity.rank || self.control.link(peer).is_some() {
            return Ok(());
        }
        self.control.check_peer("connect", peer)?;
        let (mine, theirs) = (&self.peers[self.identity.rank as usize], &self.peers[peer as usize]);
        let (network, claims) = (&self.identity.network, self.identity.claims(peer));
        let stream = if mine.same_host(theirs) {
            network.connect_unix(&theirs.unix, claims, deadline)
        } else {
            network.connect_tcp(&theirs.tcp, claims, deadline)
        };
        let stream = stream.map_err(|error| {
            let message =
                format!("cannot open a control link to rank {peer} (process {}): {error}", theirs.pid);
            Error::new(error.kind(), "Communicator", message).with_peer(peer)
        })?;
        let link = self.reactor.add(stream);
        self.control.adopt(&link);
        Ok(())
    }

    /// Says BYE and waits until it is on its way.
    pub(super) fn leave(&self, deadline: Deadline) -> Result<()> {
        self.control.leave().iter().try_for_each(|link| link.flush(deadline))
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.control.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::super::holds::HoldId;
    use super::super::key::{Key, Kind};
    use super::super::mailbox::{Message, Offer};
    use super::super::peer::tests::info;
    use super::*;
    use crate::abort::Abort;
    use crate::error::ErrorKind;

    /// A rank without kernels.
    struct Nobody;

    impl super::super::standing::Waiters for Nobody {
        fn dismiss(&self, _: u32) {}

        fn abandoned(&self) -> Option<Option<u32>> {
            None
        }
    }

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(30))
    }

    /// A group in one process; `hosts` of them.
    fn group(size: u32, hosts: u32) -> Vec<Links> {
        let config = CommunicatorConfig::default().with_interface(Ipv4Addr::LOCALHOST.into());
        let identities: Vec<Identity> =
            (0..size).map(|rank| Identity::new(rank, size, [7; 32], None)).collect();
        let listeners: Vec<_> =
            identities.iter().map(|identity| Listeners::bind(identity, &config).unwrap()).collect();
        let peers: Arc<[PeerInfo]> = (0..size)
            .zip(&listeners)
            .map(|(rank, l)| PeerInfo {
                host: format!("h{}", rank % hosts),
                tcp: l.tcp(),
                unix: l.unix(),
                ..info(rank, size)
            })
            .collect();
        std::thread::scope(|s| {
            let opening: Vec<_> = identities
                .into_iter()
                .zip(listeners)
                .map(|(identity, listeners)| {
                    let peers = peers.clone();
                    let control = Control::new(identity.rank, size, Abort::new(), Arc::new(Nobody));
                    s.spawn(move || Links::open(control, identity, listeners, peers, soon()).unwrap())
                })
                .collect();
            opening.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn wait_for(what: &str, done: impl Fn() -> bool) {
        let deadline = soon();
        while !done() {
            assert!(!deadline.expired(), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn an_abort_reaches_everyone_once_with_its_cause() {
        for (size, hosts) in [(1, 1), (2, 1), (5, 2), (20, 3)] {
            let links = group(size, hosts);
            let last = size - 1;
            links[last as usize].control.abort().abort(crate::abort::AbortCause::requested(last, "enough"));
            for (rank, one) in links.iter().enumerate() {
                wait_for("the abort did not come", || one.control.abort().is_aborted());
                let error = one.control.abort().check("x").unwrap_err();
                assert_eq!(
                    (error.kind(), error.peer()),
                    (ErrorKind::Aborted, Some(last)),
                    "rank {rank}: {error}"
                );
                assert!(error.message().contains("enough"));
            }
        }
    }

    #[test]
    fn leaving_in_good_order_is_not_a_failure() {
        let mut links = group(4, 1);
        let rank = links.pop().unwrap().identity.rank;
        for one in &links {
            wait_for("BYE did not come", || one.control.check_peer("x", rank).is_err());
            let error = one.control.check_peer("x", rank).unwrap_err();
            assert!(error.message().contains("good order"), "{error}");
            assert!(!one.control.abort().is_aborted());
        }
    }

    #[test]
    fn a_peer_with_two_links_has_left_when_both_have_ended() {
        let mut links = group(20, 1);
        let (a, b) = (0, 11);
        for (from, to) in [(a, b), (b, a)] {
            // Both open one: what `ensure` would do if they did so at the same time.
            let (one, peers) = (&links[from], &links[from].peers);
            let claims = one.identity.claims(to as u32);
            let stream = one.identity.network.connect_unix(&peers[to].unix, claims, soon()).unwrap();
            assert!(one.control.adopt(&one.reactor.add(stream)));
        }
        let leaver = links.remove(b);
        wait_for("the links were not accepted", || leaver.control.links(a as u32).len() == 2);
        // What is said on one link right before the end counts, whichever link is read first.
        let key = Key { kind: Kind::MemorySend, peer: a as u32, tag: 3 };
        leaver.control.say(key, 1, Message::Done(Ok(()))).unwrap();
        drop(leaver);
        let control = &links[a].control;
        wait_for("BYE did not come", || control.check_peer("x", b as u32).is_err());
        let key = Key { kind: Kind::MemoryRecv, peer: b as u32, tag: 3 };
        assert!(control.with_mailbox(|mailbox| mailbox.done(key, 1)).is_some());
        assert!(!control.abort().is_aborted());
    }

    #[test]
    fn a_link_that_ends_without_bye_is_a_lost_peer() {
        let links = group(3, 1);
        // What a killed process looks like to the others: its sockets end.
        links[2].control.link(0).unwrap().close();
        wait_for("the loss was not noticed", || links[1].control.abort().is_aborted());
        for rank in [0, 1] {
            let error = links[rank].control.abort().check("x").unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(2)), "{error}");
            assert!(error.message().contains("noticed by rank 0"), "{error}");
        }
    }

    #[test]
    fn messages_meet_across_lazily_opened_links_with_descriptors() {
        let links = group(20, 1);
        let (a, b) = (0_u32, 11_u32);
        assert!(links[a as usize].control.link(b).is_none(), "choose ranks without an eager link");
        std::thread::scope(|s| {
            // Both open at the same time.
            for (from, to) in [(a, b), (b, a)] {
                let one = &links[from as usize];
                s.spawn(move || one.ensure(to, soon()).unwrap());
            }
        });
        for (from, to) in [(a, b), (b, a)] {
            let fd: std::os::fd::OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
            let offer = Offer { body: vec![from as u8], fds: vec![fd] };
            let key = Key { kind: Kind::MemorySend, peer: to, tag: 3 };
            links[from as usize].control.say(key, 1, Message::Offer(offer)).unwrap();
        }
        for (at, from) in [(b, a), (a, b)] {
            let key = Key { kind: Kind::MemoryRecv, peer: from, tag: 3 };
            let got = std::cell::RefCell::new(None);
            wait_for("the offer did not come", || {
                let offer = links[at as usize].control.with_mailbox(|mailbox| mailbox.take_offer(key, 1));
                *got.borrow_mut() = offer;
                got.borrow().is_some()
            });
            let offer = got.take().unwrap();
            assert_eq!((offer.body, offer.fds.len()), (vec![from as u8], 1));
        }
    }

    /// Tells which thread dropped it.
    struct Traced(std::sync::mpsc::Sender<std::thread::ThreadId>);

    impl Drop for Traced {
        fn drop(&mut self) {
            let _ = self.0.send(std::thread::current().id());
        }
    }

    #[test]
    fn what_a_peer_uses_is_held_until_it_gives_it_back_or_leaves() {
        let mut links = group(3, 1);
        let (dropped_on, seen) = std::sync::mpsc::channel();
        let thing = Arc::new(Traced(dropped_on));
        for peer in [1, 2] {
            links[0].control.hold(HoldId::Memory(9), thing.clone(), peer);
        }
        assert!(!links[0].control.wait_released(Deadline::after(Duration::from_millis(20))));
        links[1].control.give_back(0, HoldId::Memory(9), 1);
        drop(links.remove(2));
        drop(thing);
        assert!(links[0].control.wait_released(soon()));
        // Not on the service thread, which must not wait for the driver.
        assert_eq!(seen.recv().unwrap(), std::thread::current().id());
    }

    #[test]
    fn strangers_and_other_communicators_are_turned_away() {
        let links = group(17, 1);
        let mine = &links[0];
        let other = Identity::new(1, 17, [8; 32], None);
        let path = &mine.peers[0].unix;
        let refused = other.network.connect_unix(path, other.claims(0), soon()).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::Authentication | ErrorKind::PeerLost), "{refused}");
        assert!(!mine.control.abort().is_aborted());
    }
}
