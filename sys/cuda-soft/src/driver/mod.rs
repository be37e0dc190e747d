//! The driver API on top of the machine, with one family of calls per file.

mod capture;
mod context;
mod copy;
mod device;
mod dmabuf;
mod error;
mod event;
mod function;
mod graph;
mod host;
mod init;
mod ipc;
mod launch;
mod link;
mod memop;
mod memory;
mod module;
mod pointer;
mod stream;
mod user_object;
mod vmm;

#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};

use cuda_driver_sys::{CUresult, DriverTable};

pub(crate) use crate::abi::INVALID_VALUE;
use crate::abi::Result;
use crate::config;
use crate::machine::{Device, Machine, machine};
use crate::stream::host::in_callback;

/// Returns the driver API of the software device.
///
/// Functions that it does not have return `CUDA_ERROR_NOT_SUPPORTED` or are missing from the table, as with an old
/// driver. The same goes for those that [`Config::lacks`](crate::Config) names.
pub fn driver_table() -> DriverTable {
    let mut t = DriverTable::not_supported();
    init::install(&mut t);
    device::install(&mut t);
    context::install(&mut t);
    memory::install(&mut t);
    host::install(&mut t);
    pointer::install(&mut t);
    copy::install(&mut t);
    ipc::install(&mut t);
    stream::install(&mut t);
    event::install(&mut t);
    capture::install(&mut t);
    graph::install(&mut t);
    user_object::install(&mut t);
    module::install(&mut t);
    link::install(&mut t);
    function::install(&mut t);
    launch::install(&mut t);
    let lacks = config::current().map(|c| c.lacks).unwrap_or_default();
    if !lacks.vmm {
        vmm::install(&mut t);
    }
    if !lacks.stream_mem_ops {
        memop::install(&mut t);
    }
    if !lacks.dma_buf {
        dmabuf::install(&mut t);
    }
    t
}

/// Defines driver entries and `install`, which puts them into a table.
///
/// An argument marked `=> out` is a pointer to one result: the body gets an [`Out`](crate::abi::Out), and a null
/// pointer returns `CUDA_ERROR_INVALID_VALUE`. `=> input` and `=> cstr` read their argument likewise. The body returns
/// a [`Result`]; a panic in it becomes `CUDA_ERROR_UNKNOWN`.
macro_rules! entries {
    ($( $(#[$meta:meta])* fn $name:ident($($arg:ident : $ty:ty $(=> $convert:ident)?),* $(,)?) $body:block )*) => {
        pub(super) fn install(table: &mut ::cuda_driver_sys::DriverTable) {
            $(table.$name = crate::driver::Entry::from($name as unsafe extern "C" fn($($ty),*) -> ::cuda_driver_sys::CUresult).0.into();)*
        }
        $(
            $(#[$meta])*
            #[allow(non_snake_case, reason = "the name of the C API")]
            unsafe extern "C" fn $name($($arg: $ty),*) -> ::cuda_driver_sys::CUresult {
                crate::driver::entry(|| {
                    $($(
                        // SAFETY: by contract a pointer argument of a driver call is null or valid for the use that the
                        // API documents.
                        let $arg = unsafe { crate::abi::$convert($arg) }?;
                    )?)*
                    $body
                })
            }
        )*
    };
}
pub(crate) use entries;

/// Lets one line of `entries` install both required entries (`T`) and optional ones (`Option<T>`).
pub(crate) struct Entry<T>(pub(crate) T);

impl<T> From<T> for Entry<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

/// Runs the body of a driver call.
pub(crate) fn entry(body: impl FnOnce() -> Result) -> CUresult {
    if in_callback() {
        return CUresult::CUDA_ERROR_NOT_PERMITTED;
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => CUresult::CUDA_SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
    }
}

/// The machine and the current device, for calls that are forbidden during captures.
pub(crate) fn unsafe_call() -> Result<(&'static Machine, &'static Device)> {
    let machine = machine()?;
    let device = context::current(machine)?;
    machine.captures.permit_unsafe_call()?;
    Ok((machine, device))
}
