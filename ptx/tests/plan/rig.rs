//! Ranks with a control area, buffers and a kernel each.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Once;

use crate::device::LaunchShape;
use aqueduct_ptx::abi::{DeviceStruct, NO_PEER, PlanArgs};
use aqueduct_ptx::plan::{
    Base, Block, Element, Kernel, Laps, Move, Number, Operand, PacketForm, Reduction, Shape, Signal, Step,
    Wait, render,
};
use aqueduct_ptx::{Target, TemplateError};
use cuda_driver_sys::CUfunction;

use crate::device::{Args, Machine};

/// Bytes around each buffer that must not change.
pub(crate) const CANARY: usize = 64;
/// Bytes of a control area.
pub(crate) const CONTROL: usize = 8192;

/// Places in every control area. Counters of the channel between two ranks lie at `16 * rank` and 8 behind.
pub(crate) const CALLS: u32 = 0;
pub(crate) const INBOUND: u32 = 512;
pub(crate) const EXPECTED: u32 = 1024;
pub(crate) const OUTBOUND: u32 = 1536;
pub(crate) const SEMAPHORES: u32 = 2560;
pub(crate) const BARRIERS: u32 = 2304;
/// To the end of the area.
pub(crate) const TABLES: u32 = 4096;

pub(crate) fn fixed(value: u32) -> Number {
    Number::Fixed(value)
}

/// Sizes of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) chunk: u64,
    pub(crate) input: u64,
    pub(crate) output: u64,
}

/// One rank's memory: addresses of buffers, canaries before and behind each.
pub(crate) struct Memory {
    pub(crate) control: u64,
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) scratch: u64,
    pub(crate) packets: u64,
}

/// Ranks.
pub(crate) struct World {
    pub(crate) machine: Machine,
    pub(crate) memory: Vec<Memory>,
    /// Bytes of input and output.
    pub(crate) capacity: usize,
    /// Chunks of scratch and of packets, in each half.
    pub(crate) chunks: u64,
    pub(crate) scratch_chunk: u64,
    /// Addresses behind those of the ranks.
    pub(crate) more: Vec<u64>,
    /// Those behind `more` that each rank has of its own: all ranks equally many, or none.
    pub(crate) own: Vec<Vec<u64>>,
    target: Target,
    /// Functions by rank and text.
    loaded: RefCell<HashMap<(usize, String), CUfunction>>,
}

/// Addresses that every kernel of these tests takes, of each rank: control, input, output, scratch, packets.
pub(crate) const ADDRESSES: u32 = 5;

/// Index of a rank's address.
pub(crate) fn address(rank: u32, base: Base) -> Number {
    let place = match base {
        Base::Input => 1,
        Base::Output => 2,
        Base::Scratch => 3,
        Base::Packets => 4,
    };
    fixed(rank * ADDRESSES + place)
}

/// Chunks of a rank's buffer.
pub(crate) fn operand(rank: u32, base: Base, first: u32) -> Operand {
    Operand { base, address: address(rank, base), first: fixed(first), rank: fixed(rank), multicast: false }
}

/// A move without a share.
pub(crate) fn moved(
    sources: Vec<Operand>,
    targets: Vec<Operand>,
    count: u32,
    reduction: Option<Reduction>,
) -> Step {
    Step::Move(Move { sources, targets, count: fixed(count), reduction, share: None, by_rows: false })
}

/// `me` tells `peer`.
pub(crate) fn signal(me: u32, peer: u32) -> Signal {
    signal_at(me, peer, 0)
}

/// Waits for `peer`.
pub(crate) fn wait(peer: u32) -> Wait {
    wait_at(peer, 0)
}

/// The same with counters `offset` bytes behind.
pub(crate) fn signal_at(me: u32, peer: u32, offset: u32) -> Signal {
    Signal {
        outbound: fixed(OUTBOUND + offset + 16 * peer),
        peer: fixed(peer * ADDRESSES),
        inbound: fixed(INBOUND + offset + 16 * me),
        relaxed: false,
    }
}

pub(crate) fn wait_at(peer: u32, offset: u32) -> Wait {
    Wait {
        inbound: fixed(INBOUND + offset + 16 * peer),
        expected: fixed(EXPECTED + offset + 16 * peer),
        rank: fixed(peer),
    }
}

/// A kernel of one shape and one block.
pub(crate) fn kernel(ranks: u32, element: Element, steps: Vec<Step>) -> Kernel {
    Kernel {
        symbol: "plan".to_owned(),
        element,
        ranks,
        threads: 64,
        addresses: ranks * ADDRESSES,
        calls: CALLS,
        double_scratch: false,
        packets: PacketForm::Ll16,
        laps: None,
        rows: None,
        trace: None,
        follows: false,
        shapes: vec![Shape { steps }],
        blocks: vec![Block { shape: 0, row: Vec::new() }],
    }
}

/// The same with lines.
pub(crate) fn with_lines(kernel: Kernel, me: u32, chunks: u32) -> Kernel {
    let mut kernel = with_packets(kernel, me, chunks);
    kernel.packets = PacketForm::Ll128;
    kernel.laps.iter_mut().for_each(|laps| laps.chunks /= 2);
    kernel
}

/// The kernel with packets: its laps, told between all ranks. `chunks` of each half of a rank's packets.
pub(crate) fn with_packets(kernel: Kernel, me: u32, chunks: u32) -> Kernel {
    let peers = || (1..kernel.ranks).map(|i| (me + i) % kernel.ranks);
    let Number::Fixed(packets) = address(me, Base::Packets) else { unreachable!() };
    let laps = Laps {
        packets,
        chunks: 2 * chunks * (1 + u32::from(kernel.double_scratch)),
        barrier: BARRIERS,
        meeting: vec![
            Step::Signal(peers().map(|peer| signal_at(me, peer, 256)).collect()),
            Step::Wait(peers().map(|peer| wait_at(peer, 256)).collect()),
        ],
    };
    Kernel { laps: Some(laps), ..kernel }
}

