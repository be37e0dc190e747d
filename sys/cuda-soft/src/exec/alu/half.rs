//! `f16`, `bf16` and their pairs (PTX ISA 9.7.4).
//!
//! A sum or quotient of two halves, computed in `f32` and rounded again, is correctly rounded because 24 >= 2 * 11 + 2.
//! Products are exact in `f64`. A fused multiply-add goes through a sum rounded to odd.

use super::super::regs::{LANES, Lanes, Regs};
use super::round;
use crate::code::op::{Binary, Fp, Unary};
use crate::code::{Reg, Src, Ty};

/// `f16` or `bf16`. Conversions avoid branches where possible, so that loops over a warp can be vectorised.
trait Half {
    const NAN: u16 = 0x7fff;
    /// The smallest positive normal number.
    const TINY: f32;
    fn widen(bits: u16) -> f32;
    /// Rounds to nearest even. NaN becomes any NaN.
    fn narrow(value: f32) -> u16;
}

// These types name formats; the types of the `half` crate hold values.
struct F16;
struct Bf16;

impl Half for F16 {
    const TINY: f32 = 6.103_515_6e-5;

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        let magnitude = u32::from(bits & 0x7fff);
        // The exponent biases differ by 112. The product also normalises subnormals.
        let scaled = f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23);
        let special = if magnitude >= 0x7c00 { 0x7f80_0000 } else { 0 };
        f32::from_bits(scaled.to_bits() | special | u32::from(bits & 0x8000) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        let bits = value.to_bits();
        let magnitude = bits & 0x7fff_ffff;
        // Rounds to a multiple of 2^-24, the unit of 0.5 in f32 and of subnormal halves.
        let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let even = magnitude.wrapping_add(0xfff + (magnitude >> 13 & 1));
        let normal = (even >> 13).wrapping_sub(112 << 10);
        let result = if magnitude > 0x7f80_0000 {
            0x7fff
        } else if magnitude >= 0x477f_f000 {
            // 65520 and above round to infinity.
            0x7c00
        } else if magnitude < 0x3880_0000 {
            small
        } else {
            normal
        };
        (result | bits >> 16 & 0x8000) as u16
    }
}

impl Half for Bf16 {
    const TINY: f32 = f32::MIN_POSITIVE;

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        let bits = value.to_bits();
        let even = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        let result = if value.is_nan() { 0x7fff_0000 } else { even };
        (result >> 16) as u16
    }
}

/// Narrows a value that is exact or rounded to odd. The intermediate `f32` is rounded to odd too.
#[inline(always)]
fn narrow_odd<H: Half>(value: f64) -> u16 {
    let near = value as f32;
    let wide = f64::from(near);
    let bits = near.to_bits();
    let outwards = value.abs() > wide.abs();
    let odd = if wide == value || bits & 1 != 0 || value.is_nan() {
        bits
    } else if outwards {
        bits + 1
    } else {
        bits - 1
    };
    H::narrow(f32::from_bits(odd))
}

#[inline(always)]
fn canonical<H: Half>(bits: u16) -> u16 {
    if H::widen(bits).is_nan() { H::NAN } else { bits }
}

#[inline(always)]
fn finish<H: Half>(bits: u16, fp: Fp) -> u16 {
    let bits = flush::<H>(bits, fp);
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
    if fp.relu && value <= 0.0 { 0 } else { bits }
}

#[inline(always)]
fn flush<H: Half>(bits: u16, fp: Fp) -> u16 {
    if fp.ftz && H::widen(bits).abs() < H::TINY { bits & 0x8000 } else { bits }
}

/// [`flush`] before rounding: what is below the normal numbers becomes zero even if it would be rounded up to the least of them.
#[inline(always)]
fn flush_exact<H: Half>(value: f64, fp: Fp) -> f64 {
    if fp.ftz && value.abs() < f64::from(H::TINY) { 0f64.copysign(value) } else { value }
}

/// Applies `f` to a half, or to both halves of a pair.
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
        each(regs, mask, ty, d, [a], |[a]| unary_one::<Bf16>(op, fp, a));
    } else {
        each(regs, mask, ty, d, [a], |[a]| unary_one::<F16>(op, fp, a));
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
        // The other operations exist only on integers.
        _ => a,
    };
    finish::<H>(H::narrow(value), fp)
}

#[allow(clippy::too_many_arguments, reason = "the operands of one instruction")]
#[inline(never)]
pub(super) fn binary(regs: &mut Regs, mask: u32, op: Binary, ty: Ty, fp: Fp, d: Reg, a: Src, b: Src) {
    if fp == Fp::default() {
        return match brain(ty) {
            true => plain::<Bf16>(regs, mask, op, ty, d, [a, b]),
            false => plain::<F16>(regs, mask, op, ty, d, [a, b]),
        };
    }
    if brain(ty) {
        each(regs, mask, ty, d, [a, b], |[a, b]| binary_one::<Bf16>(op, fp, a, b));
    } else {
        each(regs, mask, ty, d, [a, b], |[a, b]| binary_one::<F16>(op, fp, a, b));
    }
}

