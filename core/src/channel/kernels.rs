//! The library's own kernels: instantiated for a context's device and loaded.

use aqueduct_ptx::{Target, TemplateError, abi, entries, instantiate};

use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Context, Function, KernelParam, Module};

// SAFETY: repr(C) integers with every offset frozen by constant assertions; its PTX parameter is `.align 8 .b8[size]`.
unsafe impl KernelParam for abi::MemoryChannelHandle {}
// SAFETY: as above.
unsafe impl KernelParam for abi::ScratchRegion {}

/// The kernels of catalog row `kernel` (see [`aqueduct_ptx::catalog`]) with template parameters `params`, in the order of
/// the row's entries. Loaded once per context as long as anybody holds them. Launching one is `unsafe`: its contract is
/// the row's documentation.
///
/// # Errors
/// `Internal` for an unknown row or parameter; `Unsupported` for a device or driver that is too old; what the driver says.
pub fn load_kernels(context: &Context, kernel: &str, params: &[(&str, &str)]) -> Result<Vec<Function>> {
    let wrong = |e: TemplateError| Error::new(ErrorKind::Internal, "instantiate kernel", e.to_string());
    let key = format!("aqueduct {kernel} {params:?}");
    let module = Module::load_cached(context, &key, || {
        Ok(instantiate(kernel, target(context)?, params).map_err(wrong)?.text)
    })?;
    entries(kernel, params).map_err(wrong)?.iter().map(|entry| module.function(entry)).collect()
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
