//! Operands of instructions: resolves names to slots and constants to bits, and checks their types (PTX ISA 9.2 and
//! 9.4, "Operand Size Exceeding Instruction-Type Size").

use super::builder::Builder;
use super::link::{Symbol, unresolved};
use super::modifiers::word;
use super::scope::{Entity, Role};
use super::special::{Reading, special};
use super::types;
use crate::code::op::{Binary, Fp, Special};
use crate::code::{Addr, Base, Op, Pred, PredSrc, Reg, Space, Src, Ty};
use crate::ptx::Diagnostic;
use crate::ptx::ast::{Operand, OperandKind, Position};

/// How the size of a register must match the instruction's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// The same size.
    Exact,
    /// At least that size: `ld`, `st`, `cvt`.
    Wide,
}

fn agrees(ty: Ty, register: Ty, fit: Fit) -> bool {
    let untyped = |ty| matches!(ty, Ty::B8 | Ty::B16 | Ty::B32 | Ty::B64);
    let fits = match fit {
        Fit::Exact => register.size() == ty.size(),
        Fit::Wide => register.size() >= ty.size(),
    };
    let alike = if ty.float() || register.float() { ty == register } else { true };
    fits && (untyped(ty) || untyped(register) || alike)
}

impl Builder<'_, '_> {
    /// The error for an operand of the wrong kind.
    pub(super) fn mismatch(&self, at: Position, detail: &str) -> Diagnostic {
        at.error(format!("Arguments mismatch for instruction '{}': {detail}", self.opcode))
    }

    fn entity(&mut self, name: &str, at: Position) -> Result<Option<Entity>, Diagnostic> {
        self.scopes.find(name, &mut self.slots).map_err(|what| at.error(what))
    }

    fn unknown(&self, name: &str, at: Position) -> Diagnostic {
        at.error(format!("Unknown symbol '{name}'"))
    }

    /// The register that an operand names, with its declared type; `None` if the operand is something else.
    pub(super) fn register(&mut self, operand: &Operand) -> Result<Option<(Reg, Ty)>, Diagnostic> {
        let OperandKind::Name { name, component, offset: 0 } = &operand.kind else {
            return Ok(None);
        };
        Ok(match (self.entity(name, operand.at)?, component) {
            (Some(Entity::Register(reg, ty)), None) => Some((reg, ty)),
            (Some(Entity::Vector(regs, ty)), Some(component)) => {
                let index = "xyzw".find(*component).unwrap_or(usize::MAX);
                let reg = regs.get(index).ok_or_else(|| self.mismatch(operand.at, "no such component"))?;
                Some((*reg, ty))
            }
            _ => None,
        })
    }

    /// Lowers a destination register of type `ty`.
    pub(super) fn dst(&mut self, operand: &Operand, ty: Ty, fit: Fit) -> Result<Reg, Diagnostic> {
        match self.register(operand)? {
            Some((reg, declared)) => self.agree(operand, reg, declared, ty, fit),
            None => {
                self.known_name(operand)?;
                Err(operand.at.error(format!("Result register required for instruction '{}'", self.opcode)))
            }
        }
    }

    /// Lowers a destination that may be `_`.
    pub(super) fn dst_or_sink(
        &mut self,
        operand: &Operand,
        ty: Ty,
        fit: Fit,
    ) -> Result<Option<Reg>, Diagnostic> {
        if operand.kind == OperandKind::Sink { Ok(None) } else { self.dst(operand, ty, fit).map(Some) }
    }

    fn agree(&self, operand: &Operand, reg: Reg, declared: Ty, ty: Ty, fit: Fit) -> Result<Reg, Diagnostic> {
        if agrees(ty, declared, fit) {
            return Ok(reg);
        }
        let detail = format!("a .{} register where .{} is wanted", word(declared), word(ty));
        Err(self.mismatch(operand.at, &detail))
    }

