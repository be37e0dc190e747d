//! Calls that are told to leave.

use crate::device::LaunchShape;
use aqueduct_ptx::abi::{ABORT_RECORD_COMPLETE, NO_PEER, Operation};
use aqueduct_ptx::plan::{Base, Block, Element, Kernel, Operand, Reduction, Step};

use crate::rig::{
    BARRIERS, INBOUND, SEMAPHORES, Sizes, World, fixed, kernel, moved, operand, signal, wait, with_lines,
    with_packets,
};

/// Runs rank 1 of two alone until it is told to leave; returns the operation and the rank of its record.
fn lonely(steps: Vec<Step>, blocks: u32) -> (u32, u32) {
    lonely_by(with_packets(kernel(2, Element::U8, steps), 1, 2), blocks)
}

fn lonely_by(plan: Kernel, blocks: u32) -> (u32, u32) {
    let world = World::new(2, 4096, 2, 1024);
    let plan = Kernel { blocks: vec![Block { shape: 0, row: Vec::new() }; blocks as usize], ..plan };
    // Its own signals have come.
    let own = world.memory[1].control + u64::from(INBOUND) + 16;
    world.machine.write(1, own, &9u64.to_ne_bytes());
    let before = world.machine.read(0, world.memory[0].control, 4096);
    let scratch = world.machine.read(0, world.memory[0].scratch, 4096);
    let packets = world.machine.read(0, world.memory[0].packets, 4096);
    let function = world.load(1, &plan);
    let args = world.args(1, Sizes { chunk: 512, input: 512, output: 512 }, [0, 0], &plan);
    world.machine.launch(1, function, LaunchShape { grid: blocks, block: 64 }, &args);
    world.machine.abort();
    world.machine.finish();
    assert_eq!(world.machine.read(0, world.memory[0].control, 4096), before, "it signalled after it gave up");
    assert_eq!(world.machine.read(0, world.memory[0].scratch, 4096), scratch, "it stored after it gave up");
    assert_eq!(
        world.machine.read(0, world.memory[0].packets, 4096),
        packets,
        "it sent packets after it gave up"
    );
    let record = world.machine.record(1);
    assert_eq!((record.state, record.rank), (ABORT_RECORD_COMPLETE, 1));
    (record.operation, record.peer)
}

/// A lane whose wait was given up has its whole warp send no lines: those of the others would be taken for whole.
#[test]
fn a_lane_that_gave_up_holds_the_lines_of_its_warp_back() {
    let send = moved(vec![operand(1, Base::Input, 0)], vec![operand(0, Base::Packets, 0)], 1, None);
    for waits in [vec![wait(0)], vec![wait(1), wait(0)]] {
        let plan = with_lines(kernel(2, Element::U8, vec![Step::Wait(waits), send.clone()]), 1, 2);
        assert_eq!(lonely_by(plan, 1), (Operation::WAIT.0, 0));
    }
}

/// The step behind each wait would show that the block had gone on.
#[test]
fn aborted_waits_leave_and_send_nothing() {
    let send = || moved(vec![operand(1, Base::Input, 0)], vec![operand(0, Base::Scratch, 0)], 1, None);
    let tell = || Step::Signal(vec![signal(1, 0)]);
    let from = |rank: u32| Operand { rank: fixed(rank), ..operand(1, Base::Packets, 0) };
    let read = || moved(vec![from(0)], vec![operand(1, Base::Output, 0)], 1, None);
    let acquire = || Step::Acquire { at: fixed(SEMAPHORES) };
    let repeat = |body| Step::Loop { unit: 128, chunks: fixed(1), body };
    let waits = || Step::Wait(vec![wait(0)]);
    let wait_of = Operation::WAIT.0;
    let plan_of = Operation::PLAN.0;
    for blocks in [1, 2] {
        assert_eq!(lonely(vec![waits(), tell(), Step::Sync, send()], 1), (wait_of, 0));
        assert_eq!(lonely(vec![acquire(), tell(), Step::Sync, send()], blocks), (plan_of, NO_PEER));
        assert_eq!(lonely(vec![read(), Step::Sync, tell(), send()], blocks), (plan_of, 0));
        assert_eq!(lonely(vec![read(), send()], blocks), (plan_of, 0));
        let barrier = Step::Barrier { state: fixed(BARRIERS), blocks: fixed(blocks + 1) };
        assert_eq!(lonely(vec![barrier, send()], blocks), (Operation::GRID_BARRIER.0, NO_PEER));
    }
    // A loop whose wait stands behind its last sync, and one without any.
    assert_eq!(lonely(vec![repeat(vec![Step::Sync, read(), waits()]), Step::Sync, send()], 1).1, 0);
    assert_eq!(lonely(vec![repeat(vec![waits(), tell()]), Step::Sync, send()], 1), (wait_of, 0));
    // Behind a loop: one that ends with the wait, and one that has no turns.
    let once = |chunks, body| Step::Loop { unit: 512, chunks: fixed(chunks), body };
    assert_eq!(lonely(vec![once(1, vec![waits()]), tell(), Step::Sync, send()], 1), (wait_of, 0));
    assert_eq!(lonely(vec![waits(), once(0, vec![Step::Sync]), tell(), Step::Sync, send()], 1), (wait_of, 0));
    // The first lane's wait succeeds, another's does not: the first thread then tells nobody.
    let lists = || Step::Wait(vec![wait(1), wait(0)]);
    assert_eq!(lonely(vec![lists(), tell(), Step::Sync, send()], 1), (wait_of, 0));
    let other = moved(vec![operand(1, Base::Input, 0)], vec![operand(1, Base::Scratch, 0)], 1, None);
    assert_eq!(lonely(vec![lists(), other, tell(), Step::Sync, send()], 1), (wait_of, 0));
}

