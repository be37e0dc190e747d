//! Calls near 2^32, and counters and flags of many calls.

use crate::device::LaunchShape;
use aqueduct_ptx::plan::{Base, Block, Element, Kernel, Number, Operand, Reduction, Shape, Share, Step};

use crate::rig::{
    ADDRESSES, BARRIERS, CALLS, CANARY, EXPECTED, INBOUND, OUTBOUND, Sizes, World, fixed, kernel, moved,
    noise, operand, signal, wait, with_packets,
};

/// One-shot all-reduce with double scratch, by up to so many blocks.
fn one_shot(me: u32, ranks: u32, blocks: u32) -> Kernel {
    let targets = (1..ranks).map(|i| operand((me + i) % ranks, Base::Packets, me)).collect();
    let sources = (0..ranks).map(|rank| match rank {
        rank if rank == me => operand(me, Base::Input, 0),
        rank => Operand { rank: fixed(rank), ..operand(me, Base::Packets, rank) },
    });
    let mut steps = vec![
        moved(vec![operand(me, Base::Input, 0)], targets, 1, None),
        moved(sources.collect(), vec![operand(me, Base::Output, 0)], 1, Some(Reduction::Sum)),
    ];
    for step in &mut steps {
        let Step::Move(moved) = step else { continue };
        moved.share = Some(Share { member: Number::Row(0), of: fixed(blocks) });
    }
    let kernel = Kernel { double_scratch: true, ..kernel(ranks, Element::U32, steps) };
    let blocks = (0..blocks).map(|member| Block { shape: 0, row: vec![member] }).collect();
    with_packets(Kernel { blocks, ..kernel }, me, ranks)
}

fn after(call: u64) -> u64 {
    if call as u32 == u32::MAX { call + 3 } else { call + 1 }
}

/// Each rank has told each other one of the new lap twice, however many blocks it has.
fn told_twice(world: &World) {
    for (rank, memory) in world.memory.iter().enumerate() {
        for peer in (0..world.memory.len()).filter(|&peer| peer != rank) {
            for area in [INBOUND, EXPECTED, OUTBOUND] {
                let at = memory.control + u64::from(area) + 256 + 16 * peer as u64;
                let value = world.machine.read(rank, at, 8);
                assert_eq!(value, 2u64.to_ne_bytes(), "rank {rank}, peer {peer}, at {area}");
            }
        }
    }
}

/// Both halves are full of packets as the lap before could have left them; calls follow each other without the host, each rank's
/// with another grid.
#[test]
fn one_shots_pass_the_end_of_a_lap() {
    const BLOCKS: u32 = 5;
    for ranks in [2u32, 3] {
        let world = World::new(ranks as usize, 1024, u64::from(ranks), 1024);
        let kernels: Vec<_> = (0..ranks).map(|me| one_shot(me, ranks, BLOCKS)).collect();
        assert!(kernels.iter().all(Kernel::runs_with_any_grid));
        let first = (7 << 32) + u64::from(u32::MAX) - 3;
        for (rank, memory) in world.memory.iter().enumerate() {
            let words = 2 * 2 * u64::from(ranks) * 1024 / 8;
            let stale: Vec<u8> =
                (0..words).flat_map(|i| ((2 + i / 2 % 6) << 32 | 0xdead_0000 | i).to_le_bytes()).collect();
            world.machine.write(rank, memory.packets + 128, &stale);
            let calls = first.to_ne_bytes().repeat(BLOCKS as usize);
            world.machine.write(rank, memory.control + u64::from(CALLS), &calls);
        }
        let bytes = 400;
        let sizes = Sizes { chunk: bytes, input: bytes, output: bytes };
        // The driver may wait for running kernels before it loads another one.
        let functions: Vec<_> =
            kernels.iter().enumerate().map(|(rank, kernel)| world.load(rank, kernel)).collect();
        let mut call = first;
        for round in 0..3 {
            let mut sum = vec![0u32; bytes as usize / 4];
            for (rank, memory) in world.memory.iter().enumerate() {
                let data = noise(round * 8 + rank as u64, bytes as usize);
                for (sum, value) in sum.iter_mut().zip(data.chunks(4)) {
                    *sum = sum.wrapping_add(u32::from_ne_bytes(value.try_into().expect("four bytes")));
                }
                world.machine.write(rank, memory.input + CANARY as u64, &data);
            }
            for (rank, kernel) in kernels.iter().enumerate() {
                for nth in 0..4 {
                    let grid = 1 + (3 * nth + rank as u32 + round as u32) % BLOCKS;
                    let args = world.args_for(rank, sizes, [0, 0], kernel, grid);
                    world.machine.launch(rank, functions[rank], LaunchShape { grid, block: 64 }, &args);
                }
            }
            (0..4).for_each(|_| call = after(call));
            world.machine.finish();
            let sum: Vec<u8> = sum.into_iter().flat_map(u32::to_ne_bytes).collect();
            for (rank, memory) in world.memory.iter().enumerate() {
                let found = world.machine.read(rank, memory.output + CANARY as u64, sum.len());
                assert!(found == sum, "rank {rank} of {ranks}, round {round}");
                let all = BLOCKS as usize;
                let counters = world.machine.read(rank, memory.control + u64::from(CALLS), 8 * all);
                assert_eq!(counters, call.to_ne_bytes().repeat(all), "round {round}");
            }
        }
        assert_eq!(call >> 32, 8, "a lap has ended");
        told_twice(&world);
    }
}

