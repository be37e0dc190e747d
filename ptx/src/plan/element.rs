//! Types of elements, and how they combine.

/// How sources combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Sum; integers wrap.
    Sum,
    /// Product; integers wrap.
    Prod,
    /// Smallest; a NaN loses against a number, and -0 is below +0.
    Min,
    /// Largest; a NaN loses against a number, and -0 is below +0.
    Max,
    /// Sum of all ranks, divided by their number and rounded to the type once; the sum of integers wraps, its quotient rounds
    /// towards zero.
    Avg,
}

/// Type of an element. Floating-point types of 8 and 16 bits are combined in f32 and rounded once at the end of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
    /// FP8 with 4 exponent bits (OCP 8-bit floating point, E4M3): no infinity; saturates.
    F8E4m3,
    /// FP8 with 5 exponent bits (OCP 8-bit floating point, E5M2); saturates.
    F8E5m2,
    /// 8 bits, two's complement.
    I8,
    /// 8 bits.
    U8,
    /// 32 bits, two's complement.
    I32,
    /// 32 bits.
    U32,
    /// 64 bits, two's complement.
    I64,
    /// 64 bits.
    U64,
}

impl Element {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::F32,
        Self::F64,
        Self::F16,
        Self::Bf16,
        Self::F8E4m3,
        Self::F8E5m2,
        Self::I8,
        Self::U8,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
    ];

    /// Bytes of one element, also the alignment that kernels assume of users' data.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F8E4m3 | Self::F8E5m2 | Self::I8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// The name in fragments, which is that of PTX.
    pub(super) const fn ptx_name(self) -> &'static str {
        match self {
            Self::F8E4m3 => "e4m3",
            Self::F8E5m2 => "e5m2",
            Self::I8 => "s8",
            Self::I32 => "s32",
            Self::I64 => "s64",
            other => other.name(),
        }
    }

    /// The lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F8E4m3 => "f8e4m3",
            Self::F8E5m2 => "f8e5m2",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I64 => "i64",
            Self::U64 => "u64",
        }
    }
}
