//! A rank's memory for one plan, as its peers see it: control area, plain scratch, packets.

use std::collections::BTreeSet;
use std::sync::Arc;

use aqueduct_ptx::plan::{Base, UNIT_LINES};

use super::ir::{Buffer, Form, Move, Op, Place, Plan, Protocol, RankPlan};
use super::lower::{Address, Control, Store};
use super::ports::Memories;
use super::sizes::lines;
use crate::comm::{Communicator, Pending, RegisteredMemory, Transports};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::gpu::GpuBuffer;
use crate::gpu::vmm::PhysicalAllocation;

const OP: &str = "Executor::prepare";
/// Parts of an arena begin at multiples of this.
const LINE: u64 = 128;

/// Where the parts of a rank's arena begin, and how long it is. Every rank computes that of every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    scratch: u64,
    packets: u64,
    bytes: u64,
    /// From the first half of plain scratch to the second.
    pub(super) half: u64,
}

impl Parts {
    /// Where a part begins in the memory that holds it.
    pub(super) fn offset(&self, base: Base) -> u64 {
        match base {
            Base::Scratch => self.scratch,
            Base::Packets => self.packets,
            Base::Input | Base::Output => 0,
        }
    }

    /// Bytes of scratch and packets.
    pub(super) fn scratch_bytes(&self) -> u64 {
        self.bytes - self.scratch
    }

    /// The arena of each rank, with chunks of scratch apart by `distance`. For multicast of this granularity, scratch begins at the
    /// same offset in all arenas, and all are equally long.
    pub(super) fn of_all(plan: &Plan, distance: u64, multicast: Option<u64>) -> Result<Vec<Self>> {
        let control = |rank: &RankPlan| Ok(u64::from(Control::of(plan, rank)?.bytes));
        let mut controls = plan.ranks.iter().map(control).collect::<Result<Vec<_>>>()?;
        if multicast.is_some() {
            let most = controls.iter().copied().max().unwrap_or(0);
            controls.fill(most);
        }
        let granularity = multicast.unwrap_or(1);
        controls.into_iter().map(|control| Self::of(plan, control, distance, granularity)).collect()
    }

    fn of(plan: &Plan, control: u64, distance: u64, granularity: u64) -> Result<Self> {
        let too_long = || super::sizes::refused("a rank's scratch exceeds the address space".to_owned());
        // The same at all ranks: a kernel adds its own to the addresses of peers.
        let most = plan.ranks.iter().map(|rank| rank.scratch_chunks).max().unwrap_or(0);
        let half = u64::from(most).checked_mul(distance).ok_or_else(too_long)?;
        let halves = if plan.settings.double_scratch { 2 } else { 1 };
        let uses = Uses::of(plan);
        let scratch = control.next_multiple_of(LINE);
        let plain = if uses.plain { half.checked_mul(halves) } else { Some(0) };
        let packets = plain.and_then(|plain| scratch.checked_add(plain)).ok_or_else(too_long)?;
        let chunk = if uses.packets { packets_of(plan, distance) } else { Some(0) };
        let form = chunk.and_then(|chunk| chunk.checked_mul(u64::from(most))?.checked_mul(halves));
        let bytes = form.and_then(|form| packets.checked_add(form)?.checked_next_multiple_of(granularity));
        let bytes = bytes.ok_or_else(too_long)?;
        Ok(Self { scratch, packets, bytes, half: if halves == 2 { half } else { 0 } })
    }
}

/// Bytes of a chunk's packets.
fn packets_of(plan: &Plan, distance: u64) -> Option<u64> {
    match plan.settings.protocol {
        Protocol::Simple | Protocol::Ll => distance.checked_mul(2),
        Protocol::Ll128 => lines(distance).checked_mul(UNIT_LINES.into()),
    }
}

/// The forms in which a plan uses scratch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uses {
    plain: bool,
    packets: bool,
}

impl Uses {
    pub(super) fn of(plan: &Plan) -> Self {
        let mut uses = Self::default();
        let all = plan.ranks.iter().flat_map(|rank| rank.all_ops().map(move |op| (rank, op)));
        for (rank, op) in all {
            match op {
                Op::Move(moved) => {
                    // Only scratch holds packets; plain data lies in users' buffers as well.
                    for operand in moved.sources.iter().chain(&moved.targets) {
                        *uses.form(operand.form) |=
                            operand.form == Form::Packets || in_scratch(operand.place, rank);
                    }
                }
                Op::Port(put) => {
                    for (buffer, _) in [put.source, put.target] {
                        *uses.form(put.form) |= buffer == Buffer::Scratch;
                    }
                }
                _ => {}
            }
        }
        uses
    }

