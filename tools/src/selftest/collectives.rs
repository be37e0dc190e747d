//! Checks of all-reduce: types, reductions, sizes, placement of buffers, graphs, and two communicators at once.

use std::sync::Arc;

use anyhow::Result;
use aqueduct::collective::{Algorithm, AllReduce, AllReduceConfig, ElementType, ReduceOp};
use aqueduct::comm::{Communicator, CommunicatorConfig};
use aqueduct::gpu::{CaptureMode, GpuBuffer, GraphExec, Stream};

use super::check::{CANARY, Check, Ran};
use crate::perf::data::Call;

/// Element counts around a packet, a warp, a vector per rank and a slice; they grow and shrink.
const COUNTS: [usize; 18] =
    [0, 1, 2, 3, 5, 31, 257, 1023, 4097, 20_001, 4096, 4095, 1025, 256, 255, 33, 8, 7];
const FEW_COUNTS: [usize; 4] = [1, 1021, 8, 257];

/// Bytes around input and output that no call may write.
const GUARD: usize = 256;

/// Placement of a call's buffers: the first element of input and output, and whether both are one buffer.
const PLACES: [(usize, usize, bool); 4] = [(0, 0, true), (1, 3, false), (0, 0, false), (1, 1, true)];

/// One rank's side of an all-reduce, with buffers for the largest call.
struct Bench<'a> {
    check: &'a Check<'a>,
    stream: Stream,
    reduce: AllReduce,
    input: Arc<GpuBuffer>,
    output: Arc<GpuBuffer>,
}

impl<'a> Bench<'a> {
    /// `most` returns the size of the largest call in bytes.
    fn new(
        check: &'a Check<'a>,
        comm: &Communicator,
        config: AllReduceConfig,
        most: impl FnOnce(&AllReduce) -> usize,
    ) -> Result<Self> {
        let reduce = AllReduce::prepare(comm, config, check.deadline())?;
        let most = most(&reduce) + GUARD;
        let stream = Stream::new(comm.context())?;
        Ok(Self { check, stream, reduce, input: check.buffer(most)?, output: check.buffer(most)? })
    }

    /// Runs one call with fresh data and checks every byte of the output buffer, also those outside the call.
    fn call(&self, call: Call, (input_at, output_at, in_place): (usize, usize, bool)) -> Result<()> {
        let (check, grain) = (self.check, call.ty.bytes());
        let (len, input_at, output_at) = (call.count * grain, input_at * grain, output_at * grain);
        let source = if in_place { &self.output } else { &self.input };
        self.output.fill(CANARY, check.deadline())?;
        source.upload(input_at, &call.input(check.me()), check.deadline())?;
        let (input, output) =
            (source.slice(input_at..input_at + len)?, self.output.slice(output_at..output_at + len)?);
        self.reduce.launch(&self.stream, &input, &output, call.count, call.ty, call.op)?;
        check.done(&self.stream)?;
        let seen = check.contents(&self.output)?;
        let wrong = call.wrong(&seen[output_at..output_at + len]);
        let outside = seen[..output_at].iter().chain(&seen[output_at + len..]);
        let touched = outside.filter(|&&byte| byte != CANARY).count();
        if wrong > 0 || touched > 0 {
            let place = if in_place { "in place" } else { "out of place" };
            check.complain(format!(
                "{} of {} elements, {place}, {}: {wrong} wrong, {touched} bytes outside overwritten",
                call.op.name(),
                call.count,
                self.reduce.algorithm(len)
            ));
        }
        Ok(())
    }
}

