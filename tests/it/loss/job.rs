//! The job of each rank: joins, sets up, reduces, copies, leaves. It prints each phase that it reaches and how it ends.

use std::sync::Arc;
use std::time::Duration;

use aqueduct::bootstrap;
use aqueduct::collective::{Collective, CollectiveConfig};
use aqueduct::comm::{Communicator, CommunicatorConfig, Transport};
use aqueduct::gpu::{Context, GpuBuffer, Stream};
use aqueduct::plan::{Element, Kind, Reduction};
use aqueduct::{Deadline, Error, Result};

use crate::data::{assert_same, elements, reduced};
use crate::group::{Machine, context};

/// Prefix of the lines that a rank prints for the test.
pub(super) const MARK: &str = "@@ ";
/// Environment variable set for ranks that go on without the lost rank.
pub(super) const GO_ON: &str = "AQUEDUCT_TEST_GO_ON";
/// The phases of a rank, in order.
pub(super) const PHASES: [&str; 6] = ["join", "setup", "kernel", "flush", "last", "teardown"];
/// The first phase in which the other ranks may already have everything that they need from a rank.
pub(super) const LAST: usize = 4;

/// Element counts of the two all-reduce sizes, one for each algorithm.
const COUNTS: [usize; 2] = [100, 40_000];
/// Number of calls that makes the phases of kernels and of copies long enough to be hit.
const CALLS: u32 = 30;
const COPIES: usize = 1000;

/// A deadline long after the test's own.
fn late() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn say(what: impl std::fmt::Display) {
    println!("\n{MARK}{what}");
}

/// Runs one rank from start to end.
pub(super) fn run(machine: Machine, rank: u32) {
    let context = context(&machine.driver(), rank);
    let before = free(&context);
    match work(&context) {
        Ok(()) => say("end ok"),
        Err(error) => {
            let peer = error.peer().map_or("-".to_owned(), |peer| peer.to_string());
            say(format_args!("end {:?} {peer} {error}", error.kind()));
        }
    }
    let patience = late().min(Deadline::after(Duration::from_secs(5)));
    while context.unreaped() > 0 && !patience.expired() {
        std::thread::sleep(Duration::from_millis(5));
        context.reap();
    }
    // Free memory says nothing on a real device, which other ranks may share.
    if machine == Machine::Software {
        say(format_args!("memory {}", before.abs_diff(free(&context))));
    }
}

fn free(context: &Context) -> usize {
    context.memory_info().expect("the device reports its memory").0
}

fn work(context: &Context) -> Result<()> {
    let bootstrap = bootstrap::from_env()?.expect("the test sets the environment of its ranks");
    say("phase join");
    let config = CommunicatorConfig::from_env()?
        .with_local_address(std::net::Ipv4Addr::LOCALHOST.into())
        .with_max_semaphores(64);
    let comm = Communicator::new(&bootstrap, context, config, late())?;
    drop(bootstrap);
    match use_it(&comm) {
        Ok(()) => {}
        Err(error) if std::env::var_os(GO_ON).is_some() => return go_on(&comm, &error),
        Err(error) => return Err(error),
    }
    say("phase teardown");
    comm.close(late())
}

fn use_it(comm: &Communicator) -> Result<()> {
    say("phase setup");
    let (me, size) = (comm.rank(), comm.size());
    let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
    let buffer = |len| GpuBuffer::new(comm.context(), len).map(Arc::new);
    let mine = comm.register_memory(&buffer(64 << 10)?, Transport::CudaIpc)?;
    let mut made = Vec::new();
    for tag in 0..4 {
        comm.send_memory(&mine, previous, tag)?;
        let theirs = comm.recv_memory(next, tag)?;
        let connection = comm.connect(next, tag, Transport::CudaIpc)?;
        let other =
            if next == previous { None } else { Some(comm.connect(previous, tag, Transport::CudaIpc)?) };
        let semaphore = comm.build_semaphore(&connection, tag)?;
        let answer = other.as_ref().map(|other| comm.build_semaphore(other, tag)).transpose()?;
        comm.setup(late())?;
        made.push((theirs.get()?, connection.get()?, semaphore.get()?, answer));
    }
    let mut reduce = Reduce::new(comm)?;
    say("phase kernel");
    (0..CALLS).try_for_each(|call| reduce.call(call))?;
    say("phase flush");
    let (theirs, connection, ..) = &made[0];
    for _ in 0..COPIES {
        connection.write(theirs, 0, &mine, 0, mine.len())?;
        connection.flush(late())?;
    }
    // Leave together, after all ranks have received what they wait for.
    say("phase last");
    reduce.call(CALLS)
}

/// Makes a communicator of the surviving ranks and repeats the work in the same context.
fn go_on(comm: &Communicator, why: &Error) -> Result<()> {
    say(format_args!("lost {:?}: {why}", comm.lost()));
    let fewer = comm.shrink(&[], late())?;
    let mut reduce = Reduce::new(&fewer)?;
    (0..4).try_for_each(|call| reduce.call(call))?;
    say(format_args!("went on as rank {} of {}", fewer.rank(), fewer.size()));
    fewer.close(late())
}

/// An all-reduce whose values are checked.
struct Reduce<'a> {
    comm: &'a Communicator,
    reduce: Collective,
    stream: Stream,
    buffer: Arc<GpuBuffer>,
}

impl<'a> Reduce<'a> {
    fn new(comm: &'a Communicator) -> Result<Self> {
        let config = CollectiveConfig::default().with_variants([(Element::F32, Reduction::Sum)]);
        Ok(Self {
            comm,
            reduce: Collective::prepare(comm, Kind::AllReduce, config, late())?,
            stream: Stream::new(comm.context())?,
            buffer: Arc::new(GpuBuffer::new(comm.context(), COUNTS[1] * 4)?),
        })
    }

    fn call(&mut self, call: u32) -> Result<()> {
        let (me, size, count) = (self.comm.rank(), self.comm.size(), COUNTS[call as usize % COUNTS.len()]);
        let slice = self.buffer.slice(..count * 4)?;
        slice.upload(0, &elements(Element::F32, me, call, count), late())?;
        self.reduce.launch(&self.stream, &slice, &slice, count, Element::F32, Reduction::Sum)?;
        // An error, too, if the kernel left because of an abort: its values are incomplete.
        self.stream.synchronize(late())?;
        let mut seen = vec![0; count * 4];
        slice.download(0, &mut seen, late())?;
        let expected = reduced(Element::F32, Reduction::Sum, size, call, count);
        assert_same(&seen, &expected, format_args!("rank {me} of {size}, call {call}"));
        Ok(())
    }
}
