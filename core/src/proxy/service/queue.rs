//! One connection as a proxy serves it: requests that wait for room, and flushes that wait for completion.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use aqueduct_ptx::abi::{ChannelTrigger, TriggerKind};

use super::ids::{MemoryId, SemaphoreId, unknown_memory};
use super::state::Ports;
use crate::comm::{Connection, Host2DeviceSemaphore, RegisteredMemory};
use crate::error::{Error, Result};

/// The objects that triggers name by number.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) memories: Vec<Option<RegisteredMemory>>,
    pub(super) routes: Vec<Option<Route>>,
}

/// A semaphore, and the index of its connection's queue.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) queue: usize,
    pub(super) semaphore: Host2DeviceSemaphore,
}

impl Tables {
    pub(super) fn route(&self, id: SemaphoreId) -> Option<&Route> {
        self.routes.get(usize::from(id.0)).and_then(Option::as_ref)
    }

    fn memory(&self, id: u16) -> Result<&RegisteredMemory> {
        let memory = self.memories.get(usize::from(id)).and_then(Option::as_ref);
        memory.ok_or_else(|| unknown_memory(MemoryId(id)))
    }
}

/// A request at its position in the FIFO.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) position: u64,
    pub(super) trigger: ChannelTrigger,
}

#[derive(Debug)]
pub(super) struct ConnectionQueue {
    connection: Connection,
    ports: Arc<Ports>,
    /// The semaphores whose requests it serves.
    semaphores: Vec<SemaphoreId>,
    /// Requests that wait for room, in order. Later requests queue behind them.
    deferred: VecDeque<Request>,
    /// Flushes under way, in order: the connection's mark, the semaphore, and the FIFO position behind the flush.
    flushes: VecDeque<(u64, SemaphoreId, u64)>,
    /// Removed semaphores, with the connection's mark at the time.
    leaving: Vec<(u64, SemaphoreId)>,
    /// Whether the connection holds operations back until the end of the burst.
    held: bool,
    /// Why no more requests are served.
    failure: Option<Error>,
    /// Whether nobody has been told of the failure, because nothing was lost by it so far.
    untold: bool,
}

impl ConnectionQueue {
    pub(super) fn new(connection: &Connection, ports: Arc<Ports>) -> Self {
        Self {
            connection: connection.clone(),
            ports,
            semaphores: Vec::new(),
            deferred: VecDeque::new(),
            flushes: VecDeque::new(),
            leaving: Vec::new(),
            held: false,
            failure: None,
            untold: false,
        }
    }

    pub(super) fn serves(&self, connection: &Connection) -> bool {
        self.connection.is(connection)
    }

    /// Whether it has no semaphore and no work left.
    pub(super) fn is_spent(&self) -> bool {
        self.semaphores.is_empty() && self.leaving.is_empty() && !self.is_busy()
    }

    /// Whether requests under way use numbers of removed semaphores.
    pub(super) fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Whether requests or flushes are under way.
    pub(super) fn is_busy(&self) -> bool {
        self.held || !self.deferred.is_empty() || !self.flushes.is_empty()
    }

    pub(super) fn add(&mut self, id: SemaphoreId) {
        self.semaphores.push(id);
        if let Some(error) = &self.failure {
            self.ports.fail(id, error);
        }
    }

    /// Removes a semaphore. Requests made before are still served, and use its number until they have completed.
    pub(super) fn remove(&mut self, id: SemaphoreId) {
        self.semaphores.retain(|known| *known != id);
        match self.failure.is_none().then(|| self.connection.mark()) {
            Some(Ok(mark)) => self.leaving.push((mark, id)),
            _ => self.ports.retire(id),
        }
    }

    /// Serves a request now, or when there is room. If `limit` requests are waiting already, this call waits for room.
    pub(super) fn take(&mut self, request: Request, tables: &Tables, limit: usize) {
        if let Some(error) = &self.failure {
            if std::mem::take(&mut self.untold) {
                log::error!("the proxy drops requests for rank {}: {error}", self.connection.peer());
            }
            return self.ports.count_dropped(1);
        }
        if let Err(error) = self.try_take(request, tables, limit) {
            self.fail(&error, true);
        }
    }

