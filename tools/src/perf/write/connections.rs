//! The connections of a rank, with the source of its writes and the target of its peers' writes.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use aqueduct::comm::{Connection, Host2HostSemaphore, HostBuffer, RegisteredMemory};
use aqueduct::gpu::GpuBuffer;

use super::args::{Args, Memory, Pattern};
use crate::job::Rank;
use crate::perf::channel::{different, paint};

/// Bytes behind the data that no write may touch.
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xA5;

/// All connections of this rank.
pub(super) struct Connections {
    me: u32,
    pub(super) source: RegisteredMemory,
    /// Target of the peers' writes, with a slot for each of them.
    inbox: RegisteredMemory,
    pub(super) peers: Vec<Peer>,
    iteration: std::cell::Cell<u32>,
}

/// A rank that this one is connected to.
pub(super) struct Peer {
    rank: u32,
    pub(super) connections: Vec<Connection>,
    semaphores: Vec<Host2HostSemaphore>,
    pub(super) target: RegisteredMemory,
    /// Offset in `target` that this rank writes to.
    pub(super) at: usize,
    /// Offset in the inbox that the peer writes to.
    from: usize,
    /// Whether this rank writes to the peer.
    pub(super) sends: bool,
    receives: bool,
}

impl Connections {
    /// Connects to all peers of the pattern, for writes of up to `most` bytes. Collective.
    pub(super) fn prepare(rank: &Rank, args: &Args, most: usize) -> Result<Self> {
        let (me, size, comm) = (rank.bootstrap.rank(), rank.bootstrap.size(), &rank.comm);
        let slot = (most + GUARD).next_multiple_of(256);
        let all = args.pattern == Pattern::AllToAll;
        // Start with the next rank, so that not all ranks write to the same one first.
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

    /// Number of ranks that this one writes to.
    pub(super) fn written(&self) -> usize {
        self.peers.iter().filter(|peer| peer.sends).count()
    }

    /// For each peer that this rank writes to, the connection for write `number`.
    pub(super) fn ways(&self, number: usize) -> impl Iterator<Item = (&Peer, &Connection)> {
        self.peers
            .iter()
            .filter(|peer| peer.sends)
            .map(move |peer| (peer, &peer.connections[number % peer.connections.len()]))
    }

    /// Writes fresh data over all connections, a part over each. Returns the number of wrong bytes in the data that
    /// arrived here and in the guard behind it.
    pub(super) fn check(&self, rank: &Rank, bytes: usize) -> Result<u64> {
        let iteration = self.iteration.get() + 1;
        self.iteration.set(iteration);
        write_memory(rank, &self.source, 0, &paint(bytes, self.me, iteration))?;
        write_memory(rank, &self.inbox, 0, &vec![GUARD_BYTE; self.inbox.len()])?;
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
            let seen = read_memory(rank, &self.inbox, peer.from, bytes + GUARD)?;
            wrong += different(&seen[..bytes], &paint(bytes, peer.rank, iteration));
            wrong += seen[bytes..].iter().filter(|&&byte| byte != GUARD_BYTE).count();
        }
        self.flush(rank)?;
        rank.barrier()?;
        Ok(wrong as u64)
    }

    /// Writes `window` times to every peer, over its connections in turn, and flushes.
    pub(super) fn window(&self, rank: &Rank, bytes: usize, window: u32) -> Result<()> {
        self.post(bytes, window)?;
        self.flush(rank)
    }

    /// The same without the flush.
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

    /// Bounces a write and a signal `count` times. Returns half a round trip in microseconds.
    pub(super) fn bounce(&self, rank: &Rank, bytes: usize, count: u32) -> Result<f64> {
        let peer = &self.peers[0];
        let (connection, semaphore, begins) = (&peer.connections[0], &peer.semaphores[0], peer.sends);
        let deadline = rank.deadline();
        let send = || -> Result<()> {
            // The batch sends both with one system call or one doorbell.
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

    /// Time of a write and its flush in microseconds.
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

fn write_memory(rank: &Rank, memory: &RegisteredMemory, at: usize, data: &[u8]) -> Result<()> {
    match memory.host() {
        Some(host) => host.write(at, data)?,
        None => memory.slice()?.upload(at, data, rank.deadline())?,
    }
    Ok(())
}

fn read_memory(rank: &Rank, memory: &RegisteredMemory, at: usize, len: usize) -> Result<Vec<u8>> {
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