    fn form(&mut self, form: Form) -> &mut bool {
        match form {
            Form::Plain => &mut self.plain,
            Form::Packets => &mut self.packets,
        }
    }

    /// Bytes of a chunk of scratch with its packets, where chunks are apart by `distance`.
    pub(super) fn chunk(self, plan: &Plan, distance: u64) -> Option<u64> {
        let plain = if self.plain { distance } else { 0 };
        let packets = if self.packets { packets_of(plan, distance)? } else { 0 };
        plain.checked_add(packets)
    }

    /// A distance, a multiple of 128, with which a chunk takes at most so many bytes: the largest, but for LL128 packets.
    pub(super) fn distance(self, plan: &Plan, bytes: u64) -> u64 {
        let lines = plan.settings.protocol == Protocol::Ll128;
        let (plain, packets) = (u128::from(self.plain), u128::from(self.packets));
        // Leaves room for a last unit that is not full.
        let (bytes, of, parts) = if lines {
            (
                bytes.saturating_sub(u64::from(self.packets) * u64::from(UNIT_LINES)),
                15,
                15 * plain + 16 * packets,
            )
        } else {
            (bytes, 1, plain + 2 * packets)
        };
        let distance = (u128::from(bytes) * of).checked_div(parts).unwrap_or(0);
        u64::try_from(distance).unwrap_or(u64::MAX) / LINE * LINE
    }

    /// Whether it holds packets.
    pub(super) fn any_packets(self) -> bool {
        self.packets
    }

    /// Whether a plan uses scratch at all.
    pub(super) fn any(self) -> bool {
        self.plain || self.packets
    }
}

/// The ranks whose memory a rank's kernel uses, without itself. The same pairs both ways: who stores also hears.
pub(super) fn neighbours(rank: u32, plan: &Plan) -> BTreeSet<u32> {
    let mine = &plan.ranks[rank as usize];
    let switches = mine.switches.iter().flat_map(|switch| &switch.ranks);
    mine.memory_channels.iter().chain(switches).copied().filter(|&other| other != rank).collect()
}

/// The ranks whose proxies put packets into this rank's scratch, and those into whose scratch its own put them.
pub(super) fn exchange_packets(rank: u32, plan: &Plan) -> impl Iterator<Item = u32> {
    let mine = &plan.ranks[rank as usize];
    let puts_here = move |peer: &u32| packet_puts(&plan.ranks[*peer as usize]).any(|to| to == rank);
    packet_puts(mine).chain(mine.port_channels.iter().copied().filter(puts_here))
}

/// The ranks into whose scratch a rank's proxies put packets.
fn packet_puts(plan: &RankPlan) -> impl Iterator<Item = u32> {
    plan.all_ops().filter_map(|op| match op {
        Op::Port(put) if put.form == Form::Packets => plan.port_channels.get(put.channel as usize).copied(),
        _ => None,
    })
}

/// The ranks that must have a rank's memory for a plan: its neighbours, and those that port channels lead to.
pub(super) fn partners(rank: u32, plan: &Plan) -> BTreeSet<u32> {
    let mut all = neighbours(rank, plan);
    all.extend(&plan.ranks[rank as usize].port_channels);
    all
}

/// Whether others than the rank's own kernel reach input or output: peers' kernels, or proxies.
pub(super) fn reaches_users(plan: &RankPlan) -> bool {
    plan.all_ops().any(|op| match op {
        Op::Move(moved) => operands_reach(moved, plan),
        Op::Port(put) => [put.source.0, put.target.0].iter().any(|&buffer| buffer != Buffer::Scratch),
        _ => false,
    })
}

fn operands_reach(moved: &Move, plan: &RankPlan) -> bool {
    let mut all = moved.sources.iter().chain(&moved.targets);
    all.any(|operand| !matches!(operand.place, Place::Local(_)) && !in_scratch(operand.place, plan))
}

fn in_scratch(place: Place, plan: &RankPlan) -> bool {
    match place {
        Place::Local(buffer) | Place::Remote { buffer, .. } => buffer == Buffer::Scratch,
        Place::Switch(index) => {
            plan.switches.get(index as usize).is_some_and(|switch| switch.buffer == Buffer::Scratch)
        }
    }
}

