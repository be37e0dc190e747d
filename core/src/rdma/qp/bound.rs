//! The port and peer that a queue pair is bound to.

use crate::rdma::address::QpAddress;
use crate::rdma::choose::Port;
use crate::rdma::settings::Settings;

/// The port, settings and peer of a queue pair, from the transition to the state Init on.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    pub(super) port: Port,
    pub(super) settings: Settings,
    /// Set by the transition to the state ReadyToReceive.
    pub(super) peer: Option<QpAddress>,
}
