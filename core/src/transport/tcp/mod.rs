//! Ethernet: one-sided writes and reads by message, over one TCP connection.
//!
//! The lower rank of the two listens and the higher one connects, on sockets that prove the job's secret like all others. A write
//! or read names a region that the receiver granted, by number, and the receiver checks it; no address crosses the wire. Whoever
//! receives at the peer, its service thread as a rule, answers a read.
//! [`flush`](crate::comm::Connection::flush) asks for an acknowledgement and waits for it. The memory at the other end is held
//! until an acknowledgement has come: it is asked for after many operations, when the connection is idle, and before it is
//! closed.

mod answers;
mod counts;
mod duplex;
mod frame;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod inbox;
mod landing;
mod landings;
mod made;
#[cfg(all(test, loom))]
mod models;
mod operations;
mod outbox;
mod piece;
mod poller;
mod readers;
mod reads;
mod spent;
mod spin;
mod staging;
#[cfg(all(test, not(loom)))]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::backend::{Backend, Operation, Span};
use super::completion::KernelAbort;
use super::endpoint::{EndpointConfig, EndpointWire};
use super::provider::{self, Provider};
use super::resources::Resources;
use super::service::DataService;
use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::failure::Failure;
use crate::gpu::Event;
use crate::group::links;
use crate::memory::Remote;
use crate::net::{Address, Listener, Registration, Stream};
use crate::setup::key::Key;
use crate::wire::{Reader, WireResult, Writer};
use duplex::Duplex;
use outbox::{Outbox, SMALL};

/// Operations held back in a batch before they are sent all the same.
const BATCH: usize = 256;
const MAX_ADDRESSES: usize = 8;
const MAX_ADDRESS: usize = 64;

/// Connections over TCP.
pub(super) struct Sockets;

impl Provider for Sockets {
    fn offer(
        &self,
        resources: &Resources,
        key: Key,
        config: &EndpointConfig,
    ) -> Result<Box<dyn provider::Draft>> {
        let mut draft = Draft { key, config: config.clone(), listener: None };
        if resources.group.rank() < key.peer {
            let (network, claims) = resources.group.links().for_data(key.peer, key.number());
            let ip = interface(resources, config)?;
            draft.listener = Some(network.listen_tcp(ip, claims).map_err(|error| {
                let message = format!(
                    "{key}: {}; choose an address of this host, with EndpointConfig::with_local_address, or an interface, with \
                     AQUEDUCT_SOCKET_IFNAME",
                    error.message()
                );
                Error::new(error.kind(), "connect", message).with_peer(key.peer).with_source(error)
            })?);
        }
        Ok(Box::new(draft))
    }
}

/// One end, before the other is known.
struct Draft {
    key: Key,
    config: EndpointConfig,
    /// The lower rank's.
    listener: Option<Listener>,
}

