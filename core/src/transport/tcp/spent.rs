//! Memory that a connection's operations no longer use.

use std::sync::Arc;

use super::super::service::Disposer;
use super::piece::Payload;
use crate::memory::{Place, Remote};

/// Memory that operations no longer use. Its drop may wait for the device, and may end the communicator.
#[derive(Default)]
pub(super) struct Spent {
    pub(super) places: Vec<Place>,
    pub(super) remotes: Vec<Arc<Remote>>,
}

impl Spent {
    /// Has everything dropped by threads that may block.
    pub(super) fn dispose(self, disposer: &Disposer) {
        if !self.places.is_empty() {
            disposer.free(Arc::new(self.places));
        }
        if !self.remotes.is_empty() {
            disposer.dispose(self.remotes);
        }
    }

    pub(super) fn append(&mut self, mut other: Self) {
        self.places.append(&mut other.places);
        self.remotes.append(&mut other.remotes);
    }

    /// Takes the memory of a payload whose bytes are with the kernel, or are not sent.
    pub(super) fn take(&mut self, payload: Payload) {
        if let Payload::Host(host) = payload {
            self.places.push(Place::Host(host, None));
        }
    }
}
