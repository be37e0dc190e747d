//! `aqueduct perf all-to-all-v`, `all-gather-v`, `reduce-scatter-v`: parts of different sizes, which only the device knows. And
//! `point-to-point`: the parts of an all-to-all as the sends and receives of a group, which the host lists for each call.

use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use aqueduct::collective::{
    CollectiveConfig, PointToPoint, ReceiveBuffer, VariableBuffers, VariableCollective, VariableCounts,
};
use aqueduct::gpu::{DeviceSlice, GpuBuffer, Stream};
use aqueduct::plan::Kind;

use super::args::{Common, Operation, is_slow};
use super::checker::{Checker, GUARD, GUARD_BYTE};
use super::collective::buffer;
use super::data::{self, Call, Expected};
use super::output::Output;
use super::record::{Place, Record};
use super::timing::{EventClock, Launches, Session, sample};

/// Largest size of the unmeasured calls between measured ones.
const DISTURBANCE: u64 = 1 << 20;

/// How a call's elements are divided: parts are as 1 to n, in another order on each rank of an all-to-all.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    kind: Kind,
    ranks: usize,
    /// Each part is a message of a group of sends and receives.
    grouped: bool,
}

impl Parts {
    /// Those of an operation, if it has parts of different sizes.
    pub(super) fn of(operation: Operation, ranks: u32) -> Option<Self> {
        let kind = operation.variable()?;
        Some(Self { kind, ranks: ranks as usize, grouped: operation == Operation::PointToPoint })
    }

    /// A size is a multiple of so many elements.
    pub(super) fn grain(&self) -> u64 {
        (self.ranks * (self.ranks + 1) / 2) as u64
    }

    /// Shares of the parts of a rank's buffer. Those that rank a gives b are those that rank b gets of a.
    fn shares(&self, rank: usize) -> Vec<usize> {
        let turn = if self.kind == Kind::AllToAll { rank } else { 0 };
        (0..self.ranks).map(|part| 1 + (turn + part) % self.ranks).collect()
    }

    /// Counts and offsets of the parts of a rank's buffer of `count` elements.
    fn numbers(&self, rank: usize, count: usize) -> (Vec<u64>, Vec<u64>) {
        let unit = count as u64 / self.grain();
        let counts: Vec<u64> = self.shares(rank).into_iter().map(|share| unit * share as u64).collect();
        let offsets = counts.iter().scan(0, |end, count| {
            *end += count;
            Some(*end - count)
        });
        let offsets = offsets.collect();
        (counts, offsets)
    }

    /// Whether there are calls in place.
    fn places(&self) -> &'static [Place] {
        if self.kind == Kind::AllToAll { &[Place::OutOfPlace] } else { &[Place::OutOfPlace, Place::InPlace] }
    }

    /// First elements and counts of a rank's input and output in their buffers.
    fn buffers(&self, rank: usize, count: usize, place: Place) -> [(usize, usize); 2] {
        let (counts, offsets) = self.numbers(rank, count);
        let (at, own) = (offsets[rank] as usize, counts[rank] as usize);
        let own = if place == Place::InPlace { (at, own) } else { (0, own) };
        match self.kind {
            Kind::AllGather => [own, (0, count)],
            Kind::ReduceScatter => [(0, count), own],
            _ => [(0, count); 2],
        }
    }

    /// Parts of the output: first element and count, the data that it must be, and the element that this begins with.
    fn expected(&self, call: &Call, rank: usize, place: Place) -> Vec<(usize, usize, Expected, u64)> {
        let (counts, offsets) = self.numbers(rank, call.count);
        let part = |of: usize| (offsets[of] as usize, counts[of] as usize);
        match self.kind {
            Kind::ReduceScatter => {
                let (at, len) = self.buffers(rank, call.count, place)[1];
                vec![(at, len, call.result(), offsets[rank])]
            }
            _ => (0..self.ranks)
                .map(|from| {
                    let start = match self.kind {
                        Kind::AllToAll => self.numbers(from, call.count).1[rank],
                        _ => 0,
                    };
                    let (at, len) = part(from);
                    (at, len, call.operand(from as u32), start)
                })
                .collect(),
        }
    }
}

/// The measured operation.
enum Target {
    Collective {
        collective: VariableCollective,
        /// By place.
        shown: Vec<VariableBuffers>,
        /// Counts and offsets.
        arrays: [DeviceSlice; 2],
    },
    Group(PointToPoint, ReceiveBuffer),
}

