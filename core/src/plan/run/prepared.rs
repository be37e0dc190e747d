//! A prepared plan: what the parameters of a call are.

use std::sync::Arc;

use aqueduct_ptx::abi::PlanArgs;
use aqueduct_ptx::plan::{Base, Element};

use super::arena::Arena;
use super::buffers::{Shown, Window};
use super::collective::Kind;
use super::ir::{Buffer, Plan, Reduction};
use super::kernel::{ANY, Kernel, Kernels, Variant};
use super::lane::Lanes;
use super::lower::Address;
use super::multicast::Multicast;
use super::overflow::Overflow;
use super::ports::{Handles, Memories, Ports};
use super::sizes::{Chunks, fill, lines};
use super::trace::Trace;
use super::turns::Place;
use crate::comm::{Communicator, ScratchShare, Transports};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{DeviceSlice, Room};

const EXECUTE: &str = "Executor::execute";

#[derive(Debug)]
pub(super) struct Prepared {
    /// Keeps this rank in the group while a peer's kernels may wait for this rank's.
    pub(super) comm: Communicator,
    /// Of this process alone.
    pub(super) number: u64,
    /// The same on all ranks, and different for each executor of the communicator.
    pub(super) agreed: u64,
    pub(super) plan: Plan,
    /// The plan's own.
    pub(super) reduction: Option<Reduction>,
    pub(super) chunks: Chunks,
    /// Whether this rank's input and output take part at all.
    pub(super) touched: [bool; 2],
    /// For a plan whose chunks have sizes of their own.
    pub(super) overflow: Option<Arc<Overflow>>,
    /// Input and output may also lie to each other as in a call in place.
    pub(super) either_place: bool,
    /// Distance of chunks of scratch, and the longest message that it serves.
    pub(super) scratch: (u64, u64),
    /// What it takes of the communicator's scratch.
    pub(super) _share: ScratchShare,
    /// Before the ports and their memories, which it uses.
    pub(super) handles: Option<Arc<Handles>>,
    pub(super) ports: Option<(Ports, Arc<Memories>)>,
    pub(super) arena: Arena,
    /// By which peers and proxies reach memory of this plan.
    pub(super) transports: Transports,
    pub(super) reaches_buffers: bool,
    pub(super) variants: Kernels,
    /// Blocks that copy engines run.
    pub(super) lanes: Option<Lanes>,
    /// Kernels that access switches by multicast addresses, for variants that have any.
    pub(super) by_multicast: Kernels,
    /// Keeps the arena's memory, which it has bound.
    pub(super) multicast: Option<Multicast>,
    /// Records of traced kernels.
    pub(super) trace: Option<Trace>,
    /// Room that the kernels have on the device beside others.
    pub(super) room: Room,
    /// In the order of launches, where there is no room.
    pub(super) place: Place,
}

impl Prepared {
    /// Whether a call of so many bytes in such chunks goes by multicast addresses: the same on all ranks. `placed`: its input and
    /// output are the shown buffers.
    pub(super) fn goes_by_multicast(
        &self,
        shown: Option<&Shown>,
        placed: bool,
        bytes: u64,
        chunk: u64,
    ) -> bool {
        let Some(multicast) = &self.multicast else { return false };
        let over_buffers = || shown.and_then(|shown| shown.multicast.as_ref()).filter(|_| placed);
        !multicast.reaches_users()
            || over_buffers().is_some_and(|joined| multicast.serves(joined, self.chunks, bytes, chunk))
    }

    /// A team's multicast address of a memory.
    pub(super) fn team(&self, shown: Option<&Shown>, number: u32, base: Base) -> Option<u64> {
        match base {
            Base::Scratch | Base::Packets => {
                let address = self.multicast.as_ref()?.scratch.address(number)?;
                Some(address + self.arena.offset(self.comm.rank(), base))
            }
            Base::Input | Base::Output => shown?.multicast.as_ref()?.address(number),
        }
    }

    /// The kernel of a variant; `None` if this rank has no operation.
    pub(super) fn kernel(&self, variant: Variant, multicast: bool) -> Result<Option<&Kernel>> {
        let (element, reduction) = variant;
        let reduction = reduction.or(self.reduction);
        let kernels = [(&self.by_multicast, multicast), (&self.variants, true)];
        let mut found = kernels
            .into_iter()
            .filter(|(_, fits)| *fits)
            .filter_map(|(kernels, _)| kernels.get(&(element, reduction)).or_else(|| kernels.get(&ANY)));
        let found = found.next();
        found.map(Option::as_ref).ok_or_else(|| {
            let op = reduction.map_or_else(String::new, |op| format!(" {op:?}"));
            let message =
                format!("{element:?}{op} was not prepared; name it in ExecutorConfig::with_variants");
            Error::usage(EXECUTE, message)
        })
    }

    /// Handles of the port channels for the kernels' addresses.
    pub(super) fn port_handles(
        &self,
        mut memories: Vec<Arc<Memories>>,
        deadline: Deadline,
    ) -> Result<Option<Arc<Handles>>> {
        let Some((ports, arena)) = &self.ports else { return Ok(None) };
        memories.push(Arc::clone(arena));
        let addresses = self.variants.values().flatten().flat_map(|kernel| kernel.addresses.iter().copied());
        Handles::new(&self.comm, ports, memories, addresses, deadline).map(|handles| Some(Arc::new(handles)))
    }

