//! Ethernet: one-sided writes by message, over one TCP connection.
//!
//! The lower rank of the two listens and the higher one connects, on sockets that prove the job's secret like all others.
//! A write names a region that the receiver granted, by number, and the receiver checks it; no address crosses the wire.
//! [`flush`](super::Connection::flush) asks for an acknowledgement and waits for it.

mod frame;
mod inbox;
mod loan;
mod outbox;
mod patience;
mod staging;
mod wire;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};

use super::{Backend, Span};
use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::Event;
use crate::group::links;
use crate::net::{Address, Listener, Registration, Stream};
use crate::setup::key::Key;
use crate::transport::Resources;
use crate::transport::endpoint::EndpointConfig;
use crate::wire::{Reader, WireResult, Writer};
use outbox::{Outbox, SMALL};
use wire::Wire;

/// Operations held back in a batch before they are sent all the same.
const BATCH: usize = 256;
const MAX_ADDRESSES: usize = 8;
const MAX_ADDRESS: usize = 64;

/// One end, before the other is known.
pub(crate) struct Draft {
    key: Key,
    config: EndpointConfig,
    /// The lower rank's.
    listener: Option<Listener>,
}

impl Draft {
    pub(crate) fn new(resources: &Resources, key: Key, config: &EndpointConfig) -> Result<Self> {
        let mut draft = Self { key, config: config.clone(), listener: None };
        if resources.group.rank() < key.peer {
            let (network, claims) = resources.group.links().for_data(key.peer, key.tag);
            let ip = interface(resources, config)?;
            draft.listener = Some(network.listen_tcp(ip, claims).map_err(|error| {
                let message = format!(
                    "{key}: {}; choose an address of this host, with EndpointConfig::with_interface, or an interface, with \
                     AQUEDUCT_SOCKET_IFNAME",
                    error.message()
                );
                Error::new(error.kind(), "connect", message).with_peer(key.peer).with_source(error)
            })?);
        }
        Ok(draft)
    }

    /// What the other end needs: where this one listens.
    pub(crate) fn describe(&self) -> Vec<u8> {
        let address = match self.listener.as_ref().map(Listener::address) {
            Some(Address::Tcp(address)) => Some(*address),
            _ => None,
        };
        let mut w = Writer::new();
        w.count(usize::from(address.is_some()));
        if let Some(address) = address {
            w.str(&address.to_string());
        }
        w.finish()
    }

    /// Connects to the other end, or waits for it in the background.
    pub(crate) fn finish(self, resources: &Resources, detail: &[u8]) -> Result<Ethernet> {
        let (peer, reactor) = (self.key.peer, resources.data_reactor()?);
        let wire = Wire::new(
            &resources.context,
            peer,
            resources.regions.clone(),
            resources.group.control().clone(),
        )?;
        let mut ethernet = Ethernet { wire: wire.clone(), config: self.config, peer, listening: None };
        if let Some(listener) = self.listener {
            let (wire, serving): (Weak<Wire>, Weak<_>) = (Arc::downgrade(&wire), Arc::downgrade(&reactor));
            let take = move |stream: Stream| match (wire.upgrade(), serving.upgrade()) {
                (Some(wire), Some(reactor)) if !wire.is_attached() => {
                    wire.attach(stream.into_raw(), &reactor);
                    false
                }
                _ => false,
            };
            ethernet.listening = Some(reactor.accept(listener, Box::new(take)));
            return Ok(ethernet);
        }
        let addresses = decode(detail).map_err(|error| {
            let message = format!("rank {peer} described its end of {} in an invalid way", self.key);
            Error::new(ErrorKind::Remote, "connect", message).with_peer(peer).with_source(error)
        })?;
        let (network, claims) = resources.group.links().for_data(peer, self.key.tag);
        let deadline = Deadline::after(ethernet.config.timeout);
        let stream = network.connect_tcp(&addresses, claims, deadline).map_err(|error| {
            let message = format!(
                "{}: cannot reach rank {peer} at {addresses:?} ({}); choose an interface that leads there, with \
                 EndpointConfig::with_interface or AQUEDUCT_SOCKET_IFNAME at rank {peer}",
                self.key,
                error.message()
            );
            Error::new(error.kind(), "connect", message).with_peer(peer).with_source(error)
        })?;
        wire.attach(stream.into_raw(), &reactor);
        Ok(ethernet)
    }
}

/// The address to listen at.
fn interface(resources: &Resources, config: &EndpointConfig) -> Result<IpAddr> {
    match config.interface.or(resources.interface) {
        Some(ip) => Ok(ip),
        None => links::default_ip(),
    }
}

