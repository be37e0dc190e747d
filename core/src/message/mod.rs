//! Messages and remote reads between processes: point to point, without a GPU. Memory of GPUs joins by a contract.

mod address;
mod alarm;
mod announcing;
mod batch;
mod burials;
mod burying;
mod carrier;
mod config;
mod connecting;
mod copying;
mod credit;
mod departures;
pub(crate) mod device;
mod dispatch;
mod door;
mod driving;
mod engine;
mod expiring;
mod exposed;
mod farewell;
mod fetches;
mod fetching;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub(crate) mod guarding;
mod handing;
mod handlers;
mod handshake;
mod head;
mod hello;
mod hub;
mod inbox;
mod incoming;
mod keys;
mod lent;
mod line;
mod linking;
mod links;
mod lives;
mod long;
mod mappings;
mod member;
mod memory;
mod messenger;
mod offers;
mod one_sided;
mod peer;
mod placing;
mod progress;
mod read;
mod reading;
mod reading_into;
mod reads;
mod received;
mod resources;
mod revocation;
mod ring;
mod room;
mod sending;
mod sent;
mod serving;
mod shared;
mod shared_part;
mod sleeping;
mod staging;
mod tcp;
mod tending;
mod thread;
mod tokens;
mod transfer;
mod transfers;
mod unknown;
mod untold;
mod verbs;
mod wire;

#[cfg(all(test, not(loom)))]
mod bounds_tests;
#[cfg(all(test, not(loom)))]
mod device_bounds_tests;
#[cfg(all(test, not(loom)))]
mod ends_tests;
#[cfg(all(test, not(loom)))]
mod hostile_tests;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(all(test, not(loom)))]
#[path = "tests/mod.rs"]
#[allow(clippy::duplicate_mod, reason = "the same tests over another wire")]
mod tests_over_rings;
#[cfg(all(test, not(loom)))]
#[path = "tests/mod.rs"]
#[allow(clippy::duplicate_mod, reason = "the same tests over another wire")]
mod tests_over_verbs;

#[doc(hidden)]
pub use ring::BareRing;

pub use crate::net::{Secret, SecretText};
pub use address::Address;
pub use config::{MAX_EAGER, MessengerConfig};
pub use device::Target;
pub use dispatch::PeerEvent;
pub use exposed::Exposed;
pub use handlers::Queue;
pub use long::Long;
pub use memory::Memory;
pub use messenger::Messenger;
pub use offers::Delivery;
pub use peer::Peer;
pub use read::Read;
pub use received::Message;
pub use sending::Sending;
pub use sent::{Begun, Reason, Refused, Sent};
pub use shared::SharedMemory;
pub use shared_part::SharedPart;
pub use tokens::Token;
