//! Accesses by multicast addresses, beside each other and beside those by the memory's own addresses, which are aliases.

use crate::device::{kernel, races_on_team};
use crate::program::Program;

const GUARDED: &[&str] = &["[%data", "[%all", "[%at]"];
const FENCE: &str = "    fence.proxy.alias;\n";

pub(crate) const PROGRAMS: &[Program] = &[
    Program {
        name: "data and a flag for all devices; the writer fences aliases",
        body: "
    setp.eq.u32 %p0, %rank, 1;
    @%p0 bra READ;
    multimem.st.weak.global.v4.f32 [%all], {0f3F800000, 0f3F800000, 0f3F800000, 0f3F800000};
    fence.proxy.alias;
    multimem.st.release.sys.global.u32 [%all+4096], 1;
    bra DONE;
READ:
    ld.acquire.sys.global.u32 %r0, [%flag];
    setp.ne.u32 %p1, %r0, 1;
    @%p1 bra READ;
    ld.weak.global.u32 %r1, [%data+8];",
        guarded: GUARDED,
        devices: 2,
        grid: 1,
        block: 1,
        plants: &[
            (FENCE, ""),
            ("fence.proxy.alias;", "fence.acq_rel.sys;"),
            ("multimem.st.release.sys", "multimem.st.relaxed.sys"),
            ("multimem.st.release.sys", "multimem.st.release.gpu"),
            ("multimem.st.release.sys.global", "multimem.st.weak.global"),
            ("ld.acquire.sys", "ld.relaxed.sys"),
            ("ld.acquire.sys", "ld.acquire.gpu"),
            (
                "    fence.proxy.alias;\n    multimem.st.release.sys.global.u32 [%all+4096], 1;",
                "    multimem.st.release.sys.global.u32 [%all+4096], 1;\n    fence.proxy.alias;",
            ),
        ],
    },
    Program {
        name: "data and a flag for all devices; the reader fences aliases",
        body: "
    setp.eq.u32 %p0, %rank, 1;
    @%p0 bra READ;
    multimem.st.relaxed.sys.global.u32 [%all], 7;
    multimem.red.release.sys.global.or.b32 [%all+4096], 1;
    bra DONE;
READ:
    ld.acquire.sys.global.u32 %r0, [%flag];
    setp.ne.u32 %p1, %r0, 1;
    @%p1 bra READ;
    fence.proxy.alias;
    ld.weak.global.u32 %r1, [%data];",
        guarded: GUARDED,
        devices: 2,
        grid: 1,
        block: 1,
        plants: &[
            (FENCE, ""),
            ("READ:", "    fence.proxy.alias;\nREAD:\n    ld.weak.global.u32 %r1, [%data];"),
            ("multimem.red.release.sys", "multimem.red.relaxed.sys"),
            ("multimem.red.release.sys", "multimem.red.release.gpu"),
        ],
    },
    Program {
        name: "sums of what all devices stored, once each has told all",
        body: "
    st.weak.global.u32 [%data], 7;
    multimem.red.release.sys.global.add.u32 [%all+4096], 1;
WAIT:
    ld.acquire.sys.global.u32 %r0, [%flag];
    setp.ne.u32 %p0, %r0, 2;
    @%p0 bra WAIT;
    fence.proxy.alias;
    multimem.ld_reduce.weak.global.add.u32 %r1, [%all];",
        guarded: GUARDED,
        devices: 2,
        grid: 1,
        block: 1,
        plants: &[
            (FENCE, ""),
            ("multimem.red.release.sys", "multimem.red.relaxed.sys"),
            ("multimem.red.release.sys", "multimem.red.release.gpu"),
            ("ld.acquire.sys", "ld.relaxed.sys"),
            ("multimem.ld_reduce.weak.global.add.u32 %r1, [%all];", "multimem.st.weak.global.u32 [%all], 1;"),
            ("WAIT:", "    st.weak.global.u32 [%data], 8;\nWAIT:"),
        ],
    },
    Program {
        name: "sums that wait for each other's stores by sums of flags",
        body: "
    st.weak.global.u32 [%data], 7;
    st.release.sys.global.u32 [%flag], 1;
WAIT:
    multimem.ld_reduce.acquire.sys.global.add.u32 %r0, [%all+4096];
    setp.ne.u32 %p0, %r0, 2;
    @%p0 bra WAIT;
    fence.proxy.alias;
    multimem.ld_reduce.weak.global.add.u32 %r1, [%all];",
        guarded: GUARDED,
        devices: 2,
        grid: 1,
        block: 1,
        plants: &[
            (FENCE, ""),
            ("st.release.sys", "st.relaxed.sys"),
            ("st.release.sys", "st.release.gpu"),
            ("multimem.ld_reduce.acquire.sys", "multimem.ld_reduce.relaxed.sys"),
            ("multimem.ld_reduce.acquire.sys", "multimem.ld_reduce.acquire.gpu"),
            ("multimem.ld_reduce.acquire.sys", "multimem.ld_reduce.weak"),
            (
                "    fence.proxy.alias;\n    multimem.ld_reduce.weak.global.add.u32 %r1, [%all];",
                "    multimem.ld_reduce.relaxed.gpu.global.add.u32 %r1, [%all];",
            ),
        ],
    },
    Program {
        name: "packets for all devices",
        body: "
    setp.eq.u32 %p0, %rank, 1;
    @%p0 bra READ;
    multimem.st.relaxed.sys.global.b64 [%all], 0x100000007;
    bra DONE;
READ:
    ld.relaxed.sys.global.v2.u64 {%d0, %d1}, [%data];
    setp.ne.u64 %p1, %d0, 0x100000007;
    @%p1 bra READ;",
        guarded: GUARDED,
        devices: 2,
        grid: 1,
        block: 1,
        plants: &[
            ("multimem.st.relaxed.sys.global", "multimem.st.weak.global"),
            ("multimem.st.relaxed.sys", "multimem.st.relaxed.gpu"),
            ("ld.relaxed.sys.global", "ld.weak.global"),
            ("ld.relaxed.sys.global", "ld.relaxed.gpu.global"),
            (
                "multimem.st.relaxed.sys.global.b64 [%all], 0x100000007;",
                "multimem.st.relaxed.sys.global.b32 [%all], 7;",
            ),
        ],
    },
    Program {
        name: "stores to all devices, each device's to places of its own",
        body: "
    mad.wide.u32 %at, %rank, 4, %all;
    multimem.st.weak.global.u32 [%at], 7;",
        guarded: GUARDED,
        devices: 2,
        grid: 1,
        block: 1,
        plants: &[
            ("%rank, 4", "%rank, 0"),
            (
                "multimem.st.weak.global.u32 [%at], 7;",
                "multimem.st.weak.global.v2.f32 [%all], {0f00000000, 0f00000000};",
            ),
            ("multimem.st.weak.global.u32 [%at], 7;", "multimem.red.relaxed.gpu.global.add.u32 [%all], 7;"),
            (
                "multimem.st.weak.global.u32 [%at], 7;",
                "multimem.st.weak.global.u32 [%at], 7;\n    multimem.ld_reduce.weak.global.add.u32 %r0, [%all];",
            ),
        ],
    },
    Program {
        name: "additions of all devices at one place",
        body: "
    multimem.red.global.add.u32 [%all], 7;",
        guarded: GUARDED,
        devices: 2,
        grid: 2,
        block: 1,
        plants: &[
            ("multimem.red.global", "multimem.red.relaxed.gpu.global"),
            ("multimem.red.global.add", "multimem.st.global"),
        ],
    },
    Program {
        name: "a word that is set by its own address, then by the multicast address",
        body: "
    st.relaxed.sys.global.u32 [%data], 0;
    fence.proxy.alias;
    multimem.st.relaxed.sys.global.u32 [%all], 1;",
        guarded: GUARDED,
        devices: 1,
        grid: 1,
        block: 1,
        plants: &[(FENCE, "")],
    },
    Program {
        name: "a store, a block barrier, and a thread that fences aliases before its sum",
        body: "
    setp.eq.u32 %p0, %tid, 0;
    @%p0 st.weak.global.u32 [%data], 7;
    bar.sync 0;
    @!%p0 fence.proxy.alias;
    @!%p0 multimem.ld_reduce.weak.global.add.u32 %r0, [%all];",
        guarded: GUARDED,
        devices: 1,
        grid: 1,
        block: 64,
        plants: &[
            ("    @!%p0 fence.proxy.alias;\n", ""),
            ("@!%p0 fence.proxy.alias", "@%p0 fence.proxy.alias"),
            ("bar.sync 0;", ""),
        ],
    },
    Program {
        name: "a sum, a thread that fences aliases before a block barrier, and a store",
        body: "
    setp.eq.u32 %p0, %tid, 40;
    @%p0 multimem.ld_reduce.weak.global.add.u32 %r0, [%all];
    @%p0 fence.proxy.alias;
    bar.sync 0;
    setp.eq.u32 %p1, %tid, 0;
    @%p1 st.weak.global.u32 [%data], 7;",
        guarded: GUARDED,
        devices: 1,
        grid: 1,
        block: 64,
        plants: &[
            ("    @%p0 fence.proxy.alias;\n", ""),
            ("@%p0 fence.proxy.alias", "@!%p0 fence.proxy.alias"),
        ],
    },
    Program {
        name: "a thread that hands on to all what it has read at the same place",
        body: "
    mad.wide.u32 %at, %tid, 4, %data;
    mad.wide.u32 %d1, %tid, 4, %all;
    ld.weak.global.u32 %r0, [%at];
    multimem.st.weak.global.u32 [%d1], %r0;
    fence.proxy.alias;
    ld.weak.global.u32 %r0, [%at]; // again",
        guarded: &["[%at]", "[%d1]"],
        devices: 1,
        grid: 1,
        block: 64,
        plants: &[
            (FENCE, ""),
            (
                "mad.wide.u32 %d1, %tid, 4, %all;",
                "xor.b32 %r1, %tid, 1;\n    mad.wide.u32 %d1, %r1, 4, %all;",
            ),
        ],
    },
];

