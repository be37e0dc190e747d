//! `aqueduct perf all-reduce`.

use std::sync::Arc;

use anyhow::Result;
use aqueduct::collective::{AllReduce, AllReduceConfig};
use aqueduct::gpu::{DeviceSlice, GpuBuffer, Stream};

use super::args::Args;
use super::data::Call;
use super::report::{Measured, Row, measured};
use super::timing;
use crate::job::Rank;

/// Bytes behind the output that no call may write.
const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xA5;

/// Largest size of the unmeasured calls between measured ones, which only change the size from call to call.
const DISTURBANCE: usize = 1 << 20;

/// Buffers and kernels for all sizes, allocated once.
pub(super) struct Bench<'a> {
    rank: &'a Rank,
    args: &'a Args,
    all_reduce: AllReduce,
    stream: Stream,
    input: Arc<GpuBuffer>,
    output: Arc<GpuBuffer>,
    sizes: Vec<u64>,
    iteration: u32,
}

impl<'a> Bench<'a> {
    pub(super) fn prepare(rank: &'a Rank, args: &'a Args, sizes: &[u64]) -> Result<Self> {
        let most = usize::try_from(sizes.iter().copied().max().unwrap_or(0))?;
        let config = AllReduceConfig::default().with_variants([(args.datatype, args.op)]);
        let all_reduce = AllReduce::prepare(&rank.comm, config, rank.deadline())?;
        Ok(Self {
            rank,
            args,
            all_reduce,
            stream: Stream::new(&rank.context)?,
            input: Arc::new(GpuBuffer::new(&rank.context, most + GUARD)?),
            output: Arc::new(GpuBuffer::new(&rank.context, most + GUARD)?),
            sizes: sizes.to_vec(),
            iteration: 0,
        })
    }

    /// Checks and times one size, out of place and in place.
    pub(super) fn row(&mut self, index: usize) -> Result<Row> {
        let bytes = self.sizes[index];
        let count = usize::try_from(bytes)? / self.args.datatype.bytes();
        let out_of_place = self.measure(index, count, false)?;
        let in_place = self.measure(index, count, true)?;
        Ok(Row {
            size: (count * self.args.datatype.bytes()) as u64,
            count: count as u64,
            datatype: self.args.datatype.name().to_owned(),
            redop: self.args.op.name().to_owned(),
            algorithm: self.all_reduce.algorithm(count * self.args.datatype.bytes()).name().to_owned(),
            out_of_place: Some(out_of_place),
            in_place: Some(in_place),
        })
    }

    fn measure(&mut self, index: usize, count: usize, in_place: bool) -> Result<Measured> {
        let mut wrong = None;
        for _ in 0..self.args.check {
            let mine = self.check(index, count, in_place)?;
            wrong = Some(wrong.unwrap_or(0) + self.rank.sum(mine)?);
        }
        let bytes = count * self.args.datatype.bytes();
        let (input, output) = self.buffers(bytes, in_place)?;
        let plan = timing::Plan::choose(self.args, bytes as u64, self.rank.context.driver().is_software());
        self.rank.barrier()?;
        let times = timing::run(self.rank, &self.stream, &plan, |stream| {
            self.all_reduce.launch(stream, &input, &output, count, self.args.datatype, self.args.op)
        })?;
        let ranks = f64::from(self.rank.bootstrap.size());
        Ok(measured(&times, bytes as u64, 2.0 * (ranks - 1.0) / ranks, wrong))
    }

    /// Counts wrong elements over calls of this size, another size, and this size again.
    fn check(&mut self, index: usize, count: usize, in_place: bool) -> Result<u64> {
        let other = self.sizes[(index * 7 + 3) % self.sizes.len()];
        let other = usize::try_from(other)?.min(DISTURBANCE) / self.args.datatype.bytes();
        let mut wrong = 0;
        for count in [count, other, count] {
            wrong += self.checked_call(count, in_place)?;
        }
        Ok(wrong)
    }

    fn checked_call(&mut self, count: usize, in_place: bool) -> Result<u64> {
        self.iteration += 1;
        let call = Call {
            ty: self.args.datatype,
            op: self.args.op,
            ranks: self.rank.bootstrap.size(),
            iteration: self.iteration,
            count,
        };
        let bytes = count * call.ty.bytes();
        let (input, output) = self.buffers(bytes, in_place)?;
        // Poison the output first, so that an element that no kernel wrote counts as wrong.
        self.output.slice(..bytes + GUARD)?.fill(GUARD_BYTE, self.rank.deadline())?;
        input.upload(0, &call.input(self.rank.bootstrap.rank()), self.rank.deadline())?;
        self.all_reduce.launch(&self.stream, &input, &output, count, call.ty, call.op)?;
        self.stream.synchronize(self.rank.deadline())?;
        let mut seen = vec![0u8; bytes + GUARD];
        self.output.slice(..bytes + GUARD)?.download(0, &mut seen, self.rank.deadline())?;
        let guard = seen[bytes..].iter().filter(|&&b| b != GUARD_BYTE).count();
        Ok(call.wrong(&seen[..bytes]) + guard as u64)
    }

    fn buffers(&self, bytes: usize, in_place: bool) -> Result<(DeviceSlice, DeviceSlice)> {
        let output = self.output.slice(..bytes)?;
        let input = if in_place { output.clone() } else { self.input.slice(..bytes)? };
        Ok((input, output))
    }
}
