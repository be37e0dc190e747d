//! Users' buffers that peers reach.

use std::sync::Arc;

use super::arena::partners;
use super::ir::Plan;
use super::lower::{Address, Store};
use super::multicast::Joined;
use super::ports::{Handles, Memories};
use crate::comm::{Communicator, Pending, RegisteredMemory, ScratchShare, Transports};
use crate::error::Result;
use crate::gpu::vmm::PhysicalAllocation;
use crate::gpu::{DeviceSlice, GpuBuffer};

/// An input and an output that every rank has shown its peers: see
/// [`Executor::prepare_buffers`](super::Executor::prepare_buffers).
#[derive(Clone, Debug)]
pub struct PlanBuffers {
    pub(super) inner: Arc<Shown>,
}

/// The part of shown buffers that a call is for, the same on all ranks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    /// Bytes in front of it, in every rank's input and output.
    pub(crate) from: u64,
    /// Bytes that every rank's buffers have at least, also behind the window: calls of other parts follow, and no rank may find out in
    /// the midst of them that a buffer is too short.
    pub(crate) whole: u64,
}

/// One object for a stream to keep while a kernel uses the buffers.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) input: DeviceSlice,
    pub(super) output: DeviceSlice,
    mine: [RegisteredMemory; 2],
    /// Input and output of each partner.
    peers: Vec<(u32, RegisteredMemory, RegisteredMemory)>,
    /// Of a plan with port channels.
    pub(super) handles: Option<Arc<Handles>>,
    /// Of a plan with switches over them that are on multicast.
    pub(super) multicast: Option<Joined>,
    /// Number of the executor whose peers have them.
    pub(super) executor: u64,
    /// Number of the call that has shown them, the same on all ranks.
    pub(super) number: u64,
    /// The part of the communicator's scratch that they are, if they are the library's own.
    pub(super) _share: Option<ScratchShare>,
}

/// A pair of buffers whose exchange is queued for `setup()`.
pub(super) struct PendingBuffers {
    slices: [DeviceSlice; 2],
    mine: [RegisteredMemory; 2],
    peers: Vec<(u32, [Pending<RegisteredMemory>; 2])>,
    number: u64,
}

impl Shown {
    /// The buffers as a proxy takes them.
    pub(super) fn add_to(&self, memories: &mut Memories) -> Result<()> {
        memories.add(None, Store::Input, &self.mine[0])?;
        memories.add(None, Store::Output, &self.mine[1])?;
        self.peers.iter().try_for_each(|(peer, input, output)| {
            memories.add(Some(*peer), Store::Input, input)?;
            memories.add(Some(*peer), Store::Output, output)
        })
    }

    /// The memory of this rank's input and output, as far as it can be bound to multicast objects.
    pub(super) fn memory(&self) -> [Option<&Arc<PhysicalAllocation>>; 2] {
        self.mine.each_ref().map(|memory| memory.buffer()?.allocation())
    }

    /// The address of a peer's buffer, and its bytes; `None` for one in an arena.
    pub(super) fn address(&self, address: Address) -> Option<(u64, u64)> {
        let find = |rank: u32| self.peers.iter().find(|(peer, ..)| *peer == rank);
        let memory = match address {
            Address::Input(rank) => &find(rank)?.1,
            Address::Output(rank) => &find(rank)?.2,
            _ => return None,
        };
        Some((memory.ptr(), memory.len() as u64))
    }
}

impl PendingBuffers {
    /// Asks for the buffers of this rank's partners under `tags`.
    pub(super) fn begin(
        comm: &Communicator,
        plan: &Plan,
        buffers: [&Arc<GpuBuffer>; 2],
        tags: [u64; 2],
        transports: Transports,
    ) -> Result<Self> {
        let register = |buffer| comm.register_memory(buffer, transports);
        let mine = [register(buffers[0])?, register(buffers[1])?];
        let exchange = |peer| {
            let one = |index: usize| {
                comm.send_memory_internal(&mine[index], peer, tags[index])?;
                comm.recv_memory_internal(peer, tags[index])
            };
            Ok((peer, [one(0)?, one(1)?]))
        };
        let peers = partners(comm.rank(), plan).into_iter().map(exchange).collect::<Result<_>>()?;
        let slices = [buffers[0].slice(..)?, buffers[1].slice(..)?];
        Ok(Self { slices, mine, peers, number: comm.call_number() })
    }

    /// The buffers, once `setup()` has resolved what [`begin`](Self::begin) asked for.
    pub(super) fn finish(self, executor: u64) -> Result<Shown> {
        let Self { slices: [input, output], mine, peers, number } = self;
        let get = |(peer, [input, output]): (u32, [Pending<RegisteredMemory>; 2])| {
            Ok((peer, input.get()?, output.get()?))
        };
        let peers = peers.into_iter().map(get).collect::<Result<_>>()?;
        Ok(Shown {
            input,
            output,
            mine,
            peers,
            handles: None,
            multicast: None,
            executor,
            number,
            _share: None,
        })
    }
}
