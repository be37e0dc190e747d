//! PTX text to checked code, through the public entries of the front end.

mod corpus;
mod diagnostics;
mod forms;
mod linking;
mod mutation;

use cuda_soft::{code, lower, ptx};

/// Parses and lowers one module; the error is what the JIT log would show.
fn compile(text: &str) -> Result<code::Module, String> {
    let module = ptx::parse(text).map_err(|e| e.to_string())?;
    lower::compile(&[module]).map_err(|e| e.to_string())
}
