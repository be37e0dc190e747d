//! `aqueduct perf put|get|ll8|ll16|ll128|signal`: a memory channel between the ranks of each pair (0 and 1, 2 and 3,
//! ...).
//!
//! `put` and `get` move data from the even rank to the odd one, or both ways at once, and are compared with the copy
//! engine in the same run.
//! Latencies are measured on the device: a message bounces inside one kernel, and a row is half a round trip. `ll16` is
//! compared with the same loop without the abort check and without the library.

use std::sync::Arc;

use anyhow::{Result, bail};
use aqueduct::channel::{MemoryChannel, PacketFormat};
use aqueduct::comm::{Connection, RegisteredMemory, Transport};
use aqueduct::gpu::{Event, GpuBuffer, Stream};
use aqueduct::plan::Reduction;

use super::args::{Args, Common, Operation};
use super::checker::{Checker, GUARD, GUARD_BYTE};
use super::data::{Expected, Kind};
use super::output::Output;
use super::ping_pong::{LatencyKernel, PingPong};
use super::record::{Record, Series};
use super::timing::{EventClock, Launches, Plan, Session, Until, sample};
use crate::refusal::refuse;

/// Buffers and channel of a pair of ranks, allocated once.
pub(super) struct Bench<'a> {
    session: &'a Session<'a>,
    args: &'a Args,
    operation: Operation,
    checker: Checker,
    stream: Stream,
    clock: EventClock,
    channel: MemoryChannel,
    connection: Connection,
    /// This rank's buffer, as large as the peer's.
    local: Arc<GpuBuffer>,
    /// Offset of the second half of each buffer.
    half: usize,
    local_memory: RegisteredMemory,
    remote_memory: RegisteredMemory,
    hop: Option<PingPong>,
    iteration: u32,
}

impl<'a> Bench<'a> {
    pub(super) fn prepare(
        session: &'a Session<'a>,
        args: &'a Args,
        operation: Operation,
        sizes: &[u64],
    ) -> Result<Self> {
        let rank = session.rank;
        let most = usize::try_from(sizes.iter().copied().max().unwrap_or(0))?.next_multiple_of(128).max(128);
        let format = packet_format(operation);
        let peer = rank.bootstrap.rank() ^ 1;
        let comm = &rank.comm;
        // Twice the size: data leaves from the first half and arrives in the second, with a guard behind it.
        let local = Arc::new(GpuBuffer::new(&rank.context, 2 * most + GUARD)?);
        let packets = match format.map(|f| f.packet_bytes(most)) {
            Some(Some(bytes)) => Some(Arc::new(GpuBuffer::new(&rank.context, bytes)?)),
            Some(None) => bail!("packets for {most} bytes exceed the address space"),
            None => None,
        };
        let connection = comm.connect(peer, 0, Transport::CudaIpc)?;
        let local_memory = comm.register_memory(&local, Transport::CudaIpc)?;
        let packet_memory = match &packets {
            Some(buffer) => Some(comm.register_memory(buffer, Transport::CudaIpc)?),
            None => None,
        };
        comm.send_memory(packet_memory.as_ref().unwrap_or(&local_memory), peer, 0)?;
        comm.send_memory(&local_memory, peer, 1)?;
        let (target, remote) = (comm.recv_memory(peer, 0)?, comm.recv_memory(peer, 1)?);
        let semaphore = comm.build_semaphore(&connection, 0)?;
        comm.setup(rank.deadline())?;
        let channel =
            MemoryChannel::new(&semaphore.get()?, &target.get()?, &local_memory, packet_memory.as_ref())?;
        if let Some(format) = format.filter(|&format| !channel.carries(format)) {
            bail!(
                "nothing says that NVLink joins the devices of ranks {} and {peer}, and {format} needs lines of 128 bytes \
                 that stay whole: use `aqueduct perf ll16`",
                comm.rank()
            );
        }
        let hop = match kernel_of(operation) {
            Some(kernel) => {
                let hop = PingPong::new(rank, kernel)?;
                enough_flags(
                    &args.common,
                    session.software(),
                    sizes.len() * if hop.has_bare() { 2 } else { 1 },
                )?;
                Some(hop)
            }
            None => None,
        };
        Ok(Self {
            session,
            args,
            operation,
            checker: Checker::prepare(rank, args.common.check_by, Kind::Byte, Reduction::Sum)?,
            stream: Stream::new(&rank.context)?,
            clock: EventClock::new(rank)?,
            channel,
            connection: connection.get()?,
            local,
            half: most,
            local_memory,
            remote_memory: remote.get()?,
            hop,
            iteration: 0,
        })
    }

