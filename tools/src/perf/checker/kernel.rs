//! The kernel that makes and compares test data on a device.

use std::sync::Arc;

use anyhow::{Result, bail};
use aqueduct::gpu::{DeviceSlice, Function, GpuBuffer, LaunchConfig, Module, Stream, arg};
use aqueduct::plan::{Element, Reduction};

use crate::job::Rank;
use crate::perf::data::{Expected, Kind};

/// Its text.
pub(super) const KERNEL: &str = include_str!("../checker.ptx");

/// Threads of a block of the kernel.
const THREADS: u32 = 256;

pub(super) struct Kernel {
    function: Function,
    stream: Stream,
    /// Number of differing elements, a u64.
    found: Arc<GpuBuffer>,
    /// Blocks of a launch.
    blocks: u32,
}

impl Kernel {
    pub(super) fn load(rank: &Rank, text: &str) -> Result<Self> {
        let context = &rank.context;
        Ok(Self {
            function: Module::load_ptx(context, text)?.function("aqueduct_perf_data")?,
            stream: Stream::new(context)?,
            found: Arc::new(GpuBuffer::new(context, size_of::<u64>())?),
            blocks: context.device().sm_count()? * 8,
        })
    }

    pub(super) fn fill(&self, rank: &Rank, memory: &DeviceSlice, expected: Expected) -> Result<()> {
        self.run(rank, memory, expected, 0, 0)
    }

    pub(super) fn wrong(
        &self,
        rank: &Rank,
        memory: &DeviceSlice,
        expected: Expected,
        start: u64,
    ) -> Result<u64> {
        self.found.fill(0, rank.deadline())?;
        self.run(rank, memory, expected, start, self.found.ptr())?;
        let mut found = [0_u64];
        self.found.download(0, &mut found, rank.deadline())?;
        Ok(found[0])
    }

    /// Launches the kernel and waits for it. `wrong` is where it counts, or 0 to let it write.
    fn run(
        &self,
        rank: &Rank,
        memory: &DeviceSlice,
        expected: Expected,
        start: u64,
        wrong: u64,
    ) -> Result<()> {
        let Expected { kind, op, first, ranks, iteration, mask, thin } = expected;
        let count = (memory.len() / kind.bytes()) as u64;
        if count == 0 {
            return Ok(());
        }
        let address = memory.ptr();
        let (kind, op) = (number_of_kind(kind), number_of(op));
        let blocks = count.div_ceil(THREADS.into()).min(self.blocks.into()) as u32;
        let args = [
            arg(&address),
            arg(&start),
            arg(&count),
            arg(&kind),
            arg(&op),
            arg(&first),
            arg(&ranks),
            arg(&iteration),
            arg(&mask),
            arg(&thin),
            arg(&wrong),
        ];
        // SAFETY: the parameters of the entry; `count` elements lie in `memory`, and the stream retains it and the counter.
        unsafe { self.function.launch(&self.stream, &LaunchConfig::linear(blocks, THREADS), &args) }?;
        self.stream.retain(memory.keep_alive().clone())?;
        self.stream.retain(self.found.clone())?;
        Ok(self.stream.synchronize(rank.deadline())?)
    }

    /// Returns an error unless the kernel finds exactly the errors that are planted.
    pub(super) fn prove(&self, rank: &Rank, expected: Expected) -> Result<()> {
        let size = expected.kind.bytes();
        // More elements than threads.
        let count = self.blocks as usize * THREADS as usize * 2 - 77;
        let memory = Arc::new(GpuBuffer::new(&rank.context, count * size)?);
        let all = memory.slice(..)?;
        self.fill(rank, &all, expected)?;
        let mut made = vec![0; memory.len()];
        memory.download(0, &mut made, rank.deadline())?;
        let differing = expected.wrong(0, &made);
        let right = self.wrong(rank, &all, expected, 0)?;
        let planted = [0, 1, 255, 256, count / 2, count - 1];
        for element in planted {
            // A bit of the last byte of the element.
            made[element * size + size - 1] ^= 0x10;
        }
        memory.upload(0, &made, rank.deadline())?;
        let found = self.wrong(rank, &all, expected, 0)?;
        if (differing, right, found) != (0, 0, planted.len() as u64) {
            bail!(
                "the kernel that checks test data is broken on this device: of {count} elements it made {differing} wrong, \
                 found {right} errors before and {found} after {} were planted; use --check-by host",
                planted.len()
            );
        }
        Ok(())
    }
}

/// The kernel's number of a kind of elements.
fn number_of_kind(kind: Kind) -> u32 {
    match kind {
        Kind::Byte => 0,
        Kind::Element(Element::F32) => 1,
        Kind::Element(Element::F16) => 2,
        Kind::Element(Element::Bf16) => 3,
        Kind::Element(Element::F8E4m3) => 4,
        Kind::Element(Element::F8E5m2) => 5,
        Kind::Element(Element::F64) => 6,
        Kind::Element(Element::I8) => 7,
        Kind::Element(Element::U8) => 8,
        Kind::Element(Element::I32) => 9,
        Kind::Element(Element::U32) => 10,
        Kind::Element(Element::I64) => 11,
        Kind::Element(Element::U64) => 12,
    }
}

/// The kernel's number of a reduction.
fn number_of(op: Reduction) -> u32 {
    match op {
        Reduction::Sum => 0,
        Reduction::Prod => 1,
        Reduction::Min => 2,
        Reduction::Max => 3,
        Reduction::Avg => 4,
    }
}
