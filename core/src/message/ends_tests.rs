//! How peers end: wires that fail at a chosen call, descriptors that cannot be watched, owners of memory that look at locks.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::Wrap;
use super::head::{Head, Operation};
use super::line::Line;
use super::serving::TURN;
use super::wire::{Lent, Sink, Wire};
use super::*;
use crate::env::Selection;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, lock};

const SOON: Duration = Duration::from_secs(30);

/// The faults of a wire, and the bytes of answers that it has swallowed.
#[derive(Debug, Default)]
struct Faults {
    push: AtomicBool,
    check: AtomicBool,
    watch: AtomicBool,
    swallows: AtomicBool,
    swallowed: AtomicUsize,
    /// Bytes of answers that the wire has taken to send them later.
    lent: AtomicUsize,
}

impl Faults {
    fn set(fault: &AtomicBool) {
        fault.store(true, Ordering::Release);
    }

    fn fails(fault: &AtomicBool) -> Result<()> {
        if fault.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Remote, "send", "damaged on purpose"));
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Faulty {
    inner: Box<dyn Wire>,
    faults: Arc<Faults>,
    /// A descriptor that cannot be watched.
    file: File,
}

impl Wire for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn max_body(&self) -> usize {
        self.inner.max_body()
    }

    fn push(&self, head: Head, body: &[u8]) -> Result<bool> {
        Faults::fails(&self.faults.push)?;
        if head.operation == Operation::Data && self.faults.swallows.load(Ordering::Acquire) {
            self.faults.swallowed.fetch_add(body.len(), Ordering::AcqRel);
            return Ok(true);
        }
        self.inner.push(head, body)
    }

    fn push_lent(&self, head: Head, body: Lent) -> Result<bool> {
        Faults::fails(&self.faults.push)?;
        if self.faults.swallows.load(Ordering::Acquire) {
            return self.push(head, &body.copy());
        }
        let length = body.len();
        let pushed = self.inner.push_lent(head, body)?;
        self.faults.lent.fetch_add(if pushed { length } else { 0 }, Ordering::AcqRel);
        Ok(pushed)
    }

    fn kick(&self) -> Result<bool> {
        self.inner.kick()
    }

    fn pull(&self, sink: &mut dyn Sink) -> Result<usize> {
        self.inner.pull(sink)
    }

    fn arm(&self) -> Result<bool> {
        self.inner.arm()
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        if self.faults.watch.load(Ordering::Acquire) {
            vec![self.file.as_fd()]
        } else {
            self.inner.descriptors()
        }
    }

    fn waits_for_room(&self) -> bool {
        self.inner.waits_for_room()
    }

    fn gathers(&self) -> bool {
        self.inner.gathers()
    }

    fn pull_is_syscall(&self) -> bool {
        self.inner.pull_is_syscall()
    }

    fn check(&self) -> Result<()> {
        Faults::fails(&self.faults.check)
    }

    fn passes_descriptors(&self) -> bool {
        self.inner.passes_descriptors()
    }

    fn send_descriptor(&self, fd: BorrowedFd<'_>) -> bool {
        self.inner.send_descriptor(fd)
    }

    fn take_descriptor(&self) -> Option<OwnedFd> {
        self.inner.take_descriptor()
    }

    fn has_arrived(&self) -> bool {
        self.inner.has_arrived()
    }

    fn close(&self, both: bool) {
        self.inner.close(both);
    }
}

fn config(shared_memory: bool) -> MessengerConfig {
    let interfaces = Selection { names: Some("lo".into()), ..Selection::default() };
    let config = MessengerConfig::default().with_secret(Secret::from_bytes([7; 32]));
    config.with_interfaces(interfaces).with_shared_memory(shared_memory)
}

fn until(all: &[&Messenger], mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        all.iter().for_each(|messenger| assert!(messenger.poll().is_ok()));
        assert!(start.elapsed() < SOON, "not in time");
    }
}

/// A messenger with faults, another one, the first one's peer, the second one's, and the events of the first.
struct Pair {
    a: Messenger,
    b: Messenger,
    faults: Arc<Faults>,
    to_b: Peer,
    to_a: Peer,
    log: Arc<Mutex<Vec<String>>>,
}