/// Checks every reduction of `ty` by `algorithm` at boundary sizes, in place and out of place.
pub(super) fn reductions(check: &Check<'_>, algorithm: Algorithm, ty: ElementType) -> Result<Ran> {
    if let Some(why) = unreachable(check) {
        return Ok(why);
    }
    let config =
        AllReduceConfig::default().with_variants(ReduceOp::ALL.map(|op| (ty, op))).with_algorithm(algorithm);
    let grain = ty.bytes();
    let mut counts = if check.quick { FEW_COUNTS.to_vec() } else { COUNTS.to_vec() };
    let bench = Bench::new(check, &check.group.comm, config, |reduce| {
        counts.retain(|count| reduce.algorithm(count * grain) == algorithm);
        if algorithm == Algorithm::OneShotLl16 && !check.quick {
            counts.push(one_shot_limit(reduce) / grain);
        }
        counts.iter().max().map_or(0, |count| count * grain)
    })?;
    let (mut iteration, mut turn) = (0, 0);
    for op in ReduceOp::ALL {
        for &count in &counts {
            iteration += 1;
            let call = Call { ty, op, ranks: check.size(), iteration, count };
            bench.call(call, PLACES[turn % PLACES.len()])?;
            turn += 1;
        }
        // Shift the placement, or each size would always get the same one.
        turn += 1;
    }
    check.agree(true)?;
    let most = counts.iter().max().map_or(0, |count| count * grain);
    Ok(Ran::all(format!("{iteration} calls: sum, min, max; in and out of place; {most} bytes at most")))
}

/// Checks the library's choice of an algorithm: sizes at the limit and one element below and above it, alternating.
pub(super) fn chosen(check: &Check<'_>) -> Result<Ran> {
    if let Some(why) = unreachable(check) {
        return Ok(why);
    }
    let (ty, op) = (ElementType::F32, ReduceOp::Sum);
    let config = AllReduceConfig::default().with_variants([(ty, op)]);
    let bench = Bench::new(check, &check.group.comm, config, |reduce| one_shot_limit(reduce) + ty.bytes())?;
    let count = one_shot_limit(&bench.reduce) / ty.bytes();
    let counts = [count, count + 1, 3, count - 1, count + 1, 5, count];
    for (turn, count) in counts.into_iter().enumerate() {
        let call = Call { ty, op, ranks: check.size(), iteration: turn as u32 + 1, count };
        bench.call(call, PLACES[turn % PLACES.len()])?;
    }
    check.agree(true)?;
    Ok(Ran::all(format!("{} calls around {} bytes, alternating with small ones", counts.len(), count * 4)))
}

/// Captures two calls of different sizes and replays them: with fresh data each time, then without the host in between.
pub(super) fn replayed(check: &Check<'_>, algorithm: Algorithm) -> Result<Ran> {
    if let Some(why) = unreachable(check) {
        return Ok(why);
    }
    const COUNT: usize = 1500;
    const FEW: usize = 3;
    const SUM: ReduceOp = ReduceOp::Sum;
    let variants = [(ElementType::F32, SUM), (ElementType::I32, SUM)];
    let config = AllReduceConfig::default().with_variants(variants).with_algorithm(algorithm);
    let many = Bench::new(check, &check.group.comm, config, |_| COUNT * 4)?;
    let (input, output) = (check.buffer(FEW * 4)?, check.buffer(FEW * 4)?);
    let whole = |buffer: &Arc<GpuBuffer>| buffer.slice(..);
    let (many_input, many_output) = (whole(&many.input)?, whole(&many.output)?);
    let (few_input, few_output) = (whole(&input)?, whole(&output)?);
    let graph = GraphExec::capture(&many.stream, CaptureMode::ThreadLocal, |stream| {
        many.reduce.launch(stream, &many_input, &many_output, COUNT, ElementType::F32, SUM)?;
        many.reduce.launch(stream, &few_input, &few_output, FEW, ElementType::I32, SUM)
    })?;
    for (iteration, replays) in [(1, 1), (2, 1), (3, 4), (4, 1)] {
        let call = |ty, count| Call { ty, op: SUM, ranks: check.size(), iteration, count };
        let (large, small) = (call(ElementType::F32, COUNT), call(ElementType::I32, FEW));
        many.input.upload(0, &large.input(check.me()), check.deadline())?;
        check.load(&input, &small.input(check.me()))?;
        many.output.fill(CANARY, check.deadline())?;
        output.fill(CANARY, check.deadline())?;
        for _ in 0..replays {
            graph.launch(&many.stream)?;
        }
        check.done(&many.stream)?;
        let wrong =
            large.wrong(&check.contents(&many.output)?[..COUNT * 4]) + small.wrong(&check.contents(&output)?);
        check.expect(wrong == 0, format_args!("{wrong} wrong elements after replay {iteration}"));
    }
    // A plain call after the replays uses the same scratch memory.
    let call = Call { ty: ElementType::F32, op: SUM, ranks: check.size(), iteration: 5, count: COUNT };
    many.call(call, PLACES[0])?;
    check.agree(true)?;
    Ok(Ran::all("two calls captured, seven replays, a plain call after them"))
}

