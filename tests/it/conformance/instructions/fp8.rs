//! `cvt` between 8-bit floats and `f32` or `f16`.

use super::super::dut::Dut;
use super::table::{Form, Operands, check};
use super::values;

/// A format of 8 bits.
#[derive(Clone, Copy, Debug)]
struct Small {
    name: &'static str,
    mantissa: u32,
    bias: i32,
    /// The encoding of the largest number.
    top: u8,
    /// The encoding of infinity.
    infinity: Option<u8>,
}

const E4M3: Small = Small { name: "e4m3x2", mantissa: 3, bias: 7, top: 0x7e, infinity: None };
const E5M2: Small = Small { name: "e5m2x2", mantissa: 2, bias: 15, top: 0x7b, infinity: Some(0x7c) };

/// The NaN that a conversion gives, of 8 and of 16 bits.
const NAN: (u64, u64) = (0x7f, 0x7fff);

impl Small {
    /// The value of an encoding without its sign, which must be that of a number.
    fn value(self, code: u8) -> f64 {
        let (field, fraction) =
            (i32::from(code >> self.mantissa), f64::from(code & ((1 << self.mantissa) - 1)));
        let fraction = fraction / f64::from(1 << self.mantissa);
        let (whole, exponent) = if field == 0 { (0.0, 1) } else { (1.0, field) };
        (whole + fraction) * 2f64.powi(exponent - self.bias)
    }

    /// Halfway from the number `code` to the next larger one.
    fn middle(self, code: u8) -> f64 {
        f64::midpoint(self.value(code), self.value(code + 1))
    }

    /// The nearest number, the even one of two; what is beyond the largest one becomes that.
    fn nearest(self, value: f64, relu: bool) -> u64 {
        if value.is_nan() {
            return NAN.0;
        }
        if relu && value.is_sign_negative() {
            return 0;
        }
        let magnitude = value.abs();
        let (mut low, mut high) = (0, self.top);
        while low < high {
            let code = low + (high - low) / 2;
            let middle = self.middle(code);
            if magnitude < middle || magnitude == middle && code % 2 == 0 {
                high = code;
            } else {
                low = code + 1;
            }
        }
        u64::from(low) | if value.is_sign_negative() { 0x80 } else { 0 }
    }

    /// The `f16` of the same value.
    fn widened(self, bits: u64, relu: bool) -> u64 {
        let (code, negative) = (bits as u8 & 0x7f, bits & 0x80 != 0);
        if code > self.infinity.unwrap_or(self.top) {
            return NAN.1;
        }
        if relu && negative {
            return 0;
        }
        let magnitude = if self.infinity == Some(code) { f64::INFINITY } else { self.value(code) };
        u64::from(half::f16::from_f64(magnitude).to_bits()) | if negative { 0x8000 } else { 0 }
    }

    /// Every number and every middle as `f32`, and their neighbours, with both signs and in pairs; also other numbers.
    fn singles(self) -> Vec<Operands> {
        let mut edges: Vec<f32> =
            vec![f32::INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1)];
        for value in (0..self.top).flat_map(|code| [self.value(code), self.middle(code)]) {
            let value = value as f32;
            edges.extend([value.next_down(), value, value.next_up()]);
        }
        // Half an ulp beyond the largest number would be rounded to infinity if it were not kept finite.
        let largest = self.value(self.top) as f32;
        edges.extend([largest.next_down(), largest, largest.next_up(), largest * 1.0625, largest * 1.25]);
        let bits: Vec<u64> =
            edges.into_iter().flat_map(|edge| [edge, -edge]).map(|edge| edge.to_bits().into()).collect();
        let pairs = bits.iter().zip(bits.iter().cycle().skip(101)).map(|(a, b)| [*a, *b, 0]);
        pairs.chain(values::singles()).collect()
    }
}

pub(crate) fn eight_bit_floats(dut: &Dut) {
    for format in [E4M3, E5M2] {
        let name = format.name;
        let (mut singles, mut pairs) = (Vec::new(), Vec::new());
        for (word, relu) in [("", false), (".relu", true)] {
            let of_single = move |bits: u64| format.nearest(f32::from_bits(bits as u32).into(), relu);
            singles.push(Form::new(
                &format!("cvt.rn.satfinite{word}.{name}.f32"),
                16,
                &[32; 2],
                move |[a, b, _]| of_single(a) << 8 | of_single(b),
            ));
            let of_half = move |bits: u64| format.nearest(half::f16::from_bits(bits as u16).to_f64(), relu);
            pairs.push(Form::new(
                &format!("cvt.rn.satfinite{word}.{name}.f16x2"),
                16,
                &[32],
                move |[a, ..]| of_half(a >> 16) << 8 | of_half(a),
            ));
            pairs.push(Form::new(&format!("cvt.rn{word}.f16x2.{name}"), 32, &[16], move |[a, ..]| {
                format.widened(a >> 8, relu) << 16 | format.widened(a, relu)
            }));
        }
        check(dut, &singles, &format.singles());
        check(dut, &pairs, &values::all_halves());
    }
}
