//! The executor of one plan.
#![allow(unsafe_code, reason = "launches kernels")]

use std::collections::HashMap;
use std::sync::Arc;

use aqueduct_ptx::abi::{DeviceStruct as _, PlanArgs};
use aqueduct_ptx::plan::Element;

use super::agreement::agree;
use super::arena::{Arena, Parts, PendingArena, reaches_users};
use super::buffers::PlanBuffers;
use super::collective::Kind;
use super::compile::{ANY, Kernel, Variant, compile, scratch};
use super::config::ExecutorConfig;
use super::ir::{Plan, Reduction};
use super::lower::Address;
use super::sizes::{Chunks, fill};
use crate::comm::Communicator;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{DeviceSlice, GpuBuffer, KeepAlive, Stream, bytes as bytes_arg};

const EXECUTE: &str = "Executor::execute";

/// A plan over the ranks of a communicator: prepared once, then executed on streams.
///
/// Each call of [`execute`](Self::execute) is one kernel launch that a graph can capture; nothing of a call is decided by the host at
/// replay. Every rank calls with the same size, type and reduction, in the same order; all calls of one executor belong on one
/// stream, or on streams that the caller orders, because they share scratch. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Executor {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Keeps this rank in the group while a peer's kernels may wait for this rank's.
    comm: Communicator,
    plan: Plan,
    chunks: Chunks,
    /// Distance of chunks of scratch, and the longest message that it serves.
    scratch: (u64, u64),
    arena: Arena,
    variants: HashMap<Variant, Kernel>,
}

impl Executor {
    /// Checks and compiles `plan` for this rank, allocates its scratch and shows it to the peers. Collective: every rank calls it with
    /// the same plan and `config`, in the same order as other collective calls.
    ///
    /// # Errors
    /// `Plan` for a plan that is wrong, or that kernels cannot run; `InvalidUsage` for one of another number of ranks, or if ranks give
    /// different plans or settings; `Unsupported` where a peer's memory cannot be reached; `Remote` if another rank fails, with its
    /// reason; `Timeout`; a driver error. Every rank gets an error if one does.
    pub fn prepare(
        comm: &Communicator,
        plan: &Plan,
        config: ExecutorConfig,
        deadline: impl Into<Deadline>,
    ) -> Result<Self> {
        let deadline = deadline.into();
        // First, so that ranks agree on tags even after a call that failed on some of them.
        let tag = comm.next_internal_tag();
        let mine = compile(comm, plan, &config);
        let ((control, variants), agreed) = agree(comm, plan, &config, mine, deadline)?;
        let chunks = Chunks::of(plan);
        let scratch = scratch(plan, chunks, &config, agreed)?;
        let parts = plan.ranks.iter().map(|rank| Parts::of(plan, rank, scratch.0));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let arena = PendingArena::begin(comm, plan, &control, &parts, tag, deadline)
            .inspect_err(|_| comm.withdraw(&[tag]))?;
        comm.setup(deadline)?;
        let arena = arena.finish(comm, parts)?;
        let inner = Inner { comm: comm.clone(), plan: plan.clone(), chunks, scratch, arena, variants };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.inner.plan
    }

    /// The longest message, in bytes of the input (of the output, if no rank has an input).
    pub fn max_bytes(&self) -> u64 {
        self.inner.scratch.1
    }

    /// Whether peers reach this plan's input or output, so that calls need [`prepare_buffers`](Self::prepare_buffers).
    pub fn reaches_buffers(&self) -> bool {
        self.inner.plan.ranks.iter().any(reaches_users)
    }

    /// Shows an input and an output to the peers, for [`execute_on`](Self::execute_on). They may be one buffer. Ranks need not place
    /// them alike. Collective.
    ///
    /// # Errors
    /// `InvalidUsage` for a buffer of another device; `Timeout`; a driver error.
    pub fn prepare_buffers(
        &self,
        input: &Arc<GpuBuffer>,
        output: &Arc<GpuBuffer>,
        deadline: impl Into<Deadline>,
    ) -> Result<PlanBuffers> {
        let comm = &self.inner.comm;
        let tags = [comm.next_internal_tag(), comm.next_internal_tag()];
        let plan = &self.inner.plan.ranks[comm.rank() as usize];
        PlanBuffers::exchange(comm, plan, [input, output], tags, deadline.into())
    }

