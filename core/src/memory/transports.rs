//! The ways that data takes between ranks, and sets of them, for which a memory is registered.
#![forbid(unsafe_code)]

use std::fmt;
use std::ops::BitOr;

use crate::error::{Error, Result};
use crate::wire::{WireError, WireResult};

/// A way for data between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// Direct access to the peer's device memory on the same host, driven by copy engines on the host side.
    CudaIpc,
    /// TCP: between any two hosts, and between any two processes.
    Ethernet,
    /// InfiniBand or RoCE through the verbs of this rank's NIC with this number, counted as `aqueduct info` lists them.
    /// [`Communicator::nearest_nic`](crate::comm::Communicator::nearest_nic) names the one next to the rank's device.
    Ib(u8),
}

/// NICs that a rank can name.
pub(crate) const MAX_NICS: u8 = 24;
/// The bit of the first of them.
const FIRST_NIC: u8 = 8;
/// Stands for all NICs beyond those in a set: it makes nothing registered, and its registration an error.
const BEYOND: u32 = 4;

impl Transport {
    /// Its place in [`Transports`] and on the wire, where `BEYOND` is refused.
    pub(crate) fn bit(self) -> u32 {
        match self {
            Self::CudaIpc => 1,
            Self::Ethernet => 2,
            Self::Ib(nic) if nic < MAX_NICS => 1 << (FIRST_NIC + nic),
            Self::Ib(_) => BEYOND,
        }
    }

    pub(crate) fn from_bit(bit: u32) -> WireResult<Self> {
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

    /// `Ok` if the set names no NIC that cannot be named.
    pub(crate) fn check(self, op: &'static str) -> Result<()> {
        if self.0 & BEYOND == 0 {
            return Ok(());
        }
        Err(Error::usage(op, format!("there is no such NIC; they are Ib0 to Ib{}", MAX_NICS - 1)))
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

    /// Whether `transport` is in the set; false for a NIC that cannot be named.
    pub fn contains(self, transport: Transport) -> bool {
        transport.bit() != BEYOND && self.0 & transport.bit() != 0
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_bits_round_trip_and_what_is_unknown_is_dropped() {
        for transport in [Transport::CudaIpc, Transport::Ethernet, Transport::Ib(0), Transport::Ib(23)] {
            assert_eq!(transport.to_string().parse::<Transport>().unwrap(), transport);
            assert_eq!(Transport::from_bit(transport.bit()), Ok(transport));
            assert_eq!(Transports::from(transport).iter().collect::<Vec<_>>(), [transport]);
        }
        assert!("Ib24".parse::<Transport>().is_err() && "tcp".parse::<Transport>().is_err());
        let all = Transports::from_wire(u32::MAX);
        assert!(all.contains(Transport::Ib(3)) && all.iter().count() == 26);
        assert!(!all.contains(Transport::Ib(24)), "no such number");
        let beyond = Transports::from(Transport::Ib(23)) | Transport::Ib(255).into();
        assert!(!beyond.contains(Transport::Ib(24)) && beyond.check("test").is_err());
        assert!(!Transports::NONE.contains(Transport::CudaIpc));
        let both = Transports::CUDA_IPC | Transports::ETHERNET;
        assert_eq!(both | Transports::ETHERNET, both);
        assert_eq!(both.without(Transport::CudaIpc), Transports::ETHERNET);
        assert_eq!(Transports::ETHERNET.without(Transport::CudaIpc), Transports::ETHERNET);
        assert!(Transports::NONE.is_empty() && !both.is_empty());
        assert!(both.check("register_memory").is_ok());
        assert!(Transports::from(Transport::Ib(23)).check("register_memory").is_ok());
        assert!((both | Transport::Ib(24).into()).check("register_memory").is_err());
        assert!(Transport::Ib(0).matches(Transport::Ib(1)) && !Transport::Ib(0).matches(Transport::Ethernet));
    }
}
