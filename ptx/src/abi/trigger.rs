//! A kernel's requests to the proxy thread, and the queue that carries them.
//!
//! A [`ProxyTrigger`] is four 64-bit words. Each carries 63 payload bits and, in the top bit, the lap bit of its
//! position in the queue, so that a reader can tell word by word whether it belongs to this lap; slots are never
//! cleared and an all-zero payload is legal. The consumer defines the meaning of the payload: channels use
//! [`ChannelTrigger`], and a handler of your own may use all 4 x 63 bits otherwise.

use std::fmt;

use super::abort::AbortHandle;
use super::layout::device_struct;

/// Top bit of every word: the lap.
const LAP: u64 = 1 << 63;

/// Bits of an offset within a registered memory.
pub(super) const OFFSET_BITS: u32 = 48;
/// Bits of a transfer's size.
pub(super) const SIZE_BITS: u32 = 40;
/// Bits of a memory's or semaphore's id.
pub(super) const ID_BITS: u32 = 16;

device_struct! {
    /// One slot of a [`FifoHandle`]'s queue, as written by the device: four words, lap bits included.
    ///
    /// As a [`ChannelTrigger`], word 0: destination offset (bits 0-47), kind (48-55); word 1: source offset (0-47);
    /// word 2: size (0-39), semaphore id (40-55); word 3: destination id (0-15), source id (16-31); every other
    /// payload bit is zero. Bit 63 of each word is the lap bit whatever the rest means.
    pub struct ProxyTrigger as "TRIGGER" size 32 {
        /// The words in the order of their addresses.
        pub words: [u64; 4] => "WORDS" at 0,
    }
}

device_struct! {
    /// The device's view of a FIFO: many producers on one GPU, one consumer on the host.
    ///
    /// A producer takes position `p` by adding one to `head`; slot `p % capacity` is free once `p < tail + capacity`.
    /// The host publishes its tail with a release store; the device keeps a copy so that it seldom reads across the
    /// bus. Positions have 63 bits: the top bit of a closed head is set, and a value taken from it is no position.
    pub struct FifoHandle as "FIFO" size 64 {
        /// Address of `capacity` [`ProxyTrigger`] slots, pinned host memory, 32-byte aligned.
        pub slots: u64 => "SLOTS" at 0,
        /// Address of the next position to hand out (u64, device memory).
        pub head: u64 => "HEAD" at 8,
        /// Address of the consumer's position (u64, pinned host memory, written by the host).
        pub tail: u64 => "TAIL" at 16,
        /// Address of the device's copy of the tail (u64, device memory); it may lag, never lead.
        pub tail_cache: u64 => "TAIL_CACHE" at 24,
        /// Number of slots, a power of two.
        pub capacity: u32 => "CAPACITY" at 32,
        /// Its base-two logarithm.
        pub capacity_log2: u32 => "CAPACITY_LOG2" at 36,
        /// Abort word, record and my rank.
        pub abort: AbortHandle => "ABORT" at 40,
    }
}

/// Lap bit of a position: 1 in the first lap (memory starts as zero), then alternating.
///
/// `capacity` is a power of two.
pub const fn lap_bit(position: u64, capacity: u64) -> bool {
    // A shift: a division would cost the consumer more than all the rest.
    (position >> capacity.trailing_zeros()) & 1 == 0
}

/// A set of actions, done in the order data, flag, sync.
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
    /// Every bit that has a meaning.
    const ALL: Self = Self::DATA.with(Self::FLAG).with(Self::SYNC);

    /// Both sets together.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is in the set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The single actions of the set in the order in which they are done. An empty set asks for nothing, and may.
    pub fn actions(self) -> impl Iterator<Item = Self> {
        [Self::DATA, Self::FLAG, Self::SYNC].into_iter().filter(move |&action| self.contains(action))
    }
}

/// A trigger's meaning to the channels, decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelTrigger {
    /// The actions.
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
        /// The actions asked for.
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
    /// A bit of the kind has no meaning: written by a newer ABI, or not a channel's trigger.
    Kind(TriggerKind),
}

impl fmt::Display for TriggerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overflow { field, value, limit } => {
                write!(f, "{value} does not fit the {field} of a trigger, whose limit is {limit}")
            }
            Self::Torn => write!(f, "the words of a trigger belong to different laps"),
            Self::Reserved { word } => write!(f, "trigger word {word} has reserved bits set"),
            Self::Kind(kind) => write!(f, "trigger kind {:#x} is no set of data, flag and sync", kind.0),
        }
    }
}

impl std::error::Error for TriggerError {}

impl ChannelTrigger {
    /// The four words with lap bit `lap`.
    ///
    /// # Errors
    /// [`TriggerError::Overflow`] if a field exceeds its bits, [`TriggerError::Kind`] if the kind has a bit without
    /// meaning; nothing is ever masked.
    pub fn encode(&self, lap: bool) -> Result<ProxyTrigger, TriggerError> {
        fits("destination offset", self.dst_offset, OFFSET_BITS)?;
        fits("source offset", self.src_offset, OFFSET_BITS)?;
        fits("size", self.size, SIZE_BITS)?;
        known(self.kind)?;
        ProxyTrigger::from_payload(
            [
                self.dst_offset | u64::from(self.kind.0) << OFFSET_BITS,
                self.src_offset,
                self.size | u64::from(self.semaphore) << SIZE_BITS,
                u64::from(self.dst_id) | u64::from(self.src_id) << ID_BITS,
            ],
            lap,
        )
    }
}

