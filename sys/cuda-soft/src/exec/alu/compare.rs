//! Comparison and selection (PTX ISA 9.7.5 and 9.7.6).

use half::{bf16, f16};

use super::super::regs::{ALL, LANES, Lanes, Regs, bits};
use super::float::Float;
use super::int::Word;
use super::map::map1;
use crate::code::op::{BoolOp, Cmp, FloatTest};
use crate::code::{PredSrc, Reg, Src, Ty};

/// The masks of the lanes where `a cmp b` is true, for the low and for the high halves. Types that are not pairs have the
/// same mask twice.
#[inline(never)]
pub(super) fn compare(regs: &Regs, cmp: Cmp, ty: Ty, ftz: bool, a: Src, b: Src) -> [u32; 2] {
    if !matches!(ty, Ty::F16x2 | Ty::Bf16x2) {
        return [one(regs, cmp, ty, ftz, a, b); 2];
    }
    let (a, b) = (regs.get32(a), regs.get32(b));
    [0, 16].map(|shift| halves(cmp, ty, ftz, &a.map(|v| v >> shift), &b.map(|v| v >> shift)))
}

#[inline(always)]
fn one(regs: &Regs, cmp: Cmp, ty: Ty, ftz: bool, a: Src, b: Src) -> u32 {
    match ty {
        Ty::B32 | Ty::U32 | Ty::B8 | Ty::U8 => words::<u32>(regs, cmp, a, b),
        Ty::S32 => words::<i32>(regs, cmp, a, b),
        Ty::B64 | Ty::U64 => words::<u64>(regs, cmp, a, b),
        Ty::S64 => words::<i64>(regs, cmp, a, b),
        Ty::B16 | Ty::U16 => words::<u16>(regs, cmp, a, b),
        Ty::S16 | Ty::S8 => words::<i16>(regs, cmp, a, b),
        Ty::F32 => floats::<f32>(cmp, &f32::get(regs, a), &f32::get(regs, b), ftz),
        Ty::F64 => floats::<f64>(cmp, &f64::get(regs, a), &f64::get(regs, b), false),
        Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2 => halves(cmp, ty, ftz, &regs.get32(a), &regs.get32(b)),
    }
}

fn halves(cmp: Cmp, ty: Ty, ftz: bool, a: &Lanes<u32>, b: &Lanes<u32>) -> u32 {
    let wide = |v: u32| {
        let wide = widen(ty, v as u16);
        // Subnormal halves are normal numbers in f32.
        if ftz && wide.abs() < f16::MIN_POSITIVE.to_f32() { 0.0f32.copysign(wide) } else { wide }
    };
    floats::<f32>(cmp, &map1(a, wide), &map1(b, wide), false)
}

fn widen(ty: Ty, bits: u16) -> f32 {
    match ty {
        Ty::Bf16 | Ty::Bf16x2 => bf16::from_bits(bits).to_f32(),
        _ => f16::from_bits(bits).to_f32(),
    }
}

fn words<T: Word>(regs: &Regs, cmp: Cmp, a: Src, b: Src) -> u32 {
    let (a, b) = (T::get(regs, a), T::get(regs, b));
    match cmp {
        Cmp::Eq | Cmp::Equ => bits(|i| a[i] == b[i]),
        Cmp::Ne | Cmp::Neu => bits(|i| a[i] != b[i]),
        Cmp::Lt | Cmp::Ltu => bits(|i| a[i] < b[i]),
        Cmp::Le | Cmp::Leu => bits(|i| a[i] <= b[i]),
        Cmp::Gt | Cmp::Gtu => bits(|i| a[i] > b[i]),
        Cmp::Ge | Cmp::Geu => bits(|i| a[i] >= b[i]),
        Cmp::Num => ALL,
        Cmp::Nan => 0,
    }
}

