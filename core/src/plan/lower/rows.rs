//! Plans whose chunks have sizes of their own: the beginning of a block, and moves by rows.

use std::collections::BTreeSet;

use aqueduct_ptx::abi::PlanRows;
use aqueduct_ptx::plan as ptx;
use ptx::Number::Fixed;

use super::control::Control;
use super::ir::{Buffer, Form, Move, Operand, Place, Plan, PortPut};
use super::operands::{Address, Addresses, in_store, shared};
use super::position::Position;
use super::refusal::refused;
use crate::error::{Error, Result};
use crate::plan::Kind;

/// Words of the caller's numbers.
const WORDS: u32 = (size_of::<PlanRows>() / 8) as u32;

/// How a rank tells the others its rows. Takes the first addresses.
///
/// # Errors
/// `Plan` for a plan that is no all-to-all or reduce-scatter of one chunk for each rank, or whose ranks differ in their control
/// areas.
pub(super) fn of_rank(
    plan: &Plan,
    rank: u32,
    control: &Control,
    addresses: &mut Addresses,
) -> Result<ptx::Rows> {
    let ranks = u32::try_from(plan.ranks.len()).unwrap_or(u32::MAX);
    let rank_plan = &plan.ranks[rank as usize];
    let fits = match plan.collective.kind {
        Kind::AllToAll => rank_plan.input_chunks == ranks,
        Kind::ReduceScatter => rank_plan.output_chunks == 1,
        _ => false,
    };
    if !fits {
        return Err(refused(
            "only an all-to-all and a reduce-scatter of one chunk for each rank can have chunks of sizes of their own",
        ));
    }
    if !plan.settings.double_scratch {
        return Err(refused(
            "chunks of sizes of their own need double scratch, by which calls are told apart",
        ));
    }
    if plan.ranks.iter().any(|other| other.blocks.len() != rank_plan.blocks.len()) {
        return Err(refused("where chunks have sizes of their own, all ranks need as many blocks"));
    }
    let controls = addresses.len();
    let reached = (0..ranks).filter(|&other| other == rank || rank_plan.memory_channels.contains(&other));
    reached.for_each(|rank| _ = addresses.index(Address::Control(rank)));
    let reached = addresses.len() - controls;
    let words = addresses.len();
    (0..WORDS).for_each(|word| _ = addresses.index(Address::RowWord(word)));
    let exact = plan.collective.kind == Kind::ReduceScatter;
    // Its parts from other hosts go through scratch.
    let bounded = exact && reached < ranks;
    Ok(ptx::Rows { me: rank, reached, tables: control.tables(), controls, words, exact, bounded })
}

/// Lets the meeting of all ranks that a block begins with carry their rows. If the rank reaches all others, every block signals each of them,
/// waits for each, and syncs. If not, the `first` block does so, through ports to those that are out of reach, and meets all others in a
/// barrier, if there are `several`.
///
/// # Errors
/// `Plan` for a block that begins otherwise.
pub(super) fn open(
    steps: &mut Vec<ptx::Step>,
    rows: &ptx::Rows,
    ranks: usize,
    (first, several): (bool, bool),
) -> Result<()> {
    let reached = rows.reached as usize;
    let (all, meets) = (reached == ranks, reached == ranks || first);
    let mut opened = match meets {
        true => vec![ptx::Step::ShowRows, ptx::Step::Sync],
        false => vec![ptx::Step::FindRows],
    };
    let mut meeting = Meeting::default();
    let expected = if meets { [reached - 1, ranks - reached] } else { [0, 0] };
    let mut rest = std::mem::take(steps).into_iter();
    let mut met = ranks == 1;
    while !met {
        let step = rest.next().and_then(|step| meeting.carrying(step));
        let step = step.ok_or_else(|| wrong_beginning(all))?;
        met = meeting.is_of(expected)
            && match step {
                ptx::Step::Barrier { .. } => !all,
                ptx::Step::Sync => all,
                _ => !all && !several,
            };
        opened.push(step);
    }
    if !all && !several {
        // What follows may be one thread's, which needs no sync; the comparison of rows is not.
        opened.push(ptx::Step::Sync);
    }
    opened.push(ptx::Step::JudgeRows);
    opened.extend(rest);
    *steps = opened;
    Ok(())
}

