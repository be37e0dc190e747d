//! Packet formats: how much room data takes and which offsets are allowed.

use std::fmt;

use crate::error::{Error, Result};

/// A format in which data carries its own flags, so that the receiver needs no signal (NCCL's LL protocols).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PacketFormat {
    /// 4 bytes of data and the 4-byte flag per 8-byte word.
    Ll8,
    /// Two such words, stored with one 128-bit instruction.
    Ll16,
    /// 120 bytes of data and an 8-byte flag per 128-byte line. Relies on the line staying whole, so channels refuse it
    /// unless NVLink joins the devices or they are one: see [`MemoryChannel::carries`](super::MemoryChannel::carries).
    Ll128,
}

impl PacketFormat {
    /// Every format.
    pub const ALL: [Self; 3] = [Self::Ll8, Self::Ll16, Self::Ll128];

    /// The name in kernel variants and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ll8 => "ll8",
            Self::Ll16 => "ll16",
            Self::Ll128 => "ll128",
        }
    }

    /// Data sizes and offsets are multiples of this many bytes.
    pub const fn granularity(self) -> usize {
        match self {
            Self::Ll8 | Self::Ll128 => 4,
            Self::Ll16 => 8,
        }
    }

    /// Packet offsets are multiples of this many bytes.
    pub const fn alignment(self) -> usize {
        match self {
            Self::Ll8 => 8,
            Self::Ll16 => 16,
            Self::Ll128 => 128,
        }
    }

    /// Bytes of packets that carry `bytes` bytes of data; `None` if that overflows.
    pub const fn packet_bytes(self, bytes: usize) -> Option<usize> {
        match self {
            Self::Ll8 | Self::Ll16 => bytes.checked_mul(2),
            // Units of 960 bytes are sent whole: one line per lane group of a warp.
            Self::Ll128 => bytes.div_ceil(960).checked_mul(1024),
        }
    }

    /// Packets, or units of a warp's work, that carry `bytes` bytes.
    pub(super) const fn work(self, bytes: usize) -> usize {
        match self {
            Self::Ll8 => bytes / 4,
            Self::Ll16 => bytes / 8,
            Self::Ll128 => bytes.div_ceil(960) * 32,
        }
    }

    /// Refuses sizes and offsets the format cannot carry.
    pub(super) fn check(self, op: &'static str, packets: usize, data: usize, bytes: usize) -> Result<()> {
        let (grain, align) = (self.granularity(), self.alignment());
        if !data.is_multiple_of(grain) || !bytes.is_multiple_of(grain) {
            let message =
                format!("{self} carries multiples of {grain} bytes; data offset {data}, size {bytes}");
            return Err(Error::usage(op, message));
        }
        if !packets.is_multiple_of(align) {
            let message =
                format!("{self} packets lie at multiples of {align} bytes; packet offset {packets}");
            return Err(Error::usage(op, message));
        }
        Ok(())
    }
}

impl fmt::Display for PacketFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ll8 => "LL8",
            Self::Ll16 => "LL16",
            Self::Ll128 => "LL128",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted_in_packets_and_for_lines_in_lanes() {
        let work = |bytes| PacketFormat::ALL.map(|format| format.work(bytes));
        assert_eq!(work(0), [0, 0, 0]);
        assert_eq!(work(24), [6, 3, 32]);
        assert_eq!(work(968), [242, 121, 64]);
        assert_eq!(PacketFormat::ALL.map(PacketFormat::name), ["ll8", "ll16", "ll128"]);
    }

    #[test]
    fn room_and_granularity() {
        assert_eq!(PacketFormat::Ll8.packet_bytes(4), Some(8));
        assert_eq!(PacketFormat::Ll16.packet_bytes(8), Some(16));
        assert_eq!(PacketFormat::Ll128.packet_bytes(1), Some(1024));
        assert_eq!(PacketFormat::Ll128.packet_bytes(961), Some(2048));
        assert_eq!(PacketFormat::Ll16.packet_bytes(usize::MAX), None);
        assert!(PacketFormat::Ll16.check("put_packets", 16, 8, 24).is_ok());
        for (packets, data, bytes) in [(8, 8, 8), (16, 4, 8), (16, 8, 4)] {
            let error = PacketFormat::Ll16.check("put_packets", packets, data, bytes).unwrap_err();
            assert!(error.message().contains("multiples of"), "{error}");
        }
    }
}
