//! The PTX parser: text to syntax tree.
//!
//! The parser is strict. Anything that the language definition (PTX ISA 9.0) does not allow, or that this device cannot
//! run, is an error with line and column and is never skipped. The tree represents the whole language: linkage,
//! functions, parameters, all state spaces, initialisers, scopes, call sequences. [`crate::lower`] checks the modifiers
//! and operand types of each opcode.

pub mod ast;
mod body;
mod constant;
mod cursor;
mod declaration;
mod diagnostic;
mod directive;
mod lex;
mod module;
pub(crate) mod opcodes;
mod operand;

pub use diagnostic::{Diagnostic, Position};

/// Parses one PTX module.
///
/// # Errors
/// The first syntax error. [`Diagnostic::further`] has those after it, as long as the parser could resume without
/// guessing. No input causes a panic or unbounded recursion.
pub fn parse(text: &str) -> Result<ast::Module, Diagnostic> {
    let tokens = lex::tokens(text)?;
    module::module(cursor::Cursor::new(tokens))
}