/// A broadcast whose first block alone waits for the others' beginning: any grid will do, and every rank may have another.
#[test]
fn a_grid_of_any_size_moves_everything_once() {
    const BLOCKS: u32 = 7;
    let (ranks, bytes) = (3u32, 4000);
    let world = World::new(ranks as usize, 4096, 1, 4096);
    let kernels: Vec<_> = (0..ranks)
        .map(|me| {
            let from = Operand { rank: fixed(0), ..operand(me, Base::Packets, 0) };
            let targets = (1..ranks).map(|peer| operand(peer, Base::Packets, 0)).collect();
            let (mut moves, tells) = match me {
                0 => {
                    let send = moved(vec![operand(0, Base::Input, 0)], targets, 1, None);
                    (vec![send], Step::Wait((1..ranks).map(wait).collect()))
                }
                _ => {
                    let unpack = moved(vec![from], vec![operand(me, Base::Output, 0)], 1, None);
                    (vec![unpack], Step::Signal(vec![signal(me, 0)]))
                }
            };
            for step in &mut moves {
                let Step::Move(moved) = step else { continue };
                moved.share = Some(Share { member: Number::Row(0), of: fixed(BLOCKS) });
            }
            let first = Shape { steps: [vec![tells], moves.clone()].concat() };
            let shapes = vec![first, Shape { steps: moves }];
            let blocks = (0..BLOCKS).map(|nth| Block { shape: nth.min(1), row: vec![nth] }).collect();
            let kernel = kernel(ranks, Element::U8, Vec::new());
            with_packets(Kernel { shapes, blocks, double_scratch: true, ..kernel }, me, 1)
        })
        .collect();
    assert!(kernels.iter().all(Kernel::runs_with_any_grid));
    let functions: Vec<_> =
        kernels.iter().enumerate().map(|(rank, kernel)| world.load(rank, kernel)).collect();
    let sizes = Sizes { chunk: bytes, input: bytes, output: bytes };
    for call in 0..2 * BLOCKS {
        let data = noise(call.into(), bytes as usize);
        world.machine.write(0, world.memory[0].input + CANARY as u64, &data);
        for (rank, kernel) in kernels.iter().enumerate() {
            let grid = 1 + (call + 2 * rank as u32) % BLOCKS;
            let args = world.args_for(rank, sizes, [0, 0], kernel, grid);
            world.machine.launch(rank, functions[rank], LaunchShape { grid, block: 64 }, &args);
        }
        world.machine.finish();
        for (rank, memory) in world.memory.iter().enumerate().skip(1) {
            let found = world.machine.read(rank, memory.output + CANARY as u64, data.len());
            assert!(found == data, "rank {rank}, call {call}");
            let counters = world.machine.read(rank, memory.control + u64::from(CALLS), 8 * BLOCKS as usize);
            assert_eq!(counters, u64::from(call + 1).to_ne_bytes().repeat(BLOCKS as usize), "rank {rank}");
        }
    }
}

