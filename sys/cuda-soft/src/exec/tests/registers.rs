//! What registers hold that were never written.

use std::collections::HashSet;

use super::rig::*;
use crate::code::op::Op;
use crate::code::{Semantics, Ty};

const THREADS: usize = 64;

/// Runs two warps that find registers as they are: one of 64 bits, one of 32, and a predicate. Of another one, they have written
/// the even lanes. Returns what each thread found.
fn found(garbage: Option<u64>) -> Vec<[u64; 4]> {
    let mut rig = Rig::new(4 * THREADS);
    rig.garbage = garbage;
    let out = |part: usize, value: crate::code::Reg| {
        st(Semantics::Weak, Ty::U64, rd(1), (part * THREADS * 8) as i64, value)
    };
    let module = with_prologue(vec![
        op(Op::Selp { d: rd(4), a: imm(1), b: imm(0), p: yes(7) }),
        setp(crate::code::op::Cmp::Lt, Ty::U32, 1, r(0), imm(32)),
        when(1, false, Op::Mov { d: rd(5), a: imm(77) }),
        out(0, rd(20)),
        out(1, r(20)),
        out(2, rd(4)),
        out(3, rd(5)),
    ]);
    rig.run(module, 1, THREADS as u32).expect("no fault");
    (0..THREADS).map(|thread| [0, 1, 2, 3].map(|part| rig.get(part * THREADS + thread))).collect()
}

#[test]
fn registers_that_were_not_written_hold_what_a_seed_determines_and_nothing_without_one() {
    let written = |thread: usize| if thread < 32 { 77 } else { 0 };
    assert_eq!(found(None), (0..THREADS).map(|thread| [0, 0, 0, written(thread)]).collect::<Vec<_>>());
    let garbage = found(Some(5));
    let different = |part: usize| garbage.iter().map(|found| found[part]).collect::<HashSet<_>>().len();
    assert_eq!([0, 1, 2].map(different), [THREADS, THREADS, 2]);
    assert!(garbage.iter().all(|found| found[0] > u32::MAX.into() && found[1] <= u32::MAX.into()));
    assert!(garbage[..32].iter().all(|found| found[3] == 77), "what was written stays");
    assert_eq!(different(3), 1 + THREADS / 2);
    assert_eq!(found(Some(5)), garbage);
    assert_ne!(found(Some(6)), garbage);
}
