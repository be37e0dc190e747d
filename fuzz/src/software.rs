//! Targets of the software device.

use cuda_soft::{lower, ptx};

/// A PTX module, read and compiled.
pub(crate) fn ptx(bytes: &[u8]) -> Option<Vec<u8>> {
    let module = ptx::parse(str::from_utf8(bytes).ok()?).ok()?;
    lower::compile(&[module]).ok().map(|_| Vec::new())
}