    /// Enqueues one call: `count` elements of `input` on each rank (of `output`, if no rank has an input), `reduction` in place of the
    /// plan's own if there is one. The stream keeps buffers and scratch alive.
    ///
    /// # Errors
    /// `InvalidUsage` for a size that the plan cannot have, buffers that are too small, misaligned or overlap otherwise than the plan
    /// says, a variant that was not prepared, or a plan of which peers reach the buffers; `PeerLost` once a rank is lost or has left;
    /// `Aborted` once the communicator is aborted; a driver error.
    pub fn execute(
        &self,
        stream: &Stream,
        input: &DeviceSlice,
        output: &DeviceSlice,
        count: usize,
        element: Element,
        reduction: impl Into<Option<Reduction>>,
    ) -> Result<()> {
        if self.reaches_buffers() {
            let message = "peers reach the buffers of this plan; show them with prepare_buffers() and call execute_on()";
            return Err(Error::usage(EXECUTE, message));
        }
        self.launch(stream, [input, output], None, count, (element, reduction.into()))
    }

    /// As [`execute`](Self::execute), on buffers that were shown to the peers, from their beginning. Every rank passes those
    /// of one call of [`prepare_buffers`](Self::prepare_buffers).
    ///
    /// # Errors
    /// As for [`execute`](Self::execute).
    pub fn execute_on(
        &self,
        stream: &Stream,
        buffers: &PlanBuffers,
        count: usize,
        element: Element,
        reduction: impl Into<Option<Reduction>>,
    ) -> Result<()> {
        let [input, output] = self.inner.placed(buffers, count, element)?;
        self.launch(stream, [&input, &output], Some(buffers), count, (element, reduction.into()))
    }

    fn launch(
        &self,
        stream: &Stream,
        [input, output]: [&DeviceSlice; 2],
        shown: Option<&PlanBuffers>,
        count: usize,
        variant: Variant,
    ) -> Result<()> {
        let inner = &*self.inner;
        inner.comm.check_all(EXECUTE)?;
        let kernel = inner.kernel(variant)?;
        let mut args = inner.args(input, output, count, variant.0)?;
        args.abort = inner.comm.abort_handle();
        let mut words: Vec<u64> = Vec::with_capacity(size_of::<PlanArgs>() / 8 + kernel.addresses.len());
        words.extend(
            args.as_bytes()
                .chunks_exact(8)
                .map(|word| word.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))),
        );
        let me = inner.comm.rank();
        for &address in &kernel.addresses {
            words.push(match address {
                Address::Input(rank) if rank == me => input.ptr(),
                Address::Output(rank) if rank == me => output.ptr(),
                Address::Input(_) | Address::Output(_) => inner.shown(shown, address, &args)?,
                _ => inner.arena.address(address).ok_or_else(|| missing(address))?,
            });
        }
        let keep = [
            Arc::clone(input.keep_alive()),
            Arc::clone(output.keep_alive()),
            self.inner.clone() as KeepAlive,
        ];
        let keep = keep
            .into_iter()
            .chain(inner.arena.keep_alive())
            .chain(shown.into_iter().flat_map(PlanBuffers::keep_alive));
        // SAFETY: the one argument is the kernel's parameter: the fixed part and the addresses that its description lists. Buffers are
        // large enough (`args` checked them), arena and peers' memories were sized by `Parts`; the stream retains all of them, and
        // none is a Rust reference. All blocks are resident: a launch of several is cooperative. A wait leaves when the abort word is set.
        let launched =
            unsafe { kernel.function.launch_keeping(stream, &kernel.config, &[bytes_arg(&words)], keep) };
        inner.comm.report_to(stream);
        launched
    }
}

impl Inner {
    fn kernel(&self, variant: Variant) -> Result<&Kernel> {
        let (element, reduction) = variant;
        let reduction = reduction.or_else(|| self.plan.reductions().next());
        let found = self.variants.get(&(element, reduction)).or_else(|| self.variants.get(&ANY));
        found.ok_or_else(|| {
            let op = reduction.map_or_else(String::new, |op| format!(" {op:?}"));
            let message =
                format!("{element:?}{op} was not prepared; name it in ExecutorConfig::with_variants");
            Error::usage(EXECUTE, message)
        })
    }

