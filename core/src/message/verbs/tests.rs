//! Links over queue pairs of the stand-in, between two ends in one process; peers that send whatever they like; and messengers of
//! which one cannot use its device.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rdma_core_sys::ibv_wc_status;

use super::credits::{CREDITS, RECEIVES};
use super::packet::{Header, PAYLOAD};
use super::*;
use crate::deadline::Deadline;
use crate::env::Selection;
use crate::error::{ErrorKind, Result};
use crate::message::head::{Head, Operation};
use crate::message::wire::{Landing, Sink, Wire};
use crate::message::{Messenger, MessengerConfig, Secret, Sent};
use crate::net::RawStream;
use crate::net::ready::wait_readable;
use crate::rdma::{Batch, Verbs, standin};
use crate::sync::{Mutex, lock};

const SOON: Duration = Duration::from_secs(30);

/// One end of a pair of sockets.
#[derive(Debug)]
struct Socket(UnixStream);

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

fn verbs() -> Verbs {
    Verbs::from_table(standin::table(), "stand-in")
}

fn nic(names: &str) -> Arc<Nic> {
    let choice =
        Choice { allowed: true, library: Some(verbs()), devices: Some(names.into()), ..Choice::default() };
    Arc::new(Nic::open(&choice).unwrap())
}

/// Two connected ends whose messages have up to `eager` bytes, and the sockets between them.
fn ends(eager: usize) -> [(Box<dyn RawStream>, VerbsLink); 2] {
    let (one, two) = UnixStream::pair().unwrap();
    let drafts = [(); 2].map(|()| Draft::new(&nic("null0"), eager).unwrap());
    let [first, second] = [drafts[0].offer(), drafts[1].offer()];
    let [one_draft, two_draft] = drafts;
    [(one, one_draft, second), (two, two_draft, first)].map(|(socket, draft, theirs)| {
        socket.set_nonblocking(true).unwrap();
        let socket: Box<dyn RawStream> = Box::new(Socket(socket));
        (socket, draft.connect(&theirs).unwrap())
    })
}

fn pair_of(eager: usize) -> [VerbsWire; 2] {
    ends(eager).map(|(socket, link)| VerbsWire::new(socket, link, None))
}

fn pair() -> [VerbsWire; 2] {
    pair_of(8 << 10)
}

/// Keeps frames, as many as there is room for. Data that comes in parts is put together.
#[derive(Default)]
struct Kept {
    frames: Vec<(Head, Vec<u8>)>,
    room: Option<usize>,
    parts: usize,
}

impl Sink for Kept {
    fn frame(&mut self, head: Head, body: &[u8]) -> Result<bool> {
        let taken = self.room != Some(0);
        if taken {
            self.room = self.room.map(|room| room - 1);
            self.frames.push((head, body.to_vec()));
        }
        Ok(taken)
    }

    fn begin(&mut self, head: Head) -> Result<()> {
        self.frames.push((head, vec![0; head.length as usize]));
        Ok(())
    }

    fn landing(&mut self, head: Head, done: usize) -> Result<Landing> {
        let (began, body) = self.frames.last_mut().unwrap();
        assert_eq!(*began, head);
        Ok(Landing::Memory(body[done..].as_mut_ptr()))
    }

    fn landed(&mut self, _: Head, _: usize) -> Result<()> {
        self.parts += 1;
        Ok(())
    }
}

fn head(kind: u16, body: &[u8]) -> Head {
    Head::new(Operation::Message, kind, 7, body.len())
}

fn body(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 + len) as u8).collect()
}

/// Pushes, and flushes what was held back.
fn push(wire: &VerbsWire, head: Head, body: &[u8]) -> bool {
    let pushed = wire.push(head, body).unwrap();
    wire.kick().unwrap();
    pushed
}

