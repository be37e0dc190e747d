//! Collectives over a communicator: [`Collective`] runs the built-in plans, or plans of the user's own, by kind and size;
//! [`VariableCollective`] those whose sizes only the device knows, [`PointToPoint`] any sends and receives. [`Barrier`] moves no data.

mod agreement;
mod barrier;
mod built_in;
mod call;
mod choosing;
mod config;
mod drafts;
mod entry;
mod geometry;
mod named;
mod plans;
mod point_to_point;
mod selector;
mod sizes;
#[cfg(all(test, not(loom)))]
mod tests;
mod tuning;
mod variable;

#[cfg(feature = "fuzzing")]
pub(crate) use agreement::fuzzing;
pub use barrier::Barrier;
pub use built_in::{Collective, CollectiveBuffers};
pub use config::CollectiveConfig;
pub use point_to_point::{PointToPoint, ReceiveBuffer};
pub use selector::PlanSelector;
pub use tuning::{Choice, Tuning};
pub use variable::{VariableBuffers, VariableCollective, VariableCounts};