fn pair(shared_memory: bool) -> Pair {
    let faults = Arc::<Faults>::default();
    let (inside, mut faulty) = (faults.clone(), config(shared_memory));
    faulty.wrap = Wrap(Some(Arc::new(move |inner| {
        let file = File::open("/proc/self/exe").unwrap();
        Box::new(Faulty { inner, faults: inside.clone(), file })
    })));
    let (a, b) = (Messenger::new(0, faulty).unwrap(), Messenger::new(1, config(shared_memory)).unwrap());
    let log = Arc::<Mutex<Vec<String>>>::default();
    let (events, messages) = (log.clone(), log.clone());
    let on_peer = move |event| {
        if let PeerEvent::Gone(_, why) = event {
            lock(&events).push(why.to_string());
        }
    };
    a.on_peer(on_peer).unwrap();
    a.on(1, move |message| lock(&messages).push(format!("message {}", message.bytes()[0]))).unwrap();
    let seen = Arc::<Mutex<Option<Peer>>>::default();
    let arrived = seen.clone();
    let on_peer = move |event| {
        if let PeerEvent::Connected(peer) = event {
            *lock(&arrived) = Some(peer);
        }
    };
    b.on_peer(on_peer).unwrap();
    let to_b = a.connect(b.address(), SOON).unwrap();
    until(&[&a, &b], || lock(&seen).is_some());
    let to_a = lock(&seen).take().unwrap();
    Pair { a, b, faults, to_b, to_a, log }
}

/// The messages that came before are dispatched, then the news with its reason.
fn assert_ended(pair: &Pair, messages: u8) {
    let why = pair.to_b.lost().expect("the peer has ended");
    assert!(why.kind() == ErrorKind::PeerLost && why.message().contains("damaged on purpose"), "{why}");
    until(&[&pair.a], || lock(&pair.log).len() > usize::from(messages));
    let mut log = lock(&pair.log).clone();
    let gone = log.pop().unwrap();
    assert!(gone.contains("damaged on purpose"), "{gone}");
    assert!(log.into_iter().eq((0..messages).map(|n| format!("message {n}"))));
}

#[test]
fn a_send_that_fails_ends_the_peer_at_once() {
    for shared_memory in [false, true] {
        let pair = pair(shared_memory);
        (0..3).for_each(|n| assert_eq!(pair.to_a.send(1, &[n]).unwrap(), Sent::Done));
        pair.b.progress().unwrap();
        Faults::set(&pair.faults.push);
        let error = pair.to_b.send(1, b"x").unwrap_err();
        assert!(error.kind() == ErrorKind::PeerLost && error.message().contains("damaged"), "{error}");
        assert_ended(&pair, 3);
        let long = pair.to_b.send_long(1, b"", vec![1], SOON, |_| panic!("it was refused"));
        assert_eq!(long.unwrap_err().kind(), ErrorKind::PeerLost);
    }
}

#[test]
fn a_long_message_or_a_request_that_fails_ends_the_peer_at_once() {
    let long = pair(true);
    Faults::set(&long.faults.push);
    let sent = long.to_b.send_long(1, b"", vec![1], SOON, |_| panic!("it was refused"));
    assert_eq!(sent.unwrap_err().kind(), ErrorKind::PeerLost);
    assert_ended(&long, 0);
    let read = pair(true);
    let exposed = read.b.expose(vec![1; 100]).unwrap();
    Faults::set(&read.faults.push);
    let asked = read.to_b.read(&exposed.token(), 0, vec![0; 100], SOON, |_| panic!("it was refused"));
    assert_eq!(asked.unwrap_err().kind(), ErrorKind::PeerLost);
    assert_ended(&read, 0);
}

/// Only progress sends here: an answer to a read.
#[test]
fn progress_that_cannot_send_ends_the_peer() {
    let pair = pair(true);
    let exposed = pair.a.expose(vec![1; 100]).unwrap();
    let ended = Arc::<Mutex<Option<ErrorKind>>>::default();
    let outcome = ended.clone();
    let done = move |read: Result<Vec<u8>>| *lock(&outcome) = read.err().map(|error| error.kind());
    pair.to_a.read(&exposed.token(), 0, vec![0; 100], SOON, done).unwrap();
    Faults::set(&pair.faults.push);
    pair.a.progress().unwrap();
    assert_ended(&pair, 0);
    until(&[&pair.b], || *lock(&ended) == Some(ErrorKind::PeerLost));
}

