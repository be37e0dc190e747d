//! Lowers one function: its frame, scopes, labels and instructions.

use super::isa;
use super::link::{Defined, Program, element};
use super::scope::{Entity, Scopes, Slots, TOO_MANY};
use super::shared::Layout;
use super::{data, modifiers::Modifiers};
use crate::code::op::Mem;
use crate::code::{self, Addr, Base, Guard, Inst, Op, Param, Pred, Reg, Scope, Semantics, Src, Ty};
use crate::ptx::Diagnostic;
use crate::ptx::ast::{self, Hint, Instruction, Linkage, Name, Position, Space, Statement, Variable};

/// Lowers function `index` of the program. If it adds errors, the result is meaningless.
pub(super) fn lower(
    program: &Program<'_>,
    layout: &Layout,
    index: usize,
    errors: &mut Vec<Diagnostic>,
) -> code::Function {
    let defined = &program.functions[index];
    let mut builder = Builder::new(program, layout, defined);
    let first = errors.len();
    builder.scopes.enter(0, &mut builder.slots);
    if let Err(error) = builder.parameters() {
        errors.push(error);
    }
    builder.statements(defined.ast.body.as_deref().unwrap_or_default(), errors);
    builder.set_place(defined.ast.end);
    if let Err(error) = builder.store_returns() {
        errors.push(error);
    }
    builder.scopes.leave(&mut builder.slots);
    let shared = (layout.sizes[index], layout.dynamic_align[index]);
    builder.finish(shared).unwrap_or_else(|error| {
        if errors.len() == first {
            errors.push(error);
        }
        code::Function::default()
    })
}

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
    code: Vec<Inst>,
    lines: Vec<u32>,
    /// The instruction index of each label, once known. Branches hold label numbers until the function is complete.
    labels: Vec<Option<u32>>,
    /// Bytes of the frame in use, and their maximum so far.
    frame: (u32, u32),
    guard: Guard,
    line: u32,
    /// Temporary registers of the current instruction.
    temporaries: Vec<Reg>,
    /// Returned values in `.reg` space, and the frame offsets to store them to at `ret`.
    register_returns: Vec<(Reg, Ty, u32)>,
}

/// Maximum size of a frame. The limit of a thread's stack is smaller.
const FRAME_LIMIT: u32 = 1 << 20;

