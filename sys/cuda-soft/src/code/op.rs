//! The instruction set. Instructions with the same operands share one variant; a field selects the function.

use super::operand::{Addr, Pred, PredSrc, Reg, Round, Scope, Semantics, Space, Src, Ty};

/// The operation of an instruction. The comments name the instructions of PTX ISA chapter 9.7.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "operands are named as in the PTX ISA")]
pub enum Op {
    /// `d = a`, as bits of the width of `d` (`mov` between registers and from immediates).
    Mov { d: Reg, a: Src },
    /// `d = {parts}`: `count` parts of `bits` each, first in the low bits.
    Pack { d: Reg, parts: [Src; 4], count: u8, bits: u8 },
    /// `{parts} = a`; `None` is the sink `_`.
    Unpack { d: [Option<Reg>; 4], a: Src, count: u8, bits: u8 },
    /// `mov d, %special`.
    Special { d: Reg, special: Special },
    /// The address of a variable, plus a number of bytes.
    GlobalAddress { d: Reg, global: u32, addend: i64 },
    /// The address of a function, as [`function_address`](super::function_address) makes it.
    FunctionAddress { d: Reg, function: u32 },

    /// `d = op a`.
    Unary { op: Unary, ty: Ty, fp: Fp, d: Reg, a: Src },
    /// `d = a op b`. Shift amounts and `copysign` follow the instruction's own types.
    Binary { op: Binary, ty: Ty, fp: Fp, d: Reg, a: Src, b: Src },
    /// `d = op(a, b, c)`.
    Ternary { op: Ternary, ty: Ty, fp: Fp, d: Reg, a: Src, b: Src, c: Src },
    /// `bfi`: `len` bits of `a` into `b` at `pos`.
    Bfi { ty: Ty, d: Reg, a: Src, b: Src, pos: Src, len: Src },
    /// `add.cc`, `addc`, `sub.cc`, `subc` on the carry flag.
    AddCarry { sub: bool, ty: Ty, carry_in: bool, carry_out: bool, d: Reg, a: Src, b: Src },
    /// `mad.cc` and `madc`, low or high half of the product.
    MadCarry { hi: bool, ty: Ty, carry_in: bool, carry_out: bool, d: Reg, a: Src, b: Src, c: Src },

    /// `setp`: `p = combine(cmp(a, b), c)`, `q = combine(!cmp(a, b), c)`.
    Setp {
        cmp: Cmp,
        ty: Ty,
        ftz: bool,
        p: Option<Pred>,
        q: Option<Pred>,
        a: Src,
        b: Src,
        combine: Option<(BoolOp, PredSrc)>,
    },
    /// `set`: all ones (or 1.0 for a floating `dty`) where the comparison holds, else zero.
    Set { cmp: Cmp, ty: Ty, dty: Ty, ftz: bool, d: Reg, a: Src, b: Src, combine: Option<(BoolOp, PredSrc)> },
    /// `selp`: `d = p ? a : b`.
    Selp { d: Reg, a: Src, b: Src, p: PredSrc },
    /// `slct`: `d = c >= 0 ? a : b`, `c` of type `s32` or `f32`.
    Slct { cty: Ty, ftz: bool, d: Reg, a: Src, b: Src, c: Src },
    /// `and`, `or`, `xor` on predicates (`mov` and `not` are `And` with `true`).
    PredOp { op: BoolOp, d: Pred, a: PredSrc, b: PredSrc },
    /// `testp`.
    Testp { test: FloatTest, ty: Ty, p: Pred, a: Src },

