//! Connections whose both ends belong to the test, with the stand-in between them, which holds requests back where a test asks it to.

mod closing;
mod order;
mod transfers;

use std::sync::mpsc;
use std::thread::{self, ThreadId};

use super::super::super::backend::{Backend as _, Operation as Asked, Span};
use super::super::super::endpoint::{EndpointConfig, EndpointWire, Transport};
use super::super::super::provider::{Draft as _, Provider as _};
use super::super::{Draft, QUEUE, QueuePairs, Verbs};
use super::*;
use crate::abort::AbortCause;
use crate::comm::{Communicator, HostBuffer, RegisteredMemory};
use crate::deadline::Backoff;
use crate::gpu::KeepAlive;
use crate::memory::register_host;
use crate::net::{Interest, Next, Pollable};
use crate::rdma::standin::{self, Counts};
use crate::setup::key::{Key, Kind};
use crate::transport::tests::{resources, soon, wait_for, with_memories};

const NIC: u8 = 0;
/// The rank that the ends take each other for.
const PEER: u32 = 3;
const LEN: usize = 2 << 20;
/// Of which two begin to be spread over queue pairs.
const STRIPE: usize = 256 << 10;
/// More than a request carries itself.
const LARGE: usize = 128;

/// Tells which thread dropped it.
struct Tells(mpsc::Sender<ThreadId>);

impl Drop for Tells {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().id());
    }
}

/// Both ends, and what their operations name.
struct Rig<'a> {
    comm: &'a Communicator,
    resources: &'a Arc<Resources>,
    near: Verbs,
    far: Verbs,
    /// The near end's queue pairs.
    numbers: Vec<u32>,
    ours: Arc<HostBuffer>,
    theirs: Arc<HostBuffer>,
    source: RegisteredMemory,
    target: RegisteredMemory,
}

fn endpoint() -> EndpointConfig {
    EndpointConfig::new(Transport::Ib(NIC))
}

fn registered(resources: &Resources, buffer: &Arc<HostBuffer>) -> RegisteredMemory {
    let memory = register_host(buffer, 0, buffer.len(), Transport::Ethernet.into()).unwrap();
    QueuePairs.register(resources, Transport::Ib(NIC), memory, Access::FLAGS).unwrap()
}

