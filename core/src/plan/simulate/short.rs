//! Floating-point types of 8 and 16 bits, which Rust does not have.

/// A binary floating-point format: a sign, `exponent_bits`, and the fraction.
struct Format {
    bits: u32,
    exponent_bits: u32,
    /// The largest finite code without its sign. Larger ones are NaN, but for `infinity`.
    largest: u32,
    infinity: Option<u32>,
    /// Larger numbers become the largest finite value instead of infinity.
    saturates: bool,
}

const BINARY16: Format =
    Format { bits: 16, exponent_bits: 5, largest: 0x7bff, infinity: Some(0x7c00), saturates: false };
const BFLOAT16: Format =
    Format { bits: 16, exponent_bits: 8, largest: 0x7f7f, infinity: Some(0x7f80), saturates: false };
const E4M3: Format = Format { bits: 8, exponent_bits: 4, largest: 0x7e, infinity: None, saturates: true };
const E5M2: Format =
    Format { bits: 8, exponent_bits: 5, largest: 0x7b, infinity: Some(0x7c), saturates: true };

impl Format {
    const fn sign(&self) -> u32 {
        1 << (self.bits - 1)
    }

    const fn fraction_bits(&self) -> u32 {
        self.bits - 1 - self.exponent_bits
    }

    const fn bias(&self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    /// The distance of neighbours whose exponent is that of normal numbers from 2^`exponent` on.
    fn step(&self, exponent: i32) -> f64 {
        2_f64.powi(exponent - self.fraction_bits() as i32)
    }

    fn value(&self, code: u32) -> f64 {
        let magnitude = code & !self.sign();
        let value = if magnitude <= self.largest {
            let (exponent, implied) = match (magnitude >> self.fraction_bits()) as i32 {
                0 => (1 - self.bias(), 0),
                field => (field - self.bias(), 1 << self.fraction_bits()),
            };
            let fraction = magnitude & ((1 << self.fraction_bits()) - 1);
            f64::from(implied + fraction) * self.step(exponent)
        } else if Some(magnitude) == self.infinity {
            f64::INFINITY
        } else {
            f64::NAN
        };
        if code & self.sign() == 0 { value } else { -value }
    }

    /// The nearest code, ties to the even one.
    fn nearest(&self, value: f64) -> u32 {
        if value.is_nan() {
            return self.sign() - 1;
        }
        // Numbers below the smallest normal one have its distances.
        let exponent = ((value.abs().to_bits() >> 52) as i32 - 1023).max(1 - self.bias());
        let steps = (value.abs() / self.step(exponent)).round_ties_even();
        // A fraction that rounds up to the next power of two is carried into the exponent.
        let code = f64::from(exponent + self.bias() - 1) * f64::from(1 << self.fraction_bits()) + steps;
        let magnitude = if code <= f64::from(self.largest) {
            code as u32
        } else {
            self.infinity.filter(|_| !self.saturates).unwrap_or(self.largest)
        };
        magnitude | if value.is_sign_negative() { self.sign() } else { 0 }
    }
}

macro_rules! types {
    ($($(#[$doc:meta])+ $name:ident($bits:ty) = $format:ident;)+) => {$(
        $(#[$doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(
            /// Its bits.
            pub $bits,
        );

        impl $name {
            pub(super) const fn from_le_bytes(bytes: [u8; size_of::<Self>()]) -> Self {
                Self(<$bits>::from_le_bytes(bytes))
            }

            pub(super) const fn to_le_bytes(self) -> [u8; size_of::<Self>()] {
                self.0.to_le_bytes()
            }

            pub(super) fn value(self) -> f64 {
                $format.value(self.0.into())
            }

            pub(super) fn nearest(value: f64) -> Self {
                Self($format.nearest(value) as $bits)
            }
        }
    )+};
}

types! {
    /// IEEE 754 binary16.
    F16(u16) = BINARY16;
    /// The upper half of a binary32.
    Bf16(u16) = BFLOAT16;
    /// FP8 with 4 exponent bits: no infinity; saturates.
    F8E4m3(u8) = E4M3;
    /// FP8 with 5 exponent bits; saturates.
    F8E5m2(u8) = E5M2;
}

#[cfg(test)]
mod tests {
    use aqueduct_ptx::oracle::half::{bf16_from_f32, f16_from_f32, f16_to_f32};

    use super::*;

    /// All codes of 16 bits, and neighbours of every f32 that has one: the tests of kernels convert by bits.
    #[test]
    fn conversions_of_16_bits_are_those_of_the_kernels_tests() {
        for code in 0..=u16::MAX {
            for (format, expected) in
                [(BINARY16, f16_to_f32(code)), (BFLOAT16, f32::from_bits(u32::from(code) << 16))]
            {
                let value = format.value(code.into());
                assert!(value == f64::from(expected) || value.is_nan() && expected.is_nan(), "{code:#x}");
                assert!(value.is_nan() || value.is_sign_negative() == expected.is_sign_negative());
            }
            let near = [0, 1, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x7fff, 0x8000, 0x8001];
            for value in near.map(|low| f32::from_bits(u32::from(code) << 16 | low)) {
                assert_eq!(BINARY16.nearest(value.into()), u32::from(f16_from_f32(value)), "{value}");
                assert_eq!(BFLOAT16.nearest(value.into()), u32::from(bf16_from_f32(value)), "{value}");
            }
        }
    }

    /// The values that the OCP 8-bit floating point specification lists.
    #[test]
    fn codes_of_8_bits_have_their_values() {
        let e4m3 = [(0x01, -9, 1.0), (0x07, -6, 0.875), (0x08, -6, 1.0), (0x38, 0, 1.0), (0x7e, 8, 1.75)];
        let e5m2 = [(0x01, -16, 1.0), (0x03, -14, 0.75), (0x04, -14, 1.0), (0x3c, 0, 1.0), (0x7b, 15, 1.75)];
        for (format, codes) in [(E4M3, e4m3), (E5M2, e5m2)] {
            for (code, exponent, fraction) in codes {
                let value = fraction * 2_f64.powi(exponent);
                assert_eq!([format.value(code), format.value(0x80 | code)], [value, -value], "{code:#x}");
            }
        }
        assert!([0x7f, 0xff].iter().all(|&code| E4M3.value(code).is_nan()));
        assert!([0x7d, 0x7e, 0x7f, 0xfd].iter().all(|&code| E5M2.value(code).is_nan()));
        assert_eq!([E5M2.value(0x7c), E5M2.value(0xfc)], [f64::INFINITY, f64::NEG_INFINITY]);
    }

    /// Finite codes ascend with their values, so each is nearest up to half way to its neighbours.
    #[test]
    fn values_between_neighbours_of_8_bits_go_to_the_nearest_even_one() {
        for format in [E4M3, E5M2] {
            for below in 0..format.largest {
                let (low, high) = (format.value(below), format.value(below + 1));
                assert!(low < high, "{below:#x}");
                let even = below + below % 2;
                for (part, code) in [(0.0, below), (0.49, below), (0.5, even), (0.51, below + 1)] {
                    let value = low + part * (high - low);
                    assert_eq!(format.nearest(value), code, "{value}");
                    assert_eq!(format.nearest(-value), 0x80 | code, "{value}");
                }
            }
            for large in [format.value(format.largest), 1e6, f64::MAX, f64::INFINITY] {
                assert_eq!(format.nearest(large), format.largest, "{large}");
            }
            assert_eq!(format.nearest(f64::NAN), 0x7f);
        }
    }
}
