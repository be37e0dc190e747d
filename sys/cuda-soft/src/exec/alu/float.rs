//! `f32` and `f64` arithmetic (PTX ISA 9.7.3).

#![allow(trivial_numeric_casts, reason = "one body for both widths")]

use super::super::regs::{LANES, Lanes, Regs};
use super::directed;
use super::map::{map1, map2, map3};
use super::round::{self, F32};
use crate::code::op::{Binary, Fp, Unary};
use crate::code::{Reg, Round, Src};

/// `f32` or `f64`.
pub(super) trait Float: Copy + Default + PartialOrd {
    fn get(regs: &Regs, src: Src) -> Lanes<Self>;
    fn put(regs: &mut Regs, d: Reg, values: &Lanes<Self>, mask: u32);
    /// Replaces NaN by the canonical NaN of arithmetic. `f64` keeps its payload.
    fn canonical(self) -> Self;
    fn flush(self) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn fma(self, b: Self, c: Self) -> Self;
    fn sqrt(self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn copysign(self, sign: Self) -> Self;
    fn saturate(self) -> Self;
    fn approx(self, op: Unary) -> Self;
    const ONE: Self;
    const NAN: Self;
    /// The least positive normal number.
    const TINY: Self;
    /// The largest number whose reciprocal is normal.
    const INVERTIBLE: Self;
    fn add_to(self, other: Self, mode: Round) -> Self;
    fn mul_to(self, other: Self, mode: Round) -> Self;
    fn div_to(self, other: Self, mode: Round) -> Self;
    fn fma_to(self, b: Self, c: Self, mode: Round) -> Self;
    fn sqrt_to(self, mode: Round) -> Self;
}

macro_rules! float {
    ($t:ident, $bits:ty, $get:ident, $put:ident, $slot:ty, $canonical:expr, $tiny:expr) => {
        #[inline(always)]
        fn get(regs: &Regs, src: Src) -> Lanes<Self> {
            map1(&regs.$get(src), |v| $t::from_bits(v as $bits))
        }
        #[inline(always)]
        fn put(regs: &mut Regs, d: Reg, values: &Lanes<Self>, mask: u32) {
            regs.$put(d, &map1(values, |v| <$slot>::from(v.to_bits())), mask);
        }
        #[inline(always)]
        fn canonical(self) -> Self {
            ($canonical)(self)
        }
        #[inline(always)]
        fn flush(self) -> Self {
            if self.abs() < Self::TINY { $t::copysign(0.0, self) } else { self }
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            self + other
        }
        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            self - other
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            self * other
        }
        #[inline(always)]
        fn div(self, other: Self) -> Self {
            self / other
        }
        #[inline(always)]
        fn fma(self, b: Self, c: Self) -> Self {
            self.mul_add(b, c)
        }
        #[inline(always)]
        fn sqrt(self) -> Self {
            $t::sqrt(self)
        }
        #[inline(always)]
        fn neg(self) -> Self {
            -self
        }
        #[inline(always)]
        fn abs(self) -> Self {
            $t::abs(self)
        }
        #[inline(always)]
        fn min(self, other: Self) -> Self {
            // Orders -0 below +0, and prefers a number to NaN.
            if self.is_nan() {
                other
            } else if self < other || (self == other && self.is_sign_negative()) || other.is_nan() {
                self
            } else {
                other
            }
        }
        #[inline(always)]
        fn max(self, other: Self) -> Self {
            if self.is_nan() {
                other
            } else if self > other || (self == other && self.is_sign_positive()) || other.is_nan() {
                self
            } else {
                other
            }
        }
        #[inline(always)]
        fn copysign(self, sign: Self) -> Self {
            $t::copysign(self, sign)
        }
        #[inline(always)]
        fn saturate(self) -> Self {
            // NaN and -0 become +0.
            if self > 0.0 { if self < 1.0 { self } else { 1.0 } } else { 0.0 }
        }
        fn approx(self, op: Unary) -> Self {
            match op {
                Unary::Sin => self.sin(),
                Unary::Cos => self.cos(),
                Unary::Lg2 => self.log2(),
                Unary::Ex2 => self.exp2(),
                Unary::Tanh => self.tanh(),
                _ => self,
            }
        }
        const ONE: Self = 1.0;
        const NAN: Self = $t::NAN;
        const TINY: Self = $tiny;
        const INVERTIBLE: Self = 1.0 / $tiny;
    };
}

impl Float for f32 {
    float!(
        f32,
        u32,
        get32,
        put32,
        u32,
        |v: f32| if v.is_nan() { f32::from_bits(0x7fff_ffff) } else { v },
        f32::MIN_POSITIVE
    );

