//! Defines the entries of the driver API. Each reads its arguments, refuses calls from callbacks, and turns a panic
//! into an error.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cuda_driver_sys::CUresult;

use crate::abi::Result;
use crate::stream::host::in_callback;

/// Defines driver entries and `install`, which puts them into a table.
///
/// An argument marked `=> out` is a pointer to one result: the body gets an [`Out`](crate::abi::Out), and a null
/// pointer returns `CUDA_ERROR_INVALID_VALUE`. `=> input` and `=> cstr` read their argument likewise. The body returns
/// a [`Result`]; a panic in it becomes `CUDA_ERROR_UNKNOWN`.
macro_rules! entries {
    ($( $(#[$meta:meta])* fn $name:ident($($arg:ident : $ty:ty $(=> $convert:ident)?),* $(,)?) $body:block )*) => {
        pub(super) fn install(table: &mut ::cuda_driver_sys::DriverTable) {
            use crate::driver::entry::Entry;
            $(
                let function = $name as unsafe extern "C" fn($($ty),*) -> ::cuda_driver_sys::CUresult;
                table.$name = Entry::from(function).0.into();
            )*
        }
        $(
            $(#[$meta])*
            #[allow(non_snake_case, reason = "the name of the C API")]
            unsafe extern "C" fn $name($($arg: $ty),*) -> ::cuda_driver_sys::CUresult {
                crate::driver::entry::call(|| {
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
pub(super) use entries;

/// Lets one line of `entries` install both required entries (`T`) and optional ones (`Option<T>`).
pub(super) struct Entry<T>(pub(super) T);

impl<T> From<T> for Entry<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

/// Runs the body of a driver call.
pub(super) fn call(body: impl FnOnce() -> Result) -> CUresult {
    if in_callback() {
        return CUresult::CUDA_ERROR_NOT_PERMITTED;
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => CUresult::CUDA_SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
    }
}
