//! Plans whose chunks have sizes of their own: the beginning of a block, and moves by rows.

use aqueduct_ptx::abi::PlanRows;
use aqueduct_ptx::plan as ptx;
use ptx::Number::Fixed;

use super::control::Control;
use super::ir::{Buffer, Form, Move, Operand, Place, Plan};
use super::operands::{Address, Addresses, shared};
use super::position::Position;
use super::refusal::refused;
use crate::error::Result;
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
    for other in &plan.ranks {
        if other.blocks.len() != rank_plan.blocks.len()
            || Control::of(plan, other)?.tables() != control.tables()
        {
            return Err(refused(
                "where chunks have sizes of their own, all ranks need as many blocks, channels and semaphores",
            ));
        }
    }
    let controls = addresses.len();
    (0..ranks).for_each(|rank| _ = addresses.index(Address::Control(rank)));
    let words = addresses.len();
    (0..WORDS).for_each(|word| _ = addresses.index(Address::RowWord(word)));
    let exact = plan.collective.kind == Kind::ReduceScatter;
    Ok(ptx::Rows { me: rank, tables: control.tables(), controls, words, exact })
}

/// Lets a block show its rank's rows before its first signals, and judge all rows behind its first waits.
///
/// # Errors
/// `Plan` for a block that begins otherwise than with a signal to each other rank, a wait for each, and a sync.
pub(super) fn open(steps: &mut Vec<ptx::Step>, ranks: usize) -> Result<()> {
    let wrong = || {
        refused(
            "where chunks have sizes of their own, each block begins with a signal to every other rank, a wait for every other \
             rank, and a sync",
        )
    };
    let begin = match &mut steps[..] {
        _ if ranks == 1 => 0,
        [ptx::Step::Signal(signals), ptx::Step::Wait(waits), ptx::Step::Sync, ..] => {
            let mut peers: Vec<_> = waits.iter().filter_map(|wait| fixed(wait.rank)).collect();
            peers.sort_unstable();
            peers.dedup();
            let mut areas: Vec<_> = signals.iter().filter_map(|signal| fixed(signal.peer)).collect();
            areas.sort_unstable();
            areas.dedup();
            if [peers.len(), areas.len(), signals.len(), waits.len()] != [ranks - 1; 4] {
                return Err(wrong());
            }
            // They carry the rows.
            signals.iter_mut().for_each(|signal| signal.relaxed = false);
            3
        }
        _ => return Err(wrong()),
    };
    let (first, rest) = steps.split_at(begin);
    let mut opened = vec![ptx::Step::ShowRows, ptx::Step::Sync];
    opened.extend_from_slice(first);
    opened.push(ptx::Step::JudgeRows);
    opened.extend_from_slice(rest);
    *steps = opened;
    Ok(())
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
/// `Plan` for a move of several chunks, of scratch, packets or a switch, or one whose first source is no input.
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
                    .ok_or_else(|| wrong("an operand in scratch or at a switch"))
            })
            .collect()
    };
    let (sources, targets) = (all(&moved.sources)?, all(&moved.targets)?);
    if sources.iter().any(|source| source.base != ptx::Base::Input) {
        return Err(wrong("a move from an output, whose size no row says"));
    }
    if reduction == Some(ptx::Reduction::Avg) && sources.len() != plan.ranks.len() {
        return Err(wrong("an average of fewer than all ranks"));
    }
    let share = moved.share.map(shared);
    Ok(ptx::Move { sources, targets, count: Fixed(1), reduction, share, by_rows: true })
}

/// An operand whose first chunk is the row that speaks of it: of the rank that has the buffer, about the rank of the chunk's
/// number.
fn at(plan: &Plan, rank: u32, operand: &Operand, addresses: &mut Addresses) -> Option<ptx::Operand> {
    let (whose, buffer) = match operand.place {
        Place::Local(buffer) => (rank, buffer),
        Place::Remote { rank, buffer } => (rank, buffer),
        Place::Switch(_) => return None,
    };
    let (base, address) = match (buffer, operand.form) {
        (Buffer::Input, Form::Plain) => (ptx::Base::Input, Address::Input(whose)),
        (Buffer::Output, Form::Plain) => (ptx::Base::Output, Address::Output(whose)),
        _ => return None,
    };
    let ranks = u32::try_from(plan.ranks.len()).ok()?;
    // The one output chunk of a reduce-scatter is that of the rank itself.
    let about = match (&plan.collective.kind, buffer) {
        (Kind::ReduceScatter, Buffer::Output) => whose,
        _ => operand.first,
    };
    let row = whose * ranks + about;
    let rank = Fixed(aqueduct_ptx::abi::NO_PEER);
    let address = Fixed(addresses.index(address));
    Some(ptx::Operand { base, address, first: Fixed(row), rank, multicast: false })
}
