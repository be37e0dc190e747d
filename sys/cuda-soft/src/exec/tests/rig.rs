//! A device with one buffer, and short constructors for instructions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::check::Work;
use crate::code::op::{Binary, Cmp, Fp, Mem, Op, Special, Ternary};
use crate::code::{
    Addr, Base, Function, Guard, Inst, Module, Param, Pred, PredSrc, Reg, Scope, Semantics, Space, Src, Ty,
};
use crate::exec::{Engine, Fault, Image, Launch, Residency, Watchdog};
use crate::mem;
use crate::mem::backing::Backing;

/// How long a test kernel may take before the test fails.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

pub(super) const DEVICE: Residency = Residency {
    sms: 8,
    threads_per_sm: 2048,
    blocks_per_sm: 32,
    shared_per_sm: 228 << 10,
    registers_per_sm: 0,
};

/// An engine, an address space, and a buffer that kernels and the test access.
pub(super) struct Rig {
    pub(super) engine: Engine,
    pub(super) space: Arc<mem::Space>,
    pub(super) limits: Residency,
    /// Whether warps must be together at aligned barriers.
    pub(super) aligned: bool,
    /// With a seed, registers hold garbage at first.
    pub(super) garbage: Option<u64>,
    /// For the race detector, if it is on.
    pub(super) check: Option<Arc<Work>>,
    buffer: Box<[AtomicU64]>,
}

impl Rig {
    /// Creates a device whose buffer has `words` zeros.
    pub(super) fn new(words: usize) -> Rig {
        Rig::with(words, 2, Watchdog::default())
    }

    pub(super) fn with(words: usize, cores: usize, watchdog: Watchdog) -> Rig {
        let buffer: Box<[AtomicU64]> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let space = Arc::new(mem::Space::new());
        let engine = Engine::new(cores, watchdog);
        let rig = Rig { engine, space, limits: DEVICE, aligned: false, garbage: None, check: None, buffer };
        let rights = mem::Rights::Host { writable: true };
        rig.space.insert(rig.base(), words as u64 * 8, rights, Arc::new(Backing::borrowed()));
        rig
    }

    /// The address of the buffer.
    pub(super) fn base(&self) -> u64 {
        self.buffer.as_ptr().expose_provenance() as u64
    }

    pub(super) fn set(&self, word: usize, value: u64) {
        self.buffer[word].store(value, Ordering::SeqCst);
    }

    pub(super) fn get(&self, word: usize) -> u64 {
        self.buffer[word].load(Ordering::SeqCst)
    }

    /// The 32-bit word at `index`.
    pub(super) fn get32(&self, index: usize) -> u32 {
        (self.get(index / 2) >> (index % 2 * 32)) as u32
    }

    /// Starts a kernel with the address of the buffer as its first parameter.
    pub(super) fn start(&self, module: Module, grid: u32, block: u32) -> mpsc::Receiver<Result<(), Fault>> {
        self.start_on(module, [grid, 1, 1], [block, 1, 1], 0)
    }

    pub(super) fn start_on(
        &self,
        module: Module,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared: u32,
    ) -> mpsc::Receiver<Result<(), Fault>> {
        module.check().expect("the test's code");
        let launch = Launch {
            image: Arc::new(Image::new(Arc::new(module), Vec::new())),
            function: 0,
            grid,
            block,
            cluster: [1; 3],
            dynamic_shared,
            params: self.base().to_le_bytes().to_vec(),
            workspace: 0,
            device: 0,
            limits: self.limits,
            space: Arc::clone(&self.space),
            services: Arc::default(),
            check: self.check.clone(),
            aligned: self.aligned,
            garbage: self.garbage,
        };
        let (sender, receiver) = mpsc::channel();
        self.engine.launch(launch, move |result| {
            let _ = sender.send(result);
        });
        receiver
    }

    /// Runs a kernel and waits for its end.
    pub(super) fn run(&self, module: Module, grid: u32, block: u32) -> Result<(), Fault> {
        self.start(module, grid, block).recv_timeout(LIMIT).expect("the kernel hangs")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Unmaps the buffer before it is freed; a kernel that still runs faults.
        self.space.remove(self.base());
    }
}

/// Register slots that [`kernel`] provides.
pub(super) const SLOTS: u16 = 32;

pub(super) fn r(n: u16) -> Reg {
    Reg::W32(n)
}

pub(super) fn rd(n: u16) -> Reg {
    Reg::W64(n)
}

