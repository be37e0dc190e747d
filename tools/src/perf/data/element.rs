//! Elements of test data by type: how one is made from a hash, combined with others, and stored.

/// Factor of the lower word of elements of 8 bytes, which is made from the upper one.
const BY_LOWER: u32 = 0x9E37_79B1;

/// How elements of a type are made, combined, and stored in `N` bytes. Types instead of closures, because a method can be
/// inlined into code for wider vectors.
pub(super) trait Arithmetic<const N: usize> {
    type Value: Copy + Default;
    /// An element for every reduction but the product. Real numbers are made of the bits in `mask` only, integers of all.
    fn term(hash: u32, mask: u64) -> Self::Value;
    /// An element for products.
    fn factor(hash: u32, mask: u64, odd_rank: bool) -> Self::Value;
    fn add(a: Self::Value, b: Self::Value) -> Self::Value;
    fn mul(a: Self::Value, b: Self::Value) -> Self::Value;
    fn less(a: Self::Value, b: Self::Value) -> bool;
    fn divided(value: Self::Value, ranks: u32) -> Self::Value;
    fn bytes(value: Self::Value) -> [u8; N];
}

/// A hash of 64 bits. Each half shows if the other one is stale.
#[inline(always)]
fn wide(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash.wrapping_mul(BY_LOWER))
}

/// Integers of the hash's upper bits. Factors are odd: no product forgets a rank, as it would behind an even one of many.
macro_rules! integer {
    ($name:ident, $type:ident, $size:literal, $wide:ident, $from_hash:expr) => {
        pub(super) struct $name;

        #[allow(trivial_numeric_casts, reason = "some types are as wide already")]
        impl Arithmetic<$size> for $name {
            type Value = $type;

            #[inline(always)]
            fn term(hash: u32, _mask: u64) -> $type {
                $from_hash(hash)
            }

            #[inline(always)]
            fn factor(hash: u32, mask: u64, _odd_rank: bool) -> $type {
                Self::term(hash, mask) | 1
            }

            #[inline(always)]
            fn add(a: $type, b: $type) -> $type {
                a.wrapping_add(b)
            }

            #[inline(always)]
            fn mul(a: $type, b: $type) -> $type {
                a.wrapping_mul(b)
            }

            #[inline(always)]
            fn less(a: $type, b: $type) -> bool {
                a < b
            }

            #[inline(always)]
            fn divided(value: $type, ranks: u32) -> $type {
                ($wide::from(value) / $wide::from(ranks)) as $type
            }

            #[inline(always)]
            fn bytes(value: $type) -> [u8; $size] {
                value.to_le_bytes()
            }
        }
    };
}

integer!(Signed8, i8, 1, i64, |hash: u32| (hash >> 24) as i8);
integer!(Unsigned8, u8, 1, u64, |hash: u32| (hash >> 24) as u8);
integer!(Signed32, i32, 4, i64, u32::cast_signed);
integer!(Unsigned32, u32, 4, u64, |hash: u32| hash);
integer!(Signed64, i64, 8, i64, |hash: u32| wide(hash).cast_signed());
integer!(Unsigned64, u64, 8, u64, wide);

/// A type of real numbers that kernels reduce as f32, and round to the type at the end.
trait Format {
    /// Bits of the fraction of an f32 that the type lacks.
    const DROPS: u32;
    /// The smallest normal number.
    const LEAST: f32;
    /// Larger numbers become this one. Twice the largest power of two stands for infinity.
    const MOST: f32;
}

