//! Targets of the software device and of the instantiator, whose text it reads.

use cuda_soft::{lower, ptx};

/// A PTX module, read and compiled.
pub(crate) fn ptx(bytes: &[u8]) -> Option<Vec<u8>> {
    let module = ptx::parse(str::from_utf8(bytes).ok()?).ok()?;
    lower::compile(&[module]).ok().map(|_| Vec::new())
}

/// A template, and behind a line `---` the fragment `part.ptxi` that it may include.
pub(crate) fn template(bytes: &[u8]) -> Option<Vec<u8>> {
    let text = str::from_utf8(bytes).ok()?;
    let (main, part) = text.split_once("---\n").unwrap_or((text, ""));
    aqueduct_ptx::fuzzing::render(main, part).ok().map(String::into_bytes)
}
