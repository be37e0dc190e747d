//! Compares integer arithmetic with Rust's, on values at the limits of the types.

#![allow(trivial_numeric_casts, reason = "one body for all types")]

use super::rig::*;
use crate::code::op::{Binary, Cmp, Fp, Op, PrmtMode, Ternary, Unary};
use crate::code::{Inst, Semantics, Src, Ty};

pub(super) const EDGES: [u64; 16] = [
    0,
    1,
    2,
    3,
    31,
    32,
    33,
    0x7f,
    0x80,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_ffff,
    0x1234_5678_9abc_def0,
];

/// Runs `body` for all pairs (a, b) of `values`, with a in rd2, b in rd3 and the result in rd4.
pub(super) fn pairs(values: &[u64], body: Vec<Inst>) -> Vec<(u64, u64, u64)> {
    let n = values.len();
    let rig = Rig::new(n + n * n);
    values.iter().enumerate().for_each(|(i, v)| rig.set(i, *v));
    let mut code = vec![
        setp(Cmp::Ge, Ty::U32, 7, r(3), imm((n * n) as u64)),
        when(7, false, Op::Exit),
        bin(Binary::Div, Ty::U32, r(4), r(3), imm(n as u64)),
        bin(Binary::Rem, Ty::U32, r(5), r(3), imm(n as u64)),
        bin(Binary::MulWide, Ty::U32, rd(2), r(4), imm(8)),
        bin(Binary::Add, Ty::U64, rd(2), rd(2), rd(0)),
        bin(Binary::MulWide, Ty::U32, rd(3), r(5), imm(8)),
        bin(Binary::Add, Ty::U64, rd(3), rd(3), rd(0)),
        ld(Semantics::Weak, Ty::U64, rd(2), rd(2), 0),
        ld(Semantics::Weak, Ty::U64, rd(3), rd(3), 0),
        mov(rd(4), imm(0)),
    ];
    code.extend(body);
    code.push(st(Semantics::Weak, Ty::U64, rd(1), n as i64 * 8, rd(4)));
    rig.run(with_prologue(code), (n * n).div_ceil(128) as u32, 128).unwrap();
    (0..n * n).map(|i| (values[i / n], values[i % n], rig.get(n + i))).collect()
}

pub(super) fn check(body: Vec<Inst>, values: &[u64], oracle: impl Fn(u64, u64) -> u64, what: &str) {
    for (a, b, got) in pairs(values, body) {
        assert_eq!(got, oracle(a, b), "{what} of {a:#x} and {b:#x}");
    }
}

fn binary(op_: Binary, ty: Ty, oracle: impl Fn(u64, u64) -> u64) {
    check(vec![bin(op_, ty, rd(4), rd(2), rd(3))], &EDGES, oracle, &format!("{op_:?}.{ty:?}"));
}

macro_rules! integers {
    ($($name:ident: $t:ty, $u:ty, $wide:ty, $ty:expr;)*) => {$(
        #[test]
        fn $name() {
            let go = |op_, f: fn($t, $t) -> $t| binary(op_, $ty, |a, b| f(a as $t, b as $t) as $u as u64);
            go(Binary::Add, <$t>::wrapping_add);
            go(Binary::Sub, <$t>::wrapping_sub);
            go(Binary::MulLo, <$t>::wrapping_mul);
            go(Binary::MulHi, |a, b| ((a as $wide * b as $wide) >> <$t>::BITS) as $t);
            go(Binary::Div, |a, b| if b == 0 { !0 } else { a.wrapping_div(b) });
            go(Binary::Rem, |a, b| if b == 0 { !0 } else { a.wrapping_rem(b) });
            go(Binary::Min, <$t>::min);
            go(Binary::Max, <$t>::max);
            go(Binary::And, |a, b| a & b);
            go(Binary::Or, |a, b| a | b);
            go(Binary::Xor, |a, b| a ^ b);
            // The shift amount has 32 bits and is clamped.
            binary(Binary::Shl, $ty, |a, b| {
                (a as $t).checked_shl(b as u32).unwrap_or(0) as $u as u64
            });
            let sign = |a: $t| if <$t>::MIN != 0 { a >> (<$t>::BITS - 1) } else { 0 };
            binary(Binary::Shr, $ty, |a, b| {
                (a as $t).checked_shr(b as u32).unwrap_or(sign(a as $t)) as $u as u64
            });
        }
    )*};
}

