//! Semaphores and memories of a service, as callers see them: their numbers, and the proxy that serves each.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use super::ids::{MemoryId, SemaphoreId, unknown_memory, unknown_semaphore};
use super::state::Ports;
use crate::comm::{Claim, Connection, Host2DeviceSemaphore, RegisteredMemory};
use crate::error::{Error, ErrorKind, Result};
use crate::proxy::fifo::Fifo;

/// Allocates numbers: unused ones first, then freed ones, oldest first, so that a number is reused as late as possible.
#[derive(Debug)]
struct Numbers {
    limit: usize,
    fresh: usize,
    freed: VecDeque<u16>,
}

impl Numbers {
    fn is_empty(&self) -> bool {
        self.fresh == self.limit && self.freed.is_empty()
    }

    fn take(&mut self) -> Option<u16> {
        if self.fresh < self.limit {
            self.fresh += 1;
            return u16::try_from(self.fresh - 1).ok();
        }
        self.freed.pop_front()
    }
}

#[derive(Debug)]
pub(super) struct Registry {
    semaphores: Vec<Option<Entry>>,
    semaphore_numbers: Numbers,
    /// Numbers that nobody has any more, with the shard and the position behind the last request that may name them.
    settling: Vec<(u16, usize, u64)>,
    /// The shard of each number's latest user.
    shards: Vec<Option<usize>>,
    /// Of each shard.
    fifos: Vec<Fifo>,
    memories: Vec<Option<RegisteredMemory>>,
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

/// A connection, and how many semaphores of the service use it.
#[derive(Debug)]
struct Served {
    connection: Connection,
    shard: usize,
    semaphores: usize,
    _claim: Claim,
}

/// The parts of a channel, and the proxy that serves it.
pub(super) struct Parts {
    pub(super) semaphore: Host2DeviceSemaphore,
    pub(super) shard: usize,
    pub(super) dst: RegisteredMemory,
    pub(super) src: RegisteredMemory,
}

impl Registry {
    pub(super) fn new(max_semaphores: usize, fifos: Vec<Fifo>) -> Self {
        let numbers = |limit| Numbers { limit, fresh: 0, freed: VecDeque::new() };
        Self {
            semaphores: Vec::new(),
            semaphore_numbers: numbers(max_semaphores),
            settling: Vec::new(),
            shards: Vec::new(),
            fifos,
            memories: Vec::new(),
            memory_numbers: numbers(1 << 16),
            connections: Vec::new(),
            next: 0,
        }
    }

    /// Whether a semaphore more would get no number now.
    pub(super) fn is_full(&mut self, ports: &Ports) -> bool {
        self.take_back(ports);
        self.semaphore_numbers.is_empty()
    }

    /// Takes numbers back that nobody has any more. Kernels have ended when a number comes, but what they pushed may still lie in
    /// the FIFO, and the proxy would take it for its next user's: it is free once the proxy has handled that.
    fn take_back(&mut self, ports: &Ports) {
        for number in ports.take_retired() {
            let shard = self.shards.get(usize::from(number)).copied().flatten();
            self.settling.extend(shard.map(|shard| (number, shard, self.fifos[shard].end_of_written())));
        }
        let (fifos, freed) = (&self.fifos, &mut self.semaphore_numbers.freed);
        self.settling.retain(|&(number, shard, end)| {
            let settled = fifos[shard].is_popped(end);
            freed.extend(settled.then_some(number));
            !settled
        });
    }

    /// Gives a semaphore a number and a proxy.
    pub(super) fn add_semaphore(
        &mut self,
        semaphore: &Host2DeviceSemaphore,
        ports: &Ports,
    ) -> Result<(SemaphoreId, usize)> {
        self.take_back(ports);
        let connection = semaphore.connection();
        let known = self.connections.iter().position(|served| served.connection.is(connection));
        let claim = if known.is_none() { Some(connection.claim()?) } else { None };
        let number = self.semaphore_numbers.take().ok_or_else(|| self.exhausted())?;
        let shard = known.map_or(self.next % self.fifos.len(), |index| self.connections[index].shard);
        if let Some(claim) = claim {
            self.next += 1;
            let connection = connection.clone();
            self.connections.push(Served { connection, shard, semaphores: 1, _claim: claim });
        } else if let Some(index) = known {
            self.connections[index].semaphores += 1;
        }
        put(&mut self.semaphores, number, Entry { semaphore: semaphore.clone(), shard });
        put(&mut self.shards, number, shard);
        Ok((SemaphoreId(number), shard))
    }

    #[cold]
    fn exhausted(&self) -> Error {
        let limit = self.semaphore_numbers.limit;
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
        if let Some(at) =
            self.connections.iter().position(|served| served.connection.is(entry.semaphore.connection()))
        {
            self.connections[at].semaphores -= 1;
            if self.connections[at].semaphores == 0 {
                self.connections.swap_remove(at);
            }
        }
        Ok(entry.shard)
    }

    /// Releases the connections, so that another service can use them.
    pub(super) fn release(&mut self) {
        self.connections.clear();
    }

    pub(super) fn add_memory(&mut self, memory: &RegisteredMemory) -> Result<MemoryId> {
        let number = self.memory_numbers.take().ok_or_else(|| {
            let message = "there are 65,536 memories already: remove some, or add larger ones";
            Error::new(ErrorKind::Exhausted, "add_memory", message)
        })?;
        put(&mut self.memories, number, memory.clone());
        Ok(MemoryId(number))
    }

    pub(super) fn remove_memory(&mut self, id: MemoryId) -> Result<()> {
        let memory = self.memories.get_mut(usize::from(id.0)).and_then(Option::take);
        memory.ok_or_else(|| unknown_memory(id))?;
        self.memory_numbers.freed.push_back(id.0);
        Ok(())
    }

    /// The proxy of a semaphore.
    pub(super) fn shard(&self, id: SemaphoreId) -> Result<usize> {
        self.entry(id).map(|entry| entry.shard)
    }

    pub(super) fn port(&self, id: SemaphoreId, dst: MemoryId, src: MemoryId) -> Result<Parts> {
        let entry = self.entry(id)?;
        let (dst, src) = (self.memory(dst)?.clone(), self.memory(src)?.clone());
        Ok(Parts { semaphore: entry.semaphore.clone(), shard: entry.shard, dst, src })
    }

    fn entry(&self, id: SemaphoreId) -> Result<&Entry> {
        let entry = self.semaphores.get(usize::from(id.0)).and_then(Option::as_ref);
        entry.ok_or_else(|| unknown_semaphore(id))
    }

    fn memory(&self, id: MemoryId) -> Result<&RegisteredMemory> {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_used_again_as_late_as_possible() {
        let mut numbers = Numbers { limit: 3, fresh: 0, freed: VecDeque::new() };
        assert_eq!([numbers.take(), numbers.take()], [Some(0), Some(1)]);
        numbers.freed.extend([1, 0]);
        assert_eq!([(); 4].map(|()| numbers.take()), [Some(2), Some(1), Some(0), None]);
    }
}
