#![doc = include_str!("../README.md")]

mod api;
#[allow(
    missing_docs,
    missing_debug_implementations,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    clippy::all,
    clippy::pedantic,
    unreachable_pub,
    unused_qualifications,
    clippy::allow_attributes_without_reason,
    clippy::undocumented_unsafe_blocks,
    clippy::ptr_as_ptr,
    reason = "generated from verbs.h: the names and shapes of the C API"
)]
mod bindings;
mod inline;
// Some structs contain lock types whose sizes depend on architecture and C library. The assertions in `layout` hold for
// this one only; elsewhere the structs use the definitions of the `libc` crate.
#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    unused_qualifications,
    reason = "generated from verbs.h: assertions only"
)]
mod layout;
#[cfg(feature = "linked")]
mod linked;
mod load;
mod table;

pub use api::{FUNCTIONS, Function, VerbsTable};
pub use bindings::*;
pub use inline::*;
#[cfg(feature = "linked")]
#[doc(hidden)]
pub use linked::{Provider, register_static_providers};
pub use load::{LIBRARY_NAMES, LoadError, Loaded, load};
