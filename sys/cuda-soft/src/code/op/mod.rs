//! The instruction set. Instructions with the same operands share one variant; a field selects the function.

mod access;
mod control;
mod functions;

pub use access::{AtomOp, BulkCopy, Mbarrier, MbarrierOp, Mem, Multimem, MultimemOp};
pub use control::{BarrierKind, Call, CallTarget, FrameCopy, Service, ShflMode, Special, VoteKind};
pub use functions::{Binary, BoolOp, Cmp, FloatTest, Fp, Fp8, PrmtMode, Ternary, Unary, Video, VideoOp};

use super::operand::{Addr, Pred, PredSrc, Reg, Scope, Semantics, Space, Src, Ty};

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
    /// compared one. A vector becomes one of these for each element; the `count` of the first one's `mem` is the length of
    /// the vector, whose alignment it checks for all.
    Atom { op: AtomOp, mem: Mem, d: Option<Reg>, b: Src, c: Src },
    /// `discard` of the 128 bytes at an address.
    Discard { space: Space, addr: Addr },
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
    /// `fence.proxy.alias`.
    FenceAliases,

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
