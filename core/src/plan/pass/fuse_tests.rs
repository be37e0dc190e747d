//! Each rule of fusion alone.

use super::super::samples::moved;
use super::super::{
    Block, Buffer, Channel, ChannelKind, Collective, Form, Kind, Op, Operand, Operation, Plan, PortPut,
    RankPlan, Reduction, Settings, Switch,
};
use super::{Shapes, fuse};

const SCRATCH: Buffer = Buffer::Scratch;

fn s(first: u32) -> Operand {
    Operand::local(SCRATCH, first)
}

fn o(first: u32) -> Operand {
    Operand::local(Buffer::Output, first)
}

fn i(first: u32) -> Operand {
    Operand::local(Buffer::Input, first)
}

fn r(first: u32) -> Operand {
    Operand::remote(1, SCRATCH, first)
}

/// Two ranks; rank 1 reads the upper half of its own scratch and of rank 0's, so that both are shared.
fn plan(ops: Vec<Op>) -> Plan {
    let block = |ops: Vec<Op>| Block::new((0..).zip(ops).map(|(origin, op)| op.at(origin)).collect());
    let rank = |peer, blocks| RankPlan {
        input_chunks: 8,
        output_chunks: 8,
        scratch_chunks: 16,
        memory_channels: vec![peer, peer],
        port_channels: vec![peer, peer],
        switches: vec![Switch { buffer: Buffer::Input, ranks: vec![0, 1] }],
        semaphores: vec![0, 0],
        blocks,
    };
    let remote = Operand::remote(0, SCRATCH, 8);
    let other = vec![moved(&[s(8)], &[o(0)], 8), moved(&[remote], &[i(0)], 8)];
    let ranks = vec![rank(1, vec![block(ops)]), rank(0, vec![block(other)])];
    Plan {
        name: "rules".into(),
        collective: Collective { kind: Kind::Custom("rules".into()), in_place: false },
        settings: Settings::default(),
        ranks,
    }
}

fn fused(ops: Vec<Op>, shapes: Shapes) -> Vec<Operation> {
    let mut fused = fuse(&plan(ops), shapes).unwrap();
    fused.ranks.swap_remove(0).blocks.swap_remove(0).ops
}

fn becomes(ops: Vec<Op>, expected: Vec<Op>) {
    let expected: Vec<Operation> = expected.into_iter().map(|op| op.at(0)).collect();
    assert_eq!(fused(ops, Shapes::Any), expected);
}

fn stays(ops: Vec<Op>) {
    let moves = |ops: &[Operation]| ops.iter().filter(|o| matches!(o.op, Op::Move(_) | Op::Port(_))).count();
    let before: Vec<Operation> = ops.iter().map(|op| op.clone().at(0)).collect();
    let after = fused(ops, Shapes::Any);
    assert_eq!(moves(&after), moves(&before), "{after:?}");
}

fn signal(index: u32) -> Op {
    Op::Signal { channel: Channel { kind: ChannelKind::Memory, index }, relaxed: false }
}

fn wait(index: u32) -> Op {
    Op::Wait { channel: Channel { kind: ChannelKind::Memory, index } }
}

