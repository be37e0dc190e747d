//! Links over shared memory, between two ends in one process; and peers that write whatever they like.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use proptest::prelude::*;

use super::Rings;
use super::memory::RingMemory;
use super::protocol::{Consumer, Producer, Push, Storage, longest};
use super::wire::RingWire;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::message::head::{Head, Operation};
use crate::message::wire::{Landing, Sink, Wire};
use crate::net::RawStream;
use crate::shm::Segment;
use crate::sync::raw::AtomicU64;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

pub(in crate::message) mod descriptors;
mod waking;

thread_local! {
    static FULL: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

thread_local! {
    /// Whether this thread makes no memory for rings.
    pub(in crate::message) static NO_MEMORY: Cell<bool> = const { Cell::new(false) };
}

/// The outcome of making memory, if it fails on purpose.
pub(super) fn creates() -> Result<()> {
    if NO_MEMORY.get() { Err(Error::new(ErrorKind::System, "memfd", "on purpose")) } else { Ok(()) }
}

/// Runs the test's closure when a push has found the ring full, before it asks to be rung.
pub(super) fn pushed(how: Push) {
    if how == Push::Full
        && let Some(then) = FULL.take()
    {
        then();
    }
}

/// One end of a pair of sockets.
#[derive(Debug)]
pub(in crate::message) struct Socket(pub(in crate::message) UnixStream);

impl RawStream for Socket {
    fn read(&self, into: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
        (&self.0).read(into)
    }

    fn write(&self, from: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
        (&self.0).write(from)
    }

    fn shutdown(&self, both: bool) -> io::Result<()> {
        self.0.shutdown(if both { std::net::Shutdown::Both } else { std::net::Shutdown::Write })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A ring, mapped as often as there are elements.
fn mapped<const N: usize>() -> [RingMemory; N] {
    let (ring, fd) = RingMemory::create(8 << 10).unwrap();
    [(); N].map(|()| RingMemory::open(fd.try_clone().unwrap(), ring.size()).unwrap())
}

/// A link, and the two rings that its first end writes and reads.
fn pair() -> (RingWire, RingWire, RingMemory, RingMemory) {
    let (one, two) = UnixStream::pair().unwrap();
    let [one, two] = [one, two].map(|socket| {
        socket.set_nonblocking(true).unwrap();
        Box::new(Socket(socket))
    });
    let [outbound, their_inbound, written] = mapped();
    let [their_outbound, inbound, read] = mapped();
    let first = RingWire::new(one, Rings { inbound, outbound });
    let second = RingWire::new(two, Rings { inbound: their_inbound, outbound: their_outbound });
    (first, second, written, read)
}

/// Keeps frames.
#[derive(Default)]
struct Kept {
    frames: Vec<(Head, Vec<u8>)>,
    /// Fails behind so many, if it does.
    most: Option<usize>,
}

impl Sink for Kept {
    fn frame(&mut self, head: Head, body: &[u8]) -> Result<()> {
        if self.most == Some(self.frames.len()) {
            return Err(Error::new(ErrorKind::Remote, "test", "enough"));
        }
        self.frames.push((head, body.to_vec()));
        Ok(())
    }

    fn begin(&mut self, _: Head) -> Result<()> {
        Ok(())
    }

    fn landing(&mut self, _: Head, _: usize) -> Result<Landing> {
        Ok(Landing::Nowhere)
    }

    fn landed(&mut self, _: Head, _: usize) -> Result<()> {
        Ok(())
    }
}

fn head(kind: u16, body: &[u8]) -> Head {
    Head::new(Operation::Message, kind, 7, body.len())
}

fn body(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 + len) as u8).collect()
}

fn is_readable(wire: &RingWire) -> bool {
    let wait = Deadline::after(Duration::ZERO);
    crate::net::ready::wait_readable(wire.descriptors()[0], wait).unwrap()
}

#[test]
fn frames_of_every_size_arrive_whole_and_numbered() {
    let (one, two, ..) = pair();
    let longest = one.max_body();
    assert!(longest >= 8 << 10);
    let sizes = (0..200).chain([8 << 10, longest - 1, longest]);
    let mut kept = Kept::default();
    for (number, size) in sizes.enumerate() {
        let body = body(size);
        assert!(one.push(head(3, &body), &body).unwrap(), "{size}");
        assert_eq!(two.pull(&mut kept).unwrap(), 1);
        let expected = Head { sequence: number as u32, ..head(3, &body) };
        assert_eq!(kept.frames.pop().unwrap(), (expected, body));
    }
    assert_eq!(two.pull(&mut kept).unwrap(), 0);
    let long = vec![0; longest + 1];
    assert_eq!(one.push(head(3, &long), &long).unwrap_err().kind(), ErrorKind::Internal);
}

#[test]
fn a_full_ring_takes_nothing_and_rings_when_there_is_room() {
    let (one, two, ..) = pair();
    let body = body(100);
    let mut pushed = 0;
    while one.push(head(0, &body), &body).unwrap() {
        pushed += 1;
    }
    assert_eq!(pushed, 512 / 3);
    let mut kept = Kept { most: Some(40), ..Kept::default() };
    two.pull(&mut kept).unwrap_err();
    assert!(!is_readable(&one), "it was woken before a quarter of the ring was read");
    kept.most = None;
    assert_eq!(two.pull(&mut kept).unwrap(), 128);
    assert!(is_readable(&one));
    assert!(one.push(head(0, &body), &body).unwrap());
    while two.pull(&mut kept).unwrap() > 0 {}
    let numbers: Vec<u32> = kept.frames.iter().map(|(head, _)| head.sequence).collect();
    assert_eq!(numbers, (0..=pushed).collect::<Vec<u32>>());
}

/// The peer has taken everything before it was asked to ring, and has no later reason to.
#[test]
fn room_that_is_made_before_it_was_asked_for_is_used() {
    let (one, two, ..) = pair();
    let (two, body) = (Rc::new(two), body(100));
    let reader = two.clone();
    FULL.set(Some(Box::new(move || while reader.pull(&mut Kept::default()).unwrap() > 0 {})));
    while Rc::strong_count(&two) == 2 {
        assert!(one.push(head(0, &body), &body).unwrap() || is_readable(&one), "nobody rings");
    }
    assert_eq!(two.pull(&mut Kept::default()).unwrap(), 1);
}

/// The peer rings once for room. Whoever takes the ring, nobody may sleep before it is told of, or a refused sender would never be woken.
#[test]
fn a_ring_for_room_keeps_a_side_awake() {
    let (one, two, ..) = pair();
    let body = body(100);
    while one.push(head(0, &body), &body).unwrap() {}
    assert!(!one.arm().unwrap(), "nothing has come");
    while two.pull(&mut Kept::default()).unwrap() > 0 {}
    assert!(one.arm().unwrap() && one.arm().unwrap(), "there is room");
    assert!(one.take_room() && !one.take_room(), "once");
    assert!(!one.arm().unwrap());
}

#[test]
fn only_a_side_that_sleeps_is_rung() {
    let (one, two, ..) = pair();
    let mut kept = Kept::default();
    assert!(one.push(head(1, b"a"), b"a").unwrap());
    assert!(!is_readable(&two));
    assert!(two.arm().unwrap(), "a frame lies there");
    assert_eq!(two.pull(&mut kept).unwrap(), 1);
    assert!(!two.arm().unwrap() && !is_readable(&two));
    assert!(one.push(head(1, b"a"), b"a").unwrap() && one.push(head(1, b"a"), b"a").unwrap());
    assert!(is_readable(&two));
    assert_eq!(two.pull(&mut kept).unwrap(), 2);
    assert!(!is_readable(&two), "one byte for two frames, and it was taken");
}

/// Both sides sleep whenever they can, from several threads.
#[test]
fn no_wake_up_is_lost() {
    const FRAMES: usize = 4000;
    let (one, two, ..) = pair();
    let patience = || Deadline::after(Duration::from_secs(30));
    // One thread at a time answers the doorbell.
    let door = Mutex::new(());
    let push = |wire: &RingWire, kind: u16, body: &[u8]| {
        if wire.push(head(kind, body), body).unwrap() {
            return;
        }
        let _door = lock(&door);
        while !wire.push(head(kind, body), body).unwrap() {
            assert!(
                crate::net::ready::wait_readable(wire.descriptors()[0], patience()).unwrap(),
                "nobody made room"
            );
            let _ = wire.arm().unwrap();
        }
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2_u16)
            .map(|kind| {
                let (one, push) = (&one, &push);
                scope.spawn(move || (0..FRAMES).for_each(|index| push(one, kind, &body(index % 300))))
            })
            .collect();
        let mut kept = Kept::default();
        while kept.frames.len() < 2 * FRAMES {
            if two.pull(&mut kept).unwrap() == 0 && !two.arm().unwrap() {
                let woken = crate::net::ready::wait_readable(two.descriptors()[0], patience()).unwrap();
                assert!(woken, "slept over a frame, {} came", kept.frames.len());
            }
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let mut next = [0; 2];
        for (number, (head, bytes)) in kept.frames.iter().enumerate() {
            let index = &mut next[usize::from(head.kind)];
            assert_eq!((head.sequence, bytes), (number as u32, &body(*index % 300)));
            *index += 1;
        }
    });
}

