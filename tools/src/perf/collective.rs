//! Measures and checks a collective: a plan of the user's, or a built-in collective out of place and in place.

use std::sync::Arc;

use anyhow::Result;
use aqueduct::collective::{Collective, CollectiveBuffers, CollectiveConfig, ElementType, ReduceOp};
use aqueduct::gpu::{DeviceSlice, GpuBuffer, Stream};
use aqueduct::plan::{Element, Executor, ExecutorConfig, Kind, Plan, PlanBuffers, Reduction};

use super::args::{Common, is_slow};
use super::checker::{Checker, GUARD, GUARD_BYTE};
use super::data::{self, Call, Expected};
use super::output::Output;
use super::record::{Place, Record};
use super::timing::{EventClock, Launches, Session, sample};
use crate::refusal::refuse;

/// Largest size of the unmeasured calls between measured ones, which only change the size from call to call.
const DISTURBANCE: usize = 1 << 20;

/// How sizes of a collective relate. A size is that of the larger of a rank's two buffers, as nccl-tests has it.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    kind: Kind,
    ranks: usize,
    /// A size is a multiple of so many elements.
    grain: u64,
}

impl Shape {
    pub(super) fn of_plan(plan: &Plan, ranks: u32) -> Self {
        let most = |count: fn(&aqueduct::plan::RankPlan) -> u32| {
            u64::from(plan.ranks.iter().map(count).max().unwrap_or(0)).max(1)
        };
        let (input, output) = (most(|rank| rank.input_chunks), most(|rank| rank.output_chunks));
        Self::new(plan.collective.kind.clone(), ranks, input.max(output))
    }

    /// Of a built-in collective.
    pub(super) fn built_in(kind: Kind, ranks: u32) -> Self {
        Self::new(kind, ranks, u64::from(ranks))
    }

    /// Of a collective whose buffers have up to `chunks` chunks.
    fn new(kind: Kind, ranks: u32, chunks: u64) -> Self {
        let grain = match kind {
            Kind::AllReduce | Kind::Broadcast { .. } | Kind::Reduce { .. } | Kind::SendRecv => 1,
            _ => chunks,
        };
        Self { kind, ranks: ranks as usize, grain }
    }

    /// A size is a multiple of so many elements.
    pub(super) fn grain(&self) -> u64 {
        self.grain
    }

    /// Whether data is combined.
    fn reduces(&self) -> bool {
        matches!(self.kind, Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce { .. } | Kind::Custom(_))
    }

    /// Bytes of a rank's input and output.
    fn buffers(&self, bytes: usize) -> (usize, usize) {
        match self.kind {
            Kind::AllGather => (bytes / self.ranks, bytes),
            Kind::ReduceScatter => (bytes, bytes / self.ranks),
            _ => (bytes, bytes),
        }
    }

    /// Where input and output begin in one buffer that holds both.
    fn in_place(&self, rank: usize, bytes: usize) -> (usize, usize) {
        let (input, output) = self.buffers(bytes);
        match self.kind {
            Kind::AllGather => (rank * input, 0),
            Kind::ReduceScatter => (0, rank * output),
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
        match self.kind {
            Kind::AllReduce => whole(call.result(), 0),
            Kind::AllGather => parts(bytes / self.ranks, 0),
            Kind::ReduceScatter => whole(call.result(), rank * output),
            Kind::AllToAll => {
                let each = bytes / self.ranks;
                parts(each, (rank * each / element) as u64)
            }
            Kind::Broadcast { root } => whole(of(root as usize), 0),
            Kind::Reduce { root } if root as usize == rank => whole(call.result(), 0),
            Kind::SendRecv => whole(of((rank + self.ranks - 1) % self.ranks), 0),
            Kind::Reduce { .. } | Kind::Custom(_) => Vec::new(),
        }
    }

    /// Bytes that cross a rank's link for each byte of a call, as nccl-tests counts them.
    fn bus_factor(&self) -> f64 {
        let others = (self.ranks as f64 - 1.0) / self.ranks as f64;
        match self.kind {
            Kind::AllReduce => 2.0 * others,
            Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll => others,
            _ => 1.0,
        }
    }
}

/// The measured operation.
enum Target {
    Plan {
        executor: Executor,
        shown: Option<Box<PlanBuffers>>,
        place: Place,
    },
    /// With buffers that are shown to the peers, out of place and in place.
    BuiltIn {
        collective: Collective,
        apart: CollectiveBuffers,
        one: CollectiveBuffers,
    },
}

/// Buffers and kernels for all sizes, allocated once.
pub(super) struct Bench<'a> {
    session: &'a Session<'a>,
    common: &'a Common,
    shape: Shape,
    target: Target,
    checker: Checker,
    stream: Stream,
    clock: EventClock,
    /// The input of calls out of place. Everything else is in the output.
    input: Arc<GpuBuffer>,
    output: Arc<GpuBuffer>,
    sizes: Vec<u64>,
    iteration: u32,
}