    fn known_name(&mut self, operand: &Operand) -> Result<(), Diagnostic> {
        if let OperandKind::Name { name, component, .. } = &operand.kind {
            let known = self.entity(name, operand.at)?.is_some()
                || self.program.symbol(self.defined.unit, name).is_some()
                || special(name, *component).is_some();
            if !known {
                return Err(self.unknown(name, operand.at));
            }
        }
        Ok(())
    }

    /// Lowers a source of type `ty`: a register or a constant.
    pub(super) fn src(&mut self, operand: &Operand, ty: Ty, fit: Fit) -> Result<Src, Diagnostic> {
        if let OperandKind::Constant(value) = operand.kind {
            return types::immediate(value, ty, operand.at).map(Src::Imm);
        }
        if let Some((reg, declared)) = self.register(operand)? {
            return self.agree(operand, reg, declared, ty, fit).map(Src::Reg);
        }
        self.known_name(operand)?;
        if let OperandKind::Name { name, component, .. } = &operand.kind
            && special(name, *component).is_some()
        {
            let what = format!("Special register argument not allowed for instruction '{}'", self.opcode);
            return Err(operand.at.error(what));
        }
        Err(self.mismatch(operand.at, &format!("a register or constant of type .{} is wanted", word(ty))))
    }

    /// Like [`Self::src`], with registers of the same size as `ty`.
    pub(super) fn value(&mut self, operand: &Operand, ty: Ty) -> Result<Src, Diagnostic> {
        self.src(operand, ty, Fit::Exact)
    }

    /// Lowers a destination predicate.
    pub(super) fn pred(&mut self, operand: &Operand) -> Result<Pred, Diagnostic> {
        match self.pred_src(operand)? {
            PredSrc::Reg { pred, negate: false } => Ok(pred),
            _ => Err(self.mismatch(operand.at, "a predicate register is wanted")),
        }
    }

    /// Lowers a destination predicate that may be `_`.
    pub(super) fn pred_or_sink(&mut self, operand: &Operand) -> Result<Option<Pred>, Diagnostic> {
        if operand.kind == OperandKind::Sink { Ok(None) } else { self.pred(operand).map(Some) }
    }

    /// Lowers a source predicate: `p`, `!p` or a constant.
    pub(super) fn pred_src(&mut self, operand: &Operand) -> Result<PredSrc, Diagnostic> {
        let (name, negate) = match &operand.kind {
            OperandKind::Name { name, component: None, offset: 0 } => (name, false),
            OperandKind::Not(name) => (name, true),
            OperandKind::Constant(value) => {
                return types::immediate(*value, Ty::U64, operand.at).map(|bits| PredSrc::Imm(bits != 0));
            }
            _ => return Err(self.mismatch(operand.at, "a predicate is wanted")),
        };
        match self.entity(name, operand.at)? {
            Some(Entity::Predicate(pred)) => Ok(PredSrc::Reg { pred, negate }),
            Some(_) => Err(self.mismatch(operand.at, "a predicate is wanted")),
            None => Err(self.unknown(name, operand.at)),
        }
    }

