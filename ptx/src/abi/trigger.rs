//! What a kernel asks the proxy thread to do, and the queue that carries it.
//!
//! A [`Trigger`] is four 64-bit words. Each carries 63 payload bits and, in the top bit, the lap bit of its
//! position in the queue, so that a reader can tell word by word whether it belongs to this lap; slots are never
//! cleared and an all-zero payload is legal.

use super::layout::device_struct;
use std::fmt;

/// Top bit of every word: the lap.
const LAP: u64 = 1 << 63;

/// Bits of an offset within a registered memory.
pub(crate) const OFFSET_BITS: u32 = 48;
/// Bits of a transfer's size.
pub(crate) const SIZE_BITS: u32 = 40;
/// Bits of a memory's or semaphore's id.
pub(crate) const ID_BITS: u32 = 16;

device_struct! {
    /// One slot of a [`Fifo`], as written by the device: four words, lap bits included.
    ///
    /// word 0: destination offset (bits 0-47), kind (48-55); word 1: source offset (0-47);
    /// word 2: size (0-39), semaphore id (40-55); word 3: destination id (0-15), source id (16-31).
    /// Every other payload bit is zero; bit 63 of each word is the lap bit.
    pub struct Trigger as "TRIGGER" size 32 {
        /// The words in the order of their addresses.
        pub words: [u64; 4] => "WORDS" at 0,
    }
}

device_struct! {
    /// The device's view of a FIFO: many producers on one GPU, one consumer on the host.
    ///
    /// A producer takes position `p` by adding one to `head`; slot `p % capacity` is free once
    /// `p < tail + capacity`. The host publishes its tail with a release store; the device keeps a copy so
    /// that it seldom reads across the bus.
    pub struct Fifo as "FIFO" size 72 {
        /// Address of `capacity` [`Trigger`] slots, pinned host memory, 32-byte aligned.
        pub slots: u64 => "SLOTS" at 0,
        /// Address of the next position to hand out (u64, device memory).
        pub head: u64 => "HEAD" at 8,
        /// Address of the consumer's position (u64, pinned host memory, written by the host).
        pub tail: u64 => "TAIL" at 16,
        /// Address of the device's copy of the tail (u64, device memory).
        pub tail_cache: u64 => "TAIL_CACHE" at 24,
        /// Address of the count of completed flushes by position (u64, pinned host memory, written by the host).
        pub flushed: u64 => "FLUSHED" at 32,
        /// Number of slots, a power of two.
        pub capacity: u32 => "CAPACITY" at 40,
        /// Its base-two logarithm.
        pub capacity_log2: u32 => "CAPACITY_LOG2" at 44,
        /// Abort word, record and my rank.
        pub abort: super::AbortHandle => "ABORT" at 48,
    }
}

/// Lap bit of a position: 1 in the first lap (memory starts as zero), then alternating.
///
/// `capacity` is a power of two.
pub const fn lap_bit(position: u64, capacity: u64) -> bool {
    (position / capacity) & 1 == 0
}

/// What to do, in this order: data, then flag, then sync. A set of bits.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TriggerKind(pub u8);

impl TriggerKind {
    /// Copy `size` bytes from source to destination.
    pub const DATA: Self = Self(1);
    /// Signal the semaphore.
    pub const FLAG: Self = Self(2);
    /// Report when everything before has completed locally.
    pub const SYNC: Self = Self(4);

    /// Both sets together.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is in the set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A trigger's meaning, decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyTrigger {
    /// What to do.
    pub kind: TriggerKind,
    /// Registered memory to write.
    pub dst_id: u16,
    /// Byte offset in it, below 2^48.
    pub dst_offset: u64,
    /// Registered memory to read.
    pub src_id: u16,
    /// Byte offset in it, below 2^48.
    pub src_offset: u64,
    /// Bytes, below 2^40.
    pub size: u64,
    /// Semaphore to signal.
    pub semaphore: u16,
}

/// A field that its bits cannot hold, or bits that no field owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriggerError {
    /// `value` does not fit the field; the largest that does is `limit`.
    Overflow {
        /// Name of the field.
        field: &'static str,
        /// What was asked for.
        value: u64,
        /// Largest encodable value.
        limit: u64,
    },
    /// The words disagree about their lap: not one whole trigger.
    Torn,
    /// A reserved bit of word `word` is set: written by a newer ABI, or not a trigger.
    Reserved {
        /// Index of the word.
        word: usize,
    },
}

impl fmt::Display for TriggerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overflow { field, value, limit } => write!(
                f,
                "trigger {field} {value} exceeds {limit}: split the transfer or register the memory in parts"
            ),
            Self::Torn => write!(f, "the words of a trigger belong to different laps"),
            Self::Reserved { word } => write!(f, "trigger word {word} has reserved bits set"),
        }
    }
}

impl std::error::Error for TriggerError {}

