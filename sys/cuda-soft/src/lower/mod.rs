//! Compiles syntax trees to a [`code::Module`]: resolves names, checks types, lays out addresses.
//!
//! | file | job |
//! |---|---|
//! | `link` | resolves names at module scope across the linked modules |
//! | `types` | computes sizes and alignments, converts constants |
//! | `data` | builds the initial bytes of variables |
//! | `shared` | places shared variables in a block's shared memory |
//! | `builder`, `scope` | allocate registers, frame bytes and labels of one function |
//! | `function` | lowers the statements of one function |
//! | `modifiers`, `operand`, `special` | check modifiers, operands and their types |
//! | `isa` | lowers each instruction, one function per opcode |

mod builder;
mod data;
mod function;
mod isa;
mod link;
mod modifiers;
mod operand;
mod scope;
mod shared;
mod special;
mod types;

use crate::code;
use crate::ptx::{Diagnostic, ast};

/// Compiles the modules of one load or one link into one module.
///
/// `.extern` symbols are resolved among all of them.
///
/// # Errors
/// Unknown modifiers, operands of wrong types, unresolved or doubly defined symbols, features that the module's
/// `.target` or `.version` does not have, and PTX that this device cannot run. Reports up to one error per instruction.
pub fn compile(modules: &[ast::Module]) -> Result<code::Module, Diagnostic> {
    let program = link::link(modules)?;
    let mut errors = Vec::new();
    let globals = data::globals(&program, &mut errors);
    let layout = shared::layout(&program, &mut errors);
    let mut functions = Vec::with_capacity(program.functions.len());
    for index in 0..program.functions.len() {
        functions.push(function::lower(&program, &layout, index, &mut errors));
    }
    if let Some(error) = Diagnostic::join(errors) {
        return Err(error);
    }
    let module = code::Module { functions, globals };
    module
        .check()
        .map_err(|what| ast::Position::default().error(format!("Internal compiler error: {what}")))?;
    Ok(module)
}
