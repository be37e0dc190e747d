//! The all-reduce kernels against their oracle: every type and operation, odd sizes and alignments, changing grids, both laps.

mod device;

use aqueduct_ptx::abi::{
    ABORT_RECORD_COMPLETE, NO_PEER, Operation, PACKET_FORMAT_HB, PACKET_FORMAT_LL16, ScratchRegion,
    next_epoch,
};
use aqueduct_ptx::collective::{
    ElementType, HbLayout, LaunchShape, ReduceOp, ll16_packets, one_shot_half_bytes, one_shot_shape,
    ranks_variant,
};
use aqueduct_ptx::oracle::all_reduce::all_reduce;
use device::{Args, Machine};

/// Bytes around each output that must not change.
const CANARY: usize = 64;

/// A world of ranks that share one region.
struct World {
    machine: Machine,
    regions: Vec<ScratchRegion>,
    /// Input and output buffer of each rank, `capacity` bytes and canaries.
    buffers: Vec<[u64; 2]>,
    capacity: usize,
    hb: Option<HbLayout>,
    calls: u64,
}

impl World {
    fn new(ranks: usize, capacity: usize, hb: Option<HbLayout>) -> Self {
        Self::of(Machine::new(ranks), ranks, capacity, hb)
    }

    fn of(machine: Machine, ranks: usize, capacity: usize, hb: Option<HbLayout>) -> Self {
        let half_bytes = one_shot_half_bytes(ranks, capacity as u64);
        let bytes = hb.map_or(2 * half_bytes, |layout| layout.bytes());
        let max_blocks = hb.map_or(24, |layout| layout.max_blocks);
        let bases: Vec<u64> = (0..ranks).map(|rank| machine.alloc(rank, bytes as usize)).collect();
        let regions = (0..ranks).map(|rank| {
            let mut region = ScratchRegion {
                base: bases[rank],
                epochs: machine.alloc(rank, 8 * max_blocks as usize),
                half_bytes: if hb.is_some() { 0 } else { half_bytes },
                max_blocks,
                ranks: ranks as u32,
                rank: rank as u32,
                format: if hb.is_some() { PACKET_FORMAT_HB } else { PACKET_FORMAT_LL16 },
                abort: machine.abort_handle(rank, NO_PEER),
                ..Default::default()
            };
            region.peers[..ranks].copy_from_slice(&bases);
            region
        });
        let regions = regions.collect();
        let buffers =
            (0..ranks).map(|rank| [(); 2].map(|()| machine.alloc(rank, capacity + 2 * CANARY))).collect();
        Self { machine, regions, buffers, capacity, hb, calls: 0 }
    }

    /// One call on every rank, checked to the byte. `skew`: elements by which input and output are misaligned.
    fn call(
        &mut self,
        ty: ElementType,
        op: ReduceOp,
        count: usize,
        shape: LaunchShape,
        skew: [usize; 2],
        in_place: bool,
    ) {
        self.calls += 1;
        let bytes = count * ty.bytes();
        let [input_at, output_at] =
            if in_place { [skew[0]; 2] } else { skew }.map(|s| CANARY + s * ty.bytes());
        assert!(bytes + output_at.max(input_at) <= self.capacity + CANARY);
        let inputs: Vec<Vec<u8>> =
            (0..self.regions.len()).map(|rank| noise(self.calls * 100 + rank as u64, bytes)).collect();
        let canary = noise(!self.calls, self.capacity + 2 * CANARY);
        let variant = ranks_variant(self.regions.len());
        let kernel = if self.hb.is_some() { "all_reduce_hb" } else { "all_reduce_ll16" };
        let params = [("TYPE", ty.name()), ("OP", op.name()), ("RANKS", variant)];
        // Everything that may synchronise comes before the first launch: kernels wait for each other.
        let launches: Vec<_> = (self.regions.iter().enumerate())
            .map(|(rank, region)| {
                let [input, output] = self.buffers[rank];
                let input = if in_place { output } else { input };
                self.machine.write(rank, output, &canary);
                self.machine.write(rank, input + input_at as u64, &inputs[rank]);
                let args = Args::default().structure(region).u64(input + input_at as u64);
                let args = args.u64(output + output_at as u64).u64(count as u64);
                let args = match self.hb {
                    Some(layout) => {
                        args.u32(layout.slot_bytes).u32(layout.slice_bytes(bytes as u64, shape.grid))
                    }
                    None => args,
                };
                (self.machine.function(rank, kernel, &params, 0), args)
            })
            .collect();
        for (rank, (function, args)) in launches.iter().enumerate() {
            self.machine.launch(rank, *function, shape, args);
        }
        self.machine.finish();
        let views: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let mut expected = canary;
        expected[output_at..output_at + bytes].copy_from_slice(&all_reduce(ty, op, &views));
        for (rank, [_, output]) in self.buffers.iter().enumerate() {
            let found = self.machine.read(rank, *output, expected.len());
            let wrong = found.iter().zip(&expected).position(|(a, b)| a != b);
            assert_eq!(
                wrong.map(|at| at as isize - output_at as isize),
                None,
                "first wrong byte, rank {rank} of {kernel} {params:?}, call {}, {count} elements, {shape:?}, skew {skew:?}",
                self.calls
            );
        }
    }

