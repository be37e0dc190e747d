//! Two places or more: what one thread may see of another's order.

use crate::judge::Seen::{Register, Word};
use crate::judge::{Form, Litmus, run};

const ALL: &[&[u32]] = &[&[0, 0], &[0, 1], &[1, 0], &[1, 1]];

#[test]
fn message_passing() {
    const SAFE: &[&[u32]] = &[&[0, 0], &[0, 1], &[1, 1]];
    run(&[Litmus {
        name: "message passing",
        threads: &[
            "st.relaxed.SCOPE.global.u32 [%x], 1; {A} st{C}.SCOPE.global.u32 [%y], 1;",
            "ld{D}.SCOPE.global.u32 %r0, [%y]; {B} ld.relaxed.SCOPE.global.u32 %r1, [%x];",
        ],
        seen: &[Register(1, 0), Register(1, 1)],
        forms: &[
            Form { name: "unfenced", fills: &[("{C}", ".relaxed"), ("{D}", ".relaxed")], allowed: ALL },
            Form {
                name: "release, acquire",
                fills: &[("{C}", ".release"), ("{D}", ".acquire")],
                allowed: SAFE,
            },
            Form { name: "release only", fills: &[("{C}", ".release"), ("{D}", ".relaxed")], allowed: ALL },
            Form { name: "acquire only", fills: &[("{C}", ".relaxed"), ("{D}", ".acquire")], allowed: ALL },
            Form {
                name: "fences",
                fills: &[
                    ("{A}", "fence.acq_rel.SCOPE;"),
                    ("{B}", "fence.acq_rel.SCOPE;"),
                    ("{C}", ".relaxed"),
                    ("{D}", ".relaxed"),
                ],
                allowed: SAFE,
            },
            Form {
                name: "a fence of block scope",
                fills: &[
                    ("{A}", "fence.acq_rel.cta;"),
                    ("{B}", "fence.acq_rel.SCOPE;"),
                    ("{C}", ".relaxed"),
                    ("{D}", ".relaxed"),
                ],
                allowed: ALL,
            },
            Form {
                name: "an address that depends on the flag",
                fills: &[
                    ("{B}", "and.b32 %t1, %r0, 2; cvt.u64.u32 %at, %t1; add.u64 %x, %x, %at;"),
                    ("{C}", ".release"),
                    ("{D}", ".relaxed"),
                ],
                allowed: ALL,
            },
            Form {
                name: "a branch that depends on the flag",
                fills: &[
                    ("{B}", "setp.eq.u32 %p1, %r0, 7; @%p1 bra DONE;"),
                    ("{C}", ".release"),
                    ("{D}", ".relaxed"),
                ],
                allowed: ALL,
            },
            Form {
                name: "a release, then a relaxed store of the same word",
                fills: &[
                    (
                        "{C}.SCOPE.global.u32 [%y], 1;",
                        ".release.SCOPE.global.u32 [%y], 0; st.relaxed.SCOPE.global.u32 [%y], 1;",
                    ),
                    ("{D}", ".acquire"),
                ],
                allowed: SAFE,
            },
        ],
    }]);
}

#[test]
fn store_buffering() {
    run(&[Litmus {
        name: "store buffering",
        threads: &[
            "st{C}.SCOPE.global.u32 [%x], 1; {A} ld{D}.SCOPE.global.u32 %r0, [%y];",
            "st{C}.SCOPE.global.u32 [%y], 1; {B} ld{D}.SCOPE.global.u32 %r0, [%x];",
        ],
        seen: &[Register(0, 0), Register(1, 0)],
        forms: &[
            Form { name: "unfenced", fills: &[("{C}", ".relaxed"), ("{D}", ".relaxed")], allowed: ALL },
            Form {
                name: "release, acquire",
                fills: &[("{C}", ".release"), ("{D}", ".acquire")],
                allowed: ALL,
            },
            Form {
                name: "fence.acq_rel",
                fills: &[
                    ("{A}", "fence.acq_rel.SCOPE;"),
                    ("{B}", "fence.acq_rel.SCOPE;"),
                    ("{C}", ".relaxed"),
                    ("{D}", ".relaxed"),
                ],
                allowed: ALL,
            },
            Form {
                name: "fence.sc",
                fills: &[
                    ("{A}", "fence.sc.SCOPE;"),
                    ("{B}", "fence.sc.SCOPE;"),
                    ("{C}", ".relaxed"),
                    ("{D}", ".relaxed"),
                ],
                allowed: &[&[0, 1], &[1, 0], &[1, 1]],
            },
            Form {
                name: "fence.sc on one side",
                fills: &[("{A}", "fence.sc.SCOPE;"), ("{C}", ".relaxed"), ("{D}", ".relaxed")],
                allowed: ALL,
            },
            Form {
                name: "fence.sc of block scope on one side",
                fills: &[
                    ("{A}", "fence.sc.SCOPE;"),
                    ("{B}", "fence.sc.cta;"),
                    ("{C}", ".relaxed"),
                    ("{D}", ".relaxed"),
                ],
                allowed: ALL,
            },
        ],
    }]);
}

