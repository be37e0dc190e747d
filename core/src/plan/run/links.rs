//! The proxy and the connections of port channels, which all plans of a communicator share: a rank has one connection to a peer, however
//! many collectives it prepares.
//!
//! Both ends must agree whether there is a connection already. Each rank names the transaction that has last made some, if what that left is
//! still there and well; if all ranks name the same one, they have made the same ones. Otherwise all make new ones.

use std::collections::HashMap;
use std::sync::Arc;

use super::ir::Plan;
use crate::comm::{
    Communicator, Connection, Dependency, EndpointConfig, Host2DeviceSemaphore, Pending, Transport,
};
use crate::error::Result;
use crate::proxy::{ProxyService, ProxyServiceConfig, SemaphoreId};
use crate::sync::{Mutex, lock};

/// A peer, and how it is reached.
pub(super) type Way = (u32, Transport);

/// Kept by the port channels that use it.
#[derive(Debug)]
pub(super) struct Links {
    service: ProxyService,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Each with a semaphore of it, whose failure is the connection's.
    connections: HashMap<Way, (Connection, SemaphoreId)>,
    /// Semaphores for which the service has room.
    room: usize,
}

/// What one transaction uses of the links, and adds to them.
#[derive(Debug)]
pub(super) struct Linking<'c> {
    comm: &'c Communicator,
    /// `None` while no plan has wanted any.
    links: Option<Arc<Links>>,
    new: HashMap<Way, Pending<Connection>>,
    /// Semaphores that the transaction wants.
    semaphores: usize,
}

impl Links {
    /// What plans of `comm` have left, and the number that stands for it: 0 if there is nothing that `more` semaphores could use.
    pub(super) fn find(comm: &Communicator, more: usize) -> (u64, Option<Arc<Self>>) {
        let (number, links) = comm.links().get::<Self>();
        match &links {
            Some(links) if !links.can_take(more) => (0, None),
            _ => (number, links),
        }
    }

    /// Whether there is room for `more` semaphores, and nothing has failed.
    pub(super) fn can_take(&self, more: usize) -> bool {
        let state = lock(&self.state);
        state.room >= more && state.connections.values().all(|(_, id)| self.service.check(*id).is_ok())
    }

    pub(super) fn service(&self) -> &ProxyService {
        &self.service
    }

    /// Adds the semaphore of a port channel.
    pub(super) fn add(&self, way: Way, semaphore: &Host2DeviceSemaphore) -> Result<SemaphoreId> {
        let id = self.service.add_semaphore(semaphore)?;
        let mut state = lock(&self.state);
        state.room = state.room.saturating_sub(1);
        state.connections.entry(way).or_insert_with(|| (semaphore.connection().clone(), id));
        Ok(id)
    }

    /// How many connections there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.state).connections.len()
    }
}

impl<'c> Linking<'c> {
    /// Goes on with `links`, which all ranks have agreed on, or begins anew. Until [`keep`](Self::keep), nobody finds any.
    pub(super) fn begin(comm: &'c Communicator, links: Option<Arc<Links>>, semaphores: usize) -> Self {
        comm.links().clear();
        Self { comm, links, new: HashMap::new(), semaphores }
    }

    pub(super) fn links(&mut self) -> Result<Arc<Links>> {
        if let Some(links) = &self.links {
            return Ok(links.clone());
        }
        // With room for some transactions more.
        let room = ProxyServiceConfig::default().max_semaphores.max(4 * self.semaphores).min(1 << 16);
        let config = ProxyServiceConfig { max_semaphores: room, ..ProxyServiceConfig::default() };
        let service = ProxyService::start(self.comm, config)?;
        let state = Mutex::new(State { connections: HashMap::new(), room });
        Ok(self.links.insert(Arc::new(Links { service, state })).clone())
    }

    /// The connection to a peer. A new one gets `tag`: both ends ask for it first for the same channel.
    pub(super) fn connection(&mut self, way: Way, tag: u64) -> Result<Dependency<Connection>> {
        let known = self.links.as_ref().and_then(|links| {
            lock(&links.state).connections.get(&way).map(|(connection, _)| Dependency::from(connection))
        });
        if let Some(known) = known {
            return Ok(known);
        }
        if let Some(pending) = self.new.get(&way) {
            return Ok(pending.into());
        }
        let (peer, transport) = way;
        let pending = self.comm.connect_internal(peer, tag, EndpointConfig::new(transport))?;
        Ok((&*self.new.entry(way).or_insert(pending)).into())
    }

    /// The transaction has succeeded on all ranks: later ones find the links under `number`.
    pub(super) fn keep(self, number: u64) {
        self.comm.links().set(number, self.links.as_ref());
    }
}

/// Whether any rank has port channels in `plan`.
pub(super) fn are_wanted(plan: &Plan) -> bool {
    plan.ranks.iter().any(|rank| !rank.port_channels.is_empty())
}
