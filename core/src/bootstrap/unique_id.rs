//! The id that the ranks of a job share to find and trust each other: 128 bytes.
#![forbid(unsafe_code)]

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};
use crate::net::{Secret, SecretText, from_hex, to_hex};
use crate::wire::{Reader, WireError, WireResult, Writer};

const MAGIC: u32 = u32::from_le_bytes(*b"AQID");
const VERSION: u16 = 1;
const CHECKSUM: usize = 4;

/// The address of a job's rendezvous and the job's 256-bit secret.
///
/// Anyone who has the id can join the job: pass it like a password, never on a command line (others can read it
/// there).
/// [`to_text`](Self::to_text) gives the 256 hexadecimal digits that [`FromStr`] takes; `Debug` hides the secret, and there
/// is no `Display`.
///
/// | bytes | field |
/// |---|---|
/// | 0..4 | magic |
/// | 4..6 | version |
/// | 6..8 | number of addresses, 1 or 2 |
/// | 8..56 | two addresses: family (4, 6 or 0), zero, port, IPv6 scope, 16 bytes of address |
/// | 56..88 | secret |
/// | 88..96 | nonce: which job this is |
/// | 96..124 | zero |
/// | 124..128 | first bytes of the SHA-256 of all before, against typing and copying errors |
#[derive(Clone)]
pub struct UniqueId {
    addresses: Vec<SocketAddr>,
    secret: Secret,
    nonce: u64,
}

impl UniqueId {
    /// Size of the binary form.
    pub const BYTES: usize = 128;
    /// The most rendezvous addresses an id carries.
    pub const MAX_ADDRESSES: usize = 2;

    pub(super) fn new(addresses: Vec<SocketAddr>, secret: Secret, nonce: u64) -> Self {
        assert!((1..=Self::MAX_ADDRESSES).contains(&addresses.len()), "one or two addresses");
        Self { addresses, secret, nonce }
    }

    /// The id of the job that meets at `address` and whose ranks know `secret`: the same on all ranks that name the
    /// same port. Jobs at different ports have different keys.
    pub(super) fn of_address(address: SocketAddr, secret: &Secret) -> Self {
        let secret = secret.derive(&format!("job that meets at port {}", address.port()));
        let nonce =
            secret.derive("nonce").expose().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Self::new(vec![address], secret, nonce)
    }

    /// Where the rendezvous listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The job's secret, from which every connection's key is derived.
    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Which job this is; not secret.
    pub(crate) fn nonce(&self) -> u64 {
        self.nonce
    }

    /// The binary form, to broadcast by MPI or a store.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut w = Writer::new();
        w.u32(MAGIC).u16(VERSION).u16(self.addresses.len() as u16);
        for index in 0..Self::MAX_ADDRESSES {
            write_address(&mut w, self.addresses.get(index));
        }
        w.raw(self.secret.expose()).u64(self.nonce).raw(&[0; 28]);
        let checksum = checksum(w.as_bytes());
        w.raw(&checksum);
        let mut out = [0; Self::BYTES];
        out.copy_from_slice(w.as_bytes());
        out
    }

    /// The text form, 256 hexadecimal digits, to pass in an environment variable or a private file.
    pub fn to_text(&self) -> SecretText {
        SecretText::new(to_hex(&self.to_bytes()))
    }

    /// Takes the binary form apart; an error if it is not one, was damaged, or comes from another version.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self> {
        Self::decode(bytes).map_err(|error| bad(&error.to_string()))
    }

    fn decode(bytes: &[u8; Self::BYTES]) -> WireResult<Self> {
        let mut r = Reader::new(bytes);
        let found = r.u32()?;
        if found != MAGIC {
            return Err(WireError::Magic { found });
        }
        r.version(VERSION)?;
        let (body, sum) = bytes.split_at(Self::BYTES - CHECKSUM);
        if checksum(body) != sum {
            return Err(WireError::Invalid { what: "checksum; some of it was changed or lost" });
        }
        let count = usize::from(r.u16()?);
        let slots = [read_address(&mut r)?, read_address(&mut r)?];
        let addresses: Vec<SocketAddr> = slots.iter().take(count).flatten().copied().collect();
        if !(1..=Self::MAX_ADDRESSES).contains(&count) || addresses.len() != count {
            return Err(WireError::Invalid { what: "number of addresses" });
        }
        let secret = Secret::from_bytes(r.array()?);
        Ok(Self { addresses, secret, nonce: r.u64()? })
    }
}

