//! Rounding in every direction, from intermediates that are exact or rounded to odd.
//!
//! A result rounded to odd in `f64` (53 bits, the last one sticky) rounds correctly, in any direction, to any format of
//! at most 51 bits: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding
//! to odd", IEEE ToC 2008.

use crate::code::Round;

/// A binary floating-point format no wider than `f32`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    /// Significand bits, including the hidden one.
    precision: i32,
    /// Exponent of the smallest subnormal.
    least: i32,
    /// The largest finite value.
    largest: f64,
}

pub(super) const F32: Format = Format { precision: 24, least: -149, largest: f32::MAX as f64 };
pub(super) const F16: Format = Format { precision: 11, least: -24, largest: 65504.0 };
pub(super) const BF16: Format = Format { precision: 8, least: -133, largest: 3.389_531_389_251_535_5e38 };

pub(super) const E4M3: Format = Format { precision: 4, least: -9, largest: 448.0 };
pub(super) const E5M2: Format = Format { precision: 3, least: -16, largest: 57344.0 };

/// Rounds `x` to `format`; the result is exact as an `f64`.
pub(super) fn round_to(x: f64, format: Format, mode: Round) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let exponent = exponent(x);
    let unit = (exponent - (format.precision - 1)).max(format.least);
    let rounded = integral(scale(x, -unit), mode);
    let result = scale(rounded, unit).copysign(x);
    if result.abs() <= format.largest {
        return result;
    }
    let away = match mode {
        Round::Nearest | Round::NearestAway => true,
        Round::Zero => false,
        Round::Down => x < 0.0,
        Round::Up => x > 0.0,
    };
    if away { f64::INFINITY.copysign(x) } else { format.largest.copysign(x) }
}

/// Rounds to an integral value.
pub(super) fn integral(x: f64, mode: Round) -> f64 {
    match mode {
        Round::Nearest => x.round_ties_even(),
        Round::NearestAway => x.round(),
        Round::Zero => x.trunc(),
        Round::Down => x.floor(),
        Round::Up => x.ceil(),
    }
}

/// `a + b` and the exact error (Knuth's TwoSum).
pub(super) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let t = s - a;
    (s, (a - (s - t)) + (b - t))
}

/// Rounds to odd an exact number that is `value` plus a small residue with the sign of `residue`.
pub(super) fn odd(value: f64, residue: f64) -> f64 {
    if residue == 0.0 || !value.is_finite() || residue.is_nan() || value.to_bits() & 1 != 0 {
        return value;
    }
    if value == 0.0 {
        return f64::from_bits(1).copysign(residue);
    }
    // The significand is even and inexact: move it one step towards the exact number.
    let outwards = (residue > 0.0) == (value > 0.0);
    let bits = value.to_bits();
    f64::from_bits(if outwards { bits + 1 } else { bits - 1 })
}

/// Rounds in direction `mode` an exact number whose nearest `f64` is `nearest`; `residue` has the sign of the exact
/// number minus `nearest`.
pub(super) fn directed(nearest: f64, residue: f64, mode: Round) -> f64 {
    if residue == 0.0 || residue.is_nan() || !nearest.is_finite() {
        return overflowed(nearest, mode, residue);
    }
    let up = residue > 0.0;
    match mode {
        Round::Nearest | Round::NearestAway => nearest,
        Round::Up if up => nearest.next_up(),
        Round::Down if !up => nearest.next_down(),
        Round::Zero if up && nearest < 0.0 => nearest.next_up(),
        Round::Zero if !up && nearest > 0.0 => nearest.next_down(),
        _ => nearest,
    }
}

/// Handles an infinity that finite operands produced: in some directions the result is the largest finite number. The
/// residue cannot tell it from a true infinity (both can be NaN), so callers check first that the operands are finite.
fn overflowed(nearest: f64, mode: Round, residue: f64) -> f64 {
    if !nearest.is_infinite() || residue == 0.0 {
        return nearest;
    }
    match mode {
        Round::Zero => f64::MAX.copysign(nearest),
        Round::Down if nearest > 0.0 => f64::MAX,
        Round::Up if nearest < 0.0 => -f64::MAX,
        _ => nearest,
    }
}

/// The exponent of the leading bit of `x`, which is finite and not zero.
fn exponent(x: f64) -> i32 {
    let field = (x.to_bits() >> 52 & 0x7ff) as i32;
    if field != 0 {
        field - 1023
    } else {
        let fraction = x.to_bits() << 12;
        -1023 - fraction.leading_zeros() as i32
    }
}

/// `x * 2^n`, exact where the result is representable.
fn scale(x: f64, n: i32) -> f64 {
    let power = |n: i32| f64::from_bits(((1023 + n) as u64) << 52);
    if n < -1022 {
        x * power(-1022) * power((n + 1022).max(-1022))
    } else if n > 1023 {
        x * power(1023) * power((n - 1023).min(1023))
    } else {
        x * power(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random bit patterns, with every exponent.
    fn numbers() -> impl Iterator<Item = u64> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        std::iter::repeat_with(move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        })
    }

    #[test]
    fn nearest_is_the_conversion_of_rust() {
        for bits in numbers().take(200_000) {
            // Exponents near the range of f32, so that normals, subnormals and overflows all occur.
            let bits = bits & !(0x7ff << 52) | (1023 - 160 + (bits >> 20) % 300) << 52;
            let x = f64::from_bits(bits);
            assert_eq!(round_to(x, F32, Round::Nearest) as f32, x as f32, "{x:e}");
        }
    }

    #[test]
    fn directions_enclose() {
        for bits in numbers().take(50_000) {
            let x = f64::from(f32::from_bits(bits as u32));
            if !x.is_finite() {
                continue;
            }
            for format in [F16, BF16] {
                let [down, up, zero, near] = [Round::Down, Round::Up, Round::Zero, Round::Nearest]
                    .map(|mode| round_to(x, format, mode));
                assert!(down <= x && x <= up, "{x:e}: {down:e} {up:e}");
                assert!(near == down || near == up);
                assert_eq!(zero, if x > 0.0 { down } else { up });
            }
            let exact = half::bf16::from_f32(x as f32).to_f64();
            assert_eq!(round_to(x, BF16, Round::Nearest), exact, "{x:e}");
            let exact = half::f16::from_f32(x as f32).to_f64();
            assert_eq!(round_to(x, F16, Round::Nearest), exact, "{x:e}");
        }
    }

    #[test]
    fn odd_keeps_a_trace_of_what_was_lost() {
        assert_eq!(odd(1.0, 1e-300), 1.0f64.next_up());
        assert_eq!(odd(1.0, -1e-300), 1.0f64.next_down());
        assert_eq!(odd(-1.0, 1e-300), (-1.0f64).next_up());
        assert_eq!(odd(1.0, 0.0), 1.0);
        assert_eq!(odd(1.0f64.next_up(), 1e-300), 1.0f64.next_up());
    }
}
