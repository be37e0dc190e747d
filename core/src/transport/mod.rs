//! The ways in which data gets from one rank to another, one folder or file each.

pub(crate) mod backend;
mod completion;
pub(crate) mod endpoint;
pub(crate) mod ipc;
pub(crate) mod resources;
pub(crate) mod tcp;
pub(crate) mod verbs;

use backend::{Backend, ConnectionCounters, Span};
pub(crate) use resources::Resources;
