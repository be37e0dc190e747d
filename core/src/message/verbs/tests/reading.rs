//! Reads by the reader's device, between messengers.

use super::super::nic::MAX_READERS;
use super::falling_back::config;
use super::*;
use crate::error::{Error, ErrorKind};
use crate::message::one_sided::PIECE;
use crate::message::{Exposed, Messenger, MessengerConfig, Peer, Sent, SharedMemory, Token};
use crate::rdma::{Settings, Status};
use crate::sync::{Mutex, lock};

/// The most reads that the stand-in has outstanding on a queue pair.
const DEPTH: u64 = 8;

type Outcomes = Arc<Mutex<Vec<(usize, Result<Vec<u8>>)>>>;

/// A reader and an owner, which is polled only when the test says so.
pub(super) struct Both {
    pub(super) reader: Messenger,
    pub(super) owner: Messenger,
    pub(super) peer: Peer,
    log: Outcomes,
}

impl Both {
    pub(super) fn new() -> Self {
        Self::with(config("null0"), config("null0"))
    }

    pub(super) fn with(reader: MessengerConfig, owner: MessengerConfig) -> Self {
        let [reader, owner] =
            [(0, reader), (1, owner)].map(|(rank, config)| Messenger::new(rank, config).unwrap());
        let peer = reader.connect(owner.address(), SOON).unwrap();
        assert_eq!(peer.transport(), "verbs");
        Self { reader, owner, peer, log: Arc::default() }
    }

    /// Starts a read that logs its number and what became of it.
    pub(super) fn read(
        &self,
        token: &Token,
        offset: usize,
        length: usize,
        number: usize,
    ) -> crate::message::Read {
        let log = self.log.clone();
        let done = move |outcome| lock(&log).push((number, outcome));
        self.peer.read(token, offset as u64, vec![0; length], 10 * SOON, done).unwrap().posted().unwrap()
    }

    /// Polls until so many reads have ended; the owner, too, if it is `with_owner`.
    #[track_caller]
    pub(super) fn until(&self, ended: usize, with_owner: bool) -> Vec<(usize, Result<Vec<u8>>)> {
        let mut deadline = Deadline::after(SOON);
        while lock(&self.log).len() < ended {
            let owner = if with_owner { self.owner.poll().unwrap() } else { 0 };
            if self.reader.poll().unwrap() + owner > 0 {
                deadline = Deadline::after(SOON);
            } else {
                // An unkind device is a thread that wants to run.
                std::thread::yield_now();
                assert!(!deadline.expired(), "{} of {ended} reads have ended", lock(&self.log).len());
            }
        }
        std::mem::take(&mut *lock(&self.log))
    }

    /// Makes as much progress as there is.
    pub(super) fn settle(&self) {
        for _ in 0..100 {
            self.reader.poll().unwrap();
            self.owner.poll().unwrap();
        }
    }

    /// Exposes `bytes`, and lets the reader have the key.
    pub(super) fn exposed(&self, bytes: &Arc<Vec<u8>>) -> Exposed {
        let exposed = self.owner.expose(bytes.clone()).unwrap();
        self.read(&exposed.token(), 0, bytes.len().min(PIECE), 0);
        assert!(self.until(1, true)[0].1.is_ok());
        exposed
    }

    /// Regions that the owner's device has now.
    pub(super) fn registered_by_owner(&self) -> usize {
        standin::regions(self.owner.core.nic.as_ref().unwrap().domain.address())
    }

    /// The number of the reader's queue pair for reads.
    pub(super) fn pair(&self) -> Option<u32> {
        let line = self.peer.member.lines()[0].clone();
        line.wire().unwrap().one_sided().unwrap().number()
    }

    /// One message goes there.
    fn check_messages(&self) {
        let queue = self.owner.queue(7).unwrap();
        assert_eq!(self.peer.send(7, b"still").unwrap(), Sent::Done);
        let deadline = Deadline::after(SOON);
        while queue.try_recv().is_none() {
            self.reader.poll().unwrap();
            self.owner.poll().unwrap();
            assert!(!deadline.expired());
        }
        assert!(self.peer.lost().is_none());
    }
}

