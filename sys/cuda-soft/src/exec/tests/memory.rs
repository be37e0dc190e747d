//! Access widths, vectors, state spaces, and atomics under contention.

use super::rig::*;
use crate::code::op::{AtomOp, Binary, Mem, Op, Special};
use crate::code::{Addr, Base, Module, Reg, Scope, Semantics, Space, Ty};

const WEAK: Semantics = Semantics::Weak;

#[test]
fn narrow_loads_extend_and_narrow_stores_keep_their_neighbours() {
    let rig = Rig::new(8);
    rig.set(0, 0x8091_a2b3_c4d5_e6f7);
    rig.set(7, u64::MAX);
    let out = |k: i64, v: Reg| st(WEAK, Ty::U64, rd(0), k * 8, v);
    let module = with_prologue(vec![
        ld(WEAK, Ty::S8, rd(2), rd(0), 0),
        out(1, rd(2)),
        ld(WEAK, Ty::U8, rd(2), rd(0), 0),
        out(2, rd(2)),
        ld(WEAK, Ty::S16, r(4), rd(0), 6),
        bin(Binary::Shr, Ty::S32, r(4), r(4), imm(4)),
        out(3, r(4)),
        ld(WEAK, Ty::S32, rd(2), rd(0), 4),
        out(4, rd(2)),
        ld(WEAK, Ty::B16, rd(2), rd(0), 6),
        out(5, rd(2)),
        st(WEAK, Ty::U8, rd(0), 57, imm(0x12)),
        st(WEAK, Ty::U16, rd(0), 60, imm(0x1_3456)),
    ]);
    rig.run(module, 1, 1).unwrap();
    let got: Vec<u64> = (1..8).map(|k| rig.get(k)).collect();
    let s16 = (0x8091_u16 as i16 as i32 >> 4) as u32 as u64;
    assert_eq!(got[..5], [!0x08, 0xf7, s16, 0xffff_ffff_8091_a2b3, 0x8091]);
    assert_eq!(got[6], 0xffff_3456_ffff_12ff);
}

#[test]
fn vectors_move_sixteen_bytes() {
    for (ty, count) in [(Ty::B32, 4u8), (Ty::B64, 2), (Ty::B32, 2), (Ty::B16, 4), (Ty::B8, 4)] {
        let lanes = 64;
        let rig = Rig::new(4 * lanes + 2);
        let skew = usize::from(!rig.base().is_multiple_of(16));
        for i in 0..2 * lanes {
            rig.set(skew + i, 0x0101_0101_0101_0101u64.wrapping_mul(i as u64 + 1));
        }
        let stride = u64::from(ty.size()) * u64::from(count);
        let vector = |offset: i64| Mem {
            count,
            addr: Addr { base: Base::Reg(rd(2)), offset },
            ..mem(Semantics::Relaxed, Space::Global, ty, rd(2), 0)
        };
        let regs = [0, 1, 2, 3].map(|k| if ty.size() == 8 { rd(4 + k) } else { r(4 + k) });
        let far = (2 * lanes * 8) as i64;
        let module = with_prologue(vec![
            bin(Binary::MulWide, Ty::U32, rd(2), r(3), imm(stride)),
            bin(Binary::Add, Ty::U64, rd(2), rd(2), rd(0)),
            op(Op::Ld { mem: vector(skew as i64 * 8), d: regs.map(Some) }),
            op(Op::St { mem: vector(skew as i64 * 8 + far), src: regs.map(Into::into) }),
        ]);
        rig.run(module, 1, lanes as u32).unwrap();
        let words = lanes * stride as usize / 8;
        for i in 0..words {
            assert_eq!(rig.get(skew + i), rig.get(skew + 2 * lanes + i), "{ty:?} {count} {i}");
        }
    }
}

#[test]
fn atomics_of_many_blocks_lose_nothing() {
    let rig = Rig::new(8);
    rig.set(3, u64::MAX);
    let at = |op_, ty, offset, b, d| {
        let mem = mem(Semantics::Relaxed, Space::Global, ty, rd(0), offset);
        op(Op::Atom { op: op_, mem, d, b, c: imm(0) })
    };
    let module = with_prologue(vec![
        at(AtomOp::Add, Ty::U32, 0, imm(1), None),
        at(AtomOp::Add, Ty::F32, 4, imm(1.0f32.to_bits().into()), None),
        at(AtomOp::Max, Ty::S32, 8, r(3).into(), None),
        at(AtomOp::Xor, Ty::B32, 12, r(3).into(), None),
        at(AtomOp::Add, Ty::F16x2, 16, imm(0x3c00_3c00), None),
        bin(Binary::And, Ty::B32, r(4), r(3), imm(1)),
        at(AtomOp::Min, Ty::U64, 24, rd(1).into(), None),
        at(AtomOp::Inc, Ty::U32, 32, imm(99), None),
        at(AtomOp::Exch, Ty::B64, 40, rd(1).into(), Some(rd(2))),
        at(AtomOp::Add, Ty::U64, 48, rd(2).into(), None),
    ]);
    let threads = 16 * 64u64;
    rig.run(module, 16, 64).unwrap();
    assert_eq!(rig.get32(0), 1024);
    assert_eq!(f32::from_bits(rig.get32(1)), 1024.0);
    assert_eq!(rig.get32(2), 1023);
    assert_eq!(rig.get32(3), (0..1024).fold(0, |x, i| x ^ i));
    assert_eq!(rig.get32(4), 0x6400_6400, "1024 in both halves");
    assert_eq!(rig.get(3), rig.base());
    assert_eq!(rig.get32(8), 1024 % 100);
    // Each address was written once and read back once, except for the last one.
    let sum = (0..threads).fold(0u64, |s, i| s.wrapping_add(rig.base() + 8 * i));
    assert_eq!(rig.get(6).wrapping_add(rig.get(5)), sum);
}

