//! `f64` arithmetic in a given direction of rounding, by integers: there is no wider type whose results could be rounded,
//! and residues of subnormal results are not representable.

use super::round;
use crate::code::Round;

/// A positive number `magnitude * 2^exponent`, plus something smaller than its last bit if `more`.
#[derive(Clone, Copy)]
struct Wide {
    magnitude: u128,
    exponent: i32,
    more: bool,
}

/// The magnitude of a finite number.
fn split(x: f64) -> Wide {
    let (field, fraction) = (x.to_bits() >> 52 & 0x7ff, x.to_bits() & ((1 << 52) - 1));
    let (field, whole) = if field == 0 { (1, fraction) } else { (field, fraction | 1 << 52) };
    Wide { magnitude: whole.into(), exponent: field as i32 - 1075, more: false }
}

impl Wide {
    /// The number with its leading bit at bit `top`.
    fn normal(self, top: u32) -> Self {
        let shift = top - (127 - self.magnitude.leading_zeros());
        Wide { magnitude: self.magnitude << shift, exponent: self.exponent - shift as i32, ..self }
    }

    fn round(self, negative: bool, mode: Round) -> f64 {
        let top = 127 - self.magnitude.leading_zeros() as i32 + self.exponent;
        let unit = (top - 52).max(-1074);
        let cut = unit - self.exponent;
        let (kept, half, rest) = if cut <= 0 {
            (self.magnitude << -cut, false, self.more)
        } else {
            let cut = cut as u32;
            let kept = self.magnitude.checked_shr(cut).unwrap_or(0);
            let half = self.magnitude.checked_shr(cut - 1).unwrap_or(0) & 1 != 0;
            let below = 1u128.checked_shl(cut - 1).map_or(u128::MAX, |bit| bit - 1);
            (kept, half, self.more || self.magnitude & below != 0)
        };
        let up = match mode {
            Round::Nearest => half && (rest || kept & 1 != 0),
            Round::NearestAway => half,
            Round::Zero => false,
            Round::Down => negative && (half || rest),
            Round::Up => !negative && (half || rest),
        };
        // The fields of exponent and fraction are one number, so a carry out of the fraction is right too.
        let kept = kept as u64 + u64::from(up);
        let bits = if kept < 1 << 52 { kept } else { (((unit + 1075) as u64) << 52) + (kept - (1 << 52)) };
        let magnitude = match f64::from_bits(bits.min(f64::INFINITY.to_bits())) {
            beyond if beyond.is_infinite() => match mode {
                Round::Zero => f64::MAX,
                Round::Down if !negative => f64::MAX,
                Round::Up if negative => f64::MAX,
                _ => beyond,
            },
            finite => finite,
        };
        if negative { -magnitude } else { magnitude }
    }
}

pub(super) fn mul(a: f64, b: f64, mode: Round) -> f64 {
    if !a.is_finite() || !b.is_finite() || a == 0.0 || b == 0.0 {
        return a * b;
    }
    product(a, b).round(a.is_sign_negative() != b.is_sign_negative(), mode)
}

/// The magnitude of the product, which has at most 106 bits.
fn product(a: f64, b: f64) -> Wide {
    let (a, b) = (split(a), split(b));
    Wide { magnitude: a.magnitude * b.magnitude, exponent: a.exponent + b.exponent, more: false }
}

