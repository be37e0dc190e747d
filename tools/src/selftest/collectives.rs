//! Checks of all-reduce: types, reductions, sizes, placement of buffers, graphs, and two communicators at once.

use std::sync::Arc;

use anyhow::Result;
use aqueduct::collective::{Collective, CollectiveBuffers, CollectiveConfig};
use aqueduct::comm::{Communicator, CommunicatorConfig};
use aqueduct::gpu::{CaptureMode, DeviceSlice, GpuBuffer, GraphExec, Stream};
use aqueduct::plan::{Element, Kind, Reduction};

use super::check::{CANARY, Check, Ran};
use crate::perf::data::Call;

/// Element counts around a packet, a warp, a vector per rank and a slice; they grow and shrink.
const COUNTS: [usize; 18] =
    [0, 1, 2, 3, 5, 31, 257, 1023, 4097, 20_001, 4096, 4095, 1025, 256, 255, 33, 8, 7];
const FEW_COUNTS: [usize; 4] = [1, 1021, 8, 257];

/// `aqueduct perf` checks the others.
const REDUCTIONS: [Reduction; 3] = [Reduction::Sum, Reduction::Min, Reduction::Max];

/// Bytes around input and output that no call may write.
const GUARD: usize = 256;

/// Placement of a call's buffers: the first element of input and output, and whether both are one buffer.
const PLACES: [(usize, usize, bool); 4] = [(0, 0, true), (1, 3, false), (0, 0, false), (1, 1, true)];

/// A way for the data of an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// As packets.
    Packets,
    /// Through scratch.
    TwoShot,
    /// Between buffers that the peers reach, which begin where a call's data does.
    ZeroCopy,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::Packets, Self::TwoShot, Self::ZeroCopy];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::TwoShot => "two-shot",
            Self::ZeroCopy => "zero-copy",
        }
    }

    /// Settings with which all calls go this way, or, as packets, all that usually do.
    fn config(self, variants: impl IntoIterator<Item = (Element, Reduction)>) -> CollectiveConfig {
        let config = CollectiveConfig::default().with_variants(variants);
        if self == Self::Packets { config } else { config.with_packet_bytes(0) }
    }
}

/// One rank's side of an all-reduce, with buffers for the largest call.
struct Bench<'a> {
    check: &'a Check<'a>,
    stream: Stream,
    reduce: Collective,
    input: Arc<GpuBuffer>,
    output: Arc<GpuBuffer>,
    /// If peers reach them: both buffers, and the output alone.
    shown: Option<[CollectiveBuffers; 2]>,
}

impl<'a> Bench<'a> {
    /// `most` returns the size of the largest call in bytes.
    fn new(
        check: &'a Check<'a>,
        comm: &Communicator,
        config: CollectiveConfig,
        most: impl FnOnce(&Collective) -> Result<usize>,
    ) -> Result<Self> {
        let reduce = Collective::prepare(comm, Kind::AllReduce, config, check.deadline())?;
        let most = most(&reduce)? + GUARD;
        let stream = Stream::new(comm.context())?;
        let (input, output) = (check.buffer(most)?, check.buffer(most)?);
        Ok(Self { check, stream, reduce, input, output, shown: None })
    }

    /// With the settings of a way.
    fn by(
        check: &'a Check<'a>,
        comm: &Communicator,
        way: Way,
        variants: impl IntoIterator<Item = (Element, Reduction)>,
        most: impl FnOnce(&Collective) -> Result<usize>,
    ) -> Result<Self> {
        let mut bench = Self::new(check, comm, way.config(variants), most)?;
        if way == Way::ZeroCopy {
            bench.shown = Some([bench.show(&bench.input)?, bench.show(&bench.output)?]);
        }
        Ok(bench)
    }

    fn show(&self, input: &Arc<GpuBuffer>) -> Result<CollectiveBuffers> {
        Ok(self.reduce.buffers(input, &self.output, self.check.deadline())?)
    }

    /// Enqueues a call. Shown buffers begin where it does.
    fn launch(
        &self,
        stream: &Stream,
        shown: Option<&CollectiveBuffers>,
        [input, output]: [&DeviceSlice; 2],
        count: usize,
        (element, op): (Element, Reduction),
    ) -> aqueduct::Result<()> {
        match shown {
            Some(buffers) => self.reduce.launch_on(stream, buffers, count, element, op),
            None => self.reduce.launch(stream, input, output, count, element, op),
        }
    }

    /// Runs one call with fresh data and checks every byte of the output buffer, also those outside the call.
    fn call(&self, call: Call, place: (usize, usize, bool)) -> Result<()> {
        let (check, grain) = (self.check, call.ty.bytes());
        let (input_at, output_at, in_place) = match &self.shown {
            Some(_) => (0, 0, place.2),
            None => place,
        };
        let shown = self.shown.as_ref().map(|shown| &shown[usize::from(in_place)]);
        let (len, input_at, output_at) = (call.count * grain, input_at * grain, output_at * grain);
        let source = if in_place { &self.output } else { &self.input };
        self.output.fill(CANARY, check.deadline())?;
        source.upload(input_at, &call.input(check.me()), check.deadline())?;
        let (input, output) =
            (source.slice(input_at..input_at + len)?, self.output.slice(output_at..output_at + len)?);
        self.launch(&self.stream, shown, [&input, &output], call.count, (call.ty, call.op))?;
        check.done(&self.stream)?;
        let seen = check.contents(&self.output)?;
        let wrong = call.wrong(&seen[output_at..output_at + len]);
        let outside = seen[..output_at].iter().chain(&seen[output_at + len..]);
        let touched = outside.filter(|&&byte| byte != CANARY).count();
        if wrong > 0 || touched > 0 {
            let place = if in_place { "in place" } else { "out of place" };
            let way = match shown {
                Some(shown) => self.reduce.algorithm_on(shown, call.count, call.ty, None)?,
                None => self.reduce.algorithm(in_place, call.count, call.ty, None)?,
            };
            check.complain(format!(
                "{} of {} elements, {place}, {way}: {wrong} wrong, {touched} bytes outside overwritten",
                call.op.name(),
                call.count,
            ));
        }
        Ok(())
    }
}

