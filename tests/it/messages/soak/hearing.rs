//! The peers as one process hears them, and its checks of what they send.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use aqueduct::message::{Begun, Message, Messenger, Peer, PeerEvent, Token};
use aqueduct::{Error, ErrorKind, Result};

use super::{Board, PATIENCE, Random, Step};

/// Kinds of messages.
pub(super) const PLAIN: u16 = 1;
pub(super) const LONG: u16 = 2;
pub(super) const TOKEN: u16 = 3;
pub(super) const MARK: u16 = 300;

/// The operations of a run end far sooner.
pub(super) const DEADLINE: Duration = PATIENCE;
/// The longest data.
pub(super) const LONGEST: usize = 2 << 20;

/// Bytes without any pattern, the same in all processes. All that is sent is a part of them, so that checking costs little.
pub(super) fn noise() -> &'static [u8] {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    NOISE.get_or_init(|| {
        let mut random = Random(1);
        (0..LONGEST / 4).flat_map(|_| random.word().to_le_bytes()).collect()
    })
}

/// The `length` bytes that belong to `seed`.
pub(super) fn body(seed: u64, length: usize) -> &'static [u8] {
    &noise()[(seed % LONGEST as u64) as usize..][..length]
}

pub(super) fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    std::array::from_fn(|n| u64::from_le_bytes(bytes[8 * n..8 * n + 8].try_into().unwrap()))
}

pub(super) fn joined(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Whether the sender of the long data of `seed` takes it back after a while.
pub(super) fn is_taken_back(seed: u64) -> bool {
    seed % 16 == 7
}

/// A peer that lives, as far as this process knows.
#[derive(Default)]
pub(super) struct Known {
    /// `None` while this process connects to it: its first message may be there before `connect` returns.
    pub(super) peer: Option<Peer>,
    /// Messages sent to it, and taken from it.
    pub(super) sent: u64,
    pub(super) taken: u64,
    /// The memory that it exposes at the moment.
    pub(super) token: Option<Token>,
    /// It has been told what this process exposes at the moment.
    pub(super) told: bool,
    /// The rounds whose ends were said to it, and by it.
    pub(super) marked: (u32, u32),
    pub(super) under_way: usize,
}

#[derive(Default)]
pub(super) struct State {
    /// By rank and generation.
    pub(super) peers: BTreeMap<(u32, u64), Known>,
    pub(super) begun: u64,
    pub(super) ended: u64,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) longs: u64,
    pub(super) reads: u64,
    /// Operations that a killed peer, a cancellation, a deadline or a revoked token has ended.
    pub(super) lost: u64,
}

pub(super) fn key(peer: &Peer) -> (u32, u64) {
    (peer.rank(), peer.generation())
}

/// State that callbacks share with the loop.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) rank: u32,
    pub(super) board: Board,
    pub(super) state: Arc<Mutex<State>>,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A panic in a callback would only be logged.
    fn fail(&self, why: &str) -> ! {
        eprintln!("rank {}: {why}", self.rank);
        std::process::exit(3)
    }

    pub(super) fn require(&self, right: bool, why: impl FnOnce() -> String) {
        if !right {
            self.fail(&why());
        }
    }

    /// An error of a peer: it must have been killed, or everybody leaves.
    pub(super) fn lost(&self, peer: &Peer, error: &Error) {
        let excused = self.board.is_dead(peer.generation()) || self.board.step() == Step::End;
        self.require(excused && error.kind() == ErrorKind::PeerLost, || format!("{peer:?}: {error}"));
    }

    /// An operation with `peer` has ended.
    pub(super) fn ended(&self, peer: &Peer) {
        self.lock().ended += 1;
        self.with(peer, |known| known.under_way -= 1);
    }

    pub(super) fn with<T>(&self, peer: &Peer, then: impl FnOnce(&mut Known) -> T) -> Option<T> {
        self.lock().peers.get_mut(&key(peer)).map(then)
    }

    /// Checks what comes from now on.
    pub(super) fn hear(&self, messenger: &Messenger) {
        let [a, b, c, d, e] = [(); 5].map(|()| self.clone());
        messenger.on(PLAIN, move |message| a.plain(&message)).unwrap();
        messenger.on(LONG, move |mut message| b.long(&mut message)).unwrap();
        messenger
            .on(TOKEN, move |message| {
                let token =
                    Token::from_bytes(message.bytes()).unwrap_or_else(|error| c.fail(&error.to_string()));
                c.with(message.peer(), |known| known.token = Some(token));
            })
            .unwrap();
        messenger
            .on(MARK, move |message| {
                let [round, count] = words(message.bytes());
                let taken = d.with(message.peer(), |known| {
                    known.marked.1 = round as u32;
                    known.taken
                });
                d.require(taken == Some(count), || {
                    format!("{taken:?} messages came of {count} that were sent")
                });
            })
            .unwrap();
        messenger
            .on_peer(move |event| match event {
                PeerEvent::Connected(peer) => {
                    let known = Known { peer: Some(peer.clone()), ..Known::default() };
                    let before = e.lock().peers.insert(key(&peer), known);
                    e.require(before.is_none(), || format!("{peer:?} connected twice"));
                }
                PeerEvent::Gone(peer, why) => {
                    e.lost(&peer, &why);
                    let known = e.lock().peers.remove(&key(&peer));
                    e.require(known.is_some(), || format!("{peer:?} went twice"));
                }
                _ => {}
            })
            .unwrap();
    }

    fn plain(&self, message: &Message) {
        let bytes = message.bytes();
        let [number, seed] = words(bytes);
        self.require(bytes[16..] == *body(seed, bytes.len() - 16), || {
            format!("message {number} came damaged")
        });
        let taken = self.with(message.peer(), |known| {
            known.taken += 1;
            known.taken - 1
        });
        // A peer is there before its first message, and goes after its last one.
        self.require(taken == Some(number), || format!("message {number} came instead of {taken:?}"));
        let mut state = self.lock();
        state.messages += 1;
        state.bytes += bytes.len() as u64;
    }

    /// An offer of long data, which its seed says to take or not.
    fn long(&self, message: &mut Message) {
        let [seed, length] = words(message.bytes());
        let long = message.long().unwrap_or_else(|| self.fail("an offer without data"));
        self.require(long.len() as u64 == length, || format!("{} bytes instead of {length}", long.len()));
        match seed % 8 {
            0 => long.refuse(),
            1 => drop(long),
            _ => {
                let (shared, peer) = (self.clone(), message.peer().clone());
                let done = move |outcome: Result<Vec<u8>>| match outcome {
                    Ok(bytes) => {
                        shared.require(bytes == body(seed, length as usize), || {
                            "long data came damaged".into()
                        });
                        let mut state = shared.lock();
                        state.longs += 1;
                        state.bytes += length;
                    }
                    Err(error) if error.kind() == ErrorKind::Remote && is_taken_back(seed) => {}
                    Err(error) => shared.lost(&peer, &error),
                };
                if let Err(error) =
                    long.read(vec![0; length as usize], DEADLINE, done).and_then(Begun::posted)
                {
                    self.lost(message.peer(), &error);
                }
            }
        }
    }
}
