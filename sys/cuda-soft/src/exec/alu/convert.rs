//! `cvt` (PTX ISA 9.7.9.21) between scalar types.

use half::{bf16, f16};

use super::super::regs::{LANES, Lanes, Regs};
use super::float::Float;
use super::map::{map1, map2};
use super::round::{self, BF16, F16, F32};
use crate::code::op::Fp;
use crate::code::{Reg, Round, Src, Ty};

#[inline(never)]
pub(super) fn convert(regs: &mut Regs, mask: u32, d: Reg, dty: Ty, sty: Ty, fp: Fp, a: Src) {
    let plain = fp.round == Round::Nearest && !fp.sat && !fp.ftz && !fp.integral && !fp.relu;
    let raw = regs.get64(a);
    // Fast paths for the most frequent conversions.
    let quick: Option<Lanes<u32>> = match (dty, sty) {
        _ if !plain => None,
        (Ty::F32, Ty::F16) => Some(map1(&raw, |v| f16::from_bits(v as u16).to_f32().to_bits())),
        // Keeps all bits, of a NaN too.
        (Ty::F32, Ty::Bf16) => return regs.put32(d, &map1(&raw, |v| (v as u32) << 16), mask),
        (Ty::F32, Ty::S32) => Some(map1(&raw, |v| (v as i32 as f32).to_bits())),
        (Ty::F32, Ty::U32) => Some(map1(&raw, |v| (v as u32 as f32).to_bits())),
        _ => None,
    };
    if let Some(r) = quick {
        let canonical = map1(&r, |v| f32::from_bits(v).canonical().to_bits());
        return regs.put32(d, &canonical, mask);
    }
    let r = match (dty.float(), sty.float()) {
        (false, false) if !fp.sat => {
            let widened = map1(&raw, |v| extend(v, sty));
            map1(&widened, |v| extend(v, dty))
        }
        (false, false) => map1(&raw, |v| clamp(integer(v, sty), dty)),
        (true, false) => map1(&raw, |v| from_integer(integer(v, sty), dty, fp)),
        (false, true) => map1(&raw, |v| to_integer(v, sty, dty, fp)),
        (true, true) => map1(&raw, |v| between(v, sty, dty, fp)),
    };
    regs.put64(d, &r, mask);
}

/// Converts two `f32` to a pair of halves.
#[inline(never)]
pub(super) fn pair(regs: &mut Regs, mask: u32, d: Reg, dty: Ty, fp: Fp, a: Src, b: Src) {
    let (a, b) = (regs.get32(a), regs.get32(b));
    let part = if dty == Ty::Bf16x2 { Ty::Bf16 } else { Ty::F16 };
    let one = |v: u32| between(u64::from(v), Ty::F32, part, fp) as u32;
    regs.put32(d, &map2(&a, &b, |a, b| one(a) << 16 | one(b)), mask);
}

/// Takes the low bits that `ty` has, and extends them to 64 bits by the sign of `ty`.
#[inline(always)]
pub(in super::super) fn extend(bits: u64, ty: Ty) -> u64 {
    match ty {
        Ty::S8 => bits as i8 as u64,
        Ty::S16 => bits as i16 as u64,
        Ty::S32 => bits as i32 as u64,
        Ty::B8 | Ty::U8 => bits & 0xff,
        Ty::B16 | Ty::U16 | Ty::F16 | Ty::Bf16 => bits & 0xffff,
        Ty::B32 | Ty::U32 | Ty::F32 | Ty::F16x2 | Ty::Bf16x2 => bits & 0xffff_ffff,
        Ty::B64 | Ty::U64 | Ty::S64 | Ty::F64 => bits,
    }
}

fn integer(bits: u64, ty: Ty) -> i128 {
    let extended = extend(bits, ty);
    if ty.signed() { i128::from(extended.cast_signed()) } else { i128::from(extended) }
}

fn range(ty: Ty) -> (i128, i128) {
    if ty.signed() {
        (-(1 << (ty.bits() - 1)), (1 << (ty.bits() - 1)) - 1)
    } else {
        (0, (1 << ty.bits()) - 1)
    }
}

fn clamp(value: i128, ty: Ty) -> u64 {
    let (least, most) = range(ty);
    value.clamp(least, most) as u64
}

fn from_integer(value: i128, dty: Ty, fp: Fp) -> u64 {
    let magnitude = value.unsigned_abs() as u64;
    let sign = if value < 0 { -1.0 } else { 1.0 };
    if dty == Ty::F64 {
        let nearest = magnitude as f64;
        let residue = i128::from(magnitude) - nearest as i128;
        let r = round::directed(nearest * sign, residue as f64 * sign, fp.round);
        return if fp.sat { r.saturate() } else { r }.to_bits();
    }
    // Keep at most 53 bits; the last one is sticky.
    let shift = (64 - magnitude.leading_zeros()).saturating_sub(53);
    let lost = magnitude & ((1 << shift) - 1) != 0;
    let kept = magnitude >> shift | u64::from(lost);
    let exact = (kept as f64) * (1u64 << shift) as f64 * sign;
    encode(exact, dty, fp)
}

/// Rounds a value that is exact or rounded to odd to `dty`.
fn encode(exact: f64, dty: Ty, fp: Fp) -> u64 {
    let value = if fp.sat { exact.saturate() } else { exact };
    let value = if fp.relu && value <= 0.0 { 0.0 } else { value };
    match dty {
        Ty::F64 => value.to_bits(),
        Ty::F32 => {
            let r = (round::round_to(value, F32, fp.round) as f32).canonical();
            u64::from(if fp.ftz { r.flush() } else { r }.to_bits())
        }
        _ if value.is_nan() => 0x7fff,
        Ty::Bf16 => u64::from(bf16::from_f64(round::round_to(value, BF16, fp.round)).to_bits()),
        _ => u64::from(f16::from_f32(round::round_to(value, F16, fp.round) as f32).to_bits()),
    }
}

fn decode(bits: u64, sty: Ty, ftz: bool) -> f64 {
    match sty {
        Ty::F64 => f64::from_bits(bits),
        Ty::F32 => {
            let value = f32::from_bits(bits as u32);
            f64::from(if ftz { value.flush() } else { value })
        }
        Ty::Bf16 => bf16::from_bits(bits as u16).to_f64(),
        _ => f16::from_bits(bits as u16).to_f64(),
    }
}

/// Clamps values out of range. NaN becomes zero, or only the top bit if either type has 64 bits (PTX ISA, "cvt").
fn to_integer(bits: u64, sty: Ty, dty: Ty, fp: Fp) -> u64 {
    let value = decode(bits, sty, fp.ftz);
    if value.is_nan() {
        let long = sty == Ty::F64 || dty.bits() == 64;
        return if long { extend(1 << (dty.bits() - 1), dty) } else { 0 };
    }
    // The cast saturates at the range of i128, which contains the range of every target type.
    clamp(round::integral(value, fp.round) as i128, dty)
}

fn between(bits: u64, sty: Ty, dty: Ty, fp: Fp) -> u64 {
    let value = decode(bits, sty, fp.ftz);
    if fp.integral {
        return encode(round::integral(value, fp.round), dty, Fp { round: Round::Nearest, ..fp });
    }
    encode(value, dty, fp)
}

/// Applies [`extend`] to all lanes.
#[inline(always)]
pub(in super::super) fn extend_lanes(values: &mut Lanes<u64>, ty: Ty) {
    for i in 0..LANES {
        values[i] = extend(values[i], ty);
    }
}