pub(super) fn p(n: u16) -> Pred {
    Pred(n)
}

pub(super) fn imm(value: u64) -> Src {
    Src::Imm(value)
}

/// A function with these instructions. Instruction n has line n + 1.
pub(super) fn function(code: Vec<Inst>) -> Function {
    Function {
        name: "test".to_owned(),
        kernel: true,
        lines: (1..=code.len() as u32).collect(),
        code,
        regs32: SLOTS,
        regs64: SLOTS,
        preds: 8,
        params: vec![Param { offset: 0, size: 8, align: 8 }],
        param_size: 8,
        dynamic_shared_align: 16,
        ..Function::default()
    }
}

/// A module with one kernel.
pub(super) fn kernel(code: Vec<Inst>) -> Module {
    Module { functions: vec![function(code)], globals: Vec::new() }
}

pub(super) fn op(op: Op) -> Inst {
    Inst { guard: Guard::ALWAYS, op }
}

pub(super) fn when(pred: u16, negate: bool, op: Op) -> Inst {
    Inst { guard: Guard { pred: Some(p(pred)), negate }, op }
}

pub(super) fn mov(d: Reg, a: impl Into<Src>) -> Inst {
    op(Op::Mov { d, a: a.into() })
}

pub(super) fn bin(f: Binary, ty: Ty, d: Reg, a: impl Into<Src>, b: impl Into<Src>) -> Inst {
    op(Op::Binary { op: f, ty, fp: Fp::default(), d, a: a.into(), b: b.into() })
}

pub(super) fn setp(cmp: Cmp, ty: Ty, pred: u16, a: impl Into<Src>, b: impl Into<Src>) -> Inst {
    let (a, b) = (a.into(), b.into());
    op(Op::Setp { cmp, ty, ftz: false, p: Some(p(pred)), q: None, a, b, combine: None })
}

pub(super) fn bra(target: u32) -> Inst {
    op(Op::Bra { target })
}

pub(super) fn yes(pred: u16) -> PredSrc {
    PredSrc::Reg { pred: p(pred), negate: false }
}

pub(super) fn mem(sem: Semantics, space: Space, ty: Ty, base: Reg, offset: i64) -> Mem {
    let addr = Addr { base: Base::Reg(base), offset };
    Mem { sem, scope: Scope::Sys, space, ty, count: 1, addr }
}

pub(super) fn ld(sem: Semantics, ty: Ty, d: Reg, base: Reg, offset: i64) -> Inst {
    op(Op::Ld { mem: mem(sem, Space::Global, ty, base, offset), d: [Some(d), None, None, None] })
}

pub(super) fn st(sem: Semantics, ty: Ty, base: Reg, offset: i64, value: impl Into<Src>) -> Inst {
    let src = [value.into(), imm(0), imm(0), imm(0)];
    op(Op::St { mem: mem(sem, Space::Global, ty, base, offset), src })
}

/// `rd0` = buffer, `r0` = thread, `r1` = block, `r2` = threads per block, `r3` = global thread,
/// `rd1` = buffer + 8 * global thread.
pub(super) fn prologue() -> Vec<Inst> {
    let param = Mem {
        sem: Semantics::Weak,
        scope: Scope::Cta,
        space: Space::Param,
        ty: Ty::U64,
        count: 1,
        addr: Addr { base: Base::KernelParam, offset: 0 },
    };
    let mad = |op_, ty, d, a: Reg, b: Src, c: Reg| {
        op(Op::Ternary { op: op_, ty, fp: Fp::default(), d, a: a.into(), b, c: c.into() })
    };
    vec![
        op(Op::Ld { mem: param, d: [Some(rd(0)), None, None, None] }),
        op(Op::Special { d: r(0), special: Special::Tid(0) }),
        op(Op::Special { d: r(1), special: Special::Ctaid(0) }),
        op(Op::Special { d: r(2), special: Special::Ntid(0) }),
        mad(Ternary::MadLo, Ty::U32, r(3), r(1), r(2).into(), r(0)),
        mad(Ternary::MadWide, Ty::U32, rd(1), r(3), imm(8), rd(0)),
    ]
}

/// The index of the first instruction after the prologue.
pub(super) const BODY: u32 = 6;

/// The prologue and `body`.
pub(super) fn with_prologue(body: Vec<Inst>) -> Module {
    let mut code = prologue();
    code.extend(body);
    kernel(code)
}