fn with_ends(endpoint: &EndpointConfig, run: impl Fn(Rig<'_>) + Sync) {
    with_ends_of(endpoint, 256, run);
}

/// On a NIC whose requests carry so many bytes themselves.
fn with_ends_of(endpoint: &EndpointConfig, inline: u32, run: impl Fn(Rig<'_>) + Sync) {
    with_ends_on(endpoint, || standin::limit_inline(inline), run);
}

/// On the NIC that `nic` makes of the stand-in.
fn with_ends_on(endpoint: &EndpointConfig, nic: impl Fn() + Sync, run: impl Fn(Rig<'_>) + Sync) {
    with_memories(|comm, [memory, _]| {
        nic();
        let resources = &resources(comm, Some(rdma::Verbs::from_table(standin::table(), "stand-in")));
        let [ours, theirs] = [(); 2].map(|()| Arc::new(HostBuffer::new(comm.context(), LEN).unwrap()));
        let (source, sink) = (registered(resources, &ours), registered(resources, &theirs));
        let target = memory.with_key(NIC, sink.on_nic(NIC).unwrap().0.remote());
        let [near, far] = [0, 1]
            .map(|tag| Draft::new(resources, Key::user(Kind::Connection, PEER, tag), endpoint, NIC).unwrap());
        let said =
            [&near, &far].map(|end| EndpointWire { transport: endpoint.transport, detail: end.describe() });
        let numbers = near.queue_pairs.iter().map(|pair| pair.number()).collect();
        let near = near.connect(resources, &said[1]).unwrap();
        let far = far.connect(resources, &said[0]).unwrap();
        run(Rig { comm, resources, near, far, numbers, ours, theirs, source, target });
    });
}

fn span(memory: &RegisteredMemory, offset: usize, len: usize) -> Span<'_> {
    Span { memory, offset, len }
}

impl Rig<'_> {
    fn hold(&self) {
        self.numbers.iter().for_each(|number| standin::hold(*number));
    }

    fn release(&self) {
        self.numbers.iter().for_each(|number| standin::release(*number));
    }

    fn counts(&self) -> Vec<Counts> {
        self.numbers.iter().map(|number| standin::counts(*number)).collect()
    }

    fn requests(&self) -> Vec<u64> {
        self.counts().iter().map(|counts| counts.requests).collect()
    }

    /// Writes `len` bytes from `from` to `to`; whether that was taken.
    fn write(&self, to: usize, from: usize, len: usize) -> bool {
        let (dst, src) = (span(&self.target, to, len), span(&self.source, from, len));
        self.near.post(&Asked::Write { dst, src }).unwrap()
    }

    fn read(&self, to: usize, from: usize, len: usize) -> bool {
        let (dst, src) = (span(&self.source, to, len), span(&self.target, from, len));
        self.near.post(&Asked::Read { dst, src }).unwrap()
    }

    fn signal(&self, value: u64) -> bool {
        let dst = span(&self.target, 0, 8);
        self.near.post(&Asked::Update { dst, old: value - 1, value }).unwrap()
    }

    /// A write, posted, whose end no request tells yet.
    fn begin(&self) {
        assert!(self.write(0, 0, LARGE));
        self.near.kick().unwrap();
    }

    #[track_caller]
    fn flush(&self) {
        let mark = self.near.mark().unwrap();
        wait_for("the flush does not end", || self.near.is_done(mark).unwrap());
    }

    /// Memory of this rank that says when nothing uses it any more, and which thread let go of it.
    fn telling(&self) -> (RegisteredMemory, mpsc::Receiver<ThreadId>) {
        let (tell, told) = mpsc::channel();
        let memory = register_host(&self.ours, 0, LEN, Transport::Ethernet.into()).unwrap();
        let place = memory.place().clone().keeping(&(Arc::new(Tells(tell)) as KeepAlive));
        (memory.with_region(NIC, self.near.set.nic.register(&place, Access::FLAGS).unwrap()), told)
    }

    /// How many hold the peer's memory.
    fn holders(&self) -> usize {
        Arc::strong_count(self.target.remote().unwrap().0)
    }
}

fn bytes(buffer: &HostBuffer, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    buffer.memory().read(offset, &mut bytes).unwrap();
    bytes
}

/// The caller neither polls nor posts: only the service thread moves on what it has left.
const LISTENS: Next = Next::Wait(Interest { read: true, write: false });
const RESTS: Next = Next::Wait(Interest { read: false, write: false });

#[test]
fn operations_wait_for_room_up_to_a_number() {
    with_ends(&endpoint().with_max_outstanding(2), |rig| {
        rig.hold();
        for at in 0..QUEUE as usize + 2 {
            assert!(rig.near.has_room().unwrap());
            assert!(rig.write(at, at, LARGE), "{at}");
        }
        assert_eq!(rig.requests(), [u64::from(QUEUE)]);
        assert_eq!(rig.near.set.progress(), LISTENS, "the service thread goes on with what waits");
        for _ in 0..2 {
            assert!(!rig.write(0, 0, LARGE) && !rig.near.has_room().unwrap());
        }
        rig.release();
        wait_for("there is no room", || rig.near.has_room().unwrap());
        assert!(rig.write(0, 0, LARGE));
        rig.flush();
    });
}

/// The caller looks by itself.
#[test]
fn who_asks_for_room_makes_it() {
    with_ends(&endpoint().with_max_outstanding(1), |rig| {
        rig.hold();
        while rig.write(0, 0, LARGE) {}
        // The service thread knows nothing yet.
        rig.release();
        wait_for("there is no room", || rig.near.has_room().unwrap());
    });
}

#[test]
fn a_position_is_reached_once_what_was_before_it_is_done() {
    with_ends(&endpoint(), |rig| {
        rig.ours.memory().fill(3);
        rig.hold();
        rig.begin();
        let mark = rig.near.mark().unwrap();
        assert!(!rig.near.is_done(mark).unwrap());
        rig.release();
        wait_for("it is not reached", || rig.near.is_done(mark).unwrap());
        assert_eq!(bytes(&rig.theirs, 0, LARGE), [3; LARGE]);
        rig.hold();
        rig.begin();
        let later = rig.near.mark().unwrap();
        assert!(!rig.near.is_done(later).unwrap());
        let _ = rig.near.set.fail(&Error::new(ErrorKind::Remote, "x", "gone"));
        assert!(rig.near.is_done(mark).unwrap(), "this was reached before");
        assert!(rig.near.is_done(later).is_err());
    });
}

/// The caller does not poll: the service thread tells the streams.
#[test]
fn streams_wait_for_what_was_asked_for_before() {
    with_ends(&endpoint(), |rig| {
        let [first, second] = [(); 2].map(|()| Event::new(rig.comm.context()).unwrap());
        rig.hold();
        rig.begin();
        rig.near.record_event(&first).unwrap();
        let early = first.is_done().unwrap();
        rig.release();
        first.synchronize(soon()).unwrap();
        assert!(!early);
        // Nor do they wait for ever.
        rig.hold();
        rig.begin();
        rig.near.record_event(&second).unwrap();
        let early = second.is_done().unwrap();
        rig.comm.exchange().group.abort().abort(AbortCause::requested(0, "enough"));
        second.synchronize(soon()).unwrap();
        assert!(!early);
    });
}

#[test]
fn operations_wait_for_streams() {
    with_ends(&endpoint(), |rig| {
        let word = Arc::new(PinnedBuffer::new(rig.comm.context(), 8).unwrap());
        let (stream, event) =
            (crate::gpu::Stream::new(rig.comm.context()).unwrap(), Event::new(rig.comm.context()).unwrap());
        stream.wait_value64(&word.slice(..).unwrap(), 1).unwrap();
        event.record(&stream).unwrap();
        rig.near.wait_event(&event).unwrap();
        rig.begin();
        let early = (rig.near.set.progress(), rig.requests());
        word.memory().word64(0).unwrap().store(1, Ordering::Release);
        wait_for("the service thread does not go on", || rig.requests()[0] > 0);
        rig.flush();
        stream.synchronize(soon()).unwrap();
        // Asserted last: nobody waits for a device that stays stuck.
        assert_eq!(early, (Next::Again, vec![0]));
    });
}

#[test]
fn the_nics_requests_and_completions_are_counted() {
    with_ends(&endpoint().with_queue_pairs(2), |rig| {
        assert!(rig.write(0, 0, 2 * STRIPE) && rig.write(0, 0, LARGE));
        rig.flush();
        let known = rig.counts();
        let mut counters =
            ConnectionCounters { requests: 3, doorbells: 5, completions: 7, ..Default::default() };
        rig.near.count(&mut counters);
        let sum = |of: fn(&Counts) -> u64| known.iter().map(of).sum::<u64>();
        assert_eq!(counters.requests, 3 + sum(|counts| counts.requests));
        assert_eq!(counters.doorbells, 5 + sum(|counts| counts.doorbells));
        assert_eq!(counters.completions, 7 + sum(|counts| counts.completions));
    });
}

/// More than there are receives, in both directions. Nobody looks at the receiving end but its service thread.
#[test]
fn signals_that_wake_never_run_out() {
    with_ends(&endpoint().with_ib_signal(IbSignal::Immediate), |rig| {
        const SIGNALS: u64 = 700;
        assert_eq!(rig.near.set.progress(), LISTENS, "or it would not hear of any");
        let (near, far) = (rig.near.arrivals(), rig.far.arrivals());
        for value in 1..=SIGNALS {
            wait_for("a signal is not taken", || rig.signal(value));
            rig.near.kick().unwrap();
        }
        rig.flush();
        wait_for("no signal is noticed", || rig.far.arrivals() > far);
        let word = rig.theirs.memory().word64(0).unwrap();
        assert_eq!(word.load(Ordering::Acquire), SIGNALS);
        assert_eq!(rig.near.arrivals(), near, "nobody has signalled here");
        let seen = rig.far.arrivals();
        assert!(rig.signal(SIGNALS + 1));
        rig.near.kick().unwrap();
        let (mut backoff, end) = (Backoff::new(), soon());
        while rig.far.arrivals() == seen && !end.expired() {
            rig.far.await_arrival(seen, &mut backoff, end);
        }
        assert!(rig.far.arrivals() > seen);
    });
}

/// However often it is tried while the queue is full, it takes one receive.
#[test]
fn a_signal_that_waits_for_room_takes_no_receives_meanwhile() {
    with_ends(&endpoint().with_ib_signal(IbSignal::Immediate).with_max_outstanding(2), |rig| {
        rig.hold();
        (0..QUEUE as usize).for_each(|at| assert!(rig.write(64 + at, at, LARGE)));
        assert!(rig.signal(1));
        for _ in 0..600 {
            rig.near.set.progress();
        }
        rig.release();
        rig.flush();
        assert_eq!(rig.theirs.memory().word64(0).unwrap().load(Ordering::Acquire), 1);
    });
}

/// Each region and each memory of the peer's is held as long as a request needs it, and once.
#[test]
fn all_memory_of_requests_is_held_and_each_once() {
    with_ends(&endpoint(), |rig| {
        let holders = rig.holders();
        let [(first, one), (second, two)] = [(); 2].map(|()| rig.telling());
        let told = || [&one, &two].map(|told| told.try_iter().count());
        rig.hold();
        for memory in [&first, &second, &first, &second] {
            let (dst, src) = (span(&rig.target, 0, LARGE), span(memory, 0, LARGE));
            assert!(rig.near.post(&Asked::Write { dst, src }).unwrap());
            assert!(rig.signal(1));
        }
        drop((first, second));
        assert_eq!(rig.holders() - holders, 3, "for two regions, and for signals");
        assert_eq!(told(), [0, 0]);
        rig.release();
        rig.flush();
        // The thread that takes the completions lets go of them: this one at once, the service thread by the user's next call.
        for told in [&one, &two] {
            wait_for("memory stays", || {
                rig.comm.context().reap();
                told.try_recv().is_ok()
            });
        }
        wait_for("the peer's memory stays", || rig.holders() == holders);
        assert_eq!(told(), [0, 0], "each once");
    });
}

/// A request that a full send queue refuses is posted later; another refusal of the NIC is an error.
#[test]
fn requests_that_the_nic_has_no_room_for_are_posted_later() {
    let refuse = |errno, times| (0..times).for_each(|_| standin::refuse("ibv_post_send", errno));
    with_ends(&endpoint(), |rig| {
        let set = &rig.near.set;
        // In its first turn the service thread, which nobody refuses anything, may be quicker to post a write: before the first
        // look at it or between both.
        wait_for("the service thread posts everything", || {
            assert!(rig.write(0, 0, LARGE));
            refuse(libc::ENOMEM, 2 - standin::not_called());
            if !set.look(&mut lock(&set.state), false).unwrap() {
                return false;
            }
            let posted = rig.requests();
            refuse(libc::ENOMEM, 1);
            set.progress() == Next::Again && (standin::not_called(), rig.requests()) == (0, posted)
        });
        rig.flush();
        // A caller leaves it to the service thread.
        let posted = rig.requests()[0];
        assert!(rig.write(0, 0, LARGE));
        refuse(libc::ENOMEM, 2);
        rig.near.kick().unwrap();
        wait_for("it is not posted", || rig.requests()[0] > posted);
    });
    with_ends(&endpoint(), |rig| {
        refuse(libc::EINVAL, 1);
        wait_for("the refusal is not told", || {
            let (dst, src) = (span(&rig.target, 0, LARGE), span(&rig.source, 0, LARGE));
            rig.near.post(&Asked::Write { dst, src }).is_err() || rig.near.kick().is_err()
        });
    });
}
