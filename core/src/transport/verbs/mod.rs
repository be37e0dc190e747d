//! Verbs: RDMA writes on queue pairs of type RC, and the signal behind them on the same one.
//!
//! An RC queue pair executes in order, and what an RDMA write places is visible before what a later one places as long as
//! the later one's memory is not registered for relaxed ordering: data is, words of semaphores are not. A large transfer may
//! be spread over several queue pairs. The signal, on the first, is then held until the others have completed; other
//! transfers wait for it only where they touch the same bytes ([`order`]).
//!
//! A signal may carry an immediate, which makes a completion at the receiver. The service thread takes it and wakes whoever
//! sleeps there, so that waiting costs no polling; and it posts the receives anew, so that the peer of a connection that nobody
//! waits for can go on.

mod credits;
mod issue;
pub(crate) mod nics;
mod order;
mod queue_pair_set;
mod request;
mod send_queue;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::backend::{Backend, ConnectionCounters, Operation, Span};
use super::completion::KernelAbort;
use super::endpoint::{EndpointConfig, EndpointWire, IbSignal, MAX_QUEUE_PAIRS, Transport};
use super::provider::{self, Provider};
use super::resources::Resources;
use super::service::DataService;
use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::failure::Failure;
use crate::gpu::Event;
use crate::memory::{RegisteredMemory, Rights};
use crate::rdma::{
    Access, CompletionChannel, CompletionQueue, Init, QpAddress, QpOptions, QueuePair, RemoteRange,
};
use crate::setup::key::Key;
use crate::wire::{Reader, WireResult, Writer};
use credits::{RECEIVE, RECEIVES, SignalWaiters};
use nics::Nic;
use queue_pair_set::QueuePairSet;
use request::Request;

/// Requests that a queue pair holds.
const QUEUE: u32 = 512;

#[cfg(test)]
std::thread_local! {
    /// Makes completion queues smaller than what they may have to hold.
    static CAPACITY: std::cell::Cell<Option<u32>> = const { std::cell::Cell::new(None) };
}

/// Connections over the queue pairs of NICs.
pub(super) struct QueuePairs;

impl Provider for QueuePairs {
    fn register(
        &self,
        resources: &Resources,
        transport: Transport,
        memory: RegisteredMemory,
        access: Access,
    ) -> Result<RegisteredMemory> {
        let nic = resources.nic(number(transport)?)?;
        let region = nic.register(memory.place(), access)?;
        Ok(memory.with_region(nic.number(), region))
    }

    fn offer(
        &self,
        resources: &Resources,
        key: Key,
        config: &EndpointConfig,
    ) -> Result<Box<dyn provider::Draft>> {
        Ok(Box::new(Draft::new(resources, key, config, number(config.transport)?)?))
    }
}

/// The number of the NIC.
fn number(transport: Transport) -> Result<u8> {
    match transport {
        Transport::Ib(number) => Ok(number),
        other => Err(Error::new(ErrorKind::Internal, "connect", format!("{other} is not for verbs"))),
    }
}

/// One end, before the other is known.
struct Draft {
    key: Key,
    config: EndpointConfig,
    nic: Arc<Nic>,
    queue_pairs: Vec<QueuePair<Init>>,
    completions: CompletionQueue,
    channel: CompletionChannel,
    max_message: u64,
}

