//! `build_semaphore()` and its kin in the queue of `setup()`.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::ends::{Ends, Site};
use crate::comm::connection::Connection;
use crate::comm::tokens::{SLOT_BYTES, Side, TokenSlot};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::ledger::holds::HoldId;
use crate::ledger::receipt::{Hold, Receipt};
use crate::memory;
use crate::setup::key::Key;
use crate::setup::message::Offer;
use crate::setup::pending::{Dependency, Pending};
use crate::setup::run::Item;
use crate::transport::endpoint::Transport;

const OP: &str = "build_semaphore";

/// One kind of semaphore.
pub(crate) trait Flavour: Clone + Send + 'static {
    /// Its number in messages between ranks.
    const NUMBER: u8;
    /// Its name in messages to users.
    const NAME: &'static str;
    /// Where its waits run.
    const SIDE: Side;
    /// Whether devices signal it, and so must have the peer's words mapped.
    const NEEDS_MAPPING: bool;

    fn over(ends: Ends) -> Self;
}

pub(crate) struct SemaphoreItem<S> {
    site: Arc<Site>,
    key: Key,
    dependency: Dependency<Connection>,
    pending: Pending<S>,
    connection: Option<Connection>,
    slot: Option<Arc<TokenSlot>>,
    made: Option<S>,
}

impl<S: Flavour> SemaphoreItem<S> {
    pub(crate) fn new(
        site: Arc<Site>,
        key: Key,
        dependency: Dependency<Connection>,
        pending: Pending<S>,
    ) -> Self {
        Self { site, key, dependency, pending, connection: None, slot: None, made: None }
    }

    /// `Ok` if a semaphore of this kind can be built on `connection`.
    fn check(&self, connection: &Connection) -> Result<()> {
        if !connection.group().is(&self.site.exchange.group) {
            return Err(Error::usage(OP, "the connection is of another communicator"));
        }
        if S::NEEDS_MAPPING && connection.transport() != Transport::CudaIpc {
            let message = format!(
                "a {} semaphore needs CudaIpc; this connection is {}, over which hosts signal: build_host2device_semaphore",
                S::NAME,
                connection.transport()
            );
            return Err(Error::usage(OP, message));
        }
        Ok(())
    }
}

impl<S: Flavour> Item for SemaphoreItem<S> {
    fn key(&self) -> Key {
        self.key
    }

    fn ready(&mut self) -> Option<Result<()>> {
        Some(match self.dependency.outcome()? {
            Ok(connection) => self.check(&connection).map(|()| self.connection = Some(connection)),
            Err(error) => {
                let message = format!("{}: its connection failed: {}", self.key, error.message());
                Err(Error::new(error.kind(), OP, message).with_peer(self.key.peer))
            }
        })
    }

    /// The kind of semaphore in one byte, and its words as a memory.
    fn offer(&mut self) -> Result<Offer<Hold>> {
        let Some(connection) = &self.connection else { return Err(out_of_order()) };
        let (exchange, peer) = (&self.site.exchange, self.key.peer);
        let slot = self.site.tokens.pool(S::SIDE)?.claim()?;
        let words = slot.memory(&self.site.resources, connection.transport())?;
        let mut offer = memory::export(exchange, &words, peer)?.offer(exchange)?;
        offer.body.insert(0, S::NUMBER);
        offer.holds.push(exchange.ledger.hold(HoldId::Token(slot.number()), slot.clone(), peer));
        self.slot = Some(slot);
        Ok(offer)
    }

    fn build(&mut self, offer: Offer<Receipt>, _: Deadline) -> Result<()> {
        let peer = self.key.peer;
        let invalid = || {
            let message = format!("rank {peer} described its semaphore in an invalid way");
            Error::new(ErrorKind::Remote, OP, message).with_peer(peer)
        };
        let Offer { mut body, fds, holds } = offer;
        let kind = *body.first().ok_or_else(invalid)?;
        body.remove(0);
        if kind != S::NUMBER {
            let message = format!(
                "{}: rank {peer} builds another kind of semaphore than {}; ask for the same at both ends",
                self.key,
                S::NAME
            );
            return Err(Error::usage(OP, message).with_peer(peer));
        }
        if !holds.iter().any(|receipt| matches!(receipt.id(), HoldId::Token(_))) {
            return Err(invalid());
        }
        let (Some(connection), Some(slot)) = (self.connection.take(), self.slot.take()) else {
            return Err(out_of_order());
        };
        let mine = slot.memory(&self.site.resources, connection.transport())?;
        // The hold on the memory has all receipts: the peer keeps memory and slot until nothing of this rank uses them.
        let theirs = memory::import(&self.site.exchange, peer, Offer { body, fds, holds })?;
        if theirs.len() != SLOT_BYTES || !theirs.ptr().is_multiple_of(8) {
            return Err(invalid());
        }
        if let Some(kernels) = connection.kernel_abort() {
            self.site.abort.follow(peer, kernels);
        }
        let ends = Ends { site: self.site.clone(), connection, mine, theirs, slot };
        self.made = Some(S::over(ends));
        Ok(())
    }

    fn finish(self: Box<Self>, result: Result<()>) {
        let Self { pending, made, .. } = *self;
        let missing = || Error::new(ErrorKind::Internal, OP, "a semaphore ended without being made");
        pending.complete(result.and_then(|()| made.ok_or_else(missing)));
    }
}

#[cold]
fn out_of_order() -> Error {
    Error::new(ErrorKind::Internal, OP, "a semaphore was built before it was offered")
}
