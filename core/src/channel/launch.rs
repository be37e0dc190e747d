//! The function by which channels launch their kernels.

use std::any::Any;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::gpu::{
    Context, DeviceSlice, Function, KeepAlive, KernelArg, KernelParam, LaunchConfig, Stream, arg,
};
use crate::outcome::Outcome;

/// A channel as its kernels take it, by its handle, and as streams retain it.
pub(super) trait Channel: Any + Send + Sync {
    /// The structure of [`aqueduct_ptx::abi`] that its kernels take by value.
    type Handle: KernelParam;

    /// The handle, valid as long as the channel lives.
    fn handle(&self) -> &Self::Handle;

    /// Returns `Ok` while the channel works, otherwise the reason.
    fn check(&self) -> Result<()>;

    /// Tells waits for streams whether kernels of the channel gave up.
    fn outcome(&self) -> &Arc<dyn Outcome>;
}

/// One warp, for kernels of which one thread acts.
pub(super) const ONE_WARP: LaunchConfig = LaunchConfig::linear(1, 32);

/// Arguments of a kernel, at most, the handle included.
const ARGUMENTS: usize = 7;

/// Enqueues `function` with the channel's handle and `args`, unless the channel has failed. The stream keeps the
/// channel until the kernel has ended, and the memory of `result`, which the kernel writes for the user.
///
/// # Safety
/// `function` takes the handle and then `args`. Their ranges lie within memory that the channel holds; `result` was
/// checked with [`check_result`].
pub(super) unsafe fn launch<C: Channel>(
    channel: &Arc<C>,
    function: &Function,
    stream: &Stream,
    config: &LaunchConfig,
    args: &[KernelArg<'_>],
    result: Option<&DeviceSlice>,
) -> Result<()> {
    channel.check()?;
    let mut all = [arg(channel.handle()); ARGUMENTS];
    all[1..=args.len()].copy_from_slice(args);
    let keep: KeepAlive = channel.clone();
    let keep = result.map(|slice| Arc::clone(slice.keep_alive())).into_iter().chain([keep]);
    // SAFETY: the caller vouches for types and ranges. The memory is written by kernels and peers only, never through
    // a Rust reference; the channel holds it and the stream retains the channel. A kernel that waits leaves when its
    // abort word is set.
    let launched = unsafe { function.launch_keeping(stream, config, &all[..=args.len()], keep) };
    stream.depend_on(channel.outcome());
    launched
}

/// Returns an error unless `slice` is memory of `context` with room for an aligned `T` at its beginning.
pub(super) fn check_result<T>(op: &'static str, context: &Context, slice: &DeviceSlice) -> Result<()> {
    let size = size_of::<T>();
    slice.check_context(op, context)?;
    if slice.len() < size || !slice.ptr().is_multiple_of(size as u64) {
        let message =
            format!("the result needs {size} aligned bytes, it has {} at {:#x}", slice.len(), slice.ptr());
        return Err(Error::usage(op, message));
    }
    Ok(())
}
