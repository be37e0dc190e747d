//! Memory of the device: objects that processes share, where they are mapped, and who may touch them.

mod bell;
pub(crate) mod object;
mod space;

pub use bell::{Doorbell, sleep_any};
pub use space::{Rights, Space, Span, View};

/// The most devices a machine may have (rights are bit masks).
pub const MAX_DEVICES: usize = 64;
