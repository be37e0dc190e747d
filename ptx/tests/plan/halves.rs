//! Blocks of which one half sends while the other waits.

use crate::device::LaunchShape;
use aqueduct_ptx::plan::{
    Base, Block, Element, Kernel, Move, Number, Operand, PacketForm, Reduction, Share, Step,
};

use crate::rig::{CALLS, World, fixed, kernel, moved, noise, operand, signal, with_lines, with_packets};
use crate::solo::{Solo, at, sizes};

const CHUNKS: u32 = 4;

/// Behind both halves all threads share a move again: a unit that two of them handled would be added twice, and one that none did
/// would be missing.
#[test]
fn a_block_is_whole_behind_its_halves() {
    let mut solo = Solo::new(40_000, CHUNKS.into(), 10_240);
    let steps = || {
        vec![
            moved(vec![at(Base::Input, 0)], vec![at(Base::Packets, 1)], 1, None),
            moved(vec![at(Base::Packets, 1)], vec![at(Base::Scratch, 0)], 1, None),
            Step::Sync,
            moved(
                vec![at(Base::Output, 0), at(Base::Scratch, 0)],
                vec![at(Base::Output, 0)],
                1,
                Some(Reduction::Sum),
            ),
        ]
    };
    for packets in [with_packets, with_lines] {
        for threads in [64, 128] {
            let plan = packets(Kernel { threads, ..kernel(1, Element::U32, steps()) }, 0, CHUNKS);
            assert!(plan.has_halves());
            for chunk in [16, 1040, 4000, 10_240] {
                solo.run(&plan, sizes(chunk, chunk), [0, 0]);
            }
        }
    }
}

/// A turn of a loop handles its slice alone: what is added twice shows.
#[test]
fn slices_are_no_halves() {
    let mut solo = Solo::new(40_000, CHUNKS.into(), 10_240);
    let body = vec![
        moved(vec![at(Base::Input, 0)], vec![at(Base::Packets, 1)], 1, None),
        moved(
            vec![at(Base::Output, 0), at(Base::Packets, 1)],
            vec![at(Base::Output, 0)],
            1,
            Some(Reduction::Sum),
        ),
    ];
    let steps = vec![Step::Loop { unit: 1600, chunks: fixed(1), body }];
    for packets in [with_packets, with_lines] {
        let plan = packets(kernel(1, Element::U32, steps.clone()), 0, CHUNKS);
        for chunk in [16, 4000, 10_240] {
            solo.run(&plan, sizes(chunk, chunk), [0, 0]);
        }
    }
}

/// A block whose first step needs the call's number meets before both halves: a thread that is late would otherwise read the counter of
/// the next call. Only the race detector sees it.
#[test]
fn a_block_that_knows_its_call_meets_before_its_halves() {
    let mut solo = Solo::new(4096, CHUNKS.into(), 1024);
    let steps = vec![
        Step::Signal(vec![signal(0, 0)]),
        moved(vec![at(Base::Input, 0)], vec![at(Base::Packets, 1)], 1, None),
        moved(vec![at(Base::Packets, 1)], vec![at(Base::Output, 0)], 1, None),
    ];
    let plan = with_packets(Kernel { threads: 128, ..kernel(1, Element::U8, steps) }, 0, CHUNKS);
    assert!(plan.has_halves());
    for chunk in [16, 1024] {
        solo.run(&plan, sizes(chunk, chunk), [0, 0]);
    }
}

/// A block counts for those that its launch lacks by all of its threads, those of the half that waited as well.
#[test]
fn counters_advance_behind_halves() {
    // More than a half has threads.
    const BLOCKS: u32 = 50;
    let world = World::new(1, 1024, 1, 1024);
    let share = |step| {
        let Step::Move(moved) = step else { unreachable!() };
        let share = Some(Share { member: Number::Row(0), of: fixed(BLOCKS) });
        Step::Move(Move { share, ..moved })
    };
    let steps = [
        moved(vec![at(Base::Input, 0)], vec![at(Base::Packets, 0)], 1, None),
        moved(vec![at(Base::Packets, 0)], vec![at(Base::Output, 0)], 1, None),
    ];
    let plan = Kernel { double_scratch: true, ..kernel(1, Element::U8, steps.map(share).to_vec()) };
    let blocks = (0..BLOCKS).map(|nth| Block { shape: 0, row: vec![nth] }).collect();
    let plan = with_packets(Kernel { blocks, ..plan }, 0, 1);
    assert!(plan.has_halves() && plan.runs_with_any_grid());
    let function = world.load(0, &plan);
    for call in 1..4u64 {
        let args = world.args_for(0, sizes(400, 400), [0, 0], &plan, 1);
        world.machine.launch(0, function, LaunchShape { grid: 1, block: plan.threads }, &args);
        world.machine.finish();
        let counters = world.memory[0].control + u64::from(CALLS);
        let found = world.machine.read(0, counters, 8 * BLOCKS as usize);
        assert_eq!(found, call.to_ne_bytes().repeat(BLOCKS as usize), "call {call}");
    }
}

