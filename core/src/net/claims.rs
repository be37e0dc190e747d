//! The identity that each end of a connection states, and the addresses at which an end can be reached.
#![forbid(unsafe_code)]

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The purposes of the library's own connections. Other users of this module take 16 and up.
pub(crate) mod purpose {
    pub(crate) const RENDEZVOUS: u16 = 1;
    pub(crate) const BOOTSTRAP: u16 = 2;
    pub(crate) const CONTROL: u16 = 3;
    pub(crate) const DATA: u16 = 4;
    pub(crate) const MESSAGES: u16 = 5;
}

/// Identity that one end of a connection states. Both proofs cover it, so nobody can alter it.
///
/// Both ends must name the same purpose and scope, and the listener must be the rank that was meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claims {
    /// Purpose of the connection; the users of this module assign the numbers.
    pub purpose: u16,
    /// Which bootstrap or communicator it belongs to.
    pub scope: u64,
    /// The rank that speaks, or [`Claims::ANY`].
    pub from: u32,
    /// The rank that is spoken to, or [`Claims::ANY`].
    pub to: u32,
}

impl Claims {
    /// "Some rank": a listener that takes anyone of the job, or a connection made before ranks are known.
    pub const ANY: u32 = u32::MAX;
}

/// Where a listener can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An IP address and port.
    Tcp(SocketAddr),
    /// A socket in the file system of this host.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}
