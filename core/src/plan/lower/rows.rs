//! Plans whose chunks have sizes of their own: the beginning of a block, and moves by rows.

use aqueduct_ptx::abi::PlanRows;
use aqueduct_ptx::plan as ptx;
use ptx::Number::Fixed;

use super::control::{Control, shares_tables};
use super::ir::{Buffer, Form, Move, Operand, Place, Plan, PortPut};
use super::operands::{Address, Addresses, in_store, shared};
use super::position::Position;
use super::refusal::refused;
use crate::error::Result;
use crate::plan::Kind;

mod meeting;

pub(super) use meeting::open_all;

/// Words of the caller's numbers.
const WORDS: u32 = (size_of::<PlanRows>() / 8) as u32;

/// How a rank tells the others its rows. Takes the first addresses.
///
/// # Errors
/// `Plan` for a plan that is no all-to-all or reduce-scatter of one chunk for each rank, or whose ranks have different numbers of blocks.
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
    let reaches = |&other: &u32| other == rank || rank_plan.memory_channels.contains(&other);
    (0..ranks).filter(reaches).for_each(|rank| _ = addresses.index(Address::Control(rank)));
    let reached = addresses.len() - controls;
    let words = addresses.len();
    (0..WORDS).for_each(|word| _ = addresses.index(Address::RowWord(word)));
    let exact = plan.collective.kind == Kind::ReduceScatter;
    let shared = shares_tables(plan);
    // Ports bring parts to scratch.
    let bounded = exact && shared;
    Ok(ptx::Rows { me: rank, reached, tables: control.tables(), shared, controls, words, exact, bounded })
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
