//! Accesses of memory: loads and stores, atomics, barrier objects, bulk copies, multicast.

use super::super::operand::{Addr, Pred, Reg, Scope, Semantics, Space, Src, Ty};

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
