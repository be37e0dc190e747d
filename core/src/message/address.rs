//! Where a messenger can be reached, as a value that any other means may carry.
#![forbid(unsafe_code)]

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::bootstrap::{read_address, write_address};
use crate::error::{Error, Result};
use crate::net::{from_hex_text, to_hex};
use crate::wire::{Reader, WireError, WireResult, Writer};

const VERSION: u16 = 1;
/// The most IP addresses in one address.
const MAX_IPS: usize = 8;
const MAX_HOST: usize = 320;
/// The longest path of a unix socket.
const MAX_PATH: usize = 107;
/// How a text begins.
const PREFIX: &str = "aqueduct-messenger:";

/// Where one messenger can be reached. It contains no secret: whoever has it still has to prove that of the job.
///
/// Carry it as bytes ([`to_bytes`](Self::to_bytes)) or as text ([`Display`](fmt::Display), [`FromStr`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub(super) rank: u32,
    pub(super) generation: u64,
    pub(super) host: String,
    pub(super) ips: Vec<SocketAddr>,
    pub(super) unix: Option<PathBuf>,
}

impl Address {
    /// The rank that the messenger was given.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// A random number of each start of a messenger: one that comes back after a crash has another.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The host, to tell whether it is this one: its name and the id of its current boot.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The path of its unix socket, for processes of the same host and user.
    pub(super) fn unix(&self) -> Option<&Path> {
        self.unix.as_deref()
    }

    /// The wire form, at most 700 bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u16(VERSION).u32(self.rank).u64(self.generation).str(&self.host);
        w.str(self.unix().and_then(Path::to_str).unwrap_or_default());
        w.count(self.ips.len());
        self.ips.iter().for_each(|ip| write_address(&mut w, Some(ip)));
        w.finish()
    }

    /// The counterpart of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// `Remote` for bytes that are no address.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Ok(Self::decode(bytes)?)
    }

    fn decode(bytes: &[u8]) -> WireResult<Self> {
        let mut r = Reader::new(bytes);
        r.version(VERSION)?;
        let (rank, generation) = (r.u32()?, r.u64()?);
        let host = r.str(MAX_HOST)?.to_owned();
        let unix = match r.str(MAX_PATH)? {
            "" => None,
            path if path.contains('\0') => return Err(WireError::Invalid { what: "path of a socket" }),
            path => Some(PathBuf::from(path)),
        };
        let mut ips = Vec::new();
        for _ in 0..r.count(MAX_IPS, 24)? {
            ips.push(read_address(&mut r)?.ok_or(WireError::Invalid { what: "address" })?);
        }
        r.finish()?;
        let address = Self { rank, generation, host, ips, unix };
        // One spelling of each address, so that what decodes is what was encoded.
        if address.to_bytes() == bytes { Ok(address) } else { Err(WireError::Invalid { what: "address" }) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", to_hex(&self.to_bytes()))
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bytes = text.trim().strip_prefix(PREFIX).filter(|hex| hex.len() <= 2048).and_then(from_hex_text);
        let decoded = bytes.and_then(|bytes| Self::decode(&bytes).ok());
        decoded.ok_or_else(|| {
            let text = "this is not the address of a messenger; pass all of what `Messenger::address` gave, unchanged";
            Error::usage("Address", text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Address {
        let ips = vec!["10.1.2.3:4567".parse().unwrap(), "[fd00::7]:89".parse().unwrap()];
        let unix = Some("/run/user/1000/aqueduct-socket-abc/s".into());
        Address { rank: 3, generation: 0xfeed, host: "node/7".into(), ips, unix }
    }

    #[test]
    fn bytes_and_text_round_trip() {
        for address in [sample(), Address { ips: Vec::new(), unix: None, host: String::new(), ..sample() }] {
            assert_eq!(Address::from_bytes(&address.to_bytes()).unwrap(), address);
            assert_eq!(format!(" {address}\n").parse::<Address>().unwrap(), address);
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        let good = sample().to_bytes();
        for cut in 0..good.len() {
            assert!(Address::from_bytes(&good[..cut]).is_err(), "{cut}");
        }
        let text = sample().to_string();
        for bad in ["", "10.0.0.1:80", &text[1..], &text[..text.len() - 1], &format!("{text}00")] {
            let error = bad.parse::<Address>().unwrap_err();
            assert!(error.message().contains("Messenger::address"), "{error}");
        }
    }
}
