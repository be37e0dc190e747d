//! The decoders, one function each, for the fuzz targets of the `fuzz` package; not part of the API.
//!
//! Each takes what arrived and gives what it means, encoded again, or `None` if it was refused. What has no encoder gives
//! a text that says all of it. Beyond that a function asserts what must hold of its decoder whatever arrives.

pub use crate::bootstrap::fuzzing::*;
pub use crate::comm::fuzzing::*;
pub use crate::message::fuzzing::*;
pub use crate::net::fuzzing::*;

use std::collections::BTreeMap;

use crate::env::Env;
use crate::fault::Rules;
use crate::plan::{check, file};
use crate::rdma::{QpAddress, RemoteRegion};
use crate::wire::{Reader, Writer};

/// A queue pair's address.
pub fn qp_address(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut r = Reader::new(bytes);
    let address = QpAddress::decode(&mut r).ok()?;
    r.finish().ok()?;
    let mut w = Writer::new();
    address.encode(&mut w);
    Some(w.finish())
}

/// A remote memory region, and the ranges in it.
pub fn remote_region(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut r = Reader::new(bytes);
    let region = RemoteRegion::decode(&mut r).ok()?;
    r.finish().ok()?;
    assert!(region.range(0, region.len()).is_ok(), "all of a region is inside it");
    assert!(region.range(1, region.len()).is_err() && region.range(region.len(), 1).is_err());
    let mut w = Writer::new();
    region.encode(&mut w);
    Some(w.finish())
}

/// `NAME=value` lines as the environment: the library's own variables.
pub fn environment(bytes: &[u8]) -> Option<Vec<u8>> {
    Env::parse(&variables(bytes)?).ok().map(|env| {
        assert!(env.rank.zip(env.world_size).is_none_or(|(rank, size)| rank < size));
        assert!(!env.timeout.is_zero() && env.peer_timeout.is_none_or(|timeout| !timeout.is_zero()));
        Vec::new()
    })
}

/// Rules of faults.
pub fn faults(bytes: &[u8]) -> Option<Vec<u8>> {
    Rules::parse(str::from_utf8(bytes).ok()?).ok().map(|rules| format!("{rules:?}").into_bytes())
}

/// A plan file. Looking at the structure of what was read must end, whatever it is.
pub fn plan_file(bytes: &[u8]) -> Option<Vec<u8>> {
    let plan = file::read(str::from_utf8(bytes).ok()?).ok()?;
    check::structure(&plan);
    // Not every combination that can be read has one operation in the format, so some are refused.
    file::write(&plan).ok().map(String::into_bytes)
}

/// `NAME=value` lines; `None` if they are no text.
pub(crate) fn variables(bytes: &[u8]) -> Option<BTreeMap<String, String>> {
    let lines = str::from_utf8(bytes).ok()?.lines();
    Some(lines.filter_map(|line| line.split_once('=')).map(|(n, v)| (n.to_owned(), v.to_owned())).collect())
}

/// Outputs of the real encoders, each with the name of its fuzz target.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut all = wire_forms();
    all.extend(messages());
    all.extend(streams());
    all.extend(message_seeds());
    let region =
        |address: u64, length: u64| [&address.to_le_bytes()[..], &length.to_le_bytes(), &[7; 4]].concat();
    all.push(("remote-region", region(0x1000, 64)));
    all.push(("remote-region", region(u64::MAX - 8, 8)));
    for (gid, lid) in [(true, 0), (false, 3)] {
        let kind = crate::rdma::GidKind::ROCE_V2;
        let gid = gid.then_some((crate::rdma::Gid([7; 16]), kind));
        let mut w = Writer::new();
        QpAddress { qp_number: 17, psn: 1 << 20, lid, gid, mtu: 1024, max_read_atomic: 16 }.encode(&mut w);
        all.push(("qp-address", w.finish()));
    }
    all
}
