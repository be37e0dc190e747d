//! The state of a run.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::Machine;
use super::check::Ends;
use super::cursor::{Cursor, Step};
use super::links::{Links, Time, micros};
use super::packets::Packets;
use super::sizes::Sizes;
use super::{Plan, Span};

/// A block of the run.
#[derive(Debug)]
pub(super) struct Block<'p> {
    pub(super) rank: u32,
    pub(super) block: u32,
    pub(super) cursor: Cursor,
    /// The operation that the block is at.
    pub(super) step: Option<Step<'p>>,
    /// When the block came to it.
    pub(super) since: Option<Time>,
    /// Clock of the threads that only move data.
    pub(super) threads: Time,
    /// Clock of the thread that signals and waits.
    pub(super) control: Time,
    /// A copy engine runs it.
    pub(super) copy_engine: bool,
    /// Its number among the blocks that threads run.
    pub(super) member: u32,
    /// Its stream is at a kernel of signals and waits, not at a copy.
    pub(super) in_kernel: bool,
    /// The operation before this one was a signal.
    pub(super) signalled: bool,
    pub(super) done: bool,
}

/// A rank of the run.
#[derive(Debug)]
pub(super) struct Rank {
    /// First block.
    pub(super) first: usize,
    /// Blocks of a call, where it has no more than its message needs.
    pub(super) grid: Option<u32>,
    /// Calls begun.
    pub(super) call: u32,
    /// Blocks that have not ended the call.
    pub(super) left: usize,
    /// When the last of those that have ended did.
    pub(super) end: Time,
    /// When threads have stored at peers last.
    pub(super) stored: Time,
    /// Threads of a block.
    pub(super) threads: u32,
    /// The halves of scratch.
    pub(super) packets: [Packets; 2],
    pub(super) semaphores: Vec<Waited>,
    /// Blocks that have come to a barrier, and when the last of them did.
    pub(super) barriers: HashMap<u32, (Vec<u32>, Time)>,
    /// When the proxy can take a request.
    pub(super) proxy: Time,
}

/// A counter that blocks wait for.
#[derive(Debug, Default)]
pub(super) struct Waited {
    /// When each of those arrives that nobody has taken.
    pub(super) arrivals: VecDeque<Time>,
    pub(super) waiters: VecDeque<u32>,
}

/// Latencies of the machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    pub(super) step: Time,
    pub(super) sync: Time,
    pub(super) local: Time,
    pub(super) link: Time,
    pub(super) packet: Time,
    pub(super) signal: Time,
    pub(super) release: Time,
    pub(super) copy: Time,
}

pub(super) struct Run<'p, 'o> {
    pub(super) plan: &'p Plan,
    pub(super) machine: &'o Machine,
    pub(super) costs: Costs,
    pub(super) sizes: Sizes,
    pub(super) calls: u32,
    pub(super) ends_of: Ends,
    pub(super) links: Links<'o>,
    pub(super) ranks: Vec<Rank>,
    pub(super) blocks: Vec<Block<'p>>,
    /// By the end of a channel that waits.
    pub(super) signals: Vec<Waited>,
    /// By the end of a port channel that puts: when the last put or signal is complete.
    pub(super) streams: Vec<Time>,
    /// Blocks that can go on, by the time of their next operation.
    pub(super) ready: BinaryHeap<Reverse<(Time, u32)>>,
    /// When each call has ended on all ranks that ended it.
    pub(super) ends: Vec<Time>,
    pub(super) steps: u64,
    pub(super) spans: Option<&'o mut Vec<Span>>,
}

impl Costs {
    pub(super) fn of(machine: &Machine) -> Self {
        Self {
            step: micros(machine.step_us),
            sync: micros(machine.sync_us),
            local: micros(machine.local_us),
            link: micros(machine.link_us),
            packet: micros(machine.packet_us),
            signal: micros(machine.signal_us),
            release: micros(machine.release_us),
            copy: micros(machine.copy_us),
        }
    }
}

impl Run<'_, '_> {
    /// When all threads of a block have done what stands before.
    pub(super) fn now(&self, index: u32) -> Time {
        let state = &self.blocks[index as usize];
        state.threads.max(state.control)
    }

    /// Lets a block go on from `at`.
    pub(super) fn wake(&mut self, index: u32, at: Time) {
        self.ready.push(Reverse((at, index)));
    }
}

pub(super) fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
