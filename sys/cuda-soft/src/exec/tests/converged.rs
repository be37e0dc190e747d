//! Warps at aligned barriers.

use super::rig::*;
use crate::code::op::{BarrierKind, Binary, Cmp, Op};
use crate::code::{Inst, Src, Ty};
use crate::exec::{Fault, FaultKind};

/// Half of the lanes take a branch over one instruction, `between` follows where the paths join, then a barrier.
fn run(aligned: bool, taken: u64, between: Vec<Inst>) -> Result<(), Fault> {
    let mut rig = Rig::new(64);
    rig.aligned = aligned;
    let mut body = vec![
        setp(Cmp::Lt, Ty::U32, 0, r(0), imm(taken)),
        when(0, false, Op::Bra { target: BODY + 3 }),
        bin(Binary::Add, Ty::U32, r(4), r(0), imm(1)),
    ];
    body.extend(between);
    body.extend([op(Op::Aligned), op(Op::Barrier { kind: BarrierKind::Sync, id: imm(0), threads: None })]);
    rig.run(with_prologue(body), 1, 64)
}

fn warp_sync() -> Vec<Inst> {
    vec![op(Op::WarpSync { mask: imm(u64::MAX) })]
}

#[test]
fn a_diverged_warp_at_an_aligned_barrier_is_a_fault() {
    assert_eq!(run(true, 16, Vec::new()).expect_err("diverged").kind, FaultKind::Diverged);
    run(false, 16, Vec::new()).expect("nobody looks");
    // The paths join, but nothing has made the lanes meet.
    run(true, 16, warp_sync()).expect("the lanes met");
}

#[test]
fn a_branch_that_whole_warps_take_does_not_diverge() {
    for taken in [0, 32, 64] {
        run(true, taken, Vec::new()).expect("each warp is together");
    }
}

#[test]
fn lanes_that_left_are_not_waited_for() {
    let leave = vec![setp(Cmp::Lt, Ty::U32, 1, r(0), imm(5)), when(1, false, Op::Exit)];
    run(true, 0, leave).expect("those that stay are together");
}

#[test]
fn rounds_of_a_loop_diverge() {
    // Each lane goes round as often as its number says.
    let rounds = |meet: Vec<Inst>| {
        let mut rig = Rig::new(64);
        rig.aligned = true;
        let mut body = vec![
            mov(r(4), imm(0)),
            bin(Binary::Add, Ty::U32, r(4), r(4), imm(1)),
            setp(Cmp::Le, Ty::U32, 0, r(4), r(0)),
            when(0, false, Op::Bra { target: BODY + 1 }),
        ];
        body.extend(meet);
        body.extend([
            op(Op::Aligned),
            op(Op::Barrier { kind: BarrierKind::Sync, id: imm(0), threads: None }),
        ]);
        rig.run(with_prologue(body), 1, 32)
    };
    assert_eq!(rounds(Vec::new()).expect_err("diverged").kind, FaultKind::Diverged);
    rounds(warp_sync()).expect("the lanes met");
}

/// Lanes below `taken` execute the barrier under a guard, the others skip it.
fn guarded(taken: u64, negate: bool, kind: BarrierKind, threads: Option<Src>) -> Result<(), Fault> {
    let mut rig = Rig::new(64);
    rig.aligned = true;
    let body = vec![
        setp(if negate { Cmp::Ge } else { Cmp::Lt }, Ty::U32, 0, r(0), imm(taken)),
        when(0, negate, Op::Aligned),
        when(0, negate, Op::Barrier { kind, id: imm(1), threads }),
    ];
    rig.run(with_prologue(body), 1, 64)
}

#[test]
fn a_guard_that_holds_for_some_lanes_only_diverges() {
    let kinds = [
        (BarrierKind::Sync, None),
        (BarrierKind::Sync, Some(imm(64))),
        (BarrierKind::Arrive, Some(imm(64))),
        (BarrierKind::RedPopc { d: r(4), a: yes(0) }, None),
    ];
    for (kind, threads) in kinds {
        for negate in [false, true] {
            for taken in [1, 16, 31, 48] {
                let fault = guarded(taken, negate, kind, threads).expect_err("diverged");
                assert_eq!((fault.kind, fault.line), (FaultKind::Diverged, BODY + 2), "{taken} {kind:?}");
            }
            for taken in [0, 32, 64] {
                let threads = threads.map(|_| imm(taken.max(32)));
                guarded(taken, negate, kind, threads).expect("each warp is together");
            }
        }
    }
}

#[test]
fn a_guard_that_holds_for_all_lanes_that_are_left_does_not_diverge() {
    let mut rig = Rig::new(64);
    rig.aligned = true;
    let body = vec![
        setp(Cmp::Lt, Ty::U32, 0, r(0), imm(16)),
        when(0, true, Op::Exit),
        when(0, false, Op::Aligned),
        when(0, false, Op::Barrier { kind: BarrierKind::Sync, id: imm(1), threads: None }),
    ];
    rig.run(with_prologue(body), 1, 32).expect("the others have left");
}
