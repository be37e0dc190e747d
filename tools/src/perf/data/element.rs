//! Elements of test data by type: how one is made from a hash, combined with others, and stored.

/// Bits of an f32 that an element lacks.
const F16_DROPS: u32 = 13;
const BF16_DROPS: u32 = 16;

/// How elements of a type are made, combined, and stored in `N` bytes. Types instead of closures, because a method can be
/// inlined into code for wider vectors.
pub(super) trait Arithmetic<const N: usize> {
    type Value: Copy + Default;
    /// From the bits of `hash`; of real numbers only those in `mask`.
    fn make(hash: u32, mask: u32) -> Self::Value;
    fn add(a: Self::Value, b: Self::Value) -> Self::Value;
    fn less(a: Self::Value, b: Self::Value) -> bool;
    fn bytes(value: Self::Value) -> [u8; N];
}

pub(super) struct Integer;
pub(super) struct Single;
pub(super) struct Half;
pub(super) struct BrainHalf;

impl Arithmetic<4> for Integer {
    type Value = u32;

    #[inline(always)]
    fn make(hash: u32, _mask: u32) -> u32 {
        hash
    }

    #[inline(always)]
    fn add(a: u32, b: u32) -> u32 {
        a.wrapping_add(b)
    }

    #[inline(always)]
    fn less(a: u32, b: u32) -> bool {
        a.cast_signed() < b.cast_signed()
    }

    #[inline(always)]
    fn bytes(value: u32) -> [u8; 4] {
        value.to_le_bytes()
    }
}

/// Real numbers, which the kernels of every type reduce as f32.
macro_rules! real_element {
    ($name:ident, $size:literal, $round:expr, $bytes:expr) => {
        impl Arithmetic<$size> for $name {
            type Value = f32;

            #[inline(always)]
            fn make(hash: u32, mask: u32) -> f32 {
                $round(real(hash & mask))
            }

            #[inline(always)]
            fn add(a: f32, b: f32) -> f32 {
                a + b
            }

            #[inline(always)]
            fn less(a: f32, b: f32) -> bool {
                a < b
            }

            #[inline(always)]
            fn bytes(value: f32) -> [u8; $size] {
                $bytes(value).to_le_bytes()
            }
        }
    };
}

real_element!(Single, 4, f32::from, f32::from);
real_element!(Half, 2, rounded::<F16_DROPS>, f16_bits);
real_element!(BrainHalf, 2, rounded::<BF16_DROPS>, bf16_bits);

/// A number in -8 .. 8 whose fraction shows wrong rounding. It is exact: 24 bits, a power of two, and a difference that
/// needs no more bits.
#[inline(always)]
fn real(hash: u32) -> f32 {
    // Signed numbers convert faster.
    (hash >> 8).cast_signed() as f32 / (1u32 << 20) as f32 - 8.0
}

/// `value` without its lowest `DROPS` bits, rounded to the nearest, ties to even. It must be finite.
#[inline(always)]
fn rounded<const DROPS: u32>(value: f32) -> f32 {
    let bits = value.to_bits();
    let half = (1 << (DROPS - 1)) - 1 + (bits >> DROPS & 1);
    f32::from_bits((bits + half) & !((1 << DROPS) - 1))
}

/// The f16 nearest to `value`. Its magnitude must be less than 65520, and a multiple of 2^-24 if it is less than 2^-14: sums
/// of [`real`] numbers are.
#[inline(always)]
fn f16_bits(value: f32) -> u16 {
    let bits = rounded::<F16_DROPS>(value).to_bits();
    let (sign, magnitude) = (bits >> 16 & 0x8000, bits & 0x7FFF_FFFF);
    // Exponents of f32 have a bias of 127, those of f16 one of 15; the smallest numbers count in 2^-24.
    let normal = (magnitude >> 13).wrapping_sub((127 - 15) << 10);
    let small = (f32::from_bits(magnitude).min(1.0) * (1 << 24) as f32) as i32 as u32;
    (sign | if magnitude < (127 - 14) << 23 { small } else { normal }) as u16
}

/// The bf16 nearest to `value`.
#[inline(always)]
fn bf16_bits(value: f32) -> u16 {
    (rounded::<BF16_DROPS>(value).to_bits() >> 16) as u16
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    /// All small numbers, subnormal ones among them, and larger ones with every pattern of lower bits.
    #[test]
    fn numbers_are_rounded_as_ieee_754_says() {
        let small = (0..1 << 14).map(|k| k as f32 / (1 << 20) as f32);
        let large = (0..100_000).map(|k| f32::from_bits(0x3C00_0000 + k * 10_007));
        for value in small.chain(large.take_while(|value| *value < 65_000.0)).flat_map(|v| [v, -v]) {
            let bits = f16::from_f32(value).to_bits();
            assert!(f16_bits(value) == bits || value == 0.0 && bits & 0x7FFF == 0, "{value}");
            let upper = rounded::<BF16_DROPS>(value);
            assert_eq!(upper.to_bits(), bf16::from_f32(value).to_f32().to_bits(), "{value}");
        }
    }
}
