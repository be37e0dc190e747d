//! Multicast objects in the queue of `setup()`: one rank passes its descriptor on, and all promise to keep what they bind.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::exchange::Exchange;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::multicast::MulticastBinding;
use crate::ledger::holds::HoldId;
use crate::ledger::receipt::{Hold, Receipt};
use crate::setup::key::Key;
use crate::setup::message::Offer;
use crate::setup::pending::Pending;
use crate::setup::run::Item;
use crate::sync::raw::{AtomicU64, Ordering};
use crate::sync::{Mutex, lock};

const OP: &str = "exchange of a multicast object";

/// Number of the next place.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The place of this rank's binding to a multicast object. It may be empty when peers are promised that it stays: they keep it
/// until their kernels access it no more.
#[derive(Debug)]
pub(crate) struct BindingPlace {
    number: u64,
    binding: Mutex<Option<MulticastBinding>>,
}

impl BindingPlace {
    pub(crate) fn new() -> Self {
        Self { number: NEXT.fetch_add(1, Ordering::Relaxed), binding: Mutex::default() }
    }

    pub(crate) fn fill(&self, binding: MulticastBinding) {
        *lock(&self.binding) = Some(binding);
    }
}

/// The gift of a peer of the same multicast object. Dropped once this rank's kernels access the object no more.
#[derive(Debug)]
pub(crate) struct Teammate {
    /// Of the object, if the peer has made it.
    pub(crate) fd: Option<OwnedFd>,
    _receipts: Vec<Receipt>,
}

pub(crate) struct TeamItem {
    exchange: Arc<Exchange>,
    key: Key,
    fd: Option<OwnedFd>,
    place: Arc<BindingPlace>,
    pending: Pending<Arc<Teammate>>,
    made: Option<Arc<Teammate>>,
}

impl TeamItem {
    /// Gives the peer a descriptor, if this rank has made the object.
    pub(crate) fn new(
        exchange: Arc<Exchange>,
        key: Key,
        fd: Option<OwnedFd>,
        place: Arc<BindingPlace>,
        pending: Pending<Arc<Teammate>>,
    ) -> Self {
        Self { exchange, key, fd, place, pending, made: None }
    }
}

impl Item for TeamItem {
    fn key(&self) -> Key {
        self.key
    }

    fn offer(&mut self) -> Result<Offer<Hold>> {
        let hold =
            self.exchange.ledger.hold(HoldId::Binding(self.place.number), self.place.clone(), self.key.peer);
        Ok(Offer { body: Vec::new(), fds: self.fd.take().into_iter().collect(), holds: vec![hold] })
    }

    fn build(&mut self, offer: Offer<Receipt>, _: Deadline) -> Result<()> {
        let Offer { body, fds, holds } = offer;
        let promised: Vec<HoldId> = holds.iter().map(Receipt::id).collect();
        if !is_valid(&body, fds.len(), &promised) {
            let peer = self.key.peer;
            let message = format!("rank {peer} described its part of a multicast object in an invalid way");
            return Err(Error::new(ErrorKind::Remote, OP, message).with_peer(peer));
        }
        self.made = Some(Arc::new(Teammate { fd: fds.into_iter().next(), _receipts: holds }));
        Ok(())
    }

    fn finish(self: Box<Self>, result: Result<()>) {
        let Self { pending, made, .. } = *self;
        let missing = || Error::new(ErrorKind::Internal, OP, "an exchange ended without a result");
        pending.complete(result.and_then(|()| made.ok_or_else(missing)));
    }
}

/// Whether a peer's offer has the form of [`TeamItem::offer`].
fn is_valid(body: &[u8], fds: usize, promised: &[HoldId]) -> bool {
    body.is_empty() && fds <= 1 && matches!(promised, [HoldId::Binding(_)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_one_binding_and_at_most_one_descriptor() {
        let binding = HoldId::Binding(1);
        assert!(is_valid(b"", 0, &[binding]) && is_valid(b"", 1, &[binding]));
        for (body, fds, promised) in [
            (&b"x"[..], 0, &[binding][..]),
            (b"", 2, &[binding]),
            (b"", 0, &[]),
            (b"", 0, &[binding, binding]),
            (b"", 0, &[HoldId::Memory(1)]),
        ] {
            assert!(!is_valid(body, fds, promised), "{body:?}, {fds} descriptors, {promised:?}");
        }
    }
}
