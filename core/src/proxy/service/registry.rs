//! Semaphores and memories of a service, as callers see them: their numbers, and the proxy that serves each.
#![forbid(unsafe_code)]

use std::sync::{Arc, Weak};

use super::ids::{MemoryId, SemaphoreId, unknown_memory, unknown_semaphore};
use super::numbers::{Number, Numbers};
use crate::comm::{Claim, Host2DeviceSemaphore, RegisteredMemory};
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::Context;
use crate::proxy::fifo::Fifo;

#[derive(Debug)]
pub(super) struct Registry {
    semaphores: Vec<Option<Entry>>,
    semaphore_numbers: Numbers,
    /// Of each shard.
    fifos: Vec<Fifo>,
    memories: Vec<Option<Memory>>,
    memory_numbers: Numbers,
    connections: Vec<Served>,
    /// The shard of the next connection.
    next: usize,
}

#[derive(Debug)]
struct Entry {
    semaphore: Host2DeviceSemaphore,
    shard: usize,
}

/// A memory with its number. Drop it only when the proxies have been told of its removal.
#[derive(Debug)]
pub(super) struct Memory {
    memory: RegisteredMemory,
    number: Arc<Number>,
}

/// A connection that a proxy has claimed, until no request of its semaphores is under way.
#[derive(Debug)]
struct Served {
    claim: Weak<Claim>,
    shard: usize,
}

/// A semaphore's number, its proxy, and the claim on its connection, which are for that proxy.
pub(super) struct Added {
    pub(super) id: SemaphoreId,
    pub(super) number: Arc<Number>,
    pub(super) shard: usize,
    pub(super) claim: Arc<Claim>,
}

/// The parts of a channel, and the proxy that serves it.
pub(super) struct Parts {
    pub(super) semaphore: Host2DeviceSemaphore,
    pub(super) shard: usize,
    pub(super) dst: RegisteredMemory,
    pub(super) src: RegisteredMemory,
    /// Of `dst` and `src`.
    pub(super) numbers: [Arc<Number>; 2],
}

impl Registry {
    pub(super) fn new(context: &Context, semaphores: usize, memories: usize, fifos: Vec<Fifo>) -> Self {
        Self {
            semaphores: Vec::new(),
            semaphore_numbers: Numbers::new(context, semaphores),
            fifos,
            memories: Vec::new(),
            memory_numbers: Numbers::new(context, memories),
            connections: Vec::new(),
            next: 0,
        }
    }

    /// Whether a semaphore more would get no number now.
    pub(super) fn is_full(&mut self) -> bool {
        self.room().0 == 0
    }

    /// Whether a memory more would get no number now.
    pub(super) fn is_full_of_memories(&mut self) -> bool {
        self.room().1 == 0
    }

    /// How many semaphores and how many memories more would get numbers now.
    pub(super) fn room(&mut self) -> (usize, usize) {
        let all = [&mut self.semaphore_numbers, &mut self.memory_numbers];
        let [semaphores, memories] = all.map(|numbers| {
            numbers.take_back(&self.fifos);
            numbers.room()
        });
        (semaphores, memories)
    }

    /// Gives a semaphore a number and a proxy.
    pub(super) fn add_semaphore(&mut self, semaphore: &Host2DeviceSemaphore) -> Result<Added> {
        self.semaphore_numbers.take_back(&self.fifos);
        self.connections.retain(|served| served.claim.strong_count() > 0);
        let connection = semaphore.connection();
        let known = self.connections.iter().find_map(|served| {
            let claim = served.claim.upgrade().filter(|claim| claim.connection().is(connection))?;
            Some((claim, served.shard))
        });
        let is_new = known.is_none();
        let (claim, shard) = match known {
            Some(known) => known,
            None => (Arc::new(connection.claim()?), self.next % self.fifos.len()),
        };
        let number = self.semaphore_numbers.take(shard..shard + 1).ok_or_else(|| self.exhausted())?;
        if is_new {
            self.next += 1;
            self.connections.push(Served { claim: Arc::downgrade(&claim), shard });
        }
        put(&mut self.semaphores, number.get(), Entry { semaphore: semaphore.clone(), shard });
        Ok(Added { id: SemaphoreId(number.get()), number, shard, claim })
    }

