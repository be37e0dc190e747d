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

/// Where a call finds or puts bytes: at `offset` of memory that errors call `what`, of `len` bytes.
pub(super) struct Location {
    pub(super) what: &'static str,
    pub(super) offset: usize,
    pub(super) len: usize,
}

/// Returns an error unless `bytes` bytes at `data` can be carried by packets with `flag` at each of `packets`.
pub(super) fn check_packets(
    op: &'static str,
    format: PacketFormat,
    bytes: usize,
    flag: u32,
    data: &Location,
    packets: &[Location],
) -> Result<()> {
    if flag == 0 {
        return Err(Error::usage(
            op,
            "flag 0 is not allowed, because fresh packet buffers hold zeros; count flags from 1",
        ));
    }
    let Some(room) = format.packet_bytes(bytes) else {
        return Err(Error::usage(op, format!("packets for {bytes} bytes exceed the address space")));
    };
    for Location { what, offset, len } in packets {
        format.check(op, *offset, data.offset, bytes)?;
        check(op, what, *offset, room, *len)?;
    }
    check(op, data.what, data.offset, bytes, data.len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_at_the_latest_where_their_memory_does() {
        let check = |offset, bytes| check("put", "src", offset, bytes, 64).is_ok();
        assert!(check(0, 64) && check(63, 1) && check(64, 0));
        assert!(!check(0, 65) && !check(64, 1) && !check(usize::MAX, 2));
    }

    #[test]
    fn packets_need_a_flag_and_room_for_themselves_and_for_their_data() {
        let place = |offset, len| Location { what: "memory", offset, len };
        let check = |bytes, flag, data, packets: &[Location]| {
            check_packets("put_packets", PacketFormat::Ll8, bytes, flag, &data, packets).is_ok()
        };
        assert!(check(8, 1, place(8, 16), &[place(0, 16), place(16, 32)]));
        assert!(!check(8, 0, place(8, 16), &[place(0, 16)]), "no flag");
        assert!(!check(8, 1, place(12, 16), &[place(0, 16)]), "data past the end");
        assert!(!check(8, 1, place(8, 16), &[place(0, 16), place(24, 32)]), "packets past the end");
        assert!(!check(8, 1, place(8, 16), &[place(4, 64)]), "packets out of line");
        assert!(
            !check(usize::MAX - 3, 1, place(0, usize::MAX), &[place(0, usize::MAX)]),
            "more than there is"
        );
    }
}
