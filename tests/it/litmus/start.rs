//! `kernel.start`: what a rank's stream did before a kernel, told by a relaxed signal of that kernel.

use aqueduct::gpu::{LaunchConfig, Module, arg};

use super::region::Region;
use super::rig::{Effort, Litmus, Play, Twin};
use crate::group::Rank;

const TEXT: &str = include_str!("start.ptx");

/// Blocks and threads that write; one block of as many threads looks.
const BLOCKS: u32 = 8;
const THREADS: u32 = 128;

const REGION: usize = 1 << 20;
const LAYOUT: &[(&str, &str)] =
    // Each thread's word is a cache line of its own.
    &[("INBOUND", "0"), ("EXPECTED", "1024"), ("OUTBOUND", "2048"), ("DATA", "65536")];

fn start(rank: &Rank, play: &Play<'_>) {
    let region = Region::new(rank, REGION);
    let context = rank.comm.context();
    let module = Module::load_ptx(context, &play.text(context, TEXT, LAYOUT)).unwrap();
    let [write, tell, look] = ["write", "tell", "look"].map(|name| module.function(name).unwrap());
    let (local, remote) = (region.of(rank.me()), region.of(1 - rank.me()));
    let trials: u32 = match play.effort {
        Effort::Short => 40,
        Effort::Seeds => 6,
        Effort::Long => 50_000,
    };
    let mut before = 0_u32;
    // Loading a module may wait for kernels.
    rank.barrier();
    for seed in 0..play.seeds() {
        if rank.me() == 0 {
            play.choose(seed);
        }
        // Both launch after the choice.
        rank.barrier();
        if rank.me() == 0 {
            for trial in before + 1..=before + trials {
                let args = [arg(&local), arg(&remote), arg(&trial)];
                let one = LaunchConfig::linear(1, BLOCKS * THREADS);
                // SAFETY: the kernels' parameters, which lead into the region. It is kept until `done` has waited for both.
                unsafe {
                    write.launch(&region.stream, &LaunchConfig::linear(BLOCKS, THREADS), &args).unwrap();
                    tell.launch(&region.stream, &one, &args).unwrap();
                }
            }
        } else {
            let (abort, out) = (rank.comm.abort_handle(), region.out.ptr());
            let args = [arg(&local), arg(&remote), arg(&abort), arg(&out), arg(&before), arg(&trials)];
            // SAFETY: as above. The kernel leaves when the communicator is aborted.
            unsafe { region.launch(&look, &LaunchConfig::linear(1, BLOCKS * THREADS), &args) };
        }
        if !region.done(play) {
            return;
        }
        let [forbidden, gave_up] = region.counts();
        if gave_up > 0 {
            play.end("a kernel gave up its wait");
        }
        if rank.me() == 1 {
            play.count(trials.into(), forbidden.into());
        }
        before += trials;
        if play.is_over(rank) {
            return;
        }
    }
}

pub(super) const START: Litmus = Litmus {
    tag: "kernel.start",
    way: "",
    ranks: 2,
    run: start,
    twins: &[
        Twin {
            name: "words of the kernel that tells",
            changes: &[
                ("st.relaxed.sys.global.u32 [%own+65536], %t;", ""),
                ("st.relaxed.sys.global.u32 [%theirs+65536], %t;", ""),
                (
                    "setp.ne.u32 %p, %thread, 0;",
                    "st.relaxed.sys.global.u32 [%own], %t; st.relaxed.sys.global.u32 [%theirs], %t; \
                     setp.ne.u32 %p, %thread, 0;",
                ),
            ],
            hangs: false,
        },
        Twin {
            name: "relaxed load",
            changes: &[("ld.acquire.sys.global.u64 %sw_seen", "ld.relaxed.sys.global.u64 %sw_seen")],
            hangs: false,
        },
    ],
};
