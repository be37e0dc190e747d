//! The race detector: finds accesses of kernels, copies and stream operations that nothing orders.
//!
//! Switched on by `AQUEDUCT_SOFT_CHECK=races`. It follows PTX ISA's memory consistency model with vector clocks
//! (FastTrack, Flanagan and Freund 2009): program order, barriers, release and acquire patterns with their scopes,
//! `fence.sc`, `fence.proxy.alias`, and the order of streams, events and graphs. A race ends the kernel, and both source
//! lines are printed.
//!
//! The host's own loads and stores are not seen. So its threads count as one thread, which
//! - learns what a kernel publishes with system scope in host memory, at once;
//! - learns what work did when it asks whether the work is done, waits for it, or is in a function that is behind it in a stream;
//! - orders what it knows before the work that it submits, and before what a kernel acquires through a value that neither a
//!   kernel nor a stream wrote ([`values`]).
//!
//! All of that makes more things ordered than the host may order: a reported race is one, and a missing order through
//! the host can go unseen. Only one process is seen: devices are the ranks.
//!
//! With `AQUEDUCT_SOFT_CHECK=races,weak` loads also return old values where the memory model allows it
//! ([`history`], [`strong`]), by the choices of a seed ([`chance`]).

mod access;
mod blocks;
mod chance;
mod clock;
mod history;
mod reads;
mod room;
mod scope;
mod shadow;
mod shared;
mod sources;
mod stamp;
mod state;
mod strong;
mod sync;
mod values;
mod warp;
mod work;

pub(crate) use chance::Chance;
pub(crate) use history::Line;
pub(crate) use shadow::Object;
pub(crate) use sources::Source;
pub(crate) use state::{Checker, State};
pub(crate) use strong::{Update, line};
pub(crate) use warp::{Meeting, Spot, Warp};
pub(crate) use work::{Failure, Past, TOO_MUCH, Work};