#[test]
fn a_result_is_sent_where_it_is_made() {
    // Reduce and put; the copy in the output stays, the one in scratch that nobody reads does not.
    becomes(
        vec![moved(&[i(0), s(1)], &[o(0)], 1), moved(&[o(0)], &[r(9)], 1)],
        vec![moved(&[i(0), s(1)], &[o(0), r(9)], 1)],
    );
    becomes(
        vec![moved(&[i(0), s(1)], &[s(2)], 1), moved(&[s(2)], &[r(9)], 1)],
        vec![moved(&[i(0), s(1)], &[r(9)], 1)],
    );
    // Another rank reads chunk 8.
    becomes(
        vec![moved(&[i(0)], &[s(8)], 1), moved(&[s(8)], &[r(9)], 1)],
        vec![moved(&[i(0)], &[s(8), r(9)], 1)],
    );
    // A chain, over what has nothing to do with it.
    becomes(
        vec![
            moved(&[i(0)], &[s(2)], 1),
            moved(&[i(4)], &[o(4)], 1),
            moved(&[s(2)], &[o(0)], 1),
            moved(&[s(2)], &[r(9)], 1),
        ],
        vec![moved(&[i(0)], &[o(0), r(9)], 1), moved(&[i(4)], &[o(4)], 1)],
    );
    // Packets that were reduced are sent on as packets; packets that came are sent on and unpacked.
    becomes(
        vec![
            moved(&[i(0), s(1).packets()], &[s(2).packets()], 1),
            moved(&[s(2).packets()], &[r(9).packets()], 1),
        ],
        vec![moved(&[i(0), s(1).packets()], &[r(9).packets()], 1)],
    );
    becomes(
        vec![moved(&[s(1).packets()], &[r(9).packets()], 1), moved(&[s(1).packets()], &[o(0)], 1)],
        vec![moved(&[s(1).packets()], &[r(9).packets(), o(0)], 1)],
    );
    // A switch reduces and broadcasts: its members include this rank's own chunk.
    let switch = Operand::switch(0, 0);
    let reduce = |target: Operand| {
        let Op::Move(mut reduced) = moved(&[switch], &[target], 1) else { unreachable!() };
        reduced.reduction = Some(Reduction::Sum);
        Op::Move(reduced)
    };
    becomes(vec![reduce(i(0)), moved(&[i(0)], &[switch], 1)], vec![reduce(switch)]);
    // Not another chunk, another form, another count, another part.
    stays(vec![moved(&[i(0)], &[o(0)], 1), moved(&[o(1)], &[r(9)], 1)]);
    stays(vec![moved(&[i(0)], &[s(2).packets()], 1), moved(&[s(2)], &[r(9)], 1)]);
    stays(vec![moved(&[i(0)], &[o(0)], 2), moved(&[o(0)], &[r(9)], 1)]);
}

#[test]
fn one_source_goes_to_several_targets() {
    becomes(
        vec![moved(&[i(0)], &[r(9)], 1), moved(&[i(0)], &[o(0)], 1)],
        vec![moved(&[i(0)], &[r(9), o(0)], 1)],
    );
    becomes(
        vec![moved(&[i(0), i(1)], &[r(9)], 1), moved(&[i(0), i(1)], &[o(0)], 1)],
        vec![moved(&[i(0), i(1)], &[r(9), o(0)], 1)],
    );
    // The source is another one by then.
    stays(vec![moved(&[i(0), i(1)], &[i(0)], 1), moved(&[i(0), i(1)], &[o(0)], 1)]);
    stays(vec![moved(&[i(0)], &[r(9)], 1), moved(&[s(0)], &[i(0)], 2), moved(&[i(0)], &[o(0)], 1)]);
    stays(vec![moved(&[i(0)], &[o(0)], 2), moved(&[i(0)], &[o(1)], 2)]);
    // Files have no name for a put to several, and write a list.
    let puts = fused(vec![moved(&[i(0)], &[r(9)], 1), moved(&[i(0)], &[r(10)], 1)], Shapes::Named);
    assert_eq!(puts.len(), 2);
    assert_eq!(puts[0].origin, puts[1].origin);
}

#[test]
fn sums_of_sums_are_one_sum() {
    becomes(
        vec![moved(&[i(0), s(1)], &[o(0)], 1), moved(&[o(0), s(2)], &[o(0)], 1)],
        vec![moved(&[i(0), s(1), s(2)], &[o(0)], 1)],
    );
    becomes(
        vec![moved(&[i(0), s(1)], &[s(3)], 1), moved(&[s(3), s(2)], &[o(0)], 1)],
        vec![moved(&[i(0), s(1), s(2)], &[o(0)], 1)],
    );
    // Unpack and reduce, the unpacked at any place.
    becomes(
        vec![moved(&[s(1).packets()], &[s(3)], 1), moved(&[i(0), s(3)], &[o(0)], 1)],
        vec![moved(&[i(0), s(1).packets()], &[o(0)], 1)],
    );
    // The order of the reduction would change; the sum between is read, here or by another rank; it is a result.
    stays(vec![moved(&[i(0), s(1)], &[s(3)], 1), moved(&[s(2), s(3)], &[o(0)], 1)]);
    stays(vec![
        moved(&[i(0), s(1)], &[s(3)], 1),
        moved(&[s(3), s(2)], &[o(0)], 1),
        moved(&[s(3), i(1)], &[o(1)], 1),
    ]);
    stays(vec![moved(&[i(0), s(1)], &[s(8)], 1), moved(&[s(8), s(2)], &[o(0)], 1)]);
    stays(vec![moved(&[i(0), s(1)], &[o(1)], 1), moved(&[o(1), s(2)], &[o(0)], 1)]);
}

