//! Blocks that copy engines run: whether a stream can do their operations.

use super::ir::{Buffer, ChannelKind, Form, Move, Op, Operand, Place, Settings};

/// Why a copy engine cannot do an operation; `None` if it can. The host enqueues copies, and a kernel of one warp between them does what
/// signals and waits.
pub(in crate::plan) fn refusal(settings: &Settings, op: &Op) -> Option<String> {
    let why = match op {
        Op::Sync | Op::Acquire { .. } | Op::Release { .. } => return None,
        Op::Signal { channel, .. } | Op::Wait { channel, .. } if channel.kind == ChannelKind::Memory => {
            return None;
        }
        Op::Move(moved) => return moved_refusal(settings, moved),
        Op::Signal { .. } | Op::Wait { .. } | Op::Flush { .. } | Op::Port(_) => {
            "a copy engine asks no proxy; let a block of threads use the port channel"
        }
        Op::Barrier(_) => "a copy engine meets no blocks in a barrier; use semaphores",
        Op::Loop(_) => {
            "a copy engine runs no loop: the host enqueues its copies, one for each operation; write them out"
        }
    };
    Some(why.to_owned())
}

fn moved_refusal(settings: &Settings, moved: &Move) -> Option<String> {
    let mut operands = moved.sources.iter().chain(&moved.targets);
    let scratch = |operand: &Operand| {
        matches!(operand.place, Place::Local(Buffer::Scratch) | Place::Remote { buffer: Buffer::Scratch, .. })
    };
    let why = match () {
        () if moved.sources.len() != 1 || moved.reduction.is_some() => {
            "a copy engine reduces nothing; let a block of threads do it"
        }
        () if moved.share.is_some() => "a copy engine's block shares no range; give it a range of its own",
        () if operands.clone().any(|operand| operand.form == Form::Packets) => {
            "a copy engine reads and writes no packets"
        }
        () if operands.clone().any(|operand| matches!(operand.place, Place::Switch(_))) => {
            "a copy engine reaches no switch; put to each member"
        }
        () if settings.variable_chunks => {
            "a copy engine needs sizes that the host knows, and the plan's chunks have sizes of their own"
        }
        () if settings.double_scratch && operands.any(scratch) => {
            "a copy engine does not know which half of double scratch is a call's; use single scratch and signals"
        }
        () => return None,
    };
    Some(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::structure;
    use crate::plan::samples::{self, copies};
    use crate::plan::{
        Barrier, Channel, ChannelKind, Form, Loop, Move, Op, Operand, Plan, PortPut, Reduction, Share,
    };
    use crate::plan::{Buffer, Switch};

    /// What the checks say of rank 0, whose block all_gather(2) gives to a copy engine, with `op` for its first operation.
    fn said(op: Op, change: impl FnOnce(&mut Plan)) -> String {
        let mut plan = copies::all_gather(2);
        for rank in &mut plan.ranks {
            rank.scratch_chunks = 4;
            rank.port_channels = vec![1 - rank.memory_channels[0] % 2];
            rank.switches = vec![Switch { buffer: Buffer::Input, ranks: vec![0, 1] }];
        }
        (plan.ranks[0].port_channels, plan.ranks[1].port_channels) = (vec![1], vec![0]);
        samples::ops(&mut plan, 0, 0)[0].op = op;
        change(&mut plan);
        let findings = structure(&plan);
        findings.iter().map(|finding| format!("{finding}\n")).collect()
    }

    fn copy() -> Move {
        let local = |first| Operand::local(Buffer::Scratch, first);
        Move { sources: vec![local(0)], targets: vec![local(1)], count: 1, reduction: None, share: None }
    }

    fn moved(change: impl FnOnce(&mut Move)) -> Op {
        let mut moved = copy();
        change(&mut moved);
        Op::Move(Box::new(moved))
    }

    #[test]
    fn what_no_stream_can_do_is_refused_with_its_place() {
        let port = Channel { kind: ChannelKind::Port, index: 0 };
        let scratch = Operand::local(Buffer::Scratch, 2);
        let put = PortPut {
            channel: 0,
            source: (Buffer::Scratch, 0),
            target: (Buffer::Scratch, 1),
            count: 1,
            form: Form::Plain,
            forward: false,
            signal: true,
            flush: false,
        };
        let body = vec![moved(|_| {}).at(0)];
        for (op, why) in [
            (moved(|moved| moved.share = Some(Share { member: 0, of: 1 })), "shares no range"),
            (
                moved(|moved| {
                    moved.sources.push(scratch);
                    moved.reduction = Some(Reduction::Sum);
                }),
                "reduces nothing",
            ),
            (moved(|moved| moved.targets.push(scratch.packets())), "no packets"),
            (moved(|moved| moved.targets.push(Operand::switch(0, 0))), "reaches no switch"),
            (Op::Barrier(Barrier { id: 0, blocks: 1 }), "meets no blocks in a barrier; use semaphores"),
            (Op::Signal { channel: port, relaxed: false }, "asks no proxy"),
            (Op::Wait { channel: port }, "asks no proxy"),
            (Op::Flush { channel: 0 }, "asks no proxy"),
            (Op::Port(Box::new(put)), "asks no proxy"),
            (Op::Loop(Box::new(Loop { unit: 64, chunks: 1, body })), "runs no loop"),
        ] {
            let text = said(op, |_| {});
            assert!(text.contains("rank 0 block 0 operation 0: ") && text.contains(why), "{why}: {text}");
        }
        let text = said(moved(|_| {}), |plan| plan.settings.double_scratch = true);
        assert!(text.contains("rank 0 block 0 operation 0: ") && text.contains("double scratch"), "{text}");
        let text = said(moved(|_| {}), |plan| plan.settings.variable_chunks = true);
        assert!(text.contains("sizes of their own"), "{text}");
        // What remains is right, also to several targets.
        assert_eq!(said(moved(|moved| moved.targets.push(scratch)), |_| {}), "");
        let text = said(moved(|_| {}), |plan| plan.ranks[0].blocks[0].copy_engine = false);
        assert_eq!(text, "");
    }
}
