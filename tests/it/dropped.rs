//! Everything of a rank but its stream and its memory is dropped while calls are in flight: they end as they would have, and
//! a wait for the stream says so.

use std::sync::Arc;
use std::time::Duration;

use aqueduct::ErrorKind;
use aqueduct::collective::{Collective, CollectiveConfig, VariableCollective, VariableCounts};
use aqueduct::comm::Communicator;
use aqueduct::gpu::{CaptureMode, GpuBuffer, GraphExec, Stream};
use aqueduct::plan::programs::{self, Choices};
use aqueduct::plan::{Element, Executor, ExecutorConfig, Kind, Reduction};

use crate::data::{Way, assert_same, elements, reduced};
use crate::group::{Machine, Rank, soon, threads, threads_on_hosts};

const RANKS: u32 = 2;
const COUNT: usize = 4096;
const LEN: usize = COUNT * 4;
const F32_SUM: (Element, Reduction) = (Element::F32, Reduction::Sum);
/// The rank whose calls wait for the other one.
const EARLY: u32 = 0;

#[derive(Clone, Copy, Debug)]
enum Launched {
    Plainly,
    ByGraph,
}

/// A buffer with this rank's elements.
fn loaded(comm: &Communicator) -> Arc<GpuBuffer> {
    let buffer = Arc::new(GpuBuffer::new(comm.context(), LEN).unwrap());
    buffer.upload(0, &elements(F32_SUM.0, comm.rank(), 0, COUNT), soon()).unwrap();
    buffer
}

/// Launches what `work` enqueues.
fn launch(how: Launched, stream: &Stream, work: impl FnOnce(&Stream) -> aqueduct::Result<()>) {
    match how {
        Launched::Plainly => work(stream).unwrap(),
        Launched::ByGraph => {
            let graph = GraphExec::capture(stream, CaptureMode::ThreadLocal, work).unwrap();
            graph.launch(stream).unwrap();
        }
    }
}

/// Has both ranks prepare calls. Runs what that returns, which launches calls and drops what they use, on the early rank before
/// the other one. Then both wait.
fn in_flight<B: FnOnce(&Stream)>(
    rank: Rank,
    output: &Arc<GpuBuffer>,
    reaps: bool,
    prepare: impl FnOnce(&Communicator) -> B,
) {
    let Rank { comm, bootstrap } = rank;
    let (me, context) = (comm.rank(), comm.context().clone());
    let stream = Stream::new(&context).unwrap();
    let meet = || bootstrap.barrier(soon()).unwrap();
    let begin = prepare(&comm);
    drop(comm);
    if me == EARLY {
        begin(&stream);
        assert!(!stream.is_idle().unwrap(), "the other rank has not begun");
        meet();
    } else {
        meet();
        begin(&stream);
    }
    let deadline = soon();
    // Another call of the program's, such as an allocation, finds the work done before the wait does, and drops what it used.
    while reaps && Arc::strong_count(output) > 1 {
        assert!(!deadline.expired(), "the call does not end");
        context.reap();
    }
    stream.synchronize(soon()).unwrap_or_else(|error| panic!("rank {me}: {error}"));
    meet();
}

#[test]
fn collectives_that_were_dropped_in_flight_end_well() {
    for how in [Launched::Plainly, Launched::ByGraph] {
        for (way, reaps) in Way::ALL.into_iter().zip([false, true].into_iter().cycle()) {
            let test = "dropped::collectives_that_were_dropped_in_flight_end_well";
            threads(Machine::Software, RANKS, test, |rank| {
                let buffer = loaded(&rank.comm);
                in_flight(rank, &buffer, reaps, |comm| {
                    let slice = buffer.slice(..).unwrap();
                    let config = way.config([F32_SUM]);
                    let reduce = Collective::prepare(comm, Kind::AllReduce, config, soon()).unwrap();
                    move |stream: &Stream| {
                        let (element, op) = F32_SUM;
                        launch(how, stream, |on| reduce.launch(on, &slice, &slice, COUNT, element, op));
                    }
                });
                let mut seen = vec![0; LEN];
                buffer.download(0, &mut seen, soon()).unwrap();
                let expected = reduced(F32_SUM.0, F32_SUM.1, RANKS, 0, COUNT);
                assert_same(&seen, &expected, format_args!("{how:?}, {}", way.name()));
            });
        }
    }
}

