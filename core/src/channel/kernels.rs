//! The library's own kernels: instantiated for a context's device and loaded.

use aqueduct_ptx::{Target, abi, instantiate};

use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Context, Function, KernelParam, Module};

// SAFETY: repr(C) integers with every offset frozen by constant assertions; its PTX parameter is `.align 8 .b8[size]`.
unsafe impl KernelParam for abi::MemoryChannelHandle {}
// SAFETY: as above.
unsafe impl KernelParam for abi::ScratchRegion {}

/// Loads catalog row `kernel` with template parameters `params`; the functions come in the order of the row's entries.
pub(crate) fn load(context: &Context, kernel: &str, params: &[(&str, &str)]) -> Result<Vec<Function>> {
    let instance = instantiate(kernel, target(context)?, params)
        .map_err(|e| Error::new(ErrorKind::Internal, "instantiate kernel", e.to_string()))?;
    let module = Module::load_ptx(context, &instance.text)?;
    instance.entries.iter().map(|entry| module.function(entry)).collect()
}

fn target(context: &Context) -> Result<Target> {
    let capability = context.device().compute_capability()?;
    let (major, minor) = context.driver().version();
    let version = u32::try_from(major * 1000 + minor * 10).unwrap_or(0);
    Target::for_device(capability.major, capability.minor, version).ok_or_else(|| {
        let what = format!(
            "compute capability {capability} under CUDA {major}.{minor}: kernels need 7.0 and a driver of CUDA 9.0 or newer"
        );
        Error::new(ErrorKind::Unsupported, "instantiate kernel", what)
    })
}