    fn add_to(self, other: Self, mode: Round) -> Self {
        let (sum, error) = round::two_sum(f64::from(self), f64::from(other));
        if sum == 0.0 && mode == Round::Down && !(self.is_sign_positive() && other.is_sign_positive()) {
            // An exact zero sum of operands with different signs is negative when rounding down.
            return -0.0;
        }
        round::round_to(round::odd(sum, error), F32, mode) as f32
    }

    fn mul_to(self, other: Self, mode: Round) -> Self {
        round::round_to(f64::from(self) * f64::from(other), F32, mode) as f32
    }

    fn div_to(self, other: Self, mode: Round) -> Self {
        let (a, b) = (f64::from(self), f64::from(other));
        let q = a / b;
        // a - q * b has the sign of (exact quotient - q) times the sign of b.
        let residue = (-q).mul_add(b, a) * b.signum();
        round::round_to(round::odd(q, residue), F32, mode) as f32
    }

    fn fma_to(self, b: Self, c: Self, mode: Round) -> Self {
        let product = f64::from(self) * f64::from(b);
        let (sum, error) = round::two_sum(product, f64::from(c));
        if sum == 0.0 && mode == Round::Down && !(product.is_sign_positive() && c.is_sign_positive()) {
            return -0.0;
        }
        round::round_to(round::odd(sum, error), F32, mode) as f32
    }

    fn sqrt_to(self, mode: Round) -> Self {
        let root = f64::from(self).sqrt();
        let residue = (-root).mul_add(root, f64::from(self));
        round::round_to(round::odd(root, residue), F32, mode) as f32
    }
}

impl Float for f64 {
    float!(f64, u64, get64, put64, u64, |v: f64| v, f64::MIN_POSITIVE);

    fn add_to(self, other: Self, mode: Round) -> Self {
        directed::add(self, other, mode)
    }

    fn mul_to(self, other: Self, mode: Round) -> Self {
        directed::mul(self, other, mode)
    }

    fn div_to(self, other: Self, mode: Round) -> Self {
        directed::div(self, other, mode)
    }

    fn fma_to(self, b: Self, c: Self, mode: Round) -> Self {
        directed::fma(self, b, c, mode)
    }

    fn sqrt_to(self, mode: Round) -> Self {
        directed::sqrt(self, mode)
    }
}

fn read<T: Float>(regs: &Regs, src: Src, fp: Fp) -> Lanes<T> {
    let values = T::get(regs, src);
    if fp.ftz { map1(&values, T::flush) } else { values }
}

fn write<T: Float>(regs: &mut Regs, d: Reg, values: Lanes<T>, fp: Fp, mask: u32) {
    let mut values = map1(&values, T::canonical);
    if fp.ftz {
        values = map1(&values, T::flush);
    }
    if fp.sat {
        values = map1(&values, T::saturate);
    }
    if fp.relu {
        values =
            map1(&values, |v| if v > T::default() || v.partial_cmp(&v).is_none() { v } else { T::default() });
    }
    T::put(regs, d, &values, mask);
}

/// With `.ftz`, a result below the normal numbers becomes zero even if it was rounded up to the least of them.
fn settle<T: Float>(values: &mut Lanes<T>, fp: Fp, truncated: impl Fn(usize) -> T) {
    if !fp.ftz {
        return;
    }
    for i in 0..LANES {
        if values[i].abs() == T::TINY && truncated(i).abs() < T::TINY {
            values[i] = T::default().copysign(values[i]);
        }
    }
}

#[inline(never)]
pub(super) fn unary<T: Float>(regs: &mut Regs, mask: u32, op: Unary, fp: Fp, d: Reg, a: Src) {
    let a = read::<T>(regs, a, fp);
    let nearest = fp.approx || fp.round == Round::Nearest;
    let mut r = match op {
        Unary::Neg => map1(&a, T::neg),
        Unary::Abs => map1(&a, T::abs),
        Unary::Rcp if nearest => map1(&a, |a| T::ONE.div(a)),
        Unary::Rcp => map1(&a, |a| T::ONE.div_to(a, fp.round)),
        Unary::Sqrt if nearest => map1(&a, T::sqrt),
        Unary::Sqrt => map1(&a, |a| a.sqrt_to(fp.round)),
        Unary::Rsqrt => map1(&a, |a| T::ONE.div(a.sqrt())),
        _ => map1(&a, |a| a.approx(op)),
    };
    if op == Unary::Rcp {
        settle(&mut r, fp, |i| T::ONE.div_to(a[i], Round::Zero));
    }
    if matches!(op, Unary::Neg | Unary::Abs) && !fp.ftz && !fp.sat {
        // Only the sign bit changes, even of a NaN.
        return T::put(regs, d, &r, mask);
    }
    write(regs, d, r, fp, mask);
}