impl ProxyTrigger {
    /// The four words with lap bit `lap`.
    ///
    /// # Errors
    /// [`TriggerError::Overflow`] if a field exceeds its bits; nothing is ever masked.
    pub fn encode(&self, lap: bool) -> Result<Trigger, TriggerError> {
        fits("destination offset", self.dst_offset, OFFSET_BITS)?;
        fits("source offset", self.src_offset, OFFSET_BITS)?;
        fits("size", self.size, SIZE_BITS)?;
        let lap = if lap { LAP } else { 0 };
        Ok(Trigger {
            words: [
                lap | self.dst_offset | u64::from(self.kind.0) << OFFSET_BITS,
                lap | self.src_offset,
                lap | self.size | u64::from(self.semaphore) << SIZE_BITS,
                lap | u64::from(self.dst_id) | u64::from(self.src_id) << ID_BITS,
            ],
        })
    }
}

impl Trigger {
    /// Whether all four words belong to the lap.
    pub fn is_whole(&self, lap: bool) -> bool {
        self.words.iter().all(|word| (word & LAP != 0) == lap)
    }

    /// The meaning of a whole trigger.
    ///
    /// # Errors
    /// [`TriggerError::Torn`] if the lap bits differ, [`TriggerError::Reserved`] if a reserved bit is set.
    pub fn decode(&self) -> Result<ProxyTrigger, TriggerError> {
        let lap = self.words[0] & LAP != 0;
        if !self.is_whole(lap) {
            return Err(TriggerError::Torn);
        }
        let used = [OFFSET_BITS + 8, OFFSET_BITS, SIZE_BITS + ID_BITS, 2 * ID_BITS];
        for (word, (value, bits)) in self.words.iter().zip(used).enumerate() {
            if (value & !LAP) >> bits != 0 {
                return Err(TriggerError::Reserved { word });
            }
        }
        let field = |word: usize, shift: u32, bits: u32| (self.words[word] >> shift) & ((1 << bits) - 1);
        let id = |word: usize, shift: u32| field(word, shift, ID_BITS) as u16;
        Ok(ProxyTrigger {
            kind: TriggerKind(field(0, OFFSET_BITS, 8) as u8),
            dst_offset: field(0, 0, OFFSET_BITS),
            src_offset: field(1, 0, OFFSET_BITS),
            size: field(2, 0, SIZE_BITS),
            semaphore: id(2, SIZE_BITS),
            dst_id: id(3, 0),
            src_id: id(3, ID_BITS),
        })
    }
}

fn fits(field: &'static str, value: u64, bits: u32) -> Result<(), TriggerError> {
    let limit = (1 << bits) - 1;
    if value > limit { Err(TriggerError::Overflow { field, value, limit }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn largest() -> ProxyTrigger {
        ProxyTrigger {
            kind: TriggerKind::DATA.with(TriggerKind::FLAG).with(TriggerKind::SYNC),
            dst_id: u16::MAX,
            dst_offset: (1 << OFFSET_BITS) - 1,
            src_id: u16::MAX - 1,
            src_offset: (1 << OFFSET_BITS) - 2,
            size: (1 << SIZE_BITS) - 1,
            semaphore: 0x8001,
        }
    }

    #[test]
    fn every_field_survives_either_lap() {
        for trigger in [ProxyTrigger::default(), largest()] {
            for lap in [false, true] {
                let words = trigger.encode(lap).unwrap();
                assert!(words.is_whole(lap) && !words.is_whole(!lap));
                assert_eq!(words.decode(), Ok(trigger));
            }
        }
    }

    #[test]
    fn one_past_each_limit_is_refused_and_never_masked() {
        type Case = (&'static str, fn(&mut ProxyTrigger));
        let cases: [Case; 3] = [
            ("destination offset", |t| t.dst_offset = 1 << OFFSET_BITS),
            ("source offset", |t| t.src_offset = 1 << OFFSET_BITS),
            ("size", |t| t.size = 1 << SIZE_BITS),
        ];
        for (name, spoil) in cases {
            let mut trigger = largest();
            spoil(&mut trigger);
            assert!(
                matches!(trigger.encode(true), Err(TriggerError::Overflow { field, .. }) if field == name)
            );
        }
    }

    #[test]
    fn torn_and_reserved_words_are_refused() {
        let mut torn = largest().encode(true).unwrap();
        torn.words[2] &= !LAP;
        assert_eq!(torn.decode(), Err(TriggerError::Torn));
        for (word, bit) in [(0, 56), (1, 48), (2, 56), (3, 32)] {
            let mut odd = largest().encode(false).unwrap();
            odd.words[word] |= 1 << bit;
            assert_eq!(odd.decode(), Err(TriggerError::Reserved { word }));
        }
    }

    #[test]
    fn the_first_lap_differs_from_zeroed_memory() {
        assert!(lap_bit(0, 8) && lap_bit(7, 8));
        assert!(!lap_bit(8, 8) && !lap_bit(15, 8));
        assert!(lap_bit(16, 8));
    }
}
