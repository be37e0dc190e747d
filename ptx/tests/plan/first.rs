//! All-reduces by hand.

use aqueduct_ptx::plan::{Base, Element, Kernel, Reduction, Step};

use crate::rig::{CANARY, Sizes, World, kernel, moved, noise, operand, signal, wait, with_packets};

/// Writes inputs of small integers, and canaries where outputs go; returns what every rank must have in the end.
fn prepare(world: &World, seed: u64, bytes: usize, skew: [u64; 2]) -> Vec<u8> {
    let canary = noise(!seed, world.capacity + 2 * CANARY);
    let mut sum = vec![0f32; bytes / 4];
    for (rank, memory) in world.memory.iter().enumerate() {
        let values: Vec<f32> =
            noise(seed + rank as u64, bytes / 4).into_iter().map(|byte| f32::from(byte) * 0.37).collect();
        sum.iter_mut().zip(&values).for_each(|(sum, value)| *sum += value);
        let data: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        world.machine.write(rank, memory.input, &canary);
        world.machine.write(rank, memory.input + CANARY as u64 + skew[0], &data);
        world.machine.write(rank, memory.output, &canary);
    }
    let at = CANARY + skew[1] as usize;
    let mut expected = canary;
    let sum: Vec<u8> = sum.into_iter().flat_map(f32::to_le_bytes).collect();
    expected[at..at + bytes].copy_from_slice(&sum);
    expected
}

fn call(world: &World, kernels: &[Kernel], seed: u64, bytes: usize, chunks: u64, skew: [u64; 2]) {
    let expected = prepare(world, seed, bytes, skew);
    let chunk = (bytes as u64).div_ceil(chunks).next_multiple_of(4);
    let sizes = Sizes { chunk, input: bytes as u64, output: bytes as u64 };
    world.run(kernels, sizes, skew);
    for (rank, memory) in world.memory.iter().enumerate() {
        let found = world.machine.read(rank, memory.output, expected.len());
        let wrong = found.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(
            wrong.map(|at| at as isize - CANARY as isize),
            None,
            "rank {rank}, {bytes} bytes, {skew:?}"
        );
    }
}

/// One-shot: packets to all peers, then the reduction of all.
fn packets(me: u32, ranks: u32, chunks: u32) -> Kernel {
    let targets = (1..ranks).map(|i| operand((me + i) % ranks, Base::Packets, chunks * me)).collect();
    let send = moved(vec![operand(me, Base::Input, 0)], targets, chunks, None);
    let sources = (0..ranks).map(|rank| match rank {
        rank if rank == me => operand(me, Base::Input, 0),
        rank => aqueduct_ptx::plan::Operand {
            rank: crate::rig::fixed(rank),
            ..operand(me, Base::Packets, chunks * rank)
        },
    });
    let reduce = moved(sources.collect(), vec![operand(me, Base::Output, 0)], chunks, Some(Reduction::Sum));
    with_packets(kernel(ranks, Element::F32, vec![send, reduce]), me, chunks * ranks)
}

/// Each rank puts its input into the peers' scratch, tells them, and reduces.
fn plain(me: u32, ranks: u32, chunks: u32) -> Kernel {
    let peers: Vec<u32> = (1..ranks).map(|i| (me + i) % ranks).collect();
    let targets = peers.iter().map(|&peer| operand(peer, Base::Scratch, chunks * me)).collect();
    let sources = (0..ranks).map(|rank| match rank {
        rank if rank == me => operand(me, Base::Input, 0),
        rank => operand(me, Base::Scratch, chunks * rank),
    });
    let steps = vec![
        moved(vec![operand(me, Base::Input, 0)], targets, chunks, None),
        Step::Sync,
        Step::Signal(peers.iter().map(|&peer| signal(me, peer)).collect()),
        Step::Wait(peers.iter().map(|&peer| wait(peer)).collect()),
        Step::Sync,
        moved(sources.collect(), vec![operand(me, Base::Output, 0)], chunks, Some(Reduction::Sum)),
        Step::Sync,
        Step::Signal(peers.iter().map(|&peer| signal(me, peer)).collect()),
        Step::Wait(peers.iter().map(|&peer| wait(peer)).collect()),
        Step::Sync,
    ];
    kernel(ranks, Element::F32, steps)
}

#[test]
fn all_reduces() {
    for plan in [packets, plain] {
        for (ranks, chunks) in [(2u32, 1u32), (3, 1), (2, 3), (4, 2)] {
            let world = World::new(ranks as usize, 40_000, u64::from(ranks * chunks), 40_064);
            let kernels: Vec<_> = (0..ranks).map(|me| plan(me, ranks, chunks)).collect();
            for (seed, bytes) in [4, 8, 12, 16, 20, 60, 64, 1024, 1028, 4096, 30_000].into_iter().enumerate()
            {
                let skew = [0, 4 * (seed as u64 % 3)];
                call(&world, &kernels, seed as u64 + 1, bytes, u64::from(chunks), skew);
            }
        }
    }
}
