//! How ranks meet, see [`crate::fuzzing`].
#![forbid(unsafe_code)]

pub use super::launch::fuzzing::*;

use super::UniqueId;
use crate::net::Secret;

/// A unique id as text.
pub fn unique_id(bytes: &[u8]) -> Option<Vec<u8>> {
    let id: UniqueId = str::from_utf8(bytes).ok()?.parse().ok()?;
    Some(id.to_string().into_bytes())
}

pub(crate) fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let addresses = [vec![([127, 0, 0, 1], 80).into()], vec![([10, 0, 0, 1], 1).into(), ([0; 8], 2).into()]];
    let id = |addresses| UniqueId::new(addresses, Secret::from_bytes([7; 32]), 9).to_string().into_bytes();
    addresses.map(|addresses| ("unique-id", id(addresses))).to_vec()
}
