//! `aqueduct plan run`: measures and checks a plan over all ranks of the job.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use aqueduct::collective::{ElementType, ReduceOp};
use aqueduct::gpu::{DeviceSlice, GpuBuffer, Stream};
use aqueduct::plan::{Element, Executor, ExecutorConfig, Kind as Collective, Plan, PlanBuffers, Reduction};

use super::args::{Common, is_slow};
use super::checker::{Checker, GUARD, GUARD_BYTE};
use super::data::{Call, Expected, Kind};
use super::head::{Head, auto};
use super::need::Need;
use super::output::{self, Output, present};
use super::pace::Pace;
use super::record::{Place, Record};
use super::sweep::{Rounding, Sizes};
use super::table::NcclTable;
use super::timing::{EventClock, Launches, Session, sample};
use super::wide::choose;
use crate::refusal::refuse;

/// Largest size of the unmeasured calls between measured ones, which only change the size from call to call.
const DISTURBANCE: usize = 1 << 20;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Plan file
    pub(crate) file: PathBuf,
    #[command(flatten)]
    common: Common,
    /// Run a plan in which `plan check` finds something, such as the fragment of a collective
    #[arg(long)]
    unchecked: bool,
}

pub(crate) fn execute(args: &Args, plan: &Plan) -> Result<ExitCode> {
    let common = &args.common;
    let outlets = output::open(&common.results.files)?;
    let rank = Need::none().join()?;
    let session = Session::new(&rank);
    let shape = Shape::of(plan, rank.bootstrap.size());
    let (least, most) = range(plan, session.software());
    let (min, max) = common.sweep.bounds(least, most)?;
    let grain = shape.grain * common.datatype.bytes() as u64;
    let Sizes { list: sizes, note } = common.sweep.rounded(min, max, Rounding::Down, grain, "chunks");
    let mut bench = Bench::prepare(&session, args, plan, shape, &sizes)?;
    let checks = bench.checks();
    let mut head = Head::gather(&rank, &format!("plan {}", plan.name))?;
    head.line(format!(
        "{} minBytes {min} maxBytes {max} step: {} warmup iters: {} iters: {} validation: {} ({checks}) graph: {}",
        plan.collective.kind.name(),
        common.sweep.step(),
        auto(common.warmup),
        auto(common.iterations),
        common.check,
        common.graph,
    ));
    head.parameters(common.sweep.parameters((min, max)));
    head.parameters([
        ("plan", file_name(&args.file).into()),
        ("collective", plan.collective.kind.name().into()),
        ("iterations", common.iterations.into()),
        ("warmup", common.warmup.into()),
        ("check", common.check.into()),
        ("checked", checks.into()),
        ("graph", common.graph.into()),
        ("datatype", common.datatype.name().into()),
        ("reduction", common.op.name().into()),
    ]);
    head.parameters(common.pace.parameters());
    head.time(Pace::meaning("calls"));
    note.into_iter().for_each(|note| head.line(note));
    present(&session, &head, choose(common.results.stats, NcclTable::default()), outlets, |output| {
        (0..sizes.len()).try_for_each(|index| {
            session.progress.row(format!("{} B", sizes[index]));
            bench.measure(index, output)?;
            output.print()
        })
    })
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// The default smallest and largest size: what the plan's author meant it for, within what all-reduce measures.
fn range(plan: &Plan, software: bool) -> (u64, u64) {
    let (least, most) = if software { (1 << 10, 1 << 20) } else { (1 << 10, 256 << 20) };
    let most = plan.settings.max_bytes.clamp(8, most);
    (plan.settings.min_bytes.clamp(8, most).max(least.min(most)), most)
}

/// How sizes of a collective relate. A size is that of the larger of a rank's two buffers, as nccl-tests has it.
#[derive(Clone, Debug)]
struct Shape {
    collective: Collective,
    ranks: usize,
    /// A size is a multiple of so many elements.
    grain: u64,
}

impl Shape {
    fn of(plan: &Plan, ranks: u32) -> Self {
        let most = |count: fn(&aqueduct::plan::RankPlan) -> u32| {
            u64::from(plan.ranks.iter().map(count).max().unwrap_or(0)).max(1)
        };
        let (input, output) = (most(|rank| rank.input_chunks), most(|rank| rank.output_chunks));
        let collective = plan.collective.kind.clone();
        let grain = match collective {
            Collective::AllReduce
            | Collective::Broadcast { .. }
            | Collective::Reduce { .. }
            | Collective::SendRecv => 1,
            _ => input.max(output),
        };
        Self { collective, ranks: ranks as usize, grain }
    }

    /// Bytes of a rank's input and output.
    fn buffers(&self, bytes: usize) -> (usize, usize) {
        match self.collective {
            Collective::AllGather => (bytes / self.ranks, bytes),
            Collective::ReduceScatter => (bytes, bytes / self.ranks),
            _ => (bytes, bytes),
        }
    }

    /// Where input and output begin in one buffer that holds both.
    fn in_place(&self, rank: usize, bytes: usize) -> (usize, usize) {
        let (input, output) = self.buffers(bytes);
        match self.collective {
            Collective::AllGather => (rank * input, 0),
            Collective::ReduceScatter => (0, rank * output),
            _ => (0, 0),
        }
    }

    /// Parts of a rank's output in bytes, the data that each must be, and the element that the part's data begins with.
    fn expected(&self, call: &Call, rank: usize, bytes: usize) -> Vec<(usize, usize, Expected, u64)> {
        let (_, output) = self.buffers(bytes);
        let element = call.ty.bytes();
        let of = |rank: usize| call.operand(rank as u32);
        let parts = |each: usize, start: u64| {
            (0..self.ranks).map(move |peer| (peer * each, each, call.operand(peer as u32), start)).collect()
        };
        let whole = |expected: Expected, start: usize| vec![(0, output, expected, (start / element) as u64)];
        match self.collective {
            Collective::AllReduce => whole(call.result(), 0),
            Collective::AllGather => parts(bytes / self.ranks, 0),
            Collective::ReduceScatter => whole(call.result(), rank * output),
            Collective::AllToAll => {
                let each = bytes / self.ranks;
                parts(each, (rank * each / element) as u64)
            }
            Collective::Broadcast { root } => whole(of(root as usize), 0),
            Collective::Reduce { root } if root as usize == rank => whole(call.result(), 0),
            Collective::SendRecv => whole(of((rank + self.ranks - 1) % self.ranks), 0),
            Collective::Reduce { .. } | Collective::Custom(_) => Vec::new(),
        }
    }

    /// Bytes that cross a rank's link for each byte of a call, as nccl-tests counts them.
    fn bus_factor(&self) -> f64 {
        let others = (self.ranks as f64 - 1.0) / self.ranks as f64;
        match self.collective {
            Collective::AllReduce => 2.0 * others,
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => others,
            _ => 1.0,
        }
    }
}

/// Buffers and kernels for all sizes, allocated once.
struct Bench<'a> {
    session: &'a Session<'a>,
    common: &'a Common,
    plan: &'a Plan,
    shape: Shape,
    executor: Executor,
    shown: Option<PlanBuffers>,
    checker: Checker,
    stream: Stream,
    clock: EventClock,
    input: Arc<GpuBuffer>,
    output: Arc<GpuBuffer>,
    sizes: Vec<u64>,
    iteration: u32,
}