/// Pulls until `count` frames have come.
fn pull(wire: &VerbsWire, kept: &mut Kept, count: usize) {
    let deadline = Deadline::after(SOON);
    while kept.frames.len() < count {
        wire.pull(kept).unwrap();
        assert!(!deadline.expired(), "only {} frames of {count}", kept.frames.len());
    }
}

fn is_readable(wire: &VerbsWire, patience: Duration) -> bool {
    wait_readable(wire.descriptors()[0], Deadline::after(patience)).unwrap()
}

fn number(wire: &VerbsWire) -> u32 {
    wire.number()
}

#[test]
fn frames_of_every_size_arrive_whole_and_numbered() {
    for inline in [256, 220, 16, 4, 0] {
        standin::limit_inline(inline);
        let [one, two] = pair();
        let longest = one.max_body();
        assert!(longest >= (8 << 10) + 40);
        let sizes = (0..300).chain([PAYLOAD - 17, PAYLOAD - 16, PAYLOAD - 15, 2 * PAYLOAD, 8 << 10, longest]);
        let mut kept = Kept::default();
        for (number, size) in sizes.enumerate() {
            let body = body(size);
            assert!(push(&one, head(3, &body), &body), "{size}");
            pull(&two, &mut kept, 1);
            let expected = Head { sequence: number as u32, ..head(3, &body) };
            assert_eq!(kept.frames.pop().unwrap(), (expected, body));
        }
        let long = vec![0; longest + 1];
        assert_eq!(one.push(head(3, &long), &long).unwrap_err().kind(), ErrorKind::Internal);
    }
    standin::limit_inline(256);
}

#[test]
fn the_longest_eager_limit_fits() {
    let [one, two] = pair_of(64 << 10);
    let mut kept = Kept::default();
    for round in 1..=20 {
        let body = body((64 << 10) + 40);
        while !one.push(head(3, &body), &body).unwrap() {
            two.pull(&mut kept).unwrap();
        }
        // Most packets wait for credits.
        assert!(one.kick().is_ok_and(|all| !all) || round > 1);
    }
    while kept.frames.len() < 20 {
        two.pull(&mut kept).unwrap();
        one.pull(&mut Kept::default()).unwrap();
    }
    assert!(kept.frames.iter().all(|(_, bytes)| *bytes == body((64 << 10) + 40)));
}

#[test]
fn a_link_has_at_most_64_kib() {
    let [(_, link), _] = ends(8 << 10);
    let bytes = (RECEIVES + link.parts.sends) as usize * PACKET;
    assert!(bytes <= 64 << 10, "{bytes}");
}

/// Without credits, frames gather in packets; with room again, all arrive. A packet without a receive would end the link.
#[test]
fn a_flood_both_ways_meets_receives_and_gathers() {
    let wires = pair();
    let mut kept = [Kept::default(), Kept::default()];
    let (mut sent, frames) = ([0; 2], 5000);
    let deadline = Deadline::after(SOON);
    while kept.iter().any(|kept| kept.frames.len() < frames) {
        for side in 0..2 {
            while sent[side] < frames
                && wires[side].push(head(1, &body(sent[side] % 90)), &body(sent[side] % 90)).unwrap()
            {
                sent[side] += 1;
            }
            wires[side].kick().unwrap();
        }
        for side in 0..2 {
            wires[side].pull(&mut kept[side]).unwrap();
        }
        assert!(!deadline.expired(), "{sent:?}");
    }
    for kept in &kept {
        for (number, (head, bytes)) in kept.frames.iter().enumerate() {
            assert_eq!((head.sequence, bytes), (number as u32, &body(number % 90)));
        }
    }
    let counts = wires.each_ref().map(|wire| standin::counts(number(wire)));
    for counts in counts {
        assert!(counts.requests < frames as u64 / 4, "frames did not gather: {counts:?}");
        assert!(counts.completions <= counts.requests / 2, "not one in several was signalled: {counts:?}");
    }
}

