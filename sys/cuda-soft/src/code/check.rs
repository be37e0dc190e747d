//! Checks a module: one walk over all operands of all instructions.

use super::op::{BarrierKind, Call, CallTarget, FrameCopy, Mem, Op, VoteKind};
use super::operand::{Addr, Base, Pred, PredSrc, Reg, Space, Src};
use super::{Function, Module};

impl Module {
    /// Checks that every register, label, symbol and call in the module exists.
    ///
    /// # Errors
    /// A sentence that names function, instruction index and source line of the first violation.
    pub fn check(&self) -> Result<(), String> {
        for function in &self.functions {
            if function.lines.len() != function.code.len() {
                return Err(format!(
                    "function {}: {} source lines for {} instructions",
                    function.name,
                    function.lines.len(),
                    function.code.len()
                ));
            }
            if function.frame_size % 16 != 0 {
                return Err(format!("function {}: frame size is not a multiple of 16", function.name));
            }
            let walk = Walk { module: self, function };
            for (index, inst) in function.code.iter().enumerate() {
                let guard = inst.guard.pred.map_or(Ok(()), |p| walk.pred(p));
                guard.and_then(|()| walk.op(&inst.op)).map_err(|what| {
                    let line = function.lines[index];
                    format!("function {}, instruction {index} (line {line}): {what}", function.name)
                })?;
            }
        }
        Ok(())
    }
}

struct Walk<'a> {
    module: &'a Module,
    function: &'a Function,
}

type Checked = Result<(), String>;

