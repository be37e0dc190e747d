//! The wire between two processes of one host and user: a ring of shared memory for each direction.

mod bare;
#[cfg(feature = "fuzzing")]
pub(super) mod fuzzing;
mod memory;
#[cfg(all(test, loom))]
mod models;
mod protocol;
#[cfg(all(test, not(loom)))]
pub(in crate::message) mod tests;
mod wire;

pub use bare::BareRing;
pub(super) use memory::RingMemory;
pub(super) use wire::RingWire;

/// The rings of a link: the one that this side has made and reads, and the peer's, which it writes.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) inbound: RingMemory,
    pub(super) outbound: RingMemory,
}
