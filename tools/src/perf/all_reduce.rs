//! `aqueduct perf all-reduce`.

use std::sync::Arc;

use anyhow::Result;
use aqueduct::collective::{AllReduce, AllReduceConfig};
use aqueduct::gpu::{DeviceSlice, GpuBuffer, Stream};

use super::args::{Common, is_slow};
use super::checker::{Checker, GUARD, GUARD_BYTE};
use super::data::{Call, Kind};
use super::output::Output;
use super::record::{Place, Record};
use super::timing::{EventClock, Launches, Session, sample};

/// Largest size of the unmeasured calls between measured ones, which only change the size from call to call.
const DISTURBANCE: usize = 1 << 20;

/// Buffers and kernels for all sizes, allocated once.
pub(super) struct Bench<'a> {
    session: &'a Session<'a>,
    args: &'a Common,
    all_reduce: AllReduce,
    checker: Checker,
    stream: Stream,
    clock: EventClock,
    input: Arc<GpuBuffer>,
    output: Arc<GpuBuffer>,
    sizes: Vec<u64>,
    iteration: u32,
}

impl<'a> Bench<'a> {
    pub(super) fn prepare(session: &'a Session<'a>, args: &'a Common, sizes: &[u64]) -> Result<Self> {
        let rank = session.rank;
        let most = usize::try_from(sizes.iter().copied().max().unwrap_or(0))?;
        let config = AllReduceConfig::default().with_variants([(args.datatype, args.op)]);
        let all_reduce = AllReduce::prepare(&rank.comm, config, rank.deadline())?;
        let output = Arc::new(GpuBuffer::new(&rank.context, most + GUARD)?);
        // New memory may hold what a run before this one left, and so the right results.
        output.fill(GUARD_BYTE, rank.deadline())?;
        Ok(Self {
            session,
            args,
            all_reduce,
            checker: Checker::prepare(rank, args.check_by, Kind::Element(args.datatype), args.op)?,
            stream: Stream::new(&rank.context)?,
            clock: EventClock::new(rank)?,
            input: Arc::new(GpuBuffer::new(&rank.context, most + GUARD)?),
            output,
            sizes: sizes.to_vec(),
            iteration: 0,
        })
    }

    /// Checks and times one size, out of place and in place. A check is a call of this size, one of another size, and one of
    /// this size again: what a call leaves behind must not disturb one of another size. Sizes that take the software device
    /// long go without the first call.
    pub(super) fn measure(&mut self, index: usize, output: &mut Output) -> Result<()> {
        let count = usize::try_from(self.sizes[index])? / self.args.datatype.bytes();
        for place in [Place::OutOfPlace, Place::InPlace] {
            output.row(self.row(index, count, place)?)?;
        }
        Ok(())
    }

    fn row(&mut self, index: usize, count: usize, place: Place) -> Result<Record> {
        let rank = self.session.rank;
        let in_place = place == Place::InPlace;
        let bytes = count * self.args.datatype.bytes();
        let plan = self.args.plan(bytes as u64, self.session.software());
        let slow = self.session.software() && is_slow(bytes as u64);
        // A slow call that is timed once is itself the last one of the check.
        let once = slow && plan.is_one_call() && self.args.graph == 0;
        let (mut wrong, mut painted) = (None, None);
        for number in 1..=self.args.check {
            self.session.progress.step(|| format!("check {number} of {}", self.args.check));
            let other = self.sizes[(index * 7 + 3) % self.sizes.len()];
            let other = usize::try_from(other)?.min(DISTURBANCE) / self.args.datatype.bytes();
            let mut mine = if slow { 0 } else { self.checked_call(count, in_place)? };
            mine += self.checked_call(other, in_place)?;
            if once && number == self.args.check {
                painted = Some(self.paint(count, in_place)?);
            } else {
                mine += self.checked_call(count, in_place)?;
            }
            wrong = Some(wrong.unwrap_or(0) + rank.sum(mine)?);
        }
        let (input, output) = self.buffers(bytes, in_place)?;
        let call = |stream: &Stream| {
            self.all_reduce.launch(stream, &input, &output, count, self.args.datatype, self.args.op)
        };
        let launches = Launches::prepare(&self.stream, self.args.graph, &call)?;
        let [timed] = sample(self.session, &plan, [&mut |calls| launches.time(rank, &self.clock, calls)])?;
        if let Some(call) = &painted {
            let mine = self.wrong(call)?;
            wrong = Some(wrong.unwrap_or(0) + rank.sum(mine)?);
        }
        let ranks = f64::from(rank.bootstrap.size());
        let record =
            Record::measured(self.all_reduce.algorithm(bytes).name(), timed.of_parts(launches.per_replay()));
        Ok(Record {
            place: Some(place),
            size_bytes: Some(bytes as u64),
            count: Some(count as u64),
            datatype: Some(self.args.datatype.name()),
            reduction: Some(self.args.op.name()),
            wrong,
            ..record
        }
        .moving(bytes as u64, 2.0 * (ranks - 1.0) / ranks))
    }

