//! One connection as a proxy serves it: requests that wait for room, and flushes that wait for completion.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use aqueduct_ptx::abi::{ChannelTrigger, TriggerKind};

use super::ids::{MemoryId, SemaphoreId, unknown_memory, unknown_semaphore};
use super::state::Ports;
use crate::comm::{Claim, Connection, Host2DeviceSemaphore, RegisteredMemory};
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

    fn named(&self, trigger: &ChannelTrigger) -> Result<Named<'_>> {
        let id = SemaphoreId(trigger.semaphore);
        let semaphore = &self.route(id).ok_or_else(|| unknown_semaphore(id))?.semaphore;
        let puts = trigger.kind.contains(TriggerKind::DATA);
        let memories =
            if puts { Some([self.memory(trigger.dst_id)?, self.memory(trigger.src_id)?]) } else { None };
        Ok(Named { semaphore, memories })
    }
}

/// The objects that a request names: the semaphore, and where data go to and come from.
struct Named<'a> {
    semaphore: &'a Host2DeviceSemaphore,
    memories: Option<[&'a RegisteredMemory; 2]>,
}

/// A request at its position in the FIFO.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) position: u64,
    pub(super) trigger: ChannelTrigger,
}

/// A request that waits for room, with the objects that it named when it was taken: they may be removed meanwhile.
#[derive(Debug)]
struct Deferred {
    request: Request,
    named: Result<(Host2DeviceSemaphore, Option<[RegisteredMemory; 2]>)>,
}

impl Deferred {
    fn new(request: Request, tables: &Tables) -> Self {
        let keep = |Named { semaphore, memories }: Named<'_>| {
            (semaphore.clone(), memories.map(|both| both.map(Clone::clone)))
        };
        Self { request, named: tables.named(&request.trigger).map(keep) }
    }
}

/// How far a removed semaphore's requests are.
#[derive(Clone, Copy, Debug)]
enum Leaving {
    /// Requests up to this position wait for room.
    Waiting(u64),
    /// All have been given to the connection, whose mark this is.
    Given(u64),
}

#[derive(Debug)]
pub(super) struct ConnectionQueue {
    /// On the connection, until the last request of the last semaphore is done.
    claim: Arc<Claim>,
    ports: Arc<Ports>,
    /// The semaphores whose requests it serves.
    semaphores: Vec<SemaphoreId>,
    /// Requests that wait for room, in order. Later requests queue behind them.
    deferred: VecDeque<Deferred>,
    /// Flushes under way, in order: the connection's mark, the semaphore, and the FIFO position behind the flush.
    flushes: VecDeque<(u64, SemaphoreId, u64)>,
    /// Removed semaphores whose requests are under way.
    leaving: Vec<(Leaving, SemaphoreId)>,
    /// Whether the connection holds operations back until the end of the burst.
    held: bool,
    /// Why no more requests are served.
    failure: Option<Error>,
    /// Whether nobody has been told of the failure, because nothing was lost by it so far.
    untold: bool,
}

