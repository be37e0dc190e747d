//! One of the processes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct::bootstrap::Selection;
use aqueduct::message::{
    Begun, Delivery, Exposed, Memory, Messenger, MessengerConfig, Peer, Secret, Sending, Sent, SharedMemory,
};
use aqueduct::{ErrorKind, Result};

use super::figures::Figures;
use super::hearing::{
    DEADLINE, Known, LONG, LONGEST, MARK, PLAIN, Shared, State, TOKEN, body, is_taken_back, joined, noise,
};
use super::{Board, PATIENCE, RANKS, Random, SHARING, Step};

/// Bytes that each process exposes.
const EXPOSED: usize = 1 << 20;
/// Operations that one process has under way with one peer.
const MOST: usize = 12;
/// Memory that one that is never killed may gain after the first round: buffers that are kept for later messages (at most 2 MiB), and
/// what allocators keep.
const MOST_HEAP: usize = 4 << 20;
const MOST_RESIDENT: usize = 12 << 20;

/// Whether this process exposes memory that others can map.
fn mapped(rank: u32) -> bool {
    rank.is_multiple_of(2)
}

/// One process.
pub(super) struct Node {
    shared: Shared,
    messenger: Messenger,
    random: Random,
    /// Whether the messenger has a thread of its own.
    threaded: bool,
    memory: Memory,
    /// The memory as it can be read now, and as it could be before: that token is known no longer.
    exposed: Vec<Exposed>,
    exposed_at: Instant,
    /// Long data that is taken back when the next is offered.
    sending: Option<Sending>,
    /// Without a messenger, and without any peer.
    before: Figures,
    alone: Figures,
    /// After the first round and after the last one, with their numbers.
    first: Option<(u32, Figures)>,
    last: (u32, Figures),
}

impl Node {
    pub(super) fn new(board: Board, rank: u32, secret: Secret, seed: u64) -> Self {
        let config = MessengerConfig::default()
            .with_secret(secret)
            .with_shared_memory(rank < SHARING)
            .with_interfaces(Selection { names: Some("=lo".into()), ..Selection::default() });
        noise();
        let before = Figures::now();
        let messenger = Messenger::new(rank, config).unwrap();
        let shared = Shared { rank, board, state: Arc::default() };
        shared.hear(&messenger);
        let threaded = rank % 2 == 1;
        if threaded {
            messenger.start_thread().unwrap();
        }
        let generation = messenger.address().generation();
        let memory: Memory = if mapped(rank) {
            let memory = SharedMemory::allocate(EXPOSED).unwrap();
            memory.write(0, body(generation, EXPOSED)).unwrap();
            memory.into()
        } else {
            body(generation, EXPOSED).to_vec().into()
        };
        let exposed = vec![messenger.expose(memory.clone()).unwrap()];
        let random = Random(seed ^ u64::from(rank) << 56);
        let (alone, exposed_at) = (Figures::now(), Instant::now());
        Self {
            shared,
            messenger,
            random,
            threaded,
            memory,
            exposed,
            exposed_at,
            sending: None,
            before,
            alone,
            first: None,
            last: (0, alone),
        }
    }

    pub(super) fn live(mut self) {
        let (shared, rank) = (self.shared.clone(), self.shared.rank);
        shared.board.write(&format!("address.{rank}"), &self.messenger.address().to_string());
        let (mut step, mut done, mut looked) = (Step::Run(0), None, Instant::now());
        loop {
            if looked.elapsed() > Duration::from_millis(20) {
                (step, looked) = (shared.board.step(), Instant::now());
                if step != Step::End {
                    self.meet();
                }
            }
            match step {
                Step::Run(_) => self.work(),
                Step::Drain(round) if done != Some(step) && self.has_drained(round) => {
                    done = Some(step);
                    shared.board.report(step, rank);
                }
                Step::Measure(round) if done != Some(step) => {
                    self.measure(round);
                    done = Some(step);
                    shared.board.report(step, rank);
                }
                Step::End => break,
                _ => {}
            }
            self.tell();
            self.advance();
        }
        self.report();
        let Self { messenger, before, exposed, memory, sending, .. } = self;
        // Those that have left already take nothing, and that is no failure.
        messenger.close(PATIENCE).unwrap();
        shared.lock().peers.clear();
        // Long data under way keeps the descriptor that wakes its messenger, as a peer's handle does.
        drop((exposed, memory, sending));
        let after = Figures::now();
        let left = |figures: Figures| (figures.descriptors, figures.threads, figures.rings);
        shared.require(left(after) == left(before), || format!("before {before:?}, after closing {after:?}"));
    }

    fn advance(&self) {
        if self.threaded {
            std::thread::sleep(Duration::from_micros(500));
        } else if self.messenger.poll().unwrap() == 0 {
            self.messenger.wait(Duration::from_millis(1)).unwrap();
        }
    }

