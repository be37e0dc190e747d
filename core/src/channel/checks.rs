//! Checks of offsets, sizes and flags that all channels share.
#![forbid(unsafe_code)]

use super::packet::PacketFormat;
use crate::error::{Error, Result};

/// Returns an error unless `bytes` bytes at `offset` lie within `len`.
pub(super) fn check(op: &'static str, what: &str, offset: usize, bytes: usize, len: usize) -> Result<()> {
    match offset.checked_add(bytes) {
        Some(end) if end <= len => Ok(()),
        _ => Err(Error::usage(
            op,
            format!("{bytes} bytes at offset {offset} of {what} do not fit into its {len} bytes"),
        )),
    }
}

/// Returns how many bytes of packets carry `bytes` bytes of data, or an error for flag 0 or an overflow.
pub(super) fn packet_room(op: &'static str, format: PacketFormat, bytes: usize, flag: u32) -> Result<usize> {
    if flag == 0 {
        return Err(Error::usage(op, "0 is never a flag: fresh packet buffers hold zeros"));
    }
    format
        .packet_bytes(bytes)
        .ok_or_else(|| Error::usage(op, format!("packets for {bytes} bytes exceed the address space")))
}
