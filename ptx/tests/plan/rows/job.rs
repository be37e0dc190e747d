//! Ranks that run one plan by rows.

use crate::device::LaunchShape;
use aqueduct_ptx::abi::{DeviceStruct as _, OverflowRecord, PlanRows};
use aqueduct_ptx::plan::{Base, Block, Element, Kernel, Move, Number, Reduction, Rows, Share, Step};
use cuda_driver_sys::CUfunction;

use crate::device::Args;
use crate::elements::reduce;
use crate::model::tame;
use crate::rig::{
    ADDRESSES, CALLS, CANARY, Sizes, TABLES, World, fixed, kernel, operand, signal_at, wait_at,
};

/// Bytes of each input and output.
const CAPACITY: usize = 4096;
/// Words of [`PlanRows`].
const WORDS: u32 = size_of::<PlanRows>() as u32 / 8;
/// Sent by a rank that cannot keep to a row.
pub(super) const NONE: u64 = u64::MAX;
/// Sent by a rank to one that passes other buffers.
pub(super) const OTHER: u64 = u64::MAX - 1;

/// Numbers of a call, one for each rank.
#[derive(Clone, Debug)]
pub(super) enum Numbers {
    Each(Vec<u64>),
    One(u64),
    Zero,
}
pub(super) use Numbers::{Each, One, Zero};

impl Numbers {
    fn of(&self, rank: usize) -> usize {
        let number = match self {
            Each(numbers) => numbers[rank],
            One(number) => *number,
            Zero => 0,
        };
        number as usize
    }
}

/// One rank's numbers, in elements: counts and offsets of what it sends, and of what it has room for.
#[derive(Clone, Debug)]
pub(super) struct Rank {
    pub(super) sent: Numbers,
    pub(super) from: Numbers,
    pub(super) room: Numbers,
    pub(super) to: Numbers,
}

/// One rank's part in a call.
pub(super) type Launch = (CUfunction, LaunchShape, Args);

/// Ranks that run one plan.
pub(super) struct Job {
    pub(super) world: World,
    pub(super) kernels: Vec<Kernel>,
    element: Element,
    pub(super) sizes: Sizes,
    pub(super) skew: [u64; 2],
    /// Number of the buffers that each rank passes.
    pub(super) shown: Vec<u64>,
    /// The record of each rank, and where it tells how much came.
    records: Vec<u64>,
    received: Vec<u64>,
    calls: u64,
}

/// All ranks meet, each block those of its number: adds what tells the blocks apart to their rows.
fn meet(ranks: u32, me: u32, rows: &mut [Vec<u32>]) -> Vec<Step> {
    let peers: Vec<u32> = (1..ranks).map(|i| (me + i) % ranks).collect();
    let value = |number: Number| match number {
        Number::Fixed(value) => value,
        Number::Row(_) => unreachable!("the rig's are fixed"),
    };
    let mut entry = |of: &dyn Fn(u32) -> Number| {
        for (block, row) in rows.iter_mut().enumerate() {
            row.push(value(of(128 * block as u32)));
        }
        Number::Row(rows[0].len() as u32 - 1)
    };
    let mut signals = Vec::new();
    let mut waits = Vec::new();
    for peer in peers {
        let mut signal = signal_at(me, peer, 0);
        signal.outbound = entry(&|offset| signal_at(me, peer, offset).outbound);
        signal.inbound = entry(&|offset| signal_at(me, peer, offset).inbound);
        signals.push(signal);
        let mut wait = wait_at(peer, 0);
        wait.inbound = entry(&|offset| wait_at(peer, offset).inbound);
        wait.expected = entry(&|offset| wait_at(peer, offset).expected);
        waits.push(wait);
    }
    vec![Step::Signal(signals), Step::Wait(waits), Step::Sync]
}

