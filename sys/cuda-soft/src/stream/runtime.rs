//! The parts of the machine that work uses while it runs.

use std::sync::Arc;

use super::host::HostThread;
use crate::check::Checker;
use crate::exec::{Engine, Services};
use crate::mem::Space;
use crate::mem::allocation::Allocations;
use crate::sticky::StickyError;

/// Everything that work uses while it runs. Work in flight keeps it alive.
#[derive(Debug)]
pub(crate) struct Runtime {
    pub(crate) engine: Engine,
    pub(crate) space: Arc<Space>,
    pub(crate) allocations: Arc<Allocations>,
    pub(crate) host: HostThread,
    /// The sticky error of each device's context.
    pub(crate) errors: Vec<StickyError>,
    /// The output and the heap of each device.
    pub(crate) services: Vec<Arc<Services>>,
    /// The race detector, if it is on.
    pub(crate) checker: Option<Arc<Checker>>,
}
