//! A rank's memory for one plan, as its peers see it: control area, plain scratch, packets.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::ir::{Buffer, Form, Move, Op, Place, Plan, RankPlan};
use super::lower::{Address, Control};
use crate::comm::{Communicator, Pending, RegisteredMemory, Transport, Transports};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::gpu::{GpuBuffer, KeepAlive};

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
    /// The arena of `rank`, with chunks of scratch apart by `distance`.
    pub(super) fn of(plan: &Plan, rank: &RankPlan, distance: u64) -> Result<Self> {
        let too_long = || super::sizes::refused("a rank's scratch exceeds the address space".to_owned());
        let half = u64::from(rank.scratch_chunks).checked_mul(distance).ok_or_else(too_long)?;
        let halves = if plan.settings.double_scratch { 2 } else { 1 };
        let uses = Uses::of(plan);
        let scratch = u64::from(Control::of(plan, rank)?.bytes).next_multiple_of(LINE);
        let plain = if uses.plain { half.checked_mul(halves) } else { Some(0) };
        let packets = plain.and_then(|plain| scratch.checked_add(plain)).ok_or_else(too_long)?;
        let form = if uses.packets { half.checked_mul(2 * halves) } else { Some(0) };
        let bytes = form.and_then(|form| packets.checked_add(form)).ok_or_else(too_long)?;
        Ok(Self { scratch, packets, bytes, half: if halves == 2 { half } else { 0 } })
    }

    fn address(&self, base: u64, address: Address) -> u64 {
        match address {
            Address::Scratch(_) => base + self.scratch,
            Address::Packets(_) => base + self.packets,
            _ => base,
        }
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

    /// Chunks of scratch of a rank, by the memory of a plain one.
    pub(super) fn weight(self) -> u64 {
        u64::from(self.plain) + 2 * u64::from(self.packets)
    }
}

/// The ranks whose memory a rank's kernel uses, without itself. The same pairs both ways: who stores also hears.
pub(super) fn neighbours(rank: u32, plan: &RankPlan) -> BTreeSet<u32> {
    let mut all: BTreeSet<u32> = plan.memory_channels.iter().copied().collect();
    all.extend(plan.switches.iter().flat_map(|switch| &switch.ranks));
    all.remove(&rank);
    all
}

/// Whether a rank's kernel reaches input or output of peers.
pub(super) fn reaches_users(plan: &RankPlan) -> bool {
    plan.all_ops().any(|op| matches!(op, Op::Move(moved) if operands_reach(moved, plan)))
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
    peers: Vec<(u32, Pending<RegisteredMemory>)>,
}

/// A rank's arena and those of its neighbours.
#[derive(Debug)]
pub(super) struct Arena {
    rank: u32,
    buffer: Arc<GpuBuffer>,
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
        deadline: Deadline,
    ) -> Result<Self> {
        let (rank, rank_plan) = (comm.rank(), &plan.ranks[comm.rank() as usize]);
        let bytes = usize::try_from(parts[rank as usize].bytes.max(LINE)).unwrap_or(usize::MAX);
        let buffer = Arc::new(GpuBuffer::new(comm.context(), bytes)?);
        buffer.upload(0, &control.initial(rank_plan), deadline)?;
        let mine = comm.register_memory(&buffer, Transports::from(Transport::CudaIpc))?;
        let exchange = |peer| {
            comm.send_memory_internal(&mine, peer, tag)?;
            Ok((peer, comm.recv_memory_internal(peer, tag)?))
        };
        let peers = neighbours(rank, rank_plan).into_iter().map(exchange).collect::<Result<_>>()?;
        Ok(Self { buffer, peers })
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
        Ok(Arena { rank: comm.rank(), buffer: self.buffer, peers, parts })
    }
}

impl Arena {
    /// An address in a rank's arena; `None` for one in a user's buffer.
    pub(super) fn address(&self, address: Address) -> Option<u64> {
        let (Address::Scratch(rank) | Address::Packets(rank) | Address::Control(rank)) = address else {
            return None;
        };
        let base = if rank == self.rank {
            self.buffer.ptr()
        } else {
            self.peers.iter().find(|(peer, _)| *peer == rank)?.1.ptr()
        };
        Some(self.parts[rank as usize].address(base, address))
    }

    /// Base of this rank's control area.
    pub(super) fn control(&self) -> u64 {
        self.buffer.ptr()
    }

    /// Bytes from one half of plain scratch to the other.
    pub(super) fn half(&self) -> u64 {
        self.parts[self.rank as usize].half
    }

    /// Everything whose memory a kernel uses.
    pub(super) fn keep_alive(&self) -> Vec<KeepAlive> {
        let peers = self.peers.iter().map(|(_, memory)| memory.keep_alive());
        peers.chain([self.buffer.clone() as KeepAlive]).collect()
    }
}
