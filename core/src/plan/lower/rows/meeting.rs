//! The meeting of all ranks that a call of a plan with rows begins with, and which carries the rows.

use std::collections::BTreeSet;

use aqueduct_ptx::plan as ptx;
use ptx::Number::Fixed;

use super::super::ir::RankPlan;
use super::super::operands::{Address, Addresses};
use super::super::refusal::refused;
use crate::error::{Error, Result};

/// Lets the meetings with which blocks begin carry rows. Where every block has tables of its own, each signals every other rank and waits for
/// each. Where all share the first block's, that one does so, by signals or ports, and then all blocks meet in one barrier, if there
/// are several.
///
/// # Errors
/// `Plan` for blocks that begin otherwise.
pub(in super::super) fn open_all(
    blocks: &mut [Vec<ptx::Step>],
    rows: &ptx::Rows,
    rank_plan: &RankPlan,
    ranks: usize,
    addresses: &Addresses,
) -> Result<()> {
    let others = (0..ranks as u32).filter(|&rank| rank != rows.me).collect();
    let opening = Opening { shared: rows.shared, blocks: blocks.len(), others, rank_plan, addresses };
    let mut barriers = BTreeSet::new();
    for (nth, steps) in blocks.iter_mut().enumerate() {
        let met = opening.of_block(nth, std::mem::take(steps)).ok_or_else(|| wrong_beginning(rows.shared))?;
        barriers.extend(met.barrier);
        *steps = met.steps;
    }
    // Blocks that met others than the first would compare rows that nobody has brought.
    if barriers.len() > 1 { Err(wrong_beginning(rows.shared)) } else { Ok(()) }
}

#[cold]
fn wrong_beginning(shared: bool) -> Error {
    refused(if shared {
        "where chunks have sizes of their own and there are port channels, the first block begins with a signal to every other rank and a wait \
         for every other rank, and then all blocks meet in one barrier"
    } else {
        "where chunks have sizes of their own, each block begins with a signal to every other rank and a wait for every other rank"
    })
}

struct Opening<'p> {
    /// All blocks have the first block's tables.
    shared: bool,
    blocks: usize,
    others: BTreeSet<u32>,
    rank_plan: &'p RankPlan,
    addresses: &'p Addresses,
}

/// A block's steps with its meeting, and where it met the other blocks.
struct Met {
    steps: Vec<ptx::Step>,
    barrier: Option<u32>,
}

impl Opening<'_> {
    /// The block's steps with a meeting that carries rows; `None` for one that begins otherwise.
    fn of_block(&self, nth: usize, steps: Vec<ptx::Step>) -> Option<Met> {
        let meets_ranks = !self.shared || nth == 0;
        let meets_blocks = self.shared && self.blocks > 1;
        let mut opened = match meets_ranks {
            true => vec![ptx::Step::ShowRows, ptx::Step::Sync],
            false => vec![ptx::Step::FindRows],
        };
        let (mut told, mut heard) = (Vec::new(), Vec::new());
        let mut rest = steps.into_iter().peekable();
        let mut barrier = None;
        let mut met = self.others.is_empty();
        while !met {
            let done = |told: &[u32], heard: &[u32]| !meets_ranks || self.is_all(told) && self.is_all(heard);
            let (carrying, ends) = match rest.next()? {
                ptx::Step::Signal(mut signals) => {
                    told.extend(signals.iter().filter_map(|signal| self.peer(signal.peer)));
                    // They publish the rows.
                    signals.iter_mut().for_each(|signal| signal.relaxed = false);
                    (ptx::Step::Signal(signals), false)
                }
                ptx::Step::Port(ptx::Port { channel, put: None, signal: true, flush: false }) => {
                    told.extend(self.peer(channel));
                    (ptx::Step::PutRows { channel }, false)
                }
                ptx::Step::Wait(waits) => {
                    heard.extend(waits.iter().filter_map(|wait| fixed(wait.rank)));
                    (ptx::Step::Wait(waits), false)
                }
                ptx::Step::PortWait { channel } => {
                    heard.extend(self.peer(channel));
                    (ptx::Step::PortWait { channel }, false)
                }
                ptx::Step::Sync => (ptx::Step::Sync, false),
                ptx::Step::Barrier { state, blocks } if meets_blocks && done(&told, &heard) => {
                    barrier = Some(fixed(state)?);
                    let all = fixed(blocks)? as usize == self.blocks;
                    (ptx::Step::Barrier { state, blocks }, all)
                }
                _ => return None,
            };
            met = done(&told, &heard) && (ends || !meets_blocks);
            opened.push(carrying);
        }
        if !meets_blocks && !self.others.is_empty() {
            // What follows may need no sync, as a copy of what stays here; the comparison of rows does.
            rest.next_if(|step| *step == ptx::Step::Sync);
            opened.push(ptx::Step::Sync);
        }
        opened.push(ptx::Step::JudgeRows);
        opened.extend(rest);
        Some(Met { steps: opened, barrier })
    }

    /// Whether these are all other ranks, each once.
    fn is_all(&self, ranks: &[u32]) -> bool {
        ranks.len() == self.others.len() && ranks.iter().copied().collect::<BTreeSet<_>>() == self.others
    }

    /// The rank to which a control area, or a port channel's handle, belongs.
    fn peer(&self, address: ptx::Number) -> Option<u32> {
        match self.addresses.get(fixed(address)?)? {
            Address::Control(rank) => Some(rank),
            Address::Port { channel, .. } => self.rank_plan.port_channels.get(channel as usize).copied(),
            _ => None,
        }
    }
}

fn fixed(number: ptx::Number) -> Option<u32> {
    match number {
        Fixed(value) => Some(value),
        ptx::Number::Row(_) => None,
    }
}