#[cold]
fn wrong_beginning(reaches_all: bool) -> Error {
    refused(if reaches_all {
        "where chunks have sizes of their own, each block begins with a signal to every other rank, a wait for every other rank, and a \
         sync"
    } else {
        "where chunks have sizes of their own and ports lead to some ranks, the first block begins with a signal to every other rank and a \
         wait for every other rank, and then all blocks meet in a barrier"
    })
}

/// The partners of a block's signals and waits: control areas and ranks of those that are reached, and ports.
#[derive(Debug, Default)]
struct Meeting {
    signalled: Vec<u32>,
    awaited: Vec<u32>,
    asked: Vec<u32>,
    heard: Vec<u32>,
}

impl Meeting {
    /// The step that carries rows in place of one of the plan's; `None` if the plan's does something else than meeting.
    fn carrying(&mut self, step: ptx::Step) -> Option<ptx::Step> {
        match step {
            ptx::Step::Signal(mut signals) => {
                self.signalled.extend(signals.iter().filter_map(|signal| fixed(signal.peer)));
                // They publish the rows.
                signals.iter_mut().for_each(|signal| signal.relaxed = false);
                Some(ptx::Step::Signal(signals))
            }
            ptx::Step::Wait(waits) => {
                self.awaited.extend(waits.iter().filter_map(|wait| fixed(wait.rank)));
                Some(ptx::Step::Wait(waits))
            }
            ptx::Step::Port(ptx::Port { channel, put: None, signal: true, flush: false }) => {
                self.asked.extend(fixed(channel));
                Some(ptx::Step::PutRows { channel })
            }
            ptx::Step::PortWait { channel } => {
                self.heard.extend(fixed(channel));
                Some(ptx::Step::PortWait { channel })
            }
            step @ (ptx::Step::Sync | ptx::Step::Barrier { .. }) => Some(step),
            _ => None,
        }
    }

    /// Whether so many reached ranks, and so many others, were each met once.
    fn is_of(&self, [reached, others]: [usize; 2]) -> bool {
        let lists = [&self.signalled, &self.awaited, &self.asked, &self.heard];
        lists.into_iter().zip([reached, reached, others, others]).all(|(list, expected)| {
            let different: BTreeSet<u32> = list.iter().copied().collect();
            [list.len(), different.len()] == [expected; 2]
        })
    }
}

fn fixed(number: ptx::Number) -> Option<u32> {
    match number {
        Fixed(value) => Some(value),
        ptx::Number::Row(_) => None,
    }
}

/// A move of one chunk, whose operands are named by rows.
///
/// # Errors
/// `Plan` for a move of several chunks, of packets or a switch, into scratch, or one without an input as a source.
pub(super) fn moved(
    plan: &Plan,
    rank: u32,
    moved: &Move,
    reduction: Option<ptx::Reduction>,
    position: Position,
    addresses: &mut Addresses,
) -> Result<ptx::Move> {
    let wrong = |why: &str| refused(format!("{position}: {why}, where chunks have sizes of their own"));
    if moved.count != 1 {
        return Err(wrong("a move of several chunks; move each on its own"));
    }
    let mut all = |operands: &[Operand]| -> Result<Vec<ptx::Operand>> {
        operands
            .iter()
            .map(|operand| {
                at(plan, rank, operand, addresses)
                    .ok_or_else(|| wrong("packets, an operand at a switch, or a peer's scratch"))
            })
            .collect()
    };
    let (sources, targets) = (all(&moved.sources)?, all(&moved.targets)?);
    if sources.iter().any(|source| source.base == ptx::Base::Output) {
        return Err(wrong("a move from an output, whose size no row says"));
    }
    if sources.iter().all(|source| source.base != ptx::Base::Input) {
        return Err(wrong("a move without an input, whose row says how long it is"));
    }
    if targets.iter().any(|target| target.base == ptx::Base::Scratch) {
        return Err(wrong("a move into scratch; put through a port, or read the peer's input"));
    }
    if reduction == Some(ptx::Reduction::Avg) && sources.len() != plan.ranks.len() {
        return Err(wrong("an average of fewer than all ranks"));
    }
    let share = moved.share.map(shared);
    Ok(ptx::Move { sources, targets, count: Fixed(1), reduction, share, by_rows: true })
}

