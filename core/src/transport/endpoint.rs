//! Which way a connection goes, and which ways a memory is registered for.
#![forbid(unsafe_code)]

use std::fmt;
use std::net::IpAddr;
use std::ops::BitOr;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::rdma::Settings;
use crate::wire::{Reader, WireError, WireResult, Writer};

/// A way for data between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// Direct access to the peer's device memory on the same host, driven by copy engines on the host side.
    CudaIpc,
    /// TCP: between any two hosts, and between any two processes.
    Ethernet,
    /// InfiniBand or RoCE through the verbs of this rank's NIC with this number, counted as `aqueduct info` lists them.
    /// [`Communicator::nearest_nic`](super::Communicator::nearest_nic) names the one next to the rank's device.
    Ib(u8),
}

/// More queue pairs for one connection gain nothing.
pub(crate) const MAX_QUEUE_PAIRS: u32 = 16;
/// NICs that a rank can name.
pub(crate) const MAX_NICS: u8 = 24;
/// The bit of the first of them.
const FIRST_NIC: u8 = 8;

impl Transport {
    /// Its place in [`Transports`] and on the wire; none for a NIC beyond what can be named.
    fn bit(self) -> u32 {
        match self {
            Self::CudaIpc => 1,
            Self::Ethernet => 2,
            Self::Ib(nic) if nic < MAX_NICS => 1 << (FIRST_NIC + nic),
            Self::Ib(_) => 0,
        }
    }

    fn from_bit(bit: u32) -> WireResult<Self> {
        match bit {
            1 => Ok(Self::CudaIpc),
            2 => Ok(Self::Ethernet),
            nic if nic.is_power_of_two() && nic.trailing_zeros() >= u32::from(FIRST_NIC) => {
                Ok(Self::Ib(nic.trailing_zeros() as u8 - FIRST_NIC))
            }
            _ => Err(WireError::Invalid { what: "transport" }),
        }
    }

    /// Whether the two ends of a connection can be these: NICs have their numbers from their own rank.
    pub(crate) fn matches(self, other: Self) -> bool {
        self == other || matches!((self, other), (Self::Ib(_), Self::Ib(_)))
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CudaIpc => f.write_str("CudaIpc"),
            Self::Ethernet => f.write_str("Ethernet"),
            Self::Ib(nic) => write!(f, "Ib{nic}"),
        }
    }
}

impl std::str::FromStr for Transport {
    type Err = Error;

    /// `CudaIpc`, `Ethernet`, `Ib0`, `Ib1`, ..., in any case.
    fn from_str(text: &str) -> Result<Self> {
        let lower = text.to_ascii_lowercase();
        let nic = lower.strip_prefix("ib").and_then(|nic| nic.parse().ok()).filter(|nic| *nic < MAX_NICS);
        match (lower.as_str(), nic) {
            ("cudaipc", _) => Ok(Self::CudaIpc),
            ("ethernet", _) => Ok(Self::Ethernet),
            (_, Some(nic)) => Ok(Self::Ib(nic)),
            _ => Err(Error::usage(
                "transport",
                format!(
                    "`{text}` is no transport; there are CudaIpc, Ethernet, and Ib0 to Ib{}",
                    MAX_NICS - 1
                ),
            )),
        }
    }
}

/// A set of transports: register a memory once for all it is to be used with.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Transports(u32);

impl Transports {
    /// None of them: the memory is only used by this rank.
    pub const NONE: Self = Self(0);
    /// [`Transport::CudaIpc`] alone.
    pub const CUDA_IPC: Self = Self(1);
    /// [`Transport::Ethernet`] alone.
    pub const ETHERNET: Self = Self(2);
    /// All that this version knows.
    const KNOWN: u32 = Self::CUDA_IPC.0 | Self::ETHERNET.0 | (u32::MAX << FIRST_NIC);

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The transports in the set.
    pub fn iter(self) -> impl Iterator<Item = Transport> {
        (0..u32::BITS).filter_map(move |bit| Transport::from_bit(self.0 & (1 << bit)).ok())
    }

    /// The set without `transport`.
    #[must_use]
    pub fn without(self, transport: Transport) -> Self {
        Self(self.0 & !transport.bit())
    }

