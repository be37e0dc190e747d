//! Element types of the simulator: all that executors know, with the arithmetic that kernels promise.

use super::ir::Reduction;
use super::short::{Bf16, F8E4m3, F8E5m2, F16};

/// A type that the simulator moves and reduces.
pub trait Element: Copy + PartialEq + std::fmt::Debug {
    /// Contents of memory that nobody has written: every byte is 0x5a.
    const GARBAGE: Self;

    /// Combines one element of each source, in this order. Integers wrap; floating-point types of 8 and 16 bits are combined in f32
    /// and rounded once. [`Reduction::Avg`] adds, and divides the sum by `divisor`; integers round towards zero. In a minimum or
    /// maximum a NaN loses against a number, and -0 is below +0.
    fn reduce(sources: &[Self], reduction: Reduction, divisor: u32) -> Self;

    /// The elements that little-endian bytes hold; an incomplete last one is left out.
    fn from_bytes(bytes: &[u8]) -> Vec<Self>;

    /// The elements as little-endian bytes.
    fn to_bytes(elements: &[Self]) -> Vec<u8>;
}

/// The conversions between elements and bytes.
macro_rules! bytes {
    () => {
        const GARBAGE: Self = Self::from_le_bytes([0x5a; size_of::<Self>()]);

        fn from_bytes(bytes: &[u8]) -> Vec<Self> {
            bytes.as_chunks().0.iter().map(|&bytes| Self::from_le_bytes(bytes)).collect()
        }

        fn to_bytes(elements: &[Self]) -> Vec<u8> {
            elements.iter().flat_map(|element| element.to_le_bytes()).collect()
        }
    };
}

macro_rules! integers {
    ($($type:ty)+) => {$(
        impl Element for $type {
            bytes!();

            fn reduce(sources: &[Self], reduction: Reduction, divisor: u32) -> Self {
                let combined = sources.iter().copied().reduce(|a, b| match reduction {
                    Reduction::Sum | Reduction::Avg => a.wrapping_add(b),
                    Reduction::Prod => a.wrapping_mul(b),
                    Reduction::Min => a.min(b),
                    Reduction::Max => a.max(b),
                });
                let combined = combined.unwrap_or(Self::GARBAGE);
                if reduction != Reduction::Avg {
                    return combined;
                }
                // Wide enough for every divisor, also one that the type does not have.
                let quotient = i128::from(combined) / i128::from(divisor.max(1));
                Self::try_from(quotient).unwrap_or(Self::GARBAGE)
            }
        }
    )+};
}

integers!(i8 u8 i32 u32 i64 u64);

/// Floating-point types: their value as f64, what each step of a reduction is rounded to, and what its result is.
macro_rules! floats {
    ($($type:ty: $value:expr, $step:expr, $result:expr;)+) => {$(
        impl Element for $type {
            bytes!();

            fn reduce(sources: &[Self], reduction: Reduction, divisor: u32) -> Self {
                let values = sources.iter().copied().map($value);
                $result(combined(values, reduction, divisor, $step))
            }
        }
    )+};
}

floats! {
    f64: exactly, exactly, exactly;
    f32: f64::from, by_f32, to_f32;
    F16: F16::value, by_f32, F16::nearest;
    Bf16: Bf16::value, by_f32, Bf16::nearest;
    F8E4m3: F8E4m3::value, by_f32, F8E4m3::nearest;
    F8E5m2: F8E5m2::value, by_f32, F8E5m2::nearest;
}

fn exactly(value: f64) -> f64 {
    value
}

fn to_f32(value: f64) -> f32 {
    value as f32
}

fn by_f32(value: f64) -> f64 {
    f64::from(to_f32(value))
}

/// Combines numbers in f64 and rounds after every step. A sum, product or quotient of two f32 in f64 that is rounded to f32 is the
/// one that f32 arithmetic gives, because f64 has more than twice as many digits.
fn combined(
    values: impl Iterator<Item = f64>,
    reduction: Reduction,
    divisor: u32,
    rounded: fn(f64) -> f64,
) -> f64 {
    let step = |a: f64, b: f64| match reduction {
        Reduction::Sum | Reduction::Avg => rounded(a + b),
        Reduction::Prod => rounded(a * b),
        Reduction::Min => smaller(a, b),
        Reduction::Max => -smaller(-a, -b),
    };
    let combined = values.reduce(step).unwrap_or(f64::NAN);
    if reduction == Reduction::Avg { rounded(combined / f64::from(divisor.max(1))) } else { combined }
}

fn smaller(a: f64, b: f64) -> f64 {
    if a.is_nan() || b < a || (a == b && b.is_sign_negative()) { b } else { a }
}