integers! {
    u16_arithmetic: u16, u16, u32, Ty::U16;
    s16_arithmetic: i16, u16, i32, Ty::S16;
    u32_arithmetic: u32, u32, u64, Ty::U32;
    s32_arithmetic: i32, u32, i64, Ty::S32;
    u64_arithmetic: u64, u64, u128, Ty::U64;
    s64_arithmetic: i64, u64, i128, Ty::S64;
}

#[test]
fn wide_products_and_saturation() {
    binary(Binary::MulWide, Ty::S32, |a, b| (a as i32 as i64 * b as i32 as i64) as u64);
    binary(Binary::MulWide, Ty::U32, |a, b| a as u32 as u64 * b as u32 as u64);
    binary(Binary::MulWide, Ty::S16, |a, b| (a as i16 as i32 * b as i16 as i32) as u64);
    let sat = Fp { sat: true, ..Fp::default() };
    let add =
        Op::Binary { op: Binary::Add, ty: Ty::S32, fp: sat, d: rd(4), a: rd(2).into(), b: rd(3).into() };
    check(vec![op(add)], &EDGES, |a, b| (a as i32).saturating_add(b as i32) as u32 as u64, "add.sat");
}

#[test]
fn counting_and_reversing_bits() {
    let one = |f, ty, oracle: fn(u64) -> u64| {
        let unary = Op::Unary { op: f, ty, fp: Fp::default(), d: rd(4), a: rd(2).into() };
        check(vec![op(unary)], &EDGES, |a, _| oracle(a), &format!("{f:?}.{ty:?}"));
    };
    one(Unary::Popc, Ty::B32, |a| (a as u32).count_ones().into());
    one(Unary::Popc, Ty::B64, |a| a.count_ones().into());
    one(Unary::Clz, Ty::B32, |a| (a as u32).leading_zeros().into());
    one(Unary::Clz, Ty::B64, |a| a.leading_zeros().into());
    one(Unary::Brev, Ty::B32, |a| (a as u32).reverse_bits().into());
    one(Unary::Brev, Ty::B64, u64::reverse_bits);
    one(Unary::Bfind, Ty::U32, |a| (a as u32).checked_ilog2().unwrap_or(u32::MAX).into());
    one(Unary::Bfind, Ty::S64, |a| {
        let magnitude = if (a as i64) < 0 { !a } else { a };
        magnitude.checked_ilog2().unwrap_or(u32::MAX).into()
    });
    one(Unary::Neg, Ty::S32, |a| (a as i32).wrapping_neg() as u32 as u64);
    one(Unary::Abs, Ty::S64, |a| (a as i64).wrapping_abs() as u64);
    one(Unary::Not, Ty::B16, |a| !a as u16 as u64);
    one(Unary::Cnot, Ty::B32, |a| u64::from(a as u32 == 0));
}

