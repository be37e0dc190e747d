//! Keys of a peer's memory, by which this side's device reads it.
#![forbid(unsafe_code)]

use super::tokens::Token;
use crate::rdma::{QpAddress, RemoteRegion};
use crate::wire::{Reader, WireResult, Writer};

/// Tokens of one peer of which something is known; beyond it, those that were not used for longest are forgotten.
const MAX_KEYS: usize = 64;
/// A read of so many bytes asks for a key at once, a shorter one if it is the second of its token: a key costs the owner a
/// registration.
const WORTH_A_KEY: usize = 64 << 10;
/// Reads after which an owner that gave no key is asked again; twice as many after each further time, up to the second.
const WAIT: u32 = 64;
const MAX_WAIT: u32 = 4096;

/// The answer to a request for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// All of the memory that the token stands for.
    pub(super) region: RemoteRegion,
    /// The owner's end of a new pair, if the request came with the reader's.
    pub(super) pair: Option<QpAddress>,
}

/// The wire form of an answer; no bytes if the owner gives no key, whatever the reason: asked for the data, it says why.
pub(super) fn encode(key: Option<&Key>) -> Vec<u8> {
    let mut w = Writer::new();
    if let Some(key) = key {
        key.region.encode(&mut w);
        key.pair.iter().for_each(|pair| pair.encode(&mut w));
    }
    w.finish()
}

/// The counterpart of [`encode`].
///
/// # Errors
/// For other bytes.
pub(super) fn decode(bytes: &[u8]) -> WireResult<Option<Key>> {
    let mut r = Reader::new(bytes);
    if bytes.is_empty() {
        return Ok(None);
    }
    let region = RemoteRegion::decode(&mut r)?;
    let pair = if r.remaining() > 0 { Some(QpAddress::decode(&mut r)?) } else { None };
    r.finish()?;
    Ok(Some(Key { region, pair }))
}

/// What is known of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// It was read once.
    Once,
    Key(RemoteRegion),
    /// The owner gave no key. It may later, when more of the memory was read, or more may be locked: it is asked again after `left` more
    /// reads, which were `wait` when it was asked last.
    None {
        left: u32,
        wait: u32,
    },
}

/// A way for a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The device reads it from here.
    Fetch(RemoteRegion),
    /// The owner is to be asked for the key first.
    Ask,
    /// The owner sends the data.
    Data,
}

/// The keys of one peer's memory, the latest used first.
#[derive(Debug, Default)]
pub(super) struct Keys {
    all: Vec<(Token, Known)>,
}

impl Keys {
    /// The way for a read of `length` bytes of the memory that `token` stands for. Every byte of the token must be as it was when
    /// its owner checked it.
    pub(super) fn choose(&mut self, token: &Token, length: usize) -> Choice {
        let Some(index) = self.all.iter().position(|(known, _)| known == token) else {
            self.put(*token, Known::Once);
            return if length >= WORTH_A_KEY { Choice::Ask } else { Choice::Data };
        };
        self.all[..=index].rotate_right(1);
        match &mut self.all[0].1 {
            Known::Once | Known::None { left: 0, .. } => Choice::Ask,
            Known::Key(region) => Choice::Fetch(*region),
            Known::None { left, .. } => {
                *left -= 1;
                Choice::Data
            }
        }
    }

    /// Keeps the owner's answer.
    pub(super) fn add(&mut self, token: Token, region: Option<RemoteRegion>) {
        let index = self.all.iter().position(|(known, _)| *known == token);
        let wait = match index.map(|index| self.all.remove(index).1) {
            Some(Known::None { wait, .. }) => (2 * wait).min(MAX_WAIT),
            _ => WAIT,
        };
        self.put(token, region.map_or(Known::None { left: wait, wait }, Known::Key));
    }

    /// Has the next read of `token` ask again.
    pub(super) fn forget(&mut self, token: Token) {
        self.all.retain(|(known, _)| *known != token);
        self.put(token, Known::Once);
    }

    fn put(&mut self, token: Token, known: Known) {
        self.all.truncate(MAX_KEYS - 1);
        self.all.insert(0, (token, known));
    }