    /// How data is checked, for the head.
    pub(super) fn checks(&self) -> &'static str {
        self.checker.meaning()
    }

    /// Makes a call with fresh data and returns the number of wrong elements.
    fn checked_call(&mut self, count: usize, in_place: bool) -> Result<u64> {
        let call = self.paint(count, in_place)?;
        let (input, output) = self.buffers(count * call.ty.bytes(), in_place)?;
        self.all_reduce.launch(&self.stream, &input, &output, count, call.ty, call.op)?;
        self.stream.synchronize(self.session.rank.deadline())?;
        self.wrong(&call)
    }

    /// Fills the input of the next call with data that no call had before, and the guard behind its output.
    fn paint(&mut self, count: usize, in_place: bool) -> Result<Call> {
        let rank = self.session.rank;
        self.iteration += 1;
        let call = Call {
            ty: self.args.datatype,
            op: self.args.op,
            ranks: rank.bootstrap.size(),
            iteration: self.iteration,
            count,
        };
        let bytes = count * call.ty.bytes();
        let (input, _) = self.buffers(bytes, in_place)?;
        // An element that no kernel writes holds data of an earlier call, which counts as wrong.
        self.output.slice(bytes..bytes + GUARD)?.fill(GUARD_BYTE, rank.deadline())?;
        self.checker.fill(rank, &input, call.operand(rank.bootstrap.rank()))?;
        Ok(call)
    }

    /// Number of wrong elements in the output of `call` and of wrong bytes in the guard behind it.
    fn wrong(&self, call: &Call) -> Result<u64> {
        let (rank, bytes) = (self.session.rank, call.count * call.ty.bytes());
        let wrong = self.checker.wrong(rank, &self.output.slice(..bytes)?, call.result(), 0)?;
        Ok(wrong + self.checker.touched(rank, &self.output.slice(bytes..bytes + GUARD)?)?)
    }

    fn buffers(&self, bytes: usize, in_place: bool) -> Result<(DeviceSlice, DeviceSlice)> {
        let output = self.output.slice(..bytes)?;
        let input = if in_place { output.clone() } else { self.input.slice(..bytes)? };
        Ok((input, output))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::as_two_ranks;
    use crate::perf::args::Args;
    use crate::perf::progress::Progress;

    /// The guard of a result of ten elements holds what a call for eleven writes there.
    #[test]
    fn a_call_that_writes_behind_the_result_is_found() {
        let wrong = as_two_ranks(|rank| {
            let session = Session { rank, progress: Progress::default() };
            let args = Args::all_reduce().common;
            let mut bench = Bench::prepare(&session, &args, &[64]).unwrap();
            let right = bench.checked_call(11, false).unwrap();
            let Common { datatype: ty, op, .. } = args;
            let shorter = Call { ty, op, ranks: 2, iteration: bench.iteration, count: 10 };
            (right, bench.wrong(&shorter).unwrap())
        });
        assert_eq!(wrong, [(0, 4); 2]);
    }
}
