//! The table of a program that links libibverbs itself, statically or not.

use std::ffi::{c_int, c_void};

use crate::api::VerbsTable;
use crate::bindings::*;
use crate::table::for_each_verbs_fn;

macro_rules! define_linked {
    ($({ $need:ident $symbol:ident $version:literal ($($arg:ident : $ty:ty),*) -> $ret:ty })*) => {
        mod symbols {
            use super::*;
            unsafe extern "C" {
                $(pub(super) fn $symbol($($arg: $ty),*) -> $ret;)*
            }
        }

        impl VerbsTable {
            /// The functions that the linker put into this program. Call [`static_providers!`](crate::static_providers)
            /// first if libibverbs is linked statically: it cannot load providers then.
            pub const fn linked() -> Self {
                Self { $($symbol: linked!($need $symbol),)* }
            }
        }
    };
}

macro_rules! linked {
    (required $symbol:ident) => {
        symbols::$symbol
    };
    (optional $symbol:ident) => {
        Some(symbols::$symbol)
    };
}

for_each_verbs_fn!(define_linked);

/// A provider's description; only its address means something.
#[derive(Debug)]
#[repr(C)]
pub struct Provider([u8; 0]);

// SAFETY: read by nobody but the C library, which never writes it.
unsafe impl Sync for Provider {}

/// Makes the named providers of a statically linked libibverbs known to it: `static_providers!(rxe, mlx5)`.
///
/// Each name is the `NAME` of a symbol `verbs_provider_NAME` in one of rdma-core's static libraries; `all` is all of them.
#[macro_export]
macro_rules! static_providers {
    ($($name:ident),+ $(,)?) => {{
        $({
            unsafe extern "C" {
                #[link_name = concat!("verbs_provider_", stringify!($name))]
                static PROVIDER: $crate::Provider;
            }
            // SAFETY: the symbol is a provider's description, by its name; it lives as long as the program.
            unsafe { $crate::register_static_providers(&raw const PROVIDER) };
        })+
    }};
}

/// # Safety
/// `provider` must be the address of a provider's description in rdma-core's static libraries.
pub unsafe fn register_static_providers(provider: *const Provider) {
    unsafe extern "C" {
        fn ibv_static_providers(unused: *mut c_void, ...) -> c_int;
    }
    // SAFETY: the list is one provider and the null that ends it, as verbs.h calls it.
    unsafe { ibv_static_providers(std::ptr::null_mut(), provider, std::ptr::null::<c_void>()) };
}
