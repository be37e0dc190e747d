//! Rules for the bytes that one rank sends to another: what happens to them, and at which byte or message.

use std::sync::Arc;
use std::time::Duration;

use crate::sync::{AtomicU64, Ordering};
use crate::wire::FrameHeader;

/// The purpose of a socket connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// A rank's connection to the rendezvous server, which has no rank.
    Rendezvous,
    /// The bootstrap's messages between ranks.
    Bootstrap,
    /// The control links of a communicator.
    Control,
    /// The sockets of a communicator's Ethernet connections.
    Data,
}

/// The fault injected at the chosen place of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetAction {
    /// The connection is closed in both directions.
    Drop,
    /// This direction ends: the peer reads an end of stream, and later bytes are discarded.
    Truncate,
    /// Later bytes are discarded and neither side gets an error, as with a pulled cable.
    Stall,
    /// The sending thread sleeps once, which delays everything that it serves.
    Delay(Duration),
    /// At most this many bytes of the next write are discarded.
    Lose(usize),
    /// At most this many bytes of the next write arrive twice.
    Duplicate(usize),
    /// At most this many bytes of the next write arrive changed.
    Corrupt(usize),
    /// From here on bytes leave in pieces of 1 to 4096, some of them after a pause of up to 2 ms. All arrive, in order.
    Fragment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Bytes(u64),
    Frames(u64),
}

/// One rule about the bytes that one rank sends to another. It takes effect once on each stream that it applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetFault {
    action: NetAction,
    from: Option<u32>,
    to: Option<u32>,
    on: Option<LinkKind>,
    at: At,
}

impl NetFault {
    /// Applies `action` before the first byte of every stream of this process, unless restricted. Streams begin after
    /// the proof of the secret.
    pub fn new(action: NetAction) -> Self {
        Self { action, from: None, to: None, on: None, at: At::Bytes(0) }
    }

    /// Restricts the rule to bytes that `rank` sends.
    #[must_use]
    pub fn from_rank(mut self, rank: u32) -> Self {
        self.from = Some(rank);
        self
    }

    /// Restricts the rule to bytes sent to `rank`.
    #[must_use]
    pub fn to_rank(mut self, rank: u32) -> Self {
        self.to = Some(rank);
        self
    }

    /// Restricts the rule to connections of this kind.
    #[must_use]
    pub fn on(mut self, kind: LinkKind) -> Self {
        self.on = Some(kind);
        self
    }

    /// Applies the action after `bytes` bytes.
    #[must_use]
    pub fn after_bytes(mut self, bytes: u64) -> Self {
        self.at = At::Bytes(bytes);
        self
    }

    /// Applies the action after `frames` whole messages.
    #[must_use]
    pub fn after_frames(mut self, frames: u64) -> Self {
        self.at = At::Frames(frames);
        self
    }
}

/// Network rules and a counter of their effects. Implements [`Layer`](crate::net::Layer).
#[derive(Debug, Default)]
pub struct NetFaults {
    rules: Vec<NetFault>,
    seed: u64,
    fired: Arc<AtomicU64>,
}

impl NetFaults {
    /// Uses `rules`. `seed` determines how bytes are corrupted, and where fragments end.
    pub fn new(rules: impl IntoIterator<Item = NetFault>, seed: u64) -> Self {
        Self { rules: rules.into_iter().collect(), seed, fired: Arc::default() }
    }

    /// Number of times that a rule has taken effect.
    pub fn fired(&self) -> u64 {
        self.fired.load(Ordering::Relaxed)
    }

    /// Returns the state to track a stream from `from` to `to`, or `None` if no rule applies to it.
    pub(crate) fn track(&self, from: u32, to: u32, kind: Option<LinkKind>) -> Option<Track> {
        let about = |rule: &&NetFault| {
            rule.from.is_none_or(|rank| rank == from)
                && rule.to.is_none_or(|rank| rank == to)
                && (rule.on.is_none() || rule.on == kind)
        };
        let rules: Vec<(At, NetAction)> =
            self.rules.iter().filter(about).map(|rule| (rule.at, rule.action)).collect();
        (!rules.is_empty()).then(|| Track {
            rules,
            position: Position::default(),
            fragmented: false,
            random: self.seed ^ (u64::from(from) << 32) ^ u64::from(to),
            fired: self.fired.clone(),
        })
    }
}

/// The fate of the next bytes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// After this pause write at most this many bytes; no rule takes effect within them.
    Pass(usize, Duration),
    /// Apply this action before the next byte.
    Act(NetAction),
}

/// Position in one direction of one stream, with the rules that are still to come.
#[derive(Debug)]
pub(crate) struct Track {
    /// Rules that have not taken effect yet.
    rules: Vec<(At, NetAction)>,
    position: Position,
    fragmented: bool,
    random: u64,
    fired: Arc<AtomicU64>,
}

