//! Memory that ranks have named to each other.

mod allocation;
mod exchange;
mod export;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod host;
mod import;
mod imports;
mod items;
mod place;
mod regions;
mod register;
mod registered;
pub(crate) mod registry;
mod remote;
pub(crate) mod rights;
mod teams;
#[cfg(test)]
mod tests;
pub(crate) mod transports;
mod wire;

pub(crate) use exchange::Exchange;
pub(crate) use export::export;
pub use host::HostBuffer;
pub(crate) use host::HostSlice;
pub(crate) use import::import;
pub(crate) use items::{RecvItem, SendItem};
pub(crate) use place::Place;
#[cfg(all(test, not(loom)))]
pub(crate) use regions::Grant;
pub(crate) use regions::{Regions, Use};
pub(crate) use register::{register_buffer, register_host, register_raw};
pub use registered::RegisteredMemory;
pub(crate) use remote::Remote;
pub use rights::{Registration, Rights};
pub(crate) use teams::{BindingPlace, TeamItem, Teammate};