impl World {
    pub(crate) fn new(ranks: usize, capacity: usize, chunks: u64, scratch_chunk: u64) -> Self {
        assert!(scratch_chunk.is_multiple_of(128));
        // Of no use to kernels without multicast addresses.
        static MULTICAST: Once = Once::new();
        MULTICAST.call_once(|| {
            let config = cuda_soft::Config::from_env().expect("a valid environment");
            let config = cuda_soft::Config { multicast: true, ..config };
            cuda_soft::configure(config).expect("nothing has used the device yet");
        });
        let machine = Machine::new(ranks);
        let scratch = (2 * chunks * scratch_chunk) as usize;
        let memory = (0..ranks).map(|rank| Memory {
            control: machine.alloc(rank, CONTROL),
            input: machine.alloc(rank, capacity + 2 * CANARY),
            output: machine.alloc(rank, capacity + 2 * CANARY),
            scratch: machine.alloc(rank, scratch + 256),
            packets: machine.alloc(rank, 2 * scratch + 256),
        });
        let memory = memory.collect();
        Self {
            machine,
            memory,
            capacity,
            chunks,
            scratch_chunk,
            more: Vec::new(),
            own: vec![Vec::new(); ranks],
            target: Target::new(90),
            loaded: RefCell::default(),
        }
    }

    /// Units of lines from chunk to chunk.
    pub(crate) fn lines(&self) -> u32 {
        self.scratch_chunk.div_ceil(960) as u32
    }

    pub(crate) fn with_kernels_for(self, sm: u32) -> Self {
        Self { target: Target::new(sm), ..self }
    }

    pub(crate) fn args(&self, rank: usize, sizes: Sizes, skew: [u64; 2], kernel: &Kernel) -> Args {
        self.args_for(rank, sizes, skew, kernel, kernel.blocks.len() as u32)
    }

    /// Those of a launch of so many blocks.
    pub(crate) fn args_for(
        &self,
        rank: usize,
        sizes: Sizes,
        skew: [u64; 2],
        kernel: &Kernel,
        grid: u32,
    ) -> Args {
        let (magic, shift) = divisor(sizes.chunk.div_ceil(16).max(1));
        let (grid_magic, grid_shift) = divisor(grid.into());
        let args = PlanArgs {
            chunk: sizes.chunk,
            scratch_chunk: self.scratch_chunk,
            input_bytes: sizes.input,
            output_bytes: sizes.output,
            half: if kernel.double_scratch { self.chunks * self.scratch_chunk } else { 0 },
            control: self.memory[rank].control,
            abort: self.machine.abort_handle(rank, NO_PEER),
            vectors: u32::try_from(sizes.chunk.div_ceil(16)).expect("few"),
            magic,
            shift,
            grid_magic,
            grid_shift,
            lines: self.lines(),
        };
        let canary = CANARY as u64;
        let addresses = self.memory.iter().flat_map(|m| {
            [
                m.control,
                m.input + canary + skew[0],
                m.output + canary + skew[1],
                m.scratch + 128,
                m.packets + 128,
            ]
        });
        let bytes: Vec<u8> = args
            .as_bytes()
            .iter()
            .copied()
            .chain(
                addresses.chain(self.more.iter().chain(&self.own[rank]).copied()).flat_map(u64::to_ne_bytes),
            )
            .chain(kernel.args_rows().into_iter().flat_map(u32::to_ne_bytes))
            .collect();
        Args::default().bytes(&bytes)
    }

    pub(crate) fn load(&self, rank: usize, kernel: &Kernel) -> CUfunction {
        let instance = self.render(kernel).unwrap_or_else(|error| panic!("{error}"));
        self.load_text(rank, kernel, instance)
    }

    /// The kernel with this text.
    pub(crate) fn load_text(&self, rank: usize, kernel: &Kernel, instance: String) -> CUfunction {
        if let Some(&loaded) = self.loaded.borrow().get(&(rank, instance.clone())) {
            return loaded;
        }
        if let Ok(folder) = std::env::var("PLAN_TEXTS") {
            std::fs::write(format!("{folder}/plan{rank}.ptx"), &instance).expect("a folder");
        }
        let loaded = self.machine.load(rank, &instance, &kernel.symbol);
        self.loaded.borrow_mut().insert((rank, instance), loaded);
        loaded
    }

    pub(crate) fn render(&self, kernel: &Kernel) -> Result<String, TemplateError> {
        render(kernel, self.target).map(|instance| instance.text)
    }

    /// Runs a kernel on each rank.
    pub(crate) fn run(&self, kernels: &[Kernel], sizes: Sizes, skew: [u64; 2]) {
        let launches: Vec<_> = kernels
            .iter()
            .enumerate()
            .map(|(rank, kernel)| {
                let shape = LaunchShape { grid: kernel.blocks.len() as u32, block: kernel.threads };
                (self.load(rank, kernel), shape, self.args(rank, sizes, skew, kernel))
            })
            .collect();
        for (rank, (function, shape, args)) in launches.iter().enumerate() {
            self.machine.launch(rank, *function, *shape, args);
        }
        self.machine.finish();
    }
}

/// Factor and shift that divide by `value`.
fn divisor(value: u64) -> (u32, u32) {
    let shift = 31 + u64::BITS - (value - 1).leading_zeros();
    (u32::try_from((1u128 << shift).div_ceil(u128::from(value))).expect("below 2^32"), shift)
}

/// Bytes that look random, from a seed.
pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..bytes).map(|_| (next() >> 24) as u8).collect()
}