fn floats<T: Float>(cmp: Cmp, a: &Lanes<T>, b: &Lanes<T>, ftz: bool) -> u32 {
    let flush = |v: &Lanes<T>| if ftz { map1(v, T::flush) } else { *v };
    let (a, b) = (flush(a), flush(b));
    let unordered = bits(|i| a[i].partial_cmp(&b[i]).is_none());
    match cmp {
        Cmp::Eq => bits(|i| a[i] == b[i]),
        Cmp::Ne => bits(|i| a[i] != b[i]) & !unordered,
        Cmp::Lt => bits(|i| a[i] < b[i]),
        Cmp::Le => bits(|i| a[i] <= b[i]),
        Cmp::Gt => bits(|i| a[i] > b[i]),
        Cmp::Ge => bits(|i| a[i] >= b[i]),
        Cmp::Equ => bits(|i| a[i] == b[i]) | unordered,
        Cmp::Neu => bits(|i| a[i] != b[i]),
        Cmp::Ltu => bits(|i| a[i] < b[i]) | unordered,
        Cmp::Leu => bits(|i| a[i] <= b[i]) | unordered,
        Cmp::Gtu => bits(|i| a[i] > b[i]) | unordered,
        Cmp::Geu => bits(|i| a[i] >= b[i]) | unordered,
        Cmp::Num => !unordered,
        Cmp::Nan => unordered,
    }
}

/// Combines a comparison, and its complement, with a predicate.
#[inline(never)]
pub(super) fn combine(regs: &Regs, holds: u32, with: Option<(BoolOp, PredSrc)>) -> (u32, u32) {
    match with {
        None => (holds, !holds),
        Some((op, c)) => {
            let c = regs.pred_src(c);
            (boolean(op, holds, c), boolean(op, !holds, c))
        }
    }
}

#[inline(never)]
pub(super) fn boolean(op: BoolOp, a: u32, b: u32) -> u32 {
    match op {
        BoolOp::And => a & b,
        BoolOp::Or => a | b,
        BoolOp::Xor => a ^ b,
    }
}

/// Writes the true value of type `dty` in the lanes of `yes`, and zero in the others. If the operands were a pair
/// (`pair`), each half of the result has its own truth.
#[inline(never)]
pub(super) fn set(regs: &mut Regs, mask: u32, d: Reg, dty: Ty, pair: bool, [low, high]: [u32; 2]) {
    let truth: u32 = match dty {
        Ty::F32 => 1.0f32.to_bits(),
        Ty::F16 => 0x3c00,
        Ty::Bf16 => 0x3f80,
        Ty::F16x2 => 0x3c00_3c00,
        Ty::Bf16x2 => 0x3f80_3f80,
        Ty::B16 | Ty::U16 | Ty::S16 => 0xffff,
        _ => ALL,
    };
    let mut r = [0; LANES];
    let halves =
        if pair { [(low, truth & 0xffff), (high, truth & 0xffff_0000)] } else { [(low, truth), (0, 0)] };
    for i in 0..LANES {
        for (yes, truth) in halves {
            r[i] |= if yes >> i & 1 != 0 { truth } else { 0 };
        }
    }
    regs.put32(d, &r, mask);
}

#[inline(never)]
pub(super) fn slct(regs: &mut Regs, mask: u32, cty: Ty, ftz: bool, d: Reg, [a, b, c]: [Src; 3]) {
    let choose = match cty {
        Ty::F32 => {
            let c = f32::get(regs, c);
            let c = if ftz { map1(&c, Float::flush) } else { c };
            bits(|i| c[i] >= 0.0)
        }
        _ => {
            let c = i32::get(regs, c);
            bits(|i| c[i] >= 0)
        }
    };
    let (a, b) = (regs.get64(a), regs.get64(b));
    let mut r = b;
    for i in 0..LANES {
        if choose >> i & 1 != 0 {
            r[i] = a[i];
        }
    }
    regs.put64(d, &r, mask);
}

#[inline(never)]
pub(super) fn test(regs: &Regs, test: FloatTest, ty: Ty, a: Src) -> u32 {
    use std::num::FpCategory::{Infinite, Nan, Normal, Subnormal, Zero};
    let category: Lanes<std::num::FpCategory> = match ty {
        Ty::F64 => f64::get(regs, a).map(f64::classify),
        _ => f32::get(regs, a).map(f32::classify),
    };
    bits(|i| match test {
        FloatTest::Finite => matches!(category[i], Normal | Subnormal | Zero),
        FloatTest::Infinite => category[i] == Infinite,
        FloatTest::Number => category[i] != Nan,
        FloatTest::NotANumber => category[i] == Nan,
        // Zeros are normal numbers here.
        FloatTest::Normal => matches!(category[i], Normal | Zero),
        FloatTest::Subnormal => category[i] == Subnormal,
    })
}