#[test]
fn fields_bytes_and_funnels() {
    let ternary = |op_, ty, c: Src| {
        let abc = (rd(2).into(), rd(3).into());
        vec![op(Op::Ternary { op: op_, ty, fp: Fp::default(), d: rd(4), a: abc.0, b: abc.1, c })]
    };
    // The low byte of b is the position; the length is constant.
    for len in [0u32, 1, 8, 31, 32, 40] {
        let bits = |a: u64, pos: u32, width: u32| -> u128 {
            (u128::from(a) & ((1 << width) - 1)) >> pos & ((1u128 << len) - 1)
        };
        check(
            ternary(Ternary::Bfe, Ty::U32, imm(len.into())),
            &EDGES,
            |a, b| bits(a, (b & 0xff).min(64) as u32, 32) as u64,
            "bfe.u32",
        );
        check(
            ternary(Ternary::Bfe, Ty::U64, imm(len.into())),
            &EDGES,
            |a, b| bits(a, (b & 0xff).min(127) as u32, 64) as u64,
            "bfe.u64",
        );
        check(
            ternary(Ternary::Bfe, Ty::S32, imm(len.into())),
            &EDGES,
            |a, b| {
                // PTX ISA: the sign is bit min(pos + len - 1, 31).
                let (a, pos) = (a as u32, (b & 0xff) as u32);
                let sign = len != 0 && a >> (pos + len - 1).min(31) & 1 != 0;
                (0..32).fold(0u32, |d, i| {
                    let bit = if i < len && pos + i <= 31 { a >> (pos + i) & 1 != 0 } else { sign };
                    d | u32::from(bit) << i
                }) as u64
            },
            "bfe.s32",
        );
    }
    let insert = |pos: u64, len: u64| Op::Bfi {
        ty: Ty::B32,
        d: r(4),
        a: rd(2).into(),
        b: rd(3).into(),
        pos: imm(pos),
        len: imm(len),
    };
    for (pos, len) in [(0, 0), (4, 8), (28, 8), (0, 32), (40, 3)] {
        let oracle = |a: u64, b: u64| {
            (0..len).fold(b as u32, |f, i| match pos + i {
                at @ 0..=31 => f & !(1 << at) | (a as u32 >> i & 1) << at,
                _ => f,
            })
        };
        check(vec![op(insert(pos, len)), mov(rd(4), r(4))], &EDGES, |a, b| oracle(a, b).into(), "bfi");
    }
    for shift in [0u64, 1, 31, 32, 40] {
        let pair = |a: u64, b: u64| (b & 0xffff_ffff) << 32 | a & 0xffff_ffff;
        let clamp = shift.min(32);
        check(
            ternary(Ternary::ShfLeftClamp, Ty::B32, imm(shift)),
            &EDGES,
            |a, b| pair(a, b) << clamp >> 32,
            "shf.l",
        );
        check(
            ternary(Ternary::ShfRightWrap, Ty::B32, imm(shift)),
            &EDGES,
            |a, b| (pair(a, b) >> (shift & 31)) & 0xffff_ffff,
            "shf.r.wrap",
        );
    }
    let prmt = |mode, selector| ternary(Ternary::Prmt(mode), Ty::B32, imm(selector));
    check(prmt(PrmtMode::Index, 0x0123), &EDGES, |a, _| (a as u32).swap_bytes().into(), "prmt");
    check(prmt(PrmtMode::Index, 0x5410), &EDGES, |a, b| a & 0xffff | (b & 0xffff) << 16, "prmt");
    check(
        prmt(PrmtMode::Index, 0xbbbb),
        &EDGES,
        |a, _| if a & 1 << 31 != 0 { 0xffff_ffff } else { 0 },
        "sign",
    );
    check(prmt(PrmtMode::F4e, 2), &EDGES, |a, b| a >> 16 & 0xffff | (b & 0xffff) << 16, "prmt.f4e");
    for table in [0x00u8, 0xe8, 0x96, 0x1b, 0xff] {
        let c = 0x0f0f_3355u64;
        check(
            ternary(Ternary::Lop3(table), Ty::B32, imm(c)),
            &EDGES,
            |a, b| {
                (0..32).fold(0, |r, i| {
                    let index = (a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1;
                    r | u64::from(table >> index & 1) << i
                })
            },
            "lop3",
        );
    }
}

#[test]
fn carries_make_longer_words() {
    // Computes (a:b) + (b:a) in two 64-bit halves and stores the high one.
    let add = |cin, cout, d, a: u16, b: u16| {
        op(Op::AddCarry {
            sub: false,
            ty: Ty::U64,
            carry_in: cin,
            carry_out: cout,
            d,
            a: rd(a).into(),
            b: rd(b).into(),
        })
    };
    let wide = |a: u64, b: u64| u128::from(a) << 64 | u128::from(b);
    check(
        vec![add(false, true, rd(5), 3, 2), add(true, false, rd(4), 2, 3)],
        &EDGES,
        |a, b| (wide(a, b).wrapping_add(wide(b, a)) >> 64) as u64,
        "add.cc",
    );
    let sub = |cin, cout, d, a: u16, b: u16| {
        op(Op::AddCarry {
            sub: true,
            ty: Ty::U64,
            carry_in: cin,
            carry_out: cout,
            d,
            a: rd(a).into(),
            b: rd(b).into(),
        })
    };
    check(
        vec![sub(false, true, rd(5), 3, 2), sub(true, false, rd(4), 2, 3)],
        &EDGES,
        |a, b| (wide(a, b).wrapping_sub(wide(b, a)) >> 64) as u64,
        "sub.cc",
    );
}