/// Answers to reads leave room to messages.
#[test]
fn messages_pass_between_data() {
    for eager in [8 << 10, 64 << 10] {
        let [one, two] = pair_of(eager);
        let data = body(one.max_body());
        let data_head = Head::new(Operation::Data, 0, 9, data.len());
        let mut frames = 0;
        while push(&one, data_head, &data) {
            frames += 1;
        }
        let short = body(100);
        (0..50).for_each(|n| assert!(push(&one, head(n, &short), &short), "{n}"));
        let mut kept = Kept::default();
        while kept.frames.len() < frames + 50 {
            two.pull(&mut kept).unwrap();
            one.pull(&mut Kept::default()).unwrap();
        }
        assert!(push(&one, data_head, &data), "with nothing else, the longest fits");
    }
}

/// A packet takes a receive, whatever is in it: many short frames arrive although nobody gives receives back.
#[test]
fn a_burst_takes_few_receives() {
    let [one, two] = pair();
    let mut kept = Kept::default();
    (0..200).for_each(|n| assert!(one.push(head(n, b"x"), b"x").unwrap()));
    two.pull(&mut kept).unwrap();
    assert!((1..200).contains(&kept.frames.len()), "the first leaves at once, the last ones do not");
    assert!(one.kick().unwrap());
    pull(&two, &mut kept, 200);
    assert_eq!(standin::counts(number(&one)).requests, 3);
}

#[test]
fn a_sender_without_credits_goes_on_when_they_come() {
    let [one, two] = pair();
    let body = body(1500);
    let mut pushed = 0;
    while one.push(head(1, &body), &body).unwrap() {
        pushed += 1;
    }
    assert!(!one.kick().unwrap(), "more than its credits have left");
    assert!(standin::counts(number(&one)).requests <= CREDITS.into());
    assert!(!one.arm().unwrap());
    let mut kept = Kept::default();
    while two.pull(&mut kept).unwrap() > 0 {}
    assert!(is_readable(&one, SOON), "nobody woke the sender");
    while kept.frames.len() < pushed {
        one.pull(&mut Kept::default()).unwrap();
        two.pull(&mut kept).unwrap();
    }
    assert!(push(&one, head(1, &body), &body));
}

#[test]
fn a_refused_frame_stays() {
    for size in [1, 5000] {
        let [one, two] = pair();
        let (a, b) = (body(size), body(size + 1));
        assert!(push(&one, head(1, &a), &a) && push(&one, head(2, &b), &b));
        let mut kept = Kept { room: Some(0), ..Kept::default() };
        for _ in 0..10 {
            two.pull(&mut kept).unwrap();
        }
        assert!(kept.frames.is_empty());
        kept.room = None;
        pull(&two, &mut kept, 2);
        assert_eq!((&kept.frames[0].1, &kept.frames[1].1), (&a, &b));
    }
}

#[test]
fn long_data_lands_in_place() {
    let [one, two] = pair();
    let (data, other) = (body(8000), body(10));
    let head_of = |body: &[u8]| Head::new(Operation::Data, 0, 9, body.len());
    assert!(push(&one, head_of(&data), &data) && push(&one, head(4, &other), &other));
    let mut kept = Kept::default();
    pull(&two, &mut kept, 2);
    assert_eq!((kept.parts, &kept.frames[0].1, &kept.frames[1].1), (4, &data, &other));
}

#[test]
fn a_side_that_sleeps_is_woken() {
    let [one, two] = pair();
    let mut kept = Kept::default();
    assert!(push(&one, head(1, b"a"), b"a"));
    assert!(!is_readable(&two, Duration::ZERO));
    assert!(two.arm().unwrap(), "a frame lies there");
    pull(&two, &mut kept, 1);
    while two.arm().unwrap() {}
    assert!(!is_readable(&two, Duration::ZERO));
    assert!(push(&one, head(1, b"a"), b"a"));
    assert!(is_readable(&two, SOON));
    pull(&two, &mut kept, 2);
    assert!(!is_readable(&two, Duration::ZERO), "the event was taken");
}

