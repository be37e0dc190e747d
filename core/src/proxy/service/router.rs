//! The handler of a service's proxies: gives each trigger to its connection's queue.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use aqueduct_ptx::abi::ProxyTrigger;

use super::ids::{MemoryId, SemaphoreId, unknown_semaphore};
use super::queue::{ConnectionQueue, Request, Route, Tables};
use super::state::Ports;
use crate::comm::{Claim, Host2DeviceSemaphore, RegisteredMemory};
use crate::error::{Error, ErrorKind, Result};
use crate::proxy::fifo::Fifo;
use crate::proxy::handler::{ProxyHandler, ProxyHandlerResult};
use crate::sync::{AtomicU64, Ordering};

/// A change of a router's tables.
pub(super) enum Command {
    AddSemaphore(SemaphoreId, Host2DeviceSemaphore, Arc<Claim>),
    AddMemory(MemoryId, RegisteredMemory),
    Remove(Removal),
    /// As soon as the requests before this end have been taken. No kernel can use the object, so nobody is told.
    RemoveBehind(End, Removal),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Removal {
    Semaphore(SemaphoreId),
    Memory(MemoryId),
}

/// A position behind what kernels that have ended have pushed.
#[derive(Debug)]
pub(super) struct End {
    fifo: Fifo,
    position: u64,
}

impl End {
    /// Of what kernels that have ended by now have pushed.
    pub(super) fn of(fifo: &Fifo) -> Self {
        Self { fifo: fifo.clone(), position: fifo.end_of_written() }
    }

    fn is_popped(&self) -> bool {
        self.fifo.is_popped(self.position)
    }
}

pub(super) struct Router {
    commands: mpsc::Receiver<Command>,
    sent: Arc<AtomicU64>,
    seen: u64,
    /// Removals that wait for requests in the FIFO, in the order in which they were sent.
    later: VecDeque<(End, Removal)>,
    ports: Arc<Ports>,
    tables: Tables,
    queues: Vec<Option<ConnectionQueue>>,
    /// Queues with work under way.
    busy: Vec<usize>,
    /// When to check idle connections for failures next.
    examine: Instant,
    /// How many requests may wait for room on one connection.
    limit: usize,
}

/// Time between two checks of idle connections.
const EXAMINE: Duration = Duration::from_millis(5);

impl Router {
    pub(super) fn new(
        commands: mpsc::Receiver<Command>,
        sent: Arc<AtomicU64>,
        ports: Arc<Ports>,
        limit: usize,
    ) -> Self {
        Self {
            commands,
            sent,
            seen: 0,
            later: VecDeque::new(),
            ports,
            tables: Tables::default(),
            queues: Vec::new(),
            busy: Vec::new(),
            examine: Instant::now(),
            limit,
        }
    }

    /// Executes new commands. A trigger that a kernel pushed after a command was sent is handled after the command.
    fn execute_commands(&mut self) {
        self.execute_due();
        let sent = self.sent.load(Ordering::Acquire);
        while self.seen != sent {
            let Ok(command) = self.commands.try_recv() else { break };
            self.seen += 1;
            // A number is given to the next object only behind the requests that name the one before: then that one's removal is due.
            self.execute_due();
            match command {
                Command::AddMemory(id, memory) => set(&mut self.tables.memories, id.0, Some(memory)),
                Command::AddSemaphore(id, semaphore, claim) => self.add(id, semaphore, claim),
                Command::Remove(removal) => {
                    if let Removal::Semaphore(id) = removal {
                        self.ports.fail(id, &unknown_semaphore(id));
                    }
                    self.remove(removal);
                }
                Command::RemoveBehind(end, removal) => self.later.push_back((end, removal)),
            }
        }
    }

    /// Executes the removals that no request in the FIFO needs to wait for any more. A request that is being handled is not popped yet.
    fn execute_due(&mut self) {
        while self.later.front().is_some_and(|(end, _)| end.is_popped()) {
            if let Some((_, removal)) = self.later.pop_front() {
                self.remove(removal);
            }
        }
    }

    fn remove(&mut self, removal: Removal) {
        match removal {
            Removal::Semaphore(id) => self.remove_semaphore(id),
            Removal::Memory(id) => set(&mut self.tables.memories, id.0, None),
        }
    }

