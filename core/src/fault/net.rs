//! Rules for the bytes that one rank sends to another: what happens to them, and at which byte or message.

use std::sync::Arc;
use std::time::Duration;

use super::position::{At, Position};
use crate::sync::{AtomicU64, Ordering};

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
    /// The connections of messengers.
    Messages,
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
    /// From here on each read of the receiver waits up to a millisecond until 1 to 8192 bytes are there, and takes no more
    /// than that: messages arrive together, and cut anywhere. All arrive, in order.
    Coalesce,
}

impl NetAction {
    /// Whether the receiver of the bytes applies it; the sender applies the others.
    fn is_of_receiver(self) -> bool {
        self == Self::Coalesce
    }
}

/// How long a read of [`NetAction::Coalesce`] waits at most. A message that nothing follows is late by this time, so that nothing
/// hangs.
pub(crate) const GATHERING: Duration = Duration::from_millis(1);

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
    /// Uses `rules`. `seed` determines how bytes are corrupted, and where fragments and gathered reads end.
    pub fn new(rules: impl IntoIterator<Item = NetFault>, seed: u64) -> Self {
        Self { rules: rules.into_iter().collect(), seed, fired: Arc::default() }
    }

    /// Number of times that a rule has taken effect.
    pub fn fired(&self) -> u64 {
        self.fired.load(Ordering::Relaxed)
    }

    /// Returns the state to track what is sent from `from` to `to`, or `None` if no rule of the sender applies to it.
    pub(crate) fn track(&self, from: u32, to: u32, kind: Option<LinkKind>) -> Option<Track> {
        self.select(from, to, kind, |action| !action.is_of_receiver())
    }

    /// The same for what `to` receives from `from`, and rules of the receiver.
    pub(crate) fn track_received(&self, from: u32, to: u32, kind: Option<LinkKind>) -> Option<Track> {
        self.select(from, to, kind, NetAction::is_of_receiver)
    }

    fn select(
        &self,
        from: u32,
        to: u32,
        kind: Option<LinkKind>,
        of_side: impl Fn(NetAction) -> bool,
    ) -> Option<Track> {
        let about = |rule: &&NetFault| {
            of_side(rule.action)
                && rule.from.is_none_or(|rank| rank == from)
                && rule.to.is_none_or(|rank| rank == to)
                && (rule.on.is_none() || rule.on == kind)
        };
        let rules: Vec<(At, NetAction)> =
            self.rules.iter().filter(about).map(|rule| (rule.at, rule.action)).collect();
        (!rules.is_empty()).then(|| Track {
            rules,
            position: Position::default(),
            resized: false,
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

/// How the next read goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// Take at most this many of the bytes that are there.
    Now(usize),
    /// Take at most this many bytes, and wait up to [`GATHERING`] until they are there.
    Gathered(usize),
}

/// Position in one direction of one stream, with the rules that are still to come.
#[derive(Debug)]
pub(crate) struct Track {
    /// Rules that have not taken effect yet.
    rules: Vec<(At, NetAction)>,
    position: Position,
    /// Writes are cut, or reads are gathered, from here on.
    resized: bool,
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
                    self.resized |= action == NetAction::Fragment;
                    return Step::Act(action);
                }
                Some(distance) => pass = pass.min(distance),
                None => {}
            }
        }
        if !self.resized || pass == 0 {
            return Step::Pass(pass, Duration::ZERO);
        }
        // Small pieces are the most common: each position in a message is some time the end of a piece.
        let piece = self.size(13);
        let pause = if self.random().is_multiple_of(64) { u64::from(self.random()) * 8 } else { 0 };
        Step::Pass(pass.min(piece), Duration::from_micros(pause))
    }

    /// Decides how the next read goes, whose bytes nobody knows yet.
    pub(crate) fn take(&mut self) -> Take {
        let mut most = usize::MAX;
        let (position, before) = (&self.position, self.rules.len());
        self.rules.retain(|(at, _)| match position.distance_unseen(*at) {
            Some(0) => false,
            Some(distance) => {
                most = most.min(distance);
                true
            }
            None => true,
        });
        let reached = (before - self.rules.len()) as u64;
        self.fired.fetch_add(reached, Ordering::Relaxed);
        self.resized |= reached > 0;
        if self.resized { Take::Gathered(most.min(self.size(14))) } else { Take::Now(most) }
    }

    /// A number of bytes from 1 to 2 to the power of `bits` - 1. Small ones are the most common.
    fn size(&mut self, bits: u8) -> usize {
        let longest = 1_usize << (self.random() % bits);
        1 + (usize::from(self.random()) << 8 | usize::from(self.random())) % longest
    }

    /// Knuth's MMIX generator. Its upper bits are the most random.
    fn random(&mut self) -> u8 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 56) as u8
    }

    /// Advances the position by `bytes`, whether they were sent, discarded or received.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::wire::FrameHeader;

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
    fn reads_are_gathered_from_the_place_on_in_every_length() {
        const PLACE: u64 = 100;
        let rules = [NetFault::new(NetAction::Coalesce).from_rank(1).after_bytes(PLACE)];
        let faults = NetFaults::new(rules, 3);
        assert!(faults.track(1, 0, None).is_none(), "the sender does nothing");
        assert!(faults.track_received(0, 1, None).is_none(), "the other direction");
        let mut track = faults.track_received(1, 0, None).unwrap();
        let stream = vec![0; 4 << 20];
        assert_eq!(track.take(), Take::Now(100));
        track.advance(&stream[..60]);
        assert_eq!((track.take(), faults.fired()), (Take::Now(40), 0));
        track.advance(&stream[..40]);
        let mut lengths = vec![0; 8193];
        for _ in 0..10_000 {
            let Take::Gathered(most) = track.take() else { panic!("it has ended") };
            lengths[most] += 1;
            track.advance(&stream[..most]);
        }
        assert_eq!(faults.fired(), 1);
        assert!(lengths[0] == 0 && lengths[1..64].iter().all(|count| *count > 0), "{lengths:?}");
        assert!(lengths[4097..].iter().sum::<u32>() > 99, "{lengths:?}");
    }

    /// Where only the bytes tell how far a message goes, the first read behind it is the first that waits.
    #[test]
    fn reads_are_gathered_behind_whole_messages() {
        let faults = NetFaults::new([NetFault::new(NetAction::Coalesce).after_frames(2)], 3);
        let mut track = faults.track_received(1, 0, None).unwrap();
        let stream = [frame(3), frame(0), frame(9)].concat();
        for step in [10, 9, 15] {
            assert_eq!(track.take(), Take::Now(usize::MAX));
            track.advance(&stream[..step]);
        }
        track.advance(&stream[34..36]);
        assert!(matches!(track.take(), Take::Gathered(1..=8192)));
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
