//! `turn.word` and `turn.position`: how calls of plans that do not fit a device together get their turns.

use std::sync::Arc;

use aqueduct::comm::{HostBuffer, RegisteredMemory, Transport};
use aqueduct::gpu::{DeviceSlice, LaunchConfig, Module, arg};
use aqueduct_ptx::abi::{DeviceStruct, TurnQueue};

use super::region::Region;
use super::rig::{Effort, Litmus, Play, Twin};
use crate::group::{Rank, soon};

const TEXT: &str = include_str!("turn.ptx");

const REGION: usize = 1 << 20;
/// Bytes of a rank's words, and where each of them lies.
const WORDS: usize = 4096;
const READY: usize = 0;
const GRANTED: usize = 1024;
/// The most trials of one launch of `meet`.
const POSITIONS: u32 = 4096;
const LAYOUT: &[(&str, &str)] = &[
    ("READY", "0"),
    ("GRANTED", "1024"),
    ("DONE", "2048"),
    ("CAME", "65536"),
    ("DECIDED", "131072"),
    ("LEFT", "196608"),
];

/// Words in host memory of both ranks, as those of calls.
struct Words {
    own: RegisteredMemory,
    theirs: RegisteredMemory,
}

impl Words {
    /// Behind [`Region::new`], which has connected the ranks.
    fn new(rank: &Rank) -> Self {
        let (comm, peer) = (&rank.comm, 1 - rank.me());
        let buffer = Arc::new(HostBuffer::new(comm.context(), WORDS).unwrap());
        let own = comm.register_host(&buffer, Transport::CudaIpc).unwrap();
        comm.send_memory(&own, peer, 1).unwrap();
        let theirs = comm.recv_memory(peer, 1).unwrap();
        comm.setup(soon()).unwrap();
        Self { own, theirs: theirs.get().unwrap() }
    }

    /// A word for this rank's stream.
    fn at(memory: &RegisteredMemory, at: usize) -> DeviceSlice {
        memory.slice().unwrap().slice(at..at + 4).unwrap()
    }
}

/// A queue in the rank's own memory, by which it grants a call to both ranks: in their words at these addresses.
fn queue(region: &Region<'_>, words: [u64; 2]) -> u64 {
    let (at, table) = (region.state.ptr(), size_of::<TurnQueue>() + 4 * POSITIONS as usize);
    let state = TurnQueue { words: at + table as u64, ranks: 2, mask: POSITIONS - 1, ..TurnQueue::default() };
    let mut bytes = state.as_bytes().to_vec();
    bytes.resize(table, 0);
    bytes.extend(words.iter().flat_map(|words| (words + GRANTED as u64).to_le_bytes()));
    region.state.upload(0, &bytes, soon()).unwrap();
    at
}

