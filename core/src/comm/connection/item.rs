//! `connect()` in the queue of `setup()`.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::counters::Counters;
use super::{Connection, Inner};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::ledger::receipt::{Hold, Receipt};
use crate::setup::key::Key;
use crate::setup::message::Offer;
use crate::setup::pending::Pending;
use crate::setup::run::Item;
use crate::sync::{AtomicBool, AtomicU32};
use crate::transport::endpoint::{EndpointConfig, EndpointWire};
use crate::transport::provider::Draft;
use crate::transport::{Resources, table};

const OP: &str = "connect";

pub(crate) struct ConnectItem {
    resources: Arc<Resources>,
    key: Key,
    config: EndpointConfig,
    pending: Pending<Connection>,
    /// This rank's end, until the other is known.
    draft: Option<Box<dyn Draft>>,
    made: Option<Connection>,
}

impl ConnectItem {
    pub(crate) fn new(
        resources: Arc<Resources>,
        key: Key,
        config: EndpointConfig,
        pending: Pending<Connection>,
    ) -> Self {
        Self { resources, key, config, pending, draft: None, made: None }
    }
}

impl Item for ConnectItem {
    fn key(&self) -> Key {
        self.key
    }

    fn offer(&mut self) -> Result<Offer<Hold>> {
        let transport = self.config.transport;
        let draft = table::provider(transport).offer(&self.resources, self.key, &self.config)?;
        let body = EndpointWire { transport, detail: draft.describe() }.encode();
        self.draft = Some(draft);
        Ok(Offer { body, ..Offer::default() })
    }

    fn build(&mut self, offer: Offer<Receipt>, deadline: Deadline) -> Result<()> {
        let peer = self.key.peer;
        let theirs = EndpointWire::decode(&offer.body).map_err(|error| {
            let message = format!("rank {peer} asked for a transport that this version does not have");
            Error::new(ErrorKind::Remote, OP, message).with_peer(peer).with_source(error)
        })?;
        if !theirs.transport.matches(self.config.transport) {
            let message = format!(
                "{}: rank {peer} asked for {}, this rank for {}; name the same transport at both ends",
                self.key, theirs.transport, self.config.transport
            );
            return Err(Error::usage(OP, message).with_peer(peer));
        }
        let unoffered =
            || Error::new(ErrorKind::Internal, OP, "a connection was built before it was offered");
        let draft = self.draft.take().ok_or_else(unoffered)?;
        let backend = draft.accept(&self.resources, &theirs, deadline)?;
        let inner = Inner {
            group: self.resources.group.clone(),
            key: self.key,
            transport: self.config.transport,
            timeout: self.config.timeout,
            context: self.resources.context.clone(),
            backend,
            counters: Counters::default(),
            batches: AtomicU32::new(0),
            claimed: AtomicBool::new(false),
        };
        self.made = Some(Connection { inner: Arc::new(inner) });
        Ok(())
    }

    fn finish(self: Box<Self>, result: Result<()>) {
        let Self { pending, made, .. } = *self;
        let missing = || Error::new(ErrorKind::Internal, OP, "a connection ended without being made");
        pending.complete(result.and_then(|()| made.ok_or_else(missing)));
    }
}