/// Sends what is left in place of a thread that sleeps, fails, and leaves it to that thread to end the peer.
#[test]
fn a_sleeper_ends_a_peer_to_which_another_thread_could_not_send() {
    let pair = pair(false);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let start = Instant::now();
            while pair.to_b.lost().is_none() && start.elapsed() < SOON {
                pair.a.wait(SOON).unwrap();
                pair.a.poll().unwrap();
            }
        });
        let start = Instant::now();
        while !pair.a.core.engine.hub.is_asleep() && start.elapsed() < SOON {
            std::thread::yield_now();
        }
        Faults::set(&pair.faults.push);
        let line = pair.to_b.member.sender("test").unwrap();
        pair.to_b.member.tell(line, Operation::Cancel, 0, 7, &[]).unwrap();
        sleeper.join().unwrap();
    });
    assert_ended(&pair, 0);
}

#[test]
fn a_link_whose_check_fails_ends_the_peer() {
    let pair = pair(true);
    Faults::set(&pair.faults.check);
    // Looks now, instead of in a second.
    lock(&pair.a.core.engine.turn).checked = None;
    until(&[&pair.a], || pair.to_b.lost().is_some());
    assert_ended(&pair, 0);
}

/// Handles of peers that are gone keep neither their descriptors nor their places at the listener.
#[test]
fn handles_of_ended_peers_keep_nothing_open() {
    for shared_memory in [false, true] {
        let (a, kept) =
            (Messenger::new(0, config(shared_memory)).unwrap(), Arc::<Mutex<Vec<Peer>>>::default());
        let (queue, gone) = (a.queue(1).unwrap(), Arc::new(AtomicUsize::new(0)));
        let (peers, count) = (kept.clone(), gone.clone());
        let on_peer = move |event| match event {
            PeerEvent::Connected(peer) => lock(&peers).push(peer),
            PeerEvent::Gone(..) => {
                count.fetch_add(1, Ordering::AcqRel);
            }
        };
        a.on_peer(on_peer).unwrap();
        // More lives than one rank may have connections.
        for life in 1..=12 {
            let b = Messenger::new(1, config(shared_memory)).unwrap();
            let exposed = b.expose(SharedMemory::allocate(100).unwrap()).unwrap();
            b.connect(a.address(), SOON).unwrap().send_within(1, b"hello", SOON).unwrap();
            until(&[&a, &b], || queue.len() == life);
            let peer = lock(&kept).last().unwrap().clone();
            peer.read(&exposed.token(), 0, vec![0; 100], SOON, |bytes| drop(bytes.unwrap())).unwrap();
            until(&[&a, &b], || lock(&peer.member.sender("test").unwrap().reads).is_empty());
            if life % 2 == 0 {
                // Without any progress.
                peer.close(SOON).unwrap();
            } else {
                drop((b, exposed));
                until(&[&a], || gone.load(Ordering::Acquire) + 1 > life / 2 && peer.lost().is_some());
            }
            let line = peer.member.sender("test").unwrap();
            assert!(line.wire().is_none(), "life {life} keeps its wire");
            let engine = &a.core.engine;
            assert!(lock(&engine.turn).links.is_empty() && lock(&engine.members).is_empty());
            assert_eq!(lock(&line.reads).mappings(), 0);
        }
        assert!(queue.len() == 12 && lock(&kept).iter().all(|peer| peer.lost().is_some()));
    }
}

/// Owns memory, and looks when it is dropped whether locks are free that its own sends and reads would take.
struct Owner {
    line: Arc<Line>,
    free: Arc<Mutex<Vec<bool>>>,
    bytes: Vec<u8>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let Line { reads, serving, offers, .. } = &*self.line;
        let free = reads.try_lock().is_ok() && serving.try_lock().is_ok() && offers.try_lock().is_ok();
        lock(&self.free).push(free);
    }
}

