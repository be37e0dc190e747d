//! Limits of what runs plans. MSCCL++'s executor has 64 operations for each block, 16 channels for each block and 8 for each
//! operation, and checks only the first; plans are compiled here, so these limits are those of a kernel.

use std::fmt;

use super::finding::{Finding, FindingKind, MOST};
use super::geometry::operands;
use super::ir::{ChannelKind, Op, Plan};
use super::position::Position;

/// Most blocks of a rank. All must be resident at once, with up to 1,024 threads each: two on each of 148 multiprocessors are
/// the most that today's GPUs take. A launch asks the device itself.
pub const MAX_BLOCKS: usize = 296;
/// Most operations of a block, those of loops counted once: a compiled kernel holds each.
pub const MAX_OPERATIONS: usize = 1 << 16;
/// Most operands of a move: a kernel holds an address of each.
pub const MAX_OPERANDS: usize = 1 << 10;
/// Most memory channels of a rank, and most port channels: a proxy's trigger has 16 bits for the number.
pub const MAX_CHANNELS: usize = 1 << 16;
/// Most semaphores of a rank.
pub const MAX_SEMAPHORES: usize = 1 << 16;
/// Most switches of a rank.
pub const MAX_SWITCHES: usize = 1 << 8;
/// A loop's unit is a multiple of so many bytes: a kernel's threads move vectors of as many.
pub const LOOP_UNIT: u64 = 16;

/// Finds everything that a plan has too much of, at the first operation beyond the limit if it is about operations. The plan's
/// structure must be right.
pub fn limits(plan: &Plan) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (rank, rank_plan) in (0..).zip(&plan.ranks) {
        let mut within = |what: fmt::Arguments<'_>, count: usize, most: usize, position: Option<Position>| {
            if count > most && findings.len() < MOST {
                let message = format!("rank {rank} has {count} {what}; the limit is {most}");
                findings.push(Finding::new(FindingKind::Limit, position, message));
            }
        };
        let peers = |kind| rank_plan.peers(kind).len();
        within(format_args!("blocks"), rank_plan.blocks.len(), MAX_BLOCKS, None);
        within(format_args!("memory channels"), peers(ChannelKind::Memory), MAX_CHANNELS, None);
        within(format_args!("port channels"), peers(ChannelKind::Port), MAX_CHANNELS, None);
        within(format_args!("semaphores"), rank_plan.semaphores.len(), MAX_SEMAPHORES, None);
        within(format_args!("switches"), rank_plan.switches.len(), MAX_SWITCHES, None);
        for (block, _) in (0..).zip(&rank_plan.blocks) {
            let (mut count, mut beyond) = (0, None);
            for (position, op) in Position::all(plan, rank, block) {
                count += 1;
                if count > MAX_OPERATIONS {
                    beyond.get_or_insert(position);
                }
                if let Op::Move(moved) = op {
                    let count = operands(moved).count();
                    within(
                        format_args!("operands in a move of block {block}"),
                        count,
                        MAX_OPERANDS,
                        Some(position),
                    );
                }
            }
            within(format_args!("operations in block {block}"), count, MAX_OPERATIONS, beyond);
        }
    }
    findings.extend(units(plan).take(MOST - findings.len()));
    findings
}

