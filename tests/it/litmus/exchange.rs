//! Tags between kernels: blocks exchange data through a fragment, trial by trial.

use aqueduct::gpu::{LaunchConfig, Module, arg};

use super::region::Region;
use super::rig::{Effort, Litmus, Play, Twin};
use crate::group::Rank;

const TEXT: &str = include_str!("exchange.ptx");

/// Bytes of a region, and of places in it.
const REGION: usize = 10 << 20;
const LAYOUT: &[(&str, &str)] = &[
    // Each semaphore's counters are cache lines of a page of their own.
    ("COUNTERS", "65536"),
    ("COUNTER_PAGE", "4096"),
    ("EXPECTED", "1024"),
    ("OUTBOUND", "2048"),
    // Each block has two halves. A thread's word is a cache line of its own. Where packets are sent, the words that
    // are packed and unpacked lie in the first half, behind the packets.
    ("DATA", "1048576"),
    ("BLOCK", "131072"),
    ("HALF", "65536"),
    ("PACKETS", "1048576"),
    ("SRC", "1081344"),
    ("DST", "1097728"),
    ("TRAFFIC", "9437184"),
    ("TRAFFIC_BYTES", "1048576"),
    ("TRAFFIC_TURNS", "100000000"),
];

/// A launch: blocks that exchange, blocks that make traffic, threads, mask of the pauses in nanoseconds.
type Shape = (u32, u32, u32, u32);

fn shapes(effort: Effort) -> (&'static [Shape], u32) {
    match effort {
        Effort::Short => (&[(2, 1, 64, 0), (3, 0, 32, 63)], 60),
        Effort::Seeds => (&[(2, 0, 32, 7)], 6),
        Effort::Long => (
            &[(1, 0, 32, 0), (32, 0, 128, 1023), (8, 24, 256, 255), (64, 0, 32, 63), (48, 16, 64, 4095)],
            50_000,
        ),
    }
}

fn exchange(rank: &Rank, play: &Play<'_>, kind: &str) {
    let region = Region::new(rank, REGION);
    let params: Vec<_> = LAYOUT.iter().copied().chain([("KIND", kind)]).collect();
    let module =
        Module::load_ptx(rank.comm.context(), &play.text(rank.comm.context(), TEXT, &params)).unwrap();
    let kernel = module.function("exchange").unwrap();
    let (local, remote) = (region.of(rank.me()), region.of(1 - rank.me()));
    let (me, state, abort) = (rank.me(), region.state.ptr(), rank.comm.abort_handle());
    let (shapes, trials) = shapes(play.effort);
    let (mut before, out) = (0_u32, region.out.ptr());
    // Loading a module and resetting counts, here and below, may wait for kernels: a barrier stands between them and every launch.
    rank.barrier();
    for seed in 0..play.seeds() {
        if rank.me() == 0 {
            play.choose(seed);
        }
        for &(pairs, traffic, threads, pause) in shapes {
            let config = LaunchConfig::linear(pairs + traffic, threads).cooperative();
            let args = [arg(&local), arg(&remote), arg(&me), arg(&state), arg(&abort), arg(&out)];
            let args = args.into_iter().chain([&before, &trials, &pairs, &seed, &pause].map(arg));
            let args: Vec<_> = args.collect();
            // SAFETY: the kernel's parameters, which lead into the region. A kernel leaves when the communicator is aborted.
            unsafe { region.launch(&kernel, &config, &args) };
            if !region.done(play) {
                return;
            }
            let [forbidden, gave_up] = region.counts();
            if gave_up > 0 {
                play.end("a kernel gave up its wait");
            }
            // In a trial of `arrive` only the last block looks.
            let readers = if kind == "arrive" { 1 } else { pairs };
            play.count(u64::from(trials) * u64::from(readers), forbidden.into());
            before += trials;
            if play.is_over(rank) {
                return;
            }
        }
    }
}

/// Stores of twins: the flag and a word of data, 32 bits each.
macro_rules! flag {
    ($offset:literal) => {
        concat!("st.relaxed.sys.global.b32 [%pp_to+", $offset, "], %t; ")
    };
}
macro_rules! data {
    ($offset:literal, $word:literal) => {
        concat!("st.relaxed.sys.global.b32 [%pp_to+", $offset, "], %pt_", $word, "; ")
    };
}

