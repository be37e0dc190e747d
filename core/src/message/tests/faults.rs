//! Wires that fail on purpose: whatever happens on a link, nothing is delivered twice, and every operation ends.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::super::config::Wrap;
use super::super::head::{Head, Operation};
use super::super::lent::Lent;
use super::super::one_sided::OneSided;
use super::super::wire::{Landing, Sink, Wire};
use super::*;
use crate::error::Error;

/// A fault of one frame that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// For a while nothing arrives, and nothing can be pushed.
    Delay,
    /// The connection ends.
    Cut,
    /// The frame is missing.
    Lose,
    /// It comes twice.
    Repeat,
    /// The end of its body is missing.
    Truncate,
    /// Its number is another.
    Number,
    /// It is about another read or long message.
    Id,
    /// It is for something else.
    Operation(Operation),
}

#[derive(Debug)]
struct State {
    fault: Option<(usize, Fault)>,
    frames: usize,
    /// Calls that still find nothing, or no room.
    stalled: usize,
}

impl State {
    /// Counts a frame; gives the fault that hits it.
    fn next(&mut self) -> Option<Fault> {
        self.frames += 1;
        self.fault.filter(|(at, _)| *at == self.frames).map(|(_, fault)| fault)
    }
}

/// A wire of which one frame that arrives is hit by a fault.
#[derive(Debug)]
struct Faulty {
    inner: Box<dyn Wire>,
    state: Mutex<State>,
}

impl Faulty {
    fn stalled(&self) -> bool {
        let mut state = lock(&self.state);
        state.stalled = state.stalled.saturating_sub(1);
        state.stalled > 0
    }
}

impl Wire for Faulty {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn max_body(&self) -> usize {
        self.inner.max_body()
    }

    fn push(&self, head: Head, body: &[u8]) -> Result<bool> {
        if self.stalled() { Ok(false) } else { self.inner.push(head, body) }
    }

    fn push_lent(&self, head: Head, body: Lent) -> Result<bool> {
        if self.stalled() { Ok(false) } else { self.inner.push_lent(head, body) }
    }

    fn kick(&self) -> Result<bool> {
        self.inner.kick()
    }

    fn take_room(&self) -> bool {
        self.inner.take_room()
    }

    fn pull(&self, sink: &mut dyn Sink) -> Result<usize> {
        if self.stalled() {
            return Ok(0);
        }
        self.inner.pull(&mut Filter { sink, state: &self.state })
    }

    fn arm(&self) -> Result<bool> {
        Ok(self.stalled() || self.inner.arm()?)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.descriptors()
    }

    fn waits_for_room(&self) -> bool {
        self.inner.waits_for_room()
    }

    fn pull_is_syscall(&self) -> bool {
        self.inner.pull_is_syscall()
    }

    fn check(&self) -> Result<()> {
        self.inner.check()
    }

    fn read_window(&self) -> usize {
        self.inner.read_window()
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

    fn one_sided(&self) -> Option<&dyn OneSided> {
        self.inner.one_sided()
    }

    fn has_arrived(&self) -> bool {
        self.inner.has_arrived()
    }

    fn has_ended(&self) -> bool {
        self.inner.has_ended()
    }

    fn close(&self, both: bool) {
        self.inner.close(both);
    }
}

struct Filter<'a> {
    sink: &'a mut dyn Sink,
    state: &'a Mutex<State>,
}