    /// Connects to those of a higher rank, so that there is one link between any two.
    fn meet(&self) {
        for rank in self.shared.rank + 1..RANKS {
            let Some(address) = self.shared.board.address(rank) else { continue };
            let (shared, key) = (&self.shared, (rank, address.generation()));
            if shared.board.is_dead(key.1) || shared.lock().peers.contains_key(&key) {
                continue;
            }
            shared.lock().peers.insert(key, Known::default());
            match self.messenger.connect(&address, PATIENCE) {
                // Without an entry it has come and gone.
                Ok(peer) => drop(shared.with(&peer.clone(), |known| known.peer = Some(peer))),
                Err(error) => {
                    let excused = shared.board.is_dead(key.1) || shared.board.step() == Step::End;
                    shared.require(excused, || format!("cannot connect to {rank}: {error}"));
                    shared.lock().peers.remove(&key);
                }
            }
        }
    }

    /// Exposes the memory anew now and then, and tells those who do not know yet.
    fn tell(&mut self) {
        if self.exposed_at.elapsed() > Duration::from_secs(1) {
            self.exposed_at = Instant::now();
            // Those who have not heard of it yet have the one before, which lives as long again.
            let keep = self.exposed.len().saturating_sub(1);
            self.exposed.drain(..keep);
            self.exposed.push(self.messenger.expose(self.memory.clone()).unwrap());
            self.shared.lock().peers.values_mut().for_each(|known| known.told = false);
        }
        let token = self.exposed.last().expect("one at least").token().to_bytes();
        for peer in self.peers() {
            if self.shared.with(&peer, |known| known.told) == Some(false) && self.send(&peer, TOKEN, &token) {
                self.shared.with(&peer, |known| known.told = true);
            }
        }
    }

    fn peers(&self) -> Vec<Peer> {
        self.shared.lock().peers.values().filter_map(|known| known.peer.clone()).collect()
    }

    /// Sends one message; false if there is no room or nobody.
    fn send(&self, peer: &Peer, kind: u16, bytes: &[u8]) -> bool {
        match peer.send(kind, bytes) {
            Ok(sent) => sent == Sent::Done,
            Err(error) => {
                self.shared.lost(peer, &error);
                false
            }
        }
    }

    /// Begins a few operations with every peer.
    fn work(&mut self) {
        for peer in self.peers() {
            for _ in 0..1 + self.random.below(8) {
                let length = [64, 1024, peer.eager_limit() - 16][self.random.below(3)];
                let length = self.random.below(length + 1);
                self.plain(&peer, length);
            }
            let under_way = self.shared.with(&peer, |known| known.under_way).unwrap_or(MOST);
            if under_way < MOST {
                if self.random.once_in(3) {
                    self.offer(&peer);
                }
                self.read(&peer);
            }
        }
    }

    fn plain(&mut self, peer: &Peer, length: usize) {
        let seed = self.random.word();
        let Some(number) = self.shared.with(peer, |known| known.sent) else { return };
        let message = [&joined(&[number, seed])[..], body(seed, length)].concat();
        if self.send(peer, PLAIN, &message) {
            self.shared.with(peer, |known| known.sent += 1);
        }
    }

    /// Counts an operation with `peer`, which `begin` begins.
    fn begin(&self, peer: &Peer, begin: impl FnOnce() -> Result<bool>) {
        self.shared.lock().begun += 1;
        self.shared.with(peer, |known| known.under_way += 1);
        match begin() {
            Ok(true) => {}
            Ok(false) => self.shared.ended(peer),
            Err(error) => {
                self.shared.lost(peer, &error);
                self.shared.ended(peer);
            }
        }
    }

    fn offer(&mut self, peer: &Peer) {
        let (seed, most) = (self.random.word(), [100, 10_000, 100_000, LONGEST][self.random.below(4)]);
        let length = self.random.below(most + 1);
        let (head, data) = (joined(&[seed, length as u64]), body(seed, length).to_vec());
        let (shared, other) = (self.shared.clone(), peer.clone());
        let done = move |outcome: Result<Delivery>| {
            match outcome {
                Ok(delivery) => {
                    let expected = if seed % 8 < 2 { Delivery::Refused } else { Delivery::Delivered };
                    shared.require(delivery == expected, || format!("{delivery:?} instead of {expected:?}"));
                }
                Err(error) => {
                    if !(error.kind() == ErrorKind::Aborted && is_taken_back(seed)) {
                        shared.lost(&other, &error);
                    }
                    shared.lock().lost += 1;
                }
            }
            shared.ended(&other);
        };
        let mut sending = None;
        self.begin(peer, || {
            let sent = peer.send_long(LONG, &head, data, DEADLINE, done)?;
            let posted = sent.is_posted();
            if let Begun::Posted(posted) = sent
                && is_taken_back(seed)
            {
                sending = Some(posted);
            }
            Ok(posted)
        });
        if let Some(earlier) = std::mem::replace(&mut self.sending, sending) {
            earlier.cancel();
        }
    }

