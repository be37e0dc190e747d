//! `f16`, `bf16` and their pairs (PTX ISA 9.7.4).
//!
//! Sums and quotients of two halves computed in `f32` and rounded again are correctly rounded
//! (24 >= 2 * 11 + 2); products are exact in `f64`; a fused multiply-add goes through a sum rounded
//! to odd.

use half::{bf16, f16};

use super::super::regs::{LANES, Lanes, Regs};
use super::round::{self, BF16, F16};
use crate::code::op::{Binary, Fp, Unary};
use crate::code::{Reg, Round, Src, Ty};

/// `f16` or `bf16`.
trait Half {
    const NAN: u16;
    const TINY: f32;
    fn widen(bits: u16) -> f32;
    /// To nearest even.
    fn narrow(value: f32) -> u16;
    /// From a value that is exact or rounded to odd.
    fn narrow_odd(value: f64) -> u16;
}

impl Half for f16 {
    const NAN: u16 = 0x7fff;
    const TINY: f32 = 6.103_515_6e-5;
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f16::from_bits(bits).to_f32()
    }
    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        f16::from_f32(value).to_bits()
    }
    fn narrow_odd(value: f64) -> u16 {
        Self::narrow(round::round_to(value, F16, Round::Nearest) as f32)
    }
}

impl Half for bf16 {
    const NAN: u16 = 0x7fff;
    const TINY: f32 = f32::MIN_POSITIVE;
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }
    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        let bits = value.to_bits();
        ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
    }
    fn narrow_odd(value: f64) -> u16 {
        Self::narrow(round::round_to(value, BF16, Round::Nearest) as f32)
    }
}

#[inline(always)]
fn finish<H: Half>(bits: u16, fp: Fp) -> u16 {
    let value = H::widen(bits);
    if value.is_nan() {
        return if fp.sat { 0 } else { H::NAN };
    }
    let one = H::narrow(1.0);
    if fp.sat {
        return if value > 1.0 {
            one
        } else if value > 0.0 {
            bits
        } else {
            0
        };
    }
    if fp.relu && value <= 0.0 || fp.ftz && value == 0.0 && bits & 0x7fff == 0 {
        return if fp.relu { 0 } else { bits };
    }
    flush::<H>(bits, fp)
}

#[inline(always)]
fn flush<H: Half>(bits: u16, fp: Fp) -> u16 {
    if fp.ftz && H::widen(bits).abs() < H::TINY { bits & 0x8000 } else { bits }
}

/// Applies `f` to one half, or to both of a pair.
fn each<const N: usize>(
    regs: &mut Regs,
    mask: u32,
    ty: Ty,
    d: Reg,
    sources: [Src; N],
    f: impl Fn([u16; N]) -> u16,
) {
    let values: [Lanes<u32>; N] = sources.map(|s| regs.get32(s));
    let pair = matches!(ty, Ty::F16x2 | Ty::Bf16x2);
    let mut r = [0; LANES];
    for i in 0..LANES {
        // The functions below are far dearer than this test.
        if mask >> i & 1 == 0 {
            continue;
        }
        r[i] = u32::from(f(std::array::from_fn(|k| values[k][i] as u16)));
        if pair {
            r[i] |= u32::from(f(std::array::from_fn(|k| (values[k][i] >> 16) as u16))) << 16;
        }
    }
    regs.put32(d, &r, mask);
}

#[inline(always)]
fn brain(ty: Ty) -> bool {
    matches!(ty, Ty::Bf16 | Ty::Bf16x2)
}

#[inline(never)]
pub(super) fn unary(regs: &mut Regs, mask: u32, op: Unary, ty: Ty, fp: Fp, d: Reg, a: Src) {
    if brain(ty) {
        each(regs, mask, ty, d, [a], |[a]| unary_one::<bf16>(op, fp, a));
    } else {
        each(regs, mask, ty, d, [a], |[a]| unary_one::<f16>(op, fp, a));
    }
}

