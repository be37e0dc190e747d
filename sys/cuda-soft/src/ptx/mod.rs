//! The PTX reader: text to syntax tree.
//!
//! Strict by design: whatever the language definition (PTX ISA 9.0) does not say, or this device does not
//! run, is an error with line and column, never something skipped. The tree holds the shape of the whole
//! language (linkage, functions, parameters, every state space, initialisers, scopes, call sequences); which
//! opcode takes which modifiers and operand types is the business of [`crate::lower`].

pub mod ast;
mod body;
mod constant;
mod cursor;
mod declaration;
mod diagnostic;
mod directive;
mod lex;
mod module;
mod opcodes;
mod operand;

pub use diagnostic::{Diagnostic, Position};

/// Reads one PTX module.
///
/// # Errors
/// The first offence, with every further one that could be found without guessing in
/// [`Diagnostic::further`]. No input makes this panic or recurse without bound.
pub fn parse(text: &str) -> Result<ast::Module, Diagnostic> {
    let tokens = lex::tokens(text)?;
    module::module(cursor::Cursor::new(tokens))
}
