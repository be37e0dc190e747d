//! Exact conversions of 16-bit floats, as `cvt` does them.

/// binary16 to binary32: exact.
pub fn f16_to_f32(h: u16) -> f32 {
    let sign = u32::from(h & 0x8000) << 16;
    let exponent = u32::from(h >> 10 & 0x1f);
    let fraction = u32::from(h & 0x3ff);
    let magnitude = match exponent {
        0 => return f32::from_bits(sign | (fraction as f32 * f32::powi(2.0, -24)).to_bits()),
        31 => 0x7f80_0000 | fraction << 13,
        _ => (exponent + 112) << 23 | fraction << 13,
    };
    f32::from_bits(sign | magnitude)
}

/// binary32 to binary16, to nearest even (`cvt.rn.f16.f32`); a NaN becomes 0x7fff.
pub fn f16_from_f32(x: f32) -> u16 {
    if x.is_nan() {
        return 0x7fff;
    }
    let sign = (x.to_bits() >> 16) as u16 & 0x8000;
    let magnitude = x.to_bits() & 0x7fff_ffff;
    let rounded = match magnitude {
        // Half way between the largest finite value and the next power of two, and above.
        0x477f_f000.. => 0x7c00,
        // Normal: add half a unit, less one if the kept part is even; a carry moves on into the exponent.
        0x3880_0000.. => (magnitude - (112 << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13,
        // Subnormal: adding 0.5 in binary32 leaves exactly the wanted bits, rounded to nearest even, at the end.
        _ => (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits(),
    };
    sign | rounded as u16
}

/// binary32 to bfloat16, to nearest even (`cvt.rn.bf16.f32`); a NaN becomes 0x7fff.
pub fn bf16_from_f32(x: f32) -> u16 {
    if x.is_nan() {
        return 0x7fff;
    }
    let bits = x.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_survives_the_round_trip() {
        for h in 0..=u16::MAX {
            let x = f16_to_f32(h);
            let expected = if x.is_nan() { 0x7fff } else { h };
            assert_eq!(f16_from_f32(x), expected, "{h:#06x}");
            let b = f32::from_bits(u32::from(h) << 16);
            assert_eq!(bf16_from_f32(b), if b.is_nan() { 0x7fff } else { h }, "{h:#06x}");
        }
    }

    /// The nearest of two neighbours, by distance in f64, ties to the even one.
    fn nearest(x: f32, below: u16, value: impl Fn(u16) -> f64) -> u16 {
        let (down, up) = (f64::from(x) - value(below), value(below + 1) - f64::from(x));
        if down < up || (down == up && below & 1 == 0) { below } else { below + 1 }
    }

    #[test]
    fn values_between_neighbours_round_to_nearest_even() {
        // The value after the largest finite one counts as the power of two it would be.
        let f16 = |h: u16| if h == 0x7c00 { 65536.0 } else { f64::from(f16_to_f32(h)) };
        let bf16 = |h: u16| match h {
            0x7f80 => f64::powi(2.0, 128),
            _ => f64::from(f32::from_bits(u32::from(h) << 16)),
        };
        for below in (0..0x7c00u16).step_by(7).chain([0x3ff, 0x400, 0x7bff]) {
            for part in [1.0 / 64.0, 0.5, 33.0 / 64.0] {
                let x = (f16(below) + (f16(below + 1) - f16(below)) * part) as f32;
                assert_eq!(f16_from_f32(x), nearest(x, below, f16), "{x}");
                assert_eq!(f16_from_f32(-x), nearest(x, below, f16) | 0x8000, "{x}");
            }
        }
        for below in (0x80..0x7f80u16).step_by(11).chain([0x7f7f]) {
            for tail in [1u32, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(u32::from(below) << 16 | tail);
                assert_eq!(bf16_from_f32(x), nearest(x, below, bf16), "{x}");
            }
        }
    }
}
