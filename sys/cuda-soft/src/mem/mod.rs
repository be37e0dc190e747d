//! Memory of the device: objects that processes share, where they are mapped, and who may touch them.

pub(crate) mod allocation;
mod bell;
pub(crate) mod mapping;
pub(crate) mod object;
pub(crate) mod physical;
mod space;

pub use bell::{Doorbell, sleep_any};
pub use object::Bell;
pub use space::{Rights, Space, Span, View};

/// The most devices a machine may have (rights are bit masks).
pub const MAX_DEVICES: usize = 64;
