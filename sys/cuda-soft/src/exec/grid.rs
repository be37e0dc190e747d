//! A launched kernel: the state that its blocks share, and how it ends.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::buffer::{Line, Range, lines};
use super::fault::{Fault, Trouble};
use super::regs::LANES;
use super::{Image, Launch};
use crate::code::op::CallTarget;
use crate::code::{Function, Module, Op};

/// The callback of a launch. Called once, when the last block has ended or was abandoned.
pub(super) type Done = Box<dyn FnOnce(Result<(), Fault>) + Send>;

pub(super) struct Grid {
    launch: Launch,
    id: u64,
    params: Box<[Line]>,
    /// Stack bytes per thread.
    pub(super) stack_size: u32,
    /// Blocks that have not ended, including those that have not started.
    remaining: AtomicU64,
    faulted: AtomicBool,
    /// Whether the watchdog has reported this grid.
    pub(super) reported: AtomicBool,
    end: Mutex<End>,
}

struct End {
    fault: Option<Fault>,
    done: Option<Done>,
}

impl Grid {
    pub(super) fn new(launch: Launch, done: Done) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let params = lines(launch.params.len() as u64, None);
        for (at, byte) in launch.params.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..byte.len()].copy_from_slice(byte);
            params[at / 16].set(at % 16, u64::from_le_bytes(word));
        }
        let blocks = launch.grid.iter().map(|n| u64::from(*n)).product();
        Grid {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            params,
            stack_size: stack_size(&launch.image.code, launch.function),
            remaining: AtomicU64::new(blocks),
            faulted: AtomicBool::new(false),
            reported: AtomicBool::new(false),
            end: Mutex::new(End { fault: None, done: Some(done) }),
            launch,
        }
    }

    pub(super) fn launch(&self) -> &Launch {
        &self.launch
    }

    pub(super) fn image(&self) -> &Image {
        &self.launch.image
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The kernel.
    pub(super) fn function(&self) -> &Function {
        &self.image().code.functions[self.launch.function]
    }

    /// The number of blocks.
    pub(super) fn blocks(&self) -> u64 {
        self.launch.grid.iter().map(|n| u64::from(*n)).product()
    }

    /// The number of blocks in a cluster.
    pub(super) fn cluster_blocks(&self) -> u32 {
        self.launch.cluster.iter().product()
    }

    /// The number of threads in a block.
    pub(super) fn threads(&self) -> u32 {
        self.launch.block.iter().product()
    }

    /// The address range of the parameters. The buffer is longer: its size is rounded up to a line.
    pub(super) fn params(&self) -> Range {
        let range = Range::of(&self.params);
        Range { base: range.base, end: range.base + self.launch.params.len() as u64 }
    }

    /// Bytes of shared memory of a block.
    pub(super) fn shared_size(&self) -> u64 {
        self.function().shared_bytes(self.launch.dynamic_shared).into()
    }

    /// Whether the address lies in a variable of the constant bank.
    pub(super) fn in_constant(&self, address: u64) -> bool {
        let image = self.image();
        image
            .code
            .globals
            .iter()
            .zip(&image.globals)
            .any(|(variable, base)| variable.constant && address >= *base && address - base < variable.size)
    }

    /// Whether a block has faulted; the others then stop.
    pub(super) fn faulted(&self) -> bool {
        self.faulted.load(Ordering::Relaxed)
    }

    /// Records a fault. Only the first one is kept.
    pub(super) fn fault(&self, fault: Fault) {
        self.end.lock().fault.get_or_insert(fault);
        self.faulted.store(true, Ordering::Relaxed);
    }

    /// Counts `count` blocks as ended, or as never starting. After the last block, calls the callback.
    pub(super) fn ended(&self, count: u64) {
        if count != 0 && self.remaining.fetch_sub(count, Ordering::AcqRel) == count {
            if let Some(work) = &self.launch.check {
                work.checker().forget_grid(self.id);
            }
            let mut end = self.end.lock();
            let (fault, done) = (end.fault.take(), end.done.take());
            drop(end);
            if let Some(done) = done {
                done(fault.map_or(Ok(()), Err));
            }
        }
    }

    /// Adds the names to a fault.
    pub(super) fn describe(
        &self,
        trouble: Trouble,
        block: [u32; 3],
        thread: [u32; 3],
        at: (u32, u32),
    ) -> Fault {
        let (function, line) = self.source(at);
        Fault {
            kind: trouble.kind,
            kernel: self.function().name.clone(),
            block,
            thread,
            function,
            line,
            address: trouble.address,
        }
    }

    /// The function name and source line of an instruction, given as (function, index).
    pub(super) fn source(&self, (function, pc): (u32, u32)) -> (String, u32) {
        let function = &self.image().code.functions[function as usize];
        let line = function.lines.get(pc as usize).copied().unwrap_or(0);
        (function.name.clone(), line)
    }
}

