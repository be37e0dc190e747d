//! `connect()` in the queue of `setup()`.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::{Connection, Counters, Inner};
use crate::error::{Error, ErrorKind, Result};
use crate::setup::key::Key;
use crate::setup::mailbox::Offer;
use crate::setup::pending::Pending;
use crate::setup::run::Item;
use crate::sync::{AtomicBool, AtomicU32};
use crate::transport::backend::Backend;
use crate::transport::endpoint::{EndpointConfig, EndpointWire, Transport};
use crate::transport::ipc::CudaIpc;
use crate::transport::{Resources, tcp, verbs};

const OP: &str = "connect";

pub(crate) struct ConnectItem {
    resources: Arc<Resources>,
    key: Key,
    config: EndpointConfig,
    pending: Pending<Connection>,
    draft: Option<Draft>,
    made: Option<Connection>,
}

/// This end, as far as it can be made without knowing the other.
enum Draft {
    CudaIpc(CudaIpc),
    Ethernet(Box<tcp::Draft>),
    Verbs(Box<verbs::Draft>),
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

    fn draft(&self) -> Result<(Draft, Vec<u8>)> {
        match self.config.transport {
            Transport::CudaIpc => Ok((Draft::CudaIpc(CudaIpc::new(&self.resources.context)?), Vec::new())),
            Transport::Ethernet => {
                let draft = tcp::Draft::new(&self.resources, self.key, &self.config)?;
                let detail = draft.describe();
                Ok((Draft::Ethernet(Box::new(draft)), detail))
            }
            Transport::Ib(number) => {
                let draft = verbs::Draft::new(&self.resources, self.key, &self.config, number)?;
                let detail = draft.describe();
                Ok((Draft::Verbs(Box::new(draft)), detail))
            }
        }
    }
}

impl Item for ConnectItem {
    fn key(&self) -> Key {
        self.key
    }

    fn offer(&mut self) -> Option<Result<Offer>> {
        let transport = self.config.transport;
        Some(self.draft().map(|(draft, detail)| {
            self.draft = Some(draft);
            Offer { body: EndpointWire { transport, detail }.encode(), fds: Vec::new() }
        }))
    }

    fn build(&mut self, offer: Offer) -> Result<()> {
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
        let backend: Box<dyn Backend> = match self.draft.take() {
            Some(Draft::CudaIpc(backend)) => Box::new(backend),
            Some(Draft::Ethernet(draft)) => Box::new(draft.finish(&self.resources, &theirs.detail)?),
            Some(Draft::Verbs(draft)) => Box::new(draft.finish(&self.resources, &theirs)?),
            None => {
                return Err(Error::new(
                    ErrorKind::Internal,
                    OP,
                    "a connection was built before it was offered",
                ));
            }
        };
        let inner = Inner {
            group: self.resources.group.clone(),
            key: self.key,
            transport: self.config.transport,
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