impl<'a> Bench<'a> {
    fn prepare(
        session: &'a Session<'a>,
        args: &'a Args,
        plan: &'a Plan,
        shape: Shape,
        sizes: &[u64],
    ) -> Result<Self> {
        let (rank, common) = (session.rank, &args.common);
        let most = usize::try_from(sizes.iter().copied().max().unwrap_or(0))?;
        let Some(element) = element(common.datatype) else {
            refuse!("plans do not know the type {}", common.datatype.name())
        };
        let mut config = ExecutorConfig::default()
            .with_variants([(element, reduction(common.op))])
            .with_max_bytes(shape.buffers(most).0 as u64);
        if args.unchecked {
            config = config.unchecked();
        }
        let executor = Executor::prepare(&rank.comm, plan, config, rank.deadline())?;
        let output = Arc::new(GpuBuffer::new(&rank.context, most + GUARD)?);
        let input = if plan.collective.in_place {
            output.clone()
        } else {
            Arc::new(GpuBuffer::new(&rank.context, most + GUARD)?)
        };
        // New memory may hold what a run before this one left, and so the right results.
        output.fill(GUARD_BYTE, rank.deadline())?;
        let shown = match executor.reaches_buffers() {
            true => Some(executor.prepare_buffers(&input, &output, rank.deadline())?),
            false => None,
        };
        Ok(Self {
            session,
            common,
            plan,
            shape,
            executor,
            shown,
            checker: Checker::prepare(rank, common.check_by, Kind::Element(common.datatype), common.op)?,
            stream: Stream::new(&rank.context)?,
            clock: EventClock::new(rank)?,
            input,
            output,
            sizes: sizes.to_vec(),
            iteration: 0,
        })
    }