/// Buffers and kernels for all sizes, allocated once.
pub(super) struct Bench<'a> {
    session: &'a Session<'a>,
    common: &'a Common,
    parts: Parts,
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
    pub(super) fn prepare(
        session: &'a Session<'a>,
        common: &'a Common,
        parts: Parts,
        sizes: &[u64],
    ) -> Result<Self> {
        let rank = session.rank;
        let most = usize::try_from(sizes.iter().copied().max().unwrap_or(0))?;
        let (input, output) = (buffer(session, most)?, buffer(session, most)?);
        let target = if parts.grouped {
            // Each message to another host begins at a multiple of 128 bytes there.
            let config = CollectiveConfig::default().in_call_order();
            let config = config.with_staging_bytes(most + 128 * parts.ranks);
            let group = PointToPoint::prepare_with(&rank.comm, config, rank.deadline())?;
            let receives = group.buffer(&output, rank.deadline())?;
            Target::Group(group, receives)
        } else {
            collective(session, common, &parts, [&input, &output])?
        };
        let kind = data::Kind::Element(common.datatype);
        Ok(Self {
            session,
            common,
            parts,
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
        self.checker.meaning()
    }

    /// Checks and times one size at every place that there is.
    pub(super) fn measure(&mut self, index: usize, output: &mut Output) -> Result<()> {
        self.parts.places().iter().try_for_each(|&place| output.row(self.row(index, place)?))
    }

    /// A check is a call of this size, one of another size, and one of this size again.
    fn row(&mut self, index: usize, place: Place) -> Result<Record> {
        let rank = self.session.rank;
        let (bytes, size) = (self.sizes[index], self.common.datatype.bytes());
        let count = usize::try_from(bytes)? / size;
        let slow = self.session.software() && is_slow(bytes);
        let mut wrong = None;
        for number in 1..=self.common.check {
            self.session.progress.step(|| format!("check {number} of {}", self.common.check));
            let other = self.sizes[(index * 7 + 3) % self.sizes.len()].min(DISTURBANCE);
            let grain = usize::try_from(self.parts.grain())?;
            let mut mine = if slow { 0 } else { self.checked_call(count, place)? };
            mine += self.checked_call(usize::try_from(other)? / size / grain * grain, place)?;
            mine += self.checked_call(count, place)?;
            wrong = Some(wrong.unwrap_or(0) + rank.sum(mine)?);
        }
        let timing = self.common.plan(bytes, self.session.software());
        self.tell(count)?;
        let call = |stream: &Stream| self.launch(stream, count, place);
        let launches = Launches::prepare(&self.stream, self.common.graph, &call)?;
        let [timed] = sample(self.session, &timing, [&mut |calls| launches.time(rank, &self.clock, calls)])?;
        let peers = self.session.rank.comm.topology().peers();
        let way = if peers.iter().all(|peer| peer.same_host) { "zero-copy" } else { "hosts" };
        let record = Record::measured(way, timed.of_parts(launches.per_replay()));
        let others = (self.parts.ranks as f64 - 1.0) / self.parts.ranks as f64;
        let reduces = self.parts.kind == Kind::ReduceScatter;
        Ok(Record {
            place: Some(place),
            size_bytes: Some(bytes),
            count: Some(count as u64),
            datatype: Some(self.common.datatype.name()),
            reduction: reduces.then(|| self.common.op.name()),
            wrong,
            ..record
        }
        .moving(bytes, others))
    }

    /// Writes the numbers of calls of `count` elements, where they are the device's.
    fn tell(&self, count: usize) -> Result<()> {
        let rank = self.session.rank;
        let Target::Collective { arrays, .. } = &self.target else { return Ok(()) };
        let (counts, offsets) = self.parts.numbers(rank.bootstrap.rank() as usize, count);
        arrays[0].upload(0, &counts, rank.deadline())?;
        Ok(arrays[1].upload(0, &offsets, rank.deadline())?)
    }

    fn launch(&self, stream: &Stream, count: usize, place: Place) -> aqueduct::Result<()> {
        match &self.target {
            Target::Collective { collective, shown, arrays: [counts, offsets] } => {
                let numbers = match self.parts.kind {
                    Kind::AllToAll => VariableCounts::of_pairs(counts, offsets, counts, offsets),
                    _ => VariableCounts::of_parts(counts, offsets),
                };
                let shown = &shown[usize::from(place == Place::InPlace)];
                collective.launch(stream, shown, &numbers, self.common.datatype, self.common.op)
            }
            Target::Group(group, receives) => {
                let me = self.session.rank.bootstrap.rank() as usize;
                let (mut sends, mut rooms) = (Vec::new(), Vec::new());
                for (peer, range) in (0..).zip(self.ranges(me, count)) {
                    sends.push((peer, self.input.slice(range.clone())?));
                    rooms.push((peer, range));
                }
                group.launch(stream, receives, &sends, &rooms)
            }
        }
    }

    /// Bytes of each part in the input and in the output of an all-to-all: parts of a pair of ranks are equal both ways.
    fn ranges(&self, rank: usize, count: usize) -> impl Iterator<Item = Range<usize>> {
        let size = self.common.datatype.bytes();
        let (counts, offsets) = self.parts.numbers(rank, count);
        counts.into_iter().zip(offsets).map(move |(count, offset)| {
            let at = offset as usize * size;
            at..at + count as usize * size
        })
    }

    /// Makes a call with data that no call had before, and returns the number of wrong elements and of touched guard bytes.
    fn checked_call(&mut self, count: usize, place: Place) -> Result<u64> {
        let rank = self.session.rank;
        let (me, size) = (rank.bootstrap.rank(), self.common.datatype.bytes());
        self.iteration += 1;
        let call = Call {
            ty: self.common.datatype,
            op: self.common.op,
            ranks: rank.bootstrap.size(),
            iteration: self.iteration,
            count,
        };
        let [input, output] = self.parts.buffers(me as usize, count, place);
        let end = if place == Place::InPlace { count } else { output.1 } * size;
        let guard = self.output.slice(end..end + GUARD)?;
        guard.fill(GUARD_BYTE, rank.deadline())?;
        let from = if place == Place::InPlace { &self.output } else { &self.input };
        let input = from.slice(input.0 * size..(input.0 + input.1) * size)?;
        self.checker.fill(rank, &input, call.operand(me))?;
        self.tell(count)?;
        self.launch(&self.stream, count, place)?;
        self.stream.synchronize(rank.deadline())?;
        let mut wrong = self.checker.touched(rank, &guard)?;
        for (at, len, expected, start) in self.parts.expected(&call, me as usize, place) {
            let part = self.output.slice(at * size..(at + len) * size)?;
            wrong += self.checker.wrong(rank, &part, expected, start)?;
        }
        Ok(wrong)
    }
}

/// A collective on buffers that are shown to the peers.
fn collective(
    session: &Session<'_>,
    common: &Common,
    parts: &Parts,
    [input, output]: [&Arc<GpuBuffer>; 2],
) -> Result<Target> {
    let rank = session.rank;
    let mut config = CollectiveConfig::default().in_call_order();
    if parts.kind == Kind::ReduceScatter {
        config = config.with_variants([(common.datatype, common.op)]);
    }
    let collective = VariableCollective::prepare(&rank.comm, parts.kind.clone(), config, rank.deadline())?;
    let shown = parts.places().iter().map(|place| {
        let input = if *place == Place::InPlace { output } else { input };
        collective.buffers(input, output, rank.deadline())
    });
    let shown = shown.collect::<aqueduct::Result<_>>()?;
    let numbers = Arc::new(GpuBuffer::new(&rank.context, 2 * 8 * parts.ranks)?);
    let half = 8 * parts.ranks;
    let arrays = [numbers.slice(..half)?, numbers.slice(half..2 * half)?];
    Ok(Target::Collective { collective, shown, arrays })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_differ_and_fill_the_buffers() {
        for (operation, ranks) in
            [(Operation::AllToAllV, 1), (Operation::PointToPoint, 3), (Operation::AllGatherV, 4)]
        {
            let parts = Parts::of(operation, ranks).unwrap();
            let count = 5 * parts.grain() as usize;
            for a in 0..ranks as usize {
                let (counts, offsets) = parts.numbers(a, count);
                assert_eq!(counts.iter().sum::<u64>(), count as u64);
                assert_eq!(offsets[0], 0);
                for (b, &given) in counts.iter().enumerate() {
                    let back = parts.numbers(b, count).0[a];
                    assert!(parts.kind != Kind::AllToAll || back == given);
                }
            }
        }
    }
}
