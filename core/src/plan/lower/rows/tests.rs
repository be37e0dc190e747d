//! Plans that lower to kernels with rows, and those that cannot.

use super::super::super::ir::{Barrier, ChannelKind, Op, Reduction};
use super::super::super::program::{CollectiveProgram, Pattern, SyncType};
use super::super::{Averages, Ways};
use super::*;
use crate::error::ErrorKind;

/// Ranks 0 and 1 of one host and rank 2 of another send each other parts of any size, with so many blocks.
fn all_to_all(blocks: u32) -> Plan {
    let program = CollectiveProgram::new("by rows", Pattern::all_to_all(3, 1));
    let program = program.variable_chunks(true).double_scratch(true).fusion(false);
    let all: Vec<u32> = (0..blocks).collect();
    for rank in program.ranks() {
        let (me, input) = (rank.index(), rank.input());
        let (near, far): (Vec<u32>, Vec<u32>) = rank.peers().partition(|&peer| (peer < 2) == (me < 2));
        let near: Vec<_> = near.into_iter().map(|peer| rank.memory_channel(peer)).collect();
        let far: Vec<_> = far.into_iter().map(|peer| rank.port_channel(peer)).collect();
        far.iter().for_each(|channel| channel.signal(0, SyncType::None));
        near.iter().for_each(|channel| channel.relaxed_signal(0, SyncType::None));
        near.iter().for_each(|channel| channel.wait(0, SyncType::After));
        far.iter().for_each(|channel| channel.wait(0, SyncType::After));
        rank.barrier(all.clone());
        let there = |peer: u32| program.rank(peer).output().chunk(me);
        far.iter().for_each(|channel| {
            channel.put_with_signal(there(channel.peer()), input.chunk(channel.peer()), 0)
        });
        rank.copy(there(me), input.chunk(me), 0);
        near.iter().for_each(|channel| channel.put(there(channel.peer()), input.chunk(channel.peer()), 0));
        near.iter().for_each(|channel| channel.signal(0, SyncType::Before));
        near.iter().for_each(|channel| channel.wait(0, SyncType::After));
        far.iter().for_each(|channel| channel.wait(0, SyncType::After));
        far.iter().for_each(|channel| channel.flush(0, SyncType::None));
    }
    program.compile().unwrap()
}

fn lowered(plan: &Plan, rank: u32) -> Result<ptx::Kernel> {
    let lowered =
        super::super::lower(plan, rank, ptx::Element::U8, None, &Averages::of(plan), Ways::default())?;
    Ok(lowered.expect("it has operations").kernel)
}

/// One block meets all ranks, by rows through ports; the others find what it found.
#[test]
fn the_first_block_meets_ranks_that_are_out_of_reach() {
    use ptx::Step::{Barrier, FindRows, JudgeRows, PortWait, PutRows, ShowRows, Signal, Sync, Wait};
    let names = |block: &ptx::Block, kernel: &ptx::Kernel| -> Vec<&'static str> {
        let steps = kernel.shapes[block.shape as usize].steps.iter();
        let name = |step: &ptx::Step| match step {
            ShowRows => "show",
            FindRows => "find",
            JudgeRows => "judge",
            PutRows { .. } => "put",
            PortWait { .. } => "hear",
            Signal(list) => ["", "signal", "signals"][list.len()],
            Wait(list) => ["", "wait", "waits"][list.len()],
            Barrier { .. } => "barrier",
            Sync => "sync",
            _ => "other",
        };
        let end = |name: &&str| *name != "judge";
        steps.map(name).take_while(end).collect()
    };
    for blocks in [1, 3] {
        let plan = all_to_all(blocks);
        for rank in 0..3 {
            let kernel = lowered(&plan, rank).unwrap();
            let rows = kernel.rows.unwrap();
            assert_eq!((rows.me, rows.reached), (rank, if rank < 2 { 2 } else { 1 }));
            let first = names(&kernel.blocks[0], &kernel);
            // Signals publish the rows.
            let steps = kernel.shapes[kernel.blocks[0].shape as usize].steps.iter();
            for step in steps.take_while(|step| **step != JudgeRows) {
                assert!(
                    !matches!(step, Signal(list) if list.iter().any(|signal| signal.relaxed)),
                    "{step:?}"
                );
            }
            let count = |name: &str| first.iter().filter(|other| **other == name).count();
            assert_eq!(first[..3], ["show", "sync", "put"], "{first:?}");
            let far = if rank < 2 { 1 } else { 2 };
            let met = ["put", "hear", "signal", "wait", "barrier"].map(count);
            assert_eq!(met, [far, far, 2 - far, 2 - far, usize::from(blocks > 1)], "{first:?}");
            assert_eq!(first.last(), Some(if blocks > 1 { &"barrier" } else { &"sync" }), "{first:?}");
            for block in kernel.blocks.iter().skip(1) {
                assert_eq!(names(block, &kernel), ["find", "barrier"]);
            }
        }
    }
}

