//! `send_memory()` and `recv_memory()` in the queue of `setup()`.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::{Export, RegisteredMemory};
use crate::comm::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::ledger::HoldId;
use crate::setup::key::Key;
use crate::setup::mailbox::Offer;
use crate::setup::pending::Pending;
use crate::setup::run::Item;

pub(crate) struct SendItem {
    key: Key,
    /// Keeps the memory until the peer has it, whatever the user drops meanwhile.
    export: Export,
    held: Vec<HoldId>,
    pending: Pending<()>,
}

impl SendItem {
    pub(crate) fn new(key: Key, export: Export, pending: Pending<()>) -> Self {
        Self { key, export, held: Vec::new(), pending }
    }
}

impl Item for SendItem {
    fn key(&self) -> Key {
        self.key
    }

    fn offer(&mut self, core: &Arc<Core>) -> Option<Result<Offer>> {
        self.held = self.export.hold_ids();
        Some(Ok(self.export.offer(core)))
    }

    /// The peer's offer to receive has nothing in it.
    fn build(&mut self, _: &Arc<Core>, _: Offer) -> Result<()> {
        Ok(())
    }

    fn refused(&mut self, core: &Arc<Core>) {
        for id in self.held.drain(..) {
            core.control().unhold(id, self.key.peer);
        }
    }

    fn finish(self: Box<Self>, _: &Arc<Core>, result: Result<()>) {
        self.pending.complete(result);
    }
}

pub(crate) struct RecvItem {
    key: Key,
    pending: Pending<RegisteredMemory>,
    made: Option<RegisteredMemory>,
}

impl RecvItem {
    pub(crate) fn new(key: Key, pending: Pending<RegisteredMemory>) -> Self {
        Self { key, pending, made: None }
    }
}

impl Item for RecvItem {
    fn key(&self) -> Key {
        self.key
    }

    fn offer(&mut self, _: &Arc<Core>) -> Option<Result<Offer>> {
        Some(Ok(Offer::default()))
    }

    fn build(&mut self, core: &Arc<Core>, offer: Offer) -> Result<()> {
        self.made = Some(super::import(core, self.key.peer, offer)?);
        Ok(())
    }

    fn finish(self: Box<Self>, _: &Arc<Core>, result: Result<()>) {
        let Self { pending, made, .. } = *self;
        let missing =
            || Error::new(ErrorKind::Internal, "recv_memory", "a memory ended without being received");
        pending.complete(result.and_then(|()| made.ok_or_else(missing)));
    }
}
