//! The wire form of everything that leaves this process: little-endian, versioned, bounded.
//!
//! Received bytes are hostile until checked. [`Reader`] checks every length against a limit and against the bytes
//! that are really there *before* it allocates or slices, and [`Reader::finish`] refuses trailing bytes, so that
//! a record that decodes is exactly what some [`Writer`] wrote. Records that may grow begin with a version.
#![forbid(unsafe_code)]

use std::fmt;

use crate::error::{Error, ErrorKind};

/// Why bytes could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// Fewer bytes than the field needs.
    Truncated {
        /// Bytes that the field needs.
        needed: usize,
        /// Bytes that are left.
        available: usize,
    },
    /// A length or count above its limit.
    TooLong {
        /// The value found.
        length: u64,
        /// The largest value allowed.
        limit: u64,
    },
    /// The leading magic is not ours: this is not an aqueduct record at all.
    Magic {
        /// The value found.
        found: u32,
    },
    /// A version that this build does not know.
    Version {
        /// The version found.
        found: u16,
        /// The version that this build knows.
        supported: u16,
    },
    /// Bytes after the end of the record.
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// A value outside its range.
    Invalid {
        /// The field.
        what: &'static str,
    },
}

/// `Result` with [`WireError`].
pub type WireResult<T> = Result<T, WireError>;

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Truncated { needed, available } => {
                write!(f, "truncated record: {needed} bytes needed, {available} left")
            }
            Self::TooLong { length, limit } => write!(f, "length {length} is above the limit of {limit}"),
            Self::Magic { found } => write!(f, "not an aqueduct record (magic {found:#010x})"),
            Self::Version { found, supported } => {
                write!(
                    f,
                    "record version {found}, this build knows {supported}: use one version of aqueduct everywhere"
                )
            }
            Self::Trailing { bytes } => write!(f, "{bytes} bytes after the end of the record"),
            Self::Invalid { what } => write!(f, "invalid {what}"),
        }
    }
}

impl std::error::Error for WireError {}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        Self::new(ErrorKind::Remote, "decode", error.to_string())
    }
}

/// Appends fields to a byte vector.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty record.
    pub fn new() -> Self {
        Self::default()
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.raw(&[value])
    }

    /// Two bytes, little-endian.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// Four bytes, little-endian.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// Eight bytes, little-endian.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// The bytes as they are, with no length: for fields of fixed size.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// A `u32` length, then the bytes.
    ///
    /// # Panics
    /// If `bytes` is longer than `u32::MAX`; every reader's limit is far below that.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.count(bytes.len()).raw(bytes)
    }

    /// A `u32` length, then the UTF-8 text.
    pub fn str(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    /// As [`str`](Self::str), of the longest beginning of `text` that has at most `limit` bytes.
    pub fn str_cut(&mut self, text: &str, limit: usize) -> &mut Self {
        let mut end = text.len().min(limit);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.str(&text[..end])
    }

    /// A `u32` number of items that follow.
    ///
    /// # Panics
    /// If `count` is above `u32::MAX`.
    pub fn count(&mut self, count: usize) -> &mut Self {
        self.u32(u32::try_from(count).expect("lengths on the wire fit 32 bits"))
    }

    /// The record so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The finished record.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Takes fields from the front of a byte slice.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `bytes` from their beginning.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The next `length` bytes, borrowed. `length` comes from the caller, not from the wire.
    pub fn raw(&mut self, length: usize) -> WireResult<&'a [u8]> {
        let available = self.rest.len();
        let (head, rest) =
            self.rest.split_at_checked(length).ok_or(WireError::Truncated { needed: length, available })?;
        self.rest = rest;
        Ok(head)
    }

    /// The next `N` bytes, copied.
    pub fn array<const N: usize>(&mut self) -> WireResult<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.raw(N)?);
        Ok(out)
    }

    /// One byte.
    pub fn u8(&mut self) -> WireResult<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// Two bytes, little-endian.
    pub fn u16(&mut self) -> WireResult<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes, little-endian.
    pub fn u32(&mut self) -> WireResult<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes, little-endian.
    pub fn u64(&mut self) -> WireResult<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A byte that is 0 or 1.
    pub fn bool(&mut self) -> WireResult<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Invalid { what: "boolean" }),
        }
    }

    /// A `u32` length of at most `limit`, then that many bytes, borrowed.
    pub fn bytes(&mut self, limit: usize) -> WireResult<&'a [u8]> {
        let length = self.u32()?;
        if u64::from(length) > limit as u64 {
            return Err(WireError::TooLong { length: length.into(), limit: limit as u64 });
        }
        self.raw(length as usize)
    }

    /// Text written by [`Writer::str`], of at most `limit` bytes.
    pub fn str(&mut self, limit: usize) -> WireResult<&'a str> {
        std::str::from_utf8(self.bytes(limit)?).map_err(|_| WireError::Invalid { what: "UTF-8 text" })
    }

    /// The same as [`str`](Self::str), for people: without characters that a terminal would obey.
    pub fn text(&mut self, limit: usize) -> WireResult<String> {
        self.str(limit).map(printable)
    }

    /// A number of items, at most `limit`, each at least `item_bytes` long: safe to allocate for, because that
    /// many items can really follow.
    pub fn count(&mut self, limit: usize, item_bytes: usize) -> WireResult<usize> {
        let count = self.u32()? as usize;
        if count > limit {
            return Err(WireError::TooLong { length: count as u64, limit: limit as u64 });
        }
        let needed = count.saturating_mul(item_bytes);
        if needed > self.rest.len() {
            return Err(WireError::Truncated { needed, available: self.rest.len() });
        }
        Ok(count)
    }

    /// A `u16` version that must be `supported`.
    pub fn version(&mut self, supported: u16) -> WireResult<()> {
        let found = self.u16()?;
        if found == supported { Ok(()) } else { Err(WireError::Version { found, supported }) }
    }

    /// Refuses trailing bytes.
    pub fn finish(self) -> WireResult<()> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(WireError::Trailing { bytes }),
        }
    }
}