fn owned(line: &Arc<Line>, free: &Arc<Mutex<Vec<bool>>>, length: usize) -> Memory {
    let owner = Arc::new(Owner { line: line.clone(), free: free.clone(), bytes: vec![7; length] });
    let address = NonNull::from(owner.bytes.as_slice()).cast();
    // SAFETY: the vector is in the owner, which nothing changes, and does not move with it.
    unsafe { Memory::from_raw(address, length, owner) }
}

/// Pieces of revoked memory are on their way: progress lets go of the last one, and drops nothing of the user's.
#[test]
fn owners_of_memory_are_dropped_in_dispatch() {
    let pair = pair(false);
    let (line, free) = (pair.to_b.member.sender("test").unwrap(), Arc::<Mutex<Vec<bool>>>::default());
    let exposed = pair.a.expose(owned(line, &free, 64 << 20)).unwrap();
    pair.to_a.read(&exposed.token(), 0, vec![0; 64 << 20], SOON, |_| {}).unwrap();
    // Until a piece fills the connection.
    for _ in 0..200 {
        pair.a.progress().unwrap();
    }
    drop(exposed);
    assert_eq!(lock(&free).len(), 0, "pieces are on their way");
    let start = Instant::now();
    while !lock(&pair.to_a.member.sender("test").unwrap().reads).is_empty() {
        pair.a.progress().unwrap();
        pair.b.poll().unwrap();
        assert!(start.elapsed() < SOON, "not in time");
    }
    assert_eq!(lock(&free).len(), 0, "progress runs no code of the user's");
    pair.a.dispatch(usize::MAX);
    assert_eq!(*lock(&free), [true]);
}

/// Long data that was refused is freed by dispatch, before its completion runs.
#[test]
fn owners_of_long_data_are_dropped_in_dispatch() {
    let pair = pair(true);
    let (line, free) = (pair.to_b.member.sender("test").unwrap(), Arc::<Mutex<Vec<bool>>>::default());
    let (ended, freed) = (Arc::<Mutex<Vec<usize>>>::default(), free.clone());
    let seen = ended.clone();
    let done = move |outcome: Result<Delivery>| {
        assert_eq!(outcome.unwrap(), Delivery::Refused);
        let count = lock(&freed).len();
        lock(&seen).push(count);
    };
    assert_eq!(pair.to_b.send_long(9, b"", owned(line, &free, 10), SOON, done).unwrap(), Sent::Done);
    let start = Instant::now();
    while lock(&line.offers).len() > 0 {
        pair.a.progress().unwrap();
        pair.b.poll().unwrap();
        assert!(start.elapsed() < SOON, "not in time");
    }
    assert_eq!(lock(&free).len(), 0, "progress runs no code of the user's");
    assert!(pair.a.core.engine.hub.exposures.has_retired(), "nobody can read it any more");
    pair.a.dispatch(usize::MAX);
    assert_eq!((lock(&free).clone(), lock(&ended).clone()), (vec![true], vec![1]));
}

/// A completion that a read refuses is dropped without locks, and so is one whose peer has ended.
#[test]
fn completions_that_are_refused_are_dropped_without_locks() {
    let pair = pair(true);
    let (line, free) = (pair.to_b.member.sender("test").unwrap(), Arc::<Mutex<Vec<bool>>>::default());
    let exposed = pair.b.expose(vec![1; 10]).unwrap();
    let most = pair.a.core.engine.hub.limits.reads;
    for _ in 0..most {
        pair.to_b.read(&exposed.token(), 0, Vec::new(), SOON, |_| {}).unwrap();
    }
    let owner = Owner { line: line.clone(), free: free.clone(), bytes: Vec::new() };
    let refused = pair.to_b.read(&exposed.token(), 0, Vec::new(), SOON, move |_| drop(owner)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Exhausted);
    assert_eq!(*lock(&free), [true]);
    until(&[&pair.a, &pair.b], || lock(&line.reads).is_empty());
    Faults::set(&pair.faults.push);
    let owner = Owner { line: line.clone(), free: free.clone(), bytes: Vec::new() };
    let lost = pair.to_b.read(&exposed.token(), 0, Vec::new(), SOON, move |_| drop(owner)).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::PeerLost);
    assert_eq!(*lock(&free), [true, true]);
}