impl<'a> Bench<'a> {
    /// For a plan.
    pub(super) fn of_plan(
        session: &'a Session<'a>,
        common: &'a Common,
        plan: &Plan,
        unchecked: bool,
        shape: Shape,
        sizes: &[u64],
    ) -> Result<Self> {
        let rank = session.rank;
        let most = usize::try_from(sizes.iter().copied().max().unwrap_or(0))?;
        let mut config = ExecutorConfig::default()
            .with_variants([(element(common.datatype)?, reduction(common.op))])
            .with_max_bytes(shape.buffers(most).0 as u64);
        if unchecked {
            config = config.unchecked();
        }
        let executor = Executor::prepare(&rank.comm, plan, config, rank.deadline())?;
        let output = buffer(session, most)?;
        let place = if plan.collective.in_place { Place::InPlace } else { Place::OutOfPlace };
        let input = if place == Place::InPlace { output.clone() } else { buffer(session, most)? };
        let shown = match executor.reaches_buffers() {
            true => Some(Box::new(executor.prepare_buffers(&input, &output, rank.deadline())?)),
            false => None,
        };
        Self::new(session, common, shape, Target::Plan { executor, shown, place }, [input, output], sizes)
    }

    /// For a built-in collective.
    pub(super) fn built_in(
        session: &'a Session<'a>,
        common: &'a Common,
        shape: Shape,
        sizes: &[u64],
    ) -> Result<Self> {
        let rank = session.rank;
        let most = usize::try_from(sizes.iter().copied().max().unwrap_or(0))?;
        let mut config = CollectiveConfig::default();
        if let (true, Some(op)) = (shape.reduces(), reduction(common.op)) {
            config = config.with_variants([(element(common.datatype)?, op)]);
        }
        let collective = Collective::prepare(&rank.comm, shape.kind.clone(), config, rank.deadline())?;
        let (input, output) = (buffer(session, most)?, buffer(session, most)?);
        let apart = collective.buffers(&input, &output, rank.deadline())?;
        let one = collective.buffers(&output, &output, rank.deadline())?;
        let target = Target::BuiltIn { collective, apart, one };
        Self::new(session, common, shape, target, [input, output], sizes)
    }

    fn new(
        session: &'a Session<'a>,
        common: &'a Common,
        shape: Shape,
        target: Target,
        [input, output]: [Arc<GpuBuffer>; 2],
        sizes: &[u64],
    ) -> Result<Self> {
        let rank = session.rank;
        let kind = data::Kind::Element(common.datatype);
        Ok(Self {
            session,
            common,
            shape,
            target,
            checker: Checker::prepare(rank, common.check_by, kind, common.op)?,
            stream: Stream::new(&rank.context)?,
            clock: EventClock::new(rank)?,
            input,
            output,
            sizes: sizes.to_vec(),
            iteration: 0,
        })
    }