/// The common operations without modifiers. Each has its own loop, which the compiler can vectorise.
fn plain<H: Half>(regs: &mut Regs, mask: u32, op: Binary, ty: Ty, d: Reg, ab: [Src; 2]) {
    let on =
        |f: fn(f32, f32) -> f32, [a, b]: [u16; 2]| canonical::<H>(H::narrow(f(H::widen(a), H::widen(b))));
    let none = Fp::default();
    match op {
        Binary::Add => each(regs, mask, ty, d, ab, |ab| on(|a, b| a + b, ab)),
        Binary::Sub => each(regs, mask, ty, d, ab, |ab| on(|a, b| a - b, ab)),
        Binary::Min => each(regs, mask, ty, d, ab, |[a, b]| extreme::<H>(true, none, a, b)),
        Binary::Max => each(regs, mask, ty, d, ab, |[a, b]| extreme::<H>(false, none, a, b)),
        _ => each(regs, mask, ty, d, ab, |[a, b]| binary_one::<H>(op, none, a, b)),
    }
}

#[inline(always)]
fn binary_one<H: Half>(op: Binary, fp: Fp, a: u16, b: u16) -> u16 {
    let (a, b) = (flush::<H>(a, fp), flush::<H>(b, fp));
    let (x, y) = (H::widen(a), H::widen(b));
    let bits = match op {
        Binary::Add => H::narrow(x + y),
        Binary::Sub => H::narrow(x - y),
        Binary::Mul => narrow_odd::<H>(flush_exact::<H>(f64::from(x) * f64::from(y), fp)),
        Binary::Div => H::narrow(x / y),
        Binary::Min | Binary::Max => return extreme::<H>(op == Binary::Min, fp, a, b),
        // The other operations exist only on integers.
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
        each(regs, mask, ty, d, abc, |[a, b, c]| fma_one::<Bf16>(fp, a, b, c));
    } else {
        each(regs, mask, ty, d, abc, |[a, b, c]| fma_one::<F16>(fp, a, b, c));
    }
}

#[inline(always)]
fn fma_one<H: Half>(fp: Fp, a: u16, b: u16, c: u16) -> u16 {
    let wide = |bits| f64::from(H::widen(flush::<H>(bits, fp)));
    let (sum, error) = round::two_sum(wide(a) * wide(b), wide(c));
    finish::<H>(
        if sum.is_nan() { H::NAN } else { narrow_odd::<H>(flush_exact::<H>(round::odd(sum, error), fp)) },
        fp,
    )
}

/// `min`, `max` or `add` on one half, for atomics.
pub(in super::super) fn arith_one(op: Binary, ty: Ty, old: u16, value: u16) -> u16 {
    if brain(ty) {
        binary_one::<Bf16>(op, Fp::default(), old, value)
    } else {
        binary_one::<F16>(op, Fp::default(), old, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_are_those_of_the_half_crate() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (F16::widen(bits), half::f16::from_bits(bits).to_f32());
            assert!(ours == theirs || ours.is_nan() && theirs.is_nan(), "{bits:#x}");
        }
        // Both signs, every exponent, and every pattern of the bits that decide the rounding.
        for high in 0..1u32 << 20 {
            for low in [0, 1, 0x7ff, 0x800, 0xfff] {
                let value = f32::from_bits(high << 12 | low);
                if value.is_nan() {
                    assert!(half::f16::from_bits(F16::narrow(value)).is_nan());
                    assert!(half::bf16::from_bits(Bf16::narrow(value)).is_nan());
                    continue;
                }
                assert_eq!(F16::narrow(value), half::f16::from_f32(value).to_bits(), "{value:e}");
                assert_eq!(Bf16::narrow(value), half::bf16::from_f32(value).to_bits(), "{value:e}");
            }
        }
    }

    #[test]
    fn products_of_brain_floats_round_once_among_subnormals() {
        use crate::code::Round;
        for (a, b) in (0..4000u32).map(|i| (i.wrapping_mul(0x9e37) as u16, (i * 77) as u16)) {
            let exact = f64::from(Bf16::widen(a)) * f64::from(Bf16::widen(b)) * 2f64.powi(-100);
            if exact.is_finite() {
                let oracle = round::round_to(exact, round::BF16, Round::Nearest) as f32;
                assert_eq!(Bf16::widen(narrow_odd::<Bf16>(exact)), oracle, "{exact:e}");
            }
        }
    }
}