    /// The elements of a vector operand, or the operand itself.
    pub(super) fn parts<'o>(&self, operand: &'o Operand) -> &'o [Operand] {
        match &operand.kind {
            OperandKind::Vector(all) => all,
            _ => std::slice::from_ref(operand),
        }
    }

    /// Reads a special register into `d`, or into a temporary. `None` if the operand is not a special register.
    pub(super) fn special(
        &mut self,
        operand: &Operand,
        d: Option<Reg>,
    ) -> Result<Option<(Src, Ty)>, Diagnostic> {
        let OperandKind::Name { name, component, offset: 0 } = &operand.kind else {
            return Ok(None);
        };
        let Some((reading, ty)) = special(name, *component) else {
            return Ok(None);
        };
        match reading {
            Reading::Constant(value) => Ok(Some((Src::Imm(value), ty))),
            Reading::Special(special) => {
                let d = d.filter(|d| same_size(*d, ty)).map_or_else(|| self.temporary(ty, operand.at), Ok)?;
                self.emit(Op::Special { d, special });
                Ok(Some((d.into(), ty)))
            }
        }
    }

    /// Lowers a memory operand. If `space` is generic and the operand names a variable, the space is that of the
    /// variable.
    pub(super) fn address(&mut self, operand: &Operand, space: Space) -> Result<(Space, Addr), Diagnostic> {
        let at = operand.at;
        let OperandKind::Address { base, offset } = &operand.kind else {
            return Err(self.mismatch(at, "an address in brackets is wanted"));
        };
        let offset = *offset;
        let Some(name) = base else {
            return Ok((space, Addr { base: Base::Zero, offset }));
        };
        let (found, addr) = match self.entity(name, at)? {
            Some(Entity::Register(reg, ty)) => {
                if ty.float() || ty.size() < 4 {
                    return Err(self.mismatch(at, "an address register has 32 or 64 integer bits"));
                }
                return Ok((self.window(space), Addr { base: Base::Reg(reg), offset }));
            }
            Some(Entity::Frame { offset: start, role, .. }) => {
                let space = if role == Role::Local { Space::Local } else { Space::Param };
                (space, Addr { base: Base::Frame, offset: i64::from(start).wrapping_add(offset) })
            }
            Some(Entity::KernelParam(start)) => (
                Space::Param,
                Addr { base: Base::KernelParam, offset: i64::from(start).wrapping_add(offset) },
            ),
            Some(Entity::DynamicShared) => self.dynamic_shared(offset, at)?,
            Some(Entity::Shared(start)) => {
                (Space::Shared, Addr { base: Base::Zero, offset: i64::from(start).wrapping_add(offset) })
            }
            Some(_) => return Err(self.mismatch(at, &format!("'{name}' is not an address"))),
            None => self.symbol_address(name, offset, at)?,
        };
        // The block's own shared memory is a part of the cluster's.
        let inferred = (space == Space::Generic && found != Space::Param)
            || (space == Space::Cluster && found == Space::Shared);
        if found != space && !inferred {
            let what = "State space mismatch between instruction and address in instruction";
            return Err(at.error(format!("{what} '{}'", self.opcode)));
        }
        Ok((found, addr))
    }

    /// The space of an address: parameters of a `.func` are in its frame, so their addresses are local.
    pub(super) fn window(&self, space: Space) -> Space {
        if space == Space::Param && !self.defined.ast.is_entry { Space::Local } else { space }
    }

    fn symbol_address(&mut self, name: &str, offset: i64, at: Position) -> Result<(Space, Addr), Diagnostic> {
        let program = self.program;
        match program.symbol(self.defined.unit, name) {
            Some(Symbol::Global(index)) => {
                let constant = program.globals[*index as usize].1.space == crate::ptx::ast::Space::Const;
                let space = if constant { Space::Const } else { Space::Global };
                Ok((space, Addr { base: Base::Global(*index), offset }))
            }
            Some(Symbol::Shared(unit, variable)) => {
                let start = i64::from(self.layout.offset(*unit, variable));
                Ok((Space::Shared, Addr { base: Base::Zero, offset: start.wrapping_add(offset) }))
            }
            Some(Symbol::DynamicShared(_)) => self.dynamic_shared(offset, at),
            Some(Symbol::Unresolved) => Err(unresolved(name, at)),
            Some(_) => Err(self.mismatch(at, &format!("'{name}' is not a variable"))),
            None => Err(self.unknown(name, at)),
        }
    }

    fn dynamic_shared(&mut self, offset: i64, at: Position) -> Result<(Space, Addr), Diagnostic> {
        let d = self.temporary(Ty::U32, at)?;
        self.emit(Op::Special { d, special: Special::DynamicSharedBase });
        Ok((Space::Shared, Addr { base: Base::Reg(d), offset }))
    }

    /// The address of a named variable or function as a value of type `ty` (4 or 8 bytes), with its space. `None` if
    /// the operand names neither. The value is computed in `into`, or in a temporary.
    pub(super) fn address_of(
        &mut self,
        operand: &Operand,
        ty: Ty,
        into: Option<Reg>,
    ) -> Result<Option<(Space, Src)>, Diagnostic> {
        let at = operand.at;
        let OperandKind::Name { name, component: None, offset } = &operand.kind else {
            return Ok(None);
        };
        let entity = self.entity(name, at)?;
        let symbol = self.program.symbol(self.defined.unit, name);
        if let (None, Some(Symbol::Function(index))) = (&entity, symbol) {
            if ty.size() != 8 {
                return Err(self.mismatch(at, "the address of a function has 64 bits"));
            }
            let d = self.place(into, ty, at)?;
            self.emit(Op::FunctionAddress { d, function: *index });
            return Ok(Some((Space::Generic, d.into())));
        }
        let named = match (&entity, symbol) {
            (Some(Entity::DynamicShared), _) | (None, Some(Symbol::DynamicShared(_))) => {
                let src = self.offset_from(Special::DynamicSharedBase, *offset, ty, into, at)?;
                return Ok(Some((Space::Shared, src)));
            }
            (Some(Entity::Frame { role: Role::Local, .. }), _) => Space::Local,
            (Some(Entity::Frame { .. }), _) if self.defined.ast.is_entry => {
                return Err(at.error(format!("The address of '{name}' cannot be taken")));
            }
            (Some(Entity::Frame { .. } | Entity::KernelParam(_)), _) => Space::Param,
            (Some(Entity::Shared(_)), _) => Space::Shared,
            (None, Some(_)) => Space::Generic,
            _ => return Ok(None),
        };
        let bracketed = OperandKind::Address { base: Some(name.clone()), offset: *offset };
        let (space, addr) = self.address(&Operand { at, kind: bracketed }, named)?;
        let src = match addr.base {
            Base::Zero | Base::KernelParam => Src::Imm(addr.offset.cast_unsigned()),
            Base::Global(global) => {
                if ty.size() != 8 {
                    return Err(self.mismatch(at, "an address in this space has 64 bits"));
                }
                let d = self.place(into, ty, at)?;
                self.emit(Op::GlobalAddress { d, global, addend: addr.offset });
                d.into()
            }
            Base::Frame => self.offset_from(Special::FrameBase, addr.offset, ty, into, at)?,
            Base::Reg(reg) => reg.into(),
        };
        Ok(Some((self.window(space), src)))
    }

    fn place(&mut self, d: Option<Reg>, ty: Ty, at: Position) -> Result<Reg, Diagnostic> {
        d.map_or_else(|| self.temporary(ty, at), Ok)
    }

    fn offset_from(
        &mut self,
        start: Special,
        offset: i64,
        ty: Ty,
        d: Option<Reg>,
        at: Position,
    ) -> Result<Src, Diagnostic> {
        let d = self.place(d, ty, at)?;
        self.emit(Op::Special { d, special: start });
        if offset != 0 {
            let (op, b) = (Binary::Add, Src::Imm(offset.cast_unsigned()));
            self.emit(Op::Binary { op, ty, fp: Fp::default(), d, a: d.into(), b });
        }
        Ok(d.into())
    }
}

fn same_size(reg: Reg, ty: Ty) -> bool {
    matches!(reg, Reg::W64(_)) == (ty.size() == 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_agree_as_in_ptxas() {
        for (ty, register, exact, wide) in [
            (Ty::S32, Ty::U32, true, true),
            (Ty::S32, Ty::B32, true, true),
            (Ty::F32, Ty::B32, true, true),
            (Ty::F32, Ty::U32, false, false),
            (Ty::F32, Ty::F64, false, false),
            (Ty::F32, Ty::B64, false, true),
            (Ty::U8, Ty::U32, false, true),
            (Ty::B8, Ty::F32, false, true),
            (Ty::U64, Ty::U32, false, false),
            (Ty::U32, Ty::F32, false, false),
            (Ty::F16, Ty::B16, true, true),
            (Ty::F16, Ty::U16, false, false),
            (Ty::Bf16x2, Ty::B32, true, true),
        ] {
            assert_eq!(agrees(ty, register, Fit::Exact), exact, "{ty:?} {register:?}");
            assert_eq!(agrees(ty, register, Fit::Wide), wide, "{ty:?} {register:?}");
        }
    }
}
