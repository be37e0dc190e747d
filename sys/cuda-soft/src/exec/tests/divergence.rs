//! Lanes that diverge and join, and lanes that wait for each other.

use super::rig::*;
use crate::code::op::Mem;
use crate::code::op::{
    AtomOp, BarrierKind, Binary, BoolOp, Call, CallTarget, Cmp, FrameCopy, Op, ShflMode, VoteKind,
};
use crate::code::{Addr, Base, Function, Inst, Module, Reg, Scope, Semantics, Space, Ty};

const WEAK: Semantics = Semantics::Weak;

#[test]
fn many_blocks_compute() {
    let rig = Rig::new(10_000);
    let module = with_prologue(vec![
        bin(Binary::MulLo, Ty::U32, r(4), r(3), imm(3)),
        st(WEAK, Ty::U64, rd(1), 0, r(4)),
    ]);
    rig.run(module, 100, 100).unwrap();
    assert!((0..10_000).all(|i| rig.get(i) == 3 * i as u64));
}

#[test]
fn threads_and_blocks_have_three_dimensions() {
    use crate::code::op::Special;
    let rig = Rig::new(2 * 3 * 5 * 7 * 2 * 4);
    // The linear index comes from tid, ntid, ctaid and nctaid; the value has the six coordinates as digits.
    let mut code = vec![prologue().remove(0), mov(r(10), imm(0)), mov(r(11), imm(0))];
    let axes =
        |special: fn(u8) -> Special, size: fn(u8) -> Special| [2u8, 1, 0].map(|k| (special(k), size(k)));
    let mut order: Vec<_> = axes(Special::Ctaid, Special::Nctaid).to_vec();
    order.extend(axes(Special::Tid, Special::Ntid));
    for (coordinate, size) in order {
        code.extend([
            op(Op::Special { d: r(4), special: coordinate }),
            op(Op::Special { d: r(5), special: size }),
            bin(Binary::MulLo, Ty::U32, r(10), r(10), r(5)),
            bin(Binary::Add, Ty::U32, r(10), r(10), r(4)),
            bin(Binary::MulLo, Ty::U32, r(11), r(11), imm(10)),
            bin(Binary::Add, Ty::U32, r(11), r(11), r(4)),
        ]);
    }
    code.extend([
        bin(Binary::MulWide, Ty::U32, rd(1), r(10), imm(8)),
        bin(Binary::Add, Ty::U64, rd(1), rd(1), rd(0)),
        st(WEAK, Ty::U64, rd(1), 0, r(11)),
    ]);
    let done = rig.start_on(kernel(code), [2, 3, 5], [7, 2, 4], 0);
    done.recv_timeout(LIMIT).unwrap().unwrap();
    let mut index = 0;
    for (bz, by, bx) in itertools(5, 3, 2) {
        for (tz, ty, tx) in itertools(4, 2, 7) {
            let digits = [bz, by, bx, tz, ty, tx].iter().fold(0, |n, d| n * 10 + d);
            assert_eq!(rig.get(index), digits);
            index += 1;
        }
    }
}

fn itertools(a: u64, b: u64, c: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    (0..a).flat_map(move |x| (0..b).flat_map(move |y| (0..c).map(move |z| (x, y, z))))
}

#[test]
fn both_sides_of_a_branch_run_and_join() {
    let rig = Rig::new(64);
    let module = with_prologue(vec![
        bin(Binary::And, Ty::B32, r(4), r(0), imm(1)),
        setp(Cmp::Eq, Ty::U32, 0, r(4), imm(0)),
        when(0, false, Op::Bra { target: BODY + 5 }),
        mov(r(5), imm(100)),
        bra(BODY + 6),
        mov(r(5), imm(200)),
        // Here all lanes have joined again.
        op(Op::ActiveMask { d: r(6) }),
        bin(Binary::Add, Ty::U32, r(5), r(5), r(0)),
        op(Op::Pack { d: rd(2), parts: [r(5).into(), r(6).into(), imm(0), imm(0)], count: 2, bits: 32 }),
        st(WEAK, Ty::U64, rd(1), 0, rd(2)),
    ]);
    rig.run(module, 2, 32).unwrap();
    for i in 0..64 {
        let lane = i as u64 % 32;
        let value = lane + if lane.is_multiple_of(2) { 200 } else { 100 };
        assert_eq!(rig.get(i), value | 0xffff_ffff << 32, "{i}");
    }
}

