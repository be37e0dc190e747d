//! Ranges of registered memory, here and at the peer.
#![forbid(unsafe_code)]

use std::ops::Range;

use crate::error::{Error, Result};
use crate::wire::{Reader, WireError, WireResult, Writer};

/// A range of a memory region of this side, checked against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalRange {
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) key: u32,
}

/// A range of the peer's memory, checked against what the peer said; its NIC checks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRange {
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) key: u32,
}

impl LocalRange {
    /// The addresses that requests name.
    pub(crate) fn addresses(&self) -> Range<u64> {
        self.address..self.address + self.length
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl RemoteRange {
    /// The address of its first byte in the peer's registration.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// The addresses that requests name.
    pub(crate) fn addresses(&self) -> Range<u64> {
        self.address..self.address + self.length
    }

    /// The part `offset .. offset + length`.
    ///
    /// # Errors
    /// `InvalidUsage` if it is not all inside.
    #[inline]
    pub fn part(&self, offset: u64, length: u64) -> Result<Self> {
        let address = inside(self.address, self.length, offset, length)?;
        Ok(Self { address, length, key: self.key })
    }

    /// The first `length` bytes, or all if there are not so many.
    #[must_use]
    #[inline]
    pub fn first(mut self, length: u64) -> Self {
        self.length = self.length.min(length);
        self
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// The peer's memory region as it described it: where writes and reads may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) key: u32,
}

impl RemoteRegion {
    /// Size on the wire.
    pub const BYTES: usize = 20;

    /// The `length` bytes at `offset`.
    ///
    /// # Errors
    /// `InvalidUsage` if they are not all inside.
    #[inline]
    pub fn range(&self, offset: u64, length: u64) -> Result<RemoteRange> {
        let address = inside(self.address, self.length, offset, length)?;
        Ok(RemoteRange { address, length, key: self.key })
    }

    /// Bytes of the whole region.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The remote key.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Its address in the peer's registration.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Appends address (8 bytes), length (8) and key (4).
    pub fn encode(&self, w: &mut Writer) {
        w.u64(self.address).u64(self.length).u32(self.key);
    }

    /// Takes what [`encode`](Self::encode) wrote; a region that wraps around the address space is refused.
    pub fn decode(r: &mut Reader<'_>) -> WireResult<Self> {
        let region = Self { address: r.u64()?, length: r.u64()?, key: r.u32()? };
        match region.address.checked_add(region.length) {
            Some(_) => Ok(region),
            None => Err(WireError::Invalid { what: "length of a remote memory region" }),
        }
    }
}

/// The address of `length` bytes at `offset` of a region.
#[inline]
pub(super) fn inside(address: u64, region: u64, offset: u64, length: u64) -> Result<u64> {
    match offset.checked_add(length) {
        // The region itself does not wrap around, so nothing inside does.
        Some(end) if end <= region => Ok(address + offset),
        _ => Err(outside(region, offset, length)),
    }
}

#[cold]
fn outside(region: u64, offset: u64, length: u64) -> Error {
    let message = format!("{length} bytes at offset {offset} are not inside the region of {region} bytes");
    Error::usage("memory_region", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_inside_or_refused() {
        let region = RemoteRegion { address: 0x1000, length: 64, key: 7 };
        assert_eq!(region.range(8, 56).unwrap().address, 0x1008);
        assert!(region.range(64, 0).unwrap().is_empty());
        for (offset, length) in [(0, 65), (65, 0), (u64::MAX, 2), (1, u64::MAX)] {
            assert!(region.range(offset, length).is_err(), "{offset} {length}");
        }
    }

    #[test]
    fn the_wire_form_round_trips_and_wrapping_is_refused() {
        let region = RemoteRegion { address: u64::MAX - 8, length: 8, key: u32::MAX };
        let mut w = Writer::new();
        region.encode(&mut w);
        assert_eq!(w.as_bytes().len(), RemoteRegion::BYTES);
        assert_eq!(RemoteRegion::decode(&mut Reader::new(w.as_bytes())), Ok(region));
        let mut w = Writer::new();
        RemoteRegion { length: 9, ..region }.encode(&mut w);
        assert!(RemoteRegion::decode(&mut Reader::new(w.as_bytes())).is_err());
    }
}
