//! An operation holds both its ends until it is acknowledged: whatever is dropped while one is held back, it arrives where it
//! was sent, and nothing that is made meanwhile takes its place.
//!
//! A [`Gate`] holds operations back, so that every drop comes first.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use aqueduct::comm::{
    Communicator, Connection, EndpointConfig, Host2HostSemaphore, HostBuffer, RegisteredMemory, Transport,
};
use aqueduct::gpu::{BufferOptions, Context, Event, GpuBuffer, HandlePolicy, PinnedBuffer, Stream};
use aqueduct::internals::rdma::Verbs;
use aqueduct::{Error, ErrorKind};

use crate::data::{assert_same, bytes};
use crate::group::{Machine, Rank, config, processes_with, soon, threads_with};
use crate::standin;

/// More than any socket takes at once.
const LEN: usize = 24 << 20;
/// Bytes of a write that goes into a message together with others.
const SMALL: usize = 64;
/// A connection takes itself for idle much sooner.
const LONG: Duration = Duration::from_millis(100);
/// Semaphores that a rank may have.
const SLOTS: u32 = 2;

/// An event that waits until the test opens it.
struct Gate {
    word: Arc<PinnedBuffer>,
    event: Event,
    _stream: Stream,
}

impl Gate {
    fn closed(context: &Context) -> Self {
        let word = Arc::new(PinnedBuffer::new(context, 8).unwrap());
        word.memory().fill(0);
        let (stream, event) = (Stream::new(context).unwrap(), Event::new(context).unwrap());
        stream.wait_value64(&word.slice(..).unwrap(), 1).unwrap();
        event.record(&stream).unwrap();
        Self { word, event, _stream: stream }
    }

    fn open(&self) {
        self.word.memory().word64(0).unwrap().store(1, Ordering::Release);
    }
}

/// One of two ranks with a connection to the other. Everything is apart, so that each test drops what it wants to.
struct End {
    rank: Rank,
    peer: u32,
    endpoint: EndpointConfig,
    /// The buffer that the peer writes to, kept when its registration is dropped.
    buffer: Arc<HostBuffer>,
    source: RegisteredMemory,
    inbox: RegisteredMemory,
    target: RegisteredMemory,
    connection: Connection,
}

impl End {
    fn new(rank: Rank, endpoint: &EndpointConfig) -> Self {
        let (peer, comm) = (1 - rank.me(), &rank.comm);
        let [mine, buffer] = [(); 2].map(|()| Arc::new(HostBuffer::new(comm.context(), LEN).unwrap()));
        mine.memory().write(0, &bytes(rank.me(), 1, LEN)).unwrap();
        let source = comm.register_host(&mine, endpoint.transport).unwrap();
        let inbox = comm.register_host(&buffer, endpoint.transport).unwrap();
        comm.send_memory(&inbox, peer, 0).unwrap();
        let target = comm.recv_memory(peer, 0).unwrap();
        let connection = comm.connect(peer, 0, endpoint.clone()).unwrap();
        comm.setup(soon()).unwrap();
        let (target, connection) = (target.get().unwrap(), connection.get().unwrap());
        Self { rank, peer, endpoint: endpoint.clone(), buffer, source, inbox, target, connection }
    }

    /// Nothing asked for later begins before the result is opened.
    fn hold_back(&self) -> Gate {
        let gate = Gate::closed(self.rank.comm.context());
        self.connection.wait_event(&gate.event).unwrap();
        gate
    }

    fn semaphore(&self, tag: u64) -> aqueduct::Result<Host2HostSemaphore> {
        let semaphore = self.rank.comm.build_host2host_semaphore(&self.connection, tag)?;
        self.rank.comm.setup(soon())?;
        semaphore.get()
    }
}

/// Returns once both ranks have dealt with what the other said before: a setup takes the same links.
fn settle(rank: &Rank, endpoint: &EndpointConfig, tag: u64) {
    let other = rank.comm.connect(1 - rank.me(), tag, endpoint.clone()).unwrap();
    rank.comm.setup(soon()).unwrap();
    drop(other.get().unwrap());
    rank.barrier();
}

fn arrived(buffer: &HostBuffer, from: u32, len: usize) {
    let mut seen = vec![0; len];
    buffer.memory().read(0, &mut seen).unwrap();
    assert_same(&seen, &bytes(from, 1, len), format_args!("what was written"));
}

/// Both handles of a destination are dropped, the writer's and the owner's, before the write has begun.
fn destination_dropped(rank: Rank, endpoint: &EndpointConfig, len: usize) {
    let end = End::new(rank, endpoint);
    let gate = end.hold_back();
    end.connection.write(&end.target, 0, &end.source, 0, len).unwrap();
    let End { rank, peer, buffer, source, inbox, target, connection, .. } = end;
    drop((target, inbox, source));
    settle(&rank, endpoint, 1);
    gate.open();
    connection.flush(soon()).unwrap();
    rank.barrier();
    arrived(&buffer, peer, len);
    rank.barrier();
}