impl Draft {
    fn new(resources: &Resources, key: Key, config: &EndpointConfig, number: u8) -> Result<Self> {
        let nic = resources.nic(number)?;
        let settings = config.ib.as_ref().unwrap_or(&resources.settings.ib);
        settings.check()?;
        let port = nic.port(settings)?;
        let channel = nic.context.completion_channel()?;
        // Every request may fail, and a failure completes also when it was not signalled.
        let wakes = config.ib_signal == IbSignal::Immediate;
        let receives = if wakes { RECEIVES } else { 0 };
        let capacity = QUEUE * config.queue_pairs + receives;
        #[cfg(test)]
        let capacity = CAPACITY.get().unwrap_or(capacity);
        let completions = nic.context.completion_queue_with(capacity, &channel)?;
        let options = QpOptions::default().with_max_send(QUEUE);
        let make = |number| {
            // Signals use the first alone.
            let options =
                if number == 0 { options.clone().with_max_receive(receives.max(1)) } else { options.clone() };
            let new = nic.domain.queue_pair(&options, &completions, &completions)?;
            let bound = new.init(&port, settings, Access::FLAGS)?;
            if number == 0 {
                (0..receives).try_for_each(|_| bound.post_receive(RECEIVE, None))?;
            }
            Ok(bound)
        };
        let queue_pairs = (0..config.queue_pairs).map(make).collect::<Result<Vec<_>>>()?;
        if let [first, ..] = &queue_pairs[..]
            && config.ib_signal != IbSignal::Atomic
            && first.max_inline() < size_of::<u64>() as u32
        {
            let (name, most) = (nic.context.device().name(), first.max_inline());
            let message =
                format!("{name} takes {most} bytes of inline data, and a signal has 8; use IbSignal::Atomic");
            return Err(Error::new(ErrorKind::Unsupported, "connect", message));
        }
        let max_message = u64::from(port.attributes.max_message).clamp(4096, 1 << 30);
        Ok(Self { key, config: config.clone(), nic, queue_pairs, completions, channel, max_message })
    }
}

impl provider::Draft for Draft {
    /// How signals are sent, and the addresses of the queue pairs.
    fn describe(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u8(self.config.ib_signal.to_wire()).count(self.queue_pairs.len());
        self.queue_pairs.iter().for_each(|qp| qp.address().encode(&mut w));
        w.finish()
    }

    fn accept(
        self: Box<Self>,
        resources: &Resources,
        theirs: &EndpointWire,
        _: Deadline,
    ) -> Result<Box<dyn Backend>> {
        Ok(Box::new(self.connect(resources, theirs)?))
    }
}

impl Draft {
    /// Connects the queue pairs.
    fn connect(self, resources: &Resources, theirs: &EndpointWire) -> Result<Verbs> {
        const OP: &str = "connect";
        let peer = self.key.peer;
        let (signal, addresses) = decode(&theirs.detail).map_err(|error| {
            let message = format!("rank {peer} described its end of {} in an invalid way", self.key);
            Error::new(ErrorKind::Remote, OP, message).with_peer(peer).with_source(error)
        })?;
        if signal != self.config.ib_signal {
            let message = format!(
                "{}: rank {peer} sends its signals as IbSignal::{signal:?}, this rank as IbSignal::{:?}; name the same at both ends \
                 (EndpointConfig::with_ib_signal)",
                self.key, self.config.ib_signal
            );
            return Err(Error::usage(OP, message).with_peer(peer));
        }
        if addresses.len() != self.queue_pairs.len() {
            let message = format!(
                "{}: rank {peer} asked for {} queue pairs, this rank for {}; name the same number at both ends",
                self.key,
                addresses.len(),
                self.queue_pairs.len()
            );
            return Err(Error::usage(OP, message).with_peer(peer));
        }
        let their_nic = number(theirs.transport)?;
        let connect = |(qp, address): (QueuePair<Init>, &QpAddress)| qp.connect(address)?.ready_to_send();
        let queue_pairs =
            self.queue_pairs.into_iter().zip(&addresses).map(connect).collect::<Result<Vec<_>>>();
        let queue_pairs = queue_pairs.map_err(|error| {
            let message = format!("{} cannot be connected", self.key);
            Error::new(error.kind(), OP, message).with_peer(peer).with_code(error.code()).with_source(error)
        })?;
        let service = resources.service()?;
        let set = QueuePairSet::open(queue_pair_set::Parts {
            resources,
            service: &service,
            peer,
            nic: self.nic.clone(),
            queue_pairs,
            most: QUEUE,
            completions: self.completions,
            channel: self.channel,
            max_message: self.max_message,
            signal: self.config.ib_signal,
        })?;
        let (nic, most) = (self.nic, self.config.max_outstanding);
        Ok(Verbs { set, most, peer, nic, their_nic, signal, _service: service })
    }
}