    /// `cvt` between scalar types.
    Cvt { d: Reg, dty: Ty, sty: Ty, fp: Fp, a: Src },
    /// `cvt.f16x2.f32` and `cvt.bf16x2.f32`: `a` to the high half, `b` to the low half.
    CvtPair { d: Reg, dty: Ty, fp: Fp, a: Src, b: Src },
    /// `cvt` to a pair of 8-bit floats, with `.satfinite`: from two `f32`, `a` to the high byte, or from `f16x2` in `a`.
    CvtToFp8 { d: Reg, format: Fp8, ty: Ty, relu: bool, a: Src, b: Src },
    /// `cvt.rn.f16x2` from a pair of 8-bit floats.
    CvtFromFp8 { d: Reg, format: Fp8, relu: bool, a: Src },
    /// `cvta.space`: an address in `space` to a generic one.
    ToGeneric { space: Space, d: Reg, a: Src },
    /// `cvta.to.space`.
    FromGeneric { space: Space, d: Reg, a: Src },
    /// `isspacep`.
    IsSpace { space: Space, p: Pred, a: Src },

    /// `ld`. A destination wider than the type receives the value extended by the type's sign.
    Ld { mem: Mem, d: [Option<Reg>; 4] },
    /// `st`.
    St { mem: Mem, src: [Src; 4] },
    /// `atom` (`d` present) and `red` (`d` absent). `c` is the new value of `cas`, `b` the
    /// compared one.
    Atom { op: AtomOp, mem: Mem, d: Option<Reg>, b: Src, c: Src },
    /// `cp.async` of `size` bytes (4, 8 or 16) from global to shared memory; bytes from `src_size` on become zero. It
    /// completes at once, so its commit and wait forms lower to [`Op::Nop`].
    CpAsync { dst: Addr, src: Addr, size: u8, src_size: Src },
    /// `mbarrier` on one object.
    Mbarrier(Box<Mbarrier>),
    /// `cp.async.bulk`. It completes at once, so its commit and wait forms lower to [`Op::Nop`].
    BulkCopy(Box<BulkCopy>),
    /// `multimem` on the memory of all devices behind a multicast address.
    Multimem(Box<Multimem>),
    /// `mapa`: the address of `a` in the block with this rank of the cluster, generic or in `.shared::cluster`.
    Mapa { generic: bool, d: Reg, a: Src, rank: Src },
    /// `getctarank`: the rank of the block that an address belongs to.
    CtaRank { generic: bool, d: Reg, a: Src },
    /// `barrier.cluster.arrive`.
    ClusterArrive,
    /// `barrier.cluster.wait`.
    ClusterWait,
    /// `fence`, `membar` (`SeqCst`).
    Fence { sem: Semantics, scope: Scope },

    /// Before an aligned [`Op::Barrier`]: all lanes of the warp are together here.
    Aligned,
    /// `bar` and `barrier`; without `threads` all threads of the block take part.
    Barrier { kind: BarrierKind, id: Src, threads: Option<Src> },
    /// `bar.warp.sync`.
    WarpSync { mask: Src },
    /// `vote.sync`.
    Vote { kind: VoteKind, a: PredSrc, mask: Src },
    /// `shfl.sync`; `p` tells whether the source lane was in range.
    Shfl { mode: ShflMode, d: Reg, p: Option<Pred>, a: Src, b: Src, c: Src, mask: Src },
    /// `match.sync` on `b32` or `b64`; `all` also sets `p`.
    Match { all: bool, ty: Ty, d: Reg, p: Option<Pred>, a: Src, mask: Src },
    /// `redux.sync` with `Add`, `Min`, `Max`, `And`, `Or` or `Xor`.
    Redux { op: AtomOp, ty: Ty, d: Reg, a: Src, mask: Src },
    /// `elect.sync`.
    Elect { d: Option<Reg>, p: Pred, mask: Src },
    /// `activemask`.
    ActiveMask { d: Reg },

    /// `bra`; the guard decides per lane.
    Bra { target: u32 },
    /// `brx.idx`. An index beyond the list is undefined in PTX and faults here.
    Brx { index: Src, targets: Box<[u32]> },
    /// `call`.
    Call(Box<Call>),
    /// `ret`; in a kernel the same as `exit`.
    Ret,
    /// `exit`.
    Exit,
    /// `trap` and `brkpt`.
    Trap,
    /// `nanosleep`.
    Nanosleep { duration: Src },
    /// Instructions without effect on this device (`prefetch`, `cp.async.wait_all`, `griddepcontrol`).
    Nop,
}

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
    /// `.approx` or `.full`: any result within the documented error.
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

