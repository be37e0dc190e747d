//! Bounds of what one peer may occupy, and answers that no correct peer gives: units, over a wire that only keeps what is pushed.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::batch::Batch;
use super::config::Limits;
use super::exposed::{Exposed, Exposures, Refusal};
use super::handlers::Handlers;
use super::head::{Head, Operation};
use super::inbox::{Bytes, Inbox, Item, Put};
use super::incoming::Incoming;
use super::line::Line;
use super::links::{Link, Links};
use super::member::Member;
use super::reads::Reads;
use super::serving::{Served, Serving};
use super::wire::{Landing, Sink, Wire};
use super::*;
use crate::Deadline;
use crate::error::Result;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

mod lines;
mod reads;

/// Keeps what is pushed, `room` frames of it.
#[derive(Debug)]
struct Kept {
    frames: Mutex<Vec<(Head, Vec<u8>)>>,
    room: usize,
    /// Whether it says once that it has made room.
    made_room: AtomicBool,
}

impl Wire for Arc<Kept> {
    fn name(&self) -> &'static str {
        "kept"
    }

    fn max_body(&self) -> usize {
        10
    }

    fn push(&self, head: Head, body: &[u8]) -> Result<bool> {
        let mut frames = lock(&self.frames);
        let has_room = frames.len() < self.room;
        if has_room {
            frames.push((head, body.to_vec()));
        }
        Ok(has_room)
    }

    fn kick(&self) -> Result<bool> {
        Ok(true)
    }

    fn take_room(&self) -> bool {
        self.made_room.swap(false, Ordering::AcqRel)
    }

    fn has_ended(&self) -> bool {
        false
    }

    fn pull(&self, _: &mut dyn Sink) -> Result<usize> {
        Ok(0)
    }

    fn arm(&self) -> Result<bool> {
        Ok(false)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn waits_for_room(&self) -> bool {
        false
    }

    fn pull_is_syscall(&self) -> bool {
        false
    }

    fn close(&self, _: bool) {}
}

fn kept(room: usize) -> Arc<Kept> {
    Arc::new(Kept { frames: Mutex::default(), room, made_room: AtomicBool::new(false) })
}

impl Kept {
    fn operations(&self) -> Vec<Operation> {
        lock(&self.frames).iter().map(|(head, _)| head.operation).collect()
    }
}

fn limits() -> Limits {
    MessengerConfig::default().with_inbox(4, 100).with_eager_limit(50).limits
}

fn line(wire: &Arc<Kept>) -> Arc<Line> {
    Arc::new(Line::new(Box::new(wire.clone()), 3, Arc::new(Exposures::new(7))))
}

fn member() -> Arc<Member> {
    member_of(1, 0)
}

/// A peer that no messenger serves.
pub(super) fn member_of(rank: u32, life: u32) -> Arc<Member> {
    let hub = Arc::new(hub::Hub::new(limits(), 7).unwrap());
    Arc::new(Member::new((rank, 9, life), hub, 50, credit::Amount { messages: 4, bytes: 100 }))
}

/// A table with 100 exposed bytes, and a request for `length` bytes of them at `offset`.
fn served(offset: u64, length: u64) -> (Arc<Exposures>, Exposed, Vec<u8>) {
    let table = Arc::new(Exposures::new(7));
    let exposed = table.expose(vec![5; 100].into()).unwrap();
    let body = [&exposed.token().to_bytes()[..], &offset.to_le_bytes(), &length.to_le_bytes()].concat();
    (table, exposed, body)
}

#[test]
fn a_cancelled_read_is_served_no_more() {
    let (table, _exposed, body) = served(0, 100);
    let (mut serving, wire) = (Serving::default(), kept(3));
    serving.add(Head::new(Operation::Read, 0, 1, body.len()), &body, 8).unwrap();
    assert_eq!(serving.serve(&table, &wire).unwrap(), Served::Full);
    serving.cancel(1);
    lock(&wire.frames).clear();
    assert_eq!(serving.serve(&table, &wire).unwrap(), Served::All);
    let frames = lock(&wire.frames).clone();
    let [(head, reason)] = &frames[..] else { panic!("{frames:?}") };
    assert_eq!((head.operation, &reason[..]), (Operation::Refused, &[Refusal::Cancelled as u8][..]));
}

/// The first pieces are within the memory, and none is served: a read brings all or nothing.
#[test]
fn a_range_is_checked_as_a_whole() {
    let (table, _exposed, body) = served(50, 51);
    let (mut serving, wire) = (Serving::default(), kept(100));
    serving.add(Head::new(Operation::Read, 0, 1, body.len()), &body, 8).unwrap();
    assert_eq!(serving.serve(&table, &wire).unwrap(), Served::All);
    assert_eq!(wire.operations(), [Operation::Refused]);
    assert_eq!(lock(&wire.frames)[0].1, [Refusal::Range as u8]);
}