fn decode(detail: &[u8]) -> WireResult<(IbSignal, Vec<QpAddress>)> {
    let mut r = Reader::new(detail);
    let signal = IbSignal::from_wire(r.u8()?)?;
    let count = r.count(MAX_QUEUE_PAIRS as usize, 1)?;
    let addresses = (0..count).map(|_| QpAddress::decode(&mut r)).collect::<WireResult<_>>()?;
    r.finish()?;
    Ok((signal, addresses))
}

/// One end of a connection over verbs.
struct Verbs {
    set: Arc<QueuePairSet>,
    /// Operations that may wait.
    most: usize,
    peer: u32,
    nic: Arc<Nic>,
    their_nic: u8,
    signal: IbSignal,
    /// Dropped last: the data thread goes on until everything has completed.
    _service: Arc<DataService>,
}

impl Verbs {
    /// `span` as the peer's NIC addresses it.
    #[inline]
    fn theirs(&self, op: &'static str, span: Span<'_>) -> Result<RemoteRange> {
        let (remote, offset) = span.remote(op)?;
        let key = remote.key(self.their_nic).ok_or_else(|| self.unknown(op))?;
        key.region.range(key.offset + offset, span.len as u64)
    }

    #[cold]
    fn unknown(&self, op: &'static str) -> Error {
        let message = format!(
            "the memory is not registered with Ib{} of rank {}, to which this connection leads; name it when registering",
            self.their_nic, self.peer
        );
        Error::usage(op, message)
    }
}

impl Backend for Verbs {
    fn post(&self, operation: &Operation<'_>) -> Result<bool> {
        self.set.check()?;
        let request = match *operation {
            Operation::Write { dst, src } => {
                Request::transfer("write", false, &self.nic, src, dst, self.theirs("write", dst)?)?
            }
            Operation::Read { dst, src } => {
                Request::transfer("read", true, &self.nic, dst, src, self.theirs("read", src)?)?
            }
            Operation::Update { dst, old, value } => {
                const OP: &str = "update_and_sync";
                let (remote, _) = dst.remote(OP)?;
                Request::Update { to: self.theirs(OP, dst)?, old, value, remote }
            }
        };
        self.set.give(&request, self.most)
    }

    fn kick(&self) -> Result<()> {
        self.set.drive()
    }

    fn has_room(&self) -> Result<bool> {
        Ok(self.set.has_room(self.most) || {
            self.set.drive()?;
            self.set.has_room(self.most)
        })
    }

    fn signal_rights(&self) -> Rights {
        match self.signal {
            IbSignal::Atomic => Rights::REMOTE_ATOMIC,
            IbSignal::Write | IbSignal::Immediate => Rights::REMOTE_WRITE,
        }
    }

    fn mark(&self) -> Result<u64> {
        let mark = self.set.mark();
        self.set.drive()?;
        Ok(mark)
    }

    fn is_done(&self, mark: u64) -> Result<bool> {
        self.set.is_done(mark)
    }

    fn arrivals(&self) -> u64 {
        self.set.arrivals().map_or(0, SignalWaiters::count)
    }

    fn await_arrival(&self, arrivals: u64, backoff: &mut Backoff, deadline: Deadline) {
        match self.set.arrivals() {
            Some(waiters) => drop(waiters.sleep(arrivals, backoff, deadline)),
            None => self.pause(backoff, deadline),
        }
    }

    fn failure(&self) -> Option<&Failure> {
        Some(self.set.failure())
    }

    fn kernel_abort(&self) -> Option<&Arc<KernelAbort>> {
        Some(self.set.kernel_abort())
    }

    fn wait_event(&self, event: &Event) -> Result<()> {
        self.set.after(event)?;
        self.set.drive()
    }

    fn record_event(&self, event: &Event) -> Result<()> {
        let mark = self.mark()?;
        self.set.record(event, mark)
    }

    fn count(&self, counters: &mut ConnectionCounters) {
        self.set.count(counters);
    }
}

impl Drop for Verbs {
    fn drop(&mut self) {
        self.set.close();
    }
}