/// The 16-byte header of every frame on an authenticated stream.
///
/// | offset | field | size |
/// |---|---|---|
/// | 0 | magic | 4 |
/// | 4 | version | 2 |
/// | 6 | kind | 2 |
/// | 8 | length of the payload in bytes | 4 |
/// | 12 | number of file descriptors passed with it | 2 |
/// | 14 | zero | 2 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Kind of payload; the protocol on the stream defines its meaning.
    pub kind: u16,
    /// Bytes of payload that follow.
    pub length: u32,
    /// File descriptors that came with the frame; not 0 on unix sockets only.
    pub fds: u16,
}

impl FrameHeader {
    /// `"AQF1"` read as a little-endian word.
    pub const MAGIC: u32 = u32::from_le_bytes(*b"AQF1");
    /// The version of the framing.
    pub const VERSION: u16 = 1;
    /// Size of the encoded header.
    pub const BYTES: usize = 16;

    /// The encoded header.
    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut w = Writer::new();
        w.u32(Self::MAGIC).u16(Self::VERSION).u16(self.kind).u32(self.length).u16(self.fds).u16(0);
        let mut out = [0; Self::BYTES];
        out.copy_from_slice(w.as_bytes());
        out
    }

    /// Decodes and checks a header; `max_length` and `max_fds` bound what the receiver is willing to take.
    pub fn decode(bytes: &[u8; Self::BYTES], max_length: u32, max_fds: u16) -> WireResult<Self> {
        let mut r = Reader::new(bytes);
        let found = r.u32()?;
        if found != Self::MAGIC {
            return Err(WireError::Magic { found });
        }
        r.version(Self::VERSION)?;
        let header = Self { kind: r.u16()?, length: r.u32()?, fds: r.u16()? };
        if r.u16()? != 0 {
            return Err(WireError::Invalid { what: "reserved field of a frame header" });
        }
        if header.length > max_length {
            return Err(WireError::TooLong { length: header.length.into(), limit: max_length.into() });
        }
        if header.fds > max_fds {
            return Err(WireError::TooLong { length: header.fds.into(), limit: max_fds.into() });
        }
        Ok(header)
    }
}