    /// Every entry of every rank, which must agree.
    fn entries(&self) -> Vec<u8> {
        let bytes = self.regions[0].max_blocks as usize * if self.hb.is_some() { 8 } else { 4 };
        let all: Vec<_> = self
            .regions
            .iter()
            .enumerate()
            .map(|(rank, r)| self.machine.read(rank, r.epochs, bytes))
            .collect();
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "ranks count differently");
        all.into_iter().next().expect("a rank")
    }

    fn set_epochs(&self, epoch: u32) {
        for (rank, region) in self.regions.iter().enumerate() {
            let entries = epoch.to_ne_bytes().repeat(region.max_blocks as usize);
            self.machine.write(rank, region.epochs, &entries);
        }
    }
}

/// Bytes that look random, from a seed; with NaNs, infinities, zeros of both signs and subnormals among them in every type.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let special = [0x7fc0_7e01u32, 0x7f80_7c00, 0xff80_fc00, 0x8000_8000, 0, 0x0001_0001, 0x7f7f_7bff];
    let words = (0..bytes.div_ceil(4)).map(|_| match next() % 8 {
        0 => special[next() as usize % special.len()],
        // Small numbers, so that sums are not all infinite or dominated by one operand.
        1..4 => 0x3f80_3c00 + (next() as u32 & 0x003f_03ff),
        _ => (next() >> 16) as u32,
    });
    let mut data: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    data.truncate(bytes);
    data
}

/// Shapes to go through call by call: grids up to `max_blocks` and odd ones.
fn shape(turn: usize, max_blocks: u32) -> LaunchShape {
    let grids = [1, 3, max_blocks, 2, 7];
    LaunchShape { grid: grids[turn % 5].min(max_blocks), block: [32, 64, 128][turn % 3] }
}

#[test]
fn one_shot_every_type_and_operation() {
    for ranks in [1, 2, 3, 4, 8] {
        let mut world = World::new(ranks, 4096, None);
        for (turn, ty) in ElementType::ALL.into_iter().enumerate() {
            for (step, op) in ReduceOp::ALL.into_iter().enumerate() {
                let turn = 3 * turn + step;
                world.call(ty, op, 129 + turn, shape(turn, 24), [0, 0], turn.is_multiple_of(2));
            }
        }
    }
}

/// Kernels for devices before sm_80 convert 16-bit types by other instructions, and bf16 by hand.
#[test]
fn every_type_and_operation_with_the_instructions_of_sm_70() {
    for hb in [None, Some(HbLayout { ranks: 2, max_blocks: 8, slot_bytes: 256 })] {
        let mut world = World::of(Machine::new(2).with_kernels_for(70), 2, 4096, hb);
        for (turn, ty) in ElementType::ALL.into_iter().enumerate() {
            for op in ReduceOp::ALL {
                world.call(ty, op, 700 + turn, shape(turn, 8), [0, 0], false);
            }
        }
    }
}

#[test]
fn one_shot_sizes_alignments_and_grids() {
    let mut world = World::new(4, 8192, None);
    let counts = [0, 1, 2, 3, 4, 5, 31, 32, 33, 255, 256, 257, 1000, 1, 0, 0, 1024, 7];
    for (turn, count) in counts.into_iter().cycle().take(2 * counts.len()).enumerate() {
        let ty = if turn < counts.len() { ElementType::Bf16 } else { ElementType::F32 };
        let skew = [turn % 3, turn / 3 % 4];
        world.call(ty, ReduceOp::Sum, count, shape(turn, 24), skew, turn.is_multiple_of(3));
    }
    let shape = one_shot_shape(4096, 24);
    world.call(ElementType::I32, ReduceOp::Max, 1024, shape, [0, 0], true);
}