#[test]
fn loops_of_different_length() {
    let rig = Rig::new(96);
    // r4 = 0 + 1 + ... + tid
    let module = with_prologue(vec![
        mov(r(4), imm(0)),
        mov(r(5), imm(0)),
        setp(Cmp::Gt, Ty::U32, 0, r(5), r(0)),
        when(0, false, Op::Bra { target: BODY + 7 }),
        bin(Binary::Add, Ty::U32, r(4), r(4), r(5)),
        bin(Binary::Add, Ty::U32, r(5), r(5), imm(1)),
        bra(BODY + 2),
        st(WEAK, Ty::U64, rd(1), 0, r(4)),
    ]);
    rig.run(module, 1, 96).unwrap();
    assert!((0..96).all(|i| rig.get(i) == (i * (i + 1) / 2) as u64));
}

#[test]
fn lanes_of_one_warp_take_a_lock_in_turn() {
    let rig = Rig::new(2);
    let lock = mem(Semantics::Acquire, Space::Global, Ty::B32, rd(0), 0);
    let cas = Op::Atom { op: AtomOp::Cas, mem: lock, d: Some(r(4)), b: imm(0), c: imm(1) };
    let module = with_prologue(vec![
        op(cas),
        setp(Cmp::Ne, Ty::U32, 0, r(4), imm(0)),
        when(0, false, Op::Bra { target: BODY }),
        // The critical section is a plain increment.
        ld(WEAK, Ty::U64, rd(2), rd(0), 8),
        bin(Binary::Add, Ty::U64, rd(2), rd(2), imm(1)),
        st(WEAK, Ty::U64, rd(0), 8, rd(2)),
        st(Semantics::Release, Ty::U32, rd(0), 0, imm(0)),
    ]);
    rig.run(module, 4, 96).unwrap();
    assert_eq!(rig.get(1), 4 * 96);
}

#[test]
fn a_lane_waits_for_a_later_one_and_for_an_earlier_one() {
    for setter in [0, 31] {
        let rig = Rig::new(2);
        // All lanes except the setter spin. The setter's code is behind the loop.
        let module = with_prologue(vec![
            setp(Cmp::Eq, Ty::U32, 0, r(0), imm(setter)),
            when(0, false, Op::Bra { target: BODY + 6 }),
            ld(Semantics::Acquire, Ty::U32, r(4), rd(0), 0),
            setp(Cmp::Eq, Ty::U32, 1, r(4), imm(0)),
            when(1, false, Op::Bra { target: BODY + 2 }),
            bra(BODY + 7),
            st(Semantics::Release, Ty::U32, rd(0), 0, imm(1)),
            op(Op::Atom {
                op: AtomOp::Add,
                mem: mem(Semantics::Relaxed, Space::Global, Ty::U32, rd(0), 8),
                d: None,
                b: imm(1),
                c: imm(0),
            }),
        ]);
        rig.run(module, 1, 32).unwrap();
        assert_eq!(rig.get(1), 32);
    }
}

#[test]
fn a_warp_barrier_joins_diverged_lanes() {
    let rig = Rig::new(32);
    // Odd lanes take a detour; the shuffle needs all lanes.
    let shfl = Op::Shfl {
        mode: ShflMode::Bfly,
        d: r(5),
        p: Some(p(2)),
        a: r(4).into(),
        b: imm(1),
        c: imm(0x1f),
        mask: imm(0xffff_ffff),
    };
    let module = with_prologue(vec![
        mov(r(4), r(0)),
        bin(Binary::And, Ty::B32, r(6), r(0), imm(1)),
        setp(Cmp::Eq, Ty::U32, 0, r(6), imm(0)),
        when(0, false, Op::Bra { target: BODY + 6 }),
        bin(Binary::Add, Ty::U32, r(4), r(4), imm(100)),
        op(shfl.clone()),
        when(0, false, shfl),
        st(WEAK, Ty::U64, rd(1), 0, r(5)),
    ]);
    rig.run(module, 1, 32).unwrap();
    for lane in 0..32u64 {
        let partner = lane ^ 1;
        let value = if partner % 2 == 1 { partner + 100 } else { partner };
        assert_eq!(rig.get(lane as usize), value, "{lane}");
    }
}