/// Both sides sleep whenever they can, from several threads.
#[test]
fn no_wake_up_is_lost() {
    const FRAMES: usize = 2000;
    let [one, two] = pair();
    // One thread at a time takes what comes.
    let door = Mutex::new(());
    let push = |wire: &VerbsWire, kind: u16, body: &[u8]| {
        if push(wire, head(kind, body), body) {
            return;
        }
        let _door = lock(&door);
        while !push(wire, head(kind, body), body) {
            if wire.pull(&mut Kept::default()).unwrap() == 0 && !wire.arm().unwrap() {
                assert!(is_readable(wire, SOON), "nobody made room");
            }
        }
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2_u16)
            .map(|kind| {
                let (one, push) = (&one, &push);
                scope.spawn(move || {
                    (0..FRAMES).for_each(|index| push(one, kind, &body(index % 3000)));
                    // A frame without credits leaves once this side takes new ones.
                    while !one.kick().unwrap() {
                        std::thread::yield_now();
                    }
                })
            })
            .collect();
        let mut kept = Kept::default();
        while kept.frames.len() < 2 * FRAMES {
            if two.pull(&mut kept).unwrap() == 0 && !two.arm().unwrap() {
                assert!(is_readable(&two, SOON), "slept over a frame, {} came", kept.frames.len());
            }
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let mut next = [0; 2];
        for (number, (head, bytes)) in kept.frames.iter().enumerate() {
            let index = &mut next[usize::from(head.kind)];
            assert_eq!((head.sequence, bytes), (number as u32, &body(*index % 3000)));
            *index += 1;
        }
    });
}

/// Pulls until the link ends; what ended it.
#[track_caller]
fn end_of(wire: &VerbsWire, kept: &mut Kept) -> crate::Error {
    let deadline = Deadline::after(SOON);
    loop {
        match wire.pull(kept).and_then(|_| wire.arm()) {
            Ok(_) => assert!(!deadline.expired(), "the link does not end"),
            Err(error) => return error,
        }
    }
}

#[test]
fn what_was_pushed_arrives_before_the_end() {
    let [one, two] = pair();
    while two.arm().unwrap() {}
    let long = body(5000);
    assert!(push(&one, head(1, &long), &long) && push(&one, head(1, b"last"), b"last"));
    let deadline = Deadline::after(SOON);
    while !one.has_arrived() {
        assert!(!deadline.expired());
    }
    one.close(false);
    assert_eq!(one.push(head(1, b""), b"").unwrap_err().kind(), ErrorKind::Stopped);
    one.close(true);
    drop(one);
    let mut kept = Kept::default();
    let error = end_of(&two, &mut kept);
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::PeerLost, "its process ended or closed the link")
    );
    assert_eq!(kept.frames.len(), 2);
    assert!(two.push(head(1, b"x"), b"x").is_err() && two.kick().is_ok());
}