fn decode(detail: &[u8]) -> WireResult<Vec<SocketAddr>> {
    let mut r = Reader::new(detail);
    let count = r.count(MAX_ADDRESSES, 1)?;
    let invalid = |_| crate::wire::WireError::Invalid { what: "address" };
    let addresses =
        (0..count).map(|_| r.str(MAX_ADDRESS)?.parse().map_err(invalid)).collect::<WireResult<_>>()?;
    r.finish()?;
    Ok(addresses)
}

/// One end of a connection over TCP.
pub(crate) struct Ethernet {
    wire: Arc<Wire>,
    config: EndpointConfig,
    peer: u32,
    listening: Option<Registration>,
}

impl Ethernet {
    /// Gives the sending half something, once it has room.
    fn give(&self, op: &'static str, f: impl FnOnce(&mut Outbox) -> Result<()>) -> Result<()> {
        self.wire.check()?;
        let mut give = Some(f);
        let mut waited = None;
        loop {
            let (waiting, given) = self.wire.outbox(|outbox| {
                let waiting = outbox.waiting();
                let room = waiting < self.config.max_outstanding;
                (waiting, give.take_if(|_| room).map(|give| give(outbox)))
            });
            if let Some(given) = given {
                return if waiting >= BATCH { given.and_then(|()| self.wire.kick()) } else { given };
            }
            self.wire.kick()?;
            let new = || (Backoff::new(), Deadline::after(self.config.timeout));
            let (backoff, deadline) = waited.get_or_insert_with(new);
            if deadline.expired() {
                let message = format!(
                    "rank {} has not taken the {waiting} operations before this one within {:?}",
                    self.peer, self.config.timeout
                );
                return Err(Error::timeout(op, message).with_peer(self.peer));
            }
            self.wire.assist(backoff, *deadline);
        }
    }
}

impl Backend for Ethernet {
    fn write(&self, dst: Span<'_>, src: Span<'_>) -> Result<()> {
        let (region, offset) = region(dst)?;
        self.give("write", |outbox| {
            if src.len <= SMALL
                && let Some(memory) = src.memory.host()
                && outbox.write_now(region, offset, memory.slice(src.offset, src.len)?)?
            {
                return Ok(());
            }
            outbox.write(region, offset, src.place()?, src.len);
            Ok(())
        })
    }

    fn read(&self, _: Span<'_>, _: Span<'_>) -> Result<()> {
        let message = "Ethernet connections cannot read: let the rank that has the data write it, or use another transport";
        Err(Error::new(ErrorKind::Unsupported, "read", message))
    }

    fn update(&self, dst: Span<'_>, _: u64, value: u64) -> Result<()> {
        let (region, offset) = region(dst)?;
        self.give("update_and_sync", |outbox| {
            outbox.update(region, offset, value);
            Ok(())
        })
    }

    fn kick(&self) -> Result<()> {
        self.wire.kick()
    }

    fn has_room(&self) -> Result<bool> {
        if self.wire.outbox(|outbox| outbox.waiting()) < self.config.max_outstanding {
            return Ok(true);
        }
        self.wire.kick()?;
        Ok(self.wire.outbox(|outbox| outbox.waiting()) < self.config.max_outstanding)
    }

    fn mark(&self) -> Result<u64> {
        let mark = self.wire.outbox(Outbox::ask);
        match self.wire.kick() {
            Err(error) if !self.wire.has_landed(mark).unwrap_or(false) => Err(error),
            _ => Ok(mark),
        }
    }

    fn is_done(&self, mark: u64) -> Result<bool> {
        self.wire.has_landed(mark)
    }

    fn pause(&self, backoff: &mut Backoff, deadline: Deadline) {
        self.wire.assist(backoff, deadline);
    }

    fn check(&self) -> Result<()> {
        self.wire.check()
    }

    fn wait_event(&self, event: &Event) -> Result<()> {
        self.wire.outbox(|outbox| outbox.after(event))
    }

    fn record_event(&self, event: &Event) -> Result<()> {
        let mark = self.mark()?;
        self.wire.record(event, mark)
    }
}

impl Drop for Ethernet {
    fn drop(&mut self) {
        if let Some(listening) = self.listening.take().filter(|_| !self.wire.is_attached()) {
            listening.forget();
        }
        self.wire.close();
    }
}

/// The number and offset by which the receiver knows the place.
fn region(dst: Span<'_>) -> Result<(u64, u64)> {
    let (remote, offset) = dst.remote("write")?;
    let missing = || Error::usage("write", "the memory was not sent for Ethernet; name it when registering");
    Ok((remote.region().ok_or_else(missing)?, offset))
}
