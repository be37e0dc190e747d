//! Symbols of one or several modules (PTX ISA 11.6, "Linking Directives").

use std::collections::HashMap;

use super::types;
use crate::code::Param;
use crate::code::op::Service;
use crate::ptx::Diagnostic;
use crate::ptx::ast::{Function, Init, Item, Linkage, Module, Position, Space, Variable};

/// The definitions of all modules, and the meaning of each name in each module.
#[derive(Debug)]
pub(super) struct Program<'a> {
    /// Defined functions, in order of appearance.
    pub(super) functions: Vec<Defined<'a>>,
    /// Defined `.global` and `.const` variables.
    pub(super) globals: Vec<(usize, &'a Variable)>,
    /// Names at module scope, per module.
    scopes: Vec<HashMap<&'a str, Symbol<'a>>>,
}

/// A function with a body.
#[derive(Debug)]
pub(super) struct Defined<'a> {
    /// The index of its module.
    pub(super) unit: usize,
    pub(super) module: &'a Module,
    pub(super) ast: &'a Function,
    pub(super) signature: Signature,
}

/// The meaning of a name at module scope.
#[derive(Clone, Debug)]
pub(super) enum Symbol<'a> {
    /// An index into [`Program::globals`].
    Global(u32),
    /// A static shared variable, with the index of the module that defines it.
    Shared(usize, &'a Variable),
    /// `.extern .shared x[]`: the dynamic part of shared memory.
    DynamicShared(&'a Variable),
    /// An index into [`Program::functions`].
    Function(u32),
    /// A function of the device's run-time library.
    Service(Service, Signature),
    /// Declared, but no module defines it. Only a use of it is an error.
    Unresolved,
}

/// The error for a use of [`Symbol::Unresolved`].
pub(super) fn unresolved(name: &str, at: Position) -> Diagnostic {
    let own =
        name.strip_prefix("cuda").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()));
    if own || name.starts_with("__cudaCDP2") {
        let what = "the software device does not support the device runtime (kernels that launch kernels)";
        return at.error(format!("Unresolved extern '{name}': {what}"));
    }
    at.error(format!("Unresolved extern '{name}'"))
}

/// The layout of a function's parameters and returned values. Offsets are in the callee's frame, for kernels in the
/// launch's parameter buffer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Signature {
    pub(super) returns: Vec<Param>,
    pub(super) params: Vec<Param>,
    /// Total size in bytes.
    pub(super) size: u32,
}

impl<'a> Program<'a> {
    /// The meaning of `name` at the scope of module `unit`.
    pub(super) fn symbol(&self, unit: usize, name: &str) -> Option<&Symbol<'a>> {
        self.scopes[unit].get(name)
    }

    /// The functions whose addresses are in initial values of variables, which calls through pointers may reach. Those
    /// whose addresses instructions take are found with the instructions.
    pub(super) fn addressed(&self) -> Vec<usize> {
        fn walk<'i>(init: &'i Init, found: &mut impl FnMut(&'i str)) {
            match init {
                Init::List(items, _) => items.iter().for_each(|item| walk(item, found)),
                Init::Address { symbol, .. } => found(&symbol.text),
                Init::Value(..) => {}
            }
        }
        let mut all = Vec::new();
        for (unit, variable) in &self.globals {
            let mut found = |name: &str| {
                if let Some(Symbol::Function(index)) = self.symbol(*unit, name) {
                    all.push(*index as usize);
                }
            };
            variable.init.iter().for_each(|init| walk(init, &mut found));
        }
        all
    }
}

/// Functions that nvcc's output calls without any module defining them.
fn service(name: &str) -> Option<Service> {
    match name {
        "vprintf" => Some(Service::Printf),
        "__assertfail" => Some(Service::AssertFail),
        "malloc" => Some(Service::Malloc),
        "free" => Some(Service::Free),
        _ => None,
    }
}

