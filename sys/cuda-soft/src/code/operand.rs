//! Operands: registers, immediates, predicates, addresses and the qualifiers on instructions.

/// A general register slot. Narrow registers (8 and 16 bits) live zero-extended in 32-bit slots.
///
/// Reading a slot as a narrower type takes the low bits. Writing a narrower result extends it by the sign of the
/// instruction's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reg {
    /// A 32-bit slot.
    W32(u16),
    /// A 64-bit slot.
    W64(u16),
}

/// A source operand. Floating-point immediates are the bits of the instruction's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Src {
    /// A register.
    Reg(Reg),
    /// The same bits in every lane.
    Imm(u64),
}

impl From<Reg> for Src {
    fn from(reg: Reg) -> Self {
        Src::Reg(reg)
    }
}

/// A predicate register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pred(pub u16);

/// A predicate as a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredSrc {
    /// `p`, or `!p` when `negate`.
    Reg {
        /// Which predicate.
        pred: Pred,
        /// Read its complement.
        negate: bool,
    },
    /// A constant.
    Imm(bool),
}

/// The guard of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The predicate; `None` for an unconditional instruction.
    pub pred: Option<Pred>,
    /// `@!p`.
    pub negate: bool,
}

impl Guard {
    /// No guard.
    pub const ALWAYS: Guard = Guard { pred: None, negate: false };
}

/// An operand type (PTX ISA 5.2). `b` types compute as `u`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the PTX types")]
pub enum Ty {
    B8,
    B16,
    B32,
    B64,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    F64,
}

impl Ty {
    /// Size in bytes.
    #[must_use]
    pub const fn size(self) -> u32 {
        match self {
            Ty::B8 | Ty::U8 | Ty::S8 => 1,
            Ty::B16 | Ty::U16 | Ty::S16 | Ty::F16 | Ty::Bf16 => 2,
            Ty::B32 | Ty::U32 | Ty::S32 | Ty::F32 | Ty::F16x2 | Ty::Bf16x2 => 4,
            Ty::B64 | Ty::U64 | Ty::S64 | Ty::F64 => 8,
        }
    }

    /// Size in bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.size() * 8
    }

    /// Whether it is a signed integer type.
    #[must_use]
    pub const fn signed(self) -> bool {
        matches!(self, Ty::S8 | Ty::S16 | Ty::S32 | Ty::S64)
    }

    /// Whether it is a floating-point type, packed ones included.
    #[must_use]
    pub const fn float(self) -> bool {
        matches!(self, Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2 | Ty::F32 | Ty::F64)
    }
}

/// State space of a memory access or address conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the PTX state spaces")]
pub enum Space {
    Generic,
    Global,
    Const,
    Shared,
    /// `.shared::cluster`.
    Cluster,
    Local,
    Param,
}

/// Memory-ordering semantics (PTX ISA 8.6 and 9.7.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Semantics {
    /// The default of `ld` and `st`.
    Weak,
    /// `.relaxed`, and the default of `atom` and `red`.
    Relaxed,
    /// `.acquire`.
    Acquire,
    /// `.release`.
    Release,
    /// `.acq_rel`.
    AcqRel,
    /// `.sc` (fences only).
    SeqCst,
    /// `.volatile` and `.mmio`: strong, relaxed, system scope.
    Volatile,
}

impl Semantics {
    /// Whether the access is strong, so that it may synchronise with other threads.
    #[must_use]
    pub const fn strong(self) -> bool {
        !matches!(self, Semantics::Weak)
    }

    /// Whether the access acquires by itself, without a fence behind it.
    #[must_use]
    pub const fn acquires(self) -> bool {
        matches!(self, Semantics::Acquire | Semantics::AcqRel | Semantics::SeqCst)
    }
}

/// Scope of a strong operation (PTX ISA 8.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The block.
    Cta,
    /// The cluster.
    Cluster,
    /// The device.
    Gpu,
    /// All threads of all devices and the host.
    Sys,
}

/// Rounding of a floating-point result, or of a conversion to an integer (`rni`, `rzi`, `rmi` and `rpi` are the same
/// four directions).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Round {
    /// To nearest, ties to even.
    #[default]
    Nearest,
    /// Towards zero.
    Zero,
    /// Towards negative infinity.
    Down,
    /// Towards positive infinity.
    Up,
    /// To nearest, ties away from zero (`.rna`).
    NearestAway,
}

/// `base + offset`. With a base register the sum has 64 bits for generic, global, const and param accesses, and 32 bits
/// for shared and local ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addr {
    /// The base address.
    pub base: Base,
    /// Bytes.
    pub offset: i64,
}

/// The base of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The value of a register, per lane.
    Reg(Reg),
    /// A variable of the module, by index into [`Module::globals`](super::Module::globals).
    Global(u32),
    /// The launch's parameter buffer (space [`Space::Param`]).
    KernelParam,
    /// The current call's frame (space [`Space::Local`] or [`Space::Param`]).
    Frame,
    /// Zero: the offset is the address itself, or the offset of a static variable in shared memory.
    Zero,
}
