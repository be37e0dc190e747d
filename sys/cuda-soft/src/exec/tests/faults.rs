//! Every error of a kernel becomes a fault with a kind and a position, never a crash.

use super::rig::*;
use crate::code::op::{AtomOp, BarrierKind, Cmp, Op};
use crate::code::{Semantics, Space, Ty};
use crate::exec::FaultKind;

const WEAK: Semantics = Semantics::Weak;

#[test]
fn wild_stores_and_loads() {
    for wild in [0, 8, 0x7fff_ffff_f000, u64::MAX - 7, 1 << 63, 0xdead_beef_0000] {
        let rig = Rig::new(64);
        let module =
            with_prologue(vec![setp(Cmp::Eq, Ty::U32, 0, r(3), imm(37)), when(0, false, st_op(wild))]);
        let fault = rig.run(module, 1, 64).unwrap_err();
        assert_eq!((fault.kind, fault.address), (FaultKind::IllegalAddress, Some(wild)));
        assert_eq!((fault.thread, fault.block, fault.line), ([37, 0, 0], [0; 3], BODY + 2));
        assert_eq!(fault.kernel, "test");
        let module = with_prologue(vec![mov(rd(2), imm(wild)), ld(WEAK, Ty::U64, rd(3), rd(2), 0)]);
        assert_eq!(rig.run(module, 1, 1).unwrap_err().kind, FaultKind::IllegalAddress);
    }
}

fn st_op(address: u64) -> Op {
    let addr = crate::code::Addr { base: crate::code::Base::Zero, offset: address.cast_signed() };
    let mem = crate::code::op::Mem { addr, ..mem(WEAK, Space::Global, Ty::U64, rd(0), 0) };
    Op::St { mem, src: [imm(1), imm(0), imm(0), imm(0)] }
}

#[test]
fn one_byte_past_the_end() {
    let rig = Rig::new(4);
    for (offset, ty, ok) in [
        (24, Ty::U64, true),
        (28, Ty::U32, true),
        (32, Ty::U8, false),
        (31, Ty::U8, true),
        (-1, Ty::U8, false),
    ] {
        let module = with_prologue(vec![st(WEAK, ty, rd(0), offset, imm(1))]);
        assert_eq!(rig.run(module, 1, 1).is_ok(), ok, "{offset}");
    }
}

#[test]
fn misaligned_scalars_and_vectors() {
    let rig = Rig::new(8);
    let module = with_prologue(vec![st(WEAK, Ty::U32, rd(0), 2, imm(1))]);
    let fault = rig.run(module, 1, 1).unwrap_err();
    assert_eq!((fault.kind, fault.address), (FaultKind::MisalignedAddress, Some(rig.base() + 2)));
    // A vector needs the alignment of its whole size.
    let odd = i64::try_from(8 + (rig.base() & 8)).unwrap();
    let mut wide = mem(WEAK, Space::Global, Ty::U64, rd(0), odd);
    wide.count = 2;
    let module = with_prologue(vec![op(Op::Ld { mem: wide, d: [None; 4] })]);
    assert_eq!(rig.run(module, 1, 1).unwrap_err().kind, FaultKind::MisalignedAddress);
}

#[test]
fn rights_are_respected() {
    let rig = Rig::new(4);
    rig.space.set_rights(rig.base(), crate::mem::Rights::Host { writable: false });
    rig.run(with_prologue(vec![ld(WEAK, Ty::U64, rd(2), rd(0), 0)]), 1, 1).unwrap();
    // The load puts the span into the cache; the store must still be refused.
    let module = with_prologue(vec![ld(WEAK, Ty::U64, rd(2), rd(0), 0), st(WEAK, Ty::U64, rd(0), 0, imm(1))]);
    assert_eq!(rig.run(module, 1, 1).unwrap_err().kind, FaultKind::IllegalAddress);
    let add = Op::Atom {
        op: AtomOp::Add,
        mem: mem(Semantics::Relaxed, Space::Global, Ty::U64, rd(0), 0),
        d: None,
        b: imm(1),
        c: imm(0),
    };
    assert_eq!(rig.run(with_prologue(vec![op(add)]), 1, 1).unwrap_err().kind, FaultKind::IllegalAddress);
    assert_eq!(rig.get(0), 0);
}

#[test]
fn shared_memory_and_parameters_end_where_they_end() {
    let rig = Rig::new(1);
    let at = |space, ty, offset| {
        let mut m = mem(WEAK, space, ty, rd(0), 0);
        let base =
            if space == Space::Param { crate::code::Base::KernelParam } else { crate::code::Base::Zero };
        m.addr = crate::code::Addr { base, offset };
        with_prologue(vec![op(Op::Ld { mem: m, d: [None; 4] })])
    };
    let run =
        |module| rig.start_on(module, [1; 3], [1; 3], 64).recv_timeout(LIMIT).unwrap().map_err(|f| f.kind);
    assert_eq!(run(at(Space::Shared, Ty::U32, 60)), Ok(()));
    assert_eq!(run(at(Space::Shared, Ty::U32, 64)), Err(FaultKind::IllegalAddress));
    assert_eq!(run(at(Space::Param, Ty::U64, 0)), Ok(()));
    assert_eq!(run(at(Space::Param, Ty::U64, 8)), Err(FaultKind::IllegalAddress));
    assert_eq!(run(at(Space::Local, Ty::U8, 0)), Err(FaultKind::IllegalAddress));
}

#[test]
fn traps_bad_barriers_and_bad_targets() {
    let rig = Rig::new(1);
    let kind = |code| rig.run(with_prologue(code), 3, 40).unwrap_err().kind;
    assert_eq!(kind(vec![op(Op::Trap)]), FaultKind::Trap);
    let bar = |id, threads| op(Op::Barrier { kind: BarrierKind::Sync, id: imm(id), threads });
    assert_eq!(kind(vec![bar(16, None)]), FaultKind::IllegalInstruction);
    assert_eq!(kind(vec![bar(0, Some(imm(33)))]), FaultKind::IllegalInstruction);
    let brx = Op::Brx { index: r(0).into(), targets: vec![BODY + 1].into_boxed_slice() };
    assert_eq!(kind(vec![op(brx)]), FaultKind::InvalidPc);
}

#[test]
fn endless_recursion_overflows_the_stack() {
    use crate::code::op::{Call, CallTarget};
    let rig = Rig::new(1);
    let call = Call { target: CallTarget::Function(0), args: Vec::new(), returns: Vec::new() };
    let mut module = with_prologue(vec![op(Op::Call(Box::new(call)))]);
    module.functions[0].frame_size = 16;
    assert_eq!(rig.run(module, 1, 32).unwrap_err().kind, FaultKind::StackOverflow);
}

#[test]
fn a_fault_ends_the_grid_and_nothing_else() {
    let rig = Rig::new(64);
    let module = with_prologue(vec![
        setp(Cmp::Eq, Ty::U32, 0, r(1), imm(5)),
        when(0, false, Op::Trap),
        // All other blocks loop for ever.
        bra(BODY + 2),
    ]);
    let doomed = rig.start(module, 1000, 32);
    let fault = doomed.recv_timeout(LIMIT).unwrap().unwrap_err();
    assert_eq!((fault.kind, fault.block), (FaultKind::Trap, [5, 0, 0]));
    rig.run(with_prologue(vec![st(WEAK, Ty::U64, rd(1), 0, imm(4))]), 2, 32).unwrap();
    assert!((0..64).all(|i| rig.get(i) == 4));
}