/// A peer that takes answers as fast as they are made gets a share of each turn, and a thread that serves it does not sleep.
#[test]
fn one_turn_serves_a_peer_a_bounded_share() {
    const LENGTH: usize = 64 << 20;
    let pair = pair(true);
    Faults::set(&pair.faults.swallows);
    let exposed = pair.a.expose(vec![1; LENGTH]).unwrap();
    pair.to_a.read(&exposed.token(), 0, vec![0; LENGTH], SOON, |_| {}).unwrap();
    let swallowed = || pair.faults.swallowed.load(Ordering::Acquire);
    let share = TURN as usize + (64 << 10);
    for turn in 1..=10 {
        assert!(pair.a.progress().unwrap() > 0, "there is more to do");
        assert!((1..=turn * share).contains(&swallowed()), "{} bytes in turn {turn}", swallowed());
    }
    let before = swallowed();
    assert!(pair.a.arm().unwrap(), "there is more to do");
    assert!(swallowed() <= before + share);
    let start = Instant::now();
    while swallowed() < LENGTH {
        pair.a.wait(SOON).unwrap();
        assert!(start.elapsed() < SOON, "not in time");
    }
}

/// A callback on the messenger's own thread closes that messenger.
#[test]
fn a_callback_may_close_its_own_messenger() {
    let pair = pair(true);
    let exposed = pair.b.expose(vec![1; 10]).unwrap();
    let (holder, runs) = (Arc::<Mutex<Option<Messenger>>>::default(), Arc::new(AtomicUsize::new(0)));
    let outcomes = Arc::<Mutex<Vec<Option<ErrorKind>>>>::default();
    let (inner, count, seen) = (holder.clone(), runs.clone(), outcomes.clone());
    let (peer, token) = (pair.to_b.clone(), exposed.token());
    let closes = move |_| {
        let seen = seen.clone();
        let done = move |read: Result<Vec<u8>>| lock(&seen).push(read.err().map(|error| error.kind()));
        count.fetch_add(1, Ordering::AcqRel);
        peer.read(&token, 0, vec![0; 10], SOON, done).unwrap();
        let messenger = lock(&inner).take().expect("the first message closes the messenger");
        messenger.close(SOON).unwrap();
    };
    pair.a.on(2, closes).unwrap();
    for _ in 0..3 {
        assert_eq!(pair.to_a.send(2, b"").unwrap(), Sent::Done);
    }
    let mut slot = lock(&holder);
    pair.a.start_thread().unwrap();
    *slot = Some(pair.a);
    drop(slot);
    let start = Instant::now();
    while lock(&outcomes).is_empty() {
        std::thread::sleep(Duration::from_millis(1));
        assert!(start.elapsed() < SOON, "the read has not ended");
    }
    until(&[&pair.b], || pair.to_a.lost().is_some());
    assert!(pair.to_a.lost().unwrap().message().contains("it left"));
    assert_eq!(*lock(&outcomes), [Some(ErrorKind::Stopped)]);
    assert_eq!(runs.load(Ordering::Acquire), 1, "no message is dispatched after close");
}

/// A queue that its program has dropped keeps no place in the inbox, and later messages are answered as of an unknown kind.
#[test]
fn a_queue_that_was_dropped_holds_up_nobody() {
    let a = Messenger::new(0, config(true).with_inbox(10, 100_000)).unwrap();
    let b = Messenger::new(1, config(true)).unwrap();
    let (dropped, kept) = (a.queue(1).unwrap(), a.queue(2).unwrap());
    let peer = b.connect(a.address(), SOON).unwrap();
    for _ in 0..10 {
        assert_eq!(peer.send(1, b"x").unwrap(), Sent::Done);
    }
    until(&[&a, &b], || dropped.len() == 10);
    assert_eq!(peer.send(2, b"y").unwrap(), Sent::Retry(Reason::Full));
    drop(dropped);
    until(&[&a, &b], || peer.send(2, b"y").unwrap() == Sent::Done);
    until(&[&a, &b], || kept.len() == 1);
    let mut error = None;
    until(&[&a, &b], || {
        error = peer.send(1, b"x").err();
        error.is_some()
    });
    assert_eq!(error.unwrap().kind(), ErrorKind::Remote);
}