/// Changes one operation of rank 0's first block, or leaves it out.
fn changed(plan: &Plan, wanted: impl Fn(&Op) -> bool, change: impl Fn(&mut Op) -> bool) -> Plan {
    let mut plan = plan.clone();
    let ops = &mut plan.ranks[0].blocks[0].ops;
    let at = ops.iter().position(|operation| wanted(&operation.op)).expect("it has such an operation");
    if !change(&mut ops[at].op) {
        ops.remove(at);
    }
    plan
}

#[test]
fn other_beginnings_and_moves_are_refused() {
    let plan = all_to_all(2);
    let refused = |plan: &Plan, words: &str| {
        let error = lowered(plan, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Plan, "{error}");
        assert!(error.message().contains(words), "{error} does not say {words}");
    };
    let begins = "the first block begins with a signal to every other rank";
    let left_out = |_: &mut Op| false;
    refused(&changed(&plan, |op| matches!(op, Op::Signal { .. }), left_out), begins);
    refused(&changed(&plan, |op| matches!(op, Op::Wait { .. }), left_out), begins);
    let mut again = plan.clone();
    let ops = &mut again.ranks[0].blocks[0].ops;
    let near = |op: &Op| matches!(op, Op::Signal { channel, .. } if channel.kind == ChannelKind::Memory);
    let at = ops.iter().position(|operation| near(&operation.op)).expect("it signals its neighbour");
    ops.insert(at, ops[at].clone());
    refused(&again, begins);
    refused(&changed(&plan, |op| matches!(op, Op::Barrier(_)), left_out), begins);
    let mut alone = plan.clone();
    alone.ranks[0].blocks[1].ops.clear();
    refused(&alone, begins);
    // Blocks that meet before the first one has met all ranks, that meet without it, or that are fewer than all.
    let mut early = plan.clone();
    let ops = &mut early.ranks[0].blocks[0].ops;
    let barrier =
        ops.iter().position(|operation| matches!(operation.op, Op::Barrier(_))).expect("it has one");
    let meeting = ops[barrier].clone();
    ops.insert(0, meeting);
    refused(&early, begins);
    let barriers = |change: &dyn Fn(usize, &mut Barrier)| {
        let mut plan = plan.clone();
        for (nth, block) in plan.ranks[0].blocks.iter_mut().enumerate() {
            let met = block.ops.iter_mut().find_map(|operation| match &mut operation.op {
                Op::Barrier(barrier) => Some(barrier),
                _ => None,
            });
            change(nth, met.expect("it has one"));
        }
        plan
    };
    refused(&barriers(&|nth, barrier| barrier.id += nth as u32), begins);
    refused(&barriers(&|_, barrier| barrier.blocks -= 1), begins);
    // One rank is told twice, and another one never.
    let mut twice = plan.clone();
    let rank = &mut twice.ranks[2];
    assert_eq!(rank.port_channels, [0, 1]);
    rank.port_channels[1] = 0;
    let error = lowered(&twice, 2).unwrap_err();
    assert!(error.message().contains(begins), "{error}");
    let mut single = plan.clone();
    single.settings.double_scratch = false;
    refused(&single, "need double scratch");
    let mut fewer = plan.clone();
    fewer.ranks[2].blocks.pop();
    refused(&fewer, "all ranks need as many blocks");
    let put = |change: fn(&mut PortPut)| {
        let change = move |op: &mut Op| {
            let Op::Port(put) = op else { panic!("a put") };
            change(put);
            true
        };
        changed(&plan, |op| matches!(op, Op::Port(_)), change)
    };
    let one = "a port puts one chunk of the input";
    refused(&put(|put| put.count = 2), one);
    refused(&put(|put| put.source.0 = Buffer::Output), one);
    refused(&put(|put| put.target.0 = Buffer::Input), one);
    refused(&put(|put| put.form = Form::Packets), one);
    let moved = |change: fn(&mut Move)| {
        let change = move |op: &mut Op| {
            let Op::Move(moved) = op else { panic!("a move") };
            change(moved);
            true
        };
        changed(&plan, |op| matches!(op, Op::Move(_)), change)
    };
    refused(&moved(|moved| moved.count = 2), "a move of several chunks");
    refused(&moved(|moved| moved.sources[0].place = Place::Local(Buffer::Output)), "a move from an output");
    refused(
        &moved(|moved| moved.sources[0].place = Place::Local(Buffer::Scratch)),
        "a move without an input",
    );
    refused(&moved(|moved| moved.targets[0].place = Place::Local(Buffer::Scratch)), "a move into scratch");
    refused(&moved(|moved| moved.targets[0].form = Form::Packets), "packets, an operand at a switch");
}