/// Each rank puts a part into the output of each, or reduces its own parts of all inputs.
fn plan(ranks: u32, me: u32, blocks: u32, element: Element, reduction: Option<Reduction>) -> Kernel {
    let share = Some(Share { member: Number::Row(0), of: fixed(blocks) });
    let moved = |sources, targets| {
        Step::Move(Move { sources, targets, count: fixed(1), reduction, share, by_rows: true })
    };
    let mut rows: Vec<Vec<u32>> = (0..blocks).map(|member| vec![member]).collect();
    let meet = meet(ranks, me, &mut rows);
    let mut steps = vec![Step::ShowRows, Step::Sync];
    steps.extend_from_slice(&meet);
    steps.push(Step::JudgeRows);
    if reduction.is_some() {
        let sources = (0..ranks).map(|rank| operand(rank, Base::Input, rank * ranks + me)).collect();
        steps.push(moved(sources, vec![operand(me, Base::Output, me * ranks + me)]));
    } else {
        steps.extend((0..ranks).map(|i| (me + i) % ranks).map(|peer| {
            let source = operand(me, Base::Input, me * ranks + peer);
            moved(vec![source], vec![operand(peer, Base::Output, peer * ranks + me)])
        }));
    }
    steps.push(Step::Sync);
    steps.extend(meet);
    Kernel {
        threads: 32,
        addresses: ADDRESSES * ranks + ranks + WORDS,
        double_scratch: true,
        rows: Some(Rows {
            me,
            tables: TABLES,
            controls: ADDRESSES * ranks,
            words: ADDRESSES * ranks + ranks,
            exact: reduction.is_some(),
            reached: ranks,
            shared: false,
            bounded: false,
        }),
        blocks: rows.into_iter().map(|row| Block { shape: 0, row }).collect(),
        ..kernel(ranks, element, steps)
    }
}

impl Job {
    pub(super) fn new(ranks: u32, blocks: u32, element: Element, reduction: Option<Reduction>) -> Self {
        let mut world = World::new(ranks as usize, CAPACITY, 1, 128);
        world.more = world.memory.iter().map(|memory| memory.control).collect();
        let kernels = (0..ranks).map(|me| plan(ranks, me, blocks, element, reduction)).collect();
        let memory = |bytes: usize| {
            (0..ranks as usize).map(|rank| world.machine.alloc(rank, bytes)).collect::<Vec<_>>()
        };
        let (records, received) = (memory(size_of::<OverflowRecord>()), memory(8 * ranks as usize));
        let bytes = CAPACITY as u64 - 64;
        let sizes = Sizes { chunk: 0, input: bytes, output: bytes };
        let shown = vec![0xffff; ranks as usize];
        Self { world, kernels, element, sizes, skew: [0, 0], shown, records, received, calls: 0 }
    }

    /// Makes a call on all ranks ready. Allocates, so no kernel may be running.
    pub(super) fn prepare(&mut self, ranks: &[Rank], tells: bool) -> Vec<Launch> {
        for (rank, numbers) in ranks.iter().enumerate() {
            let array = |numbers: &Numbers| {
                let (numbers, stride) = match numbers {
                    Each(numbers) => (numbers.clone(), 8),
                    One(number) => (vec![*number], 0),
                    Zero => return (0, 8),
                };
                let at = self.world.machine.alloc(rank, 8 * numbers.len());
                let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
                self.world.machine.write(rank, at, &bytes);
                (at, stride)
            };
            let (send_counts, send_counts_stride) = array(&numbers.sent);
            let (send_offsets, send_offsets_stride) = array(&numbers.from);
            let (receive_counts, receive_counts_stride) = array(&numbers.room);
            let (receive_offsets, receive_offsets_stride) = array(&numbers.to);
            let words = PlanRows {
                send_counts,
                send_counts_stride,
                send_offsets,
                send_offsets_stride,
                receive_counts,
                receive_counts_stride,
                receive_offsets,
                receive_offsets_stride,
                element: self.element.bytes() as u64,
                record: self.records[rank],
                received: if tells { self.received[rank] } else { 0 },
                shown: self.shown[rank],
            };
            let words = words.as_bytes().chunks(8);
            self.world.own[rank] =
                words.map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes"))).collect();
        }
        let launch = |rank: usize| {
            let kernel = &self.kernels[rank];
            let shape = LaunchShape { grid: kernel.blocks.len() as u32, block: kernel.threads };
            let args = self.world.args(rank, self.sizes, self.skew, kernel);
            (self.world.load(rank, kernel), shape, args)
        };
        (0..ranks.len()).map(launch).collect()
    }

    /// Starts calls on all ranks, one behind the other, and waits until they have ended.
    pub(super) fn call(&mut self, calls: &[Vec<Launch>]) {
        self.calls += calls.len() as u64;
        for (rank, (function, shape, args)) in calls.iter().flat_map(|call| call.iter().enumerate()) {
            self.world.machine.launch(rank, *function, *shape, args);
        }
        self.world.machine.finish();
    }

