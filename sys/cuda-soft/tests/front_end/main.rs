//! Tests of the front end through its public functions, from PTX text to checked code.

mod corpus;
mod diagnostics;
mod forms;
mod linking;
mod mutation;

use cuda_soft::{code, lower, ptx};

/// Parses and lowers one module. The error is the text of the JIT log.
fn compile(text: &str) -> Result<code::Module, String> {
    let module = ptx::parse(text).map_err(|e| e.to_string())?;
    lower::compile(&[module]).map_err(|e| e.to_string())
}
