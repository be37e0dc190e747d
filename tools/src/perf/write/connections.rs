//! The connections of a rank, what it writes from, and what its peers write to.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use aqueduct::comm::{Connection, Host2HostSemaphore, HostBuffer, RegisteredMemory};
use aqueduct::gpu::GpuBuffer;

use super::args::{Args, Memory, Pattern};
use crate::job::Rank;
use crate::perf::channel::{different, paint};

/// Bytes behind the data that nobody may touch.
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xA5;

/// Everything of this rank's.
pub(super) struct Connections {
    me: u32,
    pub(super) source: RegisteredMemory,
    /// A slot for each rank that writes here.
    inbox: RegisteredMemory,
    pub(super) peers: Vec<Peer>,
    iteration: std::cell::Cell<u32>,
}

/// A rank that this one is connected with.
pub(super) struct Peer {
    rank: u32,
    pub(super) connections: Vec<Connection>,
    semaphores: Vec<Host2HostSemaphore>,
    pub(super) target: RegisteredMemory,
    /// Where this rank writes in the target.
    pub(super) at: usize,
    /// Where the peer writes in the inbox.
    from: usize,
    /// Whether this rank writes to it, and is written to by it.
    pub(super) sends: bool,
    receives: bool,
}

impl Connections {
    /// Collective.
    pub(super) fn prepare(rank: &Rank, args: &Args, most: usize) -> Result<Self> {
        let (me, size, comm) = (rank.bootstrap.rank(), rank.bootstrap.size(), &rank.comm);
        let slot = (most + GUARD).next_multiple_of(256);
        let all = args.pattern == Pattern::AllToAll;
        // Beginning with the next rank, so that no rank is everybody's first.
        let peers: Vec<u32> =
            if all { (1..size).map(|step| (me + step) % size).collect() } else { vec![me ^ 1] };
        let source = memory(rank, args, args.memory, slot)?;
        let inbox = memory(
            rank,
            args,
            args.peer_memory.unwrap_or(args.memory),
            if all { slot * size as usize } else { slot },
        )?;
        let mut pending = Vec::new();
        for &peer in &peers {
            comm.send_memory(&inbox, peer, 0)?;
            let target = comm.recv_memory(peer, 0)?;
            let mut ways = Vec::new();
            for tag in 0..u64::from(args.connections) {
                let connection = comm.connect(peer, tag, args.transport)?;
                let semaphore = comm.build_host2host_semaphore(&connection, tag)?;
                ways.push((connection, semaphore));
            }
            pending.push((peer, target, ways));
        }
        comm.setup(rank.deadline())?;
        let place = |rank: u32| if all { slot * rank as usize } else { 0 };
        let peers = pending
            .into_iter()
            .map(|(peer, target, ways)| {
                Ok(Peer {
                    rank: peer,
                    connections: ways.iter().map(|(c, _)| c.get()).collect::<aqueduct::Result<_>>()?,
                    semaphores: ways.iter().map(|(_, s)| s.get()).collect::<aqueduct::Result<_>>()?,
                    target: target.get()?,
                    at: place(me),
                    from: place(peer),
                    sends: all || me.is_multiple_of(2),
                    receives: all || !me.is_multiple_of(2),
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self { me, source, inbox, peers, iteration: std::cell::Cell::new(0) })
    }

    /// How many ranks this one writes to.
    pub(super) fn written(&self) -> usize {
        self.peers.iter().filter(|peer| peer.sends).count()
    }

    /// Every connection that is written to, with its peer.
    pub(super) fn ways(&self, number: usize) -> impl Iterator<Item = (&Peer, &Connection)> {
        self.peers
            .iter()
            .filter(|peer| peer.sends)
            .map(move |peer| (peer, &peer.connections[number % peer.connections.len()]))
    }

    /// Fresh data over all connections, in parts: wrong bytes in what arrived here, and beside it.
    pub(super) fn check(&self, rank: &Rank, bytes: usize) -> Result<u64> {
        let iteration = self.iteration.get() + 1;
        self.iteration.set(iteration);
        load(rank, &self.source, 0, &paint(bytes, self.me, iteration))?;
        load(rank, &self.inbox, 0, &vec![GUARD_BYTE; self.inbox.len()])?;
        rank.barrier()?;
        for peer in self.peers.iter().filter(|peer| peer.sends) {
            let part = bytes.div_ceil(peer.connections.len());
            for (index, connection) in peer.connections.iter().enumerate() {
                let start = (index * part).min(bytes);
                let len = part.min(bytes - start);
                connection.write(&peer.target, peer.at + start, &self.source, start, len)?;
                peer.semaphores[index].signal()?;
            }
        }
        let mut wrong = 0;
        for peer in self.peers.iter().filter(|peer| peer.receives) {
            peer.semaphores.iter().try_for_each(|semaphore| semaphore.wait(rank.deadline()))?;
            let seen = look(rank, &self.inbox, peer.from, bytes + GUARD)?;
            wrong += different(&seen[..bytes], &paint(bytes, peer.rank, iteration));
            wrong += seen[bytes..].iter().filter(|&&byte| byte != GUARD_BYTE).count();
        }
        self.flush(rank)?;
        rank.barrier()?;
        Ok(wrong as u64)
    }

    /// Writes `window` times to every peer, each time over the next connection, and waits for all.
    pub(super) fn window(&self, rank: &Rank, bytes: usize, window: u32) -> Result<()> {
        self.post(bytes, window)?;
        self.flush(rank)
    }

    /// The same without waiting.
    pub(super) fn post(&self, bytes: usize, window: u32) -> Result<()> {
        for number in 0..window as usize {
            for (peer, connection) in self.ways(number) {
                connection.write(&peer.target, peer.at, &self.source, 0, bytes)?;
            }
        }
        Ok(())
    }

    fn flush(&self, rank: &Rank) -> Result<()> {
        let connections = self.peers.iter().filter(|peer| peer.sends).flat_map(|peer| &peer.connections);
        for connection in connections {
            connection.flush(rank.deadline())?;
        }
        Ok(())
    }

    /// Data with a signal behind it, back and forth: microseconds one way.
    pub(super) fn bounce(&self, rank: &Rank, bytes: usize, count: u32) -> Result<f64> {
        let peer = &self.peers[0];
        let (connection, semaphore, begins) = (&peer.connections[0], &peer.semaphores[0], peer.sends);
        let deadline = rank.deadline();
        let send = || -> Result<()> {
            // Both go in one system call, or with one doorbell.
            let _batch = connection.batch();
            connection.write(&peer.target, peer.at, &self.source, 0, bytes)?;
            Ok(semaphore.signal()?)
        };
        let start = Instant::now();
        for _ in 0..count {
            if begins {
                send()?;
                semaphore.wait(deadline)?;
            } else {
                semaphore.wait(deadline)?;
                send()?;
            }
        }
        let time = micros(start, count) / 2.0;
        connection.flush(deadline)?;
        Ok(time)
    }

    /// Microseconds from a write until it is known to have arrived.
    pub(super) fn write_and_flush(&self, rank: &Rank, bytes: usize, count: u32) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..count {
            self.window(rank, bytes, 1)?;
        }
        Ok(if self.written() > 0 { micros(start, count) } else { 0.0 })
    }
}

fn memory(rank: &Rank, args: &Args, kind: Memory, len: usize) -> Result<RegisteredMemory> {
    Ok(match kind {
        Memory::Host => {
            rank.comm.register_host(&Arc::new(HostBuffer::new(&rank.context, len)?), args.transport)?
        }
        Memory::Device => {
            rank.comm.register_memory(&Arc::new(GpuBuffer::new(&rank.context, len)?), args.transport)?
        }
    })
}

fn load(rank: &Rank, memory: &RegisteredMemory, at: usize, data: &[u8]) -> Result<()> {
    match memory.host() {
        Some(host) => host.write(at, data)?,
        None => memory.slice()?.upload(at, data, rank.deadline())?,
    }
    Ok(())
}

fn look(rank: &Rank, memory: &RegisteredMemory, at: usize, len: usize) -> Result<Vec<u8>> {
    let mut seen = vec![0; len];
    match memory.host() {
        Some(host) => host.read(at, &mut seen)?,
        None => memory.slice()?.download(at, &mut seen, rank.deadline())?,
    }
    Ok(seen)
}

/// Microseconds since `start`, divided by `count`.
pub(super) fn micros(start: Instant, count: u32) -> f64 {
    start.elapsed().as_secs_f64() * 1e6 / f64::from(count)
}
