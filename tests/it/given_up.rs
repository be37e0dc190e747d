//! Kernels leave their waits when a rank is killed or aborts. Every wait for their streams, events and graphs says so,
//! and the stream can be used again.

use std::sync::Arc;

use aqueduct::ErrorKind;
use aqueduct::channel::{MemoryChannel, PacketFormat, PortChannel, SignalChannel};
use aqueduct::collective::Collective;
use aqueduct::comm::{Communicator, Transport};
use aqueduct::gpu::{CaptureMode, Event, GpuBuffer, GraphExec, Stream};
use aqueduct::plan::{Element, Kind, Reduction};
use aqueduct::proxy::{ProxyService, ProxyServiceConfig};
use aqueduct::{Error, Result};
use aqueduct_tests::ranks;

use crate::data::{Way, assert_same, elements, reduced};
use crate::group::{Machine, Rank, processes, soon};

const F32_SUM: (Element, Reduction) = (Element::F32, Reduction::Sum);
const COUNT: usize = 4096;
const LEN: usize = COUNT * 4;
/// The rank that does not go on.
const GONE: u32 = 1;

#[derive(Clone, Copy, PartialEq)]
enum Cause {
    Killed,
    Aborted,
}

/// Channels to one peer, for every way to wait for it.
struct Ways {
    data: MemoryChannel,
    packets: MemoryChannel,
    signals: SignalChannel,
    port: PortChannel,
    _service: ProxyService,
}

impl Ways {
    /// Channels to `peers`, which do the same.
    fn to(rank: &Rank, peers: &[u32]) -> Vec<Self> {
        let comm = &rank.comm;
        let register = |len| comm.register_memory(&rank.buffer(len), Transport::CudaIpc).unwrap();
        let service = ProxyService::start(comm, ProxyServiceConfig::default()).unwrap();
        let (local, inbox, packets) = (register(LEN), register(LEN), register(2 * LEN));
        let pending: Vec<_> = peers
            .iter()
            .map(|&peer| {
                comm.send_memory(&inbox, peer, 0).unwrap();
                comm.send_memory(&packets, peer, 1).unwrap();
                let theirs = [0, 1].map(|tag| comm.recv_memory(peer, tag).unwrap());
                let connection = comm.connect(peer, 0, Transport::CudaIpc).unwrap();
                let semaphore = comm.build_semaphore(&connection, 0).unwrap();
                (theirs, semaphore, service.build_and_add_semaphore(&connection, 1).unwrap())
            })
            .collect();
        comm.setup(soon()).unwrap();
        let finish = |(theirs, semaphore, port): ([_; 2], _, _)| {
            let theirs: [aqueduct::comm::RegisteredMemory; 2] =
                theirs.map(|memory: aqueduct::comm::Pending<_>| memory.get().unwrap());
            let semaphore: aqueduct::comm::Pending<_> = semaphore;
            let (semaphore, port): (_, aqueduct::proxy::PendingSemaphore) = (semaphore.get().unwrap(), port);
            let [dst, src] = [&theirs[0], &local].map(|memory| service.add_memory(memory).unwrap());
            Self {
                data: MemoryChannel::new(&semaphore, &theirs[0], &local, None).unwrap(),
                packets: MemoryChannel::new(&semaphore, &theirs[1], &local, Some(&packets)).unwrap(),
                signals: SignalChannel::new(&semaphore).unwrap(),
                port: PortChannel::new(&service, port.get().unwrap(), dst, src).unwrap(),
                _service: service.clone(),
            }
        };
        pending.into_iter().map(finish).collect()
    }
}

/// A buffer with this rank's elements.
fn loaded(comm: &Communicator) -> Arc<GpuBuffer> {
    let buffer = Arc::new(GpuBuffer::new(comm.context(), LEN).unwrap());
    buffer.upload(0, &elements(F32_SUM.0, comm.rank(), 0, COUNT), soon()).unwrap();
    buffer
}

fn prepare(comm: &Communicator, way: Way) -> Collective {
    let all_reduce = Collective::prepare(comm, Kind::AllReduce, way.config([F32_SUM]), soon()).unwrap();
    assert_eq!(all_reduce.algorithm(true, COUNT, F32_SUM.0, None).unwrap(), way.name());
    all_reduce
}