/// A memory access, without its data operands.
#[derive(Clone, Copy, Debug)]
pub struct Mem {
    /// Ordering; weak by default, relaxed for atomics.
    pub sem: Semantics,
    /// Scope of a strong access.
    pub scope: Scope,
    /// State space.
    pub space: Space,
    /// Element type.
    pub ty: Ty,
    /// Elements: 1, 2 or 4. The whole vector must be naturally aligned.
    pub count: u8,
    /// The address.
    pub addr: Addr,
}

/// An operation on an mbarrier object.
#[derive(Clone, Copy, Debug)]
pub struct Mbarrier {
    /// The operation.
    pub op: MbarrierOp,
    /// The state space of the object: shared, cluster or generic.
    pub space: Space,
    /// Its address.
    pub addr: Addr,
    /// Receives the state before the operation.
    pub d: Option<Reg>,
    /// Receives the result of a wait.
    pub p: Option<Pred>,
    /// The operand of [`MbarrierOp`].
    pub a: Src,
    /// Bytes that an arrival expects besides.
    pub b: Src,
}

/// Operations on mbarrier objects, each with the meaning of its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MbarrierOp {
    /// Arrivals per phase.
    Init,
    /// Ignored.
    Inval,
    /// Bytes to expect in this phase.
    ExpectTx,
    /// Bytes that have come.
    CompleteTx,
    /// Number of arrivals.
    Arrive,
    /// Number of arrivals, which later phases do not expect any more.
    ArriveDrop,
    /// The state of an arrival; also `try_wait`, which does not wait on this device.
    TestWait,
    /// The parity of a phase.
    TestWaitParity,
}

/// A bulk copy between global and shared memory.
#[derive(Clone, Copy, Debug)]
pub struct BulkCopy {
    /// Destination.
    pub dst: (Space, Addr),
    /// Source.
    pub src: (Space, Addr),
    /// Bytes, a multiple of 16.
    pub size: Src,
    /// The mbarrier object at which the copy completes its bytes.
    pub mbarrier: Option<(Space, Addr)>,
}

/// A `multimem` instruction.
#[derive(Clone, Debug)]
pub struct Multimem {
    /// The operation.
    pub op: MultimemOp,
    /// The type of each element.
    pub ty: Ty,
    /// Ordering.
    pub sem: Semantics,
    /// Scope of a strong operation.
    pub scope: Scope,
    /// Global or generic.
    pub space: Space,
    /// The address.
    pub addr: Addr,
    /// Results of `LdReduce`, one for each element; `None` is the sink `_`. Empty for the others.
    pub d: Vec<Option<Reg>>,
    /// Sources of the others, one for each element.
    pub src: Vec<Src>,
}

/// Operations of `multimem`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultimemOp {
    /// Loads from all devices, and combines what they hold; with `wide`, halves are added as `f32` and rounded once.
    LdReduce {
        /// `Add`, `Min`, `Max`, `And`, `Or` or `Xor`.
        op: AtomOp,
        /// `.acc::f32`.
        wide: bool,
    },
    /// Stores to all devices.
    St,
    /// An atomic operation on the memory of each device.
    Red(AtomOp),
}

impl Multimem {
    /// The number of elements.
    #[must_use]
    pub fn count(&self) -> usize {
        self.d.len().max(self.src.len())
    }
}

/// Atomic read-modify-write functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the PTX operations")]
pub enum AtomOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exch,
    Cas,
    /// `old >= b ? 0 : old + 1`.
    Inc,
    /// `old == 0 || old > b ? b : old - 1`.
    Dec,
}