#[test]
fn one_shot_survives_the_wrap_with_packets_of_the_last_lap_around() {
    // The second list is small up to the wrap, so that what follows finds old packets unless they were scrubbed.
    let lists = [[8, 1, 0, 3, 256, 2, 250, 0, 256, 100], [1, 1, 0, 256, 256, 255, 254, 1, 0, 2]];
    for (ranks, counts) in [2, 3].into_iter().flat_map(|ranks| lists.map(|counts| (ranks, counts))) {
        let mut world = World::new(ranks, 1024, None);
        // Both halves full of packets as the previous lap could have left them: flags 2, 3, 4 ...
        for (rank, region) in world.regions.iter().enumerate() {
            let words = 2 * region.half_bytes / 8;
            let stale: Vec<u8> =
                (0..words).flat_map(|i| ((2 + i / 2 % 6) << 32 | 0xdead_0000 | i).to_le_bytes()).collect();
            world.machine.write(rank, region.base, &stale);
        }
        let mut epoch = u32::MAX - 3;
        world.set_epochs(epoch);
        for (turn, count) in counts.into_iter().enumerate() {
            world.call(ElementType::I32, ReduceOp::Sum, count, shape(turn, 24), [0, 0], false);
            epoch = next_epoch(epoch);
            assert_eq!(world.entries(), epoch.to_ne_bytes().repeat(24), "entries after call {turn}");
        }
    }
}

#[test]
fn one_shot_launches_pass_the_wrap_without_the_host() {
    for ranks in [2, 3] {
        let world = World::new(ranks, 1024, None);
        world.set_epochs(u32::MAX - 3);
        let (count, shape) = (200, LaunchShape { grid: 2, block: 64 });
        let params = [("TYPE", "i32"), ("OP", "sum"), ("RANKS", ranks_variant(ranks))];
        let launches: Vec<_> = (world.regions.iter().zip(&world.buffers).enumerate())
            .map(|(rank, (region, &[input, output]))| {
                world.machine.write(rank, input, &(rank as u32 + 1).to_ne_bytes().repeat(count));
                let args = Args::default().structure(region).u64(input).u64(output).u64(count as u64);
                (world.machine.function(rank, "all_reduce_ll16", &params, 0), args)
            })
            .collect();
        for (rank, (function, args)) in launches.iter().enumerate() {
            (0..9).for_each(|_| world.machine.launch(rank, *function, shape, args));
        }
        world.machine.finish();
        let sum = (1..=ranks as u32).sum::<u32>().to_ne_bytes().repeat(count);
        for (rank, &[_, output]) in world.buffers.iter().enumerate() {
            assert!(world.machine.read(rank, output, sum.len()) == sum, "rank {rank} of {ranks}");
        }
    }
}

#[test]
fn two_shot_every_type_and_operation() {
    for ranks in [1, 2, 3, 4, 8] {
        let layout = HbLayout { ranks: ranks as u32, max_blocks: 8, slot_bytes: 256 };
        let mut world = World::new(ranks, 8192, Some(layout));
        for (turn, ty) in ElementType::ALL.into_iter().enumerate() {
            for (step, op) in ReduceOp::ALL.into_iter().enumerate() {
                let turn = 3 * turn + step;
                world.call(ty, op, 1500 + turn, shape(turn, 8), [0, 0], turn.is_multiple_of(2));
            }
        }
    }
}

#[test]
fn two_shot_sizes_alignments_and_grids() {
    let layout = HbLayout::within(4, 8, 40_000).expect("fits");
    let mut world = World::new(4, 70_000, Some(layout));
    let counts = [0, 1, 3, 4, 5, 63, 64, 65, 1023, 1025, 16_384, 1, 0, 4097, 10_000];
    for (turn, count) in counts.into_iter().cycle().take(2 * counts.len()).enumerate() {
        let ty = if turn < counts.len() { ElementType::F32 } else { ElementType::F16 };
        let skew = [turn % 3, turn / 2 % 5];
        world.call(ty, ReduceOp::Sum, count, shape(turn, 8), skew, turn.is_multiple_of(3));
    }
    let entries = world.entries();
    assert!(entries.chunks(8).all(|entry| entry == &entries[..8]), "blocks count differently: {entries:?}");
    assert_ne!(entries[..8], [0; 8]);
}