#[test]
fn what_was_pushed_arrives_before_the_end() {
    let (one, two, ..) = pair();
    assert!(!two.arm().unwrap());
    assert!(one.push(head(1, b"last"), b"last").unwrap());
    one.close(false);
    assert_eq!(one.push(head(1, b""), b"").unwrap_err().kind(), ErrorKind::Stopped);
    drop(one);
    let mut kept = Kept::default();
    assert!(is_readable(&two));
    assert_eq!(two.pull(&mut kept).unwrap(), 1);
    assert_eq!(two.pull(&mut kept).unwrap_err().kind(), ErrorKind::PeerLost);
    // Pushing to a peer that is gone fills its ring and no more.
    while two.push(head(1, b"x"), b"x").unwrap() {}
}

#[test]
fn rings_that_are_none_are_refused() {
    let (_, ring) = RingMemory::create(8 << 10).unwrap();
    let fd = |file: &dyn AsFd| file.as_fd().try_clone_to_owned().unwrap();
    for cells in [0, 1, 128, 511, 1024, 1 << 17, u32::MAX] {
        let refused = RingMemory::open(fd(&ring), cells).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Remote, "{cells}: {refused}");
    }
    let zero = File::open("/dev/zero").unwrap();
    assert_eq!(RingMemory::open(fd(&zero), 512).unwrap_err().kind(), ErrorKind::Remote);
    let small = Segment::create(4096).unwrap();
    assert_eq!(RingMemory::open(fd(&small), 512).unwrap_err().kind(), ErrorKind::Remote);
}

