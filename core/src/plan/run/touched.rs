//! Which of its caller's buffers a plan uses at all: a rank passes nothing where it takes no part.

use super::ir::{Buffer, Op, Operand, Place, Plan};

/// Whether an operation of some rank reads or writes the input, and the output, of `rank`.
pub(super) fn touched(plan: &Plan, rank: u32) -> [bool; 2] {
    used(plan, rank, |_| true)
}

/// Whether an operation of some rank writes the input, and the output, of `rank`.
pub(super) fn written(plan: &Plan, rank: u32) -> [bool; 2] {
    used(plan, rank, |access| access.writes)
}

fn used(plan: &Plan, rank: u32, counts: impl Fn(&Access) -> bool) -> [bool; 2] {
    let all = |from: u32| accesses(plan, from).filter(move |access| access.rank == rank);
    let uses = |wanted| {
        (0..).take(plan.ranks.len()).any(|from| all(from).any(|one| one.buffer == wanted && counts(&one)))
    };
    [uses(Buffer::Input), uses(Buffer::Output)]
}

/// A buffer that an operation reads or writes.
struct Access {
    /// Its owner.
    rank: u32,
    buffer: Buffer,
    writes: bool,
}

/// The buffers that operations of `rank` read or write.
fn accesses(plan: &Plan, rank: u32) -> impl Iterator<Item = Access> + '_ {
    let rank_plan = &plan.ranks[rank as usize];
    let operand = move |operand: &Operand, writes: bool| -> Vec<Access> {
        let access = |rank, buffer| Access { rank, buffer, writes };
        match operand.place {
            Place::Local(buffer) => vec![access(rank, buffer)],
            Place::Remote { rank, buffer } => vec![access(rank, buffer)],
            Place::Switch(index) => {
                let switch = &rank_plan.switches[index as usize];
                switch.ranks.iter().map(|&member| access(member, switch.buffer)).collect()
            }
        }
    };
    rank_plan.all_ops().flat_map(move |op| -> Vec<Access> {
        match op {
            Op::Move(moved) => {
                let sources = moved.sources.iter().flat_map(|source| operand(source, false));
                sources.chain(moved.targets.iter().flat_map(|target| operand(target, true))).collect()
            }
            Op::Port(put) => {
                let peer = rank_plan.port_channels.get(put.channel as usize);
                let there = peer.map(|&rank| Access { rank, buffer: put.target.0, writes: true });
                there.into_iter().chain([Access { rank, buffer: put.source.0, writes: false }]).collect()
            }
            _ => Vec::new(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::program::{CollectiveProgram, Pattern};
    use super::*;

    #[test]
    fn ranks_that_take_no_part_touch_nothing() {
        let program = CollectiveProgram::new("one way", Pattern::send_recv(3, 1));
        let (from, to) = (program.rank(0), program.rank(1));
        from.memory_channel(1).put(to.output().chunk(0), from.input().chunk(0), 0);
        let _back = to.memory_channel(0);
        let plan = program.build().unwrap();
        assert_eq!(
            [0, 1, 2].map(|rank| touched(&plan, rank)),
            [[true, false], [false, true], [false, false]]
        );
        assert_eq!(
            [0, 1, 2].map(|rank| written(&plan, rank)),
            [[false, false], [false, true], [false, false]]
        );
    }
}
