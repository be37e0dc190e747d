//! How ranks meet, see [`crate::fuzzing`].
#![forbid(unsafe_code)]

pub use super::launch::fuzzing::*;

mod collective;

pub use collective::collective;

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::UniqueId;
use super::rendezvous::{Hello, NEIGHBOURS, REFUSED, read_answer};
use super::unique_id::write_address;
use crate::net::{Frame, Secret};
use crate::wire::Writer;

/// A unique id as text.
pub fn unique_id(bytes: &[u8]) -> Option<Vec<u8>> {
    let id: UniqueId = str::from_utf8(bytes).ok()?.parse().ok()?;
    Some(id.to_text().expose().as_bytes().to_vec())
}

/// The 124 bytes of a unique id before its checksum, which is put right here: the checksum keeps out accidents only.
pub fn unique_id_body(bytes: &[u8]) -> Option<Vec<u8>> {
    let body: [u8; UniqueId::BYTES - 4] = bytes.try_into().ok()?;
    let mut whole = [0; UniqueId::BYTES];
    let (front, checksum) = whole.split_at_mut(body.len());
    front.copy_from_slice(&body);
    checksum.copy_from_slice(&Sha256::digest(body)[..4]);
    let id = UniqueId::from_bytes(&whole).ok()?;
    assert!((1..=UniqueId::MAX_ADDRESSES).contains(&id.addresses().len()));
    Some(id.to_bytes()[..body.len()].to_vec())
}

/// A rank's first message to the rendezvous.
pub fn hello(bytes: &[u8]) -> Option<Vec<u8>> {
    let hello = Hello::decode(bytes).ok()?;
    assert!(hello.rank < hello.size);
    Some(hello.encode())
}

/// The answer to it, in a job of 64 ranks; the first byte chooses between neighbours and a refusal.
pub fn answer(bytes: &[u8]) -> Option<Vec<u8>> {
    let (kind, payload) = bytes.split_first()?;
    let kind = if *kind == 0 { NEIGHBOURS } else { REFUSED };
    let answered = read_answer(&Frame { kind, payload: payload.to_vec(), fds: Vec::new() }, 64);
    let neighbours = answered.ok()?;
    assert!(neighbours.keys().all(|rank| *rank < 64) && kind == NEIGHBOURS);
    Some(format!("{neighbours:?}").into_bytes())
}

pub(crate) fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let patience = Duration::from_secs(60);
    let hello = Hello { rank: 1, size: 4, patience, address: ([127, 0, 0, 1], 80).into() };
    let mut all = vec![("hello", hello.encode())];
    let addresses = [vec![([127, 0, 0, 1], 80).into()], vec![([10, 0, 0, 1], 1).into(), ([0; 8], 2).into()]];
    for addresses in addresses {
        let id = UniqueId::new(addresses, Secret::from_bytes([7; 32]), 9);
        all.push(("unique-id-body", id.to_bytes()[..UniqueId::BYTES - 4].to_vec()));
        all.push(("unique-id", id.to_text().expose().as_bytes().to_vec()));
    }
    let mut w = Writer::new();
    w.u8(0).u16(1).count(1).u32(5);
    write_address(&mut w, Some(&([10, 0, 0, 1], 1).into()));
    all.push(("answer", w.finish()));
    all.extend(collective::heard());
    all
}