    pub(super) fn clear(&mut self) {
        self.all = Vec::new();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rdma::{Gid, GidKind};

    fn token(slot: u32) -> Token {
        Token {
            generation: 1,
            slot,
            age: 0,
            length: 8,
            shared: false,
            device: false,
            secret: [slot as u8; 16],
        }
    }

    fn region(address: u64) -> RemoteRegion {
        let mut w = Writer::new();
        w.u64(address).u64(8).u32(7);
        RemoteRegion::decode(&mut Reader::new(w.as_bytes())).unwrap()
    }

    #[test]
    fn a_key_is_asked_for_when_it_pays() {
        let mut keys = Keys::default();
        assert_eq!(keys.choose(&token(0), WORTH_A_KEY), Choice::Ask);
        assert_eq!(keys.choose(&token(1), WORTH_A_KEY - 1), Choice::Data);
        assert_eq!(keys.choose(&token(1), 1), Choice::Ask, "the second read");
        keys.add(token(1), Some(region(9)));
        assert_eq!(keys.choose(&token(1), 1), Choice::Fetch(region(9)));
        keys.add(token(0), None);
        assert_eq!(keys.choose(&token(0), WORTH_A_KEY), Choice::Data, "there is none");
        keys.forget(token(0));
        assert_eq!(keys.choose(&token(0), 1), Choice::Ask);
        for changed in [
            Token { secret: [1; 16], slot: 7, ..token(1) },
            Token { age: 1, ..token(1) },
            Token { length: 9, ..token(1) },
            Token { generation: 2, ..token(1) },
        ] {
            assert_eq!(keys.choose(&changed, 1), Choice::Data, "{changed:?}");
        }
        keys.clear();
        assert_eq!(keys.choose(&token(1), 1), Choice::Data);
    }

    #[test]
    fn an_owner_that_gives_no_key_is_asked_ever_more_seldom() {
        let mut keys = Keys::default();
        for wait in [64, 128, 256, 512, 1024, 2048, 4096, 4096] {
            keys.add(token(0), None);
            let choices: Vec<Choice> = (0..=wait).map(|_| keys.choose(&token(0), WORTH_A_KEY)).collect();
            assert!(choices[..wait].iter().all(|choice| *choice == Choice::Data), "{wait}");
            assert_eq!(choices[wait], Choice::Ask);
        }
    }

    #[test]
    fn as_many_are_kept_as_may_be_and_the_latest_used_ones() {
        let mut keys = Keys::default();
        (0..MAX_KEYS as u32).for_each(|slot| keys.add(token(slot), Some(region(1))));
        assert_eq!(keys.choose(&token(0), 1), Choice::Fetch(region(1)), "used last from now on");
        keys.add(token(100), Some(region(2)));
        assert_eq!(keys.all.len(), MAX_KEYS);
        assert_eq!(keys.choose(&token(0), 1), Choice::Fetch(region(1)));
        assert_eq!(keys.choose(&token(1), 1), Choice::Data, "forgotten");
    }

    proptest! {
        #[test]
        fn answers_round_trip_and_garbage_is_refused(
            address in 0..u64::MAX - 8, has_pair: bool, qp_number in 2_u32..1 << 24, psn in 0_u32..1 << 24,
            noise in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let gid = Some((Gid([3; 16]), GidKind::ROCE_V2));
            let pair = QpAddress { qp_number, psn, lid: 0, gid, mtu: 1024, max_read_atomic: 16 };
            let key = Key { region: region(address), pair: has_pair.then_some(pair) };
            prop_assert_eq!(decode(&encode(Some(&key))), Ok(Some(key)));
            prop_assert!(decode(&[&encode(Some(&key))[..], &[0]].concat()).is_err());
            if let Ok(key) = decode(&noise) {
                prop_assert_eq!(encode(key.as_ref()), noise);
            }
        }
    }

    #[test]
    fn no_key_has_no_bytes() {
        assert_eq!((decode(&encode(None)), encode(None).len()), (Ok(None), 0));
    }
}
