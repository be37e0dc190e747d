//! Compares floating-point arithmetic, conversions and comparisons with Rust's.

use super::arithmetic::{EDGES, check, pairs};
use super::rig::*;
use crate::code::op::{Binary, Cmp, Fp, Op, Ternary};
use crate::code::{Inst, Round, Ty};

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
    // The result is the number if the other operand is NaN, and -0 is less than +0.
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
            // Exact, or within 2^-53 of it. For these operands no other f32 lies that close.
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
    let both: Vec<u64> = values.iter().map(|v| v | 0x3c00_0000).collect();
    let of = |v: u64| f16::from_bits(v as u16).to_f32();
    let back = |v: f32| if v.is_nan() { 0x7fff } else { u64::from(f16::from_f32(v).to_bits()) };
    check(run(Binary::Add, Ty::F16x2), &both, |a, b| back(of(a) + of(b)) | 0x4000_0000, "add.f16x2");
    // Sums near a tie: 2048 + 1, and 1 + 2^-24 * 2^-24.
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
        pairs(&[0], vec![op(f)])[0].2
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
