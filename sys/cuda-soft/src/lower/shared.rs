//! The layout of shared variables.
//!
//! A shared variable has the same address in every kernel. Two variables that no kernel uses together may overlap, so
//! that a kernel needs shared memory only for the variables it uses.

use std::collections::{BTreeSet, HashMap};

use super::link::{Program, Symbol};
use super::types;
use crate::ptx::Diagnostic;
use crate::ptx::ast::{Linkage, Operand, OperandKind, Position, Space, Statement, Variable};

/// The offset of each variable, and the totals of each function.
#[derive(Debug)]
pub(super) struct Layout {
    offsets: HashMap<Key, u32>,
    /// Per function: bytes of static shared memory that it and its callees need.
    pub(super) sizes: Vec<u32>,
    /// Per function: alignment of the dynamic shared memory.
    pub(super) dynamic_align: Vec<u32>,
    /// Per function: whether it or a callee uses the reserved shared memory.
    pub(super) reserved: Vec<bool>,
}

/// Identifies a variable: its module and the position of its name.
type Key = (usize, Position);

impl Layout {
    /// The offset of `variable` of module `unit`.
    pub(super) fn offset(&self, unit: usize, variable: &Variable) -> u32 {
        self.offsets.get(&(unit, variable.name.at)).copied().unwrap_or(0)
    }
}

/// The symbols that one function mentions.
#[derive(Default)]
struct Uses<'a> {
    variables: HashMap<Key, &'a Variable>,
    functions: BTreeSet<usize>,
    dynamic_align: u32,
    reserved: bool,
}

/// Lays out the static shared variables of the program.
pub(super) fn layout(program: &Program<'_>, errors: &mut Vec<Diagnostic>) -> Layout {
    let direct: Vec<Uses<'_>> = (0..program.functions.len()).map(|index| uses(program, index)).collect();
    let reach: Vec<BTreeSet<usize>> = (0..direct.len()).map(|root| reachable(&direct, root)).collect();

    // Each variable with the functions that reach it, in order of appearance.
    let mut needed: HashMap<Key, (&Variable, BTreeSet<usize>)> = HashMap::new();
    for (root, reached) in reach.iter().enumerate() {
        for (key, variable) in reached.iter().flat_map(|f| &direct[*f].variables) {
            needed.entry(*key).or_insert_with(|| (*variable, BTreeSet::new())).1.insert(root);
        }
    }
    let mut order: Vec<(&Key, &(&Variable, BTreeSet<usize>))> = needed.iter().collect();
    order.sort_by_key(|(key, _)| **key);

    let mut layout = Layout {
        offsets: HashMap::new(),
        sizes: vec![0; direct.len()],
        dynamic_align: reach
            .iter()
            .map(|reached| reached.iter().map(|f| direct[*f].dynamic_align).max().unwrap_or(0).max(16))
            .collect(),
        reserved: reach.iter().map(|reached| reached.iter().any(|f| direct[*f].reserved)).collect(),
    };
    for (key, (variable, kernels)) in order {
        let placed = types::size(variable).and_then(|size| {
            let align = types::alignment(variable)?;
            let start = kernels.iter().map(|k| layout.sizes[*k]).max().unwrap_or(0).next_multiple_of(align);
            let end =
                u32::try_from(size).ok().and_then(|size| start.checked_add(size)).filter(|end| *end <= LIMIT);
            end.map(|end| (start, end)).ok_or_else(|| {
                variable.name.at.error(format!("Shared variable '{}' is too large", variable.name.text))
            })
        });
        match placed {
            Ok((start, end)) => {
                layout.offsets.insert(*key, start);
                kernels.iter().for_each(|k| layout.sizes[*k] = end);
            }
            Err(error) => errors.push(error),
        }
    }
    layout
}

/// A limit above that of any device; the launch checks the device's own.
const LIMIT: u32 = 1 << 20;

fn reachable(direct: &[Uses<'_>], root: usize) -> BTreeSet<usize> {
    let mut seen = BTreeSet::from([root]);
    let mut open = vec![root];
    while let Some(function) = open.pop() {
        for callee in &direct[function].functions {
            if seen.insert(*callee) {
                open.push(*callee);
            }
        }
    }
    seen
}

fn uses<'a>(program: &Program<'a>, index: usize) -> Uses<'a> {
    let defined = &program.functions[index];
    let mut walk = Walk { program, unit: defined.unit, uses: Uses::default() };
    walk.statements(defined.ast.body.as_deref().unwrap_or_default());
    walk.uses
}

struct Walk<'p, 'a> {
    program: &'p Program<'a>,
    unit: usize,
    uses: Uses<'a>,
}

impl<'a> Walk<'_, 'a> {
    fn statements(&mut self, all: &'a [Statement]) {
        for statement in all {
            match statement {
                Statement::Block(inner) => self.statements(inner),
                Statement::Instruction(instruction) => {
                    instruction.operands.iter().for_each(|o| self.operand(o))
                }
                Statement::Variable(v) if v.space == Space::Shared => {
                    if v.linkage == Linkage::Internal {
                        self.uses.variables.insert((self.unit, v.name.at), v);
                    } else {
                        self.dynamic(v);
                    }
                }
                Statement::Prototype { .. } | Statement::CallTargets { .. } => {
                    self.uses.functions.extend(self.program.addressed());
                }
                _ => {}
            }
        }
    }

    fn operand(&mut self, operand: &'a Operand) {
        match &operand.kind {
            OperandKind::Name { name, .. } | OperandKind::Address { base: Some(name), .. } => self.name(name),
            OperandKind::Vector(all) | OperandKind::List(all) => all.iter().for_each(|o| self.operand(o)),
            _ => {}
        }
    }

    fn dynamic(&mut self, variable: &Variable) {
        let align = types::alignment(variable).unwrap_or(1);
        self.uses.dynamic_align = self.uses.dynamic_align.max(align);
    }

    /// Records a name. A register of the same name may hide the symbol; the extra use then only wastes memory.
    fn name(&mut self, name: &str) {
        self.uses.reserved |= name.starts_with("%reserved_smem_offset");
        match self.program.symbol(self.unit, name) {
            Some(Symbol::Shared(unit, variable)) => {
                self.uses.variables.insert((*unit, variable.name.at), *variable);
            }
            Some(Symbol::DynamicShared(variable)) => self.dynamic(variable),
            Some(Symbol::Function(index)) => {
                self.uses.functions.insert(*index as usize);
            }
            _ => {}
        }
    }
}