/// Runs two communicators over the same ranks at the same time, each on a stream of its own.
pub(super) fn side_by_side(check: &Check<'_>) -> Result<Ran> {
    if let Some(why) = unreachable(check) {
        return Ok(why);
    }
    const COUNT: usize = 2000;
    let turns = if check.quick { 4 } else { 16 };
    let rank = check.rank;
    let second =
        Communicator::new(&rank.bootstrap, &rank.context, CommunicatorConfig::from_env()?, check.deadline())?;
    let variants = [(ElementType::F32, ReduceOp::Sum)];
    let mut jobs = Vec::new();
    for (comm, algorithm) in [(&check.group.comm, Algorithm::OneShotLl16), (&second, Algorithm::TwoShotHb)] {
        let config = AllReduceConfig::default().with_variants(variants).with_algorithm(algorithm);
        jobs.push(Bench::new(check, comm, config, |_| turns * COUNT * 4)?);
    }
    let call = |job: usize, turn: usize| Call {
        ty: ElementType::F32,
        op: ReduceOp::Sum,
        ranks: check.size(),
        iteration: (turn * 2 + job) as u32,
        count: COUNT,
    };
    let place = |turn: usize| turn * COUNT * 4..(turn + 1) * COUNT * 4;
    for (number, job) in jobs.iter().enumerate() {
        job.output.fill(CANARY, check.deadline())?;
        for turn in 0..turns {
            job.input.upload(place(turn).start, &call(number, turn).input(check.me()), check.deadline())?;
        }
    }
    check.agree(true)?;
    for turn in 0..turns {
        // Ranks launch the two in different orders: neither may depend on the other.
        let order = if check.me().is_multiple_of(2) { [0, 1] } else { [1, 0] };
        for number in order {
            let job = &jobs[number];
            let (input, output) = (job.input.slice(place(turn))?, job.output.slice(place(turn))?);
            job.reduce.launch(&job.stream, &input, &output, COUNT, ElementType::F32, ReduceOp::Sum)?;
        }
    }
    for (number, job) in jobs.iter().enumerate() {
        check.done(&job.stream)?;
        let seen = check.contents(&job.output)?;
        let wrong: u64 = (0..turns).map(|turn| call(number, turn).wrong(&seen[place(turn)])).sum();
        check.expect(wrong == 0, format_args!("{wrong} wrong elements in group {number}"));
    }
    check.agree(true)?;
    drop(jobs);
    second.close(check.deadline())?;
    Ok(Ran::all(format!("{turns} all-reduces in each, launched in opposite order on even and odd ranks")))
}

/// The largest call in bytes that uses the one-shot algorithm; the choice changes only once.
fn one_shot_limit(reduce: &AllReduce) -> usize {
    let (mut serves, mut not) = (0, 1 << 30);
    while serves + 1 < not {
        let middle = usize::midpoint(serves, not);
        match reduce.algorithm(middle) {
            Algorithm::OneShotLl16 => serves = middle,
            _ => not = middle,
        }
    }
    serves
}

fn unreachable(check: &Check<'_>) -> Option<Ran> {
    let all = check.group.comm.topology().all_reachable();
    (!all).then(|| Ran::not("needs peer access between the devices of all ranks"))
}