/// Gathers the definitions of all modules and resolves every name.
pub(super) fn link(modules: &[Module]) -> Result<Program<'_>, Diagnostic> {
    let mut linker = Linker {
        program: Program {
            functions: Vec::new(),
            globals: Vec::new(),
            scopes: vec![HashMap::new(); modules.len()],
        },
        exported: HashMap::new(),
        imports: Vec::new(),
        errors: Vec::new(),
    };
    for (unit, module) in modules.iter().enumerate() {
        for item in &module.items {
            match item {
                Item::Variable(variable) => linker.variable(unit, variable),
                Item::Function(function) => linker.function(unit, module, function),
            }
        }
    }
    linker.resolve();
    Diagnostic::join(linker.errors).map_or(Ok(linker.program), Err)
}

struct Linker<'a> {
    program: Program<'a>,
    /// Definitions that other modules may use.
    exported: HashMap<&'a str, (Linkage, Symbol<'a>)>,
    /// Declarations that have no definition in their own module so far.
    imports: Vec<(usize, Import<'a>)>,
    errors: Vec<Diagnostic>,
}

#[derive(Clone, Copy)]
enum Import<'a> {
    Variable(&'a Variable),
    Function(&'a Function),
}

impl<'a> Linker<'a> {
    fn variable(&mut self, unit: usize, variable: &'a Variable) {
        let unsized_array = variable.dimensions.first() == Some(&None) && variable.init.is_none();
        if variable.linkage == Linkage::Extern {
            if variable.space == Space::Shared && unsized_array {
                let symbol = Symbol::DynamicShared(variable);
                self.program.scopes[unit].insert(&variable.name.text, symbol);
            } else {
                self.imports.push((unit, Import::Variable(variable)));
            }
            return;
        }
        let name = variable.name.text.as_str();
        if self.yields(variable.linkage, name) {
            self.imports.push((unit, Import::Variable(variable)));
            return;
        }
        let symbol = if variable.space == Space::Shared {
            Symbol::Shared(unit, variable)
        } else {
            self.program.globals.push((unit, variable));
            Symbol::Global(index(self.program.globals.len() - 1))
        };
        self.define(unit, &variable.name, variable.linkage, symbol);
    }

    fn function(&mut self, unit: usize, module: &'a Module, function: &'a Function) {
        if function.body.is_none() || self.yields(function.linkage, &function.name.text) {
            self.imports.push((unit, Import::Function(function)));
            return;
        }
        match signature(function) {
            Ok(signature) => {
                self.program.functions.push(Defined { unit, module, ast: function, signature });
                let symbol = Symbol::Function(index(self.program.functions.len() - 1));
                self.define(unit, &function.name, function.linkage, symbol);
            }
            Err(error) => self.errors.push(error),
        }
    }

    /// Whether a weak or tentative definition is dropped in favour of an existing one.
    fn yields(&self, linkage: Linkage, name: &str) -> bool {
        matches!(linkage, Linkage::Weak | Linkage::Common) && self.exported.contains_key(name)
    }

    fn define(&mut self, unit: usize, name: &'a crate::ptx::ast::Name, linkage: Linkage, symbol: Symbol<'a>) {
        let text = name.text.as_str();
        if self.program.scopes[unit].insert(text, symbol.clone()).is_some() {
            self.errors.push(name.at.error(format!("Duplicate definition of '{text}'")));
            return;
        }
        if linkage == Linkage::Internal {
            return;
        }
        match self.exported.get(text) {
            None => {
                self.exported.insert(text, (linkage, symbol));
            }
            // A strong definition replaces a weak or tentative one.
            Some((Linkage::Weak | Linkage::Common, _)) => {
                self.exported.insert(text, (linkage, symbol));
            }
            Some(_) => self.errors.push(name.at.error(format!("Multiple definition of '{text}'"))),
        }
    }

    fn resolve(&mut self) {
        for (unit, import) in std::mem::take(&mut self.imports) {
            let name = match import {
                Import::Variable(variable) => &variable.name,
                Import::Function(function) => &function.name,
            };
            if self.program.scopes[unit].contains_key(name.text.as_str()) {
                continue;
            }
            let found = match self.exported.get(name.text.as_str()) {
                Some((_, symbol)) => Some(symbol.clone()),
                None => self.provided(import),
            };
            match found {
                Some(symbol) => {
                    if let Err(error) = self.agree(import, &symbol) {
                        self.errors.push(error);
                    }
                    self.program.scopes[unit].insert(&name.text, symbol);
                }
                None => {
                    self.program.scopes[unit].insert(&name.text, Symbol::Unresolved);
                }
            }
        }
    }

    fn provided(&mut self, import: Import<'a>) -> Option<Symbol<'a>> {
        let Import::Function(function) = import else {
            return None;
        };
        let service = service(&function.name.text)?;
        match signature(function) {
            Ok(signature) if same_sizes(&signature, service) => Some(Symbol::Service(service, signature)),
            Ok(_) => {
                let text = format!("Declaration of '{}' does not match its definition", function.name.text);
                self.errors.push(function.name.at.error(text));
                None
            }
            Err(error) => {
                self.errors.push(error);
                None
            }
        }
    }

    /// Returns an error unless a declaration matches its definition.
    fn agree(&self, import: Import<'a>, symbol: &Symbol<'a>) -> Result<(), Diagnostic> {
        let (name, agrees) = match (import, symbol) {
            (Import::Function(function), Symbol::Function(index)) => {
                let defined = &self.program.functions[*index as usize];
                let same =
                    defined.signature == signature(function)? && defined.ast.is_entry == function.is_entry;
                (&function.name, same)
            }
            (Import::Function(function), Symbol::Service(..)) => (&function.name, true),
            (Import::Variable(variable), Symbol::Global(index)) => {
                let (_, defined) = self.program.globals[*index as usize];
                (&variable.name, same_variable(variable, defined))
            }
            (Import::Variable(variable), Symbol::Shared(_, defined)) => {
                (&variable.name, same_variable(variable, defined))
            }
            (Import::Variable(Variable { name, .. }) | Import::Function(Function { name, .. }), _) => {
                (name, false)
            }
        };
        if agrees {
            Ok(())
        } else {
            Err(name.at.error(format!("Declaration of '{}' does not match its definition", name.text)))
        }
    }
}

fn same_sizes(signature: &Signature, service: Service) -> bool {
    let (params, returns) = service.sizes();
    signature.params.iter().map(|p| p.size).eq(params.iter().copied())
        && signature.returns.iter().map(|p| p.size).eq(returns.iter().copied())
}

fn same_variable(declared: &Variable, defined: &Variable) -> bool {
    declared.space == defined.space
        && (declared.dimensions.first() == Some(&None)
            || types::size(declared).ok() == types::size(defined).ok())
}

/// Lays out returned values, then parameters, each at its alignment.
fn signature(function: &Function) -> Result<Signature, Diagnostic> {
    Signature::of(&function.returns, &function.params)
}

impl Signature {
    /// The layout of these declarations.
    pub(super) fn of(returns: &[Variable], params: &[Variable]) -> Result<Self, Diagnostic> {
        let mut size = 0;
        let returns = returns.iter().map(|v| place(v, &mut size)).collect::<Result<_, _>>()?;
        let params = params.iter().map(|v| place(v, &mut size)).collect::<Result<_, _>>()?;
        Ok(Signature { returns, params, size })
    }
}

/// Maximum bytes of parameters (PTX ISA 5.1.6.1, for sm_70 and later and ISA 8.1 and later).
const PARAMETER_LIMIT: u32 = 32764;

fn place(variable: &Variable, end: &mut u32) -> Result<Param, Diagnostic> {
    let at = variable.name.at;
    let bytes = types::size(variable)?;
    let size = u32::try_from(bytes).unwrap_or(u32::MAX);
    let align = types::alignment(variable)?;
    let offset = end.next_multiple_of(align);
    match offset.checked_add(size) {
        Some(next) if next <= PARAMETER_LIMIT => *end = next,
        _ => return Err(at.error(format!("Formal parameter space overflowed (max {PARAMETER_LIMIT} bytes)"))),
    }
    Ok(Param { offset, size, align })
}

fn index(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
