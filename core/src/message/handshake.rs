//! A handshake under way, from the moment at which this side tells its life until there is a link.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::hub::Hub;
use super::member::Member;

/// Has whoever ends the peer wait: the peer may already count on a link that this side does not have yet, and has to hear a
/// goodbye on it.
pub(super) struct Handshake {
    hub: Arc<Hub<Member>>,
    rank: u32,
    generation: u64,
    /// The life that the peer is told.
    pub(super) life: u32,
}

impl Handshake {
    pub(super) fn begin(hub: &Arc<Hub<Member>>, rank: u32, generation: u64) -> Self {
        Self { hub: hub.clone(), rank, generation, life: hub.lives.begin_handshake(rank, generation) }
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.hub.lives.end_handshake(self.rank, self.generation);
        // Progress may wait for it to end a peer that has left.
        self.hub.alarm.wake();
    }
}