    /// How data is checked, for the head.
    pub(super) fn checks(&self) -> &'static str {
        match self.shape.kind {
            Kind::Custom(_) => "nothing is known about its results",
            _ => self.checker.meaning(),
        }
    }

    /// Checks and times one size at every place that there is.
    pub(super) fn measure(&mut self, index: usize, output: &mut Output) -> Result<()> {
        let places = match self.target {
            Target::Plan { place, .. } => vec![place],
            Target::BuiltIn { .. } => vec![Place::OutOfPlace, Place::InPlace],
        };
        places.into_iter().try_for_each(|place| output.row(self.row(index, place)?))
    }

    /// A check is a call of this size, one of another size, and one of this size again: what a call leaves behind must not disturb
    /// one of another size. Sizes that take the software device long go without the first call.
    fn row(&mut self, index: usize, place: Place) -> Result<Record> {
        let rank = self.session.rank;
        let bytes = usize::try_from(self.sizes[index])?;
        let slow = self.session.software() && is_slow(bytes as u64);
        let mut wrong = None;
        for number in 1..=self.common.check {
            self.session.progress.step(|| format!("check {number} of {}", self.common.check));
            let other = usize::try_from(self.sizes[(index * 7 + 3) % self.sizes.len()])?.min(DISTURBANCE);
            let grain = usize::try_from(self.shape.grain)? * self.common.datatype.bytes();
            let mut mine = if slow { 0 } else { self.checked_call(bytes, place)? };
            mine += self.checked_call(other / grain * grain, place)?;
            mine += self.checked_call(bytes, place)?;
            if !matches!(self.shape.kind, Kind::Custom(_)) {
                wrong = Some(wrong.unwrap_or(0) + rank.sum(mine)?);
            }
        }
        let timing = self.common.plan(bytes as u64, self.session.software());
        let call = |stream: &Stream| self.launch(stream, bytes, place);
        let launches = Launches::prepare(&self.stream, self.common.graph, &call)?;
        let [timed] = sample(self.session, &timing, [&mut |calls| launches.time(rank, &self.clock, calls)])?;
        let record = Record::measured(self.algorithm(bytes, place)?, timed.of_parts(launches.per_replay()));
        Ok(Record {
            place: Some(place),
            size_bytes: Some(bytes as u64),
            count: Some((bytes / self.common.datatype.bytes()) as u64),
            datatype: Some(self.common.datatype.name()),
            reduction: self.shape.reduces().then(|| self.common.op.name()),
            wrong,
            ..record
        }
        .moving(bytes as u64, self.shape.bus_factor()))
    }

    /// The name of the way that a call goes.
    fn algorithm(&self, bytes: usize, place: Place) -> Result<&str> {
        let Target::BuiltIn { collective, apart, one } = &self.target else { return Ok("plan") };
        let buffers = if place == Place::InPlace { one } else { apart };
        Ok(collective.algorithm_on(buffers, self.count(bytes), element(self.common.datatype)?)?)
    }

    /// Elements of a rank's input.
    fn count(&self, bytes: usize) -> usize {
        self.shape.buffers(bytes).0 / self.common.datatype.bytes()
    }

    fn launch(&self, stream: &Stream, bytes: usize, place: Place) -> aqueduct::Result<()> {
        let count = self.count(bytes);
        // `prepare` refused a type that plans do not know.
        let element = element(self.common.datatype).unwrap_or(Element::U8);
        let op = reduction(self.common.op);
        match &self.target {
            Target::Plan { executor, shown: Some(shown), .. } => {
                executor.execute_on(stream, shown, count, element, op)
            }
            Target::Plan { executor, shown: None, .. } => {
                let (input, output) = self.slices(bytes, place)?;
                executor.execute(stream, &input, &output, count, element, op)
            }
            Target::BuiltIn { collective, apart, one } => {
                let buffers = if place == Place::InPlace { one } else { apart };
                collective.launch_on(stream, buffers, count, element, op)
            }
        }
    }

    /// Makes a call with data that no call had before, and returns the number of wrong elements and of touched guard bytes.
    fn checked_call(&mut self, bytes: usize, place: Place) -> Result<u64> {
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
        let end = if place == Place::InPlace { bytes } else { self.shape.buffers(bytes).1 };
        let guard = self.output.slice(end..end + GUARD)?;
        guard.fill(GUARD_BYTE, rank.deadline())?;
        let (input, output) = self.slices(bytes, place)?;
        self.checker.fill(rank, &input, call.operand(me))?;
        self.launch(&self.stream, bytes, place)?;
        self.stream.synchronize(rank.deadline())?;
        let mut wrong = self.checker.touched(rank, &guard)?;
        for (at, len, expected, start) in self.shape.expected(&call, me as usize, bytes) {
            wrong += self.checker.wrong(rank, &output.slice(at..at + len)?, expected, start)?;
        }
        Ok(wrong)
    }

    fn slices(&self, bytes: usize, place: Place) -> aqueduct::Result<(DeviceSlice, DeviceSlice)> {
        let me = self.session.rank.bootstrap.rank() as usize;
        let (input, output) = self.shape.buffers(bytes);
        let (from, (input_at, output_at)) = match place {
            Place::InPlace => (&self.output, self.shape.in_place(me, bytes)),
            Place::OutOfPlace => (&self.input, (0, 0)),
        };
        Ok((from.slice(input_at..input_at + input)?, self.output.slice(output_at..output_at + output)?))
    }
}

/// A buffer for `bytes` and a guard. New memory may hold what a run before this one left, and so the right results.
fn buffer(session: &Session<'_>, bytes: usize) -> Result<Arc<GpuBuffer>> {
    let buffer = GpuBuffer::new(&session.rank.context, bytes + GUARD)?;
    buffer.fill(GUARD_BYTE, session.rank.deadline())?;
    Ok(Arc::new(buffer))
}

fn element(ty: ElementType) -> Result<Element> {
    let found = Element::ALL.into_iter().find(|element| element.name() == ty.name());
    let Some(element) = found else { refuse!("plans do not know the type {}", ty.name()) };
    Ok(element)
}

fn reduction(op: ReduceOp) -> Option<Reduction> {
    match op {
        ReduceOp::Sum => Some(Reduction::Sum),
        ReduceOp::Min => Some(Reduction::Min),
        ReduceOp::Max => Some(Reduction::Max),
        _ => None,
    }
}
