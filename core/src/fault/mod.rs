//! Faults on purpose: what shall fail, and when. For tests, and for rehearsing failure with an unchanged binary.
//!
//! [`DriverFaults`] answers in the driver's place ([`Driver::with_hooks`](crate::gpu::Driver::with_hooks)), on real GPUs
//! as on the software device. [`NetFaults`] is a [`Layer`](crate::net::Layer) between the library and its sockets. A
//! [`Plan`] is the text form of both, which `AQUEDUCT_FAULTS` takes; `docs/faults.md` describes it. Everything here only
//! decides; `gpu` and `net` carry it out. Equal rules and seeds make equal decisions.
#![forbid(unsafe_code)]

mod driver;
mod net;
mod plan;

pub use driver::{Calls, DriverFault, DriverFaults};
pub use net::{LinkKind, NetAction, NetFault, NetFaults};
pub(crate) use net::{Step, Track};
pub use plan::Plan;