    fn try_take(&mut self, request: Request, tables: &Tables, limit: usize) -> Result<()> {
        if self.deferred.is_empty() && self.connection.has_room()? {
            return self.execute(request, tables);
        }
        self.ports.count_deferred();
        self.deferred.push_back(request);
        if self.deferred.len() > limit
            && let Some(first) = self.deferred.pop_front()
        {
            self.execute(first, tables)?;
        }
        Ok(())
    }

    /// Advances work under way; returns whether any is left.
    pub(super) fn progress(&mut self, tables: &Tables) -> bool {
        if self.failure.is_none()
            && let Err(error) = self.try_progress(tables)
        {
            self.fail(&error, self.is_busy());
        }
        self.is_busy()
    }

    fn try_progress(&mut self, tables: &Tables) -> Result<()> {
        while !self.deferred.is_empty() && self.connection.has_room()? {
            if let Some(request) = self.deferred.pop_front() {
                self.execute(request, tables)?;
            }
        }
        if std::mem::take(&mut self.held) {
            self.connection.release()?;
        }
        while let Some(&(mark, id, position)) = self.flushes.front() {
            if !self.connection.is_done(mark)? {
                break;
            }
            self.flushes.pop_front();
            self.ports.set_flushed(id, position);
        }
        let mut index = 0;
        while let Some(&(mark, id)) = self.leaving.get(index) {
            if self.connection.is_done(mark)? {
                self.leaving.swap_remove(index);
                self.ports.retire(id);
            } else {
                index += 1;
            }
        }
        Ok(())
    }

    /// Fails the queue if the connection, its peer or the communicator has failed.
    pub(super) fn examine(&mut self) {
        if self.failure.is_none()
            && let Err(error) = self.connection.check("ProxyService::check")
        {
            self.fail(&error, self.is_busy());
        }
    }

    /// Executes a request: data, then signal, then flush.
    fn execute(&mut self, request: Request, tables: &Tables) -> Result<()> {
        let Request { position, trigger } = request;
        let id = SemaphoreId(trigger.semaphore);
        let Some(Route { semaphore, .. }) = tables.route(id) else {
            self.ports.count_dropped(1);
            return Ok(());
        };
        if !self.held {
            self.connection.hold();
            self.held = true;
        }
        if trigger.kind.contains(TriggerKind::DATA) {
            let dst = tables.memory(trigger.dst_id)?;
            let src = tables.memory(trigger.src_id)?;
            let [to, from, size] = [trigger.dst_offset, trigger.src_offset, trigger.size].map(|v| v as usize);
            self.connection.write(dst, to, src, from, size)?;
            self.ports.count_put(id, trigger.size);
        }
        if trigger.kind.contains(TriggerKind::FLAG) {
            semaphore.signal()?;
            self.ports.count_signal(id);
        }
        if trigger.kind.contains(TriggerKind::SYNC) {
            self.ports.count_flush(id);
            if !self.connection.report(&self.ports.flushed_slice(id)?, position + 1)? {
                self.flushes.push_back((self.connection.mark()?, id, position + 1));
            }
        }
        Ok(())
    }

    /// Ends the queue: it serves nothing more, and kernels that wait for one of its channels leave. An error in the log only if
    /// requests are `lost`: otherwise the peer may be done, and has left in good order.
    fn fail(&mut self, error: &Error, lost: bool) {
        let peer = self.connection.peer();
        self.untold = !lost;
        if self.untold {
            log::debug!("the proxy stops serving the connection to rank {peer}: {error}");
        } else {
            log::error!("the proxy stops serving the connection to rank {peer}: {error}");
        }
        self.failure = Some(error.clone());
        for id in &self.semaphores {
            self.ports.fail(*id, error);
        }
        self.ports.count_dropped(self.deferred.len());
        self.deferred.clear();
        self.flushes.clear();
        for (_, id) in self.leaving.drain(..) {
            self.ports.retire(id);
        }
        if std::mem::take(&mut self.held)
            && let Err(error) = self.connection.release()
        {
            log::debug!("operations held back could not be sent: {error}");
        }
    }

    /// Tells kernels that the service has ended.
    pub(super) fn end(&mut self, error: &Error) {
        for id in &self.semaphores {
            self.ports.fail(*id, error);
        }
        if std::mem::take(&mut self.held)
            && let Err(error) = self.connection.release()
        {
            log::debug!("operations held back could not be sent: {error}");
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