#[test]
fn load_buffering() {
    const SAFE: &[&[u32]] = &[&[0, 0], &[0, 1], &[1, 0]];
    run(&[Litmus {
        name: "load buffering",
        threads: &[
            "ld{D}.SCOPE.global.u32 %r0, [%x]; {A} st{C}.SCOPE.global.u32 [%y], %t1;",
            "ld{D}.SCOPE.global.u32 %r0, [%y]; {B} st{C}.SCOPE.global.u32 [%x], %t1;",
        ],
        seen: &[Register(0, 0), Register(1, 0)],
        forms: &[
            Form {
                name: "unfenced",
                fills: &[
                    ("{A}", "mov.u32 %t1, 1;"),
                    ("{B}", "mov.u32 %t1, 1;"),
                    ("{C}", ".relaxed"),
                    ("{D}", ".relaxed"),
                ],
                allowed: ALL,
            },
            Form {
                name: "a value that depends on the load, on one side",
                fills: &[
                    ("{A}", "and.b32 %t1, %r0, 2; or.b32 %t1, %t1, 1;"),
                    ("{B}", "mov.u32 %t1, 1;"),
                    ("{C}", ".relaxed"),
                    ("{D}", ".relaxed"),
                ],
                allowed: ALL,
            },
            Form {
                name: "values that depend on the loads",
                fills: &[
                    ("{A}", "and.b32 %t1, %r0, 2; or.b32 %t1, %t1, 1;"),
                    ("{B}", "and.b32 %t1, %r0, 2; or.b32 %t1, %t1, 1;"),
                    ("{C}", ".relaxed"),
                    ("{D}", ".relaxed"),
                ],
                allowed: SAFE,
            },
            Form {
                name: "branches that depend on the loads",
                fills: &[
                    ("{A}", "setp.eq.u32 %p1, %r0, 7; @%p1 bra DONE; mov.u32 %t1, 1;"),
                    ("{B}", "setp.eq.u32 %p1, %r0, 7; @%p1 bra DONE; mov.u32 %t1, 1;"),
                    ("{C}", ".relaxed"),
                    ("{D}", ".relaxed"),
                ],
                allowed: SAFE,
            },
            Form {
                name: "fences",
                fills: &[
                    ("{A}", "mov.u32 %t1, 1; fence.acq_rel.SCOPE;"),
                    ("{B}", "mov.u32 %t1, 1; fence.acq_rel.SCOPE;"),
                    ("{C}", ".relaxed"),
                    ("{D}", ".relaxed"),
                ],
                allowed: SAFE,
            },
            Form {
                name: "release, acquire",
                fills: &[
                    ("{A}", "mov.u32 %t1, 1;"),
                    ("{B}", "mov.u32 %t1, 1;"),
                    ("{C}", ".release"),
                    ("{D}", ".acquire"),
                ],
                allowed: SAFE,
            },
        ],
    }]);
}

#[test]
fn write_to_read_causality() {
    const ANY: &[&[u32]] =
        &[&[0, 0, 0], &[0, 0, 1], &[0, 1, 0], &[0, 1, 1], &[1, 0, 0], &[1, 0, 1], &[1, 1, 0], &[1, 1, 1]];
    // The second thread tells of what it saw, so the third must not miss it.
    const SAFE: &[&[u32]] =
        &[&[0, 0, 0], &[0, 0, 1], &[0, 1, 0], &[0, 1, 1], &[1, 0, 0], &[1, 0, 1], &[1, 1, 1]];
    run(&[Litmus {
        name: "write to read causality",
        threads: &[
            "st.relaxed.SCOPE.global.u32 [%x], 1;",
            "ld.relaxed.SCOPE.global.u32 %r0, [%x]; {A} st{C}.SCOPE.global.u32 [%y], 1;",
            "ld{D}.SCOPE.global.u32 %r0, [%y]; {B} ld.relaxed.SCOPE.global.u32 %r1, [%x];",
        ],
        seen: &[Register(1, 0), Register(2, 0), Register(2, 1)],
        forms: &[
            Form { name: "unfenced", fills: &[("{C}", ".relaxed"), ("{D}", ".relaxed")], allowed: ANY },
            Form {
                name: "release, acquire",
                fills: &[("{C}", ".release"), ("{D}", ".acquire")],
                allowed: SAFE,
            },
            Form {
                name: "fences",
                fills: &[
                    ("{A}", "fence.acq_rel.SCOPE;"),
                    ("{B}", "fence.acq_rel.SCOPE;"),
                    ("{C}", ".relaxed"),
                    ("{D}", ".relaxed"),
                ],
                allowed: SAFE,
            },
        ],
    }]);
}

