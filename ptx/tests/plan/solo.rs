//! One rank's kernel, whose memory is compared with the model's to the byte.

use aqueduct_ptx::plan::{Base, Kernel, Operand, PacketForm};

use crate::model::{Image, Model, tame};
use crate::rig::{CALLS, CANARY, Sizes, World, operand};

/// Bytes before the scratch areas and behind them.
const MARGIN: usize = 128;

/// The largest grid.
const BLOCKS: usize = 40;

/// Chunks of the rank's own buffer, from `first` on.
pub(crate) fn at(base: Base, first: u32) -> Operand {
    operand(0, base, first)
}

/// A chunk and so many bytes of input and of output.
pub(crate) fn sizes(chunk: u64, bytes: u64) -> Sizes {
    Sizes { chunk, input: bytes, output: bytes }
}

pub(crate) struct Solo {
    pub(crate) world: World,
    /// Number of the last call.
    pub(crate) calls: u64,
    pub(crate) seed: u64,
}

impl Solo {
    pub(crate) fn new(capacity: usize, chunks: u64, scratch_chunk: u64) -> Self {
        Self { world: World::new(1, capacity, chunks, scratch_chunk), calls: 0, seed: 0 }
    }

    pub(crate) fn for_sm(self, sm: u32) -> Self {
        Self { world: self.world.with_kernels_for(sm), ..self }
    }

    /// Runs a kernel and the model on the same garbage.
    pub(crate) fn run(&mut self, kernel: &Kernel, sizes: Sizes, skew: [u64; 2]) {
        self.run_until(kernel, sizes, skew, || {});
    }

    /// The same; `meanwhile` runs beside the kernel.
    pub(crate) fn run_until(
        &mut self,
        kernel: &Kernel,
        sizes: Sizes,
        skew: [u64; 2],
        meanwhile: impl FnOnce(),
    ) {
        self.run_as(kernel, (sizes, skew), kernel.threads, |text, _| text, meanwhile);
    }

    /// The same with a text that `change` makes of the kernel's, for the call of its number, and blocks of so many threads.
    pub(crate) fn run_as(
        &mut self,
        kernel: &Kernel,
        (sizes, skew): (Sizes, [u64; 2]),
        threads: u32,
        change: impl FnOnce(String, u64) -> String,
        meanwhile: impl FnOnce(),
    ) {
        self.seed += 1;
        self.calls = if self.calls as u32 == u32::MAX { self.calls + 3 } else { self.calls + 1 };
        let (world, memory) = (&self.world, &self.world.memory[0]);
        let half = world.chunks as usize * world.scratch_chunk as usize;
        let shift = if kernel.double_scratch { self.calls as usize % 2 * half } else { 0 };
        let regions = [
            (memory.input, world.capacity + 2 * CANARY),
            (memory.output, world.capacity + 2 * CANARY),
            (memory.scratch, 2 * half + 2 * MARGIN),
            (memory.packets, 4 * half + 2 * MARGIN),
        ];
        let images = regions.map(|(address, bytes)| {
            let mut garbage = tame(self.seed * 4 + address % 4, bytes, kernel.element);
            // Elements begin where the buffer does.
            garbage.rotate_right(skew[0] as usize % kernel.element.bytes());
            world.machine.write(0, address, &garbage);
            garbage.into_iter().map(Some).collect::<Image>()
        });
        let packets = match kernel.packets {
            PacketForm::Ll16 => 2 * shift,
            // Halves of lines are as far apart as a half has lines.
            PacketForm::Ll128 => shift / world.scratch_chunk as usize * 1024 * world.lines() as usize,
        };
        let starts = [CANARY + skew[0] as usize, CANARY + skew[1] as usize, MARGIN + shift, MARGIN + packets];
        let lines = kernel.packets == PacketForm::Ll128;
        let scratch_chunk = world.scratch_chunk as usize;
        let mut model = Model { images, starts, sizes, scratch_chunk, flag: self.calls as u32, lines };
        model.run(kernel);
        let text = world.render(kernel).unwrap_or_else(|error| panic!("{error}"));
        let function = world.load_text(0, kernel, change(text, self.calls));
        let args = world.args(0, sizes, skew, kernel);
        let shape = crate::device::LaunchShape { grid: kernel.blocks.len() as u32, block: threads };
        world.machine.launch(0, function, shape, &args);
        meanwhile();
        world.machine.finish();
        for (region, (address, bytes)) in regions.into_iter().enumerate() {
            let found = world.machine.read(0, address, bytes);
            let expected = &model.images[region];
            let wrong = (0..bytes).find(|&at| expected[at].is_some_and(|byte| byte != found[at]));
            if let Some(at) = wrong {
                let name = ["input", "output", "scratch", "packets"][region];
                let place = at as isize - starts[region] as isize;
                panic!(
                    "{name}, byte {place}: {:x?} instead of {:x?}; {sizes:?}, skew {skew:?}, {:?}, {} blocks, call {:#x}: {:?}",
                    &found[at..bytes.min(at + 8)],
                    &expected[at..bytes.min(at + 8)],
                    kernel.element,
                    kernel.blocks.len(),
                    self.calls,
                    kernel.shapes,
                );
            }
        }
        let counted = kernel.double_scratch || kernel.laps.is_some();
        for block in 0..kernel.blocks.len() {
            let at = memory.control + u64::from(CALLS) + 8 * block as u64;
            let found = u64::from_ne_bytes(world.machine.read(0, at, 8).try_into().expect("eight bytes"));
            assert!(
                !counted || found == self.calls,
                "block {block} counts {found:#x}, not {:#x}",
                self.calls
            );
        }
        self.set_calls(self.calls);
    }

    /// The next call is the one behind this.
    pub(crate) fn set_calls(&mut self, calls: u64) {
        self.calls = calls;
        let counters = calls.to_ne_bytes().repeat(BLOCKS);
        self.world.machine.write(0, self.world.memory[0].control + u64::from(CALLS), &counters);
    }
}
