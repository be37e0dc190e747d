//! `send_memory()` and `recv_memory()` in the queue of `setup()`.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::exchange::Exchange;
use super::export::Export;
use super::import::import;
use super::registered::RegisteredMemory;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::ledger::receipt::{Hold, Receipt};
use crate::setup::key::Key;
use crate::setup::message::Offer;
use crate::setup::pending::Pending;
use crate::setup::run::Item;

pub(crate) struct SendItem {
    exchange: Arc<Exchange>,
    key: Key,
    /// Keeps the memory until the peer has it, whatever the user drops meanwhile.
    export: Export,
    pending: Pending<()>,
}

impl SendItem {
    pub(crate) fn new(exchange: Arc<Exchange>, key: Key, export: Export, pending: Pending<()>) -> Self {
        Self { exchange, key, export, pending }
    }
}

impl Item for SendItem {
    fn key(&self) -> Key {
        self.key
    }

    fn offer(&mut self) -> Result<Offer<Hold>> {
        self.export.offer(&self.exchange)
    }

    /// The peer's offer to receive has nothing in it.
    fn build(&mut self, _: Offer<Receipt>, _: Deadline) -> Result<()> {
        Ok(())
    }

    fn finish(self: Box<Self>, result: Result<()>) {
        self.pending.complete(result);
    }
}

pub(crate) struct RecvItem {
    exchange: Arc<Exchange>,
    key: Key,
    pending: Pending<RegisteredMemory>,
    made: Option<RegisteredMemory>,
}

impl RecvItem {
    pub(crate) fn new(exchange: Arc<Exchange>, key: Key, pending: Pending<RegisteredMemory>) -> Self {
        Self { exchange, key, pending, made: None }
    }
}

impl Item for RecvItem {
    fn key(&self) -> Key {
        self.key
    }

    fn offer(&mut self) -> Result<Offer<Hold>> {
        Ok(Offer::default())
    }

    fn build(&mut self, offer: Offer<Receipt>, _: Deadline) -> Result<()> {
        self.made = Some(import(&self.exchange, self.key.peer, offer)?);
        Ok(())
    }

    fn finish(self: Box<Self>, result: Result<()>) {
        let Self { pending, made, .. } = *self;
        let missing =
            || Error::new(ErrorKind::Internal, "recv_memory", "a memory ended without being received");
        pending.complete(result.and_then(|()| made.ok_or_else(missing)));
    }
}