/// Which halves there are: only of whole warps, and none without a move that sends before one that waits.
#[test]
fn halves_are_whole_warps() {
    let send = || moved(vec![at(Base::Input, 0)], vec![at(Base::Packets, 0)], 1, None);
    let wait = || moved(vec![at(Base::Packets, 0)], vec![at(Base::Output, 0)], 1, None);
    let has = |threads, steps| {
        let plan = with_packets(Kernel { threads, ..kernel(1, Element::U8, steps) }, 0, 1);
        plan.has_halves()
    };
    for (threads, halves) in [(32, false), (64, true), (96, false), (128, true), (1024, true)] {
        assert_eq!(has(threads, vec![send(), wait()]), halves, "{threads} threads");
    }
    assert!(!has(64, vec![send(), Step::Sync, wait()]));
    assert!(!has(64, vec![wait(), send()]));
    assert!(has(64, vec![wait(), send(), wait()]));
}

/// Threads that gave up before both halves, or in the half that waits, send nothing more.
#[test]
fn halves_send_nothing_after_they_gave_up() {
    // Each thread waits, and each warp of those that wait for lines.
    const BYTES: u64 = 2048;
    let to_peer = |chunk| operand(0, Base::Scratch, chunk);
    let from = |chunk| Operand { rank: fixed(0), ..operand(1, Base::Packets, chunk) };
    let read = || moved(vec![from(0)], vec![operand(1, Base::Output, 0)], 1, None);
    let copy = || moved(vec![operand(1, Base::Input, 0)], vec![to_peer(2)], 1, None);
    let send =
        || moved(vec![operand(1, Base::Input, 0)], vec![to_peer(0), operand(0, Base::Packets, 0)], 1, None);
    let send_here = || moved(vec![operand(1, Base::Input, 0)], vec![operand(1, Base::Packets, 3)], 1, None);
    // The move would pass on to the peer packets that have come.
    let forward = || moved(vec![from(1)], vec![to_peer(1)], 1, None);
    for packets in [with_packets, with_lines] {
        for steps in [
            vec![read(), send(), forward()],
            vec![send_here(), read(), copy()],
            vec![send_here(), read(), forward()],
            vec![send_here(), read(), Step::Sync, copy()],
        ] {
            let world = World::new(2, 4096, CHUNKS.into(), BYTES);
            let plan = packets(kernel(2, Element::U8, steps), 1, CHUNKS);
            assert!(plan.has_halves());
            // The first call's flag is 1.
            let come: Vec<u8> = match plan.packets {
                PacketForm::Ll16 => {
                    [7u32, 1].repeat(BYTES as usize / 4).into_iter().flat_map(u32::to_le_bytes).collect()
                }
                PacketForm::Ll128 => [[7u64; 15].as_slice(), &[1]]
                    .concat()
                    .repeat(8 * world.lines() as usize)
                    .into_iter()
                    .flat_map(u64::to_le_bytes)
                    .collect(),
            };
            let apart = match plan.packets {
                PacketForm::Ll16 => 2 * world.scratch_chunk,
                PacketForm::Ll128 => 1024 * u64::from(world.lines()),
            };
            world.machine.write(1, world.memory[1].packets + 128 + apart, &come);
            world.machine.write(1, world.memory[1].input, &noise(5, 4096));
            let of_peer = || {
                let memory = &world.memory[0];
                let scratch = world.machine.read(0, memory.scratch, 16_384);
                (scratch, world.machine.read(0, memory.packets, 32_768))
            };
            let before = of_peer();
            let function = world.load(1, &plan);
            let args = world.args(1, sizes(BYTES, BYTES), [0, 0], &plan);
            world.machine.launch(1, function, LaunchShape { grid: 1, block: plan.threads }, &args);
            world.machine.abort();
            world.machine.finish();
            assert!(of_peer() == before, "{:?}", plan.shapes[0].steps);
        }
    }
}
