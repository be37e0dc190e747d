//! The handler of a service's proxies: which connection a trigger is for.
#![forbid(unsafe_code)]

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use aqueduct_ptx::abi::ProxyTrigger;

use super::line::{Line, Request, Route, Tables};
use super::port::Ports;
use super::registry::{MemoryId, SemaphoreId, unknown_semaphore};
use crate::comm::{Host2DeviceSemaphore, RegisteredMemory};
use crate::error::{Error, ErrorKind, Result};
use crate::proxy::thread::{ProxyHandler, ProxyHandlerResult};
use crate::sync::{AtomicU64, Ordering};

/// A change of what a router knows.
pub(super) enum Command {
    AddSemaphore(SemaphoreId, Host2DeviceSemaphore),
    RemoveSemaphore(SemaphoreId),
    AddMemory(MemoryId, RegisteredMemory),
    RemoveMemory(MemoryId),
}

pub(super) struct Router {
    commands: mpsc::Receiver<Command>,
    sent: Arc<AtomicU64>,
    seen: u64,
    ports: Arc<Ports>,
    tables: Tables,
    lines: Vec<Option<Line>>,
    /// Lines with something under way.
    busy: Vec<usize>,
    /// When to look next whether connections have failed of which nothing is asked.
    examine: Instant,
    /// Most requests that wait for room on one connection.
    patience: usize,
}

/// Between two looks at connections of which nothing is asked.
const EXAMINE: Duration = Duration::from_millis(5);

impl Router {
    pub(super) fn new(
        commands: mpsc::Receiver<Command>,
        sent: Arc<AtomicU64>,
        ports: Arc<Ports>,
        patience: usize,
    ) -> Self {
        Self {
            commands,
            sent,
            seen: 0,
            ports,
            tables: Tables::default(),
            lines: Vec::new(),
            busy: Vec::new(),
            examine: Instant::now(),
            patience,
        }
    }

    /// Takes commands if there are any. A kernel that pushes after a command was sent has its trigger seen after it.
    fn obey(&mut self) {
        let sent = self.sent.load(Ordering::Acquire);
        while self.seen != sent {
            let Ok(command) = self.commands.try_recv() else { break };
            self.seen += 1;
            match command {
                Command::AddMemory(id, memory) => set(&mut self.tables.memories, id.0, Some(memory)),
                Command::RemoveMemory(id) => set(&mut self.tables.memories, id.0, None),
                Command::AddSemaphore(id, semaphore) => self.add(id, semaphore),
                Command::RemoveSemaphore(id) => self.remove(id),
            }
        }
    }

    fn add(&mut self, id: SemaphoreId, semaphore: Host2DeviceSemaphore) {
        let connection = semaphore.connection();
        // One that is spent may have failed; nothing of it is left, and the connection begins anew.
        let known = |line: &Option<Line>| {
            line.as_ref().is_some_and(|line| line.is_over(connection) && !line.is_spent())
        };
        let index = self.lines.iter().position(known).unwrap_or_else(|| {
            let line = Some(Line::new(connection, self.ports.clone()));
            match self.lines.iter().position(Option::is_none) {
                Some(index) => {
                    self.lines[index] = line;
                    index
                }
                None => {
                    self.lines.push(line);
                    self.lines.len() - 1
                }
            }
        });
        if let Some(line) = &mut self.lines[index] {
            line.add(id);
        }
        set(&mut self.tables.routes, id.0, Some(Route { line: index, semaphore }));
    }

    fn remove(&mut self, id: SemaphoreId) {
        self.ports.fail(id, &unknown_semaphore(id));
        let Some(index) = self.tables.route(id).map(|route| route.line) else { return };
        if let Some(line) = &mut self.lines[index] {
            // What waits for room is done first.
            line.progress(&self.tables);
            line.remove(id);
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
        self.obey();
        let trigger = trigger.decode().map_err(|error| {
            let message =
                format!("what a kernel pushed at position {position} is no channel's request: {error}");
            Error::usage("ProxyService", message)
        })?;
        let id = SemaphoreId(trigger.semaphore);
        let Some(index) = self.tables.route(id).map(|route| route.line) else {
            // Nobody else can tell a kernel that flushes there.
            self.ports.count_dropped(1);
            if self.ports.exists(id) {
                self.ports.fail(id, &unknown_semaphore(id));
            }
            // A kernel may go on for ever.
            let dropped = self.ports.dropped();
            if dropped.is_power_of_two() {
                let why = unknown_semaphore(id);
                log::error!("a request was dropped, one of {dropped} so far: {}", why.message());
            }
            return Ok(ProxyHandlerResult::Continue);
        };
        if let Some(line) = &mut self.lines[index] {
            line.take(Request { position, trigger }, &self.tables, self.patience);
        }
        self.work_on(index);
        Ok(ProxyHandlerResult::Continue)
    }

    fn progress(&mut self) -> Result<bool> {
        self.obey();
        let (lines, tables) = (&mut self.lines, &self.tables);
        self.busy.retain(|&index| {
            let Some(line) = &mut lines[index] else { return false };
            let busy = line.progress(tables);
            if line.is_spent() {
                lines[index] = None;
                return false;
            }
            busy || line.is_leaving()
        });
        if Instant::now() >= self.examine {
            self.examine = Instant::now() + EXAMINE;
            self.lines.iter_mut().flatten().for_each(Line::examine);
        }
        Ok(!self.busy.is_empty())
    }

    fn ended(&mut self, failure: Option<&Error>) {
        let stopped = Error::new(ErrorKind::InvalidUsage, "ProxyService", "the proxy service has stopped");
        let error = failure.unwrap_or(&stopped);
        self.lines.iter_mut().flatten().for_each(|line| line.end(error));
    }
}

fn set<T>(table: &mut Vec<Option<T>>, number: u16, value: Option<T>) {
    let number = usize::from(number);
    if table.len() <= number {
        table.resize_with(number + 1, || None);
    }
    table[number] = value;
}