/// A full inbox holds up messages only: answers to this side's own reads come, and so do revocations and answers to long messages.
#[test]
fn answers_pass_messages_that_wait() {
    for shared_memory in [false, true] {
        let a = Messenger::new(0, config(shared_memory).with_inbox(10, 100_000)).unwrap();
        let b = Messenger::new(1, config(shared_memory)).unwrap();
        let (queue, offers) = (a.queue(1).unwrap(), b.queue(2).unwrap());
        let (from_b, to_b) = (b.connect(a.address(), SOON).unwrap(), a.connect(b.address(), SOON).unwrap());
        let exposed = b.expose(vec![5; 3 << 20]).unwrap();
        let mut sent = 0_u8;
        while from_b.send(1, &[sent]).unwrap() == Sent::Done {
            sent += 1;
        }
        assert_eq!(sent, 10, "as many as the inbox holds");
        until(&[&a, &b], || queue.len() == 10);
        let outcomes = Arc::<Mutex<Vec<usize>>>::default();
        for round in 1..=3 {
            let seen = outcomes.clone();
            let done = move |read: Result<Vec<u8>>| lock(&seen).push(read.unwrap().len());
            to_b.read(&exposed.token(), 0, vec![0; 3 << 20], SOON, done).unwrap();
            let seen = outcomes.clone();
            let done = move |outcome: Result<Delivery>| {
                assert_eq!(outcome.unwrap(), Delivery::Refused);
                lock(&seen).push(0);
            };
            assert_eq!(to_b.send_long(2, b"", vec![1; 10], SOON, done).unwrap(), Sent::Done);
            until(&[&a, &b], || {
                drop(offers.try_recv());
                lock(&outcomes).len() == 2 * round
            });
            assert_eq!(queue.len(), 10, "no message came in between");
            assert_eq!(from_b.send(1, b"x").unwrap(), Sent::Retry(Reason::Full));
        }
        assert_eq!(lock(&outcomes).iter().sum::<usize>(), 9 << 20);
        // Half of the inbox is one grant of credit.
        (0..5).for_each(|n| assert_eq!(queue.try_recv().unwrap().bytes(), [n]));
        until(&[&a, &b], || from_b.send(1, b"y").unwrap() == Sent::Done);
        until(&[&a, &b], || queue.len() == 6);
    }
}

/// Messages of a kind that nothing is registered for use up no credit, and nor do those of which a send fails for lack of room.
#[test]
fn messages_that_are_not_kept_cost_nothing() {
    let a = Messenger::new(0, config(true).with_inbox(10, 100_000)).unwrap();
    let b = Messenger::new(1, config(true)).unwrap();
    let queue = a.queue(1).unwrap();
    let peer = b.connect(a.address(), SOON).unwrap();
    let mut sent = 0;
    until(&[&a, &b], || {
        // An error reports the unknown kind, once for each report.
        sent += usize::from(peer.send(7, b"nobody").is_ok_and(|sent| sent == Sent::Done));
        sent == 100
    });
    let mut known = 0_u8;
    until(&[&a, &b], || {
        known += u8::from(peer.send(1, &[known]).unwrap() == Sent::Done);
        known == 10
    });
    until(&[&a, &b], || queue.len() == 10);
}

/// A peer that closes its link and connects again begins with all of its credit, although the other side has dispatched nothing of
/// before, and the other side counts its own anew, too.
#[test]
fn a_new_link_begins_with_all_credit() {
    for shared_memory in [false, true] {
        let with_inbox = |rank| Messenger::new(rank, config(shared_memory).with_inbox(10, 100_000)).unwrap();
        let (a, b) = (with_inbox(0), with_inbox(1));
        let queues = [a.queue(1).unwrap(), b.queue(1).unwrap()];
        for life in 1..=5 {
            let peer = a.connect(b.address(), SOON).unwrap();
            for n in 0..10 {
                assert_eq!(peer.send(1, &[n]).unwrap(), Sent::Done, "life {life}");
            }
            assert_eq!(peer.send(1, b"x").unwrap(), Sent::Retry(Reason::Full));
            if life % 2 == 0 {
                until(&[&a, &b], || queues[1].len() == 10 * life);
                let back = b.connect(a.address(), SOON).unwrap();
                (0..10).for_each(|_| assert_eq!(back.send(1, b"back").unwrap(), Sent::Done));
                until(&[&a, &b], || queues[0].len() == 5 * life);
            }
            // The other side may learn of the end after the next link is there.
            peer.close(SOON).unwrap();
        }
        until(&[&a, &b], || queues[1].len() == 50);
        let generation = a.address().generation();
        until(&[&a, &b], || b.core.engine.hub.life(0, generation) == 5);
    }
}