/// Real numbers that are reduced as f32.
macro_rules! real_element {
    ($name:ident, $word:ident, $size:literal, $drops:literal, $least:expr, $most:expr) => {
        pub(super) struct $name;

        impl Format for $name {
            const DROPS: u32 = $drops;
            const LEAST: f32 = $least;
            const MOST: f32 = $most;
        }

        #[allow(trivial_numeric_casts, reason = "some types are as wide already")]
        impl Arithmetic<$size> for $name {
            type Value = f32;

            #[inline(always)]
            fn term(hash: u32, mask: u64) -> f32 {
                // Adding zero makes -0, which FP8 has for small numbers, +0: all zeros are the same bits.
                rounded::<Self>(real(hash & (mask >> 32) as u32)) + 0.0
            }

            #[inline(always)]
            fn factor(hash: u32, mask: u64, odd_rank: bool) -> f32 {
                rounded::<Self>(around_one(hash & (mask >> 32) as u32, odd_rank))
            }

            #[inline(always)]
            fn add(a: f32, b: f32) -> f32 {
                a + b
            }

            #[inline(always)]
            fn mul(a: f32, b: f32) -> f32 {
                a * b
            }

            #[inline(always)]
            fn less(a: f32, b: f32) -> bool {
                a < b
            }

            #[inline(always)]
            fn divided(value: f32, ranks: u32) -> f32 {
                value / ranks as f32
            }

            #[inline(always)]
            fn bytes(value: f32) -> [u8; $size] {
                (code::<Self>(rounded::<Self>(value), 8 * $size) as $word).to_le_bytes()
            }
        }
    };
}

// Infinity is 2^16 of f16. FP8 saturates.
real_element!(Single, u32, 4, 0, f32::MIN_POSITIVE, f32::INFINITY);
real_element!(Half, u16, 2, 13, 1.0 / (1 << 14) as f32, (1 << 16) as f32);
real_element!(BrainHalf, u16, 2, 16, f32::MIN_POSITIVE, f32::INFINITY);
real_element!(E4m3, u8, 1, 20, 1.0 / (1 << 6) as f32, 448.0);
real_element!(E5m2, u8, 1, 21, 1.0 / (1 << 14) as f32, 57344.0);

/// A number in -8 .. 8 whose fraction shows wrong rounding. It is exact: 24 bits, a power of two, and a difference that
/// needs no more bits.
#[inline(always)]
fn real(hash: u32) -> f32 {
    // Signed numbers convert faster.
    (hash >> 8).cast_signed() as f32 / (1u32 << 20) as f32 - 8.0
}

/// A number of any sign, whose size is 1 to 4 on even ranks and 1/4 to 1 on odd ones: the product of many ranks stays near 1.
/// The second bit of the hash doubles or halves it, the others are the fraction.
#[inline(always)]
fn around_one(hash: u32, odd_rank: bool) -> f32 {
    const ONE: u32 = 1.0_f32.to_bits();
    let (sign, size) = (hash & 0x8000_0000, hash << 1 >> 8);
    f32::from_bits(sign | if odd_rank { ONE - size } else { ONE + size })
}

/// The number of the type that is nearest to `value`, ties to even. Not for NaN.
#[inline(always)]
fn rounded<F: Format>(value: f32) -> f32 {
    if F::DROPS == 0 {
        return value;
    }
    let size = value.abs().min(F::MOST);
    let bits = size.to_bits();
    let half = (1 << (F::DROPS - 1)) - 1 + (bits >> F::DROPS & 1);
    let normal = f32::from_bits(bits.wrapping_add(half) & !((1 << F::DROPS) - 1));
    // A sum with this number has the spacing of the subnormal ones.
    let spacing = F::LEAST * (1 << F::DROPS) as f32;
    let small = (size + spacing) - spacing;
    if size < F::LEAST { small } else { normal }.copysign(value)
}

/// The bits of a number that is one of the type.
#[inline(always)]
fn code<F: Format>(value: f32, width: u32) -> u32 {
    let bits = value.to_bits();
    if F::DROPS == 0 {
        return bits;
    }
    let (sign, size) = (bits >> 31 << (width - 1), bits & 0x7FFF_FFFF);
    // Exponents are biased by other numbers: that of the smallest normal number is 1.
    let normal = size.wrapping_sub(F::LEAST.to_bits() - (1 << 23)) >> F::DROPS;
    let spacing = F::LEAST * (1 << F::DROPS) as f32;
    let small = (f32::from_bits(size) + spacing).to_bits().wrapping_sub(spacing.to_bits());
    sign | if f32::from_bits(size) < F::LEAST { small } else { normal }
}