impl Sink for Filter<'_> {
    fn frame(&mut self, head: Head, body: &[u8]) -> Result<()> {
        let fault = lock(self.state).next();
        match fault {
            None => self.sink.frame(head, body),
            Some(Fault::Delay) => {
                lock(self.state).stalled = 500;
                self.sink.frame(head, body)
            }
            Some(Fault::Cut) => Err(Error::new(ErrorKind::PeerLost, "recv", "cut on purpose")),
            Some(Fault::Lose) => Ok(()),
            Some(Fault::Repeat) => {
                self.sink.frame(head, body)?;
                self.sink.frame(head, body)
            }
            Some(Fault::Truncate) => {
                let body = &body[..body.len() / 2];
                self.sink.frame(Head { length: body.len() as u32, ..head }, body)
            }
            Some(Fault::Number) => self.sink.frame(Head { sequence: head.sequence ^ 0x100, ..head }, body),
            Some(Fault::Id) => self.sink.frame(Head { id: head.id.wrapping_add(1), ..head }, body),
            Some(Fault::Operation(operation)) => self.sink.frame(Head { operation, ..head }, body),
        }
    }

    fn begin(&mut self, head: Head) -> Result<()> {
        let fault = lock(self.state).next();
        match fault {
            None | Some(Fault::Delay) => self.sink.begin(head),
            Some(Fault::Number) => self.sink.begin(Head { sequence: head.sequence ^ 1, ..head }),
            Some(Fault::Repeat) => {
                self.sink.begin(head)?;
                self.sink.begin(head)
            }
            Some(_) => Err(Error::new(ErrorKind::PeerLost, "recv", "cut on purpose")),
        }
    }

    fn landing(&mut self, head: Head, done: usize) -> Result<Landing> {
        self.sink.landing(head, done)
    }

    fn landed(&mut self, head: Head, bytes: usize) -> Result<()> {
        self.sink.landed(head, bytes)
    }
}

/// One of two messengers that do everything at once.
struct Side {
    messenger: Messenger,
    messages: Seen<u32>,
    reads: Seen<Result<Vec<u8>>>,
    longs: Seen<Result<Delivery>>,
    /// Ordinary memory, and shared memory.
    exposed: [Exposed; 2],
}

const MESSAGES: u32 = 150;
const READS: usize = 20;
const LONGS: usize = 5;

impl Side {
    fn new(rank: u32, fault: Option<(usize, Fault)>) -> Self {
        let mut config = config().with_inbox(16, 1 << 20);
        config.wrap = Wrap(Some(Arc::new(move |inner| {
            let state = Mutex::new(State { fault, frames: 0, stalled: 0 });
            Box::new(Faulty { inner, state })
        })));
        let messenger = Messenger::new(rank, config).unwrap();
        let messages = Seen::new();
        let add = messages.adder();
        let on = move |message: Message| {
            // A message that was cut short on purpose has no number.
            if let Some(number) = message.bytes().first_chunk() {
                add(u32::from_le_bytes(*number));
            }
        };
        messenger.on(1, on).unwrap();
        let on_long = |mut message: Message| {
            let Some(long) = message.long() else { return };
            let length = long.len().min(1 << 20);
            // One in three is refused.
            if length % 3 != 0 {
                drop(long.read(vec![0; length], SOON, |_| {}));
            }
        };
        messenger.on(2, on_long).unwrap();
        let memory = SharedMemory::allocate(600_000).unwrap();
        memory.fill(rank as u8 + 1);
        let exposed =
            [messenger.expose(vec![rank as u8 + 1; 600_000]).unwrap(), messenger.expose(memory).unwrap()];
        Self { messenger, messages, reads: Seen::new(), longs: Seen::new(), exposed }
    }

    /// Does everything with `other`; returns the peer and how many reads and long messages were started.
    fn start(&self, other: &Self, peer: &Peer, patience: Duration) -> (usize, usize) {
        let (mut reads, mut longs) = (0, 0);
        let tokens = other.exposed.each_ref().map(Exposed::token);
        for n in 0..READS {
            let token = tokens[n / 3 % 2];
            let length = [0, 1, 100, 5000, 590_000][n % 5];
            reads += usize::from(
                peer.read(&token, n as u64, vec![0; length], patience, self.reads.adder()).is_ok(),
            );
        }
        for n in 0..LONGS {
            let sent = peer.send_long(2, b"", vec![7; 1000 * n + 1], patience, self.longs.adder());
            longs += usize::from(sent.is_ok_and(|sent| sent.is_posted()));
        }
        (reads, longs)
    }
}