impl FromStr for UniqueId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = text.trim();
        if digits.len() != 2 * Self::BYTES {
            return Err(bad(&format!("it has {} characters instead of {}", digits.len(), 2 * Self::BYTES)));
        }
        Self::from_bytes(&from_hex(digits).ok_or_else(|| bad("it is not hexadecimal"))?)
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nonce = format_args!("{:016x}", self.nonce).to_string();
        f.debug_struct("UniqueId")
            .field("addresses", &self.addresses)
            .field("nonce", &nonce)
            .finish_non_exhaustive()
    }
}

/// An address in 24 bytes; all zero for none.
pub(crate) fn write_address(w: &mut Writer, address: Option<&SocketAddr>) {
    let Some(address) = address else {
        w.raw(&[0; 24]);
        return;
    };
    let (family, ip, scope) = match address {
        SocketAddr::V4(v4) => (4, v4.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(v6) => (6, *v6.ip(), v6.scope_id()),
    };
    w.u8(family).u8(0).u16(address.port()).u32(scope).raw(&ip.octets());
}

/// The counterpart of [`write_address`].
pub(crate) fn read_address(r: &mut Reader<'_>) -> WireResult<Option<SocketAddr>> {
    let (family, _, port, scope) = (r.u8()?, r.u8()?, r.u16()?, r.u32()?);
    let ip = Ipv6Addr::from(r.array::<16>()?);
    match (family, ip.to_ipv4_mapped()) {
        (0, _) => Ok(None),
        (4, Some(v4)) => Ok(Some(SocketAddr::new(IpAddr::V4(v4), port))),
        (6, _) => Ok(Some(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)))),
        _ => Err(WireError::Invalid { what: "address" }),
    }
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    let digest = Sha256::digest(bytes);
    [digest[0], digest[1], digest[2], digest[3]]
}

fn bad(why: &str) -> Error {
    Error::usage("UniqueId", format!("this is not a unique id of aqueduct: {why}; pass all of it unchanged"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> UniqueId {
        let addresses = vec!["10.1.2.3:4567".parse().unwrap(), "[fd00::7]:89".parse().unwrap()];
        UniqueId::new(addresses, Secret::from_bytes([0xab; 32]), 77)
    }

    #[test]
    fn both_forms_round_trip_and_debug_hides_the_secret() {
        let id = sample();
        let back: UniqueId = format!(" {}\n", id.to_text().expose()).parse().unwrap();
        assert_eq!((back.addresses(), back.nonce()), (id.addresses(), 77));
        assert_eq!(back.secret().expose(), &[0xab; 32]);
        for shown in [format!("{id:?}"), format!("{:?}", id.to_text())] {
            assert!(!shown.contains("ab, ab") && !shown.contains("abab"), "{shown}");
        }
    }

    proptest! {
        #[test]
        fn any_changed_byte_is_noticed(at in 0usize..128, change in 1u8..) {
            let mut bytes = sample().to_bytes();
            bytes[at] ^= change;
            prop_assert!(UniqueId::from_bytes(&bytes).is_err());
        }

        #[test]
        fn garbage_text_is_an_error(text in ".{0,300}") {
            prop_assert!(text.parse::<UniqueId>().is_err());
        }
    }

    #[test]
    fn consistent_nonsense_is_refused_too() {
        for (at, value) in [(6, 0), (6, 3), (8, 0), (8, 5), (8, 4)] {
            let mut bytes = sample().to_bytes();
            bytes[at] = value;
            if (at, value) == (8, 4) {
                bytes[16] = 1; // Family 4, but not an IPv4 address.
            }
            let sum = checksum(&bytes[..124]);
            bytes[124..].copy_from_slice(&sum);
            assert!(UniqueId::from_bytes(&bytes).is_err(), "byte {at} = {value}");
        }
    }
}
