//! `build_semaphore()` and its kin in the queue of `setup()`.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::Ends;
use crate::comm::connection::Connection;
use crate::comm::semaphore::Site;
use crate::comm::tokens::{SLOT_BYTES, Side, TokenSlot};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::memory::ledger::HoldId;
use crate::setup::key::Key;
use crate::setup::mailbox::Offer;
use crate::setup::pending::{Dependency, Pending};
use crate::setup::run::Item;
use crate::transport::endpoint::Transport;

const OP: &str = "build_semaphore";

/// One of the sorts of semaphores.
pub(crate) trait Flavour: Clone + Send + 'static {
    /// Its number on the wire.
    const NUMBER: u8;
    /// Its name in messages.
    const NAME: &'static str;
    /// Where it is waited for.
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
    held: Vec<HoldId>,
    made: Option<S>,
}

impl<S: Flavour> SemaphoreItem<S> {
    pub(crate) fn new(
        site: Arc<Site>,
        key: Key,
        dependency: Dependency<Connection>,
        pending: Pending<S>,
    ) -> Self {
        Self { site, key, dependency, pending, connection: None, slot: None, held: Vec::new(), made: None }
    }

    fn make_offer(&mut self, connection: Connection) -> Result<Offer> {
        if !connection.belongs_to(&self.site.exchange.group) {
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
        let slot = self.site.tokens.pool(S::SIDE)?.claim()?;
        let words = slot.memory(&self.site.resources, connection.transport())?;
        let mut export = memory::export(&self.site.exchange, &words, self.key.peer)?;
        self.held.extend(export.hold_ids());
        let Offer { body, fds } = export.offer(&self.site.exchange);
        self.held.push(HoldId::Token(slot.number()));
        self.site.exchange.ledger.hold(HoldId::Token(slot.number()), slot.clone(), self.key.peer);
        let mut offer = vec![S::NUMBER];
        offer.extend(slot.number().to_le_bytes());
        offer.extend(body);
        self.connection = Some(connection);
        self.slot = Some(slot);
        Ok(Offer { body: offer, fds })
    }
}

impl<S: Flavour> Item for SemaphoreItem<S> {
    fn key(&self) -> Key {
        self.key
    }

    fn offer(&mut self) -> Option<Result<Offer>> {
        match self.dependency.outcome()? {
            Ok(connection) => Some(self.make_offer(connection)),
            Err(error) => {
                let message = format!("{}: its connection failed: {}", self.key, error.message());
                Some(Err(Error::new(error.kind(), OP, message).with_peer(self.key.peer)))
            }
        }
    }

    fn build(&mut self, offer: Offer, _: Deadline) -> Result<()> {
        let peer = self.key.peer;
        let invalid = || {
            let message = format!("rank {peer} described its semaphore in an invalid way");
            Error::new(ErrorKind::Remote, OP, message).with_peer(peer)
        };
        let Offer { mut body, fds } = offer;
        let head: [u8; 9] = *body.first_chunk().ok_or_else(invalid)?;
        body.drain(..head.len());
        if head[0] != S::NUMBER {
            let message = format!(
                "{}: rank {peer} builds another sort of semaphore than {}; ask for the same at both ends",
                self.key,
                S::NAME
            );
            return Err(Error::usage(OP, message).with_peer(peer));
        }
        let mut slot = [0; 8];
        slot.copy_from_slice(&head[1..]);
        let their_slot = u64::from_le_bytes(slot);
        let (Some(connection), Some(slot)) = (self.connection.take(), self.slot.take()) else {
            return Err(Error::new(ErrorKind::Internal, OP, "a semaphore was built before it was offered"));
        };
        let mine = slot.memory(&self.site.resources, connection.transport())?;
        // Last: from here on the peer keeps memory and slot until nothing of this rank uses them.
        let with = Some(HoldId::Token(their_slot));
        let theirs = memory::import(&self.site.exchange, peer, Offer { body, fds }, with)?;
        if theirs.len() != SLOT_BYTES || !theirs.ptr().is_multiple_of(8) {
            return Err(invalid());
        }
        let ends = Ends { site: self.site.clone(), connection, mine, theirs, slot };
        self.made = Some(S::over(ends));
        Ok(())
    }

    fn refused(&mut self) {
        for id in self.held.drain(..) {
            self.site.exchange.ledger.unhold(id, self.key.peer);
        }
    }

    fn finish(self: Box<Self>, result: Result<()>) {
        let Self { pending, made, .. } = *self;
        let missing = || Error::new(ErrorKind::Internal, OP, "a semaphore ended without being made");
        pending.complete(result.and_then(|()| made.ok_or_else(missing)));
    }
}
