//! Plans in slices give the same results, and are what an author writes by hand.

use super::super::super::cost::{Machine, predict};
use super::super::super::programs::{all, all_to_all};
use super::super::super::{Kind, Operation, check, random};
use super::super::tests::wrong;
use super::super::{Options, run, sync};
use super::*;
use crate::plan::program::{CollectiveProgram, Pattern, SyncType};

const UNIT: u64 = 48;

/// The plan with the bodies of loops in the place of the loops.
fn whole(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    for block in plan.ranks.iter_mut().flat_map(|rank| &mut rank.blocks) {
        let body = |operation: Operation| match operation.op {
            Op::Loop(repeated) => repeated.body,
            _ => vec![operation],
        };
        block.ops = std::mem::take(&mut block.ops).into_iter().flat_map(body).collect();
    }
    plan
}

fn loops(plan: &Plan) -> usize {
    places(plan).filter(|(_, op)| matches!(op, Op::Loop(_))).count()
}

fn says<T>(result: Result<T>, words: &str) {
    let error = result.map(drop).unwrap_err();
    assert!(error.to_string().contains(words), "{error} does not say {words}");
}

/// Its copies wait for a semaphore that tells that a slice was put.
#[test]
fn an_authors_loops_are_found_again() {
    for ranks in [2, 3, 4] {
        let plan = all_to_all::pipelined(ranks, 1).build().unwrap();
        assert!(loops(&plan) > 0);
        // The author has written one sync more, in front of each loop's first operation.
        let slices = pipeline(&whole(&plan), 1 << 19).unwrap();
        let compiled = |plan| run(plan, &Options::default(), None).unwrap();
        assert_eq!(compiled(&slices), compiled(&plan), "{ranks} ranks");
    }
}

/// One block puts while another one copies, instead of one behind the other.
#[test]
fn stages_in_different_blocks_overlap() {
    let plan = whole(&all_to_all::pipelined(4, 1).build().unwrap());
    let machine = Machine::named("h200-x4").unwrap();
    let time = |slice| {
        let options = Options { slice, ..Options::default() };
        predict(&run(&plan, &options, None).unwrap(), &machine, 256 << 20).unwrap()
    };
    let (one, slices) = (time(None), time(Some(4 << 20)));
    assert!(slices < 0.75 * one, "{slices} us in slices, {one} as a whole");
}

#[test]
fn programs_in_slices_are_right() {
    let mut made = Vec::new();
    for ranks in [2, 3, 4] {
        for program in all(ranks) {
            let plan = whole(&program.build().unwrap());
            let Ok(slices) = pipeline(&plan, UNIT) else { continue };
            let slices = run(&slices, &Options::default(), None).unwrap();
            assert_eq!(check::check(&slices), [], "{} of {ranks}", plan.name);
            assert_eq!(wrong(&slices, 5), None, "{} of {ranks}", plan.name);
            assert!(loops(&slices) > 0, "{}", plan.name);
            made.push(plan.name);
        }
    }
    made.sort_unstable();
    made.dedup();
    assert!(made.len() > 6, "{made:?}");
}

#[test]
fn random_programs_in_slices_are_right_or_refused_with_a_place() {
    let mut right = 0;
    for seed in 0..150 {
        let plan = whole(&random::program(seed));
        match pipeline(&plan, UNIT) {
            Ok(slices) if loops(&slices) > 0 => {
                let slices = sync(&slices).unwrap();
                assert_eq!(check::check(&slices), [], "seed {seed}");
                assert_eq!(wrong(&slices, 2), None, "seed {seed}");
                right += 1;
            }
            Ok(slices) => assert_eq!(slices, plan, "seed {seed}"),
            Err(error) => assert!(error.to_string().contains("rank "), "seed {seed}: {error}"),
        }
    }
    assert!(right > 10, "{right} in slices");
}

/// Rank 0 sends each chunk to rank 1 by two blocks, through scratch; `change` may spoil it.
fn relay(counts: [u32; 2], from: [u32; 2]) -> CollectiveProgram {
    let program = CollectiveProgram::new("relay", Pattern::custom("relay", 2, 4, 4));
    let [sender, receiver] = [0, 1].map(|rank| program.rank(rank));
    let channel = [sender.memory_channel(1), receiver.memory_channel(0)];
    channel[1].relaxed_signal(0, SyncType::None);
    channel[0].wait(0, SyncType::After);
    let scratch = receiver.scratch(4);
    channel[0].put(scratch.chunks(..counts[0]), sender.input().chunks(from[0]..from[0] + counts[0]), 0);
    channel[0].signal(0, SyncType::Before);
    channel[1].wait(0, SyncType::After);
    receiver.copy(receiver.output().chunks(..counts[1]), scratch.chunks(from[1]..from[1] + counts[1]), 0);
    program
}

#[test]
fn what_cannot_go_in_slices_is_refused() {
    let of = |counts, from| relay(counts, from).build().unwrap();
    let right = of([2, 2], [0, 0]);
    let slices = pipeline(&right, UNIT).unwrap();
    // The signal that a call has begun stays in front, and so does the wait for it.
    let kinds = |rank: usize| {
        let ops = &slices.ranks[rank].blocks[0].ops;
        ops.iter().map(|operation| std::mem::discriminant(&operation.op)).collect::<Vec<_>>()
    };
    let first = |op: &Op| std::mem::discriminant(op);
    let channel = Channel { kind: ChannelKind::Memory, index: 0 };
    assert_eq!(kinds(0)[0], first(&Op::Wait { channel }));
    assert_eq!(kinds(1)[0], first(&Op::Signal { channel, relaxed: true }));
    assert_eq!(loops(&slices), 2);
    says(pipeline(&right, 0), "slices of 0 bytes");
    says(pipeline(&right, 24), "use a multiple of 16");
    says(pipeline(&slices, UNIT), "a loop of the author's");
    says(
        pipeline(&of([2, 1], [0, 0]), UNIT),
        "rank 1 block 0 operation 2: moves 1 chunks, and rank 0 block 0 operation 1 2",
    );
    says(pipeline(&of([2, 2], [0, 1]), UNIT), "begins elsewhere");
    let mut variable = right.clone();
    (variable.settings.variable_chunks, variable.collective.kind) = (true, Kind::AllToAll);
    says(pipeline(&variable, UNIT), "sizes of their own");
}

