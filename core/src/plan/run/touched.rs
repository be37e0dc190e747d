//! Which of its caller's buffers a plan uses at all: a rank passes nothing where it takes no part.

use super::ir::{Buffer, Op, Place, Plan};

/// Whether an operation of some rank reads or writes the input, and the output, of `rank`.
pub(super) fn touched(plan: &Plan, rank: u32) -> [bool; 2] {
    let all = |from: u32| accesses(plan, from).filter(move |(whose, _)| *whose == rank);
    let uses =
        |wanted| (0..).take(plan.ranks.len()).any(|from| all(from).any(|(_, buffer)| buffer == wanted));
    [uses(Buffer::Input), uses(Buffer::Output)]
}

/// The buffers that operations of `rank` read or write, each with the rank it belongs to.
fn accesses(plan: &Plan, rank: u32) -> impl Iterator<Item = (u32, Buffer)> + '_ {
    let rank_plan = &plan.ranks[rank as usize];
    rank_plan.all_ops().flat_map(move |op| -> Vec<(u32, Buffer)> {
        match op {
            Op::Move(moved) => {
                let operands = moved.sources.iter().chain(&moved.targets);
                let buffers = operands.flat_map(|operand| match operand.place {
                    Place::Local(buffer) => vec![(rank, buffer)],
                    Place::Remote { rank, buffer } => vec![(rank, buffer)],
                    Place::Switch(index) => {
                        let switch = &rank_plan.switches[index as usize];
                        switch.ranks.iter().map(|&member| (member, switch.buffer)).collect()
                    }
                });
                buffers.collect()
            }
            Op::Port(put) => {
                let peer = rank_plan.port_channels.get(put.channel as usize);
                let there = peer.map(|&peer| (peer, put.target.0));
                there.into_iter().chain([(rank, put.source.0)]).collect()
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
    }
}