#[test]
fn votes_and_shuffles() {
    let rig = Rig::new(32 * 6);
    let put = |slot: i64, value: Reg| st(WEAK, Ty::U32, rd(2), slot * 4, value);
    let shfl = |mode, d, b: u64, c: u64| {
        op(Op::Shfl { mode, d, p: None, a: r(0).into(), b: imm(b), c: imm(c), mask: imm(u64::MAX) })
    };
    let module = with_prologue(vec![
        bin(Binary::MulWide, Ty::U32, rd(2), r(0), imm(32)),
        bin(Binary::Add, Ty::U64, rd(2), rd(2), rd(0)),
        setp(Cmp::Lt, Ty::U32, 0, r(0), imm(5)),
        op(Op::Vote { kind: VoteKind::Ballot(r(4)), a: yes(0), mask: imm(u64::MAX) }),
        put(0, r(4)),
        shfl(ShflMode::Up, r(5), 3, 0),
        put(1, r(5)),
        shfl(ShflMode::Down, r(5), 3, 0x1f),
        put(2, r(5)),
        shfl(ShflMode::Idx, r(5), 2, 0x181f),
        put(3, r(5)),
        op(Op::Redux { op: AtomOp::Add, ty: Ty::U32, d: r(6), a: r(0).into(), mask: imm(u64::MAX) }),
        put(4, r(6)),
        bin(Binary::Shr, Ty::U32, r(7), r(0), imm(3)),
        op(Op::Match { all: false, ty: Ty::B32, d: r(8), p: None, a: r(7).into(), mask: imm(u64::MAX) }),
        put(5, r(8)),
        op(Op::Vote { kind: VoteKind::All(p(1)), a: yes(0), mask: imm(u64::MAX) }),
        op(Op::Vote { kind: VoteKind::Any(p(2)), a: yes(0), mask: imm(u64::MAX) }),
        op(Op::Selp { d: r(9), a: imm(1), b: imm(0), p: yes(1) }),
        op(Op::Selp { d: r(10), a: imm(2), b: imm(0), p: yes(2) }),
        bin(Binary::Or, Ty::B32, r(9), r(9), r(10)),
        put(6, r(9)),
    ]);
    rig.run(module, 1, 32).unwrap();
    for lane in 0..32u32 {
        let got: Vec<u32> = (0..7).map(|k| rig.get32(lane as usize * 8 + k)).collect();
        let up = if lane >= 3 { lane - 3 } else { lane };
        let down = if lane + 3 < 32 { lane + 3 } else { lane };
        let idx = lane & 0x18 | 2;
        let same = 0xff << (lane / 8 * 8);
        assert_eq!(got, [0x1f, up, down, idx, 31 * 32 / 2, same, 2], "lane {lane}");
    }
}

fn bar(kind: BarrierKind, id: u64, threads: Option<u64>) -> Inst {
    op(Op::Barrier { kind, id: imm(id), threads: threads.map(imm) })
}

#[test]
fn a_block_barrier_orders_shared_memory() {
    let rig = Rig::new(256);
    let addr = |base| Addr { base: Base::Reg(base), offset: 0 };
    let shared = |base| Mem {
        sem: WEAK,
        scope: Scope::Cta,
        space: Space::Shared,
        ty: Ty::U32,
        count: 1,
        addr: addr(base),
    };
    let mut f = function({
        let mut code = prologue();
        code.extend([
            bin(Binary::Shl, Ty::B32, r(4), r(0), imm(2)),
            op(Op::St { mem: shared(r(4)), src: [r(3).into(), imm(0), imm(0), imm(0)] }),
            bar(BarrierKind::Sync, 0, None),
            // Reads the value of the mirror thread.
            bin(Binary::Sub, Ty::U32, r(5), r(2), r(0)),
            bin(Binary::Sub, Ty::U32, r(5), r(5), imm(1)),
            bin(Binary::Shl, Ty::B32, r(5), r(5), imm(2)),
            op(Op::Ld { mem: shared(r(5)), d: [Some(r(6)), None, None, None] }),
            st(WEAK, Ty::U64, rd(1), 0, r(6)),
        ]);
        code
    });
    f.shared_size = 512;
    rig.run(Module { functions: vec![f], globals: Vec::new() }, 2, 128).unwrap();
    for i in 0..256 {
        assert_eq!(rig.get(i), (i / 128 * 128 + 127 - i % 128) as u64);
    }
}

#[test]
fn partial_barriers_and_reductions() {
    let rig = Rig::new(96);
    // Warps 0 and 1 meet at barrier 1. Warp 0 waits at barrier 2, where warp 2 only arrives.
    let module = with_prologue(vec![
        mov(r(5), imm(0)),
        bin(Binary::Shr, Ty::U32, r(4), r(0), imm(5)),
        setp(Cmp::Eq, Ty::U32, 0, r(4), imm(2)),
        when(0, false, Op::Barrier { kind: BarrierKind::Arrive, id: imm(2), threads: Some(imm(64)) }),
        when(0, false, Op::Bra { target: BODY + 11 }),
        setp(Cmp::Lt, Ty::U32, 1, r(0), imm(40)),
        bar(BarrierKind::RedPopc { d: r(5), a: yes(1) }, 1, Some(64)),
        setp(Cmp::Eq, Ty::U32, 2, r(4), imm(0)),
        when(2, false, Op::Barrier { kind: BarrierKind::Sync, id: imm(2), threads: Some(imm(64)) }),
        bar(BarrierKind::RedPred { op: BoolOp::And, p: p(3), a: yes(1) }, 1, Some(64)),
        op(Op::Selp { d: r(6), a: imm(1000), b: imm(0), p: yes(3) }),
        bin(Binary::Add, Ty::U32, r(5), r(5), r(6)),
        st(WEAK, Ty::U64, rd(1), 0, r(5)),
    ]);
    rig.run(module, 1, 96).unwrap();
    assert!((0..64).all(|i| rig.get(i) == 40), "{:?}", (0..64).map(|i| rig.get(i)).collect::<Vec<_>>());
    assert!((64..96).all(|i| rig.get(i) == 0));
}

