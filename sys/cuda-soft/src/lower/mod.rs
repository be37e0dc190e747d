//! From syntax trees to [`code::Module`]: names resolved, types checked, addresses laid out.
//!
//! | file | what it decides |
//! |---|---|
//! | `link` | which name means which symbol, across the modules that are linked |
//! | `data` | the initial bytes of variables |
//! | `shared` | where shared variables lie in a block's shared memory |
//! | `function`, `scope` | registers, frames, scopes and labels of one function |
//! | `modifiers`, `operand`, `special` | the words after an opcode, operands and their types |
//! | `isa` | one function per instruction |

mod data;
mod function;
mod isa;
mod link;
mod modifiers;
mod operand;
mod scope;
mod shared;
mod special;

use crate::code;
use crate::ptx::{Diagnostic, ast};

/// Compiles the modules that one load, or one link, brings together.
///
/// Symbols declared `.extern` are resolved among all of them.
///
/// # Errors
/// Unknown modifiers, operands of wrong types, unresolved or doubly defined symbols, features that the
/// module's `.target` and `.version` lack, and PTX that this device does not run. Several errors are
/// collected, one per instruction.
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