impl Walk<'_> {
    fn op(&self, op: &Op) -> Checked {
        match op {
            Op::Mov { d, a } => self.both(*d, &[*a]),
            Op::Pack { d, parts, count, bits } => {
                parts_fit(*count, *bits)?;
                self.both(*d, &parts[..usize::from(*count)])
            }
            Op::Unpack { d, a, count, bits } => {
                parts_fit(*count, *bits)?;
                self.options(d)?;
                self.src(*a)
            }
            Op::Special { d, .. } | Op::ActiveMask { d } => self.reg(*d),
            Op::GlobalAddress { d, global, .. } => {
                self.reg(*d)?;
                self.global(*global)
            }
            Op::FunctionAddress { d, function } => {
                self.reg(*d)?;
                self.callee(*function).map(drop)
            }
            Op::Unary { d, a, .. }
            | Op::Cvt { d, a, .. }
            | Op::CvtFromFp8 { d, a, .. }
            | Op::ToGeneric { d, a, .. }
            | Op::FromGeneric { d, a, .. } => self.both(*d, &[*a]),
            Op::Binary { d, a, b, .. }
            | Op::AddCarry { d, a, b, .. }
            | Op::CvtPair { d, a, b, .. }
            | Op::CvtToFp8 { d, a, b, .. } => self.both(*d, &[*a, *b]),
            Op::Ternary { d, a, b, c, .. }
            | Op::MadCarry { d, a, b, c, .. }
            | Op::Slct { d, a, b, c, .. } => self.both(*d, &[*a, *b, *c]),
            Op::Bfi { d, a, b, pos, len, .. } => self.both(*d, &[*a, *b, *pos, *len]),
            Op::Setp { p, q, a, b, combine, .. } => {
                self.pred_option(*p)?;
                self.pred_option(*q)?;
                self.srcs(&[*a, *b])?;
                combine.map_or(Ok(()), |(_, c)| self.pred_src(c))
            }
            Op::Set { d, a, b, combine, .. } => {
                self.both(*d, &[*a, *b])?;
                combine.map_or(Ok(()), |(_, c)| self.pred_src(c))
            }
            Op::Selp { d, a, b, p } => {
                self.both(*d, &[*a, *b])?;
                self.pred_src(*p)
            }
            Op::PredOp { d, a, b, .. } => {
                self.pred(*d)?;
                self.pred_src(*a)?;
                self.pred_src(*b)
            }
            Op::Testp { p, a, .. } | Op::IsSpace { p, a, .. } => {
                self.pred(*p)?;
                self.src(*a)
            }
            Op::Ld { mem, d } => {
                self.options(d)?;
                self.mem(mem, d.len())
            }
            Op::St { mem, src } => {
                self.srcs(src)?;
                self.mem(mem, src.len())
            }
            Op::Atom { mem, d, b, c, .. } => {
                self.options(&[*d])?;
                self.srcs(&[*b, *c])?;
                self.mem(mem, 8)
            }
            Op::CpAsync { dst, src, size, src_size } => {
                if !matches!(size, 4 | 8 | 16) {
                    return Err(format!("cp.async of {size} bytes"));
                }
                self.addr(*dst, Space::Shared)?;
                self.addr(*src, Space::Global)?;
                self.src(*src_size)
            }
            Op::Discard { space, addr } => self.addr(*addr, *space),
            Op::Mbarrier(m) => {
                self.options(&[m.d])?;
                self.pred_option(m.p)?;
                self.srcs(&[m.a, m.b])?;
                self.addr(m.addr, m.space)
            }
            Op::BulkCopy(copy) => {
                self.src(copy.size)?;
                for (space, addr) in [Some(copy.dst), Some(copy.src), copy.mbarrier].into_iter().flatten() {
                    self.addr(addr, space)?;
                }
                Ok(())
            }
            Op::Multimem(m) => {
                let bytes = m.count() * m.ty.size() as usize;
                if !matches!(bytes, 4 | 8 | 16) {
                    return Err(format!("multimem of {bytes} bytes"));
                }
                self.options(&m.d)?;
                self.srcs(&m.src)?;
                self.addr(m.addr, m.space)
            }
            Op::Mapa { d, a, rank, .. } => self.both(*d, &[*a, *rank]),
            Op::CtaRank { d, a, .. } => self.both(*d, &[*a]),
            Op::Barrier { kind, id, threads } => self.barrier(kind, *id, *threads),
            Op::WarpSync { mask } => self.src(*mask),
            Op::Vote { kind, a, mask } => {
                match kind {
                    VoteKind::All(p) | VoteKind::Any(p) | VoteKind::Uni(p) => self.pred(*p)?,
                    VoteKind::Ballot(d) => self.reg(*d)?,
                }
                self.pred_src(*a)?;
                self.src(*mask)
            }
            Op::Shfl { d, p, a, b, c, mask, .. } => {
                self.pred_option(*p)?;
                self.both(*d, &[*a, *b, *c, *mask])
            }
            Op::Match { d, p, a, mask, .. } => {
                self.pred_option(*p)?;
                self.both(*d, &[*a, *mask])
            }
            Op::Redux { d, a, mask, .. } => self.both(*d, &[*a, *mask]),
            Op::Elect { d, p, mask } => {
                self.options(&[*d])?;
                self.pred(*p)?;
                self.src(*mask)
            }
            Op::Bra { target } => self.target(*target),
            Op::Brx { index, targets } => {
                self.src(*index)?;
                targets.iter().try_for_each(|t| self.target(*t))
            }
            Op::Call(call) => self.call(call),
            Op::Nanosleep { duration } => self.src(*duration),
            Op::Fence { .. }
            | Op::FenceAliases
            | Op::ClusterArrive
            | Op::ClusterWait
            | Op::Ret
            | Op::Exit
            | Op::Trap
            | Op::Aligned
            | Op::Nop => Ok(()),
        }
    }

    fn call(&self, call: &Call) -> Checked {
        let callee = match call.target {
            CallTarget::Function(index) => Some(self.callee(index)?),
            CallTarget::Indirect(reg) => {
                self.reg(reg)?;
                None
            }
            CallTarget::Service(service) => {
                let sizes = |copies: &[FrameCopy]| copies.iter().map(|c| c.size).collect::<Vec<u32>>();
                if (&sizes(&call.args)[..], &sizes(&call.returns)[..]) != service.sizes() {
                    return Err(format!("arguments of {service:?}: {call:?}"));
                }
                None
            }
        };
        let fits = |end: u64, frame: u32| end <= u64::from(frame);
        let end = |start: u32, copy: &FrameCopy| u64::from(start) + u64::from(copy.size);
        for (copies, arguments) in [(&call.args, true), (&call.returns, false)] {
            for copy in copies {
                let (mine, theirs) = if arguments { (copy.from, copy.to) } else { (copy.to, copy.from) };
                // The frame of an indirect callee is known only at run time; the call checks it then.
                let theirs_fit = callee.is_none_or(|f| fits(end(theirs, copy), f.frame_size));
                if !fits(end(mine, copy), self.function.frame_size) || !theirs_fit {
                    return Err(format!("call copies outside a frame: {copy:?}"));
                }
            }
        }
        Ok(())
    }

    fn barrier(&self, kind: &BarrierKind, id: Src, threads: Option<Src>) -> Checked {
        match kind {
            BarrierKind::Sync | BarrierKind::Arrive => {}
            BarrierKind::RedPopc { d, a } => {
                self.reg(*d)?;
                self.pred_src(*a)?;
            }
            BarrierKind::RedPred { p, a, .. } => {
                self.pred(*p)?;
                self.pred_src(*a)?;
            }
        }
        self.src(id)?;
        threads.map_or(Ok(()), |t| self.src(t))
    }

    /// Memory of a vector of at most so many elements.
    fn mem(&self, mem: &Mem, most: usize) -> Checked {
        let count = usize::from(mem.count);
        if !matches!(count, 1 | 2 | 4 | 8) || count > most || u32::from(mem.count) * mem.ty.size() > 16 {
            return Err(format!("vector of {} elements of {:?}", mem.count, mem.ty));
        }
        self.addr(mem.addr, mem.space)
    }

    fn addr(&self, addr: Addr, space: Space) -> Checked {
        match addr.base {
            Base::Reg(reg) => self.reg(reg),
            Base::Global(index) => self.global(index),
            Base::KernelParam if space == Space::Param => Ok(()),
            Base::Frame if matches!(space, Space::Local | Space::Param) => Ok(()),
            Base::Zero => Ok(()),
            base => Err(format!("{base:?} as the base of an access to {space:?}")),
        }
    }

    fn both(&self, d: Reg, sources: &[Src]) -> Checked {
        self.reg(d)?;
        self.srcs(sources)
    }

    fn srcs(&self, sources: &[Src]) -> Checked {
        sources.iter().try_for_each(|s| self.src(*s))
    }

    fn src(&self, src: Src) -> Checked {
        match src {
            Src::Reg(reg) => self.reg(reg),
            Src::Imm(_) => Ok(()),
        }
    }

    fn options(&self, regs: &[Option<Reg>]) -> Checked {
        regs.iter().flatten().try_for_each(|r| self.reg(*r))
    }

    fn reg(&self, reg: Reg) -> Checked {
        let exists = match reg {
            Reg::W32(index) => index < self.function.regs32,
            Reg::W64(index) => index < self.function.regs64,
        };
        if exists { Ok(()) } else { Err(format!("no register slot {reg:?}")) }
    }

    fn pred_src(&self, src: PredSrc) -> Checked {
        match src {
            PredSrc::Reg { pred, .. } => self.pred(pred),
            PredSrc::Imm(_) => Ok(()),
        }
    }

    fn pred_option(&self, pred: Option<Pred>) -> Checked {
        pred.map_or(Ok(()), |p| self.pred(p))
    }

    fn pred(&self, pred: Pred) -> Checked {
        if pred.0 < self.function.preds { Ok(()) } else { Err(format!("no predicate {}", pred.0)) }
    }

    fn target(&self, target: u32) -> Checked {
        // A branch to one past the end returns.
        let exists = target as usize <= self.function.code.len();
        if exists { Ok(()) } else { Err(format!("no instruction {target} to branch to")) }
    }

    fn global(&self, index: u32) -> Checked {
        let exists = (index as usize) < self.module.globals.len();
        if exists { Ok(()) } else { Err(format!("no variable {index}")) }
    }

    fn callee(&self, index: u32) -> Result<&Function, String> {
        self.module.functions.get(index as usize).ok_or_else(|| format!("no function {index}"))
    }
}