/// All words of a ring in order: 32 of the header, then the cells.
fn word(ring: &RingMemory, index: usize) -> &AtomicU64 {
    match index {
        0..8 => ring.head(),
        8..16 => ring.sleeping(),
        16..32 => ring.full(),
        _ => &ring.cell((index - 32) / 8)[index % 8],
    }
}

/// Pulls until the link ends, at most `times`. Every frame that is given has a body that the head states and the ring can hold.
fn survive(wire: &RingWire, times: usize) {
    let longest = wire.max_body();
    for _ in 0..times {
        let mut kept = Kept::default();
        let pulled = wire.pull(&mut kept);
        assert!(
            kept.frames
                .iter()
                .all(|(head, body)| body.len() == head.length as usize && body.len() <= longest)
        );
        if let Err(error) = pulled.and_then(|_| wire.arm()) {
            assert_eq!(error.kind(), ErrorKind::Remote, "{error}");
            return;
        }
    }
}

proptest! {
    /// A peer has written anything into any words, half of them headers that could be right.
    #[test]
    fn any_bytes_end_the_link_or_are_frames(
        words in prop::collection::vec((0..32 + 512 * 8_usize, any::<u64>(), 0..4_u8), 1..200),
        frames in prop::collection::vec(0..600_usize, 0..20),
    ) {
        let (one, two, written, _) = pair();
        for len in frames {
            let body = body(len);
            one.push(head(1, &body), &body).unwrap();
        }
        for (index, value, how) in words {
            // The first cell of one of the first frames, with a right stamp.
            let kind = if how == 1 { 31 } else { 30 };
            let likely = (1 << 32) | (1 << kind) | (value % 30_000);
            match how {
                0 | 3 => word(&written, index).store(value, Ordering::Relaxed),
                _ => word(&written, 32 + index % 64 * 8).store(likely, Ordering::Relaxed),
            }
        }
        survive(&two, 600);
    }

    /// A peer says that it has read cells which this side has not written, or fewer than before.
    #[test]
    fn any_head_ends_the_link_or_is_possible(heads in prop::collection::vec(any::<u64>(), 1..20), low: bool) {
        let (one, _two, written, _) = pair();
        let (mut ended, body) = (false, body(700));
        for value in heads {
            written.head().store(if low { value % 600 } else { value }, Ordering::Relaxed);
            for _ in 0..40 {
                if let Err(error) = one.push(head(1, &body), &body) {
                    prop_assert_eq!(error.kind(), ErrorKind::Remote, "{}", error);
                    ended = true;
                }
            }
        }
        prop_assert!(ended || low, "a head of noise was believed");
    }
}

