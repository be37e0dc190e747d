//! Loads that are performed later than their place in the program.
//!
//! The memory model lets a strong relaxed load take effect behind a later store of its thread, unless something in between
//! orders them or depends on the loaded value. So where loads are weak, chance puts off some loads that are followed by a
//! strong store in the same straight line of code, until that store is done.

use super::checked::Element;
use super::fault::Trouble;
use super::regs::lanes;
use super::turn::Context;
use super::warp::{Deferred, Frame, Group, Warp};
use crate::code::op::Mem;
use crate::code::{Base, Function, Inst, Op, Reg, Semantics, Space, Src};

/// How far a store may be behind the load.
const REACH: usize = 24;

impl Warp {
    /// Puts off the load `op` of the lanes of `here`, if it may be and chance says so.
    pub(super) fn defers(
        &mut self,
        cx: &Context<'_, '_>,
        function: &Function,
        here: Group,
        frame: Frame,
        op: &Op,
    ) -> bool {
        let Op::Ld { mem, d } = op else { return false };
        let far = matches!(mem.space, Space::Global | Space::Generic | Space::Shared);
        if mem.sem != Semantics::Relaxed || !far || self.deferred.is_some() {
            return false;
        }
        if !cx.chance().is_some_and(|chance| chance.one_in(2)) {
            return false;
        }
        let Some(until) = store_behind(function, here.pc, mem, d) else { return false };
        let at = self.addresses(cx, frame, mem.addr, mem.space);
        let bytes = u64::from(mem.ty.size()) * u64::from(mem.count);
        self.deferred = Some(Box::new(Deferred { load: here, until, at, bytes }));
        true
    }

    /// Whether the load that is put off may wait until the lanes at `pc` have executed the instruction there.
    pub(super) fn may_wait(&self, cx: &Context<'_, '_>, here: Group, inst: Option<&Inst>) -> bool {
        let Some(deferred) = &self.deferred else { return true };
        let Deferred { load, until, at, bytes } = &**deferred;
        if here.frame != load.frame || here.pc <= load.pc || here.pc > *until {
            return false;
        }
        let Some(Inst { op: Op::Ld { mem, .. } | Op::St { mem, .. }, .. }) = inst else { return true };
        let other = self.addresses(cx, self.frame(here.frame), mem.addr, mem.space);
        let size = u64::from(mem.ty.size()) * u64::from(mem.count);
        !lanes(load.mask & here.mask)
            .any(|lane| at[lane] < other[lane] + size && other[lane] < at[lane] + bytes)
    }

    /// Whether chance lets other warps run between the store and the load that was put off behind it.
    pub(super) fn pauses(&self, cx: &Context<'_, '_>, here: Group) -> bool {
        let behind = |deferred: &Deferred| {
            deferred.load.frame == here.frame
                && deferred.load.mask == here.mask
                && deferred.until + 1 == here.pc
        };
        self.deferred.as_deref().is_some_and(behind) && cx.chance().is_some_and(|chance| !chance.one_in(4))
    }

    /// Performs the load that was put off, then goes on in `frame`.
    ///
    /// # Errors
    /// A fault of the load; the counters of its lanes are at it.
    pub(super) fn perform(&mut self, cx: &mut Context<'_, '_>, frame: Frame) -> Result<(), Trouble> {
        let Some(Deferred { load, .. }) = self.deferred.take().map(|deferred| *deferred) else {
            return Ok(());
        };
        let grid = cx.grid;
        let functions = &grid.image().code.functions;
        let own = self.frame(load.frame);
        self.regs.enter(own.window, &functions[own.function as usize]);
        self.names(own.function, load.pc);
        if let Some(Inst { op: Op::Ld { mem, d }, .. }) =
            functions[own.function as usize].code.get(load.pc as usize)
        {
            let done = self.ld(cx, load.mask, own, mem, d);
            if done.is_err() {
                self.place(load.mask, load.pc);
            }
            done?;
        }
        self.regs.enter(frame.window, &functions[frame.function as usize]);
        Ok(())
    }
}

/// The strong store behind the load at `pc` that may be performed before it, and all in between with it.
fn store_behind(function: &Function, pc: u32, mem: &Mem, d: &[Option<Reg>; 4]) -> Option<u32> {
    let base = match mem.addr.base {
        Base::Reg(reg) => Some(reg),
        _ => None,
    };
    let behind = function.code.iter().enumerate().skip(pc as usize + 1).take(REACH);
    for (at, inst) in behind {
        let mut free = true;
        let known = registers(&inst.op, &mut |reg, written| {
            free &= !(d.contains(&Some(reg)) || written && Some(reg) == base);
        });
        if !known || !free {
            return None;
        }
        if matches!(&inst.op, Op::St { mem, .. } if Element::of(mem).sem == Semantics::Relaxed) {
            return Some(at as u32);
        }
    }
    None
}

/// Calls `f` with each register of an instruction and whether it writes the register. Returns false for instructions that
/// a load cannot pass, and for rare ones.
fn registers(op: &Op, f: &mut impl FnMut(Reg, bool)) -> bool {
    let mut all = |d: &[Option<Reg>], sources: &[Src]| {
        for reg in d.iter().flatten() {
            f(*reg, true);
        }
        for source in sources {
            if let Src::Reg(reg) = source {
                f(*reg, false);
            }
        }
    };
    let base = |mem: &Mem| match mem.addr.base {
        Base::Reg(reg) => reg.into(),
        _ => Src::Imm(0),
    };
    let passes = |mem: &Mem| matches!(mem.sem, Semantics::Weak | Semantics::Relaxed);
    match op {
        Op::Mov { d, a }
        | Op::Unary { d, a, .. }
        | Op::Cvt { d, a, .. }
        | Op::ToGeneric { d, a, .. }
        | Op::FromGeneric { d, a, .. } => all(&[Some(*d)], &[*a]),
        Op::Binary { d, a, b, .. } | Op::Set { d, a, b, .. } | Op::Selp { d, a, b, .. } => {
            all(&[Some(*d)], &[*a, *b]);
        }
        Op::Ternary { d, a, b, c, .. } => all(&[Some(*d)], &[*a, *b, *c]),
        Op::Setp { a, b, .. } => all(&[], &[*a, *b]),
        Op::PredOp { .. } | Op::Nop => {}
        Op::Special { d, .. } | Op::GlobalAddress { d, .. } => all(&[Some(*d)], &[]),
        Op::Ld { mem, d } if passes(mem) => all(d, &[base(mem)]),
        Op::St { mem, src } if passes(mem) => {
            all(&[], src);
            all(&[], &[base(mem)]);
        }
        _ => return false,
    }
    true
}