    /// Checks and measures one size. Where there is something to compare it with, that is measured first, so that our row
    /// has the ratio as soon as it is there.
    pub(super) fn measure(&mut self, size: u64, output: &mut Output) -> Result<()> {
        let bytes = usize::try_from(size)?;
        match self.operation {
            Operation::Put | Operation::Get => self.bandwidth(bytes, output),
            _ => self.latency(bytes, output),
        }
    }

    /// Whether data leaves this rank.
    fn sends(&self) -> bool {
        self.args.bidirectional || self.session.rank.bootstrap.rank().is_multiple_of(2)
    }

    /// Whether data arrives at this rank.
    fn receives(&self) -> bool {
        self.args.bidirectional || !self.session.rank.bootstrap.rank().is_multiple_of(2)
    }

    fn bandwidth(&mut self, bytes: usize, output: &mut Output) -> Result<()> {
        let put = self.operation == Operation::Put;
        let rank = self.session.rank;
        let mut wrong = None;
        for number in 1..=self.args.common.check {
            self.session.progress.step(|| format!("check {number} of {}", self.args.common.check));
            let mine = self.check_copy(bytes, put)?;
            wrong = Some(wrong.unwrap_or(0) + rank.sum(mine)?);
        }
        let acts = if put { self.sends() } else { self.receives() };
        let half = self.half;
        let call = |stream: &Stream| match (acts, put) {
            (false, _) => Ok(()),
            (true, true) => self.channel.put(stream, half, 0, bytes),
            (true, false) => self.channel.get(stream, 0, half, bytes),
        };
        let launches = Launches::prepare(&self.stream, self.args.common.graph, &call)?;
        let copy = || match (acts, put) {
            (false, _) => Ok(()),
            (true, true) => self.connection.write(&self.remote_memory, half, &self.local_memory, 0, bytes),
            (true, false) => self.connection.read(&self.local_memory, half, &self.remote_memory, 0, bytes),
        };
        let plan = self.args.common.plan(bytes as u64, self.session.software());
        let record_event = |event: &Event| self.connection.record_event(event);
        let [ours, engine] = sample(
            self.session,
            &plan,
            [&mut |calls| launches.time(rank, &self.clock, calls), &mut |calls| {
                self.clock.time(rank, calls, record_event, copy)
            }],
        )?;
        let ways = if self.args.bidirectional { 2.0 } else { 1.0 };
        let engine = sized(Record::comparison("copy-eng", engine), bytes, ways);
        output.row(engine.clone())?;
        let ours = sized(Record::measured("hb", ours.of_parts(launches.per_replay())), bytes, ways);
        output.row(Record { wrong, ..ours.compared_with(&engine) })
    }