impl ConnectionQueue {
    pub(super) fn new(claim: Arc<Claim>, ports: Arc<Ports>) -> Self {
        Self {
            claim,
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

    fn connection(&self) -> &Connection {
        self.claim.connection()
    }

    pub(super) fn serves(&self, connection: &Connection) -> bool {
        self.connection().is(connection)
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

    /// Removes a semaphore. Requests taken before are still served, and use its number until they have completed.
    pub(super) fn remove(&mut self, id: SemaphoreId) {
        self.semaphores.retain(|known| *known != id);
        if self.failure.is_some() {
            return self.ports.retire(id);
        }
        match self.deferred.back().map(|last| last.request.position) {
            Some(last) => self.leaving.push((Leaving::Waiting(last), id)),
            None => match self.connection().mark() {
                Ok(mark) => self.leaving.push((Leaving::Given(mark), id)),
                Err(_) => self.ports.retire(id),
            },
        }
    }

    /// Serves a request now, or when there is room. If `limit` requests are waiting already, this call waits for room.
    pub(super) fn take(&mut self, request: Request, tables: &Tables, limit: usize) {
        if let Some(error) = &self.failure {
            if std::mem::take(&mut self.untold) {
                log::error!("the proxy drops requests for rank {}: {error}", self.connection().peer());
            }
            return self.ports.count_dropped(1);
        }
        if let Err(error) = self.try_take(request, tables, limit) {
            self.fail(&error, true);
        }
    }

    fn try_take(&mut self, request: Request, tables: &Tables, limit: usize) -> Result<()> {
        if self.deferred.is_empty() && self.connection().has_room()? {
            return self.execute(request, tables.named(&request.trigger)?);
        }
        self.ports.count_deferred();
        self.deferred.push_back(Deferred::new(request, tables));
        if self.deferred.len() > limit { self.execute_first() } else { Ok(()) }
    }

    /// Executes the oldest request that waits for room.
    fn execute_first(&mut self) -> Result<()> {
        let Some(Deferred { request, named }) = self.deferred.pop_front() else { return Ok(()) };
        let (semaphore, memories) = named?;
        self.execute(
            request,
            Named { semaphore: &semaphore, memories: memories.as_ref().map(<[_; 2]>::each_ref) },
        )
    }

    /// Advances work under way; returns whether any is left.
    pub(super) fn progress(&mut self) -> bool {
        if self.failure.is_none()
            && let Err(error) = self.try_progress()
        {
            self.fail(&error, self.is_busy());
        }
        self.is_busy()
    }

    fn try_progress(&mut self) -> Result<()> {
        while !self.deferred.is_empty() && self.connection().has_room()? {
            self.execute_first()?;
        }
        if std::mem::take(&mut self.held) {
            self.connection().release()?;
        }
        while let Some(&(mark, id, position)) = self.flushes.front() {
            if !self.connection().is_done(mark)? {
                break;
            }
            self.flushes.pop_front();
            self.ports.set_flushed(id, position);
        }
        let first = self.deferred.front().map(|first| first.request.position);
        for (leaving, _) in &mut self.leaving {
            if let Leaving::Waiting(last) = *leaving
                && first.is_none_or(|first| first > last)
            {
                *leaving = Leaving::Given(self.claim.connection().mark()?);
            }
        }
        let mut index = 0;
        while let Some(&(leaving, id)) = self.leaving.get(index) {
            if let Leaving::Given(mark) = leaving
                && self.connection().is_done(mark)?
            {
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
            && let Err(error) = self.connection().check("ProxyService::check")
        {
            self.fail(&error, self.is_busy());
        }
    }

    /// Executes a request: data, then signal, then flush.
    fn execute(&mut self, request: Request, Named { semaphore, memories }: Named<'_>) -> Result<()> {
        let Request { position, trigger } = request;
        let id = SemaphoreId(trigger.semaphore);
        if !self.held {
            self.connection().hold();
            self.held = true;
        }
        if let Some([dst, src]) = memories {
            let [to, from, size] = [trigger.dst_offset, trigger.src_offset, trigger.size].map(|v| v as usize);
            self.connection().write(dst, to, src, from, size)?;
            self.ports.count_put(id, trigger.size);
        }
        if trigger.kind.contains(TriggerKind::FLAG) {
            semaphore.signal()?;
            self.ports.count_signal(id);
        }
        if trigger.kind.contains(TriggerKind::SYNC) {
            self.ports.count_flush(id);
            if !self.connection().report(&self.ports.flushed_slice(id)?, position + 1)? {
                self.flushes.push_back((self.connection().mark()?, id, position + 1));
            }
        }
        Ok(())
    }

    /// Ends the queue: it serves nothing more, and kernels that wait for one of its channels leave. An error in the log only if
    /// requests are `lost`: otherwise the peer may be done, and has left in good order.
    fn fail(&mut self, error: &Error, lost: bool) {
        let peer = self.connection().peer();
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
            && let Err(error) = self.connection().release()
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
            && let Err(error) = self.connection().release()
        {
            log::debug!("operations held back could not be sent: {error}");
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
