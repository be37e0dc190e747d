//! Measures and checks a collective: a plan of the user's, or a built-in collective out of place and in place.

use std::sync::Arc;

use anyhow::Result;
use aqueduct::collective::{Collective, CollectiveBuffers, CollectiveConfig, Tuning};
use aqueduct::comm::Transport;
use aqueduct::gpu::{DeviceSlice, GpuBuffer, Stream};
use aqueduct::plan::cost::Span;
use aqueduct::plan::{Executor, ExecutorConfig, Plan, PlanBuffers};

use super::args::{Common, is_slow};
use super::checker::{Checker, GUARD, GUARD_BYTE};
use super::data::{self, Call, Expected};
use super::output::Output;
use super::record::{Place, Record};
use super::shape::Shape;
use super::simulated::{GARBAGE, LONGEST, Simulated};
use super::timing::{EventClock, Launches, Session, sample};

/// Largest size of the unmeasured calls between measured ones, which only change the size from call to call.
const DISTURBANCE: usize = 1 << 20;

/// The first calls find memory that is not mapped and code that is not loaded.
const CALLS_BEFORE_A_TRACE: u32 = 5;

/// How a plan is prepared.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kernels {
    /// Without the checks.
    pub(super) unchecked: bool,
    /// Kernels note times.
    pub(super) trace: bool,
    /// Port channels go over this transport, if not over that which the library chooses.
    pub(super) port_transport: Option<Transport>,
}

/// The measured operation.
enum Target {
    Plan {
        executor: Executor,
        shown: Option<Box<PlanBuffers>>,
        place: Place,
    },
    BuiltIn {
        collective: Collective,
        /// If they are shown to the peers: the buffers of calls out of place, and those of calls in place.
        shown: Option<Box<[CollectiveBuffers; 2]>>,
    },
}