/// The text with control characters escaped, which a terminal would obey: a program, here or at a peer, may have put anything there.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { out.extend(c.escape_debug()) } else { out.push(c) }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_written_is_read(a: u8, b: u16, c: u32, d: u64, e: Vec<u8>, f: String) {
            let mut w = Writer::new();
            w.u16(7).u8(a).u16(b).u32(c).u64(d).bytes(&e).str(&f);
            let bytes = w.finish();
            let mut r = Reader::new(&bytes);
            r.version(7).unwrap();
            prop_assert_eq!((r.u8(), r.u16(), r.u32(), r.u64()), (Ok(a), Ok(b), Ok(c), Ok(d)));
            prop_assert_eq!(r.bytes(e.len()).unwrap(), &e[..]);
            prop_assert_eq!(r.str(f.len()).unwrap(), &f);
            r.finish().unwrap();
            // Every shorter prefix fails, and never by a panic.
            for cut in 0..bytes.len() {
                let mut r = Reader::new(&bytes[..cut]);
                let all = (|| {
                    r.version(7)?; r.u8()?; r.u16()?; r.u32()?; r.u64()?; r.bytes(e.len())?; r.str(f.len())?;
                    r.finish()
                })();
                prop_assert!(all.is_err());
            }
        }

        #[test]
        fn garbage_never_allocates_beyond_its_own_size(bytes: Vec<u8>, limit in 0usize..1 << 20) {
            let mut r = Reader::new(&bytes);
            if let Ok(found) = r.bytes(limit) {
                prop_assert!(found.len() <= limit && found.len() + 4 <= bytes.len());
            }
            let mut r = Reader::new(&bytes);
            if let Ok(count) = r.count(limit, 8) {
                prop_assert!(count <= limit && count * 8 <= r.remaining());
            }
        }

        #[test]
        fn headers_round_trip_and_garbage_is_refused(kind: u16, length: u32, fds: u16, noise: [u8; 16]) {
            let header = FrameHeader { kind, length, fds };
            prop_assert_eq!(FrameHeader::decode(&header.encode(), u32::MAX, u16::MAX), Ok(header));
            if length > 0 {
                let too_long = WireError::TooLong { length: length.into(), limit: u64::from(length) - 1 };
                prop_assert_eq!(FrameHeader::decode(&header.encode(), length - 1, u16::MAX), Err(too_long));
            }
            if let Ok(found) = FrameHeader::decode(&noise, u32::MAX, u16::MAX) {
                prop_assert_eq!(found.encode(), noise);
            }
        }
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        for (limit, left) in [(0, ""), (1, "a"), (2, "a"), (3, "a\u{e9}"), (4, "a\u{e9}b"), (9, "a\u{e9}b")] {
            let mut w = Writer::new();
            w.str_cut("a\u{e9}b", limit);
            assert_eq!(Reader::new(w.as_bytes()).str(limit), Ok(left), "at most {limit} bytes");
        }
    }

    #[test]
    fn each_defect_has_its_own_error() {
        let good = FrameHeader { kind: 1, length: 2, fds: 0 }.encode();
        let mut magic = good;
        magic[0] ^= 1;
        assert!(matches!(FrameHeader::decode(&magic, 9, 0), Err(WireError::Magic { .. })));
        let mut version = good;
        version[4] = 9;
        assert_eq!(FrameHeader::decode(&version, 9, 0), Err(WireError::Version { found: 9, supported: 1 }));
        assert_eq!(Reader::new(&[1]).finish(), Err(WireError::Trailing { bytes: 1 }));
        assert_eq!(Reader::new(&[2]).bool(), Err(WireError::Invalid { what: "boolean" }));
        assert_eq!(Reader::new(&[0; 3]).u32(), Err(WireError::Truncated { needed: 4, available: 3 }));
        let huge = u32::MAX.to_le_bytes();
        assert!(matches!(Reader::new(&huge).count(usize::MAX, 16), Err(WireError::Truncated { .. })));
    }

    #[test]
    fn limits_are_taken_and_what_is_above_them_is_refused() {
        let too_long = |length, limit| WireError::TooLong { length, limit };
        let mut record = Writer::new();
        record.count(3).raw(&[0; 6]);
        let count = |limit, item_bytes| Reader::new(record.as_bytes()).count(limit, item_bytes);
        assert_eq!((count(3, 2), count(4, 2)), (Ok(3), Ok(3)));
        assert_eq!((count(2, 2), count(0, 2)), (Err(too_long(3, 2)), Err(too_long(3, 0))));
        assert_eq!(count(3, 3), Err(WireError::Truncated { needed: 9, available: 6 }));

        let header = FrameHeader { kind: 1, length: 5, fds: 3 };
        let decode = |length, fds| FrameHeader::decode(&header.encode(), length, fds);
        assert_eq!((decode(5, 3), decode(6, 4)), (Ok(header), Ok(header)));
        assert_eq!((decode(4, 3), decode(0, 3)), (Err(too_long(5, 4)), Err(too_long(5, 0))));
        assert_eq!((decode(5, 2), decode(5, 0)), (Err(too_long(3, 2)), Err(too_long(3, 0))));
    }
}
