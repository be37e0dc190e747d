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

#[derive(Debug, Default)]
struct State {
    /// Each with its semaphores, whose failure is the connection's.
    connections: HashMap<Way, (Connection, Vec<SemaphoreId>)>,
    /// Whether one had failed whose semaphores have gone.
    has_failed: bool,
}

/// Numbers that a transaction wants of the proxy on this rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    pub(super) semaphores: usize,
    pub(super) memories: usize,
}

/// What one transaction uses of the links, and adds to them.
#[derive(Debug)]
pub(super) struct Linking<'c> {
    comm: &'c Communicator,
    /// `None` while no plan has wanted any.
    links: Option<Arc<Links>>,
    new: HashMap<Way, Pending<Connection>>,
    demand: Demand,
}

impl Links {
    /// What plans of `comm` have left, and the number that stands for it: 0 if there is nothing that has room for `demand`.
    pub(super) fn find(comm: &Communicator, demand: Demand) -> (u64, Option<Arc<Self>>) {
        let (number, links) = comm.links().get::<Self>();
        match &links {
            Some(links) if !links.can_take(demand) => (0, None),
            _ => (number, links),
        }
    }

    /// Whether there is room for `demand`, and nothing has failed.
    pub(super) fn can_take(&self, demand: Demand) -> bool {
        let (semaphores, memories) = self.service.room();
        let state = lock(&self.state);
        let mut all = state.connections.values().flat_map(|(_, semaphores)| semaphores);
        semaphores >= demand.semaphores
            && memories >= demand.memories
            && !state.has_failed
            && all.all(|id| self.service.check(*id).is_ok())
    }

    pub(super) fn service(&self) -> &ProxyService {
        &self.service
    }

    /// Adds the semaphore of a port channel.
    pub(super) fn add(&self, way: Way, semaphore: &Host2DeviceSemaphore) -> Result<SemaphoreId> {
        let id = self.service.add_semaphore(semaphore)?;
        let mut state = lock(&self.state);
        let new = || (semaphore.connection().clone(), Vec::new());
        state.connections.entry(way).or_insert_with(new).1.push(id);
        Ok(id)
    }

    /// Removes the semaphore of a port channel that has gone, behind what its kernels have pushed.
    pub(super) fn retire(&self, way: Way, id: SemaphoreId) {
        let mut state = lock(&self.state);
        state.has_failed |= self.service.check(id).is_err();
        if let Some((_, semaphores)) = state.connections.get_mut(&way) {
            semaphores.retain(|known| *known != id);
        }
        drop(state);
        // A service that has failed or stopped has let go of it.
        let _ = self.service.retire_semaphore(id);
    }

    /// How many connections there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.state).connections.len()
    }
}

impl<'c> Linking<'c> {
    /// Goes on with `links`, which all ranks have agreed on, or begins anew. Until [`keep`](Self::keep), nobody finds any.
    pub(super) fn begin(comm: &'c Communicator, links: Option<Arc<Links>>, demand: Demand) -> Self {
        comm.links().clear();
        Self { comm, links, new: HashMap::new(), demand }
    }

    pub(super) fn links(&mut self) -> Result<Arc<Links>> {
        if let Some(links) = &self.links {
            return Ok(links.clone());
        }
        // With room for some transactions more.
        let room = ProxyServiceConfig::default().max_semaphores.max(4 * self.demand.semaphores).min(1 << 16);
        let config = ProxyServiceConfig { max_semaphores: room, ..ProxyServiceConfig::default() };
        let service = ProxyService::start(self.comm, config)?;
        Ok(self.links.insert(Arc::new(Links { service, state: Mutex::default() })).clone())
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
