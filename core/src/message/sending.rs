//! Long data under way, on the side of the sender.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::inbox::Item;
use super::line::Line;
use super::member::Member;
use crate::error::{Error, ErrorKind};
use crate::sync::lock;

/// Long data under way. Dropping it changes nothing.
#[derive(Debug)]
pub struct Sending {
    member: Arc<Member>,
    line: Arc<Line>,
    serial: u64,
}

impl PartialEq for Sending {
    /// Whether both are the same message.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.line, &other.line) && self.serial == other.serial
    }
}

impl Eq for Sending {}

impl Sending {
    pub(super) fn new(member: &Arc<Member>, line: &Arc<Line>, serial: u64) -> Self {
        Self { member: member.clone(), line: line.clone(), serial }
    }

    /// Takes the data back: its completion gets an `Aborted` error soon, after which nobody can read the data any more. The message
    /// arrives all the same; the receiver's read fails with `Remote`, as that of a revoked token. `Aborted` does not say that the
    /// receiver has no copy: its answer may have been on the way. False if it has ended already, and in a forked child.
    pub fn cancel(&self) -> bool {
        let member = &self.member;
        if member.hub.forked() {
            return false;
        }
        let error = Error::new(ErrorKind::Aborted, "send_long", "the long data was taken back")
            .with_peer(member.rank);
        let mut offers = lock(&self.line.offers);
        let Some(ended) = offers.cancel(self.serial, error) else { return false };
        // Under the lock: whoever closes the messenger meanwhile ends the offers and then runs what was delivered.
        member.deliver(Item::Long(ended));
        drop(offers);
        member.found_room();
        true
    }

    /// As if so many more had been sent.
    #[cfg(all(test, not(loom)))]
    pub(super) fn skip(&self, count: u64) {
        lock(&self.line.offers).skip(count);
    }
}
