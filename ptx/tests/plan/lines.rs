//! Moves with LL128 packets.

use crate::device::LaunchShape;
use aqueduct_ptx::abi::{ABORT_RECORD_COMPLETE, Operation};
use aqueduct_ptx::plan::{
    Base, Block, Element, Kernel, Move, Number, Operand, Port, PortPut, Reduction, Share, Step,
};

use crate::elements::REDUCTIONS;
use crate::rig::{CALLS, CANARY, INBOUND, World, fixed, kernel, moved, noise, operand, signal, with_lines};
use crate::solo::{Solo, at, sizes};

/// As many chunks of packets as every kernel of these tests has.
const CHUNKS: u32 = 4;

fn part(step: Step, of: u32) -> Step {
    let Step::Move(moved) = step else { unreachable!() };
    Step::Move(Move { share: Some(Share { member: Number::Row(0), of: fixed(of) }), ..moved })
}

fn blocks(plan: Kernel, count: u32) -> Kernel {
    Kernel { blocks: (0..count).map(|member| Block { shape: 0, row: vec![member] }).collect(), ..plan }
}

/// Input as lines, and the lines to the output: what blocks, warps and lanes do not have whole goes by elements.
#[test]
fn lines_hold_what_was_sent() {
    let mut solo = Solo::new(20_000, CHUNKS.into(), 7040);
    for (element, skew) in
        [(Element::U8, [0, 0]), (Element::U8, [3, 5]), (Element::F16, [2, 0]), (Element::I64, [8, 16])]
    {
        for count in [1, 3] {
            let steps = vec![
                moved(vec![at(Base::Input, 0)], vec![at(Base::Packets, 1)], count, None),
                Step::Sync,
                moved(vec![at(Base::Packets, 1)], vec![at(Base::Output, 0)], count, None),
            ];
            let plan = with_lines(kernel(1, element, steps), 0, CHUNKS);
            let size = element.bytes() as u64;
            // Less than a unit, some whole ones, and more than a turn of both warps.
            for chunk in [16, 944, 976, 1920, 16 * 411] {
                let bytes = chunk * u64::from(count);
                for less in [0, size, chunk / 2 / size * size] {
                    if less < bytes {
                        solo.run(&plan, sizes(chunk, bytes - less), skew);
                    }
                }
            }
        }
    }
}

/// Blocks share ranges of lines and of plain memory alike, in loops and without: what one of them wrote, it reads.
#[test]
fn blocks_divide_units_nowhere() {
    let mut solo = Solo::new(60_000, CHUNKS.into(), 10_240);
    for (count, of) in [(1, 1), (1, 2), (1, 5), (3, 2), (3, 4)] {
        let body = vec![
            part(moved(vec![at(Base::Input, 0)], vec![at(Base::Scratch, 0)], count, None), of),
            Step::Sync,
            part(moved(vec![at(Base::Scratch, 0)], vec![at(Base::Packets, 1)], count, None), of),
            Step::Sync,
            part(moved(vec![at(Base::Packets, 1)], vec![at(Base::Output, 0)], count, None), of),
        ];
        for steps in [body.clone(), vec![Step::Loop { unit: 1600, chunks: fixed(count), body }]] {
            let plan = Kernel { double_scratch: true, ..kernel(1, Element::F16, steps) };
            let plan = blocks(with_lines(plan, 0, CHUNKS), of);
            for chunk in [480, 976, 5000, 10_240] {
                solo.run(&plan, sizes(chunk, u64::from(count) * chunk - 2), [0, 0]);
            }
        }
    }
}