impl provider::Draft for Draft {
    /// Where this end listens.
    fn describe(&self) -> Vec<u8> {
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
    fn accept(
        self: Box<Self>,
        resources: &Resources,
        theirs: &EndpointWire,
        deadline: Deadline,
    ) -> Result<Box<dyn Backend>> {
        let (peer, service) = (self.key.peer, resources.service()?);
        let duplex = Duplex::new(resources, &service, peer)?;
        let mut ethernet = Ethernet { duplex: duplex.clone(), config: self.config, listening: None, service };
        if let Some(listener) = self.listener {
            // Holds the duplex: operations may be accepted, and everything dropped, before the peer has connected.
            let take = move |stream: Stream| {
                duplex.attach(stream.into_raw());
                false
            };
            ethernet.listening = Some(ethernet.service.reactor().accept(listener, Box::new(take)));
            return Ok(Box::new(ethernet));
        }
        let addresses = decode(&theirs.detail).map_err(|error| {
            let message = format!("rank {peer} described its end of {} in an invalid way", self.key);
            Error::new(ErrorKind::Remote, "connect", message).with_peer(peer).with_source(error)
        })?;
        let (network, claims) = resources.group.links().for_data(peer, self.key.number());
        let deadline = deadline.min(Deadline::after(ethernet.config.timeout));
        let stream = network.connect_tcp(&addresses, claims, deadline).map_err(|error| {
            let message = format!(
                "{}: cannot reach rank {peer} at {addresses:?} ({}); choose an interface that leads there, with \
                 EndpointConfig::with_local_address or AQUEDUCT_SOCKET_IFNAME at rank {peer}",
                self.key,
                error.message()
            );
            Error::new(error.kind(), "connect", message).with_peer(peer).with_source(error)
        })?;
        duplex.attach(stream.into_raw());
        Ok(Box::new(ethernet))
    }
}

/// The address to listen at.
fn interface(resources: &Resources, config: &EndpointConfig) -> Result<IpAddr> {
    match config.local_address.or(resources.settings.local_address) {
        Some(ip) => Ok(ip),
        None => links::default_ip(&resources.settings.interfaces),
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
struct Ethernet {
    duplex: Arc<Duplex>,
    config: EndpointConfig,
    listening: Option<Registration>,
    /// Dropped last: the data thread goes on until the duplex has delivered everything.
    service: Arc<DataService>,
}

impl Backend for Ethernet {
    fn post(&self, operation: &Operation<'_>) -> Result<bool> {
        self.duplex.check()?;
        let waiting = self.duplex.outbox(|outbox| {
            if !outbox.has_room(self.config.max_outstanding) {
                return Ok(None);
            }
            let waiting = outbox.waiting();
            match operation {
                Operation::Write { dst, src } => write(outbox, dst, src)?,
                Operation::Update { dst, value, .. } => {
                    let (remote, region, offset) = region("update_and_sync", dst)?;
                    outbox.update(remote, region, offset, *value);
                }
                Operation::Read { dst, src } => {
                    let (remote, region, offset) = region("read", src)?;
                    outbox.read(remote, region, offset, dst.place()?, dst.len);
                }
            }
            Ok::<_, Error>(Some(waiting))
        })?;
        match waiting {
            Some(waiting) if waiting < BATCH => Ok(true),
            waiting => self.duplex.kick().map(|()| waiting.is_some()),
        }
    }

    fn kick(&self) -> Result<()> {
        self.duplex.kick()
    }

    fn has_room(&self) -> Result<bool> {
        let look = || self.duplex.outbox(|outbox| outbox.has_room(self.config.max_outstanding));
        if look() {
            return Ok(true);
        }
        self.duplex.kick()?;
        Ok(look())
    }

    fn mark(&self) -> Result<u64> {
        let mark = self.duplex.outbox(Outbox::ask);
        match self.duplex.kick() {
            Err(error) if !self.duplex.has_landed(mark).unwrap_or(false) => Err(error),
            _ => Ok(mark),
        }
    }

    fn is_done(&self, mark: u64) -> Result<bool> {
        self.duplex.has_landed(mark)
    }

    fn pause(&self, backoff: &mut Backoff, deadline: Deadline) {
        self.duplex.assist(backoff, deadline);
    }

    fn failure(&self) -> Option<&Failure> {
        Some(self.duplex.failure())
    }

    fn kernel_abort(&self) -> Option<&Arc<KernelAbort>> {
        Some(self.duplex.kernel_abort())
    }

    fn wait_event(&self, event: &Event) -> Result<()> {
        self.duplex.after(event)
    }

    fn record_event(&self, event: &Event) -> Result<()> {
        let mark = self.mark()?;
        self.duplex.record(event, mark)
    }
}

impl Drop for Ethernet {
    fn drop(&mut self) {
        let needless = !self.duplex.is_attached() && self.duplex.outbox(|outbox| outbox.is_empty());
        if let Some(listening) = self.listening.take().filter(|_| needless) {
            listening.forget();
        }
        self.duplex.close();
    }
}

fn write(outbox: &mut Outbox, dst: &Span<'_>, src: &Span<'_>) -> Result<()> {
    let (remote, region, offset) = region("write", dst)?;
    if src.len <= SMALL
        && let Some(memory) = src.memory.host()
        && outbox.write_now(remote, region, offset, memory.slice(src.offset, src.len)?)?
    {
        return Ok(());
    }
    outbox.write(remote, region, offset, src.place()?, src.len);
    Ok(())
}

/// The hold on the peer's memory, and the number and offset by which the peer knows the place.
fn region<'a>(op: &'static str, span: &Span<'a>) -> Result<(&'a Arc<Remote>, u64, u64)> {
    let (remote, offset) = span.remote(op)?;
    let missing = || Error::usage(op, "the memory was not sent for Ethernet; name it when registering");
    Ok((remote, remote.region().ok_or_else(missing)?, offset))
}
