//! The state of lowering one function, and the operations that all instructions share.

use std::collections::HashSet;

use super::link::{Defined, Program, Signature};
use super::scope::{Entity, Scopes, Slots, TOO_MANY};
use super::shared::Layout;
use crate::code::op::Mem;
use crate::code::{self, Addr, Base, Guard, Inst, Op, Reg, Scope, Semantics, Src, Ty};
use crate::ptx::Diagnostic;
use crate::ptx::ast::{self, Instruction, Name, Position, Variable};

/// The result of lowering one instruction.
pub(super) type Lowered = Result<(), Diagnostic>;

/// The state of lowering one function.
#[derive(Debug)]
pub(super) struct Builder<'p, 'a> {
    pub(super) program: &'p Program<'a>,
    pub(super) layout: &'p Layout,
    pub(super) defined: &'p Defined<'a>,
    pub(super) slots: Slots,
    pub(super) scopes: Scopes,
    /// The opcode of the current instruction, for messages.
    pub(super) opcode: &'a str,
    pub(super) code: Vec<Inst>,
    pub(super) lines: Vec<u32>,
    /// The instruction index of each label, once known. Branches hold label numbers until the function is complete.
    pub(super) labels: Vec<Option<u32>>,
    /// The signatures of calls through pointers.
    pub(super) prototypes: Vec<Prototype<'a>>,
    /// Bytes of the frame in use, and their maximum so far.
    pub(super) frame: (u32, u32),
    pub(super) guard: Guard,
    pub(super) line: u32,
    /// Temporary registers of the current instruction.
    pub(super) temporaries: Vec<Reg>,
    /// The frame offsets of `.param` variables to which a call has returned a value.
    pub(super) returned: HashSet<u32>,
    /// Returned values in `.reg` space, and the frame offsets to store them to at `ret`.
    pub(super) register_returns: Vec<(Reg, Ty, u32)>,
}

/// A signature that `.callprototype` or `.calltargets` gives to calls through pointers.
#[derive(Clone, Debug)]
pub(super) struct Prototype<'a> {
    pub(super) signature: Signature,
    pub(super) returns: &'a [Variable],
    pub(super) params: &'a [Variable],
}

/// Maximum size of a frame. The limit of a thread's stack is smaller.
const FRAME_LIMIT: u32 = 1 << 20;

impl<'p, 'a> Builder<'p, 'a> {
    pub(super) fn new(program: &'p Program<'a>, layout: &'p Layout, defined: &'p Defined<'a>) -> Self {
        Self {
            program,
            layout,
            defined,
            slots: Slots::default(),
            scopes: Scopes::default(),
            opcode: "",
            code: Vec::new(),
            lines: Vec::new(),
            labels: Vec::new(),
            prototypes: Vec::new(),
            frame: (0, 0),
            guard: Guard::ALWAYS,
            line: 0,
            temporaries: Vec::new(),
            returned: HashSet::new(),
            register_returns: Vec::new(),
        }
    }

    /// Adds an instruction, with the guard of the current PTX instruction.
    pub(super) fn emit(&mut self, op: Op) {
        self.code.push(Inst { guard: self.guard, op });
        self.lines.push(self.line);
    }

    /// Allocates a register until the end of the current instruction.
    pub(super) fn temporary(&mut self, ty: Ty, at: Position) -> Result<Reg, Diagnostic> {
        let reg = self.slots.temporary(ty).ok_or_else(|| at.error(TOO_MANY))?;
        self.temporaries.push(reg);
        Ok(reg)
    }

    /// Allocates frame bytes until the end of the scope.
    pub(super) fn frame_space(&mut self, size: u64, align: u32, at: Position) -> Result<u32, Diagnostic> {
        let start = self.frame.0.next_multiple_of(align.max(1));
        let end = u32::try_from(size).ok().and_then(|size| start.checked_add(size));
        let end =
            end.filter(|end| *end <= FRAME_LIMIT).ok_or_else(|| at.error("Stack frame is too large"))?;
        self.frame = (end, self.frame.1.max(end));
        Ok(start)
    }

    /// Returns an error unless the module's target and version allow `what` (PTX ISA, "Target ISA Notes").
    pub(super) fn needs(&self, what: &str, sm: u32, ptx: (u32, u32), at: Position) -> Result<(), Diagnostic> {
        let module = self.defined.module;
        if module.version < ptx {
            let (major, minor) = ptx;
            return Err(
                at.error(format!("Feature '{what}' requires PTX ISA .version {major}.{minor} or later"))
            );
        }
        if module.sm < sm {
            return Err(at.error(format!("Feature '{what}' requires .target sm_{sm} or higher")));
        }
        Ok(())
    }

    /// Declares `name` in the innermost scope.
    pub(super) fn declare(&mut self, name: &Name, entity: Entity) -> Result<(), Diagnostic> {
        if self.scopes.declare(&name.text, entity) {
            Ok(())
        } else {
            Err(name.at.error(format!("Duplicate definition of variable '{}'", name.text)))
        }
    }

    /// The number of a visible label.
    pub(super) fn label(&mut self, name: &str, at: Position) -> Result<u32, Diagnostic> {
        match self.scopes.find(name, &mut self.slots) {
            Ok(Some(Entity::Label(number))) => Ok(number),
            Ok(Some(_)) => Err(at.error(format!("'{name}' is not a label"))),
            _ => Err(at.error(format!("Unknown symbol '{name}'"))),
        }
    }

    /// The label numbers of a visible `.branchtargets` list.
    pub(super) fn targets(&mut self, name: &str, at: Position) -> Result<Vec<u32>, Diagnostic> {
        match self.scopes.find(name, &mut self.slots) {
            Ok(Some(Entity::Targets(numbers))) => Ok(numbers),
            Ok(Some(_)) => Err(at.error(format!("'{name}' is not a list of branch targets"))),
            _ => Err(at.error(format!("Unknown symbol '{name}'"))),
        }
    }

    /// Stores returned values from `.reg` space to the frame, before `ret`.
    pub(super) fn store_returns(&mut self) -> Result<(), Diagnostic> {
        for (reg, ty, offset) in self.register_returns.clone() {
            let mut src = [Src::Imm(0); 4];
            src[0] = reg.into();
            self.emit(Op::St { mem: frame_access(ty, offset), src });
        }
        Ok(())
    }

    /// Sets the source line of the instructions that follow.
    pub(super) fn set_place(&mut self, at: Position) {
        self.line = at.line;
    }
}

/// A weak access to a scalar in the current frame.
pub(super) fn frame_access(ty: Ty, offset: u32) -> Mem {
    Mem {
        sem: Semantics::Weak,
        scope: Scope::Cta,
        space: code::Space::Param,
        ty,
        count: 1,
        addr: Addr { base: Base::Frame, offset: i64::from(offset) },
    }
}

/// Returns the operands of an instruction, or an error unless there are exactly `N`.
pub(super) fn exactly<'i, const N: usize>(
    b: &Builder<'_, '_>,
    instruction: &'i Instruction,
) -> Result<&'i [ast::Operand; N], Diagnostic> {
    instruction.operands[..].try_into().map_err(|_| {
        let found = instruction.operands.len();
        instruction.opcode.at.error(format!(
            "Arguments mismatch for instruction '{}': {N} operands wanted, {found} found",
            b.opcode
        ))
    })
}