    /// Whether `transport` is in the set.
    pub fn contains(self, transport: Transport) -> bool {
        transport.bit() != 0 && self.0 & transport.bit() != 0
    }

    pub(crate) fn to_wire(self) -> u32 {
        self.0
    }

    /// Transports of a newer version are dropped: we cannot use them.
    pub(crate) fn from_wire(bits: u32) -> Self {
        Self(bits & Self::KNOWN)
    }
}

impl From<Transport> for Transports {
    fn from(transport: Transport) -> Self {
        Self(transport.bit())
    }
}

impl BitOr for Transports {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Transports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

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

/// What a rank wants of its end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointConfig {
    /// The transport; both ends must name the same, except for the number of a NIC.
    pub transport: Transport,
    /// Ethernet: the address of this rank whose interface the connection uses; chosen as for control links if `None`.
    pub interface: Option<IpAddr>,
    /// Verbs: port, GID, service level, traffic class, retries; those of the environment if `None`.
    pub ib: Option<Settings>,
    /// Verbs: how many queue pairs large writes are spread over; the same at both ends; 1.
    pub queue_pairs: u32,
    /// Verbs: how signals are sent; the same at both ends; [`IbSignal::Write`].
    pub ib_signal: IbSignal,
    /// How many operations may be outstanding before a call waits for earlier ones; 4096.
    pub max_outstanding: usize,
    /// How long it takes to establish a connection, and how long a call waits for earlier operations, at most; 30 s.
    pub timeout: Duration,
}

impl EndpointConfig {
    /// An endpoint of `transport` with its defaults.
    pub fn new(transport: Transport) -> Self {
        Self {
            transport,
            interface: None,
            ib: None,
            queue_pairs: 1,
            ib_signal: IbSignal::Write,
            max_outstanding: 4096,
            timeout: Duration::from_secs(30),
        }
    }

    /// The same on the interface of `address`.
    #[must_use]
    pub fn with_interface(mut self, address: IpAddr) -> Self {
        self.interface = Some(address);
        self
    }

    /// The same with other settings of the NIC.
    #[must_use]
    pub fn with_ib(mut self, settings: Settings) -> Self {
        self.ib = Some(settings);
        self
    }

    /// The same over several queue pairs.
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

    /// The same with another bound on outstanding operations.
    #[must_use]
    pub fn with_max_outstanding(mut self, operations: usize) -> Self {
        self.max_outstanding = operations.max(1);
        self
    }

    /// The same with another bound on waiting.
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
    pub(crate) transport: Transport,
    /// What the transport needs.
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
    fn round_trip_and_unknown_transports() {
        for transport in [Transport::CudaIpc, Transport::Ethernet, Transport::Ib(0), Transport::Ib(23)] {
            let end = EndpointWire { transport, detail: vec![1, 2] };
            assert_eq!(EndpointWire::decode(&end.encode()), Ok(end));
            assert_eq!(transport.to_string().parse::<Transport>().unwrap(), transport);
            assert_eq!(Transports::from(transport).iter().collect::<Vec<_>>(), [transport]);
        }
        assert!(EndpointWire::decode(&[3, 0, 4, 0, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(EndpointWire::decode(&[4, 0, 1, 0, 0, 0, 0, 0, 0, 0]).is_err());
        for signal in [IbSignal::Write, IbSignal::Atomic, IbSignal::Immediate] {
            assert_eq!(IbSignal::from_wire(signal.to_wire()), Ok(signal));
        }
        assert!(IbSignal::from_wire(3).is_err());
        assert!("Ib24".parse::<Transport>().is_err() && "tcp".parse::<Transport>().is_err());
        let all = Transports::from_wire(u32::MAX);
        assert!(all.contains(Transport::Ib(3)) && all.iter().count() == 26);
        assert!(!all.contains(Transport::Ib(24)), "no such number");
        assert!(!Transports::NONE.contains(Transport::CudaIpc));
        assert!(Transport::Ib(0).matches(Transport::Ib(1)) && !Transport::Ib(0).matches(Transport::Ethernet));
    }
}