impl<'p, 'a> Builder<'p, 'a> {
    fn new(program: &'p Program<'a>, layout: &'p Layout, defined: &'p Defined<'a>) -> Self {
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
            frame: (0, 0),
            guard: Guard::ALWAYS,
            line: 0,
            temporaries: Vec::new(),
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

    fn parameters(&mut self) -> Result<(), Diagnostic> {
        let (ast, signature) = (self.defined.ast, &self.defined.signature);
        if !ast.is_entry {
            self.frame_space(u64::from(signature.size), 16, ast.name.at)?;
        }
        for (variable, place) in ast.returns.iter().zip(&signature.returns) {
            self.parameter(variable, *place, true)?;
        }
        for (variable, place) in ast.params.iter().zip(&signature.params) {
            self.parameter(variable, *place, false)?;
        }
        Ok(())
    }

    fn parameter(&mut self, variable: &Variable, place: Param, returned: bool) -> Result<(), Diagnostic> {
        let name = &variable.name;
        let entity = match (variable.space, self.defined.ast.is_entry) {
            (Space::Reg, _) => {
                let ty = scalar(variable)?;
                let reg = self.slots.register(ty).ok_or_else(|| name.at.error(TOO_MANY))?;
                if returned {
                    self.register_returns.push((reg, ty, place.offset));
                } else {
                    self.set_place(name.at);
                    let mem = frame_access(ty, place.offset);
                    self.emit(Op::Ld { mem, d: [Some(reg), None, None, None] });
                }
                Entity::Register(reg, ty)
            }
            (_, true) => Entity::KernelParam(place.offset),
            (_, false) => Entity::Frame { offset: place.offset, size: place.size, local: false },
        };
        self.declare(name, entity)
    }

    fn declare(&mut self, name: &Name, entity: Entity) -> Result<(), Diagnostic> {
        if self.scopes.declare(&name.text, entity) {
            Ok(())
        } else {
            Err(name.at.error(format!("Duplicate definition of variable '{}'", name.text)))
        }
    }

    fn statements(&mut self, all: &'a [Statement], errors: &mut Vec<Diagnostic>) {
        self.labels_of(all, errors);
        for statement in all {
            let done = match statement {
                Statement::Label(name) => {
                    self.place_label(name);
                    Ok(())
                }
                Statement::BranchTargets { .. } => Ok(()),
                Statement::Variable(variable) => self.variable(variable),
                Statement::Block(inner) => {
                    self.scopes.enter(self.frame.0, &mut self.slots);
                    self.statements(inner, errors);
                    self.frame.0 = self.scopes.leave(&mut self.slots);
                    Ok(())
                }
                Statement::Instruction(instruction) => self.instruction(instruction),
            };
            if let Err(error) = done {
                errors.push(error);
            }
        }
    }

    /// Declares the labels of a scope before its statements, because a branch may precede its label.
    fn labels_of(&mut self, all: &[Statement], errors: &mut Vec<Diagnostic>) {
        for statement in all {
            if let Statement::Label(name) = statement {
                let number = u32::try_from(self.labels.len()).unwrap_or(u32::MAX);
                self.labels.push(None);
                if !self.scopes.declare(&name.text, Entity::Label(number)) {
                    errors.push(name.at.error(format!("Duplicate definition of label '{}'", name.text)));
                }
            }
        }
        for statement in all {
            if let Statement::BranchTargets { name, targets } = statement {
                let numbers: Result<Vec<u32>, Diagnostic> =
                    targets.iter().map(|label| self.label(&label.text, label.at)).collect();
                let declared = numbers.and_then(|numbers| self.declare(name, Entity::Targets(numbers)));
                errors.extend(declared.err());
            }
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

    fn place_label(&mut self, name: &Name) {
        if let Ok(Some(Entity::Label(number))) = self.scopes.find(&name.text, &mut self.slots) {
            self.labels[number as usize] = Some(u32::try_from(self.code.len()).unwrap_or(u32::MAX));
        }
    }

    fn variable(&mut self, variable: &Variable) -> Result<(), Diagnostic> {
        let (name, at) = (&variable.name, variable.name.at);
        let entity = match variable.space {
            Space::Reg => return self.registers(variable),
            Space::Local | Space::Param => {
                let offset = self.frame_space(data::size(variable)?, data::alignment(variable)?, at)?;
                let size = u32::try_from(data::size(variable)?).unwrap_or(u32::MAX);
                Entity::Frame { offset, size, local: variable.space == Space::Local }
            }
            Space::Shared if variable.linkage == Linkage::Internal => {
                Entity::Shared(self.layout.offset(self.defined.unit, variable))
            }
            Space::Shared
                if variable.linkage == Linkage::Extern && variable.dimensions.first() == Some(&None) =>
            {
                Entity::DynamicShared
            }
            _ => {
                let what = "variables of this space are declared at module scope on this device";
                return Err(at.error(format!("'{}': {what}", name.text)));
            }
        };
        self.declare(name, entity)
    }

    fn registers(&mut self, variable: &Variable) -> Result<(), Diagnostic> {
        let (name, ty) = (&variable.name, element(variable)?);
        if let Some(count) = variable.count {
            if variable.vector > 1 {
                return Err(name.at.error("Vector registers cannot be declared in numbered families"));
            }
            if !self.scopes.declare_family(&name.text, count, ty) {
                return Err(name.at.error(format!("Duplicate definition of variable '{}'", name.text)));
            }
            return Ok(());
        }
        let too_many = || name.at.error(TOO_MANY);
        let entity = match (ty, variable.vector) {
            (None, 1) => Entity::Predicate(self.slots.predicate().ok_or_else(too_many)?),
            (Some(ty), 1) => Entity::Register(self.slots.register(ty).ok_or_else(too_many)?, ty),
            (Some(ty), count) => {
                let regs: Option<Vec<Reg>> = (0..count).map(|_| self.slots.register(ty)).collect();
                Entity::Vector(regs.ok_or_else(too_many)?, ty)
            }
            (None, _) => return Err(name.at.error("Predicates have no vectors")),
        };
        self.declare(name, entity)
    }

    fn instruction(&mut self, instruction: &'a Instruction) -> Result<(), Diagnostic> {
        self.set_place(instruction.opcode.at);
        self.opcode = &instruction.opcode.text;
        if let Some(guard) = &instruction.guard {
            let pred = self.guard(&guard.predicate)?;
            self.guard = Guard { pred: Some(pred), negate: guard.negated };
        }
        let lowered = self.lowered(instruction);
        for reg in std::mem::take(&mut self.temporaries) {
            self.slots.release(reg);
        }
        self.guard = Guard::ALWAYS;
        lowered
    }

    fn lowered(&mut self, instruction: &'a Instruction) -> Result<(), Diagnostic> {
        let Name { text, at } = &instruction.opcode;
        let handler = isa::handler(text)
            .ok_or_else(|| at.error(format!("Instruction '{text}' is not supported on this device")))?;
        let mut modifiers = Modifiers::new(instruction);
        modifiers.all_known()?;
        handler(self, instruction, &mut modifiers)?;
        modifiers.finish()
    }

    fn guard(&mut self, name: &Name) -> Result<Pred, Diagnostic> {
        match self.scopes.find(&name.text, &mut self.slots) {
            Ok(Some(Entity::Predicate(pred))) => Ok(pred),
            Ok(Some(_)) => {
                Err(name.at.error(format!("Predicate expression expected, found '{}'", name.text)))
            }
            Ok(None) => Err(name.at.error(format!("Unknown symbol '{}'", name.text))),
            Err(what) => Err(name.at.error(what)),
        }
    }

    fn set_place(&mut self, at: Position) {
        self.line = at.line;
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

    fn finish(mut self, shared: (u32, u32)) -> Result<code::Function, Diagnostic> {
        let labels = std::mem::take(&mut self.labels);
        let place = |number: &mut u32| {
            if let Some(Some(index)) = labels.get(*number as usize) {
                *number = *index;
            }
        };
        for inst in &mut self.code {
            match &mut inst.op {
                Op::Bra { target } => place(target),
                Op::Brx { targets, .. } => targets.iter_mut().for_each(place),
                _ => {}
            }
        }
        let Defined { ast, signature, .. } = self.defined;
        let (regs32, regs64, preds) = self.slots.totals();
        let hint = |name: &str| ast.hints.iter().find(|hint| hint.name.text == name);
        Ok(code::Function {
            name: ast.name.text.clone(),
            kernel: ast.is_entry,
            code: self.code,
            lines: self.lines,
            regs32,
            regs64,
            preds,
            params: signature.params.clone(),
            returns: signature.returns.clone(),
            param_size: if ast.is_entry { signature.size } else { 0 },
            frame_size: self.frame.1.next_multiple_of(16),
            shared_size: shared.0,
            dynamic_shared_align: shared.1,
            max_threads: hint("maxntid").or(hint("reqntid")).map_or(Ok(0), product)?,
            required_block: hint("reqntid").map_or(Ok([0; 3]), dimensions)?,
            min_blocks_per_sm: hint("minnctapersm").map_or(Ok(0), product)?,
        })
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

fn scalar(variable: &Variable) -> Result<Ty, Diagnostic> {
    match element(variable)? {
        Some(ty) if variable.vector == 1 => Ok(ty),
        _ => Err(variable.name.at.error(format!("'{}' cannot be passed in a register", variable.name.text))),
    }
}

fn dimensions(hint: &Hint) -> Result<[u32; 3], Diagnostic> {
    let mut all = [1; 3];
    for (place, value) in all.iter_mut().zip(&hint.values) {
        *place = u32::try_from(*value)
            .map_err(|_| hint.name.at.error(format!("Value of '.{}' is too large", hint.name.text)))?;
    }
    Ok(all)
}

fn product(hint: &Hint) -> Result<u32, Diagnostic> {
    let [x, y, z] = dimensions(hint)?;
    x.checked_mul(y)
        .and_then(|xy| xy.checked_mul(z))
        .ok_or_else(|| hint.name.at.error(format!("Value of '.{}' is too large", hint.name.text)))
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