fn reduce(reduce: &Collective, stream: &Stream, buffer: &Arc<GpuBuffer>) -> Result<()> {
    let slice = buffer.slice(..).unwrap();
    reduce.launch(stream, &slice, &slice, COUNT, F32_SUM.0, F32_SUM.1)
}

/// Asserts that `error`, returned by `op`, gives the reason.
#[track_caller]
fn told(cause: Cause, op: &str, what: &str, error: &Error) {
    let (kind, words) = match cause {
        Cause::Killed => (ErrorKind::PeerLost, "rank 1 was lost"),
        Cause::Aborted => (ErrorKind::Aborted, "aborted by rank 1: the test gives up"),
    };
    assert_eq!((error.op(), error.kind(), error.peer()), (op, kind, Some(GONE)), "{what}: {error}");
    assert!(error.message().contains(words), "{what}: {error}");
}

fn every_wait(machine: Machine, test: &str, cause: Cause) {
    processes(machine, 3, test, |rank| {
        let (me, comm) = (rank.me(), &rank.comm);
        let mut ways = Ways::to(&rank, if me == GONE { &[0, 2] } else { &[GONE] });
        let reduces = Way::ALL.map(|way| prepare(comm, way));
        let buffers = [(); 2].map(|()| loaded(comm));
        let shared = loaded(comm);
        if me == GONE {
            rank.barrier();
            match cause {
                Cause::Killed => ranks::die(),
                Cause::Aborted => comm.abort("the test gives up"),
            }
            return goes_on(&rank, cause, &Stream::new(comm.context()).unwrap());
        }
        let Ways { data, packets, signals, port, _service } = ways.remove(0);
        let names = [
            "a wait",
            "packets",
            "one-shot",
            "two-shot",
            "a port's wait",
            "a graph",
            "another's event",
            "a signal",
        ];
        let streams = names.map(|_| Stream::new(comm.context()).unwrap());
        let [waits, unpacks, one_shot, two_shot, port_waits, replays, follows, alone] = &streams;
        let event = Event::new(comm.context()).unwrap();
        let graph = GraphExec::capture(replays, CaptureMode::ThreadLocal, |s| data.wait(s)).unwrap();

        data.wait(waits).unwrap();
        event.record(waits).unwrap();
        follows.wait_event(&event).unwrap();
        follows.fill(&shared.slice(..).unwrap(), 7).unwrap();
        packets.put_packets(unpacks, PacketFormat::Ll16, 0, 0, 1024, 7).unwrap();
        packets.unpack_packets(unpacks, PacketFormat::Ll16, 0, 0, 1024, 7).unwrap();
        for ((all_reduce, stream), buffer) in reduces.iter().zip([one_shot, two_shot]).zip(&buffers) {
            reduce(all_reduce, stream, buffer).unwrap();
        }
        port.wait(port_waits).unwrap();
        signals.wait(alone).unwrap();
        graph.launch(replays).unwrap();
        let mut ends: Vec<(&str, &str, Result<()>)> = std::thread::scope(|scope| {
            let waiting = [(); 2].map(|()| scope.spawn(|| waits.synchronize(soon())));
            rank.barrier();
            waiting.map(|thread| ("one of two threads", "synchronize", thread.join().unwrap())).into()
        });
        for (stream, what) in streams.iter().zip(names) {
            ends.push((what, "synchronize", stream.synchronize(soon())));
            ends.push((what, "is_idle", stream.is_idle().map(drop)));
        }
        ends.extend([(); 2].map(|()| ("an event", "event", event.synchronize(soon()))));
        let silent: Vec<_> = ends.iter().filter(|(.., end)| end.is_ok()).map(|(what, ..)| *what).collect();
        assert!(silent.is_empty(), "these waits were given up and are Ok: {silent:?}");
        for (what, op, end) in ends {
            told(cause, op, what, &end.unwrap_err());
        }
        // A stream without such work is as good as ever.
        Stream::new(comm.context()).unwrap().synchronize(soon()).unwrap();
        drop((data, packets, port, graph, reduces));
        for stream in &streams {
            stream.fill(&shared.slice(..).unwrap(), 7).unwrap();
            stream.synchronize(soon()).unwrap();
        }
        goes_on(&rank, cause, two_shot);
    });
}