#[test]
fn neighbours_are_one_move() {
    becomes(vec![moved(&[i(0)], &[o(0)], 2), moved(&[i(2)], &[o(2)], 1)], vec![moved(&[i(0)], &[o(0)], 3)]);
    becomes(vec![moved(&[i(1)], &[r(9)], 1), moved(&[i(0)], &[r(8)], 1)], vec![moved(&[i(0)], &[r(8)], 2)]);
    stays(vec![moved(&[i(0)], &[o(0)], 1), moved(&[i(1)], &[o(2)], 1)]);
    stays(vec![moved(&[i(2)], &[i(1)], 1), moved(&[i(3)], &[i(2)], 1)]);
}

#[test]
fn nobody_is_made_to_wait_for_himself() {
    // The signal tells of the first, the wait of the second.
    stays(vec![moved(&[i(0)], &[r(9)], 1), signal(0), wait(0), moved(&[i(0)], &[r(10)], 1)]);
    // A peer's answer comes only after the signal, so nothing may wait for it before.
    let unpack = |chunk: u32| moved(&[s(chunk).packets()], &[o(chunk)], 1);
    let mut two = plan(vec![unpack(0), signal(0), unpack(1)]);
    let bring = moved(&[i(0)], &[Operand::remote(0, SCRATCH, 0).packets()], 2);
    two.ranks[1].blocks[0].ops.push(bring.at(2));
    let after = fuse(&two, Shapes::Any).unwrap();
    assert_eq!(after.ranks[0].blocks[0].ops.iter().filter(|o| matches!(o.op, Op::Move(_))).count(), 2);
    // Nor may what comes as the answer to the first, if elements go from the lowest on.
    let forward = |chunk: u32| moved(&[s(chunk).packets()], &[r(8 + chunk).packets()], 1);
    let mut answered = two.clone();
    answered.ranks[0].blocks[0].ops = vec![forward(1).at(0), forward(0).at(1)];
    let after = fuse(&answered, Shapes::Any).unwrap();
    assert_eq!(after.ranks[0].blocks[0].ops.len(), 2);
    // Nor may what the own block sends come before it is sent.
    let own = vec![unpack(1), moved(&[i(4)], &[s(2).packets()], 2), unpack(2)];
    let after = fused(own, Shapes::Any);
    assert_eq!(after.iter().filter(|o| matches!(o.op, Op::Move(_))).count(), 3, "{after:?}");
    // Without the signal they are one.
    two.ranks[0].blocks[0].ops.remove(1);
    let after = fuse(&two, Shapes::Any).unwrap();
    assert_eq!(after.ranks[0].blocks[0].ops.len(), 1);
}

#[test]
fn ports() {
    let put = |channel, signal, flush| {
        let (source, target) = ((SCRATCH, channel), (SCRATCH, channel + 8));
        let form = Form::Plain;
        Op::Port(Box::new(PortPut { channel, source, target, count: 1, form, forward: false, signal, flush }))
    };
    let signal = |index| Op::Signal { channel: Channel { kind: ChannelKind::Port, index }, relaxed: false };
    let flush = |channel| Op::Flush { channel };
    becomes(vec![put(0, false, false), signal(0), flush(0)], vec![put(0, true, true)]);
    becomes(
        vec![put(0, false, false), put(1, false, false), signal(0), signal(1), flush(0)],
        vec![put(0, true, false), put(1, true, false), flush(0)],
    );
    stays(vec![put(0, false, false), put(0, false, false), signal(0)]);
    let after = fused(vec![put(0, false, false), wait(0), signal(0)], Shapes::Any);
    assert_eq!(after.len(), 3, "the signal tells of what the wait learned");
    let after = fused(vec![put(0, false, false), moved(&[i(0)], &[r(8)], 1), signal(0)], Shapes::Any);
    assert_eq!(after.len(), 4, "the signal tells of the move");
    let after = fused(vec![put(0, false, false), flush(0)], Shapes::Any);
    assert_eq!(after.len(), 2, "no name");
}

#[test]
fn lists() {
    let origins = |ops: Vec<Op>| fused(ops, Shapes::Any).iter().map(|o| o.origin).collect::<Vec<u32>>();
    assert_eq!(origins(vec![signal(0), signal(1), wait(0), wait(1)]), [0, 0, 2, 2]);
    assert_eq!(origins(vec![signal(0), signal(0)]), [0, 1], "a channel twice");
    assert_eq!(origins(vec![Op::Acquire { semaphore: 0 }, Op::Acquire { semaphore: 1 }]), [0, 0]);
    assert_eq!(origins(vec![Op::Flush { channel: 0 }, Op::Flush { channel: 1 }]), [0, 0]);
}