/// Checks every reduction of `ty` by one way at boundary sizes, in place and out of place.
pub(super) fn reductions(check: &Check<'_>, way: Way, ty: Element) -> Result<Ran> {
    if let Some(why) = unreachable(check) {
        return Ok(why);
    }
    let grain = ty.bytes();
    let mut counts = if check.quick { FEW_COUNTS.to_vec() } else { COUNTS.to_vec() };
    let variants = REDUCTIONS.map(|op| (ty, op));
    let bench = Bench::by(check, &check.group.comm, way, variants, |reduce| {
        if way == Way::Packets {
            let most = most_of_packets(reduce, ty)?;
            counts.retain(|count| *count <= most);
            counts.extend((!check.quick).then_some(most));
        }
        Ok(counts.iter().max().map_or(0, |count| count * grain))
    })?;
    let (mut iteration, mut turn) = (0, 0);
    for op in REDUCTIONS {
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

/// Checks the library's choice of a way: sizes at the limit and one element below and above it, alternating.
pub(super) fn chosen(check: &Check<'_>) -> Result<Ran> {
    if let Some(why) = unreachable(check) {
        return Ok(why);
    }
    let (ty, op) = (Element::F32, Reduction::Sum);
    let config = CollectiveConfig::default().with_variants([(ty, op)]);
    let bench = Bench::new(check, &check.group.comm, config, |reduce| {
        Ok((most_of_packets(reduce, ty)? + 1) * ty.bytes())
    })?;
    let count = most_of_packets(&bench.reduce, ty)?;
    let counts = [count, count + 1, 3, count - 1, count + 1, 5, count];
    for (turn, count) in counts.into_iter().enumerate() {
        let call = Call { ty, op, ranks: check.size(), iteration: turn as u32 + 1, count };
        bench.call(call, PLACES[turn % PLACES.len()])?;
    }
    check.agree(true)?;
    Ok(Ran::all(format!("{} calls around {} bytes, alternating with small ones", counts.len(), count * 4)))
}

/// Captures two calls of different sizes and replays them: with fresh data each time, then without the host in between.
pub(super) fn replayed(check: &Check<'_>, way: Way) -> Result<Ran> {
    if let Some(why) = unreachable(check) {
        return Ok(why);
    }
    const COUNT: usize = 1500;
    const FEW: usize = 3;
    const SUM: Reduction = Reduction::Sum;
    let variants = [(Element::F32, SUM), (Element::I32, SUM)];
    let many = Bench::by(check, &check.group.comm, way, variants, |_| Ok(COUNT * 4))?;
    let (input, output) = (check.buffer(FEW * 4)?, check.buffer(FEW * 4)?);
    let whole = |buffer: &Arc<GpuBuffer>| buffer.slice(..);
    let many_buffers = [whole(&many.input)?, whole(&many.output)?];
    let few_buffers = [whole(&input)?, whole(&output)?];
    let many_shown = many.shown.as_ref().map(|[apart, _]| apart);
    let few_shown = many_shown.map(|_| many.reduce.buffers(&input, &output, check.deadline())).transpose()?;
    let graph = GraphExec::capture(&many.stream, CaptureMode::ThreadLocal, |stream| {
        many.launch(stream, many_shown, many_buffers.each_ref(), COUNT, (Element::F32, SUM))?;
        many.launch(stream, few_shown.as_ref(), few_buffers.each_ref(), FEW, (Element::I32, SUM))
    })?;
    for (iteration, replays) in [(1, 1), (2, 1), (3, 4), (4, 1)] {
        let call = |ty, count| Call { ty, op: SUM, ranks: check.size(), iteration, count };
        let (large, small) = (call(Element::F32, COUNT), call(Element::I32, FEW));
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
    let call = Call { ty: Element::F32, op: SUM, ranks: check.size(), iteration: 5, count: COUNT };
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
    let variants = [(Element::F32, Reduction::Sum)];
    let mut jobs = Vec::new();
    for (comm, way) in [(&check.group.comm, Way::Packets), (&second, Way::TwoShot)] {
        jobs.push(Bench::by(check, comm, way, variants, |_| Ok(turns * COUNT * 4))?);
    }
    let call = |job: usize, turn: usize| Call {
        ty: Element::F32,
        op: Reduction::Sum,
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
            job.reduce.launch(&job.stream, &input, &output, COUNT, Element::F32, Reduction::Sum)?;
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

/// The most elements that go as packets; the choice changes only once.
fn most_of_packets(reduce: &Collective, ty: Element) -> Result<usize> {
    let (mut serves, mut not) = (0, 1 << 28);
    while serves + 1 < not {
        let middle = usize::midpoint(serves, not);
        match reduce.algorithm(false, middle, ty, None)? {
            "packets" => serves = middle,
            _ => not = middle,
        }
    }
    Ok(serves)
}

fn unreachable(check: &Check<'_>) -> Option<Ran> {
    let all = check.group.comm.topology().all_reachable();
    (!all).then(|| Ran::not("needs peer access between the devices of all ranks"))
}