/// An arena whose exchange is queued for `setup()`.
pub(super) struct PendingArena {
    buffer: Arc<GpuBuffer>,
    mine: RegisteredMemory,
    peers: Vec<(u32, Pending<RegisteredMemory>)>,
}

/// A rank's arena and those of its neighbours.
#[derive(Debug)]
pub(super) struct Arena {
    rank: u32,
    buffer: Arc<GpuBuffer>,
    mine: RegisteredMemory,
    peers: Vec<(u32, RegisteredMemory)>,
    /// By rank.
    parts: Vec<Parts>,
}

impl PendingArena {
    /// Allocates this rank's arena, writes its control area, and asks for those of its neighbours under `tag`.
    pub(super) fn begin(
        comm: &Communicator,
        plan: &Plan,
        control: &Control,
        parts: &[Parts],
        tag: u64,
        transports: Transports,
        deadline: Deadline,
    ) -> Result<Self> {
        let (rank, rank_plan) = (comm.rank(), &plan.ranks[comm.rank() as usize]);
        let bytes = usize::try_from(parts[rank as usize].bytes.max(LINE)).unwrap_or(usize::MAX);
        let buffer = Arc::new(GpuBuffer::new(comm.context(), bytes)?);
        buffer.upload(0, &control.initial(rank_plan), deadline)?;
        let mine = comm.register_memory(&buffer, transports)?;
        let exchange = |peer| {
            comm.send_memory_internal(&mine, peer, tag)?;
            Ok((peer, comm.recv_memory_internal(peer, tag)?))
        };
        let peers = partners(rank, plan).into_iter().map(exchange).collect::<Result<_>>()?;
        Ok(Self { buffer, mine, peers })
    }

    /// The arena, once `setup()` has resolved what [`begin`](Self::begin) asked for.
    pub(super) fn finish(self, comm: &Communicator, parts: Vec<Parts>) -> Result<Arena> {
        let mut peers = Vec::new();
        for (peer, pending) in self.peers {
            let memory = pending.get()?;
            if memory.len() as u64 != parts[peer as usize].bytes.max(LINE) {
                let message = format!(
                    "rank {peer} has {} bytes of scratch for this plan, which is another one there",
                    memory.len()
                );
                return Err(Error::usage(OP, message).with_peer(peer));
            }
            peers.push((peer, memory));
        }
        Ok(Arena { rank: comm.rank(), buffer: self.buffer, mine: self.mine, peers, parts })
    }
}

impl Arena {
    /// An address in a rank's arena; `None` for one that is not in an arena.
    pub(super) fn address(&self, address: Address) -> Option<u64> {
        let (rank, offset) = match address {
            Address::Scratch(rank) => (rank, self.parts[rank as usize].scratch),
            Address::Packets(rank) => (rank, self.parts[rank as usize].packets),
            Address::Control(rank) => (rank, 0),
            _ => return None,
        };
        let base = if rank == self.rank {
            self.buffer.ptr()
        } else {
            self.peers.iter().find(|(peer, _)| *peer == rank)?.1.ptr()
        };
        Some(base + offset)
    }

    /// The arena's memory and its bytes, if it can be bound to a multicast object.
    pub(super) fn memory(&self) -> Option<(&Arc<PhysicalAllocation>, u64)> {
        Some((self.buffer.allocation()?, self.parts[self.rank as usize].bytes))
    }

    /// Where a part of a rank's arena begins in it.
    pub(super) fn offset(&self, rank: u32, base: Base) -> u64 {
        self.parts[rank as usize].offset(base)
    }

    /// The arenas as a proxy takes them.
    pub(super) fn add_to(&self, memories: &mut Memories) -> Result<()> {
        memories.add(None, Store::Arena, &self.mine)?;
        self.peers.iter().try_for_each(|(peer, memory)| memories.add(Some(*peer), Store::Arena, memory))
    }

    #[cfg(test)]
    pub(super) fn buffer(&self) -> &GpuBuffer {
        &self.buffer
    }

    /// Base of this rank's control area.
    pub(super) fn control(&self) -> u64 {
        self.buffer.ptr()
    }

    /// Bytes from one half of plain scratch to the other.
    pub(super) fn half(&self) -> u64 {
        self.parts[self.rank as usize].half
    }
}
