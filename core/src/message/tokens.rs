//! Tokens of exposed memory, and the table that knows which are good.
#![forbid(unsafe_code)]

use crate::error::{Error, ErrorKind, Result};
use crate::wire::{Reader, WireResult, Writer};

/// The bit beside the slot that says that the memory may be mapped.
const SHARED: u32 = 1 << 31;
/// The bit that says that it is a device's.
const DEVICE: u32 = 1 << 30;

/// The right to read one piece of exposed memory, as opaque bytes that any means may carry to a peer.
///
/// It names the memory by number, never by address, and proves by 128 random bits that the owner gave it away. It is good for
/// any part, any number of times, until the owner revokes it or its messenger ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// The messenger that owns the memory.
    pub(super) generation: u64,
    pub(super) slot: u32,
    /// How often the slot had been used before.
    pub(super) age: u32,
    pub(super) length: u64,
    /// Whether a process of the owner's host may map the memory.
    pub(super) shared: bool,
    /// Whether it is memory of a device.
    pub(super) device: bool,
    pub(super) secret: [u8; 16],
}

impl Token {
    /// Size of the wire form.
    pub const BYTES: usize = 40;
    /// Size of [`mark`](Self::mark).
    pub(super) const MARK: usize = 8;

    /// The wire form.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut w = Writer::new();
        let flag = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
        let slot = self.slot | flag(self.shared, SHARED) | flag(self.device, DEVICE);
        w.u64(self.generation).u32(slot).u32(self.age).u64(self.length).raw(&self.secret);
        let mut out = [0; Self::BYTES];
        out.copy_from_slice(w.as_bytes());
        out
    }

    /// The counterpart of [`to_bytes`](Self::to_bytes). Whether the token is good, only its owner knows.
    ///
    /// # Errors
    /// `Remote` for another number of bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        if bytes.len() != Self::BYTES {
            let text = format!("a token has {} bytes, and these are {}", Self::BYTES, bytes.len());
            return Err(Error::new(ErrorKind::Remote, "Token::from_bytes", text));
        }
        let mut r = Reader::new(bytes);
        let token = Self::decode(&mut r)?;
        r.finish()?;
        Ok(token)
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> WireResult<Self> {
        let (generation, slot, age, length) = (r.u64()?, r.u32()?, r.u32()?, r.u64()?);
        let (shared, device) = (slot & SHARED != 0, slot & DEVICE != 0);
        let slot = slot & !(SHARED | DEVICE);
        Ok(Self { generation, slot, age, length, shared, device, secret: r.array()? })
    }

    /// Tells this token from others of its messenger, except with a chance of 2^-64.
    pub(super) fn mark(&self) -> [u8; Self::MARK] {
        self.secret[..Self::MARK].try_into().expect("shorter than the secret")
    }

    /// Length of the memory in bytes.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether the memory has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// `Ok` if `length` bytes at `offset` lie within the memory.
    pub(super) fn check_range(&self, op: &'static str, offset: u64, length: u64) -> Result<()> {
        if offset.checked_add(length).is_some_and(|end| end <= self.length) {
            return Ok(());
        }
        let text =
            format!("offset {offset} + {length} bytes is past the end of {} exposed bytes", self.length);
        Err(Error::usage(op, text))
    }
}

/// Does not show the secret.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token({} bytes, slot {}.{})", self.length, self.slot, self.age)
    }
}