#[test]
fn generic_addresses_reach_every_window() {
    let rig = Rig::new(64);
    let generic = |base| mem(WEAK, Space::Generic, Ty::U32, base, 0);
    let load = |d, base| op(Op::Ld { mem: generic(base), d: [Some(d), None, None, None] });
    let store = |base, v: Reg| op(Op::St { mem: generic(base), src: [v.into(), imm(0), imm(0), imm(0)] });
    let convert = |space, d, a: Reg| op(Op::ToGeneric { space, d, a: a.into() });
    let mut code = prologue();
    code.extend([
        // Each thread uses its own word of shared memory and of its stack.
        bin(Binary::Shl, Ty::B32, r(4), r(0), imm(2)),
        mov(rd(2), r(4)),
        convert(Space::Shared, rd(3), rd(2)),
        store(rd(3), r(3)),
        op(Op::Special { d: rd(4), special: Special::FrameBase }),
        convert(Space::Local, rd(5), rd(4)),
        bin(Binary::Add, Ty::U32, r(5), r(3), imm(1000)),
        store(rd(5), r(5)),
        load(r(6), rd(3)),
        load(r(7), rd(5)),
        bin(Binary::Add, Ty::U32, r(6), r(6), r(7)),
        op(Op::IsSpace { space: Space::Shared, p: p(0), a: rd(3).into() }),
        op(Op::IsSpace { space: Space::Local, p: p(1), a: rd(5).into() }),
        op(Op::IsSpace { space: Space::Global, p: p(2), a: rd(1).into() }),
        op(Op::IsSpace { space: Space::Global, p: p(3), a: rd(3).into() }),
        when(0, false, bin(Binary::Add, Ty::U32, r(6), r(6), imm(10_000)).op),
        when(1, false, bin(Binary::Add, Ty::U32, r(6), r(6), imm(20_000)).op),
        when(2, false, bin(Binary::Add, Ty::U32, r(6), r(6), imm(40_000)).op),
        when(3, false, bin(Binary::Add, Ty::U32, r(6), r(6), imm(80_000)).op),
        op(Op::FromGeneric { space: Space::Shared, d: rd(6), a: rd(3).into() }),
        bin(Binary::Sub, Ty::U64, rd(6), rd(6), rd(2)),
        mov(r(8), rd(6)),
        bin(Binary::Add, Ty::U32, r(6), r(6), r(8)),
        st(WEAK, Ty::U64, rd(1), 0, r(6)),
    ]);
    let mut f = function(code);
    f.shared_size = 128;
    f.frame_size = 16;
    rig.run(Module { functions: vec![f], globals: Vec::new() }, 2, 32).unwrap();
    assert!((0..64).all(|i| rig.get(i) == 2 * i as u64 + 1000 + 70_000));
}

#[test]
fn asynchronous_copies_pad_with_zeros() {
    let rig = Rig::new(4);
    rig.set(0, 0x1122_3344_5566_7788);
    let at = |base, offset| Addr { base, offset };
    let copy =
        Op::CpAsync { dst: at(Base::Zero, 0), src: at(Base::Reg(rd(0)), 0), size: 8, src_size: imm(5) };
    let shared = Mem {
        sem: WEAK,
        scope: Scope::Cta,
        space: Space::Shared,
        ty: Ty::U64,
        count: 1,
        addr: at(Base::Zero, 0),
    };
    let mut f = function({
        let mut code = prologue();
        code.extend([
            op(copy),
            op(Op::Ld { mem: shared, d: [Some(rd(2)), None, None, None] }),
            st(WEAK, Ty::U64, rd(0), 8, rd(2)),
        ]);
        code
    });
    f.shared_size = 16;
    rig.run(Module { functions: vec![f], globals: Vec::new() }, 1, 1).unwrap();
    assert_eq!(rig.get(1), 0x44_5566_7788);
}