    /// Reads a part of what `peer` exposes. One in sixteen is cancelled, one in sixteen has hardly any time.
    fn read(&mut self, peer: &Peer) {
        let Some(token) = self.shared.with(peer, |known| known.token).flatten() else { return };
        let most = [100, 5000, 60_000, EXPOSED][self.random.below(4)];
        let length = self.random.below(most + 1);
        let offset = self.random.below(EXPOSED - length + 1);
        let (cancelled, late) = (self.random.once_in(16), self.random.once_in(16));
        let deadline = if late { Duration::from_micros(self.random.below(5000) as u64) } else { DEADLINE };
        let (shared, other) = (self.shared.clone(), peer.clone());
        let done = move |outcome: Result<Vec<u8>>| {
            match outcome {
                Ok(bytes) => {
                    let right = bytes == body(other.generation(), EXPOSED)[offset..][..length];
                    shared.require(right, || format!("{length} bytes at {offset} came damaged"));
                    let mut state = shared.lock();
                    state.reads += 1;
                    state.bytes += length as u64;
                }
                Err(error) => {
                    let excused = match error.kind() {
                        ErrorKind::Aborted => cancelled,
                        ErrorKind::Timeout => late,
                        // The token may be the one before.
                        ErrorKind::Remote => error.message().contains("revoked"),
                        _ => false,
                    };
                    if !excused {
                        shared.lost(&other, &error);
                    }
                    shared.lock().lost += 1;
                }
            }
            shared.ended(&other);
        };
        self.begin(peer, || {
            let read = peer.read(&token, offset as u64, vec![0; length], deadline, done)?;
            let posted = read.is_posted();
            if let Begun::Posted(read) = read
                && cancelled
            {
                read.cancel();
            }
            Ok(posted)
        });
    }

    /// All peers are there, everything has ended, and all messages have come.
    fn has_drained(&mut self, round: u32) -> bool {
        for peer in self.peers() {
            let Some((sent, (to, _))) = self.shared.with(&peer, |known| (known.sent, known.marked)) else {
                continue;
            };
            if to != round && self.send(&peer, MARK, &joined(&[round.into(), sent])) {
                self.shared.with(&peer, |known| known.marked.0 = round);
            }
        }
        let state = self.shared.lock();
        state.begun == state.ended
            && state.peers.len() == RANKS as usize - 1
            && state.peers.values().all(|known| known.marked == (round, round))
    }

    fn measure(&mut self, round: u32) {
        let shared = self.shared.clone();
        let limit = Instant::now() + Duration::from_secs(10);
        let links = RANKS as usize - 1;
        let sharing = if shared.rank < SHARING { SHARING as usize - 1 } else { 0 };
        let mapping = (0..SHARING)
            .filter(|rank| *rank != shared.rank && shared.rank < SHARING && mapped(*rank))
            .count();
        let expected = (self.alone.descriptors + links, self.alone.threads);
        // And memory that is mapped as it can be read now, and as it could be before.
        let rings = self.alone.rings + 2 * sharing;
        let rings = rings..=rings + 2 * mapping;
        // Links of those that were killed are forgotten by the next progress.
        let now = loop {
            let quiet = Instant::now() + Duration::from_millis(50);
            while Instant::now() < quiet {
                self.advance();
            }
            let now = Figures::now();
            if (now.descriptors, now.threads) == expected && rings.contains(&now.rings) {
                break now;
            }
            let text = || {
                format!("descriptors, threads {expected:?}, mappings {rings:?} are right, there are {now:?}")
            };
            shared.require(Instant::now() < limit, text);
        };
        let (_, first) = *self.first.get_or_insert((round, now));
        self.last = (round, now);
        shared.require(now.heap <= first.heap + MOST_HEAP, || {
            format!("the heap grew from {first:?} to {now:?}")
        });
        let resident = now.resident <= first.resident + MOST_RESIDENT;
        shared.require(resident, || format!("memory grew from {first:?} to {now:?}"));
    }

    fn report(&self) {
        let state = self.shared.lock();
        let State { messages, bytes, longs, reads, lost, .. } = *state;
        if let (Some((round, first)), (later, last)) = (self.first, self.last) {
            println!("rank {}: round {round}: {first:?}; round {later}: {last:?}", self.shared.rank);
        }
        println!(
            "rank {}: took {messages} messages, {longs} long ones and {reads} reads, {} MiB; {lost} were given up",
            self.shared.rank,
            bytes >> 20
        );
    }
}
