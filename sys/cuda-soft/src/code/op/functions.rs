//! Functions that instructions compute: the values of the fields of `Op` that select one.

use super::super::operand::Round;
use super::AtomOp;

/// Rounding and other modifiers of a floating-point operation; also `.sat` of integer `add`,
/// `sub`, `mad.hi` and `cvt`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fp {
    /// Direction.
    pub round: Round,
    /// Rounding to an integral value in the same or another floating type (`.rni`, `.rzi`, `.rmi`, `.rpi`).
    pub integral: bool,
    /// `.ftz`: subnormal inputs and results become zeros of the same sign.
    pub ftz: bool,
    /// `.sat`: to `[0, 1]` (NaN to 0) for floats, to the type's range for integers.
    pub sat: bool,
    /// `.approx`: any result within the documented error.
    pub approx: bool,
    /// `.NaN` of `min` and `max`.
    pub nan: bool,
    /// `.xorsign.abs` of `min` and `max`.
    pub xorsign_abs: bool,
    /// `.relu`: negative results become zero; the instruction defines the result for NaN.
    pub relu: bool,
}

/// 8-bit floating-point formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fp8 {
    /// 4 bits of exponent, 3 of mantissa, no infinity, one NaN of each sign.
    E4m3,
    /// 5 bits of exponent, 2 of mantissa, as in `f16`.
    E5m2,
}

/// One-operand functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the PTX instructions")]
pub enum Unary {
    Not,
    Cnot,
    Neg,
    Abs,
    Popc,
    Clz,
    Brev,
    /// `bfind`, the position from bit 0.
    Bfind,
    /// `bfind.shiftamt`.
    BfindShift,
    Rcp,
    Sqrt,
    Rsqrt,
    Sin,
    Cos,
    Lg2,
    Ex2,
    Tanh,
}

/// Two-operand functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the PTX instructions")]
pub enum Binary {
    Add,
    Sub,
    /// `mul` of floats.
    Mul,
    MulLo,
    MulHi,
    /// The product has twice the width of `ty`.
    MulWide,
    Mul24Lo,
    Mul24Hi,
    Div,
    Rem,
    Min,
    Max,
    And,
    Or,
    Xor,
    /// The amount is 32 bits and clamped to the width.
    Shl,
    /// Arithmetic for signed types.
    Shr,
    Copysign,
    /// `bmsk.clamp`.
    BmskClamp,
    /// `bmsk.wrap`.
    BmskWrap,
    /// `szext.clamp`.
    SzextClamp,
    /// `szext.wrap`.
    SzextWrap,
}

/// Three-operand functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the PTX instructions")]
pub enum Ternary {
    Fma,
    MadLo,
    MadHi,
    /// `a` and `b` have type `ty`, `c` and `d` twice its width.
    MadWide,
    Mad24Lo,
    Mad24Hi,
    Sad,
    /// `bfe`: `len = c` bits of `a` from `pos = b`.
    Bfe,
    /// `shf.l` of `b:a`, amount `c` clamped at 32.
    ShfLeftClamp,
    ShfLeftWrap,
    ShfRightClamp,
    ShfRightWrap,
    /// `lop3` with the truth table.
    Lop3(u8),
    /// `prmt` with selector `c`.
    Prmt(PrmtMode),
    /// A video instruction.
    Video(Video),
    /// Dot product of four bytes; signedness of `a` and `b`.
    Dp4a {
        a_signed: bool,
        b_signed: bool,
    },
    /// Dot product of two 16-bit halves of `a` and the low or high two bytes of `b`.
    Dp2a {
        a_signed: bool,
        b_signed: bool,
        hi: bool,
    },
}

/// A video instruction without selectors (PTX ISA 9.7.17 and 9.7.18).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Video {
    /// The function of each part.
    pub op: VideoOp,
    /// Parts of a word: 1, 2 or 4.
    pub parts: u8,
    /// Signedness of the result and of the operands.
    pub signed: [bool; 3],
    /// `.sat`: to the range of the result's type.
    pub sat: bool,
    /// How the result and `c` combine: with several parts `Add` adds all of them to `c`.
    pub then: Option<AtomOp>,
}

/// Functions of video instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the PTX instructions")]
pub enum VideoOp {
    Add,
    Sub,
    /// The average, rounded away from zero.
    Avrg,
    AbsDiff,
    Min,
    Max,
    /// 1 where the comparison holds, else 0.
    Set(Cmp),
}

/// Modes of `prmt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the PTX modes")]
pub enum PrmtMode {
    Index,
    F4e,
    B4e,
    Rc8,
    Ecl,
    Ecr,
    Rc16,
}

/// Comparisons. Unordered forms (`Ltu` ...) hold when an operand is NaN; for unsigned integers
/// `lo`, `ls`, `hi`, `hs` are `Lt`, `Le`, `Gt`, `Ge` of the unsigned type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the PTX comparisons")]
pub enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    Num,
    Nan,
}

/// Boolean operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the operators")]
pub enum BoolOp {
    And,
    Or,
    Xor,
}

/// Properties asked by `testp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the PTX properties")]
pub enum FloatTest {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}
