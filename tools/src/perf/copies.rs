//! The driver's copies with nothing of the library around them, which the library is compared with.

use anyhow::{Result, bail};
use aqueduct::gpu::Stream;

/// Enqueues a copy of `len` bytes.
///
/// # Safety
/// The stream's context is current on this thread, and `from` and `to` are device addresses of as many bytes in it whose owners
/// live until the copy is done.
pub(super) unsafe fn bare_copy(stream: &Stream, to: u64, from: u64, len: usize) -> Result<()> {
    let copy = stream.context().driver().table().cuMemcpyAsync;
    // SAFETY: the caller vouches for the context and both ranges.
    let code = unsafe { copy(to, from, len, stream.raw()) };
    if code.0 != 0 {
        bail!("cuMemcpyAsync failed with {code:?}");
    }
    Ok(())
}