    #[cold]
    fn exhausted(&self) -> Error {
        let limit = self.semaphore_numbers.limit();
        let removed = limit - self.semaphores.iter().flatten().count();
        let message = match removed {
            0 => format!(
                "there are {limit} semaphores already: remove some, or raise ProxyServiceConfig::max_semaphores"
            ),
            _ => format!(
                "all {limit} numbers are in use, {removed} of them by removed semaphores whose channels exist or whose kernels and \
                 requests may be under way: drop their channels and graphs and wait for the streams, or raise \
                 ProxyServiceConfig::max_semaphores"
            ),
        };
        Error::new(ErrorKind::Exhausted, "add_semaphore", message)
    }

    /// Removes a semaphore; the proxy that must be told.
    pub(super) fn remove_semaphore(&mut self, id: SemaphoreId) -> Result<usize> {
        let entry = self.semaphores.get_mut(usize::from(id.0)).and_then(Option::take);
        let entry = entry.ok_or_else(|| unknown_semaphore(id))?;
        Ok(entry.shard)
    }

    pub(super) fn add_memory(&mut self, memory: &RegisteredMemory) -> Result<MemoryId> {
        self.memory_numbers.take_back(&self.fifos);
        let number = self.memory_numbers.take(0..self.fifos.len()).ok_or_else(|| self.no_memory_number())?;
        let id = MemoryId(number.get());
        put(&mut self.memories, id.0, Memory { memory: memory.clone(), number });
        Ok(id)
    }

    #[cold]
    fn no_memory_number(&self) -> Error {
        let limit = self.memory_numbers.limit();
        let removed = limit - self.memories.iter().flatten().count();
        let message = match removed {
            0 => format!("there are {limit} memories already: remove some, or add larger ones"),
            _ => format!(
                "all {limit} numbers are in use, {removed} of them by removed memories whose channels exist or whose kernels and \
                 requests may be under way: drop their channels and graphs and wait for the streams, or add larger ones"
            ),
        };
        Error::new(ErrorKind::Exhausted, "add_memory", message)
    }

    pub(super) fn remove_memory(&mut self, id: MemoryId) -> Result<Memory> {
        let memory = self.memories.get_mut(usize::from(id.0)).and_then(Option::take);
        memory.ok_or_else(|| unknown_memory(id))
    }

    /// The proxy of a semaphore.
    pub(super) fn shard(&self, id: SemaphoreId) -> Result<usize> {
        self.entry(id).map(|entry| entry.shard)
    }

    pub(super) fn port(&self, id: SemaphoreId, dst: MemoryId, src: MemoryId) -> Result<Parts> {
        let entry = self.entry(id)?;
        let [dst, src] = [self.memory(dst)?, self.memory(src)?];
        Ok(Parts {
            semaphore: entry.semaphore.clone(),
            shard: entry.shard,
            dst: dst.memory.clone(),
            src: src.memory.clone(),
            numbers: [dst, src].map(|memory| memory.number.clone()),
        })
    }

    fn entry(&self, id: SemaphoreId) -> Result<&Entry> {
        let entry = self.semaphores.get(usize::from(id.0)).and_then(Option::as_ref);
        entry.ok_or_else(|| unknown_semaphore(id))
    }

    fn memory(&self, id: MemoryId) -> Result<&Memory> {
        let memory = self.memories.get(usize::from(id.0)).and_then(Option::as_ref);
        memory.ok_or_else(|| unknown_memory(id))
    }
}

fn put<T>(table: &mut Vec<Option<T>>, number: u16, value: T) {
    let number = usize::from(number);
    if table.len() <= number {
        table.resize_with(number + 1, || None);
    }
    table[number] = Some(value);
}