fn words(rank: &Rank, play: &Play<'_>) {
    let region = Region::new(rank, REGION);
    let context = rank.comm.context();
    let module = Module::load_ptx(context, &play.text(context, TEXT, LAYOUT)).unwrap();
    let [come, decide, go, end] = ["come", "decide", "go", "end"].map(|name| module.function(name).unwrap());
    let (local, remote) = (region.of(rank.me()), region.of(1 - rank.me()));
    let words = Words::new(rank);
    let (own, theirs) = (words.own.ptr(), words.theirs.ptr());
    // Only rank 0 grants.
    let (queue, abort, out) = (queue(&region, [own, theirs]), rank.comm.abort_handle(), region.out.ptr());
    let trials: u32 = match play.effort {
        Effort::Short => 40,
        Effort::Seeds => 12,
        Effort::Long => 20_000,
    };
    let mut before = 0_u32;
    rank.barrier();
    for seed in 0..play.seeds() {
        if rank.me() == 0 {
            play.choose(seed);
        }
        rank.barrier();
        let one = LaunchConfig::linear(1, 1);
        for trial in before + 1..=before + trials {
            let args = [arg(&local), arg(&remote), arg(&trial)];
            if rank.me() == 0 {
                region.stream.wait_value32(&Words::at(&words.own, READY), 1).unwrap();
                let decides = [arg(&own), arg(&queue), arg(&abort), arg(&out)];
                let decides: Vec<_> = args.into_iter().chain(decides).collect();
                let ends: Vec<_> = args.into_iter().chain([arg(&own), arg(&abort), arg(&out)]).collect();
                // SAFETY: the kernels' parameters, which lead into the region and the words. `launch` keeps the region, and the stream's waits
                // keep the words of this rank; those of the other one are retained below.
                unsafe { region.launch(&decide, &one, &decides) };
                // SAFETY: as above. It waits for `go`, and leaves when the abort word is set.
                unsafe { region.launch(&end, &one, &ends) };
            } else {
                // SAFETY: as above.
                unsafe { region.launch(&come, &one, &args) };
                region.stream.write_value32(&Words::at(&words.theirs, READY), 1).unwrap();
                region.stream.wait_value32(&Words::at(&words.own, GRANTED), 1).unwrap();
                let args: Vec<_> =
                    args.into_iter().chain([arg(&own), arg(&theirs), arg(&abort), arg(&out)]).collect();
                // SAFETY: as above.
                unsafe { region.launch(&go, &one, &args) };
            }
        }
        region.stream.retain_all([words.own.keep_alive(), words.theirs.keep_alive()]).unwrap();
        if !region.done(play) {
            return;
        }
        let [forbidden, _] = region.counts();
        play.count(trials.into(), forbidden.into());
        before += trials;
        if play.is_over(rank) {
            return;
        }
    }
}

fn positions(rank: &Rank, play: &Play<'_>) {
    let region = Region::new(rank, REGION);
    let context = rank.comm.context();
    let module = Module::load_ptx(context, &play.text(context, TEXT, LAYOUT)).unwrap();
    let meet = module.function("meet").unwrap();
    let (local, queue, out) = (region.of(rank.me()), queue(&region, [0; 2]), region.out.ptr());
    let (launches, trials) = match play.effort {
        Effort::Short => (2, 200),
        Effort::Seeds => (1, 40),
        Effort::Long => (200, POSITIONS),
    };
    let mut before = 0_u32;
    rank.barrier();
    for seed in 0..play.seeds() {
        if rank.me() == 0 {
            play.choose(seed);
        }
        rank.barrier();
        for _ in 0..launches {
            let args = [arg(&local), arg(&queue), arg(&out), arg(&before), arg(&trials)];
            // SAFETY: the kernel's parameters, which lead into this rank's own memory. Its blocks wait for nothing.
            unsafe { region.launch(&meet, &LaunchConfig::linear(2, 1), &args) };
            before += trials;
        }
        if !region.done(play) {
            return;
        }
        let [forbidden, _] = region.counts();
        play.count(u64::from(trials) * launches, forbidden.into());
        if play.is_over(rank) {
            return;
        }
    }
}

pub(super) const WORD: Litmus = Litmus {
    tag: "turn.word",
    way: "",
    ranks: 2,
    run: words,
    twins: &[
        Twin { name: "grants without the fence", changes: &[("    fence.acq_rel.sys;\n", "")], hangs: false },
        Twin {
            name: "is told of the end by a relaxed load",
            changes: &[(
                "ld.acquire.sys.global.u32 %seen, [%at];",
                "ld.relaxed.sys.global.u32 %seen, [%at];",
            )],
            hangs: false,
        },
    ],
};
pub(super) const POSITION: Litmus = Litmus {
    tag: "turn.position",
    way: "",
    ranks: 2,
    run: positions,
    twins: &[Twin {
        name: "relaxed exchange",
        changes: &[("atom.acq_rel.gpu.global.exch.b32", "atom.relaxed.gpu.global.exch.b32")],
        hangs: false,
    }],
};