/// A semaphore is dropped at both ends before its signal has left.
fn semaphore_dropped(rank: Rank, endpoint: &EndpointConfig) {
    let end = End::new(rank, endpoint);
    let semaphore = end.semaphore(0).unwrap();
    let gate = end.hold_back();
    semaphore.signal().unwrap();
    drop(semaphore);
    settle(&end.rank, &end.endpoint, 1);
    gate.open();
    end.connection.flush(soon()).unwrap();
    end.rank.barrier();
}

fn exhausted(error: &Error) -> bool {
    error.to_string().contains("semaphores of this communicator are in use")
}

/// Asks for a semaphore until a slot is free for it.
fn next_semaphore(end: &End, tags: impl IntoIterator<Item = u64>) -> Host2HostSemaphore {
    let deadline = soon();
    let retry = |error: &Error| assert!(exhausted(error) && !deadline.expired(), "{error}");
    tags.into_iter().find_map(|tag| end.semaphore(tag).inspect_err(retry).ok()).expect("tags do not end")
}

/// Signals a semaphore, which is dropped before the signal leaves; the gate that holds it back, and another semaphore. Both slots are in
/// use then.
fn signal_held_back(end: &End) -> (Gate, Host2HostSemaphore) {
    let [first, other] = [0, 1].map(|tag| end.semaphore(tag).unwrap());
    let gate = end.hold_back();
    first.signal().unwrap();
    (gate, other)
}

/// The sender of a signal gives its peer's slot back though it does nothing but ask for the next semaphore, too.
fn slot_given_back(rank: Rank, endpoint: &EndpointConfig, held_back: Duration) {
    let end = End::new(rank, endpoint);
    let (gate, _other) = signal_held_back(&end);
    let late = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(held_back);
            gate.open();
        });
        next_semaphore(&end, 2..)
    });
    assert!(!late.poll().unwrap(), "a signal of the semaphore before has arrived at this one");
    end.connection.flush(soon()).unwrap();
    end.rank.barrier();
}

/// A signal of a semaphore that both ends have dropped never reaches another semaphore.
fn slot_used_again(rank: Rank, endpoint: &EndpointConfig) {
    let end = End::new(rank, endpoint);
    let (gate, _other) = signal_held_back(&end);
    // All slots are in use, of which one only by the signal that is held back.
    let early = (2..12).find_map(|tag| match end.semaphore(tag) {
        Ok(semaphore) => Some(semaphore),
        Err(error) => {
            assert!(exhausted(&error), "{error}");
            None
        }
    });
    gate.open();
    end.connection.flush(soon()).unwrap();
    end.rank.barrier();
    if let Some(early) = &early {
        assert!(!early.poll().unwrap(), "a signal of the semaphore before has arrived at this one");
    }
    // The slot is free once the signal has arrived.
    let late = early.unwrap_or_else(|| next_semaphore(&end, 12..));
    end.rank.barrier();
    assert!(!late.poll().unwrap(), "a signal of the semaphore before has arrived at this one");
    end.rank.barrier();
    late.signal().unwrap();
    late.wait(soon()).unwrap();
    end.rank.barrier();
}

/// Everything of a rank is dropped before its write has begun: it is delivered all the same, and nobody waits in a drop.
fn everything_dropped(rank: Rank, endpoint: &EndpointConfig) {
    let me = rank.me();
    let context = rank.comm.context().clone();
    let end = End::new(rank, endpoint);
    let End { rank: Rank { comm, bootstrap }, peer, buffer, source, inbox, target, connection, .. } = end;
    if me == 0 {
        let gate = Gate::closed(&context);
        connection.wait_event(&gate.event).unwrap();
        connection.write(&target, 0, &source, 0, LEN).unwrap();
        // The gate is closed: a drop that waited for the write would not end.
        drop((source, inbox, target, connection, comm, buffer));
        gate.open();
        bootstrap.barrier(soon()).unwrap();
    } else {
        // The last bytes come last.
        let last = bytes(peer, 1, LEN)[LEN - 1];
        let (deadline, mut seen) = (soon(), [0]);
        while seen[0] != last {
            assert!(!deadline.expired(), "the write does not arrive");
            std::thread::sleep(Duration::from_millis(1));
            buffer.memory().read(LEN - 1, &mut seen).unwrap();
        }
        arrived(&buffer, peer, LEN);
        bootstrap.barrier(soon()).unwrap();
        drop((source, inbox, target, connection, comm));
    }
}

