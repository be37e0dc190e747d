//! The executor of one plan.
#![allow(unsafe_code, reason = "launches kernels")]

use std::sync::Arc;

use aqueduct_ptx::abi::{DeviceStruct as _, PlanArgs};
use aqueduct_ptx::plan::Element;

use super::agreement::agree;
use super::arena::{Parts, PendingArena, neighbours, reaches_users};
use super::buffers::PlanBuffers;
use super::compile::{Variant, compile, scratch};
use super::config::ExecutorConfig;
use super::ir::{Plan, Reduction};
use super::lower::Address;
use super::ports::{self, Memories, PendingPorts};
use super::prepared::{Prepared, missing};
use super::sizes::Chunks;
use crate::comm::{Communicator, Transport, Transports};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::gpu::{DeviceSlice, GpuBuffer, KeepAlive, Stream, bytes as bytes_arg};
use crate::sync::raw::{AtomicU64, Ordering};

const EXECUTE: &str = "Executor::execute";

/// Number of the next executor.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A plan over the ranks of a communicator: prepared once, then executed on streams.
///
/// Each call of [`execute`](Self::execute) is one kernel launch that a graph can capture; nothing of a call is decided by the host at
/// replay. Every rank calls with the same size, type and reduction, in the same order; all calls of one executor belong on one
/// stream, or on streams that the caller orders, because they share scratch. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Executor {
    inner: Arc<Prepared>,
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
        let transports = transports(comm, plan, &config);
        let mine = &plan.ranks[comm.rank() as usize];
        let begun = PendingArena::begin(comm, plan, &control, &parts, tag, transports, deadline)
            .and_then(|arena| Ok((arena, PendingPorts::begin(comm, mine, tag, config.port_transport)?)));
        let (arena, ports) = begun.inspect_err(|_| {
            comm.withdraw(&[tag]);
            comm.withdraw(&ports::tags(mine, tag));
        })?;
        comm.setup(deadline)?;
        let arena = arena.finish(comm, parts)?;
        let ports = match ports {
            Some(ports) => {
                let ports = ports.finish()?;
                let mut memories = Memories::of(&ports);
                arena.add_to(&mut memories)?;
                Some((ports, Arc::new(memories)))
            }
            None => None,
        };
        let reaches_buffers = plan.ranks.iter().any(reaches_users);
        let mut inner = Prepared {
            comm: comm.clone(),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            plan: plan.clone(),
            chunks,
            scratch,
            arena,
            transports,
            reaches_buffers,
            variants,
            handles: None,
            ports,
        };
        if !reaches_buffers {
            inner.handles = inner.port_handles(Vec::new(), deadline)?;
        }
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

    /// Whether peers or proxies reach this plan's input or output, so that calls need [`prepare_buffers`](Self::prepare_buffers).
    pub fn reaches_buffers(&self) -> bool {
        self.inner.reaches_buffers
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
        let (transports, deadline) = (self.inner.transports, deadline.into());
        let mut shown = PlanBuffers::exchange(comm, plan, [input, output], tags, transports, deadline)?;
        shown.executor = self.inner.number;
        if let Some((ports, _)) = &self.inner.ports {
            let mut memories = Memories::of(ports);
            shown.add_to(&mut memories)?;
            shown.handles = self.inner.port_handles(vec![Arc::new(memories)], deadline)?;
        }
        Ok(shown)
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
        self.inner.check_shown(buffers)?;
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
        let words = size_of::<PlanArgs>() / 8 + kernel.addresses.len() + kernel.rows.len();
        let mut words: Vec<u64> = Vec::with_capacity(words);
        words.extend(
            args.as_bytes()
                .chunks_exact(8)
                .map(|word| word.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))),
        );
        let handles = shown.map_or(&inner.handles, |shown| &shown.handles);
        if let Some(handles) = handles {
            handles.check()?;
        }
        let me = inner.comm.rank();
        for &address in &kernel.addresses {
            words.push(match address {
                Address::Input(rank) if rank == me => input.ptr(),
                Address::Output(rank) if rank == me => output.ptr(),
                Address::Input(_) | Address::Output(_) => inner.shown(shown, address, &args)?,
                Address::Offset(rank, base) => inner.offset(shown, rank, base, &args)?,
                Address::Port { .. } => handles
                    .as_ref()
                    .and_then(|handles| handles.address(address))
                    .ok_or_else(|| missing(address))?,
                _ => inner.arena.address(address).ok_or_else(|| missing(address))?,
            });
        }
        words.extend(&kernel.rows);
        let mine: [KeepAlive; 3] =
            [Arc::clone(input.keep_alive()), Arc::clone(output.keep_alive()), self.inner.clone()];
        let keep = mine.into_iter().chain(inner.arena.keep_alive());
        let keep = keep.chain(shown.into_iter().flat_map(PlanBuffers::keep_alive));
        let keep = keep.chain(handles.iter().map(|handles| handles.clone() as KeepAlive));
        let launch = kernel.launch(args.vectors);
        // SAFETY: the one argument is the kernel's parameter: the fixed part and the addresses that its description lists. Buffers are
        // large enough (`args` checked them), arena and peers' memories were sized by `Parts`; the stream retains all of them, and
        // none is a Rust reference. All blocks can be resident (`compile` checked it). A wait leaves when the abort word is set.
        let launched =
            unsafe { launch.function.launch_keeping(stream, &launch.config, &[bytes_arg(&words)], keep) };
        inner.comm.report_to(stream);
        handles.iter().for_each(|handles| handles.report_to(stream));
        launched
    }
}

/// The transports by which memory of the plan is reached.
fn transports(comm: &Communicator, plan: &Plan, config: &ExecutorConfig) -> Transports {
    let mine = &plan.ranks[comm.rank() as usize];
    let ports = mine.port_channels.iter().map(|&peer| ports::transport(comm, peer, config.port_transport));
    // Peers on this host map it; without any, nobody asks for a handle.
    let near = !neighbours(comm.rank(), mine).is_empty();
    let near = near.then_some(Transport::CudaIpc);
    ports.chain(near).fold(Transports::default(), |all, transport| all | Transports::from(transport))
}
