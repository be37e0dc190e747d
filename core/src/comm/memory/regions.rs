//! Which memory of this rank a peer may write by message: a number for each grant, never an address.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::{Place, RegisteredMemory};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Mutex, lock};

/// The grants of one communicator. Checked by the receiver for every message that arrives.
#[derive(Debug, Default)]
pub(in super::super) struct Regions {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    regions: HashMap<u64, Region>,
}

#[derive(Clone, Debug)]
struct Region {
    peer: u32,
    place: Place,
    len: usize,
}

/// One grant: it ends when this is dropped.
#[derive(Debug)]
pub(in super::super) struct Grant {
    regions: Weak<Regions>,
    number: u64,
}

impl Regions {
    /// Lets `peer` write `memory`.
    pub(in super::super) fn grant(self: &Arc<Self>, memory: &RegisteredMemory, peer: u32) -> Grant {
        let mut table = lock(&self.table);
        table.last += 1;
        let number = table.last;
        table.regions.insert(number, Region { peer, place: memory.place().clone(), len: memory.len() });
        Grant { regions: Arc::downgrade(self), number }
    }

    /// `offset .. offset + len` of what was granted to `peer` as `number`.
    pub(in super::super) fn find(&self, number: u64, peer: u32, offset: u64, len: u64) -> Result<Place> {
        let refuse = |message: String| Err(Error::new(ErrorKind::Remote, "write", message).with_peer(peer));
        let found = lock(&self.table).regions.get(&number).filter(|region| region.peer == peer).cloned();
        let Some(Region { place, len: size, .. }) = found else {
            return refuse(format!(
                "rank {peer} wrote to region {number}, which it has not been given or has given back"
            ));
        };
        match offset.checked_add(len) {
            Some(end) if end <= size as u64 => place.part(offset as usize, len as usize),
            _ => refuse(format!(
                "rank {peer} wrote {len} bytes at offset {offset} of a region of {size} bytes"
            )),
        }
    }
}

impl Grant {
    pub(in super::super) fn number(&self) -> u64 {
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