const STORE: &str = "    st.weak.global.u32 [%data], 7;";
const STORE_TO_ALL: &str = "    multimem.st.weak.global.u32 [%all], 7;";

#[test]
fn a_missing_fence_between_aliases_is_a_finding_of_its_own() {
    let body = format!("{STORE}\n{STORE_TO_ALL}");
    let found = races_on_team(|devices| devices.launch(&body, 0, 1, 1));
    let [race] = &found[..] else { panic!("{found:?}") };
    let what =
        "one is through another alias without fence.proxy.alias between, and nothing else orders them\n";
    assert!(race.contains(what), "{race}");
    assert!(race.contains("writes 4 bytes (weak): k, line"), "{race}");
    assert!(race.contains("writes 4 bytes (weak, multicast): k, line"), "{race}");
}

/// Work that begins behind the end of a kernel sees by all aliases what the kernel did.
#[test]
fn the_end_of_a_kernel_needs_no_fence() {
    for [first, then] in [[STORE, STORE_TO_ALL], [STORE_TO_ALL, STORE]] {
        let found = races_on_team(|devices| {
            for device in [0, 1] {
                // To load the second later would wait for the first: then the host knows of its end, too.
                let kernels = [first, then].map(|body| devices.load(&kernel(body), device));
                kernels.into_iter().for_each(|kernel| devices.launch_loaded(kernel, device, 1, 1));
                devices.wait(device);
            }
        });
        assert_eq!(found, [""; 0]);
    }
}