    /// Copies fresh data once and compares it at its target. Returns the number of wrong bytes.
    fn check_copy(&mut self, bytes: usize, put: bool) -> Result<u64> {
        self.iteration += 1;
        let (deadline, rank, half) = (self.session.rank.deadline(), self.session.rank, self.half);
        let me = rank.bootstrap.rank();
        self.local.slice(half..half + bytes + GUARD)?.fill(GUARD_BYTE, deadline)?;
        if self.sends() {
            self.checker.fill(rank, &self.local.slice(..bytes)?, Expected::bytes(me, self.iteration))?;
        }
        rank.barrier()?;
        if put && self.sends() {
            self.channel.put_with_signal(&self.stream, half, 0, bytes)?;
        }
        if put && self.receives() {
            self.channel.wait(&self.stream)?;
        }
        if !put && self.receives() {
            self.channel.get(&self.stream, 0, half, bytes)?;
        }
        self.stream.synchronize(deadline)?;
        rank.barrier()?;
        if !self.receives() {
            return Ok(0);
        }
        let (data, guard) = (half..half + bytes, half + bytes..half + bytes + GUARD);
        let expected = Expected::bytes(me ^ 1, self.iteration);
        let wrong = self.checker.wrong(rank, &self.local.slice(data)?, expected, 0)?;
        Ok(wrong + self.checker.touched(rank, &self.local.slice(guard)?)?)
    }

    /// How data is checked, for the head.
    pub(super) fn checks(&self) -> &'static str {
        self.checker.meaning()
    }

    fn latency(&mut self, bytes: usize, output: &mut Output) -> Result<()> {
        let rank = self.session.rank;
        let me = rank.bootstrap.rank();
        self.iteration += 1;
        self.checker.fill(rank, &self.local.slice(..bytes)?, Expected::bytes(me, self.iteration))?;
        let bare = match self.hop.as_ref().is_some_and(PingPong::has_bare) {
            true => Some(self.bounced(bytes, Series::Comparison)?),
            false => None,
        };
        if let Some(bare) = &bare {
            output.row(bare.clone())?;
        }
        let ours = self.bounced(bytes, Series::Measured)?;
        output.row(bare.map_or(ours.clone(), |bare| ours.compared_with(&bare)))
    }

    /// The row of our kernel or of the bare loop.
    fn bounced(&mut self, bytes: usize, series: Series) -> Result<Record> {
        let rank = self.session.rank;
        let (me, name) = (rank.bootstrap.rank(), self.operation.name());
        let plan = self.args.common.plan_of_round_trips(self.args.common.iterations, self.session.software());
        let Some(hop) = &mut self.hop else { bail!("perf {name} has no latency kernel") };
        self.local.slice(bytes..2 * bytes)?.fill(GUARD_BYTE, rank.deadline())?;
        rank.barrier()?;
        let (begins, bare) = (me.is_multiple_of(2), series == Series::Comparison);
        let [timed] = sample(
            self.session,
            &plan,
            [&mut |round_trips| hop.run(rank, &self.stream, &self.channel, bytes, round_trips, begins, bare)],
        )?;
        let mut record = sized(Record::timed(series, if bare { "bare" } else { &name }, timed), bytes, 1.0);
        if self.operation == Operation::Signal {
            // A signal moves no data.
            (record.algorithm_bandwidth_gb_s, record.bus_bandwidth_gb_s) = (None, None);
        } else if self.args.common.check > 0 {
            let arrived = self.local.slice(bytes..2 * bytes)?;
            let expected = Expected::bytes(me ^ 1, self.iteration);
            record.wrong = Some(rank.sum(self.checker.wrong(rank, &arrived, expected, 0)?)?);
        }
        Ok(record)
    }
}