pub(super) fn bytes(length: usize) -> Arc<Vec<u8>> {
    Arc::new((0..length).map(|n| (n * 7 + n / 251) as u8).collect())
}

/// The kind of the error with which a read has ended, and the reason.
pub(super) fn failure(mut outcomes: Vec<(usize, Result<Vec<u8>>)>) -> (ErrorKind, String) {
    let error: Error = outcomes.pop().unwrap().1.unwrap_err();
    (error.kind(), error.message().to_owned())
}

/// The owner makes no progress after the first read. Ends, offsets and lengths are odd.
#[test]
fn the_device_reads_every_size_without_the_owner() {
    let both = Both::new();
    let memory = bytes((3 << 20) + 123);
    let exposed = both.exposed(&memory);
    let before = standin::counts(both.pair().unwrap()).requests;
    let lengths = [1, 7, 4095, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 16 * PIECE - 1, 16 * PIECE + 1];
    let mut ranges: Vec<(usize, usize)> = lengths.iter().map(|length| (3 * length % 1001, *length)).collect();
    ranges.extend([(0, memory.len()), (1, memory.len() - 1), (memory.len() - 1, 1), (5, 2 << 20)]);
    for (number, (offset, length)) in ranges.iter().enumerate() {
        both.read(&exposed.token(), *offset, *length, number);
    }
    let outcomes = both.until(ranges.len(), false);
    for ((at, (number, outcome)), (offset, length)) in outcomes.into_iter().enumerate().zip(&ranges) {
        assert_eq!(at, number, "completions come in the order of the calls");
        assert!(outcome.unwrap() == memory[*offset..offset + length], "{length} bytes at {offset}");
    }
    let pieces: usize = ranges.iter().map(|(_, length)| length.div_ceil(PIECE)).sum();
    assert_eq!(standin::counts(both.pair().unwrap()).requests - before, pieces as u64);
}

/// More tokens than keys are kept; short and long reads, of memory that is read once, twice and often, and of none.
#[test]
fn many_reads_of_many_tokens_end_in_order() {
    let both = Both::new();
    let memory: Vec<Arc<Vec<u8>>> = (0..100).map(|n| bytes(1 + n * n * 17)).collect();
    let exposed: Vec<Exposed> = memory.iter().map(|m| both.owner.expose(m.clone()).unwrap()).collect();
    let ranges: Vec<(usize, usize, usize)> = (0..2000)
        .map(|n| {
            let which = if n % 3 == 0 { n * 31 % 100 } else { 90 + n % 10 };
            let offset = n * 7 % memory[which].len();
            (which, offset, (memory[which].len() - offset) * (n % 5) / 4)
        })
        .collect();
    for (number, (which, offset, length)) in ranges.iter().enumerate() {
        both.read(&exposed[*which].token(), *offset, *length, number);
        if number % 100 == 0 {
            both.reader.poll().unwrap();
        }
    }
    for (at, (number, outcome)) in both.until(ranges.len(), true).into_iter().enumerate() {
        let (which, offset, length) = ranges[number];
        assert_eq!(at, number, "completions come in the order of the calls");
        assert!(outcome.unwrap() == memory[which][offset..offset + length], "read {number}");
    }
    assert!(standin::counts(both.pair().unwrap()).requests > 1000);
}

#[test]
fn no_more_is_on_its_way_than_both_devices_can_and_there_is_room_for() {
    for (own, theirs, expected) in [(16, 16, DEPTH), (3, 16, 3), (16, 1, 1)] {
        let with =
            |reads| config("null0").with_ib(Settings { max_read_atomic: reads, ..Settings::default() });
        let both = Both::with(with(own), with(theirs));
        let memory = bytes(3 << 20);
        let exposed = both.exposed(&memory);
        let pair = both.pair().unwrap();
        let before = standin::counts(pair).requests;
        standin::hold(pair);
        both.read(&exposed.token(), 9, (3 << 20) - 9, 1);
        both.read(&exposed.token(), 0, 1, 2);
        both.settle();
        assert_eq!(standin::counts(pair).requests - before, expected);
        standin::release(pair);
        let outcomes = both.until(2, false);
        assert!(outcomes[0].1.as_ref().unwrap() == &memory[9..]);
    }
}

