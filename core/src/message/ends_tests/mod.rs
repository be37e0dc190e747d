//! Peers that end, owners of memory, and the flow of messages, over wires that fail at a chosen call or swallow answers.

mod crossing;
mod ends;
mod flow;
mod mapped;
mod owners;
mod staged;

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::config::Wrap;
use super::head::{Head, Operation};
use super::lent::Lent;
use super::line::Line;
use super::serving::TURN;
use super::wire::{Sink, Wire};
use super::*;
use crate::env::Selection;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, lock};

const SOON: Duration = Duration::from_secs(30);
/// Nothing that a test waits for takes so long.
const HOUR: Duration = Duration::from_secs(3600);

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
    /// Descriptors that are not handed over, as bits: the lowest one is the next.
    refused: AtomicUsize,
    /// The wire keeps what is pushed until this ends.
    holds: AtomicBool,
    /// The link of the wire, and whether it had reads and long messages under way when the wire was closed.
    line: Mutex<Weak<Line>>,
    under_way: Mutex<Vec<[bool; 2]>>,
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
    held: Mutex<VecDeque<(Head, Vec<u8>)>>,
}

impl Faulty {
    fn new(inner: Box<dyn Wire>, faults: Arc<Faults>) -> Self {
        let file = File::open("/proc/self/exe").unwrap();
        Self { inner, faults, file, held: Mutex::default() }
    }

    /// Pushes what was held, if nothing is to be held any more. True if nothing is left.
    fn let_go(&self) -> Result<bool> {
        let mut held = lock(&self.held);
        while let Some((head, body)) = held.front() {
            if self.faults.holds.load(Ordering::Acquire) || !self.inner.push(*head, body)? {
                return Ok(false);
            }
            held.pop_front();
        }
        Ok(true)
    }
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
        if self.faults.holds.load(Ordering::Acquire) || !self.let_go()? {
            lock(&self.held).push_back((head, body.to_vec()));
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
        Ok(self.let_go()? & self.inner.kick()?)
    }

    fn take_room(&self) -> bool {
        self.inner.take_room()
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
        let refused = self.faults.refused.load(Ordering::Acquire);
        self.faults.refused.store(refused >> 1, Ordering::Release);
        refused & 1 == 0 && self.inner.send_descriptor(fd)
    }

    fn take_descriptor(&self) -> Option<OwnedFd> {
        self.inner.take_descriptor()
    }

    fn has_arrived(&self) -> bool {
        lock(&self.held).is_empty() && self.inner.has_arrived()
    }

    fn has_ended(&self) -> bool {
        self.inner.has_ended()
    }

    fn close(&self, both: bool) {
        if let Some(line) = lock(&self.faults.line).upgrade().filter(|_| both) {
            let under_way = [!lock(&line.reads).is_empty(), lock(&line.offers).len() > 0];
            lock(&self.faults.under_way).push(under_way);
        }
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
    faulty.wrap = Wrap(Some(Arc::new(move |inner| Box::new(Faulty::new(inner, inside.clone())))));
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
