//! Device memory: objects that processes share, their mappings, and access rights.

pub(crate) mod allocation;
pub(crate) mod backing;
pub(crate) mod budget;
mod event_count;
pub mod heap;
mod home;
pub(crate) mod import;
pub(crate) mod mapping;
pub(crate) mod multicast;
pub(crate) mod object;
pub(crate) mod physical;
pub(crate) mod place;
mod space;

pub use backing::EventCountRef;
pub use event_count::{EventCount, wait_any};
pub use home::Home;
pub use space::{Rights, Space, Span, View};

/// The maximum number of devices: rights are 64-bit masks.
pub const MAX_DEVICES: usize = 64;
