//! Users' buffers that peers reach.

use std::sync::Arc;

use super::arena::partners;
use super::ir::RankPlan;
use super::lower::{Address, Store};
use super::ports::{Handles, Memories};
use crate::comm::{Communicator, Pending, RegisteredMemory, Transports};
use crate::deadline::Deadline;
use crate::error::Result;
use crate::gpu::{DeviceSlice, GpuBuffer, KeepAlive};

/// An input and an output that every rank has shown its peers: see [`Executor::prepare_buffers`](super::Executor::prepare_buffers).
#[derive(Clone, Debug)]
pub struct PlanBuffers {
    pub(super) input: DeviceSlice,
    pub(super) output: DeviceSlice,
    mine: [RegisteredMemory; 2],
    /// Input and output of each partner.
    peers: Arc<[(u32, RegisteredMemory, RegisteredMemory)]>,
    /// Of a plan with port channels.
    pub(super) handles: Option<Arc<Handles>>,
    /// Number of the executor whose peers have them.
    pub(super) executor: u64,
}

/// A pair of buffers whose exchange is queued for `setup()`.
struct PendingBuffers {
    mine: [RegisteredMemory; 2],
    peers: Vec<(u32, [Pending<RegisteredMemory>; 2])>,
}

impl PlanBuffers {
    pub(super) fn exchange(
        comm: &Communicator,
        plan: &RankPlan,
        buffers: [&Arc<GpuBuffer>; 2],
        tags: [u64; 2],
        transports: Transports,
        deadline: Deadline,
    ) -> Result<Self> {
        let pending = PendingBuffers::begin(comm, plan, buffers, tags, transports)
            .inspect_err(|_| comm.withdraw(&tags))?;
        comm.setup(deadline)?;
        let PendingBuffers { mine, peers } = pending;
        let peers = peers.into_iter().map(|(peer, [input, output])| Ok((peer, input.get()?, output.get()?)));
        let peers = peers.collect::<Result<Vec<_>>>()?.into();
        let [input, output] = [buffers[0].slice(..)?, buffers[1].slice(..)?];
        Ok(Self { input, output, mine, peers, handles: None, executor: 0 })
    }

    /// The buffers as a proxy takes them.
    pub(super) fn add_to(&self, memories: &mut Memories) -> Result<()> {
        memories.add(None, Store::Input, &self.mine[0])?;
        memories.add(None, Store::Output, &self.mine[1])?;
        self.peers.iter().try_for_each(|(peer, input, output)| {
            memories.add(Some(*peer), Store::Input, input)?;
            memories.add(Some(*peer), Store::Output, output)
        })
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

    pub(super) fn keep_alive(&self) -> impl Iterator<Item = KeepAlive> + '_ {
        let peers =
            self.peers.iter().flat_map(|(_, input, output)| [input.keep_alive(), output.keep_alive()]);
        peers.chain([Arc::clone(self.input.keep_alive()), Arc::clone(self.output.keep_alive())])
    }
}

impl PendingBuffers {
    fn begin(
        comm: &Communicator,
        plan: &RankPlan,
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
        Ok(Self { mine, peers })
    }
}