    /// How data is checked, for the head.
    fn checks(&self) -> &'static str {
        match self.shape.collective {
            Collective::Custom(_) => "nothing is known about its results",
            _ => self.checker.meaning(),
        }
    }

    /// Checks and times one size. A check is a call of this size, one of another size, and one of this size again: what a call
    /// leaves behind must not disturb one of another size.
    fn measure(&mut self, index: usize, output: &mut Output) -> Result<()> {
        let rank = self.session.rank;
        let bytes = usize::try_from(self.sizes[index])?;
        let slow = self.session.software() && is_slow(bytes as u64);
        let mut wrong = None;
        for number in 1..=self.common.check {
            self.session.progress.step(|| format!("check {number} of {}", self.common.check));
            let other = usize::try_from(self.sizes[(index * 7 + 3) % self.sizes.len()])?.min(DISTURBANCE);
            let grain = usize::try_from(self.shape.grain)? * self.common.datatype.bytes();
            let mut mine = if slow { 0 } else { self.checked_call(bytes)? };
            mine += self.checked_call(other / grain * grain)?;
            mine += self.checked_call(bytes)?;
            if !matches!(self.shape.collective, Collective::Custom(_)) {
                wrong = Some(wrong.unwrap_or(0) + rank.sum(mine)?);
            }
        }
        let timing = self.common.plan(bytes as u64, self.session.software());
        let call = |stream: &Stream| self.launch(stream, bytes);
        let launches = Launches::prepare(&self.stream, self.common.graph, &call)?;
        let [timed] = sample(self.session, &timing, [&mut |calls| launches.time(rank, &self.clock, calls)])?;
        let place = if self.plan.collective.in_place { Place::InPlace } else { Place::OutOfPlace };
        let record = Record::measured("plan", timed.of_parts(launches.per_replay()));
        output.row(
            Record {
                place: Some(place),
                size_bytes: Some(bytes as u64),
                count: Some((bytes / self.common.datatype.bytes()) as u64),
                datatype: Some(self.common.datatype.name()),
                reduction: Some(self.common.op.name()),
                wrong,
                ..record
            }
            .moving(bytes as u64, self.shape.bus_factor()),
        )
    }

    fn launch(&self, stream: &Stream, bytes: usize) -> aqueduct::Result<()> {
        let (input, output) = self.slices(bytes)?;
        let count = self.shape.buffers(bytes).0 / self.common.datatype.bytes();
        let (element, reduction) =
            (element(self.common.datatype).unwrap_or(Element::U8), reduction(self.common.op));
        match &self.shown {
            Some(shown) => self.executor.execute_on(stream, shown, count, element, reduction),
            None => self.executor.execute(stream, &input, &output, count, element, reduction),
        }
    }

    /// Makes a call with data that no call had before, and returns the number of wrong elements and of touched guard bytes.
    fn checked_call(&mut self, bytes: usize) -> Result<u64> {
        let rank = self.session.rank;
        let me = rank.bootstrap.rank();
        self.iteration += 1;
        let call = Call {
            ty: self.common.datatype,
            op: self.common.op,
            ranks: rank.bootstrap.size(),
            iteration: self.iteration,
            count: bytes / self.common.datatype.bytes(),
        };
        let end = if self.plan.collective.in_place { bytes } else { self.shape.buffers(bytes).1 };
        let guard = self.output.slice(end..end + GUARD)?;
        guard.fill(GUARD_BYTE, rank.deadline())?;
        let (input, output) = self.slices(bytes)?;
        self.checker.fill(rank, &input, call.operand(me))?;
        self.launch(&self.stream, bytes)?;
        self.stream.synchronize(rank.deadline())?;
        let mut wrong = self.checker.touched(rank, &guard)?;
        for (at, len, expected, start) in self.shape.expected(&call, me as usize, bytes) {
            wrong += self.checker.wrong(rank, &output.slice(at..at + len)?, expected, start)?;
        }
        Ok(wrong)
    }

    fn slices(&self, bytes: usize) -> aqueduct::Result<(DeviceSlice, DeviceSlice)> {
        let me = self.session.rank.bootstrap.rank() as usize;
        let (input, output) = self.shape.buffers(bytes);
        let (input_at, output_at) =
            if self.plan.collective.in_place { self.shape.in_place(me, bytes) } else { (0, 0) };
        Ok((self.input.slice(input_at..input_at + input)?, self.output.slice(output_at..output_at + output)?))
    }
}

fn element(ty: ElementType) -> Option<Element> {
    Element::ALL.into_iter().find(|element| element.name() == ty.name())
}

fn reduction(op: ReduceOp) -> Option<Reduction> {
    match op {
        ReduceOp::Sum => Some(Reduction::Sum),
        ReduceOp::Min => Some(Reduction::Min),
        ReduceOp::Max => Some(Reduction::Max),
        _ => None,
    }
}