#[test]
fn a_failed_request_ends_the_link_with_advice() {
    let [one, two] = pair();
    assert!(push(&one, head(1, b"a"), b"a"));
    pull(&two, &mut Kept::default(), 1);
    standin::fail_next(number(&one), ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
    assert!(push(&one, head(1, b"b"), b"b"));
    let error = end_of(&one, &mut Kept::default());
    assert!(
        error.message().contains("did not answer") && error.message().contains("traffic class"),
        "{error}"
    );
    assert_eq!(one.push(head(1, b"b"), b"b").unwrap_err().message(), error.message());
    assert_eq!(one.kick().unwrap_err().message(), error.message());
    assert!(one.has_arrived(), "nothing is waited for");
}

#[test]
fn a_device_that_fails_ends_its_links() {
    let [one, _two] = pair();
    one.check().unwrap();
    standin::raise(number(&one), rdma_core_sys::ibv_event_type::IBV_EVENT_DEVICE_FATAL);
    let error = one.check().unwrap_err();
    assert!(error.message().contains("removed or failed"), "{error}");
}

/// A peer that posts its own requests: sends `packets` to a link, whose pulls give frames that their heads state, or an error.
fn survive(packets: &[Vec<u8>]) -> Option<crate::Error> {
    let [(socket, link), (_other, peer)] = ends(8 << 10);
    let wire = VerbsWire::new(socket, link, None);
    let mut batch = Batch::default();
    for (slot, packet) in packets.iter().enumerate() {
        let slot = RECEIVES + slot as u32;
        peer.parts.slots.slot(slot).write(0, packet).unwrap();
        batch.send(peer.parts.slots.range(slot, packet.len()).unwrap()).unwrap();
    }
    peer.queue_pair.post(&mut batch).unwrap();
    let mut kept = Kept::default();
    for _ in 0..100 {
        let pulled = wire.pull(&mut kept).and_then(|_| wire.arm());
        assert!(kept.frames.iter().all(|(head, body)| body.len() == head.length as usize));
        if let Err(error) = pulled {
            assert!(wire.push(head(1, b""), b"").is_err(), "the link goes on after {error}");
            return Some(error);
        }
    }
    None
}

fn packet(returned: u32, stream: &[u8]) -> Vec<u8> {
    let header = Header { returned, length: stream.len() as u32 };
    [&header.encode()[..], stream].concat()
}

#[test]
fn a_peer_that_breaks_the_protocol_is_lost() {
    let kind = |packets: &[Vec<u8>]| survive(packets).map(|error| error.kind());
    let frame = [&head(1, b"ok").encode()[..], b"ok"].concat();
    assert_eq!(kind(&[packet(0, &frame), packet(0, &frame)]), None);
    assert_eq!(kind(&[packet(1, &frame)]), Some(ErrorKind::Remote), "credits that it was not given");
    assert_eq!(kind(&[packet(0, &[])]), Some(ErrorKind::Remote), "nothing at all");
    assert_eq!(kind(&[vec![1, 2, 3]]), Some(ErrorKind::Remote), "no header");
    assert_eq!(
        kind(&[Header { returned: 0, length: 99 }.encode().to_vec()]),
        Some(ErrorKind::Remote),
        "another length"
    );
    let long = Head::new(Operation::Message, 1, 0, longest_body(8 << 10) + 1).encode();
    assert_eq!(kind(&[packet(0, &long)]), Some(ErrorKind::Remote), "a frame that is too long");
    let long = Head::new(Operation::Data, 1, 0, 2 << 20).encode();
    assert_eq!(kind(&[packet(0, &long)]), Some(ErrorKind::Remote), "data that is too long");
    // The beginning of a frame, again and again: never used up, so there are no more credits.
    let part = packet(0, &[&Head::new(Operation::Message, 1, 0, 8000).encode()[..], &[0; 100]].concat());
    assert_eq!(kind(&[part]), None, "half a frame is no violation");
}

/// A peer sends one byte over the socket, on which it has nothing to say.
#[test]
fn bytes_beside_the_queue_pair_end_the_link() {
    let [(socket, link), (other, _peer)] = ends(8 << 10);
    let wire = VerbsWire::new(socket, link, None);
    assert_eq!(other.write(&[0], &[]).unwrap(), 1);
    assert_eq!(wire.arm().unwrap_err().kind(), ErrorKind::Remote);
}

proptest! {
    /// A peer has sent packets with any stream, half of it frames that could be right.
    #[test]
    fn any_bytes_end_the_link_or_are_frames(
        packets in prop::collection::vec((0..2_u32, prop::collection::vec((any::<bool>(), 0..9_u8, 0..3000_u32, any::<u8>()), 0..8)), 1..10),
    ) {
        let packets: Vec<Vec<u8>> = packets
            .into_iter()
            .map(|(returned, parts)| {
                let mut stream = Vec::new();
                for (is_head, operation, length, byte) in parts {
                    if is_head {
                        let operation = if operation % 2 == 0 { Operation::Message } else { Operation::Data };
                        stream.extend(Head::new(operation, byte.into(), 0, length as usize).encode());
                    } else {
                        stream.resize(stream.len() + length as usize % 300, byte);
                    }
                }
                stream.truncate(PAYLOAD);
                packet(returned / 2, &stream)
            })
            .collect();
        survive(&packets);
    }
}

fn config(devices: &str) -> MessengerConfig {
    let interfaces = Selection { names: Some("lo".into()), ..Selection::default() };
    let config =
        MessengerConfig::default().with_secret(Secret::from_bytes([9; 32])).with_interfaces(interfaces);
    config.with_shared_memory(false).with_verbs(true).with_ib_devices(devices).with_verbs_library(verbs())
}

/// Connects, sends one message each way, and says what carries them.
fn carrier(from: MessengerConfig, to: MessengerConfig) -> &'static str {
    let [from, to] = [(0, from), (1, to)].map(|(rank, config)| Messenger::new(rank, config).unwrap());
    let seen = Arc::new(Mutex::new(0));
    for messenger in [&from, &to] {
        let seen = seen.clone();
        messenger
            .on(5, move |message| {
                assert_eq!(message.bytes(), b"hello");
                *lock(&seen) += 1;
            })
            .unwrap();
    }
    let there = from.connect(to.address(), SOON).unwrap();
    let back = to.connect(from.address(), SOON).unwrap();
    assert_eq!(there.send(5, b"hello").unwrap(), Sent::Done);
    assert_eq!(back.send(5, b"hello").unwrap(), Sent::Done);
    let deadline = Deadline::after(SOON);
    while *lock(&seen) < 2 {
        from.poll().unwrap();
        to.poll().unwrap();
        assert!(!deadline.expired());
    }
    match [there, back].map(|peer| peer.transport()) {
        [one, other] if one == other => one,
        _ => "something else at each end",
    }
}