/// Blocks whose ranges or shares differ, or that meet others, need all of their grid.
#[test]
fn a_grid_that_cannot_shrink_says_so() {
    let any = || one_shot(0, 2, 3);
    assert!(any().runs_with_any_grid());
    let change = |change: &dyn Fn(&mut Kernel)| {
        let mut kernel = any();
        change(&mut kernel);
        kernel.runs_with_any_grid()
    };
    let first = |kernel: &mut Kernel, change: &dyn Fn(&mut aqueduct_ptx::plan::Move)| {
        let Step::Move(moved) = &mut kernel.shapes[0].steps[0] else { unreachable!() };
        change(moved);
    };
    assert!(change(&|kernel| kernel.shapes[0].steps.insert(1, Step::Sync)));
    assert!(!change(&|kernel| first(kernel, &|moved| moved.share = None)));
    assert!(!change(&|kernel| first(kernel, &|moved| moved.count = fixed(2))));
    assert!(!change(&|kernel| first(kernel, &|moved| moved.sources[0].first = Number::Row(0))));
    assert!(!change(&|kernel| kernel.blocks[1].row[0] = 2));
    assert!(!change(&|kernel| kernel.blocks.truncate(2)));
    assert!(!change(&|kernel| kernel.shapes[0].steps.push(Step::Signal(vec![signal(0, 1)]))));
    assert!(!change(&|kernel| {
        kernel.shapes[0].steps.push(Step::Barrier { state: fixed(BARRIERS), blocks: fixed(3) });
    }));
    // The first block signals, and moves another range than the others.
    let other = |kernel: &mut Kernel, moves_other: bool| {
        let mut shape = kernel.shapes[0].clone();
        shape.steps.push(Step::Signal(vec![signal(0, 1)]));
        if moves_other {
            let Step::Move(moved) = &mut shape.steps[0] else { unreachable!() };
            moved.sources[0].first = fixed(1);
        }
        kernel.shapes.push(shape);
        kernel.blocks[0].shape = 1;
    };
    assert!(change(&|kernel| other(kernel, false)));
    assert!(!change(&|kernel| other(kernel, true)));
    let alone = Kernel { blocks: vec![Block { shape: 0, row: vec![0] }], ..one_shot(0, 2, 1) };
    assert!(!alone.runs_with_any_grid());
}

/// The packets of the old lap are gone after the first call of the new one, in both halves.
#[test]
fn a_new_lap_begins_with_no_packets() {
    let world = World::new(2, 1024, 2, 1024);
    let kernels: Vec<_> = (0..2).map(|me| one_shot(me, 2, 2)).collect();
    let mut sum = [0u8; 8];
    for (rank, memory) in world.memory.iter().enumerate() {
        let input = [1 + rank as u8, 0, 0, 0, 7, 0, 0, rank as u8];
        sum.iter_mut().zip(input).for_each(|(sum, byte)| *sum += byte);
        world.machine.write(rank, memory.input + CANARY as u64, &input);
        world.machine.write(rank, memory.packets + 128, &[0xee; 2 * 2 * 2 * 1024]);
        let calls = u64::from(u32::MAX).to_ne_bytes().repeat(2);
        world.machine.write(rank, memory.control + u64::from(CALLS), &calls);
    }
    world.run(&kernels, Sizes { chunk: 8, input: 8, output: 8 }, [0, 0]);
    told_twice(&world);
    for (rank, memory) in world.memory.iter().enumerate() {
        // The call that begins the lap moves its data as others do.
        assert_eq!(world.machine.read(rank, memory.output + CANARY as u64, 8), sum, "rank {rank}");
        let found = world.machine.read(rank, memory.packets + 128, 8 * 1024);
        // Two packets came from the other rank.
        assert_eq!(
            found.chunks(16).filter(|packet| packet.iter().any(|&byte| byte != 0)).count(),
            2,
            "rank {rank}"
        );
    }
}