/// A put of one chunk of an input, whose row says how long it is, to an output or to scratch. Both kinds of users' buffers begin at one offset
/// in the memories of proxies, this rank's own: the row has the rest.
///
/// # Errors
/// `Plan` for a put of several chunks, of packets, from anything but an input, or to an input.
pub(super) fn put(
    plan: &Plan,
    rank: u32,
    put: &PortPut,
    peer: u32,
    position: Position,
    addresses: &mut Addresses,
) -> Result<ptx::PortPut> {
    let (source, target) = (put.source, put.target);
    let plain =
        put.count == 1 && put.form == Form::Plain && source.0 == Buffer::Input && target.0 != Buffer::Input;
    if !plain {
        return Err(refused(format!(
            "{position}: where chunks have sizes of their own, a port puts one chunk of the input to an output or to scratch"
        )));
    }
    let mut side = |whose: u32, (buffer, first): (Buffer, u32)| {
        let operand = in_store(
            if buffer == Buffer::Scratch { whose } else { rank },
            (buffer, first),
            Form::Plain,
            addresses,
        );
        let row = row(plan, whose, buffer, first);
        if buffer == Buffer::Scratch { operand } else { ptx::Operand { first: Fixed(row), ..operand } }
    };
    let (source, target) = (side(rank, source), side(peer, target));
    Ok(ptx::PortPut { source, target, count: Fixed(1), awaits: None, by_rows: true })
}

/// The row that speaks of a chunk: of the rank that has the buffer, about the rank of the chunk's number.
fn row(plan: &Plan, whose: u32, buffer: Buffer, first: u32) -> u32 {
    let ranks = u32::try_from(plan.ranks.len()).unwrap_or(u32::MAX);
    // The one output chunk of a reduce-scatter is that of the rank itself.
    let about = match (&plan.collective.kind, buffer) {
        (Kind::ReduceScatter, Buffer::Output) => whose,
        _ => first,
    };
    whose * ranks + about
}

/// An operand whose first chunk is the row that speaks of it, or a chunk of this rank's scratch.
fn at(plan: &Plan, rank: u32, operand: &Operand, addresses: &mut Addresses) -> Option<ptx::Operand> {
    let (whose, buffer) = match operand.place {
        Place::Local(buffer) => (rank, buffer),
        Place::Remote { buffer: Buffer::Scratch, .. } | Place::Switch(_) => return None,
        Place::Remote { rank, buffer } => (rank, buffer),
    };
    let (base, address, first) = match (buffer, operand.form) {
        (_, Form::Packets) => return None,
        (Buffer::Input, _) => {
            (ptx::Base::Input, Address::Input(whose), row(plan, whose, buffer, operand.first))
        }
        (Buffer::Output, _) => {
            (ptx::Base::Output, Address::Output(whose), row(plan, whose, buffer, operand.first))
        }
        (Buffer::Scratch, _) => (ptx::Base::Scratch, Address::Scratch(whose), operand.first),
    };
    let rank = Fixed(aqueduct_ptx::abi::NO_PEER);
    let address = Fixed(addresses.index(address));
    Some(ptx::Operand { base, address, first: Fixed(first), rank, multicast: false })
}

#[cfg(test)]
mod tests;
