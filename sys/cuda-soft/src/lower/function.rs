//! Lowers one function: its parameters, declarations, labels and instructions.

use super::builder::{Builder, Prototype, frame_access};
use super::isa;
use super::link::{Defined, Program, Signature, Symbol};
use super::modifiers::Modifiers;
use super::scope::{Entity, Role, TOO_MANY};
use super::shared::Layout;
use super::types;
use crate::code::{self, Guard, Op, Param, Pred, Reg, Ty};
use crate::ptx::Diagnostic;
use crate::ptx::ast::{Hint, Instruction, Linkage, Name, Space, Statement, Variable};

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
    let shared = (layout.sizes[index], layout.dynamic_align[index], layout.reserved[index]);
    builder.finish(shared).unwrap_or_else(|error| {
        if errors.len() == first {
            errors.push(error);
        }
        code::Function::default()
    })
}

impl<'a> Builder<'_, 'a> {
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
            (_, false) => Entity::Frame { offset: place.offset, size: place.size, role: Role::Own },
        };
        self.declare(name, entity)
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
                Statement::Prototype { name, returns, params } => self.prototype(name, returns, params),
                Statement::CallTargets { name, targets } => self.call_targets(name, targets),
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

    fn prototype(
        &mut self,
        name: &Name,
        returns: &'a [Variable],
        params: &'a [Variable],
    ) -> Result<(), Diagnostic> {
        let signature = Signature::of(returns, params)?;
        self.add_prototype(name, Prototype { signature, returns, params })
    }

    fn call_targets(&mut self, name: &Name, targets: &[Name]) -> Result<(), Diagnostic> {
        let mut found: Option<Prototype<'a>> = None;
        for target in targets {
            let Some(Symbol::Function(index)) = self.program.symbol(self.defined.unit, &target.text) else {
                return Err(target.at.error(format!("'{}' is not a function", target.text)));
            };
            let Defined { ast, signature, .. } = &self.program.functions[*index as usize];
            if found.as_ref().is_some_and(|first| first.signature != *signature) {
                let what = format!("'{}' has another signature than the functions before it", target.text);
                return Err(target.at.error(what));
            }
            let signature = signature.clone();
            found = Some(Prototype { signature, returns: &ast.returns, params: &ast.params });
        }
        found.map_or(Ok(()), |prototype| self.add_prototype(name, prototype))
    }

    fn add_prototype(&mut self, name: &Name, prototype: Prototype<'a>) -> Result<(), Diagnostic> {
        let number = u32::try_from(self.prototypes.len()).unwrap_or(u32::MAX);
        self.prototypes.push(prototype);
        self.declare(name, Entity::Prototype(number))
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
                let offset = self.frame_space(types::size(variable)?, types::alignment(variable)?, at)?;
                let size = u32::try_from(types::size(variable)?).unwrap_or(u32::MAX);
                // The slot may be that of a variable whose scope has ended.
                self.returned.remove(&offset);
                let role = if variable.space == Space::Local { Role::Local } else { Role::Call };
                Entity::Frame { offset, size, role }
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
        let (name, ty) = (&variable.name, types::element(variable)?);
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
        let handler = isa::handler(text).ok_or_else(|| {
            at.error(format!("Instruction '{text}' is not supported by the software device"))
        })?;
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

    fn finish(mut self, shared: (u32, u32, bool)) -> Result<code::Function, Diagnostic> {
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
            reserved_shared: shared.2,
            required_cluster: hint("reqnctapercluster").map_or(Ok([0; 3]), dimensions)?,
            max_threads: hint("maxntid").or(hint("reqntid")).map_or(Ok(0), product)?,
            required_block: hint("reqntid").map_or(Ok([0; 3]), dimensions)?,
            min_blocks_per_sm: hint("minnctapersm").map_or(Ok(0), product)?,
        })
    }
}

fn scalar(variable: &Variable) -> Result<Ty, Diagnostic> {
    match types::element(variable)? {
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