/// Each block tells by counters of its own, whose places stand in its row.
#[test]
fn lists_whose_numbers_are_rows() {
    let ranks = 4u32;
    let world = World::new(ranks as usize, 64, 1, 128);
    let kernels: Vec<_> = (0..ranks)
        .map(|me| {
            let others: Vec<u32> = (0..ranks).filter(|&rank| rank != me).collect();
            let row = Number::Row;
            let signals = (0..3).map(|i| aqueduct_ptx::plan::Signal {
                outbound: row(i),
                peer: row(3 + i),
                inbound: row(6),
                relaxed: false,
            });
            let waits = (0..3).map(|i| aqueduct_ptx::plan::Wait {
                inbound: row(7 + i),
                expected: row(12 - i),
                rank: row(13 + i),
            });
            let steps = vec![Step::Signal(signals.collect()), Step::Wait(waits.collect())];
            let numbers = |block: u32| {
                let place = |area: u32| others.iter().map(move |peer| area + 16 * peer + 256 * block);
                let mut row: Vec<u32> = place(1536).collect();
                row.extend(others.iter().map(|peer| peer * ADDRESSES));
                row.push(512 + 16 * me + 256 * block);
                row.extend(place(512));
                // In the opposite order.
                row.extend(place(1024).rev());
                row.extend(&others);
                row
            };
            let blocks = (0..2).map(|block| Block { shape: 0, row: numbers(block) }).collect();
            Kernel { blocks, ..kernel(ranks, Element::U8, steps) }
        })
        .collect();
    for call in 1..3u64 {
        world.run(&kernels, Sizes { chunk: 1, input: 1, output: 1 }, [0, 0]);
        for (rank, memory) in world.memory.iter().enumerate() {
            let control = world.machine.read(rank, memory.control, 4096);
            for at in [512, 1024, 1536].into_iter().flat_map(|area| [area, area + 256]) {
                for peer in (0..ranks as usize).filter(|&peer| peer != rank) {
                    let at = at + 16 * peer;
                    let value = u64::from_ne_bytes(control[at..at + 8].try_into().expect("eight bytes"));
                    assert_eq!(value, call, "rank {rank}, peer {peer}, at {at}");
                }
            }
        }
    }
}

/// Counters of several channels at once, relaxed or not, several times in a call.
#[test]
fn lists_of_signals_and_waits() {
    for ranks in [2u32, 4] {
        let world = World::new(ranks as usize, 4096, 1, 128);
        let kernels: Vec<_> = (0..ranks)
            .map(|me| {
                let others = || (0..ranks).filter(move |&rank| rank != me);
                let signals: Vec<_> = others().map(|peer| signal(me, peer)).collect();
                let waits: Vec<_> = others().map(wait).collect();
                let relaxed = signals.iter().map(|s| aqueduct_ptx::plan::Signal { relaxed: true, ..*s });
                // The same counters twice in one list: one after the other.
                let twice = [signals.clone(), signals.clone()].concat();
                let steps = vec![
                    Step::Signal(signals.clone()),
                    Step::Wait(waits.clone()),
                    Step::Signal(relaxed.collect()),
                    Step::Sync,
                    Step::Wait(waits.clone()),
                    Step::Signal(twice),
                    Step::Wait([waits.clone(), waits.clone()].concat()),
                ];
                kernel(ranks, Element::U8, steps)
            })
            .collect();
        for call in 1..4u64 {
            world.run(&kernels, Sizes { chunk: 1, input: 1, output: 1 }, [0, 0]);
            for (rank, memory) in world.memory.iter().enumerate() {
                let control = world.machine.read(rank, memory.control, 4096);
                for peer in (0..ranks as usize).filter(|&peer| peer != rank) {
                    for area in [512, 1024, 1536] {
                        let at = area + 16 * peer;
                        let value = u64::from_ne_bytes(control[at..at + 8].try_into().expect("eight bytes"));
                        assert_eq!(value, 4 * call, "rank {rank}, peer {peer}, at {area}");
                    }
                }
            }
        }
    }
}