fn parts_fit(count: u8, bits: u8) -> Checked {
    let fits = matches!((count, bits), (2, 8 | 16 | 32) | (4, 8 | 16));
    if fits { Ok(()) } else { Err(format!("{count} parts of {bits} bits")) }
}

#[cfg(test)]
mod tests {
    use super::super::{Guard, Inst};
    use super::*;

    fn with(op: Op) -> Module {
        Module {
            functions: vec![Function {
                name: "f".to_owned(),
                code: vec![Inst { guard: Guard::ALWAYS, op }],
                lines: vec![9],
                regs32: 1,
                preds: 1,
                frame_size: 16,
                ..Function::default()
            }],
            globals: Vec::new(),
        }
    }

    #[test]
    fn what_exists_passes() {
        let d = Reg::W32(0);
        with(Op::Mov { d, a: Src::Imm(1) }).check().unwrap();
        with(Op::Bra { target: 1 }).check().unwrap();
    }

    #[test]
    fn what_does_not_exist_is_named_with_its_line() {
        let d = Reg::W32(1);
        let said = with(Op::Mov { d, a: Src::Imm(1) }).check().unwrap_err();
        assert!(said.contains("line 9") && said.contains("W32(1)"), "{said}");
        with(Op::Bra { target: 2 }).check().unwrap_err();
        let copy = FrameCopy { from: 12, to: 0, size: 8 };
        let call = Call { target: CallTarget::Function(0), args: vec![copy], returns: Vec::new() };
        with(Op::Call(Box::new(call))).check().unwrap_err();
        with(Op::GlobalAddress { d: Reg::W32(0), global: 0, addend: 0 }).check().unwrap_err();
    }
}