    /// Where a buffer begins in the memory that holds it.
    pub(super) fn offset(
        &self,
        shown: Option<&Shown>,
        rank: u32,
        base: Base,
        args: &PlanArgs,
        window: Window,
    ) -> Result<u64> {
        let part = self.part(rank, args.input_bytes);
        let (address, offset) = match base {
            Base::Scratch | Base::Packets => return Ok(self.arena.offset(rank, base)),
            Base::Input => (Address::Input(rank), part.0),
            Base::Output => (Address::Output(rank), part.1),
        };
        if rank != self.comm.rank() {
            // The peer's buffer must be as long as the call needs.
            self.shown(shown, address, args, window)?;
        }
        Ok(offset + window.from)
    }

    /// The fixed part of the parameter of a call, without the abort handle.
    pub(super) fn args(
        &self,
        input: &DeviceSlice,
        output: &DeviceSlice,
        count: usize,
        element: Element,
    ) -> Result<PlanArgs> {
        let refuse = |message: String| Err(Error::usage(EXECUTE, message));
        if self.overflow.is_some() {
            return refuse(
                "the chunks of this plan have sizes of their own; run it as a collective::VariableCollective"
                    .to_owned(),
            );
        }
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
        let needed = [0, 1].map(|side| if self.touched[side] { lengths[side] } else { 0 });
        for ((name, slice), needed) in [("input", input), ("output", output)].into_iter().zip(needed) {
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
        self.check_overlap([input.ptr(), output.ptr()], needed)?;
        let mut args = PlanArgs {
            scratch_chunk: self.scratch.0,
            input_bytes: lengths[0],
            output_bytes: lengths[1],
            half: self.arena.half(),
            // It fits: a chunk of 2^32 units is longer than the address space of a device.
            lines: u32::try_from(lines(self.scratch.0)).unwrap_or(u32::MAX),
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
        let (one, rule) = match self.plan.collective.kind {
            Kind::AllGather | Kind::Gather { .. } => {
                (input == output + me * inputs, "be one: the input is this rank's part of the output")
            }
            Kind::ReduceScatter | Kind::Scatter { .. } => {
                (output == input + me * outputs, "be one: the output is this rank's part of the input")
            }
            _ => (input == output, "begin at the same address"),
        };
        let in_place = self.plan.collective.in_place;
        let holds = if in_place { one } else { apart || self.either_place && one };
        let rule = if in_place { rule } else { "lie apart" };
        if holds || inputs == 0 || outputs == 0 {
            return Ok(());
        }
        Err(Error::usage(
            EXECUTE,
            format!("input at {input:#x} and output at {output:#x} of this plan must {rule}"),
        ))
    }

    /// An error unless this executor has shown these buffers.
    pub(super) fn check_shown(&self, shown: &Shown) -> Result<()> {
        if shown.executor == self.number {
            return Ok(());
        }
        let message = "another executor has shown these buffers to its peers; call prepare_buffers() of this one on every rank";
        Err(Error::usage(EXECUTE, message))
    }

    /// Input and output of a call on shown buffers: in place, one of an all-gather or a reduce-scatter is a part of the other.
    pub(super) fn placed(&self, shown: &Shown, count: usize, element: Element) -> Result<[DeviceSlice; 2]> {
        let part = self.part(self.comm.rank(), count.saturating_mul(element.bytes()) as u64);
        let at =
            |slice: &DeviceSlice, offset: u64| slice.slice(usize::try_from(offset).unwrap_or(usize::MAX)..);
        Ok([at(&shown.input, part.0)?, at(&shown.output, part.1)?])
    }

    /// Where the input and the output of a rank begin in its buffers, in a call with `bytes` of input.
    fn part(&self, rank: u32, bytes: u64) -> (u64, u64) {
        let rank = u64::from(rank);
        match (&self.plan.collective.kind, self.plan.collective.in_place) {
            // A call that does not fit in the address space is refused for its length.
            (Kind::AllGather | Kind::Gather { .. }, true) => (rank.saturating_mul(bytes), 0),
            (Kind::ReduceScatter | Kind::Scatter { .. }, true) => {
                (0, bytes / self.plan.ranks.len() as u64 * rank)
            }
            _ => (0, 0),
        }
    }

    /// Bytes of a rank's input or output in a call.
    pub(super) fn length(&self, rank: u32, buffer: Buffer, args: &PlanArgs) -> u64 {
        let chunks = self.plan.ranks[rank as usize].chunks(buffer);
        self.chunks.buffer(chunks, args.input_bytes.max(args.output_bytes), args.chunk)
    }

    /// The address of a peer's buffer in a call, which must be as long as the call needs.
    pub(super) fn shown(
        &self,
        shown: Option<&Shown>,
        address: Address,
        args: &PlanArgs,
        window: Window,
    ) -> Result<u64> {
        let (ptr, len) = shown.and_then(|shown| shown.address(address)).ok_or_else(|| missing(address))?;
        let (rank, buffer, at) = match address {
            Address::Input(rank) => (rank, Buffer::Input, self.part(rank, args.input_bytes).0),
            Address::Output(rank) => (rank, Buffer::Output, self.part(rank, args.input_bytes).1),
            _ => return Err(missing(address)),
        };
        let at = at + window.from;
        let needed = window.whole.max(at + self.length(rank, buffer, args));
        if len < needed {
            let message =
                format!("the buffer that rank {rank} has shown has {len} bytes; this call needs {needed}");
            return Err(Error::usage(EXECUTE, message).with_peer(rank));
        }
        Ok(ptr + at)
    }
}

pub(super) fn missing(address: Address) -> Error {
    Error::new(ErrorKind::Internal, EXECUTE, format!("no address for {address:?}"))
}