/// Runs everything with `fault` on what rank 1 receives. Returns whether the link was lost.
///
/// A frame that is taken for another one may be an answer that never comes: then the deadline ends the operation, and a
/// message may be missing.
fn run(fault: Option<(usize, Fault)>) -> bool {
    let gaps = matches!(fault, Some((_, Fault::Operation(_) | Fault::Truncate | Fault::Id)));
    let patience = if gaps { Duration::from_millis(500) } else { SOON };
    let sides = [Side::new(0, None), Side::new(1, fault)];
    let [a, b] = &sides;
    let connected = a.messenger.connect(b.messenger.address(), SOON).unwrap();
    // Rank 1 may have lost rank 0 already when it looks for it; then it connects anew, which is no failure either.
    let back = b.messenger.connect(a.messenger.address(), SOON).unwrap();
    let started = [a.start(b, &connected, patience), b.start(a, &back, patience)];
    let mut sent = [0, 0];
    let peers = [&connected, &back];
    until(&[&a.messenger, &b.messenger], || {
        let mut over = true;
        for side in 0..2 {
            let peer = peers[side];
            while sent[side] < MESSAGES {
                match peer.send(1, &sent[side].to_le_bytes()) {
                    Ok(Sent::Done) => sent[side] += 1,
                    _ => break,
                }
            }
            let (reads, longs) = started[side];
            let ended = sides[side].reads.len() == reads && sides[side].longs.len() == longs;
            let got = sides[1 - side].messages.len() == MESSAGES as usize;
            over &= ended && (got || gaps || (peers[0].lost().is_some() && peers[1].lost().is_some()));
        }
        over
    });
    let lost = connected.lost().is_some() || back.lost().is_some();
    for (side, (reads, longs)) in sides.iter().zip(started) {
        let messages = side.messages.take();
        // Frames that were taken for something else are missing; all others come in order, once.
        let in_order =
            messages.windows(2).all(|pair| if gaps { pair[0] < pair[1] } else { pair[0] + 1 == pair[1] });
        assert!(
            in_order && messages.first().is_none_or(|first| gaps || *first == 0),
            "{fault:?}: {messages:?}"
        );
        // Once: nothing comes later, when the messengers are closed.
        assert_eq!((side.reads.len(), side.longs.len()), (reads, longs), "{fault:?}");
        let reads = side.reads.take();
        assert!(lost || gaps || reads.iter().all(Result::is_ok), "{fault:?}");
        for bytes in reads.into_iter().flatten() {
            assert!(bytes.iter().all(|byte| *byte == bytes[0]) && bytes.first() != Some(&0), "{fault:?}");
        }
    }
    lost
}

#[test]
fn without_a_fault_nothing_is_lost() {
    assert!(!run(None));
}

#[test]
fn a_delay_changes_nothing() {
    for at in [1, 2, 7, 30, 100] {
        assert!(!run(Some((at, Fault::Delay))), "frame {at}");
    }
}

#[test]
fn a_missing_or_repeated_frame_ends_the_link() {
    for at in [1, 2, 3, 5, 9, 20, 40, 80, 120] {
        for fault in [Fault::Cut, Fault::Lose, Fault::Repeat, Fault::Number] {
            assert!(run(Some((at, fault))), "{fault:?} of frame {at}");
        }
    }
}

#[test]
fn a_damaged_frame_delivers_nothing_twice_and_leaves_nothing_open() {
    use Operation::*;

    for at in [1, 2, 3, 6, 12, 25, 60, 110] {
        for fault in [Fault::Truncate, Fault::Id] {
            run(Some((at, fault)));
        }
        for operation in
            [Message, Long, LongDone, Read, Data, Refused, Cancel, Unknown, Goodbye, Map, Mapped, Fetch, Key]
        {
            run(Some((at, Fault::Operation(operation))));
        }
    }
}
