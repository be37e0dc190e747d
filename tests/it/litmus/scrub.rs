//! `packet.scrub`: all-reduces around the place where the epochs start over, in regions full of packets of the old lap.
//!
//! A zero that comes behind a packet of the new lap leaves its reader waiting; one that never comes lets a packet of the old lap
//! pass for a new one, whose data is then in the result.

use std::sync::Arc;

use aqueduct::gpu::{GpuBuffer, LaunchConfig, Module, arg};
use aqueduct_ptx::abi::{PACKET_FORMAT_LL16, ScratchRegion};
use aqueduct_ptx::collective::one_shot_half_bytes;
use aqueduct_ptx::instantiate;

use super::region::Region;
use super::rig::{Effort, Litmus, Play, Twin, target};
use crate::data::mix;
use crate::group::{Rank, soon};

const MAX_BLOCKS: u32 = 8;
/// Most elements of a call, of 4 bytes.
const MOST: usize = 512;
/// Elements that a rank takes its inputs from.
const NOISE: usize = 1 << 14;
/// Elements of each call of a trial; blocks and threads of each rank. The third call is the last of the lap.
const CALLS: [(usize, [(u32, u32); 2]); 6] = [
    (512, [(2, 64), (3, 32)]),
    (1, [(1, 32), (3, 64)]),
    (300, [(4, 32), (1, 64)]),
    (512, [(2, 64), (8, 32)]),
    (3, [(3, 32), (2, 32)]),
    (400, [(2, 128), (4, 32)]),
];
const FIRST: u32 = u32::MAX - 3;

/// The first element of a rank's input.
fn start(trial: usize, call: usize) -> usize {
    (trial * 617 + call * 131) % (NOISE - MOST)
}

fn noise(rank: u32) -> Vec<u32> {
    (0..NOISE).map(|index| mix(rank, 77, index)).collect()
}

fn run(rank: &Rank, play: &Play<'_>) {
    let me = rank.me();
    let half = one_shot_half_bytes(2, 4 * MOST as u64) as usize;
    let region = Region::new(rank, 2 * half);
    let [image, input, output] =
        [2 * half, 4 * NOISE, 4 * MOST * CALLS.len()].map(|bytes| rank.buffer(bytes));
    // Packets as the old lap could have left them: flags 2, 3, 4 ..., which the new lap is about to use.
    let stale: Vec<u64> = (0..2 * half as u64 / 8).map(|i| (2 + i / 2 % 6) << 32 | 0xdead_0000 | i).collect();
    image.upload(0, &stale, soon()).unwrap();
    let epochs = rank.buffer(4 * MAX_BLOCKS as usize);
    epochs.upload(0, &[FIRST; MAX_BLOCKS as usize], soon()).unwrap();
    let (mine, theirs) = (noise(me), noise(1 - me));
    input.upload(0, &mine, soon()).unwrap();

    let context = rank.comm.context();
    let params = [("TYPE", "i32"), ("OP", "sum"), ("RANKS", "2")];
    let instance = instantiate("all_reduce_ll16", target(context), &params).unwrap();
    let module = Module::load_ptx(context, &play.changed(instance.text)).unwrap();
    let kernel = module.function(&instance.entries[0]).unwrap();
    let handle = ScratchRegion {
        epochs: region.state.ptr(),
        half_bytes: half as u64,
        format: PACKET_FORMAT_LL16,
        barrier: 0,
        ..region.handle(MAX_BLOCKS)
    };
    let trials = match play.effort {
        Effort::Short => 20,
        Effort::Seeds => 2,
        Effort::Long => 10_000,
    };
    let all = |buffer: &Arc<GpuBuffer>, bytes: usize| buffer.slice(..bytes).unwrap();
    let mut seen = vec![0_u32; MOST * CALLS.len()];
    for seed in 0..play.seeds() {
        if me == 0 {
            play.choose(seed);
        }
        for trial in 0..trials {
            region.stream.copy(&all(&region.buffer, 2 * half), &all(&image, 2 * half)).unwrap();
            region.stream.copy(&all(&region.state, epochs.len()), &all(&epochs, epochs.len())).unwrap();
            // No rank sends before both regions are as they are to be.
            if !region.done(play) {
                return;
            }
            for (call, (count, shapes)) in CALLS.iter().enumerate() {
                let from = input.ptr() + 4 * start(trial, call) as u64;
                let to = output.ptr() + 4 * (call * MOST) as u64;
                let count = *count as u64;
                let (blocks, threads) = shapes[me as usize];
                let args = [arg(&handle), arg(&from), arg(&to), arg(&count)];
                // SAFETY: the catalog's parameters; input and output are in buffers that this function keeps until the stream is
                // done. The kernel leaves when the communicator is aborted.
                unsafe { region.launch(&kernel, &LaunchConfig::linear(blocks, threads), &args) };
            }
            if !region.done(play) {
                return;
            }
            output.download(0, &mut seen, soon()).unwrap();
            let wrong = CALLS.iter().enumerate().any(|(call, (count, _))| {
                let first = start(trial, call);
                let sums = mine[first..].iter().zip(&theirs[first..]).map(|(a, b)| a.wrapping_add(*b));
                !sums.take(*count).eq(seen[call * MOST..][..*count].iter().copied())
            });
            play.count(1, wrong.into());
        }
        if play.is_over(rank) {
            return;
        }
    }
}

pub(super) const SCRUB: Litmus = Litmus {
    tag: "packet.scrub",
    way: "",
    ranks: 2,
    run,
    twins: &[
        Twin {
            name: "without the sender's fence",
            changes: &[(
                "fence.acq_rel.sys;                              // SYNC packet.scrub (release",
                "// (release",
            )],
            hangs: true,
        },
        Twin {
            name: "without the receiver's fence",
            changes: &[("@%scrubs fence.acq_rel.sys;", "")],
            hangs: true,
        },
    ],
};
