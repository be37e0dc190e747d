//! Kernels: what orders accesses of threads, warps, blocks and devices, and what does not.

use crate::device::{Devices, kernel, races, races_on_team};
use crate::program::{COMPUTED, DATA, Program};
use crate::{multicast, patterns};

const PROGRAMS: &[Program] = &[
    Program {
        name: "a message between blocks, by release and acquire",
        body: "
    setp.ne.u32 %p0, %block, 0;
    @%p0 bra READ;
    st.weak.global.u32 [%data], 7;
    st.release.gpu.global.u32 [%flag], 1;
    bra DONE;
READ:
    ld.acquire.gpu.global.u32 %r0, [%flag];
    setp.ne.u32 %p1, %r0, 1;
    @%p1 bra READ;
    ld.weak.global.u32 %r1, [%data];",
        guarded: DATA,
        devices: 1,
        grid: 2,
        block: 1,
        plants: &[
            ("st.release.gpu", "st.relaxed.gpu"),
            ("st.release.gpu", "st.release.cta"),
            ("st.release.gpu", "st.weak"),
            ("ld.acquire.gpu", "ld.relaxed.gpu"),
            ("ld.acquire.gpu", "ld.acquire.cta"),
            ("ld.acquire.gpu.global.u32 %r0, [%flag];", "ld.weak.global.u32 %r0, [%flag];"),
            ("READ:", "READ:\n    ld.weak.global.u32 %r1, [%data];"),
        ],
    },
    Program {
        name: "a message between devices, by fences",
        body: "
    setp.ne.u32 %p0, %rank, 0;
    @%p0 bra READ;
    st.weak.global.u32 [%data], 7;
    fence.acq_rel.sys; // release
    st.relaxed.sys.global.u32 [%flag], 1;
    bra DONE;
READ:
    ld.relaxed.sys.global.u32 %r0, [%flag];
    setp.ne.u32 %p1, %r0, 1;
    @%p1 bra READ;
    fence.acq_rel.sys; // acquire
    ld.weak.global.u32 %r1, [%data];",
        guarded: DATA,
        devices: 2,
        grid: 1,
        block: 1,
        plants: &[
            ("fence.acq_rel.sys; // release", ""),
            ("fence.acq_rel.sys; // acquire", ""),
            ("fence.acq_rel.sys; // release", "fence.acq_rel.gpu;"),
            ("fence.acq_rel.sys; // acquire", "fence.acq_rel.gpu;"),
            ("st.relaxed.sys", "st.relaxed.gpu"),
            ("ld.relaxed.sys", "ld.relaxed.gpu"),
            ("st.relaxed.sys.global.u32 [%flag], 1;", "st.weak.global.u32 [%flag], 1;"),
            (
                "fence.acq_rel.sys; // release\n    st.relaxed.sys.global.u32 [%flag], 1;",
                "st.relaxed.sys.global.u32 [%flag], 1;\n    fence.acq_rel.sys;",
            ),
        ],
    },
    Program {
        name: "a buffer that is used again",
        body: "
    setp.ne.u32 %p0, %rank, 0;
    @%p0 bra READ;
    st.weak.global.u32 [%data], 7;
    st.release.sys.global.u32 [%flag], 1;
FREE:
    ld.acquire.sys.global.u32 %r0, [%flag+128];
    setp.ne.u32 %p1, %r0, 1;
    @%p1 bra FREE;
    st.weak.global.u32 [%data], 8;
    bra DONE;
READ:
    ld.acquire.sys.global.u32 %r0, [%flag];
    setp.ne.u32 %p1, %r0, 1;
    @%p1 bra READ;
    ld.weak.global.u32 %r1, [%data];
    st.release.sys.global.u32 [%flag+128], 1;",
        guarded: DATA,
        devices: 2,
        grid: 1,
        block: 1,
        plants: &[
            ("st.release.sys.global.u32 [%flag+128], 1;", "st.relaxed.sys.global.u32 [%flag+128], 1;"),
            ("ld.acquire.sys.global.u32 %r0, [%flag+128];", "ld.relaxed.sys.global.u32 %r0, [%flag+128];"),
            ("FREE:", "st.weak.global.u32 [%data], 8;\nFREE:"),
        ],
    },
    Program {
        name: "a block's barrier and shared memory",
        body: "
    mov.u64 %at, shared;
    mul.wide.u32 %d0, %tid, 4;
    add.u64 %d1, %at, %d0;
    st.shared.u32 [%d1], %tid;
    bar.sync 0; // written
    xor.b64 %d2, %d0, 128;
    add.u64 %d2, %at, %d2;
    ld.shared.u32 %r0, [%d2];
    bar.sync 0; // read
    st.shared.u32 [%d1], %r0;",
        guarded: COMPUTED,
        devices: 1,
        grid: 1,
        block: 64,
        plants: &[
            ("bar.sync 0; // written", ""),
            ("bar.sync 0; // read", ""),
            ("bar.sync 0; // written", "bar.warp.sync 0xffffffff;"),
            ("bar.sync 0; // written", "fence.acq_rel.cta;"),
        ],
    },
    Program {
        name: "a warp's barrier",
        body: "
    mov.u64 %at, shared;
    mul.wide.u32 %d0, %tid, 4;
    add.u64 %d1, %at, %d0;
    st.shared.u32 [%d1], %tid;
    bar.warp.sync 0xffffffff;
    xor.b64 %d2, %d0, 4;
    add.u64 %d2, %at, %d2;
    ld.shared.u32 %r0, [%d2];",
        guarded: COMPUTED,
        devices: 1,
        grid: 1,
        block: 32,
        plants: &[
            ("bar.warp.sync 0xffffffff;", ""),
            ("bar.warp.sync 0xffffffff;", "shfl.sync.idx.b32 %r1, %tid, 0, 31, 0xffffffff;"),
        ],
    },
    Program {
        name: "a barrier at which one warp arrives and the other waits",
        body: "
    mov.u64 %at, shared;
    setp.ge.u32 %p0, %tid, 32;
    @%p0 bra READ;
    mul.wide.u32 %d0, %tid, 4;
    add.u64 %d1, %at, %d0;
    st.shared.u32 [%d1], %tid;
    bar.arrive 1, 64;
    bra DONE;
READ:
    bar.sync 1, 64;
    ld.shared.u32 %r0, [%at];",
        guarded: COMPUTED,
        devices: 1,
        grid: 1,
        block: 64,
        plants: &[
            (
                "    st.shared.u32 [%d1], %tid;\n    bar.arrive 1, 64;",
                "    bar.arrive 1, 64;\n    st.shared.u32 [%d1], %tid;",
            ),
            (
                "    bar.sync 1, 64;\n    ld.shared.u32 %r0, [%at];",
                "    ld.shared.u32 %r0, [%at];\n    bar.sync 1, 64;",
            ),
        ],
    },
    Program {
        name: "the last block reads what all have written, by atomics",
        body: "
    mul.wide.u32 %d0, %block, 4;
    add.u64 %d1, %data, %d0;
    st.weak.global.u32 [%d1], %block;
    atom.add.acq_rel.gpu.global.u32 %r0, [%flag], 1;
    setp.ne.u32 %p0, %r0, 2;
    @%p0 bra DONE;
    ld.weak.global.v2.u32 {%r1, %r2}, [%data];
    ld.weak.global.u32 %r3, [%data+8];",
        guarded: &["[%d1]", "[%data"],
        devices: 1,
        grid: 3,
        block: 1,
        plants: &[
            ("atom.add.acq_rel.gpu", "atom.add.relaxed.gpu"),
            ("atom.add.acq_rel.gpu", "atom.add.acquire.gpu"),
            ("atom.add.acq_rel.gpu", "atom.add.release.gpu"),
            ("atom.add.acq_rel.gpu", "atom.add.acq_rel.cta"),
        ],
    },
    Program {
        name: "the last block reads what all have written, by fences",
        body: "
    mul.wide.u32 %d0, %block, 4;
    add.u64 %d1, %data, %d0;
    st.weak.global.u32 [%d1], %block;
    fence.acq_rel.gpu; // release
    atom.add.relaxed.gpu.global.u32 %r0, [%flag], 1;
    setp.ne.u32 %p0, %r0, 2;
    @%p0 bra DONE;
    membar.gl; // acquire
    ld.weak.global.v2.u32 {%r1, %r2}, [%data];
    ld.weak.global.u32 %r3, [%data+8];",
        guarded: &["[%d1]", "[%data"],
        devices: 1,
        grid: 3,
        block: 1,
        plants: &[
            ("fence.acq_rel.gpu; // release", ""),
            ("membar.gl; // acquire", ""),
            ("fence.acq_rel.gpu; // release", "fence.acq_rel.cta;"),
            ("membar.gl; // acquire", "membar.cta;"),
        ],
    },
    Program {
        name: "an atomic operation passes a release on, a store does not",
        body: "
    setp.eq.u32 %p0, %block, 1;
    @%p0 bra PASS;
    setp.eq.u32 %p0, %block, 2;
    @%p0 bra READ;
    st.weak.global.u32 [%data], 7;
    st.release.gpu.global.u32 [%flag], 1;
    bra DONE;
PASS:
    ld.relaxed.gpu.global.u32 %r0, [%flag];
    setp.ne.u32 %p1, %r0, 1;
    @%p1 bra PASS;
    atom.add.relaxed.gpu.global.u32 %r0, [%flag], 1;
    st.relaxed.gpu.global.u32 [%flag+128], 1;
    bra DONE;
READ: // which would acquire from the first block, if it saw its 1
    ld.relaxed.gpu.global.u32 %r0, [%flag+128];
    setp.ne.u32 %p1, %r0, 1;
    @%p1 bra READ;
    ld.acquire.gpu.global.u32 %r0, [%flag];
    ld.weak.global.u32 %r1, [%data];",
        guarded: DATA,
        devices: 1,
        grid: 3,
        block: 1,
        plants: &[(
            "atom.add.relaxed.gpu.global.u32 %r0, [%flag], 1;",
            "st.relaxed.gpu.global.u32 [%flag], 2;",
        )],
    },
    Program {
        name: "a counter",
        body: "    red.add.relaxed.gpu.global.u32 [%data], 1;",
        guarded: DATA,
        devices: 1,
        grid: 3,
        block: 3,
        plants: &[
            ("red.add.relaxed.gpu", "red.add.relaxed.cta"),
            (
                "red.add.relaxed.gpu.global.u32 [%data], 1;",
                "ld.relaxed.gpu.global.u32 %r0, [%data];\n    st.weak.global.u32 [%data], %r0;",
            ),
        ],
    },
    Program {
        name: "a counter of two devices",
        body: "    red.add.relaxed.sys.global.u32 [%data], 1;",
        guarded: DATA,
        devices: 2,
        grid: 1,
        block: 1,
        plants: &[("relaxed.sys", "relaxed.gpu")],
    },
    Program {
        name: "neighbouring bytes",
        body: "
    cvt.u64.u32 %d0, %tid;
    add.u64 %d1, %data, %d0;
    st.weak.global.u8 [%d1], %tid;",
        guarded: COMPUTED,
        devices: 1,
        grid: 1,
        block: 8,
        plants: &[("add.u64 %d1, %data, %d0;", "and.b64 %d0, %d0, 6;\n    add.u64 %d1, %data, %d0;")],
    },
    Program {
        name: "one lane writes a word",
        body: "
    setp.ne.u32 %p0, %tid, 0;
    @%p0 bra DONE;
    st.weak.global.u32 [%data], 7;",
        guarded: DATA,
        devices: 1,
        grid: 1,
        block: 32,
        plants: &[("@%p0 bra DONE;", "")],
    },
    Program {
        name: "packets that carry their own flags",
        body: "
    setp.ne.u32 %p0, %rank, 0;
    @%p0 bra READ;
    st.relaxed.sys.global.v2.u64 [%data], {0x100000007, 0x100000008};
    bra DONE;
READ:
    ld.relaxed.sys.global.v2.u64 {%d0, %d1}, [%data];
    setp.ne.u64 %p1, %d1, 0x100000008;
    @%p1 bra READ;",
        guarded: DATA,
        devices: 2,
        grid: 1,
        block: 1,
        plants: &[
            (
                "st.relaxed.sys.global.v2.u64 [%data], {0x100000007, 0x100000008};",
                "st.weak.global.v2.u64 [%data], {0x100000007, 0x100000008};",
            ),
            ("ld.relaxed.sys.global.v2", "ld.weak.global.v2"),
            ("st.relaxed.sys", "st.relaxed.gpu"),
            (
                "ld.relaxed.sys.global.v2.u64 {%d0, %d1}, [%data];",
                "ld.relaxed.sys.global.u32 %r0, [%data];\n    ld.relaxed.sys.global.u64 %d1, [%data+8];",
            ),
        ],
    },
];

