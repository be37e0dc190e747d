//! Moves: what a block's threads load, reduce and store.

use aqueduct_ptx::plan::{UNIT_DATA, unroll, unroll_lines};

use super::super::ir::{Buffer, Form, Move, Operand, Place, Protocol, Share};
use super::links::{Time, micros, transfer};
use super::packets::Written;
use super::sizes::Turn;
use super::state::Run;

/// Threads of a block that reach its full rates.
const ALL_THREADS: f64 = 256.0;

/// Bytes of a packet's payload that a thread handles at once.
const PACKET: u64 = 8;

/// Bytes of data in a unit of LL128 packets for each thread of the warp that handles it.
const LINE: u64 = UNIT_DATA as u64 / 32;

/// A range of a rank's buffer.
#[derive(Clone, Copy)]
struct Side {
    rank: u32,
    buffer: Buffer,
    first: u32,
    form: Form,
}

impl Run<'_, '_> {
    /// Bytes of packets that carry so many bytes of data.
    fn packet_bytes(&self, bytes: u64) -> u64 {
        match self.plan.settings.protocol {
            Protocol::Simple | Protocol::Ll => 2 * bytes,
            Protocol::Ll128 => bytes / 15 * 16,
        }
    }

    /// The buffers that an operand names: one, or that of each member of a switch, which executors expand in the same way.
    fn sides(&self, rank: u32, operand: &Operand, each: &mut impl FnMut(Side)) {
        let Operand { first, form, .. } = *operand;
        match operand.place {
            Place::Local(buffer) => each(Side { rank, buffer, first, form }),
            Place::Remote { rank, buffer } => each(Side { rank, buffer, first, form }),
            Place::Switch(index) => {
                let switch = &self.plan.ranks[rank as usize].switches[index as usize];
                for &rank in &switch.ranks {
                    each(Side { rank, buffer: switch.buffer, first, form });
                }
            }
        }
    }

    /// The half of scratch that a rank's call uses.
    fn half(&self, rank: u32) -> (usize, u32) {
        let call = self.ranks[rank as usize].call;
        (if self.plan.settings.double_scratch { call as usize % 2 } else { 0 }, call)
    }

    /// When the packets of a range have come; `None` if the block waits for some of them.
    pub(super) fn arrival(
        &mut self,
        index: u32,
        owner: u32,
        first: u32,
        (start, end): (u64, u64),
    ) -> Option<(Time, Time)> {
        let (half, call) = self.half(self.blocks[index as usize].rank);
        let base = u64::from(first) * self.sizes.chunk;
        let packets = &mut self.ranks[owner as usize].packets[half];
        packets.arrival((base + start, base + end), call).map_err(|byte| packets.wait(byte, index)).ok()
    }

    /// Notes packets of a rank's call in somebody's scratch.
    pub(super) fn packets(
        &mut self,
        rank: u32,
        owner: u32,
        first: u32,
        (start, end): (u64, u64),
        times: (Time, Time),
    ) {
        let (half, call) = self.half(rank);
        let base = u64::from(first) * self.sizes.chunk;
        let written = Written { call, first: times.0, last: times.1 };
        for waiter in self.ranks[owner as usize].packets[half].put((base + start, base + end), written) {
            self.wake(waiter, times.0);
        }
    }

    pub(super) fn moved(&mut self, index: u32, moved: &Move, turn: Turn<'_>) -> Option<Time> {
        let rank = self.blocks[index as usize].rank;
        let (mut sources, mut targets) = (Vec::new(), Vec::new());
        moved.sources.iter().for_each(|operand| self.sides(rank, operand, &mut |side| sources.push(side)));
        moved.targets.iter().for_each(|operand| self.sides(rank, operand, &mut |side| targets.push(side)));
        // A message may end within the range.
        let exist = |side: &Side| {
            let chunks = self.plan.ranks[side.rank as usize].chunks(side.buffer);
            self.sizes.exist(side.buffer, chunks, side.first)
        };
        let most = sources.iter().chain(&targets).map(exist).min().unwrap_or(0);
        // The blocks that are launched share the range.
        let of = |share: Share| self.ranks[rank as usize].grid.unwrap_or(share.of);
        let share = moved.share.map(|share| Share { of: of(share), ..share });
        let (start, end) = self.sizes.range(moved.count, turn, share);
        let range = (start.min(most), end.min(most));
        let bytes = range.1 - range.0;

        let (mut first, mut last) = (0, 0);
        for source in sources.iter().filter(|source| source.form == Form::Packets && bytes > 0) {
            let times = self.arrival(index, source.rank, source.first, range)?;
            (first, last) = (times.0.max(first), times.1.max(last));
        }
        let machine = self.machine;
        let costs = self.costs;
        let begin = self.blocks[index as usize].threads + costs.step;
        if bytes == 0 {
            return Some(self.advance(index, begin, 0));
        }
        let (mut local, mut remote, mut unpacked, mut latency): (u64, u64, u64, Time) = (0, 0, 0, 0);
        let mut linked = 0;
        for (sides, reads) in [(&sources, true), (&targets, false)] {
            for side in sides {
                let packets = side.form == Form::Packets;
                if packets && reads {
                    unpacked += self.packet_bytes(bytes);
                    continue;
                }
                let wire = if packets { self.packet_bytes(bytes) } else { bytes };
                if side.rank == rank {
                    local += wire;
                    latency = latency.max(if reads { costs.local } else { 0 });
                    continue;
                }
                remote += wire;
                latency = latency.max(if reads { costs.link } else { 0 });
                let (giver, taker) = if reads { (side.rank, rank) } else { (rank, side.rank) };
                linked = linked.max(self.links.link(giver, taker, begin, wire, reads));
            }
        }
        let shared = self.links.local(rank, begin, local + unpacked);
        let threads = self.ranks[rank as usize].threads;
        let some = (f64::from(threads) / ALL_THREADS).min(1.0);
        let mut own = transfer(local, some * machine.local_block_gbps)
            .max(transfer(remote, some * machine.link_block_gbps));
        if unpacked > 0 {
            // Threads take what they handle at once, in turns that wait for memory.
            let operands = [sources.len(), targets.len()];
            let (units, each) = match self.plan.settings.protocol {
                Protocol::Ll128 => (unroll_lines(operands), LINE),
                Protocol::Simple | Protocol::Ll => {
                    (unroll(operands, true, moved.count == 1, threads), PACKET)
                }
            };
            let turn = each * u64::from(units) * u64::from(threads);
            own += micros(machine.packet_turn_us * bytes as f64 / turn as f64);
        }
        let linked = if linked > 0 { linked + latency } else { 0 };
        // Plain data is on its way while the block waits for packets.
        let loaded = (begin + latency).max(first + costs.step);
        let until = (loaded + own).max(last + costs.step).max(linked).max(shared + latency);
        if targets.iter().any(|target| target.rank != rank) {
            let rank = &mut self.ranks[rank as usize];
            rank.stored = rank.stored.max(until);
        }
        for target in targets.iter().filter(|target| target.form == Form::Packets) {
            let hop = if target.rank == rank { costs.local } else { costs.packet };
            self.packets(rank, target.rank, target.first, range, (loaded + hop, until + hop));
        }
        Some(self.advance(index, until, latency + own))
    }

    /// Sets a block's clocks behind a move. The first thread has its part of the move to do after what it did before.
    fn advance(&mut self, index: u32, until: Time, takes: Time) -> Time {
        let state = &mut self.blocks[index as usize];
        state.threads = until;
        state.control = until.max(state.control + takes);
        state.control
    }
}