/// A kernel that ends, and so lets the next begin, does not stand for the end of another that it has heard of.
#[test]
fn the_end_of_a_reader_is_not_the_end_of_the_writer() {
    let write = "
    multimem.st.weak.global.u32 [%all], 7;
    multimem.st.release.sys.global.u32 [%all+4096], 1;
WAIT:
    ld.relaxed.sys.global.u32 %r0, [%flag+4];
    setp.ne.u32 %p0, %r0, 1;
    @%p0 bra WAIT;";
    let hear = "
WAIT:
    ld.acquire.sys.global.u32 %r0, [%flag];
    setp.ne.u32 %p0, %r0, 1;
    @%p0 bra WAIT;";
    let read = "
    ld.weak.global.u32 %r0, [%data];
    multimem.st.relaxed.sys.global.u32 [%all+4100], 1;";
    let found = |write: &str| {
        races_on_team(|devices| {
            devices.launch(write, 0, 1, 1);
            devices.launch(hear, 1, 1, 1);
            devices.launch(read, 1, 1, 1);
        })
    };
    let races = found(write);
    let [race] = &races[..] else { panic!("{races:?}") };
    assert!(race.contains("without fence.proxy.alias"), "{race}");
    let fenced = write.replacen("[%all], 7;", "[%all], 7;\n    fence.proxy.alias;", 1);
    assert_eq!(found(&fenced), [""; 0]);
}