impl Track {
    /// Decides what to do when `next` is about to be written.
    pub(crate) fn step(&mut self, next: &[u8]) -> Step {
        let mut pass = next.len();
        for (index, (at, action)) in self.rules.iter().enumerate() {
            match self.position.distance(*at, next) {
                Some(0) => {
                    let action = *action;
                    self.rules.remove(index);
                    self.fired.fetch_add(1, Ordering::Relaxed);
                    self.fragmented |= action == NetAction::Fragment;
                    return Step::Act(action);
                }
                Some(distance) => pass = pass.min(distance),
                None => {}
            }
        }
        if !self.fragmented || pass == 0 {
            return Step::Pass(pass, Duration::ZERO);
        }
        // Small pieces are the most common: each position in a message is some time the end of a piece.
        let longest = 1_usize << (self.random() % 13);
        let piece = 1 + (usize::from(self.random()) << 8 | usize::from(self.random())) % longest;
        let pause = if self.random().is_multiple_of(64) { u64::from(self.random()) * 8 } else { 0 };
        Step::Pass(pass.min(piece), Duration::from_micros(pause))
    }

    /// Knuth's MMIX generator. Its upper bits are the most random.
    fn random(&mut self) -> u8 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 56) as u8
    }

    /// Advances the position by `bytes`, whether they were sent or discarded.
    pub(crate) fn advance(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.position.push(*byte));
    }

    /// Changes every byte of `bytes`.
    pub(crate) fn corrupt(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte ^= self.random().max(1);
        }
    }
}

/// A position in a stream of frames.
#[derive(Clone, Debug, Default)]
struct Position {
    bytes: u64,
    frames: u64,
    header: Vec<u8>,
    /// Payload bytes still to come, once the header is complete.
    payload: u32,
}

impl Position {
    fn push(&mut self, byte: u8) {
        self.bytes += 1;
        if self.header.len() < FrameHeader::BYTES {
            self.header.push(byte);
            let Ok(header) = <&[u8; FrameHeader::BYTES]>::try_from(&self.header[..]) else { return };
            self.payload = FrameHeader::decode(header, u32::MAX, u16::MAX).map_or(0, |header| header.length);
        } else {
            self.payload -= 1;
        }
        if self.payload == 0 && self.header.len() == FrameHeader::BYTES {
            self.frames += 1;
            self.header.clear();
        }
    }

    /// Number of bytes of `next` before the place `at`, or `None` if `next` ends before it.
    fn distance(&self, at: At, next: &[u8]) -> Option<usize> {
        match at {
            At::Bytes(bytes) => usize::try_from(bytes.saturating_sub(self.bytes))
                .ok()
                .filter(|distance| *distance < next.len()),
            At::Frames(frames) if frames <= self.frames => Some(0),
            At::Frames(frames) => {
                let mut position = self.clone();
                next.iter()
                    .position(|byte| {
                        position.push(*byte);
                        position.frames == frames
                    })
                    .map(|index| index + 1)
                    .filter(|distance| *distance < next.len())
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn frame(length: usize) -> Vec<u8> {
        let header = FrameHeader { kind: 1, length: length as u32, fds: 0 }.encode();
        header.into_iter().chain(std::iter::repeat_n(7, length)).collect()
    }

    fn pass(bytes: usize) -> Step {
        Step::Pass(bytes, Duration::ZERO)
    }

    #[test]
    fn places_are_found_by_bytes_and_by_frames() {
        let faults = NetFaults::new(
            [
                NetFault::new(NetAction::Lose(1)).from_rank(1).after_bytes(5),
                NetFault::new(NetAction::Drop).to_rank(0).after_frames(2),
            ],
            0,
        );
        assert!(faults.track(0, 1, None).is_none());
        let mut track = faults.track(1, 0, None).unwrap();
        let stream = [frame(3), frame(0), frame(9)].concat();
        assert_eq!(track.step(&stream), pass(5));
        track.advance(&stream[..5]);
        assert_eq!(track.step(&stream[5..]), Step::Act(NetAction::Lose(1)));
        assert_eq!(track.step(&stream[5..]), pass(16 + 3 + 16 - 5));
        track.advance(&stream[5..35]);
        assert_eq!(track.step(&stream[35..]), Step::Act(NetAction::Drop));
        assert_eq!((track.step(&stream[35..]), faults.fired()), (pass(25), 2));
    }

    #[test]
    fn fragments_have_every_length_and_rules_behind_them_still_apply() {
        const STOP: u64 = 4_000_000;
        let rules = [NetFault::new(NetAction::Fragment), NetFault::new(NetAction::Drop).after_bytes(STOP)];
        let mut track = NetFaults::new(rules, 3).track(0, 1, None).unwrap();
        let stream = vec![0; 4 << 20];
        assert_eq!(track.step(&stream), Step::Act(NetAction::Fragment));
        let (mut at, mut lengths, mut pauses) = (0, vec![0; 4097], 0);
        while let Step::Pass(piece, pause) = track.step(&stream[at..]) {
            lengths[piece] += 1;
            pauses += u32::from(!pause.is_zero());
            assert!(pause <= Duration::from_millis(3));
            track.advance(&stream[at..at + piece]);
            at += piece;
        }
        assert_eq!(at as u64, STOP);
        assert!(
            lengths[0] == 0 && lengths[1..64].iter().all(|count| *count > 0) && pauses > 9,
            "{lengths:?}"
        );
    }

    #[test]
    fn corruption_changes_every_byte_in_the_same_way_each_time() {
        let [a, b] = [0, 1].map(|_| {
            let faults = NetFaults::new([NetFault::new(NetAction::Corrupt(64))], 9);
            let mut bytes = [5; 64];
            faults.track(0, 1, None).unwrap().corrupt(&mut bytes);
            bytes
        });
        assert!(a == b && a.iter().all(|byte| *byte != 5));
    }
}
