//! Every arithmetic operation against Rust, on values at the edges of its type.

#![allow(trivial_numeric_casts, reason = "one body for all types")]

use super::rig::*;
use crate::code::op::{Binary, Cmp, Fp, Op, PrmtMode, Ternary, Unary};
use crate::code::{Inst, Round, Semantics, Src, Ty};

const EDGES: [u64; 16] = [
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

/// Runs `body` for all pairs (a, b) of `values`: a in rd2, b in rd3, the result from rd4.
fn pairs(values: &[u64], body: Vec<Inst>) -> Vec<(u64, u64, u64)> {
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

fn check(body: Vec<Inst>, values: &[u64], oracle: impl Fn(u64, u64) -> u64, what: &str) {
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
            // The amount is 32 bits and clamps.
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
    // b's low byte is the position, the length is fixed.
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
    // (a:b) + (b:a) in two halves of 64 bits; the high one is stored.
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

fn floats32() -> Vec<u64> {
    [
        0.0f32,
        -0.0,
        1.0,
        -1.0,
        1.5,
        0.1,
        3.0e38,
        -3.0e38,
        1.0e-40,
        -1.0e-45,
        16_777_217.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ]
    .iter()
    .map(|v| u64::from(v.to_bits()))
    .collect()
}

fn canonical(v: f32) -> u64 {
    if v.is_nan() { 0x7fff_ffff } else { v.to_bits().into() }
}

fn float(op_: Binary, fp: Fp) -> Vec<Inst> {
    vec![op(Op::Binary { op: op_, ty: Ty::F32, fp, d: rd(4), a: rd(2).into(), b: rd(3).into() })]
}

#[test]
fn f32_arithmetic() {
    let on = |f: fn(f32, f32) -> f32| {
        move |a: u64, b: u64| canonical(f(f32::from_bits(a as u32), f32::from_bits(b as u32)))
    };
    let plain = Fp::default();
    check(float(Binary::Add, plain), &floats32(), on(|a, b| a + b), "add");
    check(float(Binary::Sub, plain), &floats32(), on(|a, b| a - b), "sub");
    check(float(Binary::Mul, plain), &floats32(), on(|a, b| a * b), "mul");
    check(float(Binary::Div, plain), &floats32(), on(|a, b| a / b), "div");
    let sat = Fp { sat: true, ..plain };
    check(
        float(Binary::Add, sat),
        &floats32(),
        on(|a, b| {
            let v = a + b;
            if v.is_nan() { 0.0 } else { v.clamp(0.0, 1.0) + 0.0 }
        }),
        "add.sat",
    );
    let ftz = Fp { ftz: true, ..plain };
    let flush = |v: f32| if v.is_subnormal() { 0.0f32.copysign(v) } else { v };
    check(
        float(Binary::Mul, ftz),
        &floats32(),
        |a, b| {
            let of = |v: u64| flush(f32::from_bits(v as u32));
            canonical(flush(of(a) * of(b)))
        },
        "mul.ftz",
    );
    // A number beats NaN, and -0 is less than +0.
    check(
        float(Binary::Min, plain),
        &floats32(),
        on(|a, b| match (a.is_nan(), b.is_nan()) {
            (true, _) => b,
            (_, true) => a,
            _ if a == b => {
                if a.is_sign_negative() {
                    a
                } else {
                    b
                }
            }
            _ => {
                if a < b {
                    a
                } else {
                    b
                }
            }
        }),
        "min",
    );
    let nan = Fp { nan: true, ..plain };
    check(
        float(Binary::Max, nan),
        &floats32(),
        on(|a, b| {
            if a.is_nan() || b.is_nan() {
                f32::NAN
            } else if a == b {
                if a.is_sign_positive() { a } else { b }
            } else {
                a.max(b)
            }
        }),
        "max.NaN",
    );
}

#[test]
fn f32_rounds_in_every_direction() {
    for op_ in [Binary::Add, Binary::Mul, Binary::Div] {
        let [down, up, zero] = [Round::Down, Round::Up, Round::Zero]
            .map(|round| pairs(&floats32(), float(op_, Fp { round, ..Fp::default() })));
        for ((d, u), z) in down.iter().zip(&up).zip(&zero) {
            let [a, b, d, u, z] = [d.0, d.1, d.2, u.2, z.2].map(|v| f32::from_bits(v as u32));
            let (x, y) = (f64::from(a), f64::from(b));
            // Exact or within 2^-53, which these operands keep apart from any f32 but the result.
            let exact = match op_ {
                Binary::Add => x + y,
                Binary::Mul => x * y,
                _ => x / y,
            };
            let what = format!("{op_:?} {a:e} {b:e}: {d:e} {u:e}");
            if exact.is_nan() {
                assert!(d.is_nan() && u.is_nan() && z.is_nan(), "{what}");
                continue;
            }
            assert!(f64::from(d) <= exact && exact <= f64::from(u), "{what}");
            assert!(d == u || d.next_up() == u, "{what}");
            assert_eq!(z, if exact > 0.0 { d } else { u }, "{what}");
        }
    }
}

#[test]
fn halves_round_once() {
    use half::{bf16, f16};
    let values: Vec<u64> = [0.0f32, 1.0, -1.0, 0.1, 65504.0, 6.1e-5, 5.9e-8, 2049.0, 0.333]
        .iter()
        .map(|v| u64::from(f16::from_f32(*v).to_bits()))
        .chain([0x7c00, 0x0001, 0x8001])
        .collect();
    let run = |op_, ty| vec![bin(op_, ty, rd(4), rd(2), rd(3))];
    let of = |v: u64| f16::from_bits(v as u16).to_f32();
    let back = |v: f32| if v.is_nan() { 0x7fff } else { u64::from(f16::from_f32(v).to_bits()) };
    check(run(Binary::Add, Ty::F16), &values, |a, b| back(of(a) + of(b)), "add.f16");
    check(run(Binary::Mul, Ty::F16), &values, |a, b| back(of(a) * of(b)), "mul.f16");
    let of = |v: u64| bf16::from_bits(v as u16).to_f32();
    let back = |v: f32| if v.is_nan() { 0x7fff } else { u64::from(bf16::from_f32(v).to_bits()) };
    check(run(Binary::Add, Ty::Bf16), &values, |a, b| back(of(a) + of(b)), "add.bf16");
    // Both halves of a pair.
    let pairs: Vec<u64> = values.iter().map(|v| v | 0x3c00_0000).collect();
    let of = |v: u64| f16::from_bits(v as u16).to_f32();
    let back = |v: f32| if v.is_nan() { 0x7fff } else { u64::from(f16::from_f32(v).to_bits()) };
    check(run(Binary::Add, Ty::F16x2), &pairs, |a, b| back(of(a) + of(b)) | 0x4000_0000, "add.f16x2");
    // Exactly halfway but for the addend: 2^-24 * 2^-24 + a tie of f16.
    let (tiny, one) = (0x0001, f16::from_f32(1.0).to_bits());
    let tie = f16::from_f32(2048.0).to_bits();
    let fma = |a: u16, b: u16, c: u16| {
        let src = |v: u16| imm(v.into());
        let f = Op::Ternary {
            op: Ternary::Fma,
            ty: Ty::F16,
            fp: Fp::default(),
            d: rd(4),
            a: src(a),
            b: src(b),
            c: src(c),
        };
        super::arithmetic::pairs(&[0], vec![op(f)])[0].2
    };
    assert_eq!(fma(one, one, tie), 0x6800, "2049 is a tie and goes to even");
    assert_eq!(fma(tiny, tiny, one), u64::from(one), "far below the last bit");
}

#[test]
fn conversions() {
    let cvt = |dty, sty, fp| vec![op(Op::Cvt { d: rd(4), dty, sty, fp, a: rd(2).into() })];
    let plain = Fp::default();
    let whole = |round| Fp { round, integral: true, ..plain };
    check(cvt(Ty::S64, Ty::S8, plain), &EDGES, |a, _| a as i8 as u64, "s64.s8");
    check(cvt(Ty::U16, Ty::S32, plain), &EDGES, |a, _| a as u16 as u64, "u16.s32");
    let sat = Fp { sat: true, ..plain };
    check(cvt(Ty::U8, Ty::S32, sat), &EDGES, |a, _| (a as i32).clamp(0, 255) as u64, "u8.s32 sat");
    check(cvt(Ty::F32, Ty::S64, plain), &EDGES, |a, _| (a as i64 as f32).to_bits().into(), "f32.s64");
    check(cvt(Ty::F32, Ty::U32, plain), &EDGES, |a, _| (a as u32 as f32).to_bits().into(), "f32.u32");
    check(cvt(Ty::F64, Ty::U64, plain), &EDGES, |a, _| (a as f64).to_bits(), "f64.u64");
    let f = |a: u64| f32::from_bits(a as u32);
    check(cvt(Ty::S32, Ty::F32, whole(Round::Zero)), &floats32(), |a, _| f(a) as i32 as u64, "rzi");
    check(
        cvt(Ty::S32, Ty::F32, whole(Round::Nearest)),
        &floats32(),
        |a, _| f(a).round_ties_even() as i32 as u64,
        "rni",
    );
    check(cvt(Ty::U32, Ty::F32, whole(Round::Up)), &floats32(), |a, _| f(a).ceil() as u32 as u64, "rpi");
    check(
        cvt(Ty::F64, Ty::F32, plain),
        &floats32(),
        |a, _| {
            let v = f64::from(f(a));
            if v.is_nan() { f64::NAN.to_bits() } else { v.to_bits() }
        },
        "f64.f32",
    );
    check(
        cvt(Ty::F16, Ty::F32, plain),
        &floats32(),
        |a, _| {
            if f(a).is_nan() { 0x7fff } else { u64::from(half::f16::from_f32(f(a)).to_bits()) }
        },
        "f16.f32",
    );
    check(
        cvt(Ty::Bf16, Ty::F32, Fp { round: Round::Zero, ..plain }),
        &floats32(),
        |a, _| {
            if f(a).is_nan() { 0x7fff } else { a >> 16 }
        },
        "bf16.f32 rz",
    );
    check(cvt(Ty::F32, Ty::F32, whole(Round::Down)), &floats32(), |a, _| canonical(f(a).floor()), "rmi");
}

#[test]
fn comparisons_with_nan() {
    let compare = |cmp| {
        vec![setp(cmp, Ty::F32, 0, rd(2), rd(3)), op(Op::Selp { d: rd(4), a: imm(1), b: imm(0), p: yes(0) })]
    };
    let on = |f: fn(f32, f32) -> bool| {
        move |a: u64, b: u64| u64::from(f(f32::from_bits(a as u32), f32::from_bits(b as u32)))
    };
    check(compare(Cmp::Lt), &floats32(), on(|a, b| a < b), "lt");
    check(compare(Cmp::Ne), &floats32(), on(|a, b| a.partial_cmp(&b).is_some_and(|o| o.is_ne())), "ne");
    check(compare(Cmp::Neu), &floats32(), on(|a, b| a != b), "neu");
    check(compare(Cmp::Geu), &floats32(), on(|a, b| a.partial_cmp(&b).is_none_or(|o| o.is_ge())), "geu");
    check(compare(Cmp::Num), &floats32(), on(|a, b| !a.is_nan() && !b.is_nan()), "num");
    let int = |cmp, ty| {
        vec![setp(cmp, ty, 0, rd(2), rd(3)), op(Op::Selp { d: rd(4), a: imm(1), b: imm(0), p: yes(0) })]
    };
    check(int(Cmp::Lt, Ty::S32), &EDGES, |a, b| u64::from((a as i32) < b as i32), "lt.s32");
    check(int(Cmp::Ge, Ty::U64), &EDGES, |a, b| u64::from(a >= b), "ge.u64");
}
