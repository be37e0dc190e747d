//! One place: a thread never goes back.

use crate::judge::Seen::{Register, Word};
use crate::judge::{Form, Litmus, judge, run};

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

#[test]
fn two_readers_agree_on_the_order_of_two_writes() {
    let all: Vec<Vec<u32>> = (0..81).map(|n| vec![n / 27, n / 9 % 3, n / 3 % 3, n % 3]).collect();
    let back = |a: u32, b: u32| a != 0 && b == 0;
    // Each reader sees the writes in some order, and not both orders.
    let turned = |o: &[u32]| {
        (o[0], o[1]) == (1, 2) && (o[2], o[3]) == (2, 1) || (o[0], o[1]) == (2, 1) && (o[2], o[3]) == (1, 2)
    };
    let allowed: Vec<&[u32]> =
        all.iter().map(|o| &o[..]).filter(|o| !back(o[0], o[1]) && !back(o[2], o[3]) && !turned(o)).collect();
    let write = |value: u32| format!("st.relaxed.SCOPE.global.u32 [%x], {value};");
    let read = || "ld.relaxed.SCOPE.global.u32 %r0, [%x]; ld.relaxed.SCOPE.global.u32 %r1, [%x];".to_owned();
    let seen = [Register(2, 0), Register(2, 1), Register(3, 0), Register(3, 1)];
    let wrong = judge(&["CoRR2"], &[write(1), write(2), read(), read()], &seen, &allowed, 0);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