/// All outcomes of four bits but `except`.
const fn of_four<const N: usize>() -> [[u32; 4]; N] {
    let mut all = [[0; 4]; N];
    let (mut at, mut bits) = (0, 0);
    while at < N {
        // With one less than all, the one that is left out is 1, 0, 1, 0.
        if N == 16 || bits != 0b1010 {
            all[at] = [bits >> 3 & 1, bits >> 2 & 1, bits >> 1 & 1, bits & 1];
            at += 1;
        }
        bits += 1;
    }
    all
}

const fn slices<const N: usize>(all: &'static [[u32; 4]; N]) -> [&'static [u32]; N] {
    let mut slices: [&[u32]; N] = [&[]; N];
    let mut at = 0;
    while at < N {
        slices[at] = &all[at];
        at += 1;
    }
    slices
}

#[test]
fn independent_reads_of_independent_writes() {
    const ANY: &[&[u32]] = &slices(&of_four::<16>());
    const SAFE: &[&[u32]] = &slices(&of_four::<15>());
    run(&[Litmus {
        name: "independent reads of independent writes",
        threads: &[
            "st{C}.SCOPE.global.u32 [%x], 1;",
            "st{C}.SCOPE.global.u32 [%y], 1;",
            "nanosleep.u32 1; nanosleep.u32 1; ld{D}.SCOPE.global.u32 %r0, [%x]; {A} ld{D}.SCOPE.global.u32 %r1, [%y];",
            "nanosleep.u32 1; nanosleep.u32 1; ld{D}.SCOPE.global.u32 %r0, [%y]; {A} ld{D}.SCOPE.global.u32 %r1, [%x];",
        ],
        seen: &[Register(2, 0), Register(2, 1), Register(3, 0), Register(3, 1)],
        forms: &[
            Form { name: "unfenced", fills: &[("{C}", ".relaxed"), ("{D}", ".relaxed")], allowed: ANY },
            Form {
                name: "release, acquire",
                fills: &[("{C}", ".release"), ("{D}", ".acquire")],
                allowed: ANY,
            },
            Form {
                name: "fence.acq_rel",
                fills: &[("{A}", "fence.acq_rel.SCOPE;"), ("{C}", ".relaxed"), ("{D}", ".relaxed")],
                allowed: ANY,
            },
            Form {
                name: "fence.sc",
                fills: &[("{A}", "fence.sc.SCOPE;"), ("{C}", ".relaxed"), ("{D}", ".relaxed")],
                allowed: SAFE,
            },
        ],
    }]);
}

#[test]
fn two_writers_of_two_places() {
    const BOTH: &[&[u32]] = &[&[1, 1], &[1, 2], &[2, 1], &[2, 2]];
    run(&[Litmus {
        name: "2+2W",
        threads: &[
            "st.relaxed.SCOPE.global.u32 [%x], 1; {A} st{C}.SCOPE.global.u32 [%y], 2;",
            "st.relaxed.SCOPE.global.u32 [%y], 1; {A} st{C}.SCOPE.global.u32 [%x], 2;",
        ],
        seen: &[Word(0), Word(1)],
        forms: &[
            Form { name: "unfenced", fills: &[("{C}", ".relaxed")], allowed: BOTH },
            Form { name: "releases that nobody acquires", fills: &[("{C}", ".release")], allowed: BOTH },
            Form {
                name: "fence.sc",
                fills: &[("{A}", "fence.sc.SCOPE;"), ("{C}", ".relaxed")],
                allowed: &[&[1, 2], &[2, 1], &[2, 2]],
            },
        ],
    }]);
}

#[test]
fn a_write_behind_an_acquired_one() {
    const SAFE: &[&[u32]] = &[&[0, 1], &[0, 2], &[1, 1]];
    run(&[Litmus {
        name: "S",
        threads: &[
            "st.relaxed.SCOPE.global.u32 [%x], 2; st{C}.SCOPE.global.u32 [%y], 1;",
            "ld{D}.SCOPE.global.u32 %r0, [%y]; {B} st.relaxed.SCOPE.global.u32 [%x], 1;",
        ],
        seen: &[Register(1, 0), Word(0)],
        forms: &[
            Form {
                name: "unfenced",
                fills: &[("{C}", ".relaxed"), ("{D}", ".relaxed")],
                allowed: &[&[0, 1], &[0, 2], &[1, 1], &[1, 2]],
            },
            Form {
                name: "release, acquire",
                fills: &[("{C}", ".release"), ("{D}", ".acquire")],
                allowed: SAFE,
            },
        ],
    }]);
}
