//! Conversions of pairs of 8-bit floats (PTX ISA 9.7.9.21).

use half::f16;

use super::super::regs::Regs;
use super::map::{map1, map2};
use super::round::{self, E4M3, E5M2};
use crate::code::op::Fp8;
use crate::code::{Reg, Round, Src, Ty};

/// The NaN that conversions produce, in both formats.
const NAN: u8 = 0x7f;

/// Mantissa bits, and the exponent of the smallest subnormal number.
fn shape(format: Fp8) -> (u32, i32) {
    match format {
        Fp8::E4m3 => (3, -9),
        Fp8::E5m2 => (2, -16),
    }
}

#[inline(never)]
pub(super) fn narrow(regs: &mut Regs, mask: u32, d: Reg, format: Fp8, ty: Ty, relu: bool, [a, b]: [Src; 2]) {
    let (a, b) = (regs.get32(a), regs.get32(b));
    let byte = |value: f64| u32::from(encode(format, relu, value));
    let r = map2(&a, &b, |a, b| {
        let (high, low) = match ty {
            Ty::F32 => (f64::from(f32::from_bits(a)), f64::from(f32::from_bits(b))),
            _ => (f16::from_bits((a >> 16) as u16).to_f64(), f16::from_bits(a as u16).to_f64()),
        };
        byte(high) << 8 | byte(low)
    });
    regs.put32(d, &r, mask);
}

/// Rounds to nearest even. Numbers beyond the range, infinities included, become the largest finite one.
fn encode(format: Fp8, relu: bool, value: f64) -> u8 {
    if value.is_nan() {
        return NAN;
    }
    if relu && value <= 0.0 {
        return 0;
    }
    let (mantissa, least) = shape(format);
    let (target, largest) = match format {
        Fp8::E4m3 => (E4M3, 448.0),
        Fp8::E5m2 => (E5M2, 57344.0),
    };
    let magnitude = round::round_to(value, target, Round::Nearest).abs().min(largest);
    // In units of the smallest subnormal number, the encoding of a number below the second binade is the number itself.
    let mut units = (magnitude * f64::from(-least).exp2()) as u64;
    let mut binades = 0;
    while units >= 2 << mantissa {
        units >>= 1;
        binades += 1;
    }
    let bits = (binades << mantissa) + units;
    bits as u8 | if value.is_sign_negative() { 0x80 } else { 0 }
}

#[inline(never)]
pub(super) fn widen(regs: &mut Regs, mask: u32, d: Reg, format: Fp8, relu: bool, a: Src) {
    let a = regs.get32(a);
    let one = |byte: u32| u32::from(decode(format, relu, byte as u8));
    regs.put32(d, &map1(&a, |a| one(a >> 8) << 16 | one(a & 0xff)), mask);
}

/// The `f16` with the same value.
fn decode(format: Fp8, relu: bool, byte: u8) -> u16 {
    let (mantissa, least) = shape(format);
    let magnitude = u64::from(byte & 0x7f);
    let sign = u16::from(byte & 0x80) << 8;
    match format {
        Fp8::E4m3 if magnitude == 0x7f => return 0x7fff,
        Fp8::E5m2 if magnitude > 0x7c => return 0x7fff,
        _ if relu && sign != 0 => return 0,
        Fp8::E5m2 if magnitude == 0x7c => return sign | 0x7c00,
        _ => {}
    }
    let (exponent, fraction) = (magnitude >> mantissa, magnitude & ((1 << mantissa) - 1));
    let units = if exponent == 0 { fraction } else { (fraction | 1 << mantissa) << (exponent - 1) };
    sign | f16::from_f64(units as f64 * f64::from(least).exp2()).to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_round_trips_and_the_others_go_to_the_nearest() {
        for format in [Fp8::E4m3, Fp8::E5m2] {
            let value = |byte: u8| f16::from_bits(decode(format, false, byte)).to_f64();
            let finite: Vec<(f64, u8)> =
                (0..=0x7e).map(|byte| (value(byte), byte)).filter(|(v, _)| v.is_finite()).collect();
            for pair in finite.windows(2) {
                let [(low, below), (high, above)] = pair else { panic!("two") };
                assert!(low < high);
                assert_eq!(encode(format, false, *low), *below);
                assert_eq!(encode(format, false, -low), below | 0x80);
                let middle = (low + high) / 2.0;
                let even = if below & 1 == 0 { below } else { above };
                assert_eq!(encode(format, false, middle), *even, "{format:?} {middle}");
                assert_eq!(encode(format, false, middle.next_up()), *above);
                assert_eq!(encode(format, false, middle.next_down()), *below);
            }
            let (largest, top) = finite[finite.len() - 1];
            assert_eq!(largest, if format == Fp8::E4m3 { 448.0 } else { 57344.0 });
            for beyond in [largest * 1.01, 1e30, f64::INFINITY] {
                assert_eq!((encode(format, false, beyond), encode(format, true, -beyond)), (top, 0));
            }
            assert_eq!((encode(format, true, f64::NAN), decode(format, true, 0xff)), (NAN, 0x7fff));
        }
        assert_eq!(decode(Fp8::E5m2, false, 0xfc), f16::NEG_INFINITY.to_bits());
    }
}