/// As [`everything_dropped`], and the communicator is closed first: it waits for the write until its deadline.
fn closed_while_held(rank: Rank, endpoint: &EndpointConfig) {
    let end = End::new(rank, endpoint);
    if end.rank.me() == 0 {
        let gate = end.hold_back();
        end.connection.write(&end.target, 0, &end.source, 0, SMALL).unwrap();
        let End { rank: Rank { comm, bootstrap }, source, inbox, target, connection, .. } = end;
        drop((source, inbox, target, connection));
        let error = comm.close(soon_after(100)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert!(error.to_string().contains("rank 1"), "{error}");
        gate.open();
        comm.close(soon()).unwrap();
        bootstrap.barrier(soon()).unwrap();
    } else {
        end.rank.barrier();
        // `close` has waited: what was written is there.
        arrived(&end.buffer, end.peer, SMALL);
    }
}

/// A stream waits for a write that is held back. An abort lets it go on, and the connection stays as it is.
fn abort_while_held(rank: Rank, endpoint: &EndpointConfig) {
    let end = End::new(rank, endpoint);
    let gate = end.hold_back();
    let (comm, context) = (&end.rank.comm, end.rank.comm.context());
    let (stream, event) = (Stream::new(context).unwrap(), Event::new(context).unwrap());
    end.connection.write(&end.target, 0, &end.source, 0, SMALL).unwrap();
    end.connection.record_event(&event).unwrap();
    stream.wait_event(&event).unwrap();
    end.rank.barrier();
    comm.abort("enough");
    let deadline = soon_after(10_000);
    let mut idle = stream.is_idle();
    while matches!(idle, Ok(false)) && !deadline.expired() {
        idle = stream.is_idle();
    }
    gate.open();
    assert!(!matches!(idle, Ok(false)), "the stream waits for what the abort has given up");
    end.rank.barrier();
}

/// Memory that rank 1 has received by a legacy handle.
fn legacy_sent(comm: &Communicator) -> RegisteredMemory {
    let legacy = BufferOptions { zeroed: true, handles: HandlePolicy::Legacy };
    let buffer = Arc::new(GpuBuffer::with_options(comm.context(), SMALL, legacy).unwrap());
    let memory = comm.register_memory(&buffer, Transport::CudaIpc).unwrap();
    comm.send_memory(&memory, 1, 0).unwrap();
    comm.setup(soon()).unwrap();
    memory
}

/// A peer that has memory of this rank open by a legacy handle: `close` names it and has changed nothing.
#[test]
fn closing_names_a_peer_that_has_memory_open_and_can_be_called_again() {
    let test = "transports::ownership::closing_names_a_peer_that_has_memory_open_and_can_be_called_again";
    processes_with(Machine::Software, 2, test, config(), |rank| {
        let comm = &rank.comm;
        if rank.me() == 0 {
            let _memory = legacy_sent(comm);
            let error = comm.close(soon_after(100)).unwrap_err();
            assert_eq!((error.kind(), error.peer()), (ErrorKind::Timeout, Some(1)), "{error}");
            comm.check().expect("this rank has not left");
            rank.barrier();
            comm.close(soon()).unwrap();
        } else {
            let memory = comm.recv_memory(0, 0).unwrap();
            comm.setup(soon()).unwrap();
            rank.barrier();
            drop(memory);
        }
        rank.barrier();
    });
}

/// Neither calls anything else: what their connections still held is given back while they wait for each other.
#[test]
fn two_ranks_with_memory_by_legacy_handles_close_at_the_same_time() {
    let test = "transports::ownership::two_ranks_with_memory_by_legacy_handles_close_at_the_same_time";
    processes_with(Machine::Software, 2, test, config(), |rank| {
        let (comm, peer) = (&rank.comm, 1 - rank.me());
        let [mine, source] = [(); 2].map(|()| {
            let legacy = BufferOptions { zeroed: true, handles: HandlePolicy::Legacy };
            let buffer = Arc::new(GpuBuffer::with_options(comm.context(), SMALL, legacy).unwrap());
            comm.register_memory(&buffer, Transport::CudaIpc).unwrap()
        });
        comm.send_memory(&mine, peer, 0).unwrap();
        let theirs = comm.recv_memory(peer, 0).unwrap();
        let connection = comm.connect(peer, 0, Transport::CudaIpc).unwrap();
        comm.setup(soon()).unwrap();
        let connection = connection.get().unwrap();
        connection.write(&theirs.get().unwrap(), 0, &source, 0, SMALL).unwrap();
        drop(theirs);
        rank.barrier();
        comm.close(soon()).unwrap();
        rank.barrier();
    });
}

/// A legacy handle is closed when no work can use its memory any more, and only then may the owner free it.
#[test]
fn memory_of_a_legacy_handle_is_given_back_once_it_is_closed() {
    let test = "transports::ownership::memory_of_a_legacy_handle_is_given_back_once_it_is_closed";
    processes_with(Machine::Software, 2, test, config(), |rank| {
        let comm = &rank.comm;
        if rank.me() == 0 {
            let _memory = legacy_sent(comm);
            rank.barrier();
            let early = comm.close(soon_after(300));
            rank.barrier();
            assert_eq!(early.unwrap_err().kind(), ErrorKind::Timeout);
            comm.close(soon()).unwrap();
        } else {
            let memory = comm.recv_memory(0, 0).unwrap();
            comm.setup(soon()).unwrap();
            let gate = Gate::closed(comm.context());
            drop((memory.get().unwrap(), memory));
            rank.barrier();
            rank.barrier();
            gate.open();
            let deadline = soon();
            while comm.context().unreaped() > 0 {
                assert!(!deadline.expired(), "the handle is not closed");
                comm.context().reap();
            }
        }
        rank.barrier();
    });
}

/// A signal that waits for room holds up nobody who only looks at the counters.
fn signal_waits_for_room(rank: Rank, endpoint: &EndpointConfig) {
    let endpoint = endpoint.clone().with_max_outstanding(1).with_timeout(Duration::from_secs(10));
    let end = End::new(rank, &endpoint);
    let semaphore = end.semaphore(0).unwrap();
    let gate = end.hold_back();
    // The operations that `gate` holds back fill the queue of a connection that has one.
    std::thread::scope(|scope| {
        let signals = scope.spawn(|| (0..3).try_for_each(|_| semaphore.signal()));
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(300) {
            semaphore.counters().unwrap();
        }
        gate.open();
        signals.join().unwrap().unwrap();
    });
    end.connection.flush(soon()).unwrap();
    (0..3).for_each(|_| semaphore.wait(soon()).unwrap());
    end.rank.barrier();
}

fn soon_after(ms: u64) -> aqueduct::Deadline {
    aqueduct::Deadline::after(Duration::from_millis(ms))
}

type Case = fn(Rank, &EndpointConfig);

fn of_processes(transport: Transport, test: &str, case: Case) {
    let config = config().with_max_semaphores(SLOTS);
    processes_with(Machine::Software, 2, test, config, |rank| case(rank, &transport.into()));
}

fn of_stand_in(test: &str, case: Case) {
    let config =
        config().with_max_semaphores(SLOTS).with_verbs(Verbs::from_table(standin::table(), "stand-in"));
    let environment = [("AQUEDUCT_IB_DEVICES", "null0")];
    threads_with(Machine::Software, 2, test, &config, &environment, |rank| {
        case(rank, &Transport::Ib(0).into())
    });
    assert_eq!(standin::violations(), 0, "something was destroyed while it was in use");
}

macro_rules! instances {
    ($($name:ident: $case:expr;)*) => {
        mod cuda_ipc {
            use super::*;
            $(#[test]
            fn $name() {
                of_processes(Transport::CudaIpc, concat!("transports::ownership::cuda_ipc::", stringify!($name)), $case);
            })*
        }
        mod ethernet {
            use super::*;

            #[test]
            fn an_abort_lets_streams_go_on() {
                let test = "transports::ownership::ethernet::an_abort_lets_streams_go_on";
                of_processes(Transport::Ethernet, test, abort_while_held);
            }

            $(#[test]
            fn $name() {
                of_processes(Transport::Ethernet, concat!("transports::ownership::ethernet::", stringify!($name)), $case);
            })*
        }
        mod stand_in {
            use super::*;
            $(#[test]
            fn $name() {
                of_stand_in(concat!("transports::ownership::stand_in::", stringify!($name)), $case);
            })*
        }
    };
}

instances! {
    a_small_write_to_a_dropped_destination_arrives: |rank, endpoint| destination_dropped(rank, endpoint, SMALL);
    a_large_write_to_a_dropped_destination_arrives: |rank, endpoint| destination_dropped(rank, endpoint, LEN);
    a_signal_of_a_dropped_semaphore_arrives: semaphore_dropped;
    no_signal_reaches_the_next_semaphore: slot_used_again;
    a_slot_is_given_back_by_whoever_signalled: |rank, endpoint| slot_given_back(rank, endpoint, Duration::ZERO);
    a_slot_is_given_back_after_a_long_wait: |rank, endpoint| slot_given_back(rank, endpoint, LONG);
    what_was_accepted_is_delivered_after_everything_was_dropped: everything_dropped;
    closing_waits_for_what_was_accepted: closed_while_held;
    counters_are_read_while_a_signal_waits_for_room: signal_waits_for_room;
}
