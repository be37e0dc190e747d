//! Which way a connection goes, and which ways a memory is registered for.
#![forbid(unsafe_code)]

use std::fmt;
use std::ops::BitOr;

use crate::wire::{Reader, WireError, WireResult, Writer};

/// A way for data between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// Direct access to the peer's device memory on the same host, driven by copy engines on the host side.
    CudaIpc,
}

impl Transport {
    fn bit(self) -> u32 {
        match self {
            Self::CudaIpc => 1,
        }
    }

    fn from_bit(bit: u32) -> WireResult<Self> {
        match bit {
            1 => Ok(Self::CudaIpc),
            _ => Err(WireError::Invalid { what: "transport" }),
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CudaIpc => "CudaIpc",
        })
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
    /// All that this version knows.
    pub const ALL: Self = Self::CUDA_IPC;

    /// Whether `transport` is in the set.
    pub fn contains(self, transport: Transport) -> bool {
        self.0 & transport.bit() != 0
    }

    pub(super) fn to_wire(self) -> u32 {
        self.0
    }

    /// Transports of a newer version are dropped: we cannot use them.
    pub(super) fn from_wire(bits: u32) -> Self {
        Self(bits & Self::ALL.0)
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
        let known = [Transport::CudaIpc];
        f.debug_set().entries(known.into_iter().filter(|t| self.contains(*t))).finish()
    }
}

/// What a rank wants of its end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointConfig {
    /// The transport; both ends must name the same.
    pub transport: Transport,
}

impl EndpointConfig {
    /// An endpoint of `transport` with its defaults.
    pub fn new(transport: Transport) -> Self {
        Self { transport }
    }
}

impl From<Transport> for EndpointConfig {
    fn from(transport: Transport) -> Self {
        Self::new(transport)
    }
}

/// Version of an endpoint on the wire.
const VERSION: u16 = 1;

impl EndpointConfig {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u16(VERSION).u32(self.transport.bit());
        w.finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> WireResult<Self> {
        let mut r = Reader::new(bytes);
        r.version(VERSION)?;
        let transport = Transport::from_bit(r.u32()?)?;
        r.finish()?;
        Ok(Self { transport })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_unknown_transports() {
        let config = EndpointConfig::new(Transport::CudaIpc);
        assert_eq!(EndpointConfig::decode(&config.encode()), Ok(config));
        assert!(EndpointConfig::decode(&[1, 0, 2, 0, 0, 0]).is_err());
        assert!(EndpointConfig::decode(&[2, 0, 1, 0, 0, 0]).is_err());
        assert!(Transports::from_wire(u32::MAX) == Transports::ALL);
        assert!(!Transports::NONE.contains(Transport::CudaIpc));
    }
}