pub(super) const SEMAPHORE: Litmus = Litmus {
    tag: "semaphore.signal",
    way: "",
    ranks: 2,
    run: |rank, play| exchange(rank, play, "semaphore"),
    twins: &[
        Twin {
            name: "relaxed store",
            changes: &[("st.release.sys.global.u64 [%inbound]", "st.relaxed.sys.global.u64 [%inbound]")],
            hangs: false,
        },
        Twin {
            name: "relaxed load",
            changes: &[("ld.acquire.sys.global.u64 %sw_seen", "ld.relaxed.sys.global.u64 %sw_seen")],
            hangs: false,
        },
    ],
};
pub(super) const PACKET_LL8: Litmus = Litmus {
    tag: "packet.word",
    way: " (LL8)",
    ranks: 2,
    run: |rank, play| exchange(rank, play, "ll8"),
    twins: &[Twin {
        name: "flag and data by two stores",
        changes: &[
            ("st.relaxed.sys.global.b64 [%pp_to], %pt_x0;", concat!(flag!("4"), data!("0", "a0"))),
            ("st.relaxed.sys.global.b64 [%pp_to], %pt_x1;", concat!(flag!("4"), data!("0", "a1"))),
            ("st.relaxed.sys.global.b64 [%pp_to], %pt_x2;", concat!(flag!("4"), data!("0", "a2"))),
            ("st.relaxed.sys.global.b64 [%pp_to], %pt_x3;", concat!(flag!("4"), data!("0", "a3"))),
        ],
        hangs: false,
    }],
};
pub(super) const PACKET_LL16: Litmus = Litmus {
    tag: "packet.word",
    way: " (LL16)",
    ranks: 2,
    run: |rank, play| exchange(rank, play, "ll16"),
    twins: &[Twin {
        name: "flags and data by four stores",
        // The kernel has two packets for each thread, one after the other.
        changes: &[(
            "st.relaxed.sys.global.v2.b64 [%pp_to], {%pt_x0, %pt_y0};",
            concat!(flag!("4"), flag!("12"), data!("0", "a0"), data!("8", "b0")),
        )],
        hangs: false,
    }],
};
pub(super) const LINE: Litmus = Litmus {
    tag: "packet.line",
    way: "",
    ranks: 2,
    run: |rank, play| exchange(rank, play, "ll128"),
    twins: &[Twin {
        name: "without the second load",
        changes: &[(
            "READY:\n    @%lu_have0",
            "READY:\n    setp.ne.u64 %lu_have0, %lu_flag, %lu_flag;\n    setp.ne.u64 %lu_have1, %lu_flag, %lu_flag;\n    @%lu_have0",
        )],
        hangs: false,
    }],
};
pub(super) const ARRIVE: Litmus = Litmus {
    tag: "grid.arrive",
    way: "",
    ranks: 2,
    run: |rank, play| exchange(rank, play, "arrive"),
    twins: &[Twin {
        name: "relaxed addition",
        changes: &[("atom.acq_rel.gpu.global.inc.u32", "atom.relaxed.gpu.global.inc.u32")],
        hangs: false,
    }],
};
pub(super) const TAKEN: Litmus = Litmus {
    tag: "plan.semaphore",
    way: "",
    ranks: 2,
    run: |rank, play| exchange(rank, play, "taken"),
    twins: &[
        Twin {
            name: "relaxed release",
            changes: &[("red.release.gpu.global.add.u32", "red.relaxed.gpu.global.add.u32")],
            hangs: false,
        },
        Twin {
            name: "relaxed acquire",
            changes: &[("atom.acquire.gpu.global.cas.b32", "atom.relaxed.gpu.global.cas.b32")],
            hangs: false,
        },
    ],
};
pub(super) const BARRIER: Litmus = Litmus {
    tag: "grid.barrier",
    way: "",
    ranks: 2,
    run: |rank, play| exchange(rank, play, "barrier"),
    twins: &[
        Twin {
            name: "relaxed arrival",
            changes: &[("atom.acq_rel.gpu.global.add.u64", "atom.relaxed.gpu.global.add.u64")],
            hangs: false,
        },
        // The store that opens the barrier needs no release of its own: the addition before it is one (ci/mutants/proved.txt).
        Twin {
            name: "relaxed load",
            changes: &[("ld.acquire.gpu.global.u64", "ld.relaxed.gpu.global.u64")],
            hangs: false,
        },
    ],
};