#[inline(always)]
fn unary_one<H: Half>(op: Unary, fp: Fp, bits: u16) -> u16 {
    let bits = flush::<H>(bits, fp);
    let a = H::widen(bits);
    let value = match op {
        Unary::Neg => return bits ^ 0x8000,
        Unary::Abs => return bits & 0x7fff,
        Unary::Ex2 => a.exp2(),
        Unary::Tanh => a.tanh(),
        Unary::Lg2 => a.log2(),
        Unary::Sin => a.sin(),
        Unary::Cos => a.cos(),
        Unary::Rcp => 1.0 / a,
        Unary::Sqrt => a.sqrt(),
        Unary::Rsqrt => 1.0 / a.sqrt(),
        // Integers only.
        _ => a,
    };
    finish::<H>(H::narrow(value), fp)
}

#[allow(clippy::too_many_arguments, reason = "the operands of one instruction")]
#[inline(never)]
pub(super) fn binary(regs: &mut Regs, mask: u32, op: Binary, ty: Ty, fp: Fp, d: Reg, a: Src, b: Src) {
    if brain(ty) {
        each(regs, mask, ty, d, [a, b], |[a, b]| binary_one::<bf16>(op, fp, a, b));
    } else {
        each(regs, mask, ty, d, [a, b], |[a, b]| binary_one::<f16>(op, fp, a, b));
    }
}

#[inline(always)]
fn binary_one<H: Half>(op: Binary, fp: Fp, a: u16, b: u16) -> u16 {
    let (a, b) = (flush::<H>(a, fp), flush::<H>(b, fp));
    let (x, y) = (H::widen(a), H::widen(b));
    let bits = match op {
        Binary::Add => H::narrow(x + y),
        Binary::Sub => H::narrow(x - y),
        Binary::Mul => H::narrow_odd(f64::from(x) * f64::from(y)),
        Binary::Div => H::narrow(x / y),
        Binary::Min | Binary::Max => return extreme::<H>(op == Binary::Min, fp, a, b),
        // Integers only.
        _ => a,
    };
    finish::<H>(if H::widen(bits).is_nan() { H::NAN } else { bits }, fp)
}

#[inline(always)]
fn extreme<H: Half>(min: bool, fp: Fp, a: u16, b: u16) -> u16 {
    let sign = (a ^ b) & 0x8000;
    let (a, b) = if fp.xorsign_abs { (a & 0x7fff, b & 0x7fff) } else { (a, b) };
    let (x, y) = (H::widen(a), H::widen(b));
    let bits = if fp.nan && (x.is_nan() || y.is_nan()) || x.is_nan() && y.is_nan() {
        return H::NAN;
    } else if x.is_nan() {
        b
    } else if y.is_nan() {
        a
    } else {
        let first = if x == y { (a & 0x8000 != 0) == min } else { (x < y) == min };
        if first { a } else { b }
    };
    if fp.xorsign_abs { bits & 0x7fff | sign } else { bits }
}

#[inline(never)]
pub(super) fn fma(regs: &mut Regs, mask: u32, ty: Ty, fp: Fp, d: Reg, abc: [Src; 3]) {
    if brain(ty) {
        each(regs, mask, ty, d, abc, |[a, b, c]| fma_one::<bf16>(fp, a, b, c));
    } else {
        each(regs, mask, ty, d, abc, |[a, b, c]| fma_one::<f16>(fp, a, b, c));
    }
}

#[inline(always)]
fn fma_one<H: Half>(fp: Fp, a: u16, b: u16, c: u16) -> u16 {
    let wide = |bits| f64::from(H::widen(flush::<H>(bits, fp)));
    let (sum, error) = round::two_sum(wide(a) * wide(b), wide(c));
    finish::<H>(if sum.is_nan() { H::NAN } else { H::narrow_odd(round::odd(sum, error)) }, fp)
}

/// `min`, `max` or `add` of one half, for atomics.
pub(in super::super) fn arith_one(op: Binary, ty: Ty, old: u16, value: u16) -> u16 {
    if brain(ty) {
        binary_one::<bf16>(op, Fp::default(), old, value)
    } else {
        binary_one::<f16>(op, Fp::default(), old, value)
    }
}
