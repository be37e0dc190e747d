//! Fault injection: rules that say what fails and when. For tests, and for rehearsing failures with an unchanged
//! binary.
//!
//! [`DriverFaults`] makes driver calls fail ([`Driver::with_hooks`](crate::gpu::Driver::with_hooks)), on real GPUs
//! as on the software device. [`NetFaults`] is a [`Layer`](crate::net::Layer) between the library and its sockets. A
//! [`Rules`] is the text form of both that `AQUEDUCT_FAULTS` takes; `docs/faults.md` describes it. This module only
//! decides; `gpu` and `net` apply the decisions. The same rules and seed give the same decisions.
#![forbid(unsafe_code)]

mod driver;
mod net;
mod position;
mod rules;

pub use driver::{Calls, DriverFault, DriverFaults};
pub(crate) use net::{GATHERING, Step, Take, Track};
pub use net::{LinkKind, NetAction, NetFault, NetFaults};
pub use rules::Rules;
