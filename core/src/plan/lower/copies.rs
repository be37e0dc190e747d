//! Blocks that copy engines run, as what their streams execute: copies, and between them kernels of one warp that signal and wait.

use aqueduct_ptx::plan as ptx;

use super::averages::Averages;
use super::control::Control;
use super::ir::{Block, Buffer, Move, Op, Operand, Place, Plan};
use super::operands::{Address, Addresses};
use super::position::Position;
use super::refusal::refused;
use super::{Lowered, shapes, steps};
use crate::error::Result;

/// Threads of a kernel that only signals and waits.
const THREADS: u32 = 32;

/// A part of what a block's stream executes.
#[derive(Clone, Debug)]
pub(in crate::plan) enum Part {
    /// Signals, waits and semaphores that follow each other.
    Control(Lowered),
    /// A copy.
    Copy(Copy),
}

/// A copy of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::plan) struct Copy {
    /// Where it reads.
    pub(in crate::plan) source: End,
    /// Where it writes.
    pub(in crate::plan) target: End,
    /// Chunks.
    pub(in crate::plan) count: u32,
}

/// One end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::plan) struct End {
    /// The rank whose memory it is.
    pub(in crate::plan) rank: u32,
    /// The buffer.
    pub(in crate::plan) buffer: Buffer,
    /// The first chunk.
    pub(in crate::plan) first: u32,
}

impl End {
    /// The address that the buffer begins at.
    pub(in crate::plan) fn address(&self) -> Address {
        match self.buffer {
            Buffer::Input => Address::Input(self.rank),
            Buffer::Output => Address::Output(self.rank),
            Buffer::Scratch => Address::Scratch(self.rank),
        }
    }
}

/// The parts of each block of `rank` that a copy engine runs, in order. They do not depend on types.
///
/// A stream orders more than the block's syncs ask for, so these say nothing here.
///
/// # Errors
/// [`ErrorKind::Plan`](crate::error::ErrorKind::Plan) for what a stream cannot do, which the checks of structure find before.
pub(in crate::plan) fn copies(plan: &Plan, rank: u32, averages: &Averages<'_>) -> Result<Vec<Vec<Part>>> {
    let rank_plan = &plan.ranks[rank as usize];
    let control = Control::of(plan, rank_plan)?;
    let blocks = (0..).zip(&rank_plan.blocks).filter(|(_, block)| block.copy_engine);
    blocks.map(|(index, block)| parts(plan, (rank, index), block, &control, averages)).collect()
}

fn parts(
    plan: &Plan,
    (rank, index): (u32, u32),
    block: &Block,
    control: &Control,
    averages: &Averages<'_>,
) -> Result<Vec<Part>> {
    let at = |op| Position::of(plan, rank, index, op, None);
    let mut parts = Vec::new();
    let mut ops = block.ops.iter().map(|operation| &operation.op).enumerate().peekable();
    while let Some(&(first, op)) = ops.peek() {
        match op {
            Op::Sync => _ = ops.next(),
            Op::Move(moved) => {
                ops.next();
                parts.extend(moves(rank, moved, at(first))?);
            }
            _ => {
                let mut addresses = Addresses::default();
                let mut controls = Vec::new();
                while let Some((op, control)) = ops.next_if(|(_, op)| !matches!(op, Op::Move(_))) {
                    if *control != Op::Sync {
                        controls.push((at(op), control));
                    }
                }
                let steps = steps::of_controls(plan, rank, control, averages, controls, &mut addresses)?;
                let follows = parts.iter().any(|part| matches!(part, Part::Control(_)));
                parts.push(Part::Control(Lowered {
                    kernel: kernel(plan, control, steps, addresses.len(), follows),
                    addresses: addresses.into_list(),
                }));
            }
        }
    }
    Ok(parts)
}

/// A copy for each target.
fn moves(rank: u32, moved: &Move, position: Position) -> Result<impl Iterator<Item = Part> + use<'_>> {
    let end = move |operand: &Operand| {
        let (rank, buffer) = match operand.place {
            Place::Local(buffer) => (rank, buffer),
            Place::Remote { rank, buffer } => (rank, buffer),
            Place::Switch(_) => return Err(refused(format!("{position}: a copy engine reaches no switch"))),
        };
        Ok(End { rank, buffer, first: operand.first })
    };
    let [source] = &moved.sources[..] else {
        return Err(refused(format!("{position}: a copy engine reduces nothing")));
    };
    let source = end(source)?;
    let targets = moved.targets.iter().map(end).collect::<Result<Vec<_>>>()?;
    let count = moved.count;
    Ok(targets.into_iter().map(move |target| Part::Copy(Copy { source, target, count })))
}

/// A kernel of one block that touches no data, which `follows` an earlier one of its stream.
fn kernel(
    plan: &Plan,
    control: &Control,
    steps: Vec<ptx::Step>,
    addresses: u32,
    follows: bool,
) -> ptx::Kernel {
    let (shapes, blocks) = shapes::shared(vec![steps]);
    ptx::Kernel {
        symbol: "aqueduct_plan_control".to_owned(),
        element: ptx::Element::U8,
        ranks: u32::try_from(plan.ranks.len()).unwrap_or(u32::MAX),
        threads: THREADS,
        addresses,
        calls: control.calls(),
        double_scratch: false,
        packets: ptx::PacketForm::Ll16,
        laps: None,
        rows: None,
        trace: None,
        follows,
        shapes,
        blocks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::samples;

    /// Behind a wait that may be given up, each kernel of the stream asks whether it was.
    #[test]
    fn kernels_behind_the_first_follow_it() {
        for plan in [samples::copies::all_gather(3), samples::copies::all_reduce(2)] {
            for block in copies(&plan, 0, &Averages::of(&plan)).unwrap() {
                let follows: Vec<bool> = block
                    .iter()
                    .filter_map(|part| match part {
                        Part::Control(lowered) => Some(lowered.kernel.follows),
                        Part::Copy(_) => None,
                    })
                    .collect();
                assert!(follows.len() > 1, "{}: one kernel only", plan.name);
                assert_eq!(follows.iter().filter(|&&follows| !follows).count(), 1, "{}", plan.name);
                assert!(!follows[0], "{}: nothing is before the first", plan.name);
            }
        }
    }
}