#[test]
fn a_peer_has_a_bounded_number_of_open_requests() {
    let (_table, _exposed, body) = served(0, 1);
    let mut serving = Serving::default();
    (0..3).for_each(|id| serving.add(Head::new(Operation::Read, 0, id, body.len()), &body, 3).unwrap());
    assert!(serving.add(Head::new(Operation::Read, 0, 3, body.len()), &body, 3).is_err());
}

#[test]
fn frames_that_wait_for_room_are_bounded() {
    let line = line(&kept(0));
    for kind in 0..64 {
        assert!(line.tell_unknown(kind).unwrap());
        assert!(!line.tell_unknown(kind).unwrap(), "it waits already");
    }
    assert!(!line.tell_unknown(64).unwrap(), "the peer does not read");
    for id in 64..1 << 16 {
        line.tell(Operation::LongDone, 0, id, &[0]).unwrap();
    }
    assert!(line.failure().is_none());
    assert!(line.tell(Operation::LongDone, 0, 0, &[0]).is_err());
    assert!(line.failure().is_some(), "which ends the peer");
}

/// A link that is over has nothing left to serve. A messenger that kept a turn for it would never sleep.
#[test]
fn a_link_that_has_ended_or_failed_waits_for_no_turn() {
    let ways: [fn(&Line); 2] = [Line::end, |line| {
        (0..=1 << 16).for_each(|id| drop(line.tell(Operation::LongDone, 0, id, &[0])));
        assert!(line.failure().is_some());
    }];
    for way in ways {
        let table = Arc::new(Exposures::new(7));
        let exposed = table.expose(vec![5; 2 << 20].into()).unwrap();
        let line = Line::new(Box::new(kept(3000)), 3, table);
        let body = [&exposed.token().to_bytes()[..], &[0; 8], &(2_u64 << 20).to_le_bytes()].concat();
        lock(&line.serving).add(Head::new(Operation::Read, 0, 1, body.len()), &body, 8).unwrap();
        assert!(!line.kick().unwrap());
        assert!(line.waits_for_turn(), "one turn serves less");
        way(&line);
        assert!(!line.waits_for_turn());
    }
}

#[test]
fn kinds_that_a_peer_does_not_know_are_kept_in_a_bounded_list() {
    let member = member();
    (0..1000).for_each(|kind| member.unknown.add(1, kind));
    assert_eq!((0..1000).filter(|kind| member.unknown.check("send", 1, *kind).is_err()).count(), 64);
}

fn reads(count: u32, length: usize) -> (Reads, Token) {
    let mut reads = Reads::new(false, false);
    let token = served(0, 0).1.token();
    for _ in 0..count {
        let deadline = Deadline::after(Duration::from_secs(30));
        reads.add((token, 0), vec![0; length], deadline, Box::new(|_| {}));
    }
    (reads, token)
}

#[test]
fn only_answers_that_were_asked_for_are_taken() {
    let (mut reads, _) = reads(2, 4);
    let data = |id| Head::new(Operation::Data, 0, id, 4);
    assert!(reads.data(data(0), &[1; 4]).is_err(), "it was not asked for");
    assert!(reads.refused(0, crate::Error::usage("read", "on purpose")).is_err());
    assert!(reads.landing(data(0), 0).is_err());
    assert!(reads.mapped(0, None).is_err());
    let mut asked = Vec::new();
    let push = |_, id, _: &[u8]| {
        asked.push(id);
        Ok(true)
    };
    assert!(reads.ask((1, usize::MAX), None, push).unwrap());
    assert_eq!(asked, [0], "one at a time");
    assert!(reads.data(data(1), &[1; 4]).is_err(), "it is not its turn");
    let finished = reads.data(data(0), &[1; 4]).unwrap().unwrap();
    assert_eq!(finished.outcome.unwrap(), [1; 4]);
    assert!(reads.data(data(1), &[1; 4]).is_err(), "it was not asked for");
}

/// A window bounds what is asked for at a time, but for a single read that is longer.
#[test]
fn no_more_is_asked_for_than_the_window_holds() {
    for (window, first, second) in [(3, 1, 1), (4, 1, 1), (7, 1, 1), (8, 2, 1), (11, 2, 1), (12, 3, 0)] {
        let (mut reads, _) = reads(3, 4);
        let ask = |reads: &mut Reads| {
            let mut asked = 0;
            let push = |_, _, _: &[u8]| {
                asked += 1;
                Ok(true)
            };
            assert!(reads.ask((64, window), None, push).unwrap());
            asked
        };
        assert_eq!(ask(&mut reads), first, "window {window}");
        assert_eq!(ask(&mut reads), 0, "nothing has come");
        let data = Head::new(Operation::Data, 0, 0, 4);
        assert!(reads.data(data, &[1; 4]).unwrap().is_some());
        assert_eq!(ask(&mut reads), second, "window {window}");
    }
}