#[test]
fn calls_nest_recurse_and_return_values() {
    let rig = Rig::new(32);
    // sum(n) = n == 0 ? 0 : n + sum(n - 1); the argument is at frame offset 0, the result at 4,
    // those of the recursive call at 8 and 12.
    let at = |offset| Mem {
        sem: WEAK,
        scope: Scope::Cta,
        space: Space::Local,
        ty: Ty::U32,
        count: 1,
        addr: Addr { base: Base::Frame, offset },
    };
    let get = |d, offset| op(Op::Ld { mem: at(offset), d: [Some(d), None, None, None] });
    let put = |offset, v: Reg| op(Op::St { mem: at(offset), src: [v.into(), imm(0), imm(0), imm(0)] });
    let call = || {
        op(Op::Call(Box::new(Call {
            target: CallTarget::Function(1),
            args: vec![FrameCopy { from: 8, to: 0, size: 4 }],
            returns: vec![FrameCopy { from: 4, to: 12, size: 4 }],
        })))
    };
    let sum = Function {
        name: "sum".to_owned(),
        kernel: false,
        frame_size: 16,
        ..function(vec![
            get(r(0), 0),
            put(4, r(0)),
            setp(Cmp::Eq, Ty::U32, 0, r(0), imm(0)),
            when(0, false, Op::Ret),
            bin(Binary::Sub, Ty::U32, r(1), r(0), imm(1)),
            put(8, r(1)),
            call(),
            get(r(2), 12),
            bin(Binary::Add, Ty::U32, r(2), r(2), r(0)),
            put(4, r(2)),
            op(Op::Ret),
        ])
    };
    let mut code = prologue();
    code.extend([put(8, r(0)), call(), get(r(4), 12), st(WEAK, Ty::U64, rd(1), 0, r(4))]);
    let main = Function { frame_size: 16, ..function(code) };
    rig.run(Module { functions: vec![main, sum], globals: Vec::new() }, 1, 32).unwrap();
    assert!((0..32).all(|i| rig.get(i) == (i * (i + 1) / 2) as u64));
}

#[test]
fn indirect_branches_and_calls() {
    let rig = Rig::new(32);
    let add = |n: u64| Function {
        kernel: false,
        ..function(vec![op(Op::Atom {
            op: AtomOp::Add,
            mem: mem(Semantics::Relaxed, Space::Global, Ty::U64, rd(5), 0),
            d: None,
            b: imm(n),
            c: imm(0),
        })])
    };
    // The callee has its own register window, so the address is passed through the frame.
    let frame = |offset| Mem {
        sem: WEAK,
        scope: Scope::Cta,
        space: Space::Local,
        ty: Ty::U64,
        count: 1,
        addr: Addr { base: Base::Frame, offset },
    };
    let callee = |n| {
        let mut f = add(n);
        let load = op(Op::Ld { mem: frame(0), d: [Some(rd(5)), None, None, None] });
        f.code.insert(0, load);
        f.lines = vec![1, 2];
        f.frame_size = 16;
        f
    };
    let call = Call {
        target: CallTarget::Indirect(rd(4)),
        args: vec![FrameCopy { from: 0, to: 0, size: 8 }],
        returns: Vec::new(),
    };
    let mut code = prologue();
    let targets = vec![BODY + 3, BODY + 5, BODY + 7].into_boxed_slice();
    code.extend([
        op(Op::St { mem: frame(0), src: [rd(1).into(), imm(0), imm(0), imm(0)] }),
        bin(Binary::Rem, Ty::U32, r(4), r(0), imm(3)),
        op(Op::Brx { index: r(4).into(), targets }),
        op(Op::FunctionAddress { d: rd(4), function: 1 }),
        bra(BODY + 8),
        op(Op::FunctionAddress { d: rd(4), function: 2 }),
        bra(BODY + 8),
        op(Op::FunctionAddress { d: rd(4), function: 1 }),
        op(Op::Call(Box::new(call))),
    ]);
    let main = Function { frame_size: 16, ..function(code) };
    let module = Module { functions: vec![main, callee(7), callee(9)], globals: Vec::new() };
    rig.run(module, 1, 32).unwrap();
    assert!((0..32).all(|i| rig.get(i) == [7, 9, 7][i % 3]));
}