/// The owner is the one who knows when nobody reads its memory any more.
#[test]
fn memory_that_is_revoked_is_not_read_any_more() {
    let both = Both::new();
    let (memory, other) = (bytes(2 << 20), bytes(1 << 20));
    let (exposed, kept) = (both.exposed(&memory), both.exposed(&other));
    let pair = both.pair().unwrap();
    standin::hold(pair);
    both.read(&kept.token(), 5, 100, 1);
    both.read(&exposed.token(), 0, 2 << 20, 2);
    both.read(&kept.token(), 0, 1 << 20, 3);
    both.settle();
    let token = exposed.token();
    exposed.revoke();
    assert_eq!(Arc::strong_count(&memory), 1, "no device reads it, and no piece of it is on its way");
    standin::release(pair);
    let outcomes = both.until(3, true);
    let [(1, Ok(first)), (2, Err(error)), (3, Ok(last))] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert!(first[..] == other[5..105] && *last == *other, "others are read all the same");
    // What a reader that asks the owner is told.
    both.read(&token, 0, 1, 4);
    let (kind, text) = failure(both.until(1, true));
    assert_eq!((error.kind(), error.message()), (ErrorKind::Remote, &*text));
    assert!(kind == ErrorKind::Remote && text.contains("its token was revoked"), "{text}");
    both.check_messages();
    // With a new pair, and a new key.
    let next = both.exposed(&memory);
    assert_ne!(both.pair().unwrap(), pair);
    both.read(&next.token(), 1, 3 * PIECE, 5);
    assert!(both.until(1, false)[0].1.as_ref().unwrap() == &memory[1..][..3 * PIECE]);
}

/// A key is of no use once the token was revoked, also if nothing was on its way.
#[test]
fn a_stale_key_reads_nothing() {
    let both = Both::new();
    let memory = bytes(PIECE);
    for round in 0..5 {
        let exposed = both.exposed(&memory);
        let token = exposed.token();
        drop(exposed);
        both.read(&token, 0, PIECE, round);
        let (kind, text) = failure(both.until(1, true));
        assert!(kind == ErrorKind::Remote && text.contains("its token was revoked"), "{text}");
        assert!(both.pair().is_none(), "a refused read ends its pair");
    }
    both.check_messages();
}

#[test]
fn forged_tokens_get_no_key() {
    let both = Both::new();
    let memory = bytes(2 * PIECE);
    let exposed = both.exposed(&memory);
    let mut forged = exposed.token();
    forged.secret[3] ^= 1;
    both.read(&forged, 0, PIECE, 1);
    assert_eq!(failure(both.until(1, true)).0, ErrorKind::Authentication);
    let mut longer = exposed.token();
    longer.length += 10;
    both.read(&longer, 0, PIECE, 2);
    assert!(both.until(1, true)[0].1.is_ok());
    both.read(&longer, PIECE, PIECE + 10, 3);
    assert_eq!(failure(both.until(1, true)).0, ErrorKind::InvalidUsage);
}

/// Memory that its owner writes to is not stable; the device reads it as it is.
#[test]
fn shared_memory_is_read_as_it_is() {
    let both = Both::new();
    let memory = SharedMemory::allocate(3 * PIECE).unwrap();
    memory.fill(1);
    let exposed = both.owner.expose(&memory).unwrap();
    for value in 1..4 {
        memory.fill(value);
        both.read(&exposed.token(), 3, 2 * PIECE, 0);
        assert!(both.until(1, value == 1)[0].1.as_ref().unwrap().iter().all(|byte| *byte == value));
    }
}