/// A peer closes its link and connects again before the other side looks: all of the earlier link comes first, and its end.
#[test]
fn an_earlier_link_ends_before_a_later_one_begins() {
    for shared_memory in [false, true] {
        let a = Messenger::new(0, config(shared_memory)).unwrap();
        let b = Messenger::new(1, config(shared_memory)).unwrap();
        let log = Arc::<Mutex<Vec<String>>>::default();
        let (events, messages) = (log.clone(), log.clone());
        let on_peer = move |event| {
            let text = match event {
                PeerEvent::Connected(_) => "connected".to_owned(),
                PeerEvent::Gone(_, why) => why.message().to_owned(),
            };
            lock(&events).push(text);
        };
        b.on_peer(on_peer).unwrap();
        b.on(1, move |message| lock(&messages).push(format!("message {}", message.bytes()[0]))).unwrap();
        let start = Instant::now();
        for life in 0..2 {
            let peer = a.connect(b.address(), SOON).unwrap();
            while lock(&b.core.engine.arrivals).len() <= usize::from(life) {
                // The service thread answers before it has made the link.
                assert!(start.elapsed() < SOON, "not in time");
                std::thread::yield_now();
            }
            assert_eq!(peer.send(1, &[life]).unwrap(), Sent::Done);
            peer.close(SOON).unwrap();
        }
        until(&[&b], || lock(&log).len() == 6);
        let log = lock(&log).clone();
        let left = "rank 0 was lost: it left";
        assert_eq!(log, ["connected", "message 0", left, "connected", "message 1", left]);
    }
}

/// A link that cannot be watched, at its beginning or when it waits for room, ends its peer with the reason.
#[test]
fn a_link_that_cannot_be_watched_ends_the_peer() {
    let reason = |peer: &Peer| peer.lost().unwrap().message().to_owned();
    let pair = pair(false);
    let exposed = pair.a.expose(vec![1; 64 << 20]).unwrap();
    pair.to_a.read(&exposed.token(), 0, vec![0; 64 << 20], SOON, |_| {}).unwrap();
    while pair.a.progress().unwrap() > 0 || pair.faults.lent.load(Ordering::Acquire) == 0 {}
    Faults::set(&pair.faults.watch);
    assert!(pair.a.arm().unwrap(), "there is news");
    assert!(reason(&pair.to_b).contains("cannot watch"), "{}", reason(&pair.to_b));
    let again = pair.a.connect(pair.b.address(), SOON).unwrap();
    pair.a.progress().unwrap();
    assert!(reason(&again).contains("cannot watch"), "{}", reason(&again));
}

/// A reader that reads nothing gets as much as the system takes, costs no turn, and is served again when there is room.
#[test]
fn a_reader_that_takes_nothing_holds_little_and_lets_others_sleep() {
    const LENGTH: usize = 64 << 20;
    let pair = pair(false);
    let exposed = pair.a.expose(vec![1; LENGTH]).unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let done = ended.clone();
    let read = move |bytes: Result<Vec<u8>>| done.store(bytes.is_ok(), Ordering::Release);
    pair.to_a.read(&exposed.token(), 0, vec![0; LENGTH], SOON, read).unwrap();
    let lent = || pair.faults.lent.load(Ordering::Acquire);
    let (start, mut quiet) = (Instant::now(), 0);
    // The system grows its buffers for a while.
    while quiet < 20 {
        let moved = pair.a.progress().unwrap();
        quiet = if moved == 0 && lent() > 0 { quiet + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(1));
        assert!(start.elapsed() < SOON, "a peer without room keeps a thread busy");
    }
    assert!(lent() < LENGTH / 2, "{} bytes wait", lent());
    let start = Instant::now();
    while pair.a.arm().unwrap() {
        pair.a.progress().unwrap();
        assert!(start.elapsed() < SOON, "never quiet");
    }
    let readable =
        |wait| crate::net::ready::wait_readable(pair.a.as_fd(), crate::Deadline::after(wait)).unwrap();
    while !readable(Duration::ZERO) {
        pair.b.poll().unwrap();
        assert!(start.elapsed() < SOON, "nothing tells of room");
    }
    until(&[&pair.a, &pair.b], || ended.load(Ordering::Acquire));
}

