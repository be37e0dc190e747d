//! One place: a thread never goes back.

use std::collections::BTreeMap;

use cuda_soft::Lines;

use crate::judge::Seen::{Register, Word};
use crate::judge::{Form, Litmus, run};
use crate::rig::{self, Devices, Placement};

#[test]
fn reads_of_a_thread_do_not_go_back() {
    run(&[Litmus {
        name: "CoRR",
        threads: &[
            "st.relaxed.SCOPE.global.u32 [%x], 1; st.relaxed.SCOPE.global.u32 [%x], 2;",
            "ld.relaxed.SCOPE.global.u32 %r0, [%x]; ld.relaxed.SCOPE.global.u32 %r1, [%x];",
        ],
        seen: &[Register(1, 0), Register(1, 1)],
        forms: &[Form {
            name: "",
            fills: &[],
            allowed: &[&[0, 0], &[0, 1], &[0, 2], &[1, 1], &[1, 2], &[2, 2]],
        }],
    }]);
}

#[test]
fn a_thread_reads_its_own_write_or_a_later_one() {
    run(&[Litmus {
        name: "CoWR",
        threads: &[
            "st.relaxed.SCOPE.global.u32 [%x], 1; ld.relaxed.SCOPE.global.u32 %r0, [%x];",
            "st.relaxed.SCOPE.global.u32 [%x], 2;",
        ],
        seen: &[Register(0, 0), Word(0)],
        // The value read is not older than the one there at the end, if that is its own.
        forms: &[Form { name: "", fills: &[], allowed: &[&[1, 1], &[1, 2], &[2, 2]] }],
    }]);
}

#[test]
fn a_write_is_behind_what_its_thread_has_read() {
    run(&[Litmus {
        name: "CoRW",
        threads: &[
            "ld.relaxed.SCOPE.global.u32 %r0, [%x]; st.relaxed.SCOPE.global.u32 [%x], 1;",
            "st.relaxed.SCOPE.global.u32 [%x], 2;",
        ],
        seen: &[Register(0, 0), Word(0)],
        forms: &[Form { name: "", fills: &[], allowed: &[&[0, 1], &[0, 2], &[2, 1]] }],
    }]);
}

#[test]
fn writes_of_a_thread_stay_in_order() {
    run(&[Litmus {
        name: "CoWW",
        threads: &[
            "st.relaxed.SCOPE.global.u32 [%x], 1; st.relaxed.SCOPE.global.u32 [%x], 2;",
            "ld.relaxed.SCOPE.global.u32 %r0, [%x];",
        ],
        seen: &[Register(1, 0), Word(0)],
        forms: &[Form { name: "", fills: &[], allowed: &[&[0, 2], &[1, 2], &[2, 2]] }],
    }]);
}

/// There are 47 outcomes, too many for each to come in 1 % of the seeds. What one reader sees does.
#[test]
fn two_readers_agree_on_the_order_of_two_writes() {
    const SEEDS: u64 = 4 * rig::SEEDS;
    let pairs = || (0..9).map(|n| [n / 3, n % 3]).filter(|[first, second]| *first == 0 || *second != 0);
    // Each reader sees the writes in some order, and not both orders.
    let turned = |one: [u32; 2], other: [u32; 2]| one == [1, 2] && other == [2, 1];
    let devices = Devices::new();
    for (placement, scope) in [(Placement::Blocks, "gpu"), (Placement::Devices, "sys")] {
        let write = |value: u32| format!("st.relaxed.{scope}.global.u32 [%x], {value};");
        let read =
            || format!("ld.relaxed.{scope}.global.u32 %r0, [%x]; ld.relaxed.{scope}.global.u32 %r1, [%x];");
        let threads = [write(1), write(2), read(), read()];
        let outcomes = devices.count_of(0..SEEDS, &threads, placement, 1, Lines::Torn, |memory| {
            [2, 3]
                .into_iter()
                .flat_map(|reader| [0, 1].map(|number| memory.register(reader, 0, number)))
                .collect()
        });
        let mut seen = BTreeMap::new();
        for (outcome, count) in &outcomes {
            let readers = [[outcome[0], outcome[1]], [outcome[2], outcome[3]]];
            let [one, other] = readers;
            assert!(
                !turned(one, other) && !turned(other, one),
                "{placement:?}: {outcome:?} came {count} times"
            );
            for (reader, pair) in readers.into_iter().enumerate() {
                *seen.entry((reader, pair)).or_insert(0) += count;
            }
        }
        let expected: Vec<_> = (0..2).flat_map(|reader| pairs().map(move |pair| (reader, pair))).collect();
        assert!(seen.keys().eq(&expected), "{placement:?}: {seen:?}");
        assert!(seen.values().all(|count| count * 100 >= SEEDS), "{placement:?}: {seen:?}");
        assert!(outcomes.len() > 40, "{placement:?}: of 47 only these: {outcomes:?}");
    }
}

#[test]
fn atomic_operations_miss_no_other() {
    run(&[Litmus {
        name: "atomic additions",
        threads: &["atom.relaxed.SCOPE.global.add.u32 %r0, [%x], 1;"; 3],
        seen: &[Register(0, 0), Register(1, 0), Register(2, 0), Word(0)],
        forms: &[Form {
            name: "",
            fills: &[],
            allowed: &[
                &[0, 1, 2, 3],
                &[0, 2, 1, 3],
                &[1, 0, 2, 3],
                &[1, 2, 0, 3],
                &[2, 0, 1, 3],
                &[2, 1, 0, 3],
            ],
        }],
    }]);
}

#[test]
fn no_write_comes_between_what_an_atomic_operation_reads_and_what_it_writes() {
    run(&[Litmus {
        name: "an addition and a store",
        threads: &["atom.relaxed.SCOPE.global.add.u32 %r0, [%x], 1;", "st.relaxed.SCOPE.global.u32 [%x], 5;"],
        seen: &[Register(0, 0), Word(0)],
        forms: &[Form { name: "", fills: &[], allowed: &[&[0, 5], &[5, 6]] }],
    }]);
}