impl fmt::Debug for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "grid {} of {}", self.id, self.function().name)
    }
}

/// Stack bytes reserved for recursion and indirect calls, whose depth the code does not bound.
const OPEN_STACK: u32 = 16 << 10;

/// The stack bytes that a thread of the kernel needs.
fn stack_size(module: &Module, kernel: usize) -> u32 {
    let mut path = vec![false; module.functions.len()];
    deepest(module, kernel, &mut path).next_multiple_of(16)
}

fn deepest(module: &Module, index: usize, path: &mut [bool]) -> u32 {
    let function = &module.functions[index];
    path[index] = true;
    let mut below = 0;
    for inst in &function.code {
        if let Op::Call(call) = &inst.op {
            below = below.max(match call.target {
                CallTarget::Function(callee) if !path[callee as usize] => {
                    deepest(module, callee as usize, path)
                }
                CallTarget::Function(_) | CallTarget::Indirect(_) => OPEN_STACK,
                CallTarget::Service(_) => 0,
            });
        }
    }
    path[index] = false;
    function.frame_size.saturating_add(below).min(512 << 10)
}

/// The position of a block in its grid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) index: [u32; 3],
    pub(super) linear: u64,
    /// The rank in the cluster.
    pub(super) rank: u32,
    /// Threads per block in x, y, z.
    block: [u32; 3],
}

impl Place {
    /// The position of block number `linear`. The blocks of a cluster have consecutive numbers.
    pub(super) fn new(launch: &Launch, linear: u64) -> Self {
        let split = |number: u64, [x, y, _]: [u64; 3]| [number % x, number / x % y, number / (x * y)];
        let cluster = launch.cluster.map(u64::from);
        let blocks: u64 = cluster.iter().product();
        let clusters: [u64; 3] = std::array::from_fn(|k| u64::from(launch.grid[k]) / cluster[k]);
        let (outer, inner) = (split(linear / blocks, clusters), split(linear % blocks, cluster));
        let index = std::array::from_fn(|k| (outer[k] * cluster[k] + inner[k]) as u32);
        Place { index, linear, rank: (linear % blocks) as u32, block: launch.block }
    }

    /// The index of a thread.
    pub(super) fn thread(&self, warp: usize, lane: usize) -> [u32; 3] {
        let linear = (warp * LANES + lane) as u32;
        let [x, y, _] = self.block;
        [linear % x, linear / x % y, linear / (x * y)]
    }
}

/// A grid in its device's launch queue.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) grid: Arc<Grid>,
    /// The next block to start.
    pub(super) next: u64,
    /// The share of the device that one block takes, out of [`WHOLE`].
    pub(super) cost: u64,
}

/// The capacity of a device, in the units of [`Pending::cost`].
pub(super) const WHOLE: u64 = 1 << 40;

impl Pending {
    pub(super) fn new(grid: Arc<Grid>) -> Self {
        let shared = u32::try_from(grid.shared_size()).unwrap_or(u32::MAX);
        // The driver refuses a block or cluster that can never fit. If one gets here it runs alone.
        let fits =
            grid.launch().limits.max_blocks(grid.threads(), shared, 0).max(grid.cluster_blocks().into());
        Pending { grid, next: 0, cost: WHOLE / fits }
    }

    /// The share of the device that a cluster takes, at most all of it.
    pub(super) fn cluster_cost(&self) -> u64 {
        self.cost * u64::from(self.grid.cluster_blocks())
    }
}