/// Reads that are given up while pieces of them are on their way, and before any is.
#[test]
fn reads_that_are_given_up_disturb_no_others() {
    let both = Both::new();
    let memory = bytes(1 << 20);
    let exposed = both.exposed(&memory);
    for cancelled in [[1, 2], [1, 3], [2, 4], [3, 4]] {
        let pair = both.pair().unwrap();
        standin::hold(pair);
        let reads: Vec<_> = (1..6).map(|n| both.read(&exposed.token(), n, 3 * PIECE + n, n)).collect();
        both.settle();
        cancelled.iter().for_each(|n| assert!(reads[n - 1].cancel() && !reads[n - 1].cancel()));
        standin::release(pair);
        let outcomes = both.until(5, false);
        let numbers: Vec<usize> = outcomes.iter().map(|(number, _)| *number).collect();
        let others = (1..6).filter(|number| !cancelled.contains(number));
        assert_eq!(numbers, cancelled.into_iter().chain(others).collect::<Vec<_>>());
        for (n, outcome) in outcomes {
            let expected = (!cancelled.contains(&n)).then(|| &memory[n..][..3 * PIECE + n]);
            assert!(outcome.ok().as_deref() == expected, "read {n}");
        }
        assert_eq!(both.pair(), Some(pair));
    }
    // Of a long one, no more pieces are read.
    let pair = both.pair().unwrap();
    standin::hold(pair);
    let read = both.read(&exposed.token(), 0, 1 << 20, 1);
    both.settle();
    let before = standin::counts(pair).requests;
    assert!(read.cancel());
    both.read(&exposed.token(), 0, 1, 2);
    standin::release(pair);
    assert!(both.until(2, false)[1].1.is_ok());
    assert_eq!(standin::counts(pair).requests, before + 1);
}

#[test]
fn a_peer_that_goes_away_ends_reads_on_their_way() {
    let both = Both::new();
    let memory = bytes(2 << 20);
    let exposed = both.exposed(&memory);
    standin::hold(both.pair().unwrap());
    both.read(&exposed.token(), 0, 2 << 20, 1);
    both.read(&exposed.token(), 0, 1, 2);
    both.settle();
    let Both { reader, owner, log, .. } = both;
    drop((owner, exposed));
    let deadline = Deadline::after(SOON);
    while lock(&log).len() < 2 {
        reader.poll().unwrap();
        assert!(!deadline.expired());
    }
    assert!(
        lock(&log)
            .iter()
            .all(|(_, outcome)| { outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::PeerLost) })
    );
    assert_eq!(Arc::strong_count(&memory), 1);
}

/// Pairs that fail for other reasons: the owner sends the rest.
#[test]
fn a_pair_that_fails_in_the_middle_is_made_up_for() {
    let both = Both::new();
    let memory = bytes(2 << 20);
    let exposed = both.exposed(&memory);
    for round in 0..5 {
        let pair = both.pair().unwrap();
        standin::hold(pair);
        both.read(&exposed.token(), 3, (2 << 20) - 3, 1);
        both.read(&exposed.token(), 1, PIECE, 2);
        both.settle();
        standin::release(pair);
        if round % 2 == 0 {
            both.reader.poll().unwrap();
        }
        standin::fail_next(pair, rdma_core_sys::ibv_wc_status(Status::RETRIES_EXCEEDED.0));
        let outcomes = both.until(2, true);
        assert!(outcomes[0].1.as_ref().unwrap() == &memory[3..]);
        assert!(outcomes[1].1.as_ref().unwrap() == &memory[1..=PIECE]);
        both.read(&exposed.token(), 0, PIECE, 3);
        assert!(both.until(1, true)[0].1.is_ok());
    }
    both.check_messages();
}

/// With as many other links as may read so, the owner sends the data; when one of them is gone, the device reads again.
#[test]
fn links_beyond_those_that_have_memory_are_sent_the_data() {
    let both = Both::new();
    let memory = bytes(2 * PIECE);
    let nic = both.reader.core.nic.clone().unwrap();
    let mut places: Vec<_> = (0..MAX_READERS).map(|_| nic.place().unwrap()).collect();
    assert_eq!(nic.place().unwrap_err().kind(), ErrorKind::Exhausted);
    both.exposed(&memory);
    assert_eq!(both.pair(), None);
    places.pop();
    both.exposed(&memory);
    assert!(both.pair().is_some());
    assert!(nic.place().is_err(), "the link has the last place");
    drop(places);
    drop(both);
    let all: Vec<_> = (0..MAX_READERS).map(|_| nic.place().unwrap()).collect();
    assert_eq!(all.len(), MAX_READERS, "a link that has ended gives its place back");
}
