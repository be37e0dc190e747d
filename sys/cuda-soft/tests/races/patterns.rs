//! Release and acquire patterns that take two accesses of one word, with another thread's store between them, and reductions, which pass
//! releases on and are no part of an acquire pattern.

use crate::program::{DATA, Program};

pub(crate) const PROGRAMS: &[Program] = &[
    Program {
        name: "a relaxed load that sees a release, and an acquire of the same word that sees another store",
        body: "
    setp.eq.u32 %p0, %block, 1;
    @%p0 bra AGAIN;
    setp.eq.u32 %p0, %block, 2;
    @%p0 bra READ;
    st.weak.global.u32 [%data], 7;
    st.release.gpu.global.u32 [%flag], 1;
    bra DONE;
AGAIN:
    ld.relaxed.gpu.global.u32 %r0, [%flag+128];
    setp.ne.u32 %p1, %r0, 2;
    @%p1 bra AGAIN;
    st.relaxed.gpu.global.u32 [%flag], 2;
    st.release.gpu.global.u32 [%flag+256], 2;
    bra DONE;
READ:
    ld.relaxed.gpu.global.u32 %r0, [%flag];
    setp.ne.u32 %p1, %r0, 1;
    @%p1 bra READ;
    st.relaxed.gpu.global.u32 [%flag+128], 2;
LAST:
    ld.acquire.gpu.global.u32 %r0, [%flag+256];
    setp.ne.u32 %p1, %r0, 2;
    @%p1 bra LAST;
    ld.acquire.gpu.global.u32 %r0, [%flag]; // again
    ld.weak.global.u32 %r1, [%data];",
        guarded: DATA,
        devices: 1,
        grid: 3,
        block: 1,
        plants: &[
            ("st.release.gpu", "st.relaxed.gpu"),
            ("ld.acquire.gpu.global.u32 %r0, [%flag];", ""),
            ("ld.acquire.gpu.global.u32 %r0, [%flag];", "ld.relaxed.gpu.global.u32 %r0, [%flag];"),
            ("ld.acquire.gpu.global.u32 %r0, [%flag];", "ld.acquire.cta.global.u32 %r0, [%flag];"),
            ("ld.acquire.gpu.global.u32 %r0, [%flag];", "ld.acquire.gpu.global.u32 %r0, [%flag+128];"),
        ],
    },
    Program {
        name: "a release, and behind another thread's store a relaxed one of the same word",
        body: "
    setp.eq.u32 %p0, %block, 1;
    @%p0 bra BETWEEN;
    setp.eq.u32 %p0, %block, 2;
    @%p0 bra READ;
    st.weak.global.u32 [%data], 7;
    st.release.gpu.global.u32 [%flag], 1;
AGAIN:
    ld.relaxed.gpu.global.u32 %r0, [%flag];
    setp.ne.u32 %p1, %r0, 2;
    @%p1 bra AGAIN;
    st.relaxed.gpu.global.u32 [%flag], 3;
    bra DONE;
BETWEEN:
    ld.relaxed.gpu.global.u32 %r0, [%flag];
    setp.ne.u32 %p1, %r0, 1;
    @%p1 bra BETWEEN;
    st.relaxed.gpu.global.u32 [%flag], 2;
    bra DONE;
READ:
    ld.acquire.gpu.global.u32 %r0, [%flag];
    setp.ne.u32 %p1, %r0, 3;
    @%p1 bra READ;
    ld.weak.global.u32 %r1, [%data];",
        guarded: DATA,
        devices: 1,
        grid: 3,
        block: 1,
        plants: &[
            ("st.release.gpu", "st.relaxed.gpu"),
            ("st.release.gpu", "st.release.cta"),
            ("AGAIN:", "    st.weak.global.u32 [%data], 8;\nAGAIN:"),
            (
                "st.release.gpu.global.u32 [%flag], 1;",
                "st.release.gpu.global.u32 [%flag+128], 1;\n    st.relaxed.gpu.global.u32 [%flag], 1;",
            ),
        ],
    },
    Program {
        name: "two relaxed loads that see one fence, and an acquire of the second word that sees another store",
        body: "
    setp.eq.u32 %p0, %block, 1;
    @%p0 bra AGAIN;
    setp.eq.u32 %p0, %block, 2;
    @%p0 bra READ;
    st.weak.global.u32 [%data], 7;
    fence.acq_rel.gpu;
    st.relaxed.gpu.global.u32 [%flag], 1;
    st.relaxed.gpu.global.u32 [%flag+128], 1;
    bra DONE;
AGAIN:
    ld.relaxed.gpu.global.u32 %r0, [%flag+256];
    setp.ne.u32 %p1, %r0, 2;
    @%p1 bra AGAIN;
    st.relaxed.gpu.global.u32 [%flag+128], 2;
    st.release.gpu.global.u32 [%flag+384], 2;
    bra DONE;
READ:
    ld.relaxed.gpu.global.u32 %r0, [%flag];
    setp.ne.u32 %p1, %r0, 1;
    @%p1 bra READ;
NEXT:
    ld.relaxed.gpu.global.u32 %r0, [%flag+128];
    setp.ne.u32 %p1, %r0, 1;
    @%p1 bra NEXT;
    st.relaxed.gpu.global.u32 [%flag+256], 2;
LAST:
    ld.acquire.gpu.global.u32 %r0, [%flag+384];
    setp.ne.u32 %p1, %r0, 2;
    @%p1 bra LAST;
    ld.acquire.gpu.global.u32 %r0, [%flag+128]; // again
    ld.weak.global.u32 %r1, [%data];",
        guarded: DATA,
        devices: 1,
        grid: 3,
        block: 1,
        plants: &[
            ("fence.acq_rel.gpu;", ""),
            ("ld.acquire.gpu.global.u32 %r0, [%flag+128]; // again", ""),
            ("[%flag+128]; // again", "[%flag+512];"),
        ],
    },
    Program {
        name: "a reduction passes a release on",
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
    red.add.relaxed.gpu.global.u32 [%flag], 1;
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
        plants: &[
            ("red.add.relaxed.gpu.global.u32 [%flag], 1;", "st.relaxed.gpu.global.u32 [%flag], 2;"),
            ("st.release.gpu", "st.relaxed.gpu"),
        ],
    },
    Program {
        name: "an atomic operation and a fence acquire, a reduction and a fence do not",
        body: "
    setp.eq.u32 %p0, %block, 1;
    @%p0 bra READ;
    st.weak.global.u32 [%data], 7;
    st.release.gpu.global.u32 [%flag], 1;
    st.relaxed.gpu.global.u32 [%flag+128], 1;
    bra DONE;
READ:
    ld.relaxed.gpu.global.u32 %r0, [%flag+128];
    setp.ne.u32 %p1, %r0, 1;
    @%p1 bra READ;
    mov.u32 %r0, 1;
    atom.add.relaxed.gpu.global.u32 %r0, [%flag], 1;
    setp.ne.u32 %p1, %r0, 1;
    @%p1 bra DONE;
    fence.acq_rel.gpu;
    ld.weak.global.u32 %r1, [%data];",
        guarded: DATA,
        devices: 1,
        grid: 2,
        block: 1,
        plants: &[
            (
                "atom.add.relaxed.gpu.global.u32 %r0, [%flag], 1;",
                "red.add.relaxed.gpu.global.u32 [%flag], 1;",
            ),
            (
                "atom.add.relaxed.gpu.global.u32 %r0, [%flag], 1;",
                "red.add.release.gpu.global.u32 [%flag], 1;",
            ),
            (
                "atom.add.relaxed.gpu.global.u32 %r0, [%flag], 1;",
                "atom.add.relaxed.gpu.global.u32 _, [%flag], 1;",
            ),
            ("fence.acq_rel.gpu;", ""),
        ],
    },
    Program {
        name: "a barrier behind which all are equal, though one thread had done more before",
        body: "
    setp.ne.u32 %p0, %tid, 0;
    @%p0 bra MEET;
    fence.acq_rel.gpu;
    fence.acq_rel.gpu;
    fence.acq_rel.gpu;
    fence.acq_rel.gpu;
MEET:
    bar.sync 0;
    setp.ne.u32 %p0, %tid, 32;
    @%p0 bra MEET_AGAIN;
    st.weak.global.u32 [%data], 7;
MEET_AGAIN:
    bar.sync 0; // written
    setp.ne.u32 %p0, %tid, 0;
    @%p0 bra DONE;
    ld.weak.global.u32 %r1, [%data];",
        guarded: DATA,
        devices: 1,
        grid: 1,
        block: 64,
        plants: &[("bar.sync 0; // written", ""), ("bar.sync 0; // written", "fence.acq_rel.cta;")],
    },
    Program {
        name: "a message by fences of one direction each",
        body: "
    setp.ne.u32 %p0, %block, 0;
    @%p0 bra READ;
    st.weak.global.u32 [%data], 7;
    fence.release.gpu;
    st.relaxed.gpu.global.u32 [%flag], 1;
    bra DONE;
READ:
    ld.relaxed.gpu.global.u32 %r0, [%flag];
    setp.ne.u32 %p1, %r0, 1;
    @%p1 bra READ;
    fence.acquire.gpu;
    ld.weak.global.u32 %r1, [%data];",
        guarded: DATA,
        devices: 1,
        grid: 2,
        block: 1,
        plants: &[("fence.release.gpu", "fence.acquire.gpu"), ("fence.acquire.gpu", "fence.release.gpu")],
    },
    Program {
        name: "a line that is discarded",
        body: "
    setp.ne.u32 %p0, %block, 0;
    @%p0 bra READ;
    discard.global.L2 [%data], 128;
    st.release.gpu.global.u32 [%flag], 1;
    bra DONE;
READ:
    ld.acquire.gpu.global.u32 %r0, [%flag];
    setp.ne.u32 %p1, %r0, 1;
    @%p1 bra READ;
    ld.weak.global.u32 %r1, [%data+124];",
        guarded: DATA,
        devices: 1,
        grid: 2,
        block: 1,
        plants: &[
            ("st.release.gpu", "st.relaxed.gpu"),
            ("READ:", "READ:\n    ld.weak.global.u32 %r1, [%data+124];"),
            ("READ:", "READ:\n    discard.L2 [%data], 128;"),
        ],
    },
];