/// `rcp.approx.ftz.f64` and `rsqrt.approx.ftz.f64`: only the upper words of the operand and of the result count, and every NaN
/// becomes the same one.
#[inline(never)]
pub(super) fn gross(regs: &mut Regs, mask: u32, op: Unary, d: Reg, a: Src) {
    const UPPER: u64 = 0xffff_ffff_0000_0000;
    let r = map1(&regs.get64(a), |bits| {
        let a = f64::from_bits(bits & UPPER).flush();
        let r = 1.0 / if op == Unary::Rsqrt { a.sqrt() } else { a };
        if r.is_nan() { 0x7fff_ffff_0000_0000 } else { r.flush().to_bits() & UPPER }
    });
    regs.put64(d, &r, mask);
}

#[inline(never)]
pub(super) fn binary<T: Float>(regs: &mut Regs, mask: u32, op: Binary, fp: Fp, d: Reg, a: Src, b: Src) {
    let (a, b) = (read::<T>(regs, a, fp), read::<T>(regs, b, fp));
    let nearest = fp.approx || fp.round == Round::Nearest;
    let mut r = match op {
        Binary::Add if nearest => map2(&a, &b, T::add),
        Binary::Sub if nearest => map2(&a, &b, T::sub),
        Binary::Mul if nearest => map2(&a, &b, T::mul),
        Binary::Div if fp.approx => map2(&a, &b, approximate_quotient),
        Binary::Div if nearest => map2(&a, &b, T::div),
        Binary::Add => map2(&a, &b, |a, b| a.add_to(b, fp.round)),
        Binary::Sub => map2(&a, &b, |a, b| a.add_to(b.neg(), fp.round)),
        Binary::Mul => map2(&a, &b, |a, b| a.mul_to(b, fp.round)),
        Binary::Div => map2(&a, &b, |a, b| a.div_to(b, fp.round)),
        Binary::Min | Binary::Max => extremes(&a, &b, op == Binary::Min, fp),
        // `d` has the sign of `a` and the magnitude of `b`.
        Binary::Copysign => return T::put(regs, d, &map2(&a, &b, |a, b| b.copysign(a)), mask),
        // The other operations exist only on integers.
        _ => return,
    };
    // Sums below the normal numbers are exact.
    match op {
        Binary::Mul => settle(&mut r, fp, |i| a[i].mul_to(b[i], Round::Zero)),
        Binary::Div => settle(&mut r, fp, |i| a[i].div_to(b[i], Round::Zero)),
        _ => {}
    }
    write(regs, d, r, fp, mask);
}

/// `div.approx` multiplies by the reciprocal of `b`, which it takes for zero where it is not a normal number.
fn approximate_quotient<T: Float>(a: T, b: T) -> T {
    if b.abs() > T::INVERTIBLE { a.mul(T::default().copysign(b)) } else { a.div(b) }
}

fn extremes<T: Float>(a: &Lanes<T>, b: &Lanes<T>, min: bool, fp: Fp) -> Lanes<T> {
    let mut r = [T::default(); LANES];
    for i in 0..LANES {
        let (x, y) = if fp.xorsign_abs { (a[i].abs(), b[i].abs()) } else { (a[i], b[i]) };
        let unordered = x.partial_cmp(&y).is_none();
        let mut value = if min { x.min(y) } else { x.max(y) };
        if fp.nan && unordered {
            value = T::NAN;
        }
        if fp.xorsign_abs {
            let sign = T::ONE.copysign(a[i]).mul(T::ONE.copysign(b[i]));
            value = value.copysign(sign);
        }
        r[i] = value;
    }
    r
}

#[inline(never)]
pub(super) fn fma<T: Float>(regs: &mut Regs, mask: u32, fp: Fp, d: Reg, [a, b, c]: [Src; 3]) {
    let (a, b, c) = (read::<T>(regs, a, fp), read::<T>(regs, b, fp), read::<T>(regs, c, fp));
    let mut r = if fp.round == Round::Nearest {
        map3(&a, &b, &c, T::fma)
    } else {
        map3(&a, &b, &c, |a, b, c| a.fma_to(b, c, fp.round))
    };
    settle(&mut r, fp, |i| a[i].fma_to(b[i], c[i], Round::Zero));
    write(regs, d, r, fp, mask);
}