    /// The fixed part of the parameter of a call, without the abort handle.
    fn args(
        &self,
        input: &DeviceSlice,
        output: &DeviceSlice,
        count: usize,
        element: Element,
    ) -> Result<PlanArgs> {
        let refuse = |message: String| Err(Error::usage(EXECUTE, message));
        let rank = &self.plan.ranks[self.comm.rank() as usize];
        let size = element.bytes() as u64;
        let Some(bytes) = (count as u64).checked_mul(size).filter(|&bytes| bytes <= self.scratch.1) else {
            return refuse(format!(
                "{count} elements of {size} bytes are more than the {} bytes that were prepared; see ExecutorConfig::with_max_bytes",
                self.scratch.1
            ));
        };
        let chunk = self.chunks.distance(bytes, size)?;
        let lengths =
            [rank.input_chunks, rank.output_chunks].map(|chunks| self.chunks.buffer(chunks, bytes, chunk));
        for ((name, slice), needed) in [("input", input), ("output", output)].into_iter().zip(lengths) {
            slice.check_context(EXECUTE, self.comm.context())?;
            if (slice.len() as u64) < needed {
                return refuse(format!(
                    "a message of {bytes} bytes needs {needed} bytes of {name}, which has {}",
                    slice.len()
                ));
            }
            if !slice.ptr().is_multiple_of(size) {
                return refuse(format!(
                    "the {name} at {:#x} is not aligned to its elements of {size} bytes",
                    slice.ptr()
                ));
            }
        }
        self.check_overlap([input.ptr(), output.ptr()], lengths)?;
        let mut args = PlanArgs {
            scratch_chunk: self.scratch.0,
            input_bytes: lengths[0],
            output_bytes: lengths[1],
            half: self.arena.half(),
            control: self.arena.control(),
            ..PlanArgs::default()
        };
        fill(&mut args, chunk);
        Ok(args)
    }

    /// An error unless input and output lie to each other as the plan says.
    fn check_overlap(&self, [input, output]: [u64; 2], [inputs, outputs]: [u64; 2]) -> Result<()> {
        let me = u64::from(self.comm.rank());
        let apart = input + inputs <= output || output + outputs <= input;
        let (holds, rule) = match (&self.plan.collective.kind, self.plan.collective.in_place) {
            (_, false) => (apart, "lie apart"),
            (Kind::AllGather, true) => {
                (input == output + me * inputs, "be one: the input is this rank's part of the output")
            }
            (Kind::ReduceScatter, true) => {
                (output == input + me * outputs, "be one: the output is this rank's part of the input")
            }
            (_, true) => (input == output, "begin at the same address"),
        };
        if holds || inputs == 0 || outputs == 0 {
            return Ok(());
        }
        Err(Error::usage(
            EXECUTE,
            format!("input at {input:#x} and output at {output:#x} of this plan must {rule}"),
        ))
    }

    /// Input and output of a call on shown buffers: in place, one of an all-gather or a reduce-scatter is a part of the other.
    fn placed(&self, shown: &PlanBuffers, count: usize, element: Element) -> Result<[DeviceSlice; 2]> {
        let part = self.part(self.comm.rank(), count.saturating_mul(element.bytes()) as u64);
        let at =
            |slice: &DeviceSlice, offset: u64| slice.slice(usize::try_from(offset).unwrap_or(usize::MAX)..);
        Ok([at(&shown.input, part.0)?, at(&shown.output, part.1)?])
    }

    /// Where the input and the output of a rank begin in its buffers, in a call with `bytes` of input.
    fn part(&self, rank: u32, bytes: u64) -> (u64, u64) {
        let rank = u64::from(rank);
        match (&self.plan.collective.kind, self.plan.collective.in_place) {
            (Kind::AllGather, true) => (rank * bytes, 0),
            (Kind::ReduceScatter, true) => (0, bytes / self.plan.ranks.len() as u64 * rank),
            _ => (0, 0),
        }
    }

    /// The address of a peer's buffer, which must be as long as the call needs.
    fn shown(&self, shown: Option<&PlanBuffers>, address: Address, args: &PlanArgs) -> Result<u64> {
        let (ptr, len) = shown.and_then(|shown| shown.address(address)).ok_or_else(|| missing(address))?;
        let (rank, chunks, at) = match address {
            Address::Input(rank) => {
                (rank, self.plan.ranks[rank as usize].input_chunks, self.part(rank, args.input_bytes).0)
            }
            Address::Output(rank) => {
                (rank, self.plan.ranks[rank as usize].output_chunks, self.part(rank, args.input_bytes).1)
            }
            _ => return Err(missing(address)),
        };
        let needed = at + self.chunks.buffer(chunks, args.input_bytes.max(args.output_bytes), args.chunk);
        if len < needed {
            let message =
                format!("the buffer that rank {rank} has shown has {len} bytes; this call needs {needed}");
            return Err(Error::usage(EXECUTE, message).with_peer(rank));
        }
        Ok(ptr + at)
    }
}

fn missing(address: Address) -> Error {
    Error::new(ErrorKind::Internal, EXECUTE, format!("no address for {address:?}"))
}