/// A thread that goes to sleep sends what was held back.
#[test]
fn nothing_stays_behind_when_a_thread_goes_to_sleep() {
    let pair = pair(false);
    let queue = pair.b.queue(1).unwrap();
    pair.a.progress().unwrap();
    for n in 0..3 {
        assert_eq!(pair.to_b.send(1, &[n]).unwrap(), Sent::Done);
    }
    pair.a.arm().unwrap();
    until(&[&pair.b], || queue.len() == 3);
}

/// A long message for which there is no room keeps its memory no longer than the call.
#[test]
fn an_offer_that_is_not_sent_exposes_nothing() {
    let pair = pair(true);
    let (line, free) = (pair.to_b.member.sender("test").unwrap(), Arc::<Mutex<Vec<bool>>>::default());
    while pair.to_b.send(1, b"x").unwrap() == Sent::Done {}
    let sent = pair.to_b.send_long(1, b"", owned(line, &free, 10), SOON, |_| panic!("it was not sent"));
    assert_eq!(sent.unwrap(), Sent::Retry(Reason::Full));
    assert_eq!(*lock(&free), [true]);
    let head = vec![0; pair.to_b.eager_limit() + 1];
    let error = pair.to_b.send_long(1, &head, vec![1], SOON, |_| panic!("it is too long")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUsage);
}

/// A message above the receiver's limit ends the link, whatever the sender takes the limit for.
#[test]
fn a_message_above_the_limit_ends_the_link() {
    for shared_memory in [false, true] {
        let pair = pair(shared_memory);
        let limit = pair.to_a.eager_limit();
        let line = pair.to_a.member.sender("test").unwrap();
        assert!(line.push(Head::new(Operation::Message, 1, 0, limit), &vec![0; limit]).unwrap());
        line.kick().unwrap();
        until(&[&pair.a], || lock(&pair.log).len() == 1);
        assert!(pair.to_b.lost().is_none());
        assert!(line.push(Head::new(Operation::Message, 1, 0, limit + 1), &vec![0; limit + 1]).unwrap());
        line.kick().unwrap();
        until(&[&pair.a], || pair.to_b.lost().is_some());
    }
}

/// A messenger that was closed serves no links, although something still holds its parts.
#[test]
fn a_closed_messenger_keeps_no_links() {
    let pair = pair(true);
    let engine = pair.a.core.engine.clone();
    pair.a.close(SOON).unwrap();
    assert!(lock(&engine.turn).links.is_empty() && lock(&engine.members).is_empty());
    assert!(pair.to_b.member.sender("test").unwrap().wire().is_none());
}

/// A peer that sends more than it has credit for breaks the protocol.
#[test]
fn more_messages_than_there_is_credit_for_end_the_link() {
    let a = Messenger::new(0, config(true).with_inbox(10, 100_000)).unwrap();
    let b = Messenger::new(1, config(true)).unwrap();
    let (queue, peer) = (a.queue(1).unwrap(), b.connect(a.address(), SOON).unwrap());
    let line = peer.member.sender("test").unwrap();
    for _ in 0..11 {
        assert!(line.push(Head::new(Operation::Message, 1, 0, 1), b"x").unwrap());
    }
    until(&[&a, &b], || peer.lost().is_some());
    assert_eq!(queue.len(), 10, "those that it had credit for");
    let peer = b.connect(a.address(), SOON).unwrap();
    let line = peer.member.sender("test").unwrap();
    let head = Head::new(Operation::Credit, 0, 0, 8);
    assert!(line.push(head, &credit::Amount { messages: 1, bytes: 0 }.encode()).unwrap());
    until(&[&a, &b], || peer.lost().is_some());
}