/// Forms of the block barrier.
#[derive(Clone, Copy, Debug)]
pub enum BarrierKind {
    /// Waits for all participants.
    Sync,
    /// Arrives without waiting.
    Arrive,
    /// Waits, and counts the participants whose predicate is true.
    RedPopc {
        /// The count.
        d: Reg,
        /// The predicate to count.
        a: PredSrc,
    },
    /// Waits, and combines the predicates of the participants with `And` or `Or`.
    RedPred {
        /// `And` or `Or`.
        op: BoolOp,
        /// The result.
        p: Pred,
        /// The predicate to combine.
        a: PredSrc,
    },
}

/// Results of `vote.sync`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are the PTX modes")]
pub enum VoteKind {
    All(Pred),
    Any(Pred),
    Uni(Pred),
    Ballot(Reg),
}

/// Modes of `shfl.sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the PTX modes")]
pub enum ShflMode {
    Up,
    Down,
    Bfly,
    Idx,
}

/// A call. Arguments are copied from the caller's frame to the callee's at the call, results back at the return.
#[derive(Clone, Debug)]
pub struct Call {
    /// The callee.
    pub target: CallTarget,
    /// Copies from the caller's frame to the callee's.
    pub args: Vec<FrameCopy>,
    /// Copies from the callee's frame to the caller's.
    pub returns: Vec<FrameCopy>,
}

/// The callee of a call.
#[derive(Clone, Copy, Debug)]
pub enum CallTarget {
    /// A function of the module, by index.
    Function(u32),
    /// The function whose address the register holds.
    Indirect(Reg),
    /// A function of the device's run-time library.
    Service(Service),
}

/// Functions that nvcc's output expects from the device. Arguments and results are in the caller's frame, at the `from`
/// of [`Call::args`] and the `to` of [`Call::returns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// `__assertfail(message, file, line, function, char size)`: fails the context with
    /// `CUDA_ERROR_ASSERT`.
    AssertFail,
    /// `vprintf(format, arguments) -> count`.
    Printf,
    /// `malloc(size) -> address`.
    Malloc,
    /// `free(address)`.
    Free,
}

impl Service {
    /// The sizes of the parameters and of the returned values, in bytes.
    #[must_use]
    pub const fn sizes(self) -> (&'static [u32], &'static [u32]) {
        match self {
            Service::AssertFail => (&[8, 8, 4, 8, 8], &[]),
            Service::Printf => (&[8, 8], &[4]),
            Service::Malloc => (&[8], &[8]),
            Service::Free => (&[8], &[]),
        }
    }
}

/// One copy between frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameCopy {
    /// Byte offset in the source frame.
    pub from: u32,
    /// Byte offset in the target frame.
    pub to: u32,
    /// Bytes.
    pub size: u32,
}

/// Special registers (PTX ISA 10) and the engine's own. Vector members 0, 1, 2 are x, y, z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the PTX registers")]
pub enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NWarpId,
    SmId,
    NSmId,
    GridId,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    Clock,
    ClockHi,
    Clock64,
    GlobalTimer,
    GlobalTimerHi,
    DynamicSharedSize,
    TotalSharedSize,
    /// `%envreg0` to `%envreg31`. In a cooperative launch, 1 and 2 are the high and low half of the address of its
    /// zeroed grid workspace (at least 16 bytes). All others are 0.
    EnvReg(u8),
    /// The index of the cluster in its grid.
    ClusterId(u8),
    NClusterId(u8),
    /// The index of the block in its cluster.
    ClusterCtaId(u8),
    ClusterNCtaId(u8),
    ClusterCtaRank,
    ClusterNCtaRank,
    /// The offset of the reserved shared memory in the block's shared memory, plus a number of bytes.
    ReservedShared(u16),
    /// The offset of dynamic shared memory in the block's shared memory.
    DynamicSharedBase,
    /// The stack offset of the current call's frame.
    FrameBase,
    /// The generic address of the launch's parameter buffer.
    KernelParamBase,
}