#[test]
fn no_data_lands_past_the_end_of_a_read() {
    let (mut reads, _) = reads(1, 4);
    assert!(reads.ask((1, usize::MAX), None, |_, _, _: &[u8]| Ok(true)).unwrap());
    let frame = |length| Head::new(Operation::Data, 0, 0, length);
    assert!(reads.landing(frame(5), 0).is_err());
    assert!(matches!(reads.landing(frame(3), 0), Ok(Landing::Memory(_))));
    assert!(reads.landed(frame(3), 3).unwrap().is_none());
    assert!(reads.landing(frame(2), 0).is_err(), "one byte is left");
    assert!(reads.landing(frame(2), 1).is_ok());
}

/// It would hold the read open for as long as it likes, and keep this side busy.
#[test]
fn an_owner_that_sends_no_bytes_breaks_the_protocol() {
    let (mut reads, _) = reads(1, 4);
    assert!(reads.ask((1, usize::MAX), None, |_, _, _: &[u8]| Ok(true)).unwrap());
    let data = |length| Head::new(Operation::Data, 0, 0, length);
    assert!(reads.data(data(3), &[1; 3]).unwrap().is_none());
    assert!(reads.data(data(0), &[]).is_err());
}

/// Otherwise its receiver would be told of data that it can never read.
#[test]
fn long_data_has_a_token_of_the_peer_that_sends_it() {
    let (handlers, member, line) = (Handlers::default(), member(), line(&kept(100)));
    let queue = handlers.set_queue("queue", 1).unwrap();
    let frame = |sequence, generation| {
        let token = Token { generation, ..served(0, 0).1.token() };
        let body = [&token.to_bytes()[..], b"head"].concat();
        let head = Head { sequence, ..Head::new(Operation::Long, 1, 0, body.len()) };
        Incoming::new(&handlers, &member, &line, None).frame(head, &body)
    };
    frame(0, member.generation).unwrap();
    assert_eq!(queue.try_recv().unwrap().long().unwrap().len(), 100);
    let error = frame(1, member.generation + 1).unwrap_err();
    assert!(error.message().contains("a token of another messenger"), "{error}");
    assert!(queue.is_empty());
    // The first one was dropped, and no engine sends what tells its sender so.
    member.hub.clear();
}

#[test]
fn an_inbox_counts_messages_and_bytes() {
    let (inbox, limits) = (Inbox::default(), limits());
    let put = |bytes| inbox.put(bytes, &limits, || Item::Message(1, Bytes::EMPTY, None));
    assert_eq!((put(50), put(50), put(1)), (Put::Wake, Put::Taken, Put::Full), "bytes");
    inbox.release(1, 50, &limits);
    assert_eq!((put(0), put(0), put(0), put(0)), (Put::Taken, Put::Taken, Put::Taken, Put::Full), "messages");
    assert_eq!(inbox.charge(0, &limits, || true), Put::Full);
}

/// A thread dispatches messages itself that it has read: they never are in the inbox.
#[test]
fn messages_past_the_inbox_are_as_bounded_as_those_in_it() {
    for (length, most) in [(50, 2), (0, 4)] {
        let (handlers, member, line) = (Handlers::default(), member(), line(&kept(0)));
        handlers.set_callback("on", 1, |_| {}).unwrap();
        let mut batch = Batch::default();
        let mut incoming = Incoming::new(&handlers, &member, &line, Some(&mut batch));
        let body = vec![1; length];
        for sequence in 0..most {
            let head = Head { sequence, ..Head::new(Operation::Message, 1, 0, length) };
            incoming.frame(head, &body).unwrap();
        }
        let head = Head { sequence: most, ..Head::new(Operation::Message, 1, 0, 1) };
        let error = incoming.frame(head, &[1]).unwrap_err();
        assert!(error.message().contains("credit"), "{length} bytes: {error}");
    }
}

#[test]
fn the_token_of_a_link_that_is_gone_finds_nothing() {
    let (wire, member) = (kept(0), member());
    let link = || Link::new(member.clone(), line(&wire)).unwrap();
    let mut links = Links::default();
    let (first, second) = (links.insert(link()), links.insert(link()));
    assert!(first != 0 && first != second);
    assert!(links.remove(first).is_some() && links.remove(first).is_none());
    let third = links.insert(link());
    assert_ne!(third, first);
    assert!(links.get_mut(first).is_none() && links.get_mut(third).is_some());
    assert_eq!(links.of(&member).len(), 2);
}
