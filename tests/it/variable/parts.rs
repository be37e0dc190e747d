//! All-gathers and reduce-scatters of variable sizes, out of place and in place.

use std::sync::Arc;

use aqueduct::collective::{CollectiveConfig, VariableCollective, VariableCounts};
use aqueduct::gpu::{DeviceSlice, GpuBuffer, Stream};
use aqueduct::plan::{Element, Kind, Reduction};

use super::tables::{Dice, ROOM};
use super::{CANARY, GUARD};
use crate::data::{assert_same, mix};
use crate::group::{Rank, soon};

/// Counts and offsets of parts, which all ranks draw alike.
fn parts(ranks: usize, call: u32) -> (Vec<u64>, Vec<u64>) {
    let mut dice = Dice::new(1000 + call);
    let mut counts = Vec::new();
    let mut offsets = Vec::new();
    let mut end = dice.below(3);
    for _ in 0..ranks {
        counts.push(if dice.below(4) == 0 { 0 } else { dice.below(ROOM / ranks - 8) });
        offsets.push(end);
        end += counts[counts.len() - 1] + dice.below(5);
    }
    (counts, offsets)
}

struct Bench<'a> {
    rank: &'a Rank,
    stream: Stream,
    arrays: [DeviceSlice; 2],
    /// Input and output of calls out of place; the second alone for calls in place.
    buffers: [Arc<GpuBuffer>; 2],
    call: u32,
}

impl Bench<'_> {
    fn data(&self, rank: u32) -> Vec<f32> {
        (0..ROOM).map(|index| mix(rank, self.call, index) as f32 / 1e5).collect()
    }

    fn upload(&self, buffer: &GpuBuffer, data: &[f32]) {
        buffer.fill(CANARY, soon()).unwrap();
        buffer.upload(0, data, soon()).unwrap();
    }

    fn seen(&self, buffer: &GpuBuffer) -> Vec<u8> {
        let mut seen = vec![0_u8; 4 * ROOM + GUARD];
        buffer.download(0, &mut seen, soon()).unwrap();
        seen
    }

    fn prepared(&mut self, counts: &[u64], offsets: &[u64]) -> VariableCounts {
        self.call += 1;
        self.arrays[0].upload(0, counts, soon()).unwrap();
        self.arrays[1].upload(0, offsets, soon()).unwrap();
        VariableCounts::of_parts(&self.arrays[0], &self.arrays[1])
    }

    fn gather(&mut self, collective: &VariableCollective, in_place: bool) {
        let (me, ranks) = (self.rank.me() as usize, self.rank.comm.size());
        let (counts, offsets) = parts(ranks as usize, self.call);
        let numbers = self.prepared(&counts, &offsets);
        let range = |part: usize| offsets[part] as usize..(offsets[part] + counts[part]) as usize;
        let canary = f32::from_bits(u32::from_ne_bytes([CANARY; 4]));
        let [input, output] = &self.buffers;
        let mut expected = vec![canary; ROOM];
        if in_place {
            expected[range(me)].copy_from_slice(&self.data(me as u32)[..counts[me] as usize]);
            self.upload(output, &expected);
        } else {
            self.upload(input, &self.data(me as u32));
            self.upload(output, &expected);
        }
        let shown = collective.buffers(if in_place { output } else { input }, output, soon()).unwrap();
        collective.launch(&self.stream, &shown, &numbers, Element::F32, None).unwrap();
        self.stream.synchronize(soon()).unwrap();
        for part in 0..ranks as usize {
            expected[range(part)].copy_from_slice(&self.data(part as u32)[..counts[part] as usize]);
        }
        self.compare(output, &expected, format_args!("all-gather, in place {in_place}, rank {me}"));
    }

    fn scatter(&mut self, collective: &VariableCollective, in_place: bool) {
        let (me, ranks) = (self.rank.me() as usize, self.rank.comm.size());
        let (counts, offsets) = parts(ranks as usize, self.call);
        let numbers = self.prepared(&counts, &offsets);
        let (from, len) = (offsets[me] as usize, counts[me] as usize);
        let [input, output] = &self.buffers;
        let mine = self.data(me as u32);
        self.upload(input, &mine);
        let canary = f32::from_bits(u32::from_ne_bytes([CANARY; 4]));
        self.upload(output, &vec![canary; ROOM]);
        let target = if in_place { input } else { output };
        let shown = collective.buffers(input, target, soon()).unwrap();
        collective.launch(&self.stream, &shown, &numbers, Element::F32, Reduction::Sum).unwrap();
        self.stream.synchronize(soon()).unwrap();
        let inputs: Vec<_> = (0..ranks).map(|rank| self.data(rank)).collect();
        let sum = |index: usize| inputs[1..].iter().fold(inputs[0][index], |sum, input| sum + input[index]);
        let mut expected = if in_place { mine.clone() } else { vec![canary; ROOM] };
        for index in 0..len {
            expected[if in_place { from + index } else { index }] = sum(from + index);
        }
        self.compare(target, &expected, format_args!("reduce-scatter, in place {in_place}, rank {me}"));
        if !in_place {
            self.compare(input, &mine, format_args!("the input of a reduce-scatter, rank {me}"));
        }
    }

    /// On buffers that the peers do not reach, of which the output is a part of the input.
    fn scatter_staged(&mut self, collective: &VariableCollective) {
        let (me, ranks) = (self.rank.me() as usize, self.rank.comm.size());
        let (counts, offsets) = parts(ranks as usize, self.call);
        let numbers = self.prepared(&counts, &offsets);
        let (from, len) = (offsets[me] as usize, counts[me] as usize);
        let input = &self.buffers[0];
        let mut expected = self.data(me as u32);
        self.upload(input, &expected);
        let whole = input.slice(..4 * ROOM).unwrap();
        let own = input.slice(4 * from..4 * (from + len)).unwrap();
        let launch = |input, output| {
            collective.launch_staged(&self.stream, input, output, &numbers, Element::F32, Reduction::Sum)
        };
        launch(&whole, &own).unwrap();
        self.stream.synchronize(soon()).unwrap();
        let inputs: Vec<_> = (0..ranks).map(|rank| self.data(rank)).collect();
        for (index, value) in expected.iter_mut().enumerate().skip(from).take(len) {
            *value = inputs[1..].iter().fold(inputs[0][index], |sum, input| sum + input[index]);
        }
        self.compare(input, &expected, format_args!("a staged reduce-scatter, rank {me}"));
        let error = launch(&input.slice(..4 * ROOM + 4).unwrap(), &own).unwrap_err().to_string();
        assert!(error.contains(&format!("with_staging_bytes({})", 4 * ROOM + 4)), "{error}");
    }

    fn without_memory(&mut self, collective: &VariableCollective) {
        let [input, output] = self.buffers.clone().map(|buffer| buffer.slice(..).unwrap());
        let counts = VariableCounts::of_parts(&self.arrays[0], &self.arrays[1]);
        let launched = collective.launch_staged(&self.stream, &input, &output, &counts, Element::F32, None);
        let error = launched.unwrap_err().to_string();
        assert!(error.contains("ask for it with CollectiveConfig::with_staging_bytes"), "{error}");
    }

    /// As the others, on buffers that the peers do not reach.
    fn gather_staged(&mut self, collective: &VariableCollective) {
        let (me, ranks) = (self.rank.me() as usize, self.rank.comm.size() as usize);
        let (counts, offsets) = parts(ranks, self.call);
        let numbers = self.prepared(&counts, &offsets);
        let [input, output] = &self.buffers;
        self.upload(input, &self.data(me as u32));
        let mut expected: Vec<f32> = (0..ROOM).map(|index| index as f32).collect();
        self.upload(output, &expected);
        let [from, to] = [input, output].map(|buffer| buffer.slice(..4 * ROOM).unwrap());
        collective.launch_staged(&self.stream, &from, &to, &numbers, Element::F32, None).unwrap();
        self.stream.synchronize(soon()).unwrap();
        for part in 0..ranks {
            let (at, len) = (offsets[part] as usize, counts[part] as usize);
            expected[at..at + len].copy_from_slice(&self.data(part as u32)[..len]);
        }
        self.compare(output, &expected, format_args!("a staged all-gather, rank {me}"));
    }

    /// Ranks that say different counts all get the error, and nothing is written.
    fn disagreement(&mut self, collective: &VariableCollective) {
        let ranks = self.rank.comm.size() as usize;
        if ranks == 1 {
            return;
        }
        let (mut counts, offsets) =
            (vec![10_u64; ranks], (0..ranks as u64).map(|r| 20 * r).collect::<Vec<_>>());
        if self.rank.me() == 0 {
            counts[ranks - 1] = 9;
        }
        let numbers = self.prepared(&counts, &offsets);
        let [input, output] = &self.buffers;
        output.fill(CANARY, soon()).unwrap();
        let shown = collective.buffers(input, output, soon()).unwrap();
        collective.launch(&self.stream, &shown, &numbers, Element::F32, Reduction::Sum).unwrap();
        let error = self.stream.synchronize(soon()).unwrap_err().to_string();
        let words = format!("rank 0 has 36 bytes for rank {}, whose own part has 40", ranks - 1);
        assert!(error.contains(&words), "{error} does not say {words}");
        assert!(error.contains("give the same counts on all ranks"), "{error}");
        assert_same(
            &self.seen(output),
            &vec![CANARY; 4 * ROOM + GUARD],
            format_args!("a refused reduce-scatter"),
        );
    }

    fn compare(&self, buffer: &GpuBuffer, expected: &[f32], what: std::fmt::Arguments<'_>) {
        let mut bytes: Vec<u8> = expected.iter().flat_map(|value| value.to_ne_bytes()).collect();
        bytes.resize(4 * ROOM + GUARD, CANARY);
        assert_same(&self.seen(buffer), &bytes, what);
    }
}