/// Loops whose slices begin where no vector does.
fn units(plan: &Plan) -> impl Iterator<Item = Finding> {
    let blocks = (0..)
        .zip(&plan.ranks)
        .flat_map(|(rank, rank_plan)| (0..).zip(&rank_plan.blocks).map(move |(block, _)| (rank, block)));
    let all = blocks.flat_map(|(rank, block)| Position::all(plan, rank, block));
    all.filter_map(|(position, op)| match op {
        Op::Loop(repeated) if !repeated.unit.is_multiple_of(LOOP_UNIT) => {
            let message =
                format!("a loop's unit of {} bytes is no multiple of {LOOP_UNIT}; round it", repeated.unit);
            Some(Finding::new(FindingKind::Limit, position, message))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::super::ir::{Block, Buffer, Loop, Operand, Reduction};
    use super::*;
    use crate::plan::samples;

    /// The first finding of a right plan with one change.
    fn said(change: impl FnOnce(&mut Plan)) -> String {
        let mut plan = samples::one_shot(2, true);
        change(&mut plan);
        let findings = check(&plan);
        assert_eq!(findings.first().map(|finding| finding.kind), Some(FindingKind::Limit), "{findings:?}");
        findings[0].to_string()
    }

    #[test]
    fn a_rank_has_at_most_so_many_blocks() {
        let with =
            |blocks: usize| move |plan: &mut Plan| plan.ranks[1].blocks.resize(blocks, Block::default());
        assert!(said(with(MAX_BLOCKS + 1)).contains("rank 1 has 297 blocks; the limit is 296"));
        let mut most = samples::one_shot(2, true);
        with(MAX_BLOCKS)(&mut most);
        assert_eq!(check(&most), []);
    }

    #[test]
    fn channels_semaphores_and_switches_are_counted() {
        let said = said(|plan| plan.ranks[0].semaphores = vec![0; MAX_SEMAPHORES + 1]);
        assert!(said.contains("rank 0 has 65537 semaphores; the limit is 65536"), "{said}");
        let mut plan = samples::one_shot(2, true);
        for (rank, peer) in [(0, 1), (1, 0)] {
            plan.ranks[rank].memory_channels = vec![peer; MAX_CHANNELS + 1];
            plan.ranks[rank].port_channels = vec![peer; MAX_CHANNELS + 1];
            let switch = super::super::ir::Switch { buffer: Buffer::Scratch, ranks: vec![0, 1] };
            plan.ranks[rank].switches = vec![switch; MAX_SWITCHES + 1];
        }
        let texts: Vec<String> = check(&plan).iter().map(ToString::to_string).collect();
        for what in ["65537 memory channels", "65537 port channels", "257 switches"] {
            for rank in 0..2 {
                assert!(
                    texts.iter().any(|text| text.contains(&format!("rank {rank} has {what}"))),
                    "{texts:?}"
                );
            }
        }
    }

    #[test]
    fn the_first_operation_without_a_place_is_named() {
        let syncs = |more: u32| {
            move |plan: &mut Plan| {
                let ops = samples::ops(plan, 0, 0);
                let own = u32::try_from(ops.len()).unwrap();
                let most = u32::try_from(MAX_OPERATIONS).unwrap();
                ops.extend((own..most + more).map(|origin| Op::Sync.at(origin)));
            }
        };
        let said = said(syncs(2));
        assert!(said.contains("rank 0 block 0 operation 65536: rank 0 has 65538 operations"), "{said}");
        let mut most = samples::one_shot(2, true);
        syncs(0)(&mut most);
        assert_eq!(check(&most), []);
    }

    #[test]
    fn operands_of_a_move_are_counted() {
        let with = |sources: usize| {
            move |plan: &mut Plan| {
                let input = Operand::local(Buffer::Input, 0);
                let mut moved =
                    samples::moved(&vec![input; sources], &[Operand::local(Buffer::Output, 0)], 1);
                if let Op::Move(moved) = &mut moved {
                    moved.reduction = Some(Reduction::Max);
                }
                samples::ops(plan, 1, 0).insert(0, moved.at(7));
            }
        };
        let said = said(with(MAX_OPERANDS));
        assert!(
            said.contains("rank 1 block 0 operation 7: rank 1 has 1025 operands in a move of block 0"),
            "{said}"
        );
        let mut most = samples::one_shot(2, true);
        with(MAX_OPERANDS - 1)(&mut most);
        assert_eq!(limits(&most), []);
    }

    #[test]
    fn slices_of_loops_begin_where_vectors_do() {
        let said = said(|plan| {
            let loop_of = Loop { unit: 24, chunks: 1, body: vec![Op::Sync.at(0)] };
            samples::ops(plan, 0, 0).insert(1, Op::Loop(Box::new(loop_of)).at(5));
        });
        assert!(
            said.contains("rank 0 block 0 operation 5: a loop's unit of 24 bytes is no multiple of 16"),
            "{said}"
        );
    }
}