/// Buffers and kernels for all sizes, allocated once.
pub(super) struct Bench<'a> {
    session: &'a Session<'a>,
    common: &'a Common,
    shape: Shape,
    target: Target,
    checker: Checker,
    /// For a plan of a collective that nobody knows.
    simulated: Option<Simulated>,
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
        kernels: Kernels,
        shape: Shape,
        sizes: &[u64],
    ) -> Result<Self> {
        let rank = session.rank;
        let most = usize::try_from(sizes.iter().copied().max().unwrap_or(0))?;
        let mut config = ExecutorConfig::default()
            .in_call_order()
            .with_variants([(common.datatype, Some(common.op))])
            .with_max_bytes(shape.buffers(most).0 as u64);
        if kernels.unchecked {
            config = config.unchecked();
        }
        if kernels.trace {
            config = config.with_trace();
        }
        if let Some(transport) = kernels.port_transport {
            config = config.with_port_transport(transport);
        }
        let executor = Executor::prepare(&rank.comm, plan, config, rank.deadline())?;
        let output = buffer(session, most)?;
        let place = if plan.collective.in_place { Place::InPlace } else { Place::OutOfPlace };
        let input = if place == Place::InPlace { output.clone() } else { buffer(session, most)? };
        let shown = match executor.reaches_buffers() {
            true => Some(Box::new(executor.prepare_buffers(&input, &output, rank.deadline())?)),
            false => None,
        };
        let target = Target::Plan { executor, shown, place };
        let bench = Self::new(session, common, shape, target, [input, output], sizes)?;
        Ok(Self { simulated: Simulated::of(plan), ..bench })
    }

    /// For a built-in collective, on buffers that are `shown` to the peers or not.
    pub(super) fn built_in(
        session: &'a Session<'a>,
        common: &'a Common,
        shape: Shape,
        shown: bool,
        sizes: &[u64],
    ) -> Result<Self> {
        Self::configured(session, common, shape, shown, sizes, CollectiveConfig::default().in_call_order())
    }

    /// For a built-in collective with choices of its own, on buffers that are shown to the peers. Nothing is pushed, because a table
    /// says nothing about that: by kernels large messages then go directly.
    pub(super) fn tuned(
        session: &'a Session<'a>,
        common: &'a Common,
        shape: Shape,
        sizes: &[u64],
        table: Tuning,
    ) -> Result<Self> {
        // Calls are on one stream, and several collectives may not fit a device together.
        let config = CollectiveConfig::default().in_call_order().with_tuning(table).with_push_bytes(0);
        Self::configured(session, common, shape, true, sizes, config)
    }

    fn configured(
        session: &'a Session<'a>,
        common: &'a Common,
        shape: Shape,
        shown: bool,
        sizes: &[u64],
        mut config: CollectiveConfig,
    ) -> Result<Self> {
        let rank = session.rank;
        let most = usize::try_from(sizes.iter().copied().max().unwrap_or(0))?;
        if shape.reduces() {
            config = config.with_variants([(common.datatype, common.op)]);
        }
        let collective = Collective::prepare(&rank.comm, shape.kind().clone(), config, rank.deadline())?;
        let (input, output) = (buffer(session, most)?, buffer(session, most)?);
        let show = |input| collective.buffers(input, &output, rank.deadline());
        let shown = if shown { Some(Box::new([show(&input)?, show(&output)?])) } else { None };
        let target = Target::BuiltIn { collective, shown };
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
            simulated: None,
            stream: Stream::new(&rank.context)?,
            clock: EventClock::new(rank)?,
            input,
            output,
            sizes: sizes.to_vec(),
            iteration: 0,
        })
    }

    /// How data is checked, for the head.
    pub(super) fn checks(&self) -> String {
        match &self.simulated {
            Some(_) => format!("against the simulator up to {LONGEST} bytes"),
            None => self.checker.meaning().to_owned(),
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

    /// The wrong values of all checks of one size, or `None` if nothing was checked. A check is a call of this size, one of another
    /// size, and one of this size again: what a call leaves behind must not disturb one of another size. Sizes that take the
    /// software device long go without the first call.
    pub(super) fn check(&mut self, index: usize, place: Place) -> Result<Option<u64>> {
        let (wrong, _) = self.check_but(index, place, false)?;
        Ok(wrong)
    }

    /// The same. If `last_is_timed`, the last call of the last check is the caller's: its data is returned instead.
    fn check_but(
        &mut self,
        index: usize,
        place: Place,
        last_is_timed: bool,
    ) -> Result<(Option<u64>, Option<Call>)> {
        let bytes = usize::try_from(self.sizes[index])?;
        let slow = self.is_slow(bytes);
        let (mut wrong, mut painted) = (None, None);
        for number in 1..=self.common.check {
            self.session.progress.step(|| format!("check {number} of {}", self.common.check));
            let other = usize::try_from(self.sizes[(index * 7 + 3) % self.sizes.len()])?.min(DISTURBANCE);
            let grain = usize::try_from(self.shape.grain())? * self.common.datatype.bytes();
            if !slow {
                let mine = self.checked_call(bytes, place)?;
                self.add(&mut wrong, mine)?;
            }
            let mine = self.checked_call(other / grain * grain, place)?;
            self.add(&mut wrong, mine)?;
            if last_is_timed && number == self.common.check {
                painted = Some(self.paint(bytes, place)?);
            } else {
                let mine = self.checked_call(bytes, place)?;
                self.add(&mut wrong, mine)?;
            }
        }
        // Right calls of another size say nothing about one whose results nobody knows.
        let known = self.simulated.is_none() || self.count(bytes) * self.common.datatype.bytes() <= LONGEST;
        Ok((wrong.filter(|&wrong| known || wrong > 0), painted))
    }

    /// Adds the wrong values of all ranks, where any are known: on all ranks or on none.
    fn add(&self, wrong: &mut Option<u64>, mine: Option<u64>) -> Result<()> {
        if let Some(mine) = mine {
            *wrong = Some(wrong.unwrap_or(0) + self.session.rank.sum(mine)?);
        }
        Ok(())
    }

    fn is_slow(&self, bytes: usize) -> bool {
        self.session.software() && is_slow(bytes as u64)
    }

    /// The stream of the calls.
    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Addresses of the input and the output of calls out of place.
    pub(super) fn addresses(&self) -> (u64, u64) {
        (self.input.ptr(), self.output.ptr())
    }

    /// Checks and times one size at one place.
    fn row(&mut self, index: usize, place: Place) -> Result<Record> {
        let rank = self.session.rank;
        let bytes = usize::try_from(self.sizes[index])?;
        let timing = self.common.plan(bytes as u64, self.session.software());
        // A slow call that is timed once is itself the last one of the check.
        let once = self.is_slow(bytes) && timing.is_one_call() && self.common.graph == 0;
        let (mut wrong, painted) = self.check_but(index, place, once)?;
        let call = |stream: &Stream| self.launch(stream, bytes, place);
        let launches = Launches::prepare(&self.stream, self.common.graph, &call)?;
        let [timed] = sample(self.session, &timing, [&mut |calls| launches.time(rank, &self.clock, calls)])?;
        if let Some(call) = &painted {
            self.add(&mut wrong, self.wrong(call, place)?)?;
        }
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

    /// Times of this rank's operations in a call of a plan, after calls that bring everything to its place.
    pub(super) fn trace(&self, bytes: u64) -> Result<Vec<Span>> {
        let (rank, bytes) = (self.session.rank, usize::try_from(bytes)?);
        let Target::Plan { executor, place, .. } = &self.target else { return Ok(Vec::new()) };
        for _ in 0..CALLS_BEFORE_A_TRACE {
            self.launch(&self.stream, bytes, *place)?;
        }
        self.stream.synchronize(rank.deadline())?;
        rank.barrier()?;
        self.launch(&self.stream, bytes, *place)?;
        self.stream.synchronize(rank.deadline())?;
        Ok(executor.trace(rank.deadline())?)
    }

    /// The name of the way that a call goes.
    pub(super) fn algorithm(&self, bytes: usize, place: Place) -> Result<&str> {
        let Target::BuiltIn { collective, shown } = &self.target else { return Ok("plan") };
        let (in_place, count, element) = (place == Place::InPlace, self.count(bytes), self.common.datatype);
        Ok(match shown {
            Some(shown) => collective.algorithm_on(&shown[usize::from(in_place)], count, element, None)?,
            None => collective.algorithm(in_place, count, element, None)?,
        })
    }

    /// Why calls go the way that they go: a line for each place and size from which on it is another one.
    pub(super) fn reasons(&self) -> Result<Vec<String>> {
        let Target::BuiltIn { collective, shown } = &self.target else { return Ok(Vec::new()) };
        let mut lines = Vec::new();
        for place in [Place::OutOfPlace, Place::InPlace] {
            let mut last = None;
            for &bytes in &self.sizes {
                let size = usize::try_from(bytes)?;
                let way = self.algorithm(size, place)?;
                if last.replace(way) != Some(way) {
                    let (in_place, count) = (place == Place::InPlace, self.count(size));
                    let why =
                        collective.explain(in_place, shown.is_some(), count, self.common.datatype, None)?;
                    lines.push(format!("{} from {bytes} B: {way}: {why}", place.name()));
                }
            }
        }
        Ok(lines)
    }

    /// The median time of a call out of place of one size, in microseconds. Collective.
    pub(super) fn median_us(&self, index: usize) -> Result<f64> {
        let (rank, bytes) = (self.session.rank, self.sizes[index]);
        let len = usize::try_from(bytes)?;
        let call = |stream: &Stream| self.launch(stream, len, Place::OutOfPlace);
        let launches = Launches::prepare(&self.stream, self.common.graph, &call)?;
        let plan = self.common.plan(bytes, self.session.software());
        let [timed] = sample(self.session, &plan, [&mut |calls| launches.time(rank, &self.clock, calls)])?;
        let mut samples = timed.of_parts(launches.per_replay()).samples_us;
        samples.sort_by(f64::total_cmp);
        Ok(samples[samples.len() / 2])
    }

    /// Elements of a rank's input.
    fn count(&self, bytes: usize) -> usize {
        self.shape.buffers(bytes).0 / self.common.datatype.bytes()
    }

    pub(super) fn launch(&self, stream: &Stream, bytes: usize, place: Place) -> aqueduct::Result<()> {
        let (count, element, op) = (self.count(bytes), self.common.datatype, self.common.op);
        match &self.target {
            Target::Plan { executor, shown: Some(shown), .. } => {
                executor.execute_on(stream, shown, count, element, op)
            }
            Target::Plan { executor, shown: None, .. } => {
                let (input, output) = self.slices(bytes, place)?;
                executor.execute(stream, &input, &output, count, element, op)
            }
            Target::BuiltIn { collective, shown: Some(shown) } => {
                let buffers = &shown[usize::from(place == Place::InPlace)];
                collective.launch_on(stream, buffers, count, element, op)
            }
            Target::BuiltIn { collective, shown: None } => {
                let (input, output) = self.slices(bytes, place)?;
                collective.launch(stream, &input, &output, count, element, op)
            }
        }
    }

    /// Makes a call with data that no call had before, and returns the number of wrong elements and of touched guard bytes, if it is known.
    fn checked_call(&mut self, bytes: usize, place: Place) -> Result<Option<u64>> {
        let call = self.paint(bytes, place)?;
        self.launch(&self.stream, bytes, place)?;
        self.stream.synchronize(self.session.rank.deadline())?;
        self.wrong(&call, place)
    }

    /// Fills the input of the next call with data that no call had before, and the guard behind its output.
    fn paint(&mut self, bytes: usize, place: Place) -> Result<Call> {
        let rank = self.session.rank;
        self.iteration += 1;
        let call = Call {
            ty: self.common.datatype,
            op: self.common.op,
            ranks: rank.bootstrap.size(),
            iteration: self.iteration,
            count: bytes / self.common.datatype.bytes(),
        };
        // An element that no kernel writes holds data of an earlier call, which counts as wrong.
        self.guard(bytes, place)?.fill(GUARD_BYTE, rank.deadline())?;
        let (input, output) = self.slices(bytes, place)?;
        if self.simulated.is_some() {
            output.fill(GARBAGE, rank.deadline())?;
        }
        self.checker.fill(rank, &input, self.data(&call, call.operand(rank.bootstrap.rank())))?;
        Ok(call)
    }

    /// Number of wrong elements in the output of `call` and of wrong bytes in the guard behind it, if the output is known.
    fn wrong(&self, call: &Call, place: Place) -> Result<Option<u64>> {
        let (rank, bytes) = (self.session.rank, call.count * call.ty.bytes());
        let (input, output) = self.slices(bytes, place)?;
        let mut wrong = self.checker.touched(rank, &self.guard(bytes, place)?)?;
        if let Some(simulated) = &self.simulated {
            let message = Call { count: self.count(bytes), ..*call };
            let outputs = simulated.outputs(&message, |rank| self.data(call, call.operand(rank)))?;
            let Some(outputs) = outputs else { return Ok(None) };
            let expected = &outputs[rank.bootstrap.rank() as usize];
            let mut seen = vec![0; expected.len()];
            (if output.is_empty() { &input } else { &output }).download(0, &mut seen, rank.deadline())?;
            let size = call.ty.bytes();
            wrong += seen
                .chunks(size)
                .zip(expected.chunks(size))
                .filter(|(seen, expected)| seen != expected)
                .count() as u64;
            return Ok(Some(wrong));
        }
        for (at, len, expected, start) in self.shape.expected(call, rank.bootstrap.rank() as usize, bytes) {
            let expected = self.data(call, expected);
            wrong += self.checker.wrong(rank, &output.slice(at..at + len)?, expected, start)?;
        }
        Ok(Some(wrong))
    }

    /// A plan adds or multiplies in the order that its author chose, perhaps rounding between. So may built-in collectives of
    /// several hosts, of which each may reduce first.
    fn data(&self, call: &Call, expected: Expected) -> Expected {
        let topology = self.session.rank.comm.topology();
        let several_hosts = topology.peers().iter().any(|peer| !peer.same_host);
        match self.target {
            Target::BuiltIn { .. } if !several_hosts => expected,
            _ => expected.exact(call.ranks),
        }
    }

    /// Memory behind the output of a call.
    fn guard(&self, bytes: usize, place: Place) -> aqueduct::Result<DeviceSlice> {
        let end = if place == Place::InPlace { bytes } else { self.shape.buffers(bytes).1 };
        self.output.slice(end..end + GUARD)
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
pub(super) fn buffer(session: &Session<'_>, bytes: usize) -> Result<Arc<GpuBuffer>> {
    let buffer = GpuBuffer::new(&session.rank.context, bytes + GUARD)?;
    buffer.fill(GUARD_BYTE, session.rank.deadline())?;
    Ok(Arc::new(buffer))
}

#[cfg(test)]
mod tests;