pub(super) fn run(rank: &Rank) {
    let ranks = rank.comm.size() as usize;
    let numbers = rank.buffer(2 * 8 * ranks);
    let arrays = [0, 1].map(|which| numbers.slice(8 * ranks * which..8 * ranks * (which + 1)).unwrap());
    let buffers = [(); 2].map(|()| rank.buffer(4 * ROOM + GUARD));
    let stream = Stream::new(rank.comm.context()).unwrap();
    let mut bench = Bench { rank, stream, arrays, buffers, call: 0 };
    let config = || {
        let variants = CollectiveConfig::default().with_variants([(Element::F32, Reduction::Sum)]);
        variants.with_staging_bytes(4 * ROOM)
    };
    let gather = VariableCollective::prepare(&rank.comm, Kind::AllGather, config(), soon()).unwrap();
    let scatter = VariableCollective::prepare(&rank.comm, Kind::ReduceScatter, config(), soon()).unwrap();
    for call in 0..6 {
        bench.gather(&gather, call % 2 == 1);
        bench.scatter(&scatter, call % 2 == 1);
        bench.gather_staged(&gather);
        bench.scatter_staged(&scatter);
    }
    let bare = VariableCollective::prepare(&rank.comm, Kind::AllGather, CollectiveConfig::default(), soon());
    bench.without_memory(&bare.unwrap());
    bench.disagreement(&scatter);
    bench.scatter(&scatter, false);
    rank.barrier();
}
