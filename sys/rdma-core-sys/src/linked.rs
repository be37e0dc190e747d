//! The table for programs that link libibverbs themselves, statically or dynamically.

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
            /// The functions of the libibverbs that this program links. If it is linked statically it cannot load
            /// providers, so call [`static_providers!`](crate::static_providers) first.
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

/// The description of a provider. Rust code uses only its address.
#[derive(Debug)]
#[repr(C)]
pub struct Provider([u8; 0]);

// SAFETY: only the C library reads it, and nothing writes it.
unsafe impl Sync for Provider {}

/// Registers providers with a statically linked libibverbs: `static_providers!(rxe, mlx5)`.
///
/// Each name is the `NAME` of a symbol `verbs_provider_NAME` in one of rdma-core's static libraries; `all` stands for
/// all of them.
#[macro_export]
macro_rules! static_providers {
    ($($name:ident),+ $(,)?) => {{
        $({
            unsafe extern "C" {
                #[link_name = concat!("verbs_provider_", stringify!($name))]
                static PROVIDER: $crate::Provider;
            }
            // SAFETY: a symbol of this name is a provider's description, and lives as long as the program.
            unsafe { $crate::register_static_providers(&raw const PROVIDER) };
        })+
    }};
}

/// Registers one provider. Use [`static_providers!`](crate::static_providers) instead.
///
/// # Safety
/// `provider` is the address of a provider's description in rdma-core's static libraries.
pub unsafe fn register_static_providers(provider: *const Provider) {
    unsafe extern "C" {
        fn ibv_static_providers(unused: *mut c_void, ...) -> c_int;
    }
    // SAFETY: the arguments are one provider and the null that ends the list, as verbs.h passes them.
    unsafe { ibv_static_providers(std::ptr::null_mut(), provider, std::ptr::null::<c_void>()) };
}