pub(super) fn fma(a: f64, b: f64, c: f64, mode: Round) -> f64 {
    if !a.is_finite() || !b.is_finite() || !c.is_finite() {
        return a.mul_add(b, c);
    }
    let negative = a.is_sign_negative() != b.is_sign_negative();
    let zero = |same: bool, sign: bool| match (same, mode) {
        (true, _) => sign,
        (false, Round::Down) => true,
        (false, _) => false,
    };
    let signed_zero = |negative: bool| if negative { -0.0 } else { 0.0 };
    match (a == 0.0 || b == 0.0, c == 0.0) {
        (true, true) => return signed_zero(zero(negative == c.is_sign_negative(), negative)),
        (true, false) => return c,
        (false, true) => return product(a, b).round(negative, mode),
        (false, false) => {}
    }
    // With the leading bits at bit 125, the product has 20 zeros at its end and `c` more. A difference of exponents that
    // lets bits be lost is then too large for the leading bits to cancel.
    let (x, y) = (product(a, b).normal(125), split(c).normal(125));
    let swap = (x.exponent, x.magnitude) < (y.exponent, y.magnitude);
    let (large, small) = if swap { (y, x) } else { (x, y) };
    let (sign, other) =
        if swap { (c.is_sign_negative(), negative) } else { (negative, c.is_sign_negative()) };
    let distance = (large.exponent - small.exponent) as u32;
    let shifted = small.magnitude.checked_shr(distance).unwrap_or(0);
    let more = shifted.checked_shl(distance).unwrap_or(0) != small.magnitude;
    let magnitude = match sign == other {
        true => large.magnitude + shifted,
        // The lost bits make the difference smaller: one unit less, and something more than that.
        false => large.magnitude - shifted - u128::from(more),
    };
    if magnitude == 0 {
        return signed_zero(zero(false, sign));
    }
    Wide { magnitude, exponent: large.exponent, more }.round(sign, mode)
}

pub(super) fn div(a: f64, b: f64, mode: Round) -> f64 {
    if !a.is_finite() || !b.is_finite() || a == 0.0 || b == 0.0 {
        return a / b;
    }
    let (x, y) = (split(a).normal(126), split(b).normal(63));
    let (magnitude, more) = (x.magnitude / y.magnitude, x.magnitude % y.magnitude != 0);
    let exponent = x.exponent - y.exponent;
    Wide { magnitude, exponent, more }.round(a.is_sign_negative() != b.is_sign_negative(), mode)
}

pub(super) fn sqrt(a: f64, mode: Round) -> f64 {
    if !a.is_finite() || a <= 0.0 || a.is_nan() {
        return a.sqrt();
    }
    let mut x = split(a).normal(125);
    if x.exponent & 1 != 0 {
        x = x.normal(126);
    }
    let root = x.magnitude.isqrt();
    let more = root * root != x.magnitude;
    Wide { magnitude: root, exponent: x.exponent / 2, more }.round(false, mode)
}

pub(super) fn add(a: f64, b: f64, mode: Round) -> f64 {
    if !a.is_finite() || !b.is_finite() {
        return a + b;
    }
    let (sum, error) = round::two_sum(a, b);
    if sum == 0.0 && mode == Round::Down && !(a.is_sign_positive() && b.is_sign_positive()) {
        return -0.0;
    }
    round::directed(sum, error, mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_enclose_exact_results_and_nearest_is_that_of_the_host() {
        let mut state = 88172645463325252_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Exponents near the ends of the range as often as others.
            let bits = state & 0x800f_ffff_ffff_ffff;
            let field = match state >> 52 & 3 {
                0 => state >> 40 & 3,
                1 => 1020 + (state >> 40 & 7),
                2 => 2043 + (state >> 40 & 3),
                _ => state >> 40 & 0x7ff,
            };
            f64::from_bits(bits | field.min(2046) << 52)
        };
        for _ in 0..100_000 {
            let (a, b, c) = (next(), next(), next());
            let near = Round::Nearest;
            for (ours, host) in [
                (mul(a, b, near), a * b),
                (div(a, b, near), a / b),
                (fma(a, b, c, near), a.mul_add(b, c)),
                (sqrt(a.abs(), near), a.abs().sqrt()),
            ] {
                assert_eq!(ours.to_bits(), host.to_bits(), "{a:e} {b:e} {c:e}");
            }
            let (down, up) = (fma(a, b, c, Round::Down), fma(a, b, c, Round::Up));
            let host = a.mul_add(b, c);
            assert!(down <= host && host <= up && (down == up || down.next_up() == up), "{a:e} {b:e} {c:e}");
        }
    }
}
