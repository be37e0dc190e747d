//! Integer arithmetic (PTX ISA 9.7.1, 9.7.2 and 9.7.7).

#![allow(trivial_numeric_casts, reason = "one body for all widths")]

use super::super::regs::{LANES, Lanes, Regs};
use super::map::{each1, each2, each3, map1, map2};
use crate::code::op::{Binary, Ternary, Unary};
use crate::code::{Reg, Src, Ty};

/// An integer of one PTX type. Methods wrap around unless their names say otherwise.
pub(super) trait Word: Copy + Default + Ord {
    const BITS: u32;
    const SIGNED: bool;
    fn get(regs: &Regs, src: Src) -> Lanes<Self>;
    fn put(regs: &mut Regs, d: Reg, values: &Lanes<Self>, mask: u32);
    /// Writes results of twice the width.
    fn put_wide(regs: &mut Regs, d: Reg, values: &Lanes<i128>, mask: u32);
    /// Reads an addend of twice the width.
    fn get_wide(regs: &Regs, src: Src) -> Lanes<i128>;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn add_sat(self, other: Self) -> Self;
    fn sub_sat(self, other: Self) -> Self;
    fn mul_hi(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn rem(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn not(self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    /// An amount beyond the width gives zero.
    fn shl(self, amount: u32) -> Self;
    /// An amount beyond the width gives copies of the sign bit, or zero if unsigned.
    fn shr(self, amount: u32) -> Self;
    fn popc(self) -> u32;
    fn clz(self) -> u32;
    fn brev(self) -> Self;
    /// The bits that `bfind` searches: the value, complemented if negative.
    fn find(self) -> Self;
    /// The exact value in 128 bits.
    fn wide(self) -> i128;
    fn narrow(value: i128) -> Self;
    fn abs_diff(self, other: Self) -> Self;
}

macro_rules! word {
    ($t:ty, $u:ty, $bits:literal, $signed:literal, $get:ident, $put:ident, $slot:ty, $wide:ty, $mul:ty) => {
        impl Word for $t {
            const BITS: u32 = $bits;
            const SIGNED: bool = $signed;
            #[inline(always)]
            fn get(regs: &Regs, src: Src) -> Lanes<Self> {
                map1(&regs.$get(src), |v| v as $t)
            }
            #[inline(always)]
            fn put(regs: &mut Regs, d: Reg, values: &Lanes<Self>, mask: u32) {
                regs.$put(d, &map1(values, |v| <$slot>::from(v as $u)), mask);
            }
            #[inline(always)]
            fn put_wide(regs: &mut Regs, d: Reg, values: &Lanes<i128>, mask: u32) {
                regs.put64(d, &map1(values, |v| v as $wide as u64), mask);
            }
            #[inline(always)]
            fn get_wide(regs: &Regs, src: Src) -> Lanes<i128> {
                map1(&regs.get64(src), |v| i128::from(v as $wide))
            }
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn add_sat(self, other: Self) -> Self {
                self.saturating_add(other)
            }
            #[inline(always)]
            fn sub_sat(self, other: Self) -> Self {
                self.saturating_sub(other)
            }
            #[inline(always)]
            fn mul_hi(self, other: Self) -> Self {
                ((self as $mul * other as $mul) >> $bits) as $t
            }
            #[inline(always)]
            fn div(self, other: Self) -> Self {
                // NVIDIA's division sequences give all ones for a zero divisor.
                if other == 0 { !0 } else { self.wrapping_div(other) }
            }
            #[inline(always)]
            fn rem(self, other: Self) -> Self {
                if other == 0 { !0 } else { self.wrapping_rem(other) }
            }
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                self & other
            }
            #[inline(always)]
            fn or(self, other: Self) -> Self {
                self | other
            }
            #[inline(always)]
            fn xor(self, other: Self) -> Self {
                self ^ other
            }
            #[inline(always)]
            fn not(self) -> Self {
                !self
            }
            #[inline(always)]
            fn neg(self) -> Self {
                self.wrapping_neg()
            }
            #[inline(always)]
            #[allow(unused_comparisons, reason = "one body for signed and unsigned")]
            fn abs(self) -> Self {
                if self < 0 { self.wrapping_neg() } else { self }
            }
            #[inline(always)]
            fn shl(self, amount: u32) -> Self {
                if amount >= $bits { 0 } else { self << amount }
            }
            #[inline(always)]
            fn shr(self, amount: u32) -> Self {
                if amount >= $bits { if $signed { self >> ($bits - 1) } else { 0 } } else { self >> amount }
            }
            #[inline(always)]
            fn popc(self) -> u32 {
                self.count_ones()
            }
            #[inline(always)]
            fn clz(self) -> u32 {
                self.leading_zeros()
            }
            #[inline(always)]
            fn brev(self) -> Self {
                self.reverse_bits()
            }
            #[inline(always)]
            #[allow(unused_comparisons, reason = "one body for signed and unsigned")]
            fn find(self) -> Self {
                if self < 0 { !self } else { self }
            }
            #[inline(always)]
            fn wide(self) -> i128 {
                i128::from(self)
            }
            #[inline(always)]
            fn narrow(value: i128) -> Self {
                value as $t
            }
            #[inline(always)]
            fn abs_diff(self, other: Self) -> Self {
                <$t>::abs_diff(self, other) as $t
            }
        }
    };
}

word!(u16, u16, 16, false, get32, put32, u32, u32, u32);
word!(i16, u16, 16, true, get32, put32, u32, i32, i32);
word!(u32, u32, 32, false, get32, put32, u32, u64, u64);
word!(i32, u32, 32, true, get32, put32, u32, i64, i64);
word!(u64, u64, 64, false, get64, put64, u64, u64, u128);
word!(i64, u64, 64, true, get64, put64, u64, i64, i128);

#[inline(never)]
pub(super) fn unary<T: Word>(regs: &mut Regs, mask: u32, op: Unary, d: Reg, a: Src) {
    let a = T::get(regs, a);
    let count: Lanes<u32> = match op {
        Unary::Popc => each1(&a, T::popc),
        Unary::Clz => each1(&a, T::clz),
        Unary::Bfind => each1(&a, |a| (T::BITS - 1).wrapping_sub(a.find().clz())),
        Unary::BfindShift => each1(&a, |a| {
            let clz = a.find().clz();
            if clz == T::BITS { u32::MAX } else { clz }
        }),
        Unary::Not => return T::put(regs, d, &map1(&a, T::not), mask),
        Unary::Neg => return T::put(regs, d, &map1(&a, T::neg), mask),
        Unary::Abs => return T::put(regs, d, &each1(&a, T::abs), mask),
        Unary::Brev => return T::put(regs, d, &each1(&a, T::brev), mask),
        Unary::Cnot => {
            let zero = |a: T| if a == T::default() { T::narrow(1) } else { T::default() };
            return T::put(regs, d, &each1(&a, zero), mask);
        }
        // The other functions exist only on floats; lowering rejects them on integers.
        _ => return,
    };
    regs.put32(d, &count, mask);
}

#[inline(never)]
pub(super) fn binary<T: Word>(regs: &mut Regs, mask: u32, op: Binary, sat: bool, d: Reg, a: Src, b: Src) {
    if matches!(op, Binary::Shl | Binary::Shr) {
        let (a, amount) = (T::get(regs, a), regs.get32(b));
        let r = match op {
            Binary::Shl => map2(&a, &amount, T::shl),
            _ => map2(&a, &amount, T::shr),
        };
        return T::put(regs, d, &r, mask);
    }
    if matches!(op, Binary::BmskClamp | Binary::BmskWrap | Binary::SzextClamp | Binary::SzextWrap) {
        let (a, b) = (regs.get32(a), regs.get32(b));
        let r = match op {
            Binary::BmskClamp => each2(&a, &b, bit_mask),
            Binary::BmskWrap => each2(&a, &b, |a, b| bit_mask(a & 31, b & 31)),
            Binary::SzextClamp => each2(&a, &b, |a, b| extend(a, b.min(32), T::SIGNED)),
            _ => each2(&a, &b, |a, b| extend(a, b & 31, T::SIGNED)),
        };
        return regs.put32(d, &r, mask);
    }
    let (a, b) = (T::get(regs, a), T::get(regs, b));
    let r = match op {
        Binary::Add if sat => each2(&a, &b, T::add_sat),
        Binary::Sub if sat => each2(&a, &b, T::sub_sat),
        Binary::Add => map2(&a, &b, T::add),
        Binary::Sub => map2(&a, &b, T::sub),
        Binary::Mul | Binary::MulLo => map2(&a, &b, T::mul),
        Binary::MulHi => each2(&a, &b, T::mul_hi),
        Binary::MulWide if T::BITS == 32 => {
            // A fast path, because kernels compute most addresses this way.
            let r = map2(&a, &b, |a, b| (a.wide() as i64).wrapping_mul(b.wide() as i64) as u64);
            return regs.put64(d, &r, mask);
        }
        Binary::MulWide => {
            return T::put_wide(regs, d, &each2(&a, &b, |a, b| a.wide() * b.wide()), mask);
        }
        Binary::Mul24Lo => each2(&a, &b, |a, b| T::narrow(low24::<T>(a) * low24::<T>(b))),
        Binary::Mul24Hi => each2(&a, &b, |a, b| T::narrow((low24::<T>(a) * low24::<T>(b)) >> 16)),
        Binary::Div => each2(&a, &b, T::div),
        Binary::Rem => each2(&a, &b, T::rem),
        Binary::Min => each2(&a, &b, T::min),
        Binary::Max => each2(&a, &b, T::max),
        Binary::And => map2(&a, &b, T::and),
        Binary::Or => map2(&a, &b, T::or),
        Binary::Xor => map2(&a, &b, T::xor),
        // The other operations exist only on floats or were handled above.
        _ => return,
    };
    T::put(regs, d, &r, mask);
}

#[inline(never)]
pub(super) fn ternary<T: Word>(
    regs: &mut Regs,
    mask: u32,
    op: Ternary,
    sat: bool,
    d: Reg,
    [a, b, c]: [Src; 3],
) {
    if op == Ternary::Bfe {
        let (a, pos, len) = (T::get(regs, a), regs.get32(b), regs.get32(c));
        return T::put(regs, d, &each3(&a, &pos, &len, bfe), mask);
    }
    let (a, b) = (T::get(regs, a), T::get(regs, b));
    if op == Ternary::MadWide {
        let c = T::get_wide(regs, c);
        let r = each3(&a, &b, &c, |a, b, c| (a.wide() * b.wide()).wrapping_add(c));
        return T::put_wide(regs, d, &r, mask);
    }
    let c = T::get(regs, c);
    let r = match op {
        Ternary::MadLo => each3(&a, &b, &c, |a, b, c| a.mul(b).add(c)),
        Ternary::MadHi if sat => each3(&a, &b, &c, |a, b, c| a.mul_hi(b).add_sat(c)),
        Ternary::MadHi => each3(&a, &b, &c, |a, b, c| a.mul_hi(b).add(c)),
        Ternary::Mad24Lo => each3(&a, &b, &c, |a, b, c| T::narrow(low24::<T>(a) * low24::<T>(b)).add(c)),
        Ternary::Mad24Hi if sat => {
            each3(&a, &b, &c, |a, b, c| T::narrow((low24::<T>(a) * low24::<T>(b)) >> 16).add_sat(c))
        }
        Ternary::Mad24Hi => {
            each3(&a, &b, &c, |a, b, c| T::narrow((low24::<T>(a) * low24::<T>(b)) >> 16).add(c))
        }
        Ternary::Sad => each3(&a, &b, &c, |a, b, c| c.add(a.abs_diff(b))),
        // `alu::ternary` sends the other operations elsewhere.
        _ => return,
    };
    T::put(regs, d, &r, mask);
}

/// Bit-field extract. Bits beyond the word are copies of the sign bit, or zero if unsigned.
#[inline(always)]
fn bfe<T: Word>(a: T, pos: u32, len: u32) -> T {
    let (pos, len) = (pos & 0xff, len & 0xff);
    if len == 0 {
        return T::default();
    }
    let value = a.wide() >> pos.min(T::BITS + 1).min(126);
    let keep = len.min(T::BITS);
    let field = value & ((1i128 << keep) - 1);
    let negative = T::SIGNED && field >> (keep - 1) & 1 != 0;
    T::narrow(if negative { field | !0 << keep } else { field })
}

#[inline(always)]
fn low24<T: Word>(v: T) -> i128 {
    let low = v.wide() & 0xff_ffff;
    if T::SIGNED && low & 0x80_0000 != 0 { low - 0x100_0000 } else { low }
}

#[inline(always)]
fn bit_mask(start: u32, width: u32) -> u32 {
    let (start, width) = (start.min(32), width.min(32));
    let ones = (1u64 << width) - 1;
    (ones << start) as u32
}

#[inline(always)]
fn extend(value: u32, width: u32, signed: bool) -> u32 {
    match width {
        0 => 0,
        32 => value,
        w if signed => ((value << (32 - w)).cast_signed() >> (32 - w)).cast_unsigned(),
        w => value & ((1 << w) - 1),
    }
}

/// `add.cc`, `addc`, `sub.cc`, `subc`. PTX ISA speaks of a borrow, but hardware has one carry flag: it subtracts by
/// adding the complement, so `sub.cc` sets the flag when there is no borrow, and `addc` after it adds that flag.
#[inline(never)]
pub(super) fn add_carry(
    regs: &mut Regs,
    mask: u32,
    sub: bool,
    ty: Ty,
    [carry_in, carry_out]: [bool; 2],
    d: Reg,
    [a, b]: [Src; 2],
) {
    let long = ty.bits() == 64;
    let (a, b) = (regs.get64(a), regs.get64(b));
    let (mut out, mut r) = (0, [0; LANES]);
    for i in 0..LANES {
        let flag = if carry_in { regs.carry >> i & 1 != 0 } else { sub };
        let cut = |v: u64| if long { u128::from(v) } else { u128::from(v as u32) };
        let addend = if sub { !b[i] } else { b[i] };
        let exact = cut(a[i]) + cut(addend) + u128::from(flag);
        r[i] = exact as u64;
        out |= u32::from(exact >> ty.bits() & 1 != 0) << i;
    }
    if carry_out {
        regs.carry = regs.carry & !mask | out & mask;
    }
    regs.put64(d, &r, mask);
}

#[inline(never)]
pub(super) fn mad_carry(
    regs: &mut Regs,
    mask: u32,
    hi: bool,
    ty: Ty,
    flags: [bool; 2],
    d: Reg,
    [a, b, c]: [Src; 3],
) {
    let (a, b, c) = (regs.get64(a), regs.get64(b), regs.get64(c));
    let bits = ty.bits();
    let mut out = 0;
    let mut r = [0; LANES];
    for i in 0..LANES {
        let part = |v: u64| match ty {
            Ty::S32 => i128::from(v as i32),
            Ty::U32 | Ty::B32 => i128::from(v as u32),
            Ty::S64 => i128::from(v.cast_signed()),
            _ => i128::from(v),
        };
        let product = part(a[i]).wrapping_mul(part(b[i])).cast_unsigned();
        let half = if hi { product >> bits } else { product } & ((1u128 << bits) - 1);
        let addend = u128::from(c[i]) & ((1u128 << bits) - 1);
        let exact = half + addend + u128::from(flags[0] && regs.carry >> i & 1 != 0);
        r[i] = exact as u64;
        out |= u32::from(exact >> bits & 1 != 0) << i;
    }
    if flags[1] {
        regs.carry = regs.carry & !mask | out & mask;
    }
    regs.put64(d, &r, mask);
}