/// A launch that goes on with a call tells the peer unless an earlier one gave up, even if all that it waits for has come.
#[test]
fn a_launch_behind_one_that_gave_up_tells_nothing() {
    // The word is also set where nobody had to give up: when a rank leaves in good order.
    for (word, gives_up) in [(false, false), (true, false), (true, true)] {
        let world = World::new(2, 4096, 2, 1024);
        let sizes = Sizes { chunk: 512, input: 512, output: 512 };
        let launch = |kernel: &Kernel| {
            let function = world.load(1, kernel);
            let args = world.args(1, sizes, [0, 0], kernel);
            world.machine.launch(1, function, LaunchShape { grid: 1, block: 64 }, &args);
        };
        world.machine.write(1, world.memory[1].control + u64::from(INBOUND) + 16, &9u64.to_ne_bytes());
        let awaited = wait(u32::from(!gives_up));
        launch(&kernel(2, Element::U8, vec![Step::Wait(vec![awaited])]));
        if gives_up {
            world.machine.abort();
        }
        world.machine.finish();
        if word && !gives_up {
            world.machine.abort();
        }
        let follows = |steps| Kernel { follows: true, ..kernel(2, Element::U8, steps) };
        launch(&follows(vec![Step::Signal(vec![signal(1, 0)])]));
        launch(&follows(vec![Step::Wait(vec![wait(1)]), Step::Signal(vec![signal(1, 0)])]));
        world.machine.finish();
        let told = world.machine.read(0, world.memory[0].control + u64::from(INBOUND) + 16, 8);
        assert_eq!(
            told,
            (if gives_up { 0u64 } else { 2 }).to_ne_bytes(),
            "word: {word}, gives_up: {gives_up}"
        );
    }
}

/// A block of a launch that goes on with a call may begin while another one of it gives up: each looks at the claim that the other takes.
#[test]
fn blocks_begin_while_others_of_their_launch_give_up() {
    let missing = Operand { rank: fixed(0), ..operand(1, Base::Packets, 0) };
    let read = moved(vec![missing], vec![operand(1, Base::Output, 0)], 1, None);
    let follows = Kernel { follows: true, ..with_packets(kernel(2, Element::U8, vec![read]), 1, 2) };
    assert_eq!(lonely_by(follows, 2), (Operation::PLAN.0, 0));
}

/// A loop's first turn tells the peer and then gives up, so the second tells nothing.
#[test]
fn a_loop_that_gave_up_tells_nothing_in_its_next_turn() {
    let world = World::new(2, 4096, 2, 1024);
    let other = moved(vec![operand(1, Base::Input, 0)], vec![operand(1, Base::Scratch, 0)], 1, None);
    let body = vec![Step::Signal(vec![signal(1, 0)]), other, Step::Wait(vec![wait(0)])];
    let plan = kernel(2, Element::U8, vec![Step::Loop { unit: 128, chunks: fixed(1), body }]);
    let function = world.load(1, &plan);
    let args = world.args(1, Sizes { chunk: 512, input: 512, output: 512 }, [0, 0], &plan);
    world.machine.launch(1, function, LaunchShape { grid: 1, block: 64 }, &args);
    world.machine.abort();
    world.machine.finish();
    let told = world.machine.read(0, world.memory[0].control + u64::from(INBOUND) + 16, 8);
    assert_eq!(told, 1u64.to_ne_bytes());
}

/// The record names the rank whose packet is missing; a packet of which one word has come is missing.
#[test]
fn a_record_names_the_sender_of_a_missing_packet() {
    for missing in [0u32, 2] {
        for flags in [[0u32, 0], [0, 1], [1, 0]] {
            let world = World::new(3, 64, 3, 128);
            let from = |rank: u32| Operand { rank: fixed(rank), ..operand(1, Base::Packets, rank) };
            let read =
                moved(vec![from(0), from(2)], vec![operand(1, Base::Output, 0)], 1, Some(Reduction::Sum));
            let plan = with_packets(kernel(3, Element::U32, vec![read]), 1, 3);
            for rank in [0, 2] {
                // The first call's flag is 1. Both packets of a vector are there, or the second's words say otherwise.
                let flags = if rank == missing { [1, 1, flags[0], flags[1]] } else { [1; 4] };
                let words: Vec<u8> =
                    flags.iter().flat_map(|flag| [7, *flag]).flat_map(u32::to_le_bytes).collect();
                world.machine.write(1, world.memory[1].packets + 128 + 256 * u64::from(rank), &words);
            }
            let function = world.load(1, &plan);
            let args = world.args(1, Sizes { chunk: 16, input: 16, output: 16 }, [0, 0], &plan);
            world.machine.launch(1, function, LaunchShape { grid: 1, block: 64 }, &args);
            world.machine.abort();
            world.machine.finish();
            let record = world.machine.record(1);
            assert_eq!(record.state, ABORT_RECORD_COMPLETE, "{flags:?}");
            assert_eq!(
                (record.operation, record.peer, record.epoch),
                (Operation::PLAN.0, missing, 1),
                "{flags:?}"
            );
        }
    }
}