/// The second block's slice could be taken for read when the first one has released two.
#[test]
fn a_semaphore_of_two_blocks_is_refused() {
    let words = "give each block one of its own";
    let program = CollectiveProgram::new("two signal", Pattern::custom("mine", 1, 2, 2));
    let rank = program.rank(0);
    let (semaphore, scratch) = (rank.semaphore(0), rank.scratch(2));
    for block in [0, 1] {
        rank.copy(scratch.chunk(block), rank.input().chunk(block), block);
        semaphore.release(block, SyncType::Before);
    }
    semaphore.acquire(2, SyncType::None);
    semaphore.acquire(2, SyncType::After);
    rank.copy(rank.output().chunk(0), scratch.chunk(0), 2);
    rank.copy(rank.output().chunk(1), scratch.chunk(1), 2);
    says(pipeline(&program.build().unwrap(), UNIT), words);

    let program = CollectiveProgram::new("two wait", Pattern::custom("mine", 1, 1, 2));
    let rank = program.rank(0);
    let (semaphore, scratch) = (rank.semaphore(0), rank.scratch(1));
    rank.copy(scratch.chunk(0), rank.input().chunk(0), 0);
    semaphore.release(0, SyncType::Before);
    semaphore.release(0, SyncType::None);
    for block in [1, 2] {
        semaphore.acquire(block, SyncType::After);
        rank.copy(rank.output().chunk(block - 1), scratch.chunk(0), block);
    }
    says(pipeline(&program.build().unwrap(), UNIT), words);
}

/// One that is told of before there is data is told of in each slice, like the others of its semaphore: the taker cannot tell them apart.
#[test]
fn all_signals_of_a_semaphore_go_into_the_loop() {
    let program = CollectiveProgram::new("twice", Pattern::custom("mine", 1, 1, 1));
    let rank = program.rank(0);
    let (semaphore, scratch) = (rank.semaphore(0), rank.scratch(1));
    semaphore.release(0, SyncType::None);
    rank.copy(scratch.chunk(0), rank.input().chunk(0), 0);
    semaphore.release(0, SyncType::Before);
    semaphore.acquire(1, SyncType::None);
    semaphore.acquire(1, SyncType::After);
    rank.copy(rank.output().chunk(0), scratch.chunk(0), 1);
    let slices = pipeline(&program.build().unwrap(), UNIT).unwrap();
    for block in &slices.ranks[0].blocks {
        let [Operation { op: Op::Loop(repeated), .. }] = &block.ops[..] else { panic!("{block:?}") };
        assert_eq!(repeated.body.iter().filter(|operation| operation.op != Op::Sync).count(), 3);
    }
}

/// A flush in front of a signal goes into the loop with it.
#[test]
fn a_flush_at_the_end_waits_for_all_slices_at_once() {
    for (told, in_loop) in [(false, 1), (true, 3)] {
        let program = CollectiveProgram::new("flushed", Pattern::custom("mine", 2, 1, 1));
        for rank in program.ranks() {
            let channel = rank.port_channel(1 - rank.index());
            let semaphore = rank.semaphore(0);
            channel.put_with_signal(
                program.rank(1 - rank.index()).output().chunk(0),
                rank.input().chunk(0),
                0,
            );
            channel.flush(0, SyncType::None);
            if told {
                semaphore.release(0, SyncType::None);
                semaphore.acquire(1, SyncType::None);
            }
            channel.wait(1, SyncType::None);
        }
        let slices = pipeline(&program.build().unwrap(), UNIT).unwrap();
        for rank in &slices.ranks {
            let Op::Loop(repeated) = &rank.blocks[0].ops[0].op else { panic!("{rank:?}") };
            assert_eq!(repeated.body.len(), in_loop, "told: {told}");
            assert_eq!(rank.blocks[0].ops.len(), if told { 1 } else { 2 }, "told: {told}");
        }
    }
}

/// A block may signal in front of its data, by a semaphore that a slice gives back.
#[test]
fn a_semaphore_that_begins_with_one_is_taken_again_for_each_slice() {
    let program = CollectiveProgram::new("given back", Pattern::custom("mine", 1, 1, 1));
    let rank = program.rank(0);
    let (free, full, scratch) = (rank.semaphore(1), rank.semaphore(0), rank.scratch(1));
    free.acquire(0, SyncType::After);
    rank.copy(scratch.chunk(0), rank.input().chunk(0), 0);
    full.release(0, SyncType::Before);
    full.acquire(1, SyncType::After);
    rank.copy(rank.output().chunk(0), scratch.chunk(0), 1);
    free.release(1, SyncType::Before);
    let slices = pipeline(&program.build().unwrap(), UNIT).unwrap();
    assert_eq!(check::check(&sync(&slices).unwrap()), []);
    for block in &slices.ranks[0].blocks {
        let [Operation { op: Op::Loop(repeated), .. }] = &block.ops[..] else { panic!("{block:?}") };
        assert_eq!(repeated.body.iter().filter(|operation| operation.op != Op::Sync).count(), 3);
    }
}