/// Sources of every kind are reduced, and go to every kind of target.
#[test]
fn lines_are_reduced_and_forwarded() {
    // How many units there are has nothing to do with the reduction: sums have many, the others up to two.
    let [mut many, mut few] = [10_240, 1024].map(|chunk| Solo::new(4 * chunk as usize, CHUNKS.into(), chunk));
    for (element, reduction) in Element::ALL.into_iter().flat_map(|it| REDUCTIONS.map(|how| (it, how))) {
        let steps = vec![
            moved(vec![at(Base::Input, 0)], vec![at(Base::Packets, 0), at(Base::Packets, 1)], 1, None),
            moved(vec![at(Base::Input, 1)], vec![at(Base::Scratch, 0)], 1, None),
            Step::Sync,
            moved(
                vec![at(Base::Packets, 0), at(Base::Scratch, 0), at(Base::Packets, 1), at(Base::Input, 0)],
                vec![at(Base::Packets, 2), at(Base::Scratch, 1), at(Base::Output, 1)],
                1,
                Some(reduction),
            ),
            // Nothing plain takes part.
            moved(vec![at(Base::Packets, 2)], vec![at(Base::Packets, 3)], 1, None),
            moved(vec![at(Base::Packets, 3)], vec![at(Base::Output, 0)], 1, None),
        ];
        let plan = Kernel { ranks: 4, ..with_lines(kernel(1, element, steps), 0, CHUNKS) };
        let (solo, chunks): (_, &[u64]) = match reduction {
            Reduction::Sum => (&mut many, &[16, 960, 4000, 10_240]),
            _ => (&mut few, &[8, 968]),
        };
        for &chunk in chunks {
            solo.run(&plan, sizes(chunk, 2 * chunk), [0, 0]);
        }
    }
}

/// A block of many warps, of which some have nothing to do.
#[test]
fn warps_without_units_wait_for_none() {
    let mut solo = Solo::new(40_000, CHUNKS.into(), 16_384);
    let steps = || {
        vec![
            moved(vec![at(Base::Input, 0)], vec![at(Base::Packets, 0)], 1, None),
            moved(vec![at(Base::Packets, 0)], vec![at(Base::Output, 0)], 1, None),
        ]
    };
    for threads in [32, 96, 1024] {
        let plan = with_lines(Kernel { threads, ..kernel(1, Element::F32, steps()) }, 0, CHUNKS);
        for chunk in [4, 960, 16_384] {
            solo.run(&plan, sizes(chunk, chunk), [0, 0]);
        }
    }
}

/// The lines of the old lap are gone after the first call of the new one, in both halves.
#[test]
fn a_new_lap_begins_with_no_lines() {
    for double_scratch in [false, true] {
        let solo = Solo::new(4000, CHUNKS.into(), 1024);
        let steps = vec![
            moved(vec![at(Base::Input, 0)], vec![at(Base::Packets, 3)], 1, None),
            moved(vec![at(Base::Packets, 3)], vec![at(Base::Output, 0)], 1, None),
        ];
        let plan = with_lines(Kernel { double_scratch, ..kernel(1, Element::F32, steps) }, 0, CHUNKS);
        let (world, memory) = (&solo.world, &solo.world.memory[0]);
        let halves = 1 + u64::from(double_scratch);
        let bytes = (halves * u64::from(CHUNKS * world.lines()) * 1024) as usize;
        world.machine.write(0, memory.packets + 128, &vec![0xee; bytes]);
        world.machine.write(0, memory.control + u64::from(CALLS), &u64::from(u32::MAX).to_ne_bytes());
        let data = noise(3, 16);
        world.machine.write(0, memory.input + CANARY as u64, &data);
        let function = world.load(0, &plan);
        let args = world.args(0, sizes(16, 16), [0, 0], &plan);
        world.machine.launch(0, function, LaunchShape { grid: 1, block: plan.threads }, &args);
        world.machine.finish();
        let found = world.machine.read(0, memory.packets + 128, bytes);
        assert_eq!(world.machine.read(0, memory.output + CANARY as u64, 16), data);
        let lines = found.chunks(128).filter(|line| line.iter().any(|&byte| byte != 0));
        assert_eq!(lines.count(), 8, "the lines of one unit");
    }
}