/// All-reduces on `stream` with those who are left.
fn goes_on(rank: &Rank, cause: Cause, stream: &Stream) {
    let fewer = rank.comm.shrink(&[], soon()).unwrap();
    assert_eq!(fewer.size(), if cause == Cause::Killed { 2 } else { 3 });
    let (all_reduce, buffer) = (prepare(&fewer, Way::TwoShot), loaded(&fewer));
    reduce(&all_reduce, stream, &buffer).unwrap();
    stream.synchronize(soon()).unwrap();
    let mut seen = vec![0; LEN];
    buffer.download(0, &mut seen, soon()).unwrap();
    let expected = reduced(F32_SUM.0, F32_SUM.1, fewer.size(), 0, COUNT);
    assert_same(&seen, &expected, format_args!("rank {} of those who are left", fewer.rank()));
    fewer.close(soon()).unwrap();
}

/// The owner of a stream waits for it by the driver. That says nothing, and the communicator does.
fn a_stream_of_somebody_else(machine: Machine, test: &str) {
    processes(machine, 2, test, |rank| {
        let comm = &rank.comm;
        let ways = Ways::to(&rank, &[1 - rank.me()]);
        let owner = Stream::new(comm.context()).unwrap();
        if rank.me() == GONE {
            rank.barrier();
            return comm.abort("the test gives up");
        }
        // SAFETY: `owner` outlives the wrapper.
        let wrapped = unsafe { Stream::from_raw(comm.context(), owner.raw()) };
        ways[0].data.wait(&wrapped).unwrap();
        rank.barrier();
        // The owner's own wait, which asks the driver only.
        owner.synchronize(soon()).unwrap();
        told(Cause::Aborted, "check", "the communicator", &comm.check().unwrap_err());
        comm.report_to(&owner);
        told(Cause::Aborted, "synchronize", "once told", &owner.synchronize(soon()).unwrap_err());
    });
}

/// Work that ended, and was waited for, before the failure stays good.
fn work_that_was_waited_for(machine: Machine, test: &str) {
    processes(machine, 2, test, |rank| {
        let ways = Ways::to(&rank, &[1 - rank.me()]);
        let [stream, other] = [(); 2].map(|()| Stream::new(rank.comm.context()).unwrap());
        let event = Event::new(rank.comm.context()).unwrap();
        ways[0].data.signal(&stream).unwrap();
        ways[0].data.wait(&stream).unwrap();
        event.record(&stream).unwrap();
        other.wait_event(&event).unwrap();
        for stream in [&stream, &other] {
            stream.synchronize(soon()).unwrap();
        }
        event.synchronize(soon()).unwrap();
        rank.barrier();
        rank.comm.abort("the test is over");
        for stream in [&stream, &other] {
            stream.synchronize(soon()).unwrap();
        }
        event.synchronize(soon()).unwrap();
        rank.barrier();
    });
}

macro_rules! on_both {
    ($($name:ident: $body:expr;)*) => {
        mod soft {
            use super::*;
            $(#[test]
            fn $name() {
                $body(Machine::Software, concat!("given_up::soft::", stringify!($name)));
            })*
        }
        mod hardware {
            use super::*;
            $(#[test]
            #[ignore = "needs an NVIDIA GPU"]
            fn $name() {
                $body(Machine::Hardware, concat!("given_up::hardware::", stringify!($name)));
            })*
        }
    };
}

on_both! {
    every_wait_says_that_a_rank_was_killed: |machine, test| every_wait(machine, test, Cause::Killed);
    every_wait_says_that_a_rank_aborted: |machine, test| every_wait(machine, test, Cause::Aborted);
    a_stream_of_somebody_else_learns_of_it_from_the_communicator: a_stream_of_somebody_else;
    work_that_was_waited_for_before_an_abort_stays_good: work_that_was_waited_for;
}