    fn add(&mut self, id: SemaphoreId, semaphore: Host2DeviceSemaphore, claim: Arc<Claim>) {
        let connection = semaphore.connection();
        // A spent queue may have failed. Nothing of it is left, so the connection gets a new one.
        let known = |queue: &Option<ConnectionQueue>| {
            queue.as_ref().is_some_and(|queue| queue.serves(connection) && !queue.is_spent())
        };
        let index = self.queues.iter().position(known).unwrap_or_else(|| {
            let queue = Some(ConnectionQueue::new(claim, self.ports.clone()));
            match self.queues.iter().position(Option::is_none) {
                Some(index) => {
                    self.queues[index] = queue;
                    index
                }
                None => {
                    self.queues.push(queue);
                    self.queues.len() - 1
                }
            }
        });
        if let Some(queue) = &mut self.queues[index] {
            queue.add(id);
        }
        set(&mut self.tables.routes, id.0, Some(Route { queue: index, semaphore }));
    }

    fn remove_semaphore(&mut self, id: SemaphoreId) {
        let Some(index) = self.tables.route(id).map(|route| route.queue) else { return };
        if let Some(queue) = &mut self.queues[index] {
            queue.remove(id);
        }
        set(&mut self.tables.routes, id.0, None);
        self.work_on(index);
    }

    fn work_on(&mut self, index: usize) {
        if !self.busy.contains(&index) {
            self.busy.push(index);
        }
    }
}

impl ProxyHandler for Router {
    fn handle(&mut self, position: u64, trigger: &ProxyTrigger) -> Result<ProxyHandlerResult> {
        self.execute_commands();
        let trigger = trigger.decode().map_err(|error| {
            let message =
                format!("the trigger that a kernel pushed at position {position} is not a request of a port channel: {error}");
            Error::usage("ProxyService", message)
        })?;
        let id = SemaphoreId(trigger.semaphore);
        let Some(index) = self.tables.route(id).map(|route| route.queue) else {
            // A kernel that flushes there would otherwise wait for ever.
            self.ports.count_dropped(1);
            if self.ports.exists(id) {
                self.ports.fail(id, &unknown_semaphore(id));
            }
            // Logged rarely: a kernel may push for ever.
            let dropped = self.ports.dropped();
            if dropped.is_power_of_two() {
                let why = unknown_semaphore(id);
                log::error!("a request was dropped, one of {dropped} so far: {}", why.message());
            }
            return Ok(ProxyHandlerResult::Continue);
        };
        if let Some(queue) = &mut self.queues[index] {
            queue.take(Request { position, trigger }, &self.tables, self.limit);
        }
        self.work_on(index);
        Ok(ProxyHandlerResult::Continue)
    }

    fn progress(&mut self) -> Result<bool> {
        self.execute_commands();
        let queues = &mut self.queues;
        self.busy.retain(|&index| {
            let Some(queue) = &mut queues[index] else { return false };
            let busy = queue.progress();
            if queue.is_spent() {
                queues[index] = None;
                return false;
            }
            busy || queue.is_leaving()
        });
        if Instant::now() >= self.examine {
            self.examine = Instant::now() + EXAMINE;
            self.queues.iter_mut().flatten().for_each(ConnectionQueue::examine);
        }
        Ok(!self.busy.is_empty())
    }

    fn ended(&mut self, failure: Option<&Error>) {
        let stopped = Error::new(ErrorKind::Stopped, "ProxyService::check", "the proxy service has stopped");
        let error = failure.unwrap_or(&stopped);
        self.queues.iter_mut().flatten().for_each(|queue| queue.end(error));
    }
}

fn set<T>(table: &mut Vec<Option<T>>, number: u16, value: Option<T>) {
    let number = usize::from(number);
    if table.len() <= number {
        table.resize_with(number + 1, || None);
    }
    table[number] = value;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use aqueduct_ptx::abi::ChannelTrigger;

    use super::*;
    use crate::gpu::{Context, Device, Driver};

    /// A kernel that flushes leaves, if there is a word that tells it to.
    #[test]
    fn a_request_for_a_semaphore_that_nobody_added_is_dropped_and_its_kernel_is_told() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let (_commands, received) = mpsc::channel();
        let ports = Ports::new(&context, 0, 2).unwrap();
        let mut router = Router::new(received, Arc::default(), ports.clone(), 16);
        let [known, last, beyond] = [0, 1, 2].map(SemaphoreId);
        for (dropped, id) in (1..).zip([last, beyond]) {
            let trigger = ChannelTrigger { semaphore: id.0, ..ChannelTrigger::default() };
            let result = router.handle(0, &trigger.encode(false).unwrap()).unwrap();
            assert_eq!((result, ports.dropped()), (ProxyHandlerResult::Continue, dropped));
        }
        ports.check(known).expect("nothing was asked of it");
        let error = ports.check(last).unwrap_err();
        assert!(error.message().contains("no semaphore 1"), "{error}");
    }
}