impl ProxyTrigger {
    /// A trigger of any meaning: four words of 63 bits, with lap bit `lap`.
    ///
    /// # Errors
    /// [`TriggerError::Overflow`] if a word uses bit 63.
    pub fn from_payload(payload: [u64; 4], lap: bool) -> Result<Self, TriggerError> {
        for (name, word) in ["word 0", "word 1", "word 2", "word 3"].into_iter().zip(payload) {
            fits(name, word, 63)?;
        }
        let lap = if lap { LAP } else { 0 };
        Ok(Self { words: payload.map(|word| lap | word) })
    }

    /// The four words without their lap bits.
    pub fn payload(&self) -> [u64; 4] {
        self.words.map(|word| word & !LAP)
    }

    /// Whether all four words belong to the lap.
    pub fn is_whole(&self, lap: bool) -> bool {
        self.words.iter().all(|word| (word & LAP != 0) == lap)
    }

    /// The meaning of a whole trigger to the channels.
    ///
    /// # Errors
    /// [`TriggerError::Torn`] if the lap bits differ, [`TriggerError::Reserved`] if a reserved bit is set,
    /// [`TriggerError::Kind`] if a bit of the kind has no meaning.
    pub fn decode(&self) -> Result<ChannelTrigger, TriggerError> {
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
        let kind = TriggerKind(field(0, OFFSET_BITS, 8) as u8);
        known(kind)?;
        Ok(ChannelTrigger {
            kind,
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

fn known(kind: TriggerKind) -> Result<(), TriggerError> {
    if TriggerKind::ALL.contains(kind) { Ok(()) } else { Err(TriggerError::Kind(kind)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn largest() -> ChannelTrigger {
        ChannelTrigger {
            kind: TriggerKind::ALL,
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
        for trigger in [ChannelTrigger::default(), largest()] {
            for lap in [false, true] {
                let words = trigger.encode(lap).unwrap();
                assert!(words.is_whole(lap) && !words.is_whole(!lap));
                assert_eq!(words.decode(), Ok(trigger));
            }
        }
    }

    #[test]
    fn one_past_each_limit_is_refused_and_never_masked() {
        type Case = (&'static str, fn(&mut ChannelTrigger));
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
        for capacity in [1, 2, 8, 1 << 31] {
            for lap in [0, 1, 2, 3, u64::MAX / capacity] {
                let first = lap * capacity;
                assert_eq!([first, first + (capacity - 1)].map(|p| lap_bit(p, capacity)), [lap % 2 == 0; 2]);
            }
        }
    }

    #[test]
    fn a_trigger_of_a_users_own_has_every_bit_but_the_laps() {
        let payload = [0, !LAP, 1, 1 << 62];
        for lap in [false, true] {
            let trigger = ProxyTrigger::from_payload(payload, lap).unwrap();
            assert!(trigger.is_whole(lap));
            assert_eq!(trigger.payload(), payload);
        }
        for word in 0..4 {
            let mut spoilt = payload;
            spoilt[word] |= LAP;
            let error = ProxyTrigger::from_payload(spoilt, false).unwrap_err();
            assert!(error.to_string().contains(&format!("word {word}")), "{error}");
        }
    }

    #[test]
    fn actions_come_in_the_order_data_flag_sync() {
        use TriggerKind as K;
        let actions = |kind: TriggerKind| kind.actions().collect::<Vec<_>>();
        assert_eq!(actions(K::ALL), [K::DATA, K::FLAG, K::SYNC]);
        assert_eq!(actions(K::SYNC.with(K::DATA)), [K::DATA, K::SYNC]);
        assert_eq!(actions(K::default()), []);
    }

    #[test]
    fn kinds_without_meaning_are_refused_both_ways() {
        for kind in (8..=u8::MAX).map(TriggerKind) {
            assert_eq!(
                ChannelTrigger { kind, ..Default::default() }.encode(true),
                Err(TriggerError::Kind(kind))
            );
            let words = [u64::from(kind.0) << OFFSET_BITS, 0, 0, 0];
            assert_eq!(ProxyTrigger { words }.decode(), Err(TriggerError::Kind(kind)));
        }
    }

    /// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): the same values in every run.
    fn generator(mut state: u64) -> impl FnMut() -> u64 {
        move || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }
    }

    #[test]
    fn any_words_decode_to_what_encodes_to_them_or_to_an_error() {
        let mut next = generator(1);
        let mut decoded = 0;
        for round in 0..200_000 {
            // Sparse words, or hardly any would be free of reserved bits.
            let mut words = [(); 4].map(|()| next() & next() >> (next() % 48));
            if round % 2 == 0 {
                words = words.map(|word| word & !(0x7fff << 48 | LAP));
                words[0] |= (next() % 8) << OFFSET_BITS;
                words[3] &= 0xffff_ffff;
            }
            let trigger = ProxyTrigger { words };
            if let Ok(meaning) = trigger.decode() {
                decoded += 1;
                assert_eq!(meaning.encode(words[0] & LAP != 0), Ok(trigger));
            }
        }
        assert!(decoded > 50_000, "only {decoded} were triggers");
    }

    #[test]
    fn any_fields_survive_or_are_named() {
        let mut next = generator(2);
        for _ in 0..200_000 {
            let mut offset = || next() >> (next() % 64);
            let trigger = ChannelTrigger {
                dst_offset: offset(),
                src_offset: offset(),
                size: offset(),
                kind: TriggerKind((next() % 10) as u8),
                dst_id: next() as u16,
                src_id: next() as u16,
                semaphore: next() as u16,
            };
            let legal = trigger.dst_offset < 1 << 48
                && trigger.src_offset < 1 << 48
                && trigger.size < 1 << 40
                && trigger.kind.0 < 8;
            let encoded = trigger.encode(next().is_multiple_of(2));
            assert_eq!(encoded.is_ok(), legal, "{trigger:?}");
            if let Ok(words) = encoded {
                assert_eq!(words.decode(), Ok(trigger));
            }
        }
    }
}