    /// Fills all buffers with noise; returns inputs and outputs from where the user's bytes begin.
    pub(super) fn fill(&self, seed: u64) -> [Vec<Vec<u8>>; 2] {
        let fill = |rank: usize, address: u64, seed: u64| {
            let bytes = tame(seed, CAPACITY, self.element);
            self.world.machine.write(rank, address + CANARY as u64, &bytes);
            bytes
        };
        let seed = |rank: usize| 64 * seed + rank as u64;
        let memory = || self.world.memory.iter().enumerate();
        let inputs = memory().map(|(rank, memory)| fill(rank, memory.input + self.skew[0], seed(rank)));
        let outputs = memory().map(|(rank, memory)| fill(rank, memory.output + self.skew[1], !seed(rank)));
        [inputs.collect(), outputs.collect()]
    }

    /// Compares all outputs.
    pub(super) fn compare(&self, expected: &[Vec<u8>], context: &str) {
        for (rank, (memory, expected)) in self.world.memory.iter().zip(expected).enumerate() {
            let at = memory.output + CANARY as u64 + self.skew[1];
            let found = self.world.machine.read(rank, at, expected.len());
            let wrong = found.iter().zip(expected).position(|(a, b)| a != b);
            assert_eq!(wrong, None, "rank {rank}, {:?}, skew {:?}: {context}", self.element, self.skew);
            let (blocks, control) = (self.kernels[rank].blocks.len(), memory.control + u64::from(CALLS));
            let counted = self.world.machine.read(rank, control, 8 * blocks);
            assert_eq!(counted, self.calls.to_ne_bytes().repeat(blocks), "calls of rank {rank}");
        }
    }

    /// Does what `ranks` say to the bytes.
    pub(super) fn apply(&self, ranks: &[Rank], inputs: &[Vec<u8>], outputs: &mut [Vec<u8>]) {
        let size = self.element.bytes();
        let part = |from: usize, to: usize| {
            let rank = &ranks[from];
            &inputs[from][rank.from.of(to) * size..][..rank.sent.of(to) * size]
        };
        for (to, output) in outputs.iter_mut().enumerate() {
            if !self.kernels[to].rows.is_some_and(|rows| rows.exact) {
                for from in 0..ranks.len() {
                    let part = part(from, to);
                    output[ranks[to].to.of(from) * size..][..part.len()].copy_from_slice(part);
                }
                continue;
            }
            let parts: Vec<_> = (0..ranks.len()).map(|from| part(from, to)).collect();
            for at in (0..parts[0].len()).step_by(size) {
                let sources: Vec<_> = parts.iter().map(|part| &part[at..at + size]).collect();
                let sum = reduce(self.element, Reduction::Sum, ranks.len() as u32, &sources);
                output[ranks[to].to.of(to) * size + at..][..size].copy_from_slice(&sum);
            }
        }
    }

    /// A call whose rows fit.
    pub(super) fn fits(&mut self, ranks: &[Rank], tells: bool) {
        let [inputs, mut outputs] = self.fill(self.calls + 1);
        let garbage = vec![0x5a; 8 * ranks.len()];
        for (rank, &received) in self.received.iter().enumerate() {
            self.world.machine.write(rank, received, &garbage);
        }
        let before = self.records();
        let call = self.prepare(ranks, tells);
        self.call(&[call]);
        self.apply(ranks, &inputs, &mut outputs);
        self.compare(&outputs, &format!("{ranks:?}"));
        assert_eq!(self.records(), before);
        for (to, &received) in self.received.iter().enumerate() {
            let came = ranks.iter().flat_map(|from| (from.sent.of(to) as u64).to_ne_bytes()).collect();
            let found = self.world.machine.read(to, received, garbage.len());
            assert_eq!(found, if tells { came } else { garbage.clone() }, "what rank {to} received");
        }
    }

    /// A call of which some row does not fit: sender, receiver, bytes and room of the one that all ranks must name.
    pub(super) fn misfits(&mut self, ranks: &[Rank], [sender, receiver, bytes, room]: [u64; 4]) {
        let [_, outputs] = self.fill(self.calls + 1);
        let calls = self.records()[0][0] + 1;
        let call = self.prepare(ranks, true);
        self.call(&[call]);
        self.compare(&outputs, &format!("{ranks:?}"));
        let record = [calls, bytes, room, receiver << 32 | sender];
        assert_eq!(self.records(), vec![record; ranks.len()], "{ranks:?}");
    }

    /// The records as words.
    pub(super) fn records(&self) -> Vec<[u64; 4]> {
        let read = |(rank, &record): (usize, &u64)| {
            let bytes = self.world.machine.read(rank, record, size_of::<OverflowRecord>());
            [0, 8, 16, 24].map(|at| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes")))
        };
        self.records.iter().enumerate().map(read).collect()
    }

    /// Elements of input and of output.
    pub(super) fn length(&self) -> u64 {
        self.sizes.input / self.element.bytes() as u64
    }
}
