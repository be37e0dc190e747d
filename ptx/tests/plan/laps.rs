//! Calls near 2^32, and calls that are told to leave.

use aqueduct_ptx::abi::{ABORT_RECORD_COMPLETE, NO_PEER, Operation};
use aqueduct_ptx::collective::LaunchShape;
use aqueduct_ptx::plan::{Base, Block, Element, Kernel, Number, Operand, Reduction, Shape, Share, Step};

use crate::rig::{
    ADDRESSES, BARRIERS, CALLS, CANARY, EXPECTED, INBOUND, OUTBOUND, SEMAPHORES, Sizes, World, fixed, kernel,
    moved, noise, operand, signal, wait, with_packets,
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
    let alone = Kernel { blocks: vec![Block { shape: 0, row: vec![0] }], ..one_shot(0, 2, 1) };
    assert!(!alone.runs_with_any_grid());
}

/// The packets of the old lap are gone after the first call of the new one, in both halves.
#[test]
fn a_new_lap_begins_with_no_packets() {
    let world = World::new(2, 1024, 2, 1024);
    let kernels: Vec<_> = (0..2).map(|me| one_shot(me, 2, 2)).collect();
    for (rank, memory) in world.memory.iter().enumerate() {
        world.machine.write(rank, memory.packets + 128, &[0xee; 2 * 2 * 2 * 1024]);
        let calls = u64::from(u32::MAX).to_ne_bytes().repeat(2);
        world.machine.write(rank, memory.control + u64::from(CALLS), &calls);
    }
    world.run(&kernels, Sizes { chunk: 8, input: 8, output: 8 }, [0, 0]);
    told_twice(&world);
    for (rank, memory) in world.memory.iter().enumerate() {
        let found = world.machine.read(rank, memory.packets + 128, 8 * 1024);
        // Two packets came from the other rank.
        assert_eq!(
            found.chunks(16).filter(|packet| packet.iter().any(|&byte| byte != 0)).count(),
            2,
            "rank {rank}"
        );
    }
}

/// Runs rank 1 of two alone until it is told to leave; returns the operation and the rank of its record.
fn lonely(steps: Vec<Step>, blocks: u32) -> (u32, u32) {
    let world = World::new(2, 4096, 2, 1024);
    let plan = with_packets(kernel(2, Element::U8, steps), 1, 2);
    let plan = Kernel { blocks: vec![Block { shape: 0, row: Vec::new() }; blocks as usize], ..plan };
    // Its own signals have come.
    let own = world.memory[1].control + u64::from(INBOUND) + 16;
    world.machine.write(1, own, &9u64.to_ne_bytes());
    let before = world.machine.read(0, world.memory[0].control, 4096);
    let scratch = world.machine.read(0, world.memory[0].scratch, 4096);
    let function = world.load(1, &plan);
    let args = world.args(1, Sizes { chunk: 512, input: 512, output: 512 }, [0, 0], &plan);
    world.machine.launch(1, function, LaunchShape { grid: blocks, block: 64 }, &args);
    world.machine.abort();
    world.machine.finish();
    assert_eq!(world.machine.read(0, world.memory[0].control, 4096), before, "it signalled after it gave up");
    assert_eq!(world.machine.read(0, world.memory[0].scratch, 4096), scratch, "it stored after it gave up");
    let record = world.machine.record(1);
    assert_eq!((record.state, record.rank), (ABORT_RECORD_COMPLETE, 1));
    (record.operation, record.peer)
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
                relaxed: false,
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
                let relaxed_waits = waits.iter().map(|w| aqueduct_ptx::plan::Wait { relaxed: true, ..*w });
                // The same counters twice in one list: one after the other.
                let twice = [signals.clone(), signals.clone()].concat();
                let steps = vec![
                    Step::Signal(signals.clone()),
                    Step::Wait(waits.clone()),
                    Step::Signal(relaxed.collect()),
                    Step::Sync,
                    Step::Wait(relaxed_waits.collect()),
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
