//! The shape of launches that all ranks make alike.

use crate::channel::Geometry;
use crate::comm::{Communicator, DriverKind};

/// The geometry of the smallest device of all ranks. Blocks of one index work together across ranks, so every rank must
/// launch the same grid; this is computed only from values that the ranks exchanged when they met.
pub(super) fn agreed_geometry(comm: &Communicator) -> Geometry {
    let devices = comm.peers().iter().filter_map(|peer| peer.device.as_ref());
    let sms = devices.clone().map(|device| device.multiprocessors).min().unwrap_or(1);
    Geometry { sms, software: devices.clone().any(|device| device.kind == DriverKind::Software) }
}
