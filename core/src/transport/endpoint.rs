//! Which way a connection goes, and which ways a memory is registered for.
#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::time::Duration;

use crate::rdma::Settings;
use crate::wire::{Reader, WireError, WireResult, Writer};

pub use crate::memory::transports::{Transport, Transports};

/// More queue pairs for one connection gain nothing.
pub(crate) const MAX_QUEUE_PAIRS: u32 = 16;

/// How a signal crosses an RDMA connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IbSignal {
    /// An inline write of 8 bytes, in order behind the data on the same queue pair.
    #[default]
    Write,
    /// A fetch-and-add of the difference to the value before, for NICs whose writes of 8 bytes are not seen as one.
    Atomic,
    /// The same write with an immediate, which makes a completion at the receiver and wakes its waiters: for hosts that wait
    /// long and want the processor for something else. Each signal costs the receiver an event and a receive posted anew; for
    /// latency use `Write`, whose waiters look at memory.
    Immediate,
}

impl IbSignal {
    pub(crate) fn to_wire(self) -> u8 {
        match self {
            Self::Write => 0,
            Self::Atomic => 1,
            Self::Immediate => 2,
        }
    }

    pub(crate) fn from_wire(byte: u8) -> WireResult<Self> {
        let all = [Self::Write, Self::Atomic, Self::Immediate];
        all.get(usize::from(byte)).copied().ok_or(WireError::Invalid { what: "kind of signal" })
    }
}

/// Settings of one end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointConfig {
    /// The transport; both ends must name the same, except for the number of a NIC.
    pub transport: Transport,
    /// Ethernet: the address of this rank whose interface the connection uses; chosen as for control links if `None`.
    pub(crate) local_address: Option<IpAddr>,
    /// Verbs: port, GID, service level, traffic class, retries; those of the environment if `None`.
    pub(crate) ib: Option<Settings>,
    /// Verbs: how many queue pairs large writes are spread over; the same at both ends; 1.
    pub(crate) queue_pairs: u32,
    /// Verbs: how signals are sent; the same at both ends; [`IbSignal::Write`].
    pub(crate) ib_signal: IbSignal,
    /// How many operations may be unacknowledged before a call waits for earlier ones; 4096. CudaIpc has no bound of its own:
    /// its operations wait in a stream of the driver, whose calls wait when that is full.
    pub(crate) max_outstanding: usize,
    /// How long it takes to establish a connection, and how long a call waits for earlier operations, at most; 30 s.
    pub(crate) timeout: Duration,
}

impl EndpointConfig {
    /// An endpoint of `transport` with its defaults.
    pub fn new(transport: Transport) -> Self {
        Self {
            transport,
            local_address: None,
            ib: None,
            queue_pairs: 1,
            ib_signal: IbSignal::Write,
            max_outstanding: 4096,
            timeout: Duration::from_secs(30),
        }
    }

    /// The same on the interface that has `address`.
    #[must_use]
    pub fn with_local_address(mut self, address: IpAddr) -> Self {
        self.local_address = Some(address);
        self
    }

    /// The same with other settings of the NIC.
    #[must_use]
    pub fn with_ib(mut self, settings: Settings) -> Self {
        self.ib = Some(settings);
        self
    }

    /// The same over several queue pairs, up to 16, as many at both ends.
    ///
    /// Transfers of 512 KiB or more are spread over them in pieces of 256 KiB; smaller ones and signals take the first. The order
    /// of the connection holds all the same: where a large and a small transfer, or a large write and a large read, touch the
    /// same bytes here or at the peer, the later one begins once the earlier one has completed, unless both only read them.
    /// Nothing else waits, and large writes, or large reads, never wait for each other. A signal waits for all pieces before it.
    #[must_use]
    pub fn with_queue_pairs(mut self, count: u32) -> Self {
        self.queue_pairs = count.clamp(1, MAX_QUEUE_PAIRS);
        self
    }

    /// The same with signals of another sort.
    #[must_use]
    pub fn with_ib_signal(mut self, signal: IbSignal) -> Self {
        self.ib_signal = signal;
        self
    }

    /// The same with another bound on operations that are accepted and not acknowledged. It has no effect with CudaIpc, whose
    /// operations wait in a stream of the driver.
    #[must_use]
    pub fn with_max_outstanding(mut self, operations: usize) -> Self {
        self.max_outstanding = operations.max(1);
        self
    }

    /// The same with another bound on waiting, more than 0.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl From<Transport> for EndpointConfig {
    fn from(transport: Transport) -> Self {
        Self::new(transport)
    }
}

/// One end of a connection as the other hears of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndpointWire {
    pub transport: Transport,
    /// The part that the transport encodes and decodes: addresses, for example.
    pub(crate) detail: Vec<u8>,
}

/// Version of an endpoint on the wire.
const VERSION: u16 = 3;
const MAX_DETAIL: usize = 4096;

impl EndpointWire {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u16(VERSION).u32(self.transport.bit()).bytes(&self.detail);
        w.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> WireResult<Self> {
        let mut r = Reader::new(bytes);
        r.version(VERSION)?;
        let transport = Transport::from_bit(r.u32()?)?;
        let detail = r.bytes(MAX_DETAIL)?.to_vec();
        r.finish()?;
        Ok(Self { transport, detail })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_round_trip_and_unknown_transports_are_refused() {
        for transport in [Transport::CudaIpc, Transport::Ethernet, Transport::Ib(0), Transport::Ib(23)] {
            let end = EndpointWire { transport, detail: vec![1, 2] };
            assert_eq!(EndpointWire::decode(&end.encode()), Ok(end));
        }
        assert!(EndpointWire::decode(&[3, 0, 4, 0, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(EndpointWire::decode(&[4, 0, 1, 0, 0, 0, 0, 0, 0, 0]).is_err());
        for signal in [IbSignal::Write, IbSignal::Atomic, IbSignal::Immediate] {
            assert_eq!(IbSignal::from_wire(signal.to_wire()), Ok(signal));
        }
        assert!(IbSignal::from_wire(3).is_err());
    }
}
