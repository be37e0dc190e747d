//! The library's own kernels: instantiated for a context's device and loaded.

use std::path::Path;

use aqueduct_ptx::{Target, TemplateError, abi, entries, functions, instantiate, plan, sources};

use crate::digest;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Context, Function, KeptKernel, KernelParam, Module};

macro_rules! params {
    ($($structure:ident),*) => {
        $(
            // SAFETY: repr(C) integers with every offset frozen by constant assertions; its PTX parameter is
            // `.align 8 .b8[size]`.
            unsafe impl KernelParam for abi::$structure {}
        )*
    };
}
params!(MemoryChannelHandle, PortChannelHandle, FifoHandle, SemaphoreHandle, AbortHandle, GridBarrierHandle);
params!(ProxyTrigger);

/// Returns the kernels of catalog row `kernel` (see [`aqueduct_ptx::catalog`]) with template parameters `params`, in
/// the order of the row's entries. They are loaded once per context, and stay loaded while a caller holds one.
/// Launching one is `unsafe`: its contract is the row's documentation.
///
/// # Errors
/// `Internal` for an unknown row or parameter; `Unsupported` for a device or driver that is too old; a driver
/// error.
pub fn load_kernels(context: &Context, kernel: &str, params: &[(&str, &str)]) -> Result<Vec<Function>> {
    let wrong = |e: TemplateError| Error::new(ErrorKind::Internal, "load_kernels", e.to_string());
    let key = format!("aqueduct {kernel} {params:?}");
    let module = Module::load_cached(context, &key, || {
        let text = instantiate(kernel, target(context)?, params).map_err(wrong)?.text;
        let spinning = cfg!(feature = "without-abort-check");
        Module::load_ptx(context, &if spinning { without_abort_check(&text) } else { text })
    })?;
    entries(kernel, params).map_err(wrong)?.iter().map(|entry| module.function(entry)).collect()
}

/// Returns the kernel of a plan. It is loaded once per context, like those of [`load_kernels`], and compiled once per driver and
/// device if there is a folder to keep it in. With `others`, further threads load kernels meanwhile.
///
/// # Errors
/// `Plan` for a description that has no kernel, such as one with too many addresses; otherwise as for [`load_kernels`].
pub(crate) fn load_plan(
    context: &Context,
    kernel: &plan::Kernel,
    cache: Option<&Path>,
    others: bool,
) -> Result<Function> {
    let target = target(context)?;
    let described = digest::of(&(kernel, target));
    let module = Module::load_cached(context, &format!("aqueduct plan {described:02x?}"), || {
        let wrong = |e: TemplateError| Error::new(ErrorKind::Plan, "plan::lower", e.to_string());
        let text = || Ok(plan::render(kernel, target).map_err(wrong)?.text);
        let (symbol, writer) = (kernel.symbol.as_str(), &sources());
        let kept = KeptKernel { described, writer, symbol, param_bytes: kernel.args_bytes() };
        match cache {
            Some(cache) => Module::load_kept(context, cache, &kept, text),
            None if others => Module::load_beside_others(context, &text()?),
            None => Module::load_ptx(context, &text()?),
        }
    })?;
    module.function(&kernel.symbol)
}

/// Returns the entries of a row, or an error if their number is not what the caller expects.
pub(super) fn take<const N: usize>(functions: Vec<Function>) -> Result<[Function; N]> {
    functions.try_into().map_err(|have: Vec<_>| {
        let message = format!("a kernel file has {} entries instead of {N}", have.len());
        Error::new(ErrorKind::Internal, "load_kernels", message)
    })
}

/// Returns the device library for `context`'s device as PTX, to pass to [`Module::link_ptx`] beside a kernel of your
/// own. `include/aqueduct_device.ptx` of the package `aqueduct-ptx` declares them.
///
/// # Errors
/// `Unsupported` for a device or driver that is too old.
pub fn device_library(context: &Context) -> Result<String> {
    let wrong = |e: TemplateError| Error::new(ErrorKind::Internal, "device_library", e.to_string());
    Ok(functions(target(context)?).map_err(wrong)?.text)
}

/// Makes every wait spin for ever: in the `spin` fragment the branch back becomes unconditional, and the assembler
/// drops the code behind it.
fn without_abort_check(text: &str) -> String {
    let mut counted = false;
    let mut changed = String::with_capacity(text.len());
    for line in text.lines() {
        let code = line.trim_start();
        match code.split_once(' ').filter(|(guard, _)| counted && guard.starts_with('@')) {
            Some((_, branch)) => changed.push_str(branch),
            None => changed.push_str(line),
        }
        changed.push('\n');
        counted = code.starts_with("setp.gt.s32 %sn_p") || counted && code.starts_with("sub.u32");
    }
    changed
}

/// A version of CUDA as its driver writes it.
fn number(major: i32, minor: i32) -> u32 {
    u32::try_from(major * 1000 + minor * 10).unwrap_or(0)
}

fn target(context: &Context) -> Result<Target> {
    let capability = context.device().compute_capability()?;
    let (major, minor) = context.driver().version();
    Target::for_device(capability.major, capability.minor, number(major, minor)).ok_or_else(|| {
        let what = format!(
            "compute capability {capability} under CUDA {major}.{minor}: kernels need 7.0 and a driver of CUDA 9.0 or newer"
        );
        Error::new(ErrorKind::Unsupported, "load_kernels", what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers_as_the_driver_writes_them() {
        assert_eq!(
            [(9, 0), (12, 8), (13, 1)].map(|(major, minor)| number(major, minor)),
            [9000, 12_080, 13_010]
        );
    }

    #[test]
    fn only_the_branch_back_of_a_wait_is_changed() {
        let target = Target::for_device(8, 0, 12_040).unwrap();
        let text = instantiate("perf", target, &[("MODE", "ll16")]).unwrap().text;
        let changed = without_abort_check(&text);
        let differing: Vec<_> = text.lines().zip(changed.lines()).filter(|(a, b)| a != b).collect();
        assert!(!differing.is_empty(), "the fragment of waits has another form now");
        for (before, after) in differing {
            assert!(before.trim_start().starts_with("@%sn_p") && before.ends_with(after), "{before} {after}");
            assert!(after.starts_with("bra "), "{after}");
        }
        assert_eq!(text.lines().count(), changed.lines().count());
    }
}