/// Refuses more round trips than there are flags for, over `rows` rows.
fn enough_flags(args: &Common, software: bool, rows: usize) -> Result<()> {
    let fits = |iterations: Option<u32>| {
        let Plan { warmup, until, calls } = args.plan_of_round_trips(iterations, software);
        let Until::Samples(samples) = until else { return true };
        let warmup = if warmup > 0 { PingPong::flags(warmup) } else { 0 };
        let row = warmup + u64::from(samples) * PingPong::flags(calls);
        row * rows as u64 <= PingPong::FLAGS
    };
    if fits(args.iterations) {
        return Ok(());
    }
    // The largest number that fits, by halving.
    let (mut fitting, mut excess) = (0, u64::from(u32::MAX) + 1);
    while excess - fitting > 1 {
        let middle = fitting + (excess - fitting) / 2;
        if fits(u32::try_from(middle).ok()) { fitting = middle } else { excess = middle }
    }
    let all = PingPong::FLAGS;
    if fitting == 0 {
        refuse!(
            "there are {all} flags for the messages of a run, and its {rows} rows need more; use a smaller --warmup"
        );
    }
    refuse!(
        "there are {all} flags for the messages of a run, and its {rows} rows need more; use at most -n {fitting}"
    );
}

/// With the size of calls that move `bytes`.
fn sized(record: Record, bytes: usize, factor: f64) -> Record {
    let bytes = bytes as u64;
    let record = Record { size_bytes: Some(bytes), count: Some(bytes), ..record };
    Record { datatype: Some("byte"), reduction: Some("none"), ..record }.moving(bytes, factor)
}

/// Bytes of the smallest message of `operation`; sizes are multiples of it.
pub(super) fn grain(operation: Operation) -> u64 {
    packet_format(operation).map_or(1, |format| format.granularity() as u64)
}

fn packet_format(operation: Operation) -> Option<PacketFormat> {
    match operation {
        Operation::Ll8 => Some(PacketFormat::Ll8),
        Operation::Ll16 => Some(PacketFormat::Ll16),
        Operation::Ll128 => Some(PacketFormat::Ll128),
        _ => None,
    }
}

fn kernel_of(operation: Operation) -> Option<LatencyKernel> {
    match operation {
        Operation::Ll8 => Some(LatencyKernel::Ll8),
        Operation::Ll16 => Some(LatencyKernel::Ll16),
        Operation::Ll128 => Some(LatencyKernel::Ll128),
        Operation::Signal => Some(LatencyKernel::Signal),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Rank;
    use crate::job::tests::as_two_ranks;
    use crate::perf::ping_pong::LatencyKernel;
    use crate::perf::progress::Progress;

    fn with_bench<T>(rank: &Rank, operation: Operation, body: impl FnOnce(&mut Bench<'_>) -> T) -> T {
        let session = Session { rank, progress: Progress::default() };
        let mut args = Args::all_reduce();
        (args.common.iterations, args.common.warmup) = (Some(1), Some(0));
        body(&mut Bench::prepare(&session, &args, operation, &[1024]).unwrap())
    }

    /// Rank 0 puts a byte more than rank 1 expects.
    #[test]
    fn a_put_that_writes_behind_the_data_is_found() {
        let wrong = as_two_ranks(|rank| {
            with_bench(rank, Operation::Put, |bench| {
                let more = 1 - rank.bootstrap.rank() as usize;
                [0, more].map(|more| bench.check_copy(64 + more, true).unwrap())
            })
        });
        assert_eq!(wrong, [[0, 0], [0, 1]]);
    }

    /// The right data is there already, as after the bare row, and the kernel exchanges signals alone.
    #[test]
    fn data_that_came_before_the_row_is_not_taken_for_its_own() {
        const BYTES: usize = 64;
        let rows = as_two_ranks(|rank| {
            with_bench(rank, Operation::Ll16, |bench| {
                bench.hop = Some(PingPong::new(rank, LatencyKernel::Signal).unwrap());
                let target = bench.local.slice(BYTES..2 * BYTES).unwrap();
                let expected = Expected::bytes(rank.bootstrap.rank() ^ 1, bench.iteration);
                bench.checker.fill(rank, &target, expected).unwrap();
                bench.bounced(BYTES, Series::Measured).unwrap()
            })
        });
        for row in rows {
            // A byte of the data may be the guard's by chance.
            assert!(row.wrong > Some(2 * BYTES as u64 - 8), "{row:?}");
        }
    }
}
