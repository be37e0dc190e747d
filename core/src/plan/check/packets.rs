//! Packets: an element that has come tells its reader that its writer's call has begun, and what it was made of.

use std::collections::HashMap;

use super::clock::{Epoch, Knowledge};

/// A packet that lies in a cell.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    /// The call that wrote it.
    pub(super) call: u32,
    /// The clock that the writer's call began with.
    pub(super) know: Knowledge,
    /// The operation that wrote it, in the graph.
    pub(super) node: u32,
}

/// Which operation wrote a packet out of which other packets.
///
/// A packet is ordered after the reads that its own element was made of, but not after what else the writer's call did. A clock
/// cannot say this, so such chains are walked.
#[derive(Debug, Default)]
pub(super) struct Packets {
    cells: HashMap<usize, Packet>,
    nodes: Vec<(Epoch, u32, u32)>,
    parents: Vec<u32>,
}

/// Most nodes that one question walks.
const WALK: usize = 4096;

impl Packets {
    pub(super) fn get(&self, cell: usize, call: u32) -> Option<&Packet> {
        self.cells.get(&cell).filter(|packet| packet.call == call)
    }

    /// The operation whose packets, of a later call than `call`, lie where somebody waits for those of `call`.
    pub(super) fn later(&self, cell: usize, call: u32) -> Option<Epoch> {
        let packet = self.cells.get(&cell).filter(|packet| packet.call > call)?;
        Some(self.nodes[packet.node as usize].0)
    }

    /// A packet that an operation makes out of others.
    pub(super) fn node(&mut self, epoch: Epoch, parents: &[u32]) -> u32 {
        let first = number(self.parents.len());
        self.parents.extend_from_slice(parents);
        self.nodes.push((epoch, first, number(parents.len())));
        number(self.nodes.len() - 1)
    }

    pub(super) fn put(&mut self, cell: usize, packet: Packet) {
        self.cells.insert(cell, packet);
    }

    /// Whether `epoch` is one of the operations that these packets came through.
    pub(super) fn through(&self, nodes: &[u32], epoch: Epoch) -> bool {
        let mut stack = nodes.to_vec();
        for _ in 0..WALK {
            let Some(node) = stack.pop() else { return false };
            let (other, first, count) = self.nodes[node as usize];
            if other == epoch {
                return true;
            }
            stack.extend(&self.parents[first as usize..(first + count) as usize]);
        }
        false
    }
}

fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