/// Rank 1 of three reads lines of both others, of which one is not there: it says whose, and leaves without a signal.
#[test]
fn a_record_names_the_sender_of_a_missing_line() {
    for missing in [0u32, 2] {
        for line in 0..8 {
            let world = World::new(3, 2000, 3, 1024);
            let from = |rank: u32| Operand { rank: fixed(rank), ..operand(1, Base::Packets, rank) };
            let output = vec![operand(1, Base::Output, 0)];
            let read = moved(vec![from(0), from(2)], output, 1, Some(Reduction::Sum));
            let steps = vec![
                read,
                Step::Signal(vec![signal(1, 0)]),
                // Lanes whose lines have come must not send either.
                moved(vec![operand(1, Base::Input, 0)], vec![operand(0, Base::Packets, 0)], 1, None),
            ];
            let plan = with_lines(kernel(3, Element::U32, steps), 1, 3);
            let unit = |flag: &dyn Fn(usize) -> u64| -> Vec<u8> {
                (0..8)
                    .flat_map(|line| [[7; 120].to_vec(), flag(line).to_le_bytes().to_vec()].concat())
                    .collect()
            };
            for rank in [0, 2] {
                // The first call's flag is 1.
                let flag = |at: usize| if rank == missing && at == line { 9 } else { 1 };
                let place = world.memory[1].packets + 128 + 1024 * u64::from(rank * world.lines());
                world.machine.write(1, place, &unit(&flag));
            }
            let before = world.machine.read(0, world.memory[0].packets, 2048);
            let told = world.memory[0].control + u64::from(INBOUND);
            let function = world.load(1, &plan);
            let args = world.args(1, sizes(960, 960), [0, 0], &plan);
            world.machine.launch(1, function, LaunchShape { grid: 1, block: 64 }, &args);
            world.machine.abort();
            world.machine.finish();
            let record = world.machine.record(1);
            assert_eq!(record.state, ABORT_RECORD_COMPLETE, "line {line}");
            let found = (record.operation, record.peer, record.epoch, record.seen);
            assert_eq!(found, (Operation::PLAN.0, missing, 1, 9), "line {line}");
            assert_eq!(world.machine.read(0, world.memory[0].packets, 2048), before, "sent after giving up");
            assert_eq!(world.machine.read(0, told + 16, 8), 0u64.to_ne_bytes(), "told after giving up");
        }
    }
}

/// A proxy copies bytes in any order, so lines may not go through one.
#[test]
fn proxies_put_no_lines() {
    let side = operand(0, Base::Packets, 0);
    let put = PortPut { source: side, target: side, count: fixed(1), awaits: None, by_rows: false };
    let step = Step::Port(Port { channel: fixed(0), put: Some(put), signal: true, flush: false });
    let plan = |step| with_lines(kernel(1, Element::U8, vec![step]), 0, CHUNKS);
    let target = aqueduct_ptx::Target::new(90);
    let error = aqueduct_ptx::plan::render(&plan(step), target).unwrap_err().to_string();
    assert!(error.contains("LL16 packets only"), "{error}");
}

/// The sender is busy for much longer than a reader polls before it looks at the abort word for the first time.
#[test]
fn lines_that_come_late_are_awaited() {
    const BYTES: usize = 16_000;
    let world = World::new(2, BYTES, CHUNKS.into(), 16_384);
    let copy = moved(vec![operand(1, Base::Input, 0)], vec![operand(1, Base::Output, 0)], 1, None);
    let send = moved(vec![operand(1, Base::Input, 0)], vec![operand(0, Base::Packets, 2)], 1, None);
    let read = moved(vec![operand(0, Base::Packets, 2)], vec![operand(0, Base::Output, 0)], 1, None);
    let steps = [vec![read], vec![Step::Loop { unit: 16, chunks: fixed(1), body: vec![copy] }, send]];
    let kernels: Vec<Kernel> =
        (0..).zip(steps).map(|(me, steps)| with_lines(kernel(2, Element::U8, steps), me, CHUNKS)).collect();
    let data = noise(7, BYTES);
    world.machine.write(1, world.memory[1].input + CANARY as u64, &data);
    world.run(&kernels, sizes(BYTES as u64, BYTES as u64), [0, 0]);
    assert_eq!(world.machine.read(0, world.memory[0].output + CANARY as u64, BYTES), data);
}
