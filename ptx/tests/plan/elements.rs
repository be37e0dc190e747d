//! Reductions of single elements, by their definition.

use std::sync::OnceLock;

use aqueduct_ptx::oracle::half::{bf16_from_f32, f16_from_f32, f16_to_f32};
use aqueduct_ptx::plan::{Element, Reduction};

pub(crate) const REDUCTIONS: [Reduction; 5] =
    [Reduction::Sum, Reduction::Prod, Reduction::Min, Reduction::Max, Reduction::Avg];

/// The value of an FP8 code; `None` if it is NaN. Infinities of E5M2 are values.
pub(crate) fn f8_value(code: u8, element: Element) -> Option<f32> {
    let (exponent_bits, bias) = if element == Element::F8E4m3 { (4, 7) } else { (5, 15) };
    let fraction_bits = 7 - exponent_bits;
    let exponent = i32::from(code >> fraction_bits & ((1 << exponent_bits) - 1));
    let fraction = f32::from(code & ((1 << fraction_bits) - 1)) / f32::powi(2.0, fraction_bits);
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let top = (1 << exponent_bits) - 1;
    match (element, exponent, fraction) {
        (Element::F8E4m3, _, _) if code & 0x7f == 0x7f => None,
        (Element::F8E5m2, exponent, 0.0) if exponent == top => Some(sign * f32::INFINITY),
        (Element::F8E5m2, exponent, _) if exponent == top => None,
        (_, 0, _) => Some(sign * fraction * f32::powi(2.0, 1 - bias)),
        _ => Some(sign * (1.0 + fraction) * f32::powi(2.0, exponent - bias)),
    }
}

/// The code nearest to a value, ties to the even one; the largest finite one for all that is larger.
pub(crate) fn f8_code(value: f32, element: Element) -> u8 {
    if value.is_nan() {
        return 0x7f;
    }
    // Finite values ascend with their codes.
    static VALUES: [OnceLock<Vec<f32>>; 2] = [OnceLock::new(), OnceLock::new()];
    let (table, largest) = if element == Element::F8E4m3 { (0, 0x7e) } else { (1, 0x7b) };
    let values = VALUES[table]
        .get_or_init(|| (0..=largest).map(|code| f8_value(code, element).expect("finite")).collect());
    let size = value.abs();
    let above = values.partition_point(|&value| value < size).min(values.len() - 1);
    let below = above.saturating_sub(1);
    let (up, down) = (f64::from(values[above]) - f64::from(size), f64::from(size) - f64::from(values[below]));
    let nearest = if up < down || up == down && above.is_multiple_of(2) { above } else { below };
    u8::try_from(nearest).expect("a code") | if value.is_sign_negative() { 0x80 } else { 0 }
}

/// One element as f32, if that is how its type is combined.
fn widen(bytes: &[u8], element: Element) -> f32 {
    match element {
        Element::F32 => f32::from_le_bytes(bytes.try_into().expect("four bytes")),
        Element::F16 => f16_to_f32(u16::from_le_bytes(bytes.try_into().expect("two bytes"))),
        Element::Bf16 => {
            f32::from_bits(u32::from(u16::from_le_bytes(bytes.try_into().expect("two bytes"))) << 16)
        }
        _ => f8_value(bytes[0], element).unwrap_or(f32::NAN),
    }
}

fn narrow(value: f32, element: Element) -> Vec<u8> {
    match element {
        Element::F32 => value.to_le_bytes().to_vec(),
        Element::F16 => f16_from_f32(value).to_le_bytes().to_vec(),
        Element::Bf16 => bf16_from_f32(value).to_le_bytes().to_vec(),
        _ => vec![f8_code(value, element)],
    }
}

/// Minimum or maximum: a NaN loses, and -0 is below +0.
macro_rules! extreme {
    ($a:expr, $b:expr, $smaller:expr) => {{
        let (a, b) = ($a, $b);
        let below = a < b || (a == b && a.is_sign_negative());
        match (a.is_nan(), b.is_nan()) {
            (true, _) => b,
            (_, true) => a,
            _ if below == $smaller => a,
            _ => b,
        }
    }};
}

macro_rules! float {
    ($values:expr, $reduction:expr, $ranks:expr) => {{
        let combined = $values.reduce(|a, b| match $reduction {
            Reduction::Sum | Reduction::Avg => a + b,
            Reduction::Prod => a * b,
            Reduction::Min => extreme!(a, b, true),
            Reduction::Max => extreme!(a, b, false),
        });
        let combined = combined.expect("a source");
        if $reduction == Reduction::Avg { combined / $ranks } else { combined }
    }};
}

macro_rules! integer {
    ($type:ty, $sources:expr, $reduction:expr, $ranks:expr) => {{
        let values =
            $sources.iter().map(|bytes| <$type>::from_le_bytes((*bytes).try_into().expect("its size")));
        let combined = values.reduce(|a, b| match $reduction {
            Reduction::Sum | Reduction::Avg => a.wrapping_add(b),
            Reduction::Prod => a.wrapping_mul(b),
            Reduction::Min => a.min(b),
            Reduction::Max => a.max(b),
        });
        let combined = i128::from(combined.expect("a source"));
        let result = if $reduction == Reduction::Avg { combined / i128::from($ranks) } else { combined };
        (result as $type).to_le_bytes().to_vec()
    }};
}

/// The reduction of one element of each source, in their order.
pub(crate) fn reduce(element: Element, reduction: Reduction, ranks: u32, sources: &[&[u8]]) -> Vec<u8> {
    match element {
        Element::F64 => {
            let values =
                sources.iter().map(|bytes| f64::from_le_bytes((*bytes).try_into().expect("eight bytes")));
            float!(values, reduction, f64::from(ranks)).to_le_bytes().to_vec()
        }
        Element::I8 => integer!(i8, sources, reduction, ranks),
        Element::U8 => integer!(u8, sources, reduction, ranks),
        Element::I32 => integer!(i32, sources, reduction, ranks),
        Element::U32 => integer!(u32, sources, reduction, ranks),
        Element::I64 => integer!(i64, sources, reduction, ranks),
        Element::U64 => integer!(u64, sources, reduction, ranks),
        _ => {
            let values = sources.iter().map(|bytes| widen(bytes, element));
            narrow(float!(values, reduction, ranks as f32), element)
        }
    }
}

/// Whether the bytes are one NaN of the type.
pub(crate) fn is_nan(bytes: &[u8], element: Element) -> bool {
    match element {
        Element::F64 => f64::from_le_bytes(bytes.try_into().expect("eight bytes")).is_nan(),
        Element::F32 | Element::F16 | Element::Bf16 | Element::F8E4m3 | Element::F8E5m2 => {
            widen(bytes, element).is_nan()
        }
        _ => false,
    }
}