#[test]
fn abort_ends_a_lonely_rank_and_says_whom_it_waited_for() {
    for hb in [None, Some(HbLayout { ranks: 2, max_blocks: 8, slot_bytes: 256 })] {
        let world = World::new(2, 1024, hb);
        let kernel = if hb.is_some() { "all_reduce_hb" } else { "all_reduce_ll16" };
        let function = world.machine.function(1, kernel, &[("RANKS", "2")], 0);
        let [input, output] = world.buffers[1];
        let mut args = Args::default().structure(&world.regions[1]).u64(input).u64(output).u64(100);
        if hb.is_some() {
            args = args.u32(256).u32(64);
        }
        world.machine.launch(1, function, LaunchShape { grid: 2, block: 64 }, &args);
        world.machine.abort();
        world.machine.finish();
        let record = world.machine.record(1);
        assert_eq!(record.state, ABORT_RECORD_COMPLETE);
        assert_eq!((record.rank, record.operation, record.peer), (1, Operation::ALL_REDUCE.0, 0));
    }
}

/// The two words of a packet may arrive apart: data beside an old flag is old, whichever of the two it is.
#[test]
fn one_shot_does_not_take_a_packet_of_which_half_has_arrived() {
    const EPOCH: u32 = 11;
    for (ranks, variant) in [(2, "2"), (3, "0"), (4, "4")] {
        for flags in [[EPOCH, EPOCH - 2], [EPOCH - 2, EPOCH]] {
            let world = World::new(ranks, 1024, None);
            world.set_epochs(EPOCH - 1);
            // One packet of each rank but the waiting one; the first rank's has only half arrived.
            let (me, region) = (1, &world.regions[1]);
            let half = region.base + u64::from(EPOCH % 2) * region.half_bytes;
            for (rank, slot) in (0..ranks).zip(0..).filter(|(rank, _)| *rank != me) {
                let flags = if rank == 0 { flags } else { [EPOCH; 2] };
                let packet: Vec<u8> =
                    flags.iter().flat_map(|flag| [77, *flag]).flat_map(u32::to_le_bytes).collect();
                let slot_bytes = region.half_bytes / 16 / ranks as u64 * 16;
                world.machine.write(me, half + slot * slot_bytes, &packet);
            }
            let params = [("TYPE", "i32"), ("OP", "sum"), ("RANKS", variant)];
            let function = world.machine.function(me, "all_reduce_ll16", &params, 0);
            let [input, output] = world.buffers[me];
            let args = Args::default().structure(region).u64(input).u64(output).u64(2);
            world.machine.launch(me, function, LaunchShape { grid: 1, block: 32 }, &args);
            // A thread looks at its packets before it looks at the abort word.
            world.machine.abort();
            world.machine.finish();
            let record = world.machine.record(me);
            assert_eq!(
                (record.state, record.peer),
                (ABORT_RECORD_COMPLETE, 0),
                "variant {variant}, flags {flags:?} where {EPOCH} is awaited: {record:?}"
            );
        }
    }
}

#[test]
fn a_block_that_gives_up_signals_no_step_and_writes_no_more() {
    let layout = HbLayout { ranks: 2, max_blocks: 8, slot_bytes: 256 };
    let (slice, slice_bytes) = (64, 64_u32);
    // It gives up in its first wait, or in the second because the peer's data is there and its result is not.
    for data_there in [false, true] {
        let world = World::new(2, 4096, Some(layout));
        let flag = |kind: u64, rank: u64| 8 * u64::from(layout.max_blocks) * (2 * kind + rank);
        if data_there {
            world.machine.write(0, world.regions[0].base + flag(0, 1), &1_u64.to_le_bytes());
        }
        let [input, output] = world.buffers[0];
        let canary = noise(1, 4 * slice);
        world.machine.write(0, output, &canary);
        let function = world.machine.function(0, "all_reduce_hb", &[("RANKS", "2")], 0);
        // Two tiles.
        let args = Args::default().structure(&world.regions[0]).u64(input).u64(output).u64(slice as u64);
        world.machine.launch(
            0,
            function,
            LaunchShape { grid: 1, block: 64 },
            &args.u32(256).u32(slice_bytes),
        );
        world.machine.abort();
        world.machine.finish();
        assert_eq!(world.machine.record(0).state, ABORT_RECORD_COMPLETE);
        let told = [0, 1].map(|kind| world.machine.read(1, world.regions[1].base + flag(kind, 0), 8)[0]);
        assert_eq!(told, [1, u8::from(data_there)], "steps that the peer was told of");
        // The own slice comes first; it may be there.
        assert!(world.machine.read(0, output, 4 * slice)[slice..] == canary[slice..], "the rest was written");
    }
}

#[test]
fn host_arithmetic_agrees_with_the_kernels() {
    assert_eq!((ll16_packets(0), ll16_packets(8), ll16_packets(9)), (1, 1, 2));
    assert_eq!(one_shot_half_bytes(3, 8), 128);
}