#[test]
fn right_programs_have_no_race_and_every_planted_race_is_found() {
    let (mut programs, mut planted) = (0, 0);
    for program in PROGRAMS.iter().chain(patterns::PROGRAMS).chain(multicast::PROGRAMS) {
        let run = |body: &str| {
            let launch = |devices: &Devices| {
                for device in 0..program.devices {
                    devices.launch(body, device, program.grid, program.block);
                }
            };
            if body.contains("%all") { races_on_team(launch) } else { races(launch) }
        };
        let found = run(program.body);
        assert!(found.is_empty(), "{}: {found:?}", program.name);
        programs += 1;
        for (from, to) in program.plants {
            assert!(program.body.contains(from), "{}: {from}", program.name);
            let changed = program.body.replacen(from, to, 1);
            let found = run(&changed);
            assert!(!found.is_empty(), "{}: {from} -> {to}", program.name);
            let other = found.iter().find(|race| !program.has_planted(race, &changed));
            assert_eq!(other, None, "{}: {from} -> {to}", program.name);
            planted += 1;
        }
    }
    assert_eq!((programs, planted), (33, 113), "docs/race-detector.md has these numbers");
}

/// The race is found when the writer stores, and ends its kernel before that has stored: the reader would poll for ever.
#[test]
fn a_kernel_that_polls_by_weak_loads_ends_when_its_partner_has_found_a_race() {
    let poll = "
READ:
    ld.weak.global.u32 %r0, [%data];
    st.relaxed.sys.global.u32 [%flag], 1;
    setp.ne.u32 %p0, %r0, 7;
    @%p0 bra READ;";
    let store = "
WAIT:
    ld.relaxed.sys.global.u32 %r0, [%flag];
    setp.ne.u32 %p0, %r0, 1;
    @%p0 bra WAIT;
    st.relaxed.sys.global.u32 [%data], 7;";
    let found = races(|devices| {
        devices.launch(poll, 1, 1, 1);
        devices.launch(store, 0, 1, 1);
    });
    let [race] = &found[..] else { panic!("{found:?}") };
    assert!(race.contains("weak") && race.contains("strong"), "{race}");
}

/// Also where the code of a kernel that is gone lay at the same address.
#[test]
fn a_race_is_reported_with_both_lines() {
    let store = "    st.weak.global.u32 [%data], 7;";
    for blank in 0..8 {
        let body = "\n".repeat(blank) + store;
        let line = 1 + kernel(&body).lines().position(|line| line == store).unwrap();
        let found = races(|devices| devices.launch(&body, 0, 2, 1));
        let [race] = &found[..] else { panic!("{found:?}") };
        assert_eq!(race.matches(&format!("k, line {line}, block")).count(), 2, "{race}");
        assert!(race.contains("block 0, thread 0") && race.contains("block 1, thread 0"), "{race}");
        assert!(race.contains("nothing orders them"), "{race}");
    }
}