pub(super) struct Double;

impl Arithmetic<8> for Double {
    type Value = f64;

    /// In -8 .. 8 with a fraction that an f32 does not hold; exact, as [`real`] is.
    #[inline(always)]
    fn term(hash: u32, mask: u64) -> f64 {
        ((wide(hash) & mask) >> 11).cast_signed() as f64 / (1_u64 << 49) as f64 - 8.0
    }

    /// As [`around_one`].
    #[inline(always)]
    fn factor(hash: u32, mask: u64, odd_rank: bool) -> f64 {
        const ONE: u64 = 1.0_f64.to_bits();
        let hash = wide(hash) & mask;
        let (sign, size) = (hash & 1 << 63, hash << 1 >> 11);
        f64::from_bits(sign | if odd_rank { ONE - size } else { ONE + size })
    }

    #[inline(always)]
    fn add(a: f64, b: f64) -> f64 {
        a + b
    }

    #[inline(always)]
    fn mul(a: f64, b: f64) -> f64 {
        a * b
    }

    #[inline(always)]
    fn less(a: f64, b: f64) -> bool {
        a < b
    }

    #[inline(always)]
    fn divided(value: f64, ranks: u32) -> f64 {
        value / f64::from(ranks)
    }

    #[inline(always)]
    fn bytes(value: f64) -> [u8; 8] {
        value.to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    /// Numbers of all sizes with every pattern of lower bits, those half way between two of any type among them.
    fn numbers() -> impl Iterator<Item = f32> {
        let small = (0..1 << 13).map(|k| k as f32 / (1 << 20) as f32);
        let all = (0..0x7F80_0000_u32 / 60_013).map(|k| f32::from_bits(k * 60_013));
        let ties = (0..0x7F80_u32).map(|upper| f32::from_bits(upper << 16));
        small.chain(all).chain(ties).flat_map(|value| [value, -value])
    }

    #[test]
    fn numbers_are_rounded_as_ieee_754_says() {
        for value in numbers() {
            assert_eq!(Half::bytes(value), f16::from_f32(value).to_le_bytes(), "{value}");
            assert_eq!(BrainHalf::bytes(value), bf16::from_f32(value).to_le_bytes(), "{value}");
            assert_eq!(Single::bytes(value), value.to_le_bytes());
        }
    }

    /// The value of a finite FP8 code without a sign, by the definition of the formats.
    fn f8(code: u32, fraction_bits: u32, bias: i32) -> f64 {
        let (exponent, fraction) =
            ((code >> fraction_bits) as i32, f64::from(code & ((1 << fraction_bits) - 1)));
        let unit = 2_f64.powi(exponent.max(1) - bias - fraction_bits as i32);
        let hidden = if exponent > 0 { f64::from(1 << fraction_bits) } else { 0.0 };
        (hidden + fraction) * unit
    }

    /// Of all finite FP8 numbers none is nearer, and of two that are as near the even one is taken.
    #[test]
    fn fp8_is_the_nearest_number_and_saturates() {
        for (fraction_bits, bias, codes, bytes) in
            [(3, 7, 0x7F, E4m3::bytes as fn(f32) -> [u8; 1]), (2, 15, 0x7C, E5m2::bytes)]
        {
            let all: Vec<f64> = (0..codes).map(|code| f8(code, fraction_bits, bias)).collect();
            for value in numbers().step_by(3) {
                // They ascend with their codes, and what is larger than the last one is as far from all.
                let size = f64::from(value).abs().min(all[all.len() - 1]);
                let above = all.partition_point(|&one| one < size).min(all.len() - 1);
                let below = above.saturating_sub(1);
                let (up, down) = ((all[above] - size).abs(), (size - all[below]).abs());
                let nearest = if up < down || up == down && above % 2 == 0 { above } else { below };
                let sign = if value.is_sign_negative() { 0x80 } else { 0 };
                assert_eq!(bytes(value), [nearest as u8 | sign], "{value} of {fraction_bits} bits");
            }
        }
    }
}
