//! Which memory of this rank a peer may write or read by message: a number for each grant, never an address.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::place::Place;
use super::rights::Rights;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Mutex, lock};

/// The grants of one communicator. Checked by the receiver for every message that arrives.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    regions: HashMap<u64, Region>,
}

#[derive(Debug)]
struct Region {
    peer: u32,
    place: Place,
    len: usize,
    rights: Rights,
}

/// A peer's message writes memory of this rank, or reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Write,
    Read,
}

impl Use {
    fn right(self) -> Rights {
        match self {
            Self::Write => Rights::REMOTE_WRITE,
            Self::Read => Rights::REMOTE_READ,
        }
    }

    fn op(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
        }
    }

    fn told(self) -> &'static str {
        match self {
            Self::Write => "wrote to",
            Self::Read => "read from",
        }
    }
}

/// One grant: it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Grant {
    regions: Weak<Regions>,
    number: u64,
}

impl Regions {
    /// Lets `peer` do what `rights` say with the `len` bytes at `place`.
    pub(crate) fn grant(self: &Arc<Self>, peer: u32, place: Place, len: usize, rights: Rights) -> Grant {
        let mut table = lock(&self.table);
        table.last += 1;
        let number = table.last;
        table.regions.insert(number, Region { peer, place, len, rights });
        Grant { regions: Arc::downgrade(self), number }
    }

    /// `offset .. offset + len` of what was granted to `peer` as `number`.
    pub(crate) fn find(&self, number: u64, peer: u32, offset: u64, len: u64, purpose: Use) -> Result<Place> {
        self.visit(number, peer, offset, len, purpose, |place, at| place.part(at, len as usize))?
    }

    /// Checks the peer's rights and that `len` bytes at `offset` lie inside the granted memory, then runs `f` with
    /// that memory and the offset. The table stays locked meanwhile, which keeps the memory alive, so `f` must be
    /// short.
    pub(crate) fn visit<T>(
        &self,
        number: u64,
        peer: u32,
        offset: u64,
        len: u64,
        purpose: Use,
        f: impl FnOnce(&Place, usize) -> T,
    ) -> Result<T> {
        let (table, told) = (lock(&self.table), purpose.told());
        let refuse =
            |message: String| Err(Error::new(ErrorKind::Remote, purpose.op(), message).with_peer(peer));
        let Some(region) = table.regions.get(&number).filter(|region| region.peer == peer) else {
            return refuse(format!(
                "rank {peer} {told} region {number}, which it has not been given or has given back"
            ));
        };
        if !region.rights.contains(purpose.right()) {
            return refuse(format!(
                "rank {peer} {told} region {number}, which is registered with Rights {:?}",
                region.rights
            ));
        }
        match offset.checked_add(len) {
            Some(end) if end <= region.len as u64 => Ok(f(&region.place, offset as usize)),
            _ => refuse(format!(
                "rank {peer} {told} {len} bytes at offset {offset} of a region of {} bytes",
                region.len
            )),
        }
    }
}

impl Grant {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let Some(regions) = self.regions.upgrade() else { return };
        // Dropped outside the lock: it may be the last to hold the memory.
        let region = lock(&regions.table).regions.remove(&self.number);
        drop(region);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_peer_writes_inside_its_grant_while_it_lasts_and_may() {
        let regions = Arc::new(Regions::default());
        let grant = regions.grant(1, Place::Elsewhere, 64, Rights::REMOTE_WRITE);
        let write =
            |number, peer, offset, len| regions.visit(number, peer, offset, len, Use::Write, |_, at| at);
        assert_eq!(write(grant.number(), 1, 8, 56).unwrap(), 8);
        assert!(write(grant.number(), 2, 0, 8).is_err() && write(grant.number() + 1, 1, 0, 8).is_err());
        assert!(write(grant.number(), 1, 8, 57).is_err() && write(grant.number(), 1, u64::MAX, 2).is_err());
        let readable = regions.grant(1, Place::Elsewhere, 64, Rights::REMOTE_READ);
        let error = write(readable.number(), 1, 0, 8).unwrap_err();
        assert_eq!(error.peer(), Some(1));
        assert!(
            error.message().contains("REMOTE_READ") && error.message().contains("1 wrote to region"),
            "{error}"
        );
        let read = |number| regions.visit(number, 1, 0, 8, Use::Read, |_, at| at);
        assert_eq!(read(readable.number()).unwrap(), 0);
        let error = read(grant.number()).unwrap_err();
        assert!(error.op() == "read" && error.message().contains("REMOTE_WRITE"), "{error}");
        assert!(error.message().contains("1 read from region"), "{error}");
        let number = grant.number();
        drop(grant);
        assert!(write(number, 1, 0, 8).is_err());
    }
}