/// A peer writes into every word at any time, while frames are pulled and pushed.
#[test]
fn a_peer_that_writes_all_the_time_crashes_nobody() {
    for round in 0..40_u64 {
        let (one, two, written, read) = pair();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut state = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                while !stop.load(Ordering::Relaxed) {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let ring = if state & (1 << 40) == 0 { &written } else { &read };
                    let index = (state >> 8) as usize % (32 + 512 * 8);
                    // Mostly headers of the first laps, so that many frames are believed, and change while they are copied.
                    let (lap, kind) = (1 + ((state >> 50) & 1), 30 + ((state >> 44) & 1));
                    let header = (lap << 32) | (1 << kind) | (state % 200);
                    match state >> 60 {
                        0 => word(ring, index).store(state, Ordering::Relaxed),
                        1 => ring.head().store(state % 1024, Ordering::Relaxed),
                        _ => word(ring, 32 + index / 8 * 8 % (512 * 8)).store(header, Ordering::Relaxed),
                    }
                }
            });
            for len in 0..300 {
                let _ = one.push(head(1, &body(len)), &body(len));
                survive(&two, 3);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn positions_and_stamps_start_over() {
    let [ring] = mapped();
    let start = u32::MAX - 300;
    // The memory as it is after the laps before: every cell bears the stamp of the lap before its next.
    for index in 0..512_u32 {
        let lap = if index < start % 512 { 0 } else { (1 << 23) - 1 };
        ring.cell(index as usize)[0].store((u64::from(lap as u32) << 32) | (1 << 30), Ordering::Relaxed);
    }
    ring.head().store(start.into(), Ordering::Relaxed);
    let (producer, mut consumer) = (Producer::new(start), Consumer::new(&ring, start, usize::MAX));
    for number in 0..2000_u64 {
        let body = body(number as usize % 400);
        assert_eq!(producer.push(&ring, |n| [n.into(), number], &body), Ok(Push::Done));
        let frame = consumer.peek(&ring).unwrap().unwrap();
        assert_eq!((frame.prefix, frame.body), ([number; 2], &body[..]));
        let _ = consumer.pop(&ring, body.len());
    }
    assert_eq!(longest(&ring), 512 / 4 * 3 * 56 - 16);
}
