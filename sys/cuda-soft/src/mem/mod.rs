//! Device memory: objects that processes share, their mappings, and access rights.

pub(crate) mod allocation;
mod bell;
pub(crate) mod budget;
pub(crate) mod import;
pub(crate) mod mapping;
pub(crate) mod object;
pub(crate) mod physical;
mod space;

pub use bell::{Doorbell, sleep_any};
pub use object::Bell;
pub use space::{Rights, Space, Span, View};

/// The maximum number of devices: rights are 64-bit masks.
pub const MAX_DEVICES: usize = 64;