#[test]
fn a_side_that_cannot_falls_back_to_tcp() {
    assert_eq!(carrier(config("null0"), config("null0")), "verbs");
    assert_eq!(carrier(config("null0"), config("null0").with_verbs(false)), "tcp");
    assert_eq!(carrier(config("null0").with_verbs(false), config("null0")), "tcp");
    assert_eq!(carrier(config("null0"), config("dark0")), "tcp", "no active port");
    assert_eq!(carrier(config("no_such_device"), config("null0")), "tcp");
    // RoCE and InfiniBand: the one that is asked finds out.
    assert_eq!(carrier(config("null0"), config("null1")), "tcp");
    let without = Verbs::from_table(standin::without_devices(), "stand-in");
    assert_eq!(carrier(config("null0"), config("").with_verbs_library(without)), "tcp");
}

/// The one that asks finds out, after the other one has connected its queue pair.
#[test]
fn a_queue_pair_that_the_asking_side_cannot_connect_falls_back_to_tcp() {
    // The messenger that dials runs on this thread, the one that answers does not.
    let [from, to] = [0, 1].map(|rank| Messenger::new(rank, config("null0")).unwrap());
    // Its first move is to the state init; the second one fails.
    standin::refuse_after("ibv_modify_qp", 1, libc::EINVAL);
    let peer = from.connect(to.address(), SOON).unwrap();
    assert_eq!(standin::not_called(), 0);
    assert!(peer.member.lines().iter().all(|line| line.name == "tcp"));
    let queue = to.queue(5).unwrap();
    assert_eq!(peer.send(5, b"over tcp").unwrap(), Sent::Done);
    let deadline = Deadline::after(SOON);
    loop {
        from.poll().unwrap();
        to.poll().unwrap();
        if let Some(message) = queue.try_recv() {
            assert_eq!(message.bytes(), b"over tcp");
            break;
        }
        assert!(!deadline.expired());
    }
}