/// A kernel reads the counts while it runs, and writes those that have come when it ends.
#[test]
fn arrays_of_counts_that_were_dropped_live_as_long_as_the_call() {
    let test = "dropped::arrays_of_counts_that_were_dropped_live_as_long_as_the_call";
    threads(Machine::Software, RANKS, test, |rank| {
        let buffers = [(); 2].map(|()| loaded(&rank.comm));
        let arrays = [(); 5].map(|()| Arc::new(GpuBuffer::new(rank.comm.context(), 16).unwrap()));
        arrays.iter().for_each(|array| array.upload(0, &[0_u64, 0], soon()).unwrap());
        let weak: Vec<_> = arrays.iter().map(Arc::downgrade).collect();
        in_flight(rank, &buffers[1].clone(), false, |comm| {
            let config = CollectiveConfig::default();
            let collective = VariableCollective::prepare(comm, Kind::AllToAll, config, soon()).unwrap();
            let shown = collective.buffers(&buffers[0], &buffers[1], soon()).unwrap();
            let (me, weak) = (comm.rank(), &weak);
            move |stream: &Stream| {
                let [sent, from, room, to, received] =
                    arrays.each_ref().map(|array| array.slice(..).unwrap());
                let counts = VariableCounts::of_pairs(&sent, &from, &room, &to).with_received(&received);
                collective.launch(stream, &shown, &counts, Element::F32, None).unwrap();
                drop((counts, sent, from, room, to, received, arrays));
                let alive: Vec<_> = weak.iter().map(|array| array.strong_count() > 0).collect();
                // The other rank's call may have ended by now.
                assert!(me != EARLY || alive == [true; 5], "{alive:?}");
            }
        });
    });
}

/// The proxy that serves a plan's ports stops when its last owner is dropped, which is the stream. The other rank stays until its
/// own wait and that of the first have ended: a peer that leaves fails ports.
#[test]
fn a_plan_with_ports_that_was_dropped_in_flight_ends_well() {
    for how in [Launched::Plainly, Launched::ByGraph] {
        let test = "dropped::a_plan_with_ports_that_was_dropped_in_flight_ends_well";
        threads(Machine::Software, RANKS, test, |rank| {
            let me = rank.me();
            let (input, output) = (loaded(&rank.comm), loaded(&rank.comm));
            let line = programs::find("broadcast", None).unwrap();
            let plan = line.program(RANKS, &Choices::default()).unwrap().compile().unwrap();
            let executor = Executor::prepare(&rank.comm, &plan, ExecutorConfig::default(), soon()).unwrap();
            let shown = executor.prepare_buffers(&input, &output, soon()).unwrap();
            let stream = Stream::new(rank.comm.context()).unwrap();
            let begin =
                || launch(how, &stream, |on| executor.execute_on(on, &shown, COUNT, Element::F32, None));
            if me == EARLY {
                begin();
                let Rank { comm, bootstrap } = rank;
                drop((executor, shown, comm));
                assert!(!stream.is_idle().unwrap(), "the other rank has not begun");
                (0..2).for_each(|_| bootstrap.barrier(soon()).unwrap());
                stream.synchronize(soon()).unwrap();
                bootstrap.barrier(soon()).unwrap();
            } else {
                rank.barrier();
                begin();
                stream.synchronize(soon()).unwrap();
                (0..2).for_each(|_| rank.barrier());
            }
            let mut seen = vec![0; LEN];
            output.download(0, &mut seen, soon()).unwrap();
            assert_same(&seen, &elements(F32_SUM.0, 0, 0, COUNT), format_args!("{how:?}, rank {me}"));
        });
    }
}

/// The other rank does not launch its part. The kernel leaves soon, and the wait says so.
fn a_graph_ends_that_is_launched_after_the_close(rank: &Rank, wait: Duration, kinds: &[ErrorKind]) {
    let buffer = loaded(&rank.comm);
    let slice = buffer.slice(..).unwrap();
    let config = Way::ALL[0].config([F32_SUM]);
    let reduce = Collective::prepare(&rank.comm, Kind::AllReduce, config, soon()).unwrap();
    let stream = Stream::new(rank.comm.context()).unwrap();
    let (element, op) = F32_SUM;
    let call = |on: &Stream| reduce.launch(on, &slice, &slice, COUNT, element, op);
    let graph = GraphExec::capture(&stream, CaptureMode::ThreadLocal, call).unwrap();
    rank.barrier();
    rank.comm.close(soon()).unwrap();
    assert_eq!(call(&stream).unwrap_err().kind(), ErrorKind::Stopped);
    std::thread::sleep(wait);
    if rank.me() == EARLY {
        graph.launch(&stream).unwrap();
        let error = stream.synchronize(soon()).unwrap_err();
        assert!(kinds.contains(&error.kind()) && error.message().contains("closed"), "{wait:?}: {error}");
    }
    rank.barrier();
}

#[test]
fn a_graph_that_is_launched_after_the_close_ends() {
    let test = "dropped::a_graph_that_is_launched_after_the_close_ends";
    threads(Machine::Software, RANKS, test, |rank| {
        a_graph_ends_that_is_launched_after_the_close(&rank, Duration::ZERO, &[ErrorKind::Aborted]);
    });
}

/// The proxy may still serve, or have seen that the connection is closed and told kernels to leave.
#[test]
fn a_graph_over_hosts_that_is_launched_after_the_close_ends() {
    let test = "dropped::a_graph_over_hosts_that_is_launched_after_the_close_ends";
    for wait in [0, 1, 20, 3000].map(Duration::from_millis) {
        threads_on_hosts(Machine::Software, &["a", "b"], test, |rank| {
            a_graph_ends_that_is_launched_after_the_close(
                &rank,
                wait,
                &[ErrorKind::Aborted, ErrorKind::Stopped],
            );
        });
    }
}