/// A row stands for what one rank sends or has room for: of a reduce-scatter, the one part of an output is that of the rank itself.
#[test]
fn chunks_have_the_rows_that_speak_of_them() {
    let plan = all_to_all(1);
    assert_eq!(row(&plan, 1, Buffer::Input, 2), 5);
    assert_eq!(row(&plan, 1, Buffer::Output, 2), 5);
    let sums = reduce_scatter();
    assert_eq!(row(&sums, 1, Buffer::Input, 2), 5);
    assert_eq!([0, 1, 2].map(|rank| row(&sums, rank, Buffer::Output, 0)), [0, 4, 8]);
}

/// Each of three ranks of one host reduces its part of all inputs.
fn reduce_scatter() -> Plan {
    let program = CollectiveProgram::new("sums by rows", Pattern::reduce_scatter(3, 1));
    let program = program.variable_chunks(true).double_scratch(true);
    for rank in program.ranks() {
        let me = rank.index();
        let channels: Vec<_> = rank.peers().map(|peer| rank.memory_channel(peer)).collect();
        channels.iter().for_each(|channel| channel.relaxed_signal(0, SyncType::None));
        channels.iter().for_each(|channel| channel.wait(0, SyncType::After));
        let all = program.ranks().map(|other| (other.input().chunk(me), Form::Plain));
        rank.reduce_in_order(rank.output().chunk(0), all, Reduction::Sum, 0);
        channels.iter().for_each(|channel| channel.signal(0, SyncType::Before));
        channels.iter().for_each(|channel| channel.wait(0, SyncType::After));
    }
    program.compile().unwrap()
}

/// The kernel divides by the number of ranks.
#[test]
fn an_average_takes_the_parts_of_all_ranks() {
    let plan = reduce_scatter();
    let sums = plan.ranks[1].blocks[0].ops.iter().find_map(|operation| match &operation.op {
        Op::Move(moved) => Some(moved),
        _ => None,
    });
    let all = sums.expect("it reduces");
    assert_eq!(all.sources.len(), 3);
    let at = Position::first(&plan, 1, |op| matches!(op, Op::Move(_))).expect("it reduces");
    let lowered = |of: &Move, reduction| moved(&plan, 1, of, Some(reduction), at, &mut Addresses::default());
    let mut fewer = all.clone();
    fewer.sources.pop();
    for reduction in [ptx::Reduction::Avg, ptx::Reduction::Sum] {
        let target = lowered(all, reduction).unwrap().targets[0];
        assert_eq!(target.first, Fixed(4), "the row of rank 1 about itself");
    }
    lowered(&fewer, ptx::Reduction::Sum).unwrap();
    let error = lowered(&fewer, ptx::Reduction::Avg).unwrap_err();
    assert!(error.message().contains("an average of fewer than all ranks"), "{error}");
}
