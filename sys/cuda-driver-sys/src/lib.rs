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
    reason = "generated from cuda.h: the names and shapes of the C API"
)]
mod bindings;
mod load;
mod table;

pub use api::{DriverTable, FUNCTIONS, Function};
pub use bindings::*;
pub use load::{LIBRARY_NAMES, LoadError, Loaded, load};
