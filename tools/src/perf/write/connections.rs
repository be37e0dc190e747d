//! The connections of a rank, with the memory that its data leaves from and the memory that data of peers arrives in.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use aqueduct::comm::{Connection, Host2HostSemaphore, HostBuffer, RegisteredMemory};
use aqueduct::gpu::{GpuBuffer, KeepAlive};
use aqueduct::plan::Reduction;

use super::args::{Args, Memory, Pattern};
use crate::job::Rank;
use crate::perf::checker::{CheckBy, Checker, GUARD, GUARD_BYTE, touched};
use crate::perf::data::{Expected, Kind};

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The acting rank writes into the peer's memory.
    Write,
    /// The acting rank reads from the peer's memory.
    Read,
}

/// One call: a write or read of each part, as offset and length. The parts lie one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    parts: Vec<(usize, usize)>,
    pub(super) bytes: usize,
}

/// All connections of this rank.
pub(super) struct Connections {
    me: u32,
    way: Way,
    checker: Checker,
    /// Memory that data of this rank leaves from.
    pub(super) source: RegisteredMemory,
    /// Memory that data arrives in, with a slot for each peer.
    pub(super) inbox: RegisteredMemory,
    pub(super) peers: Vec<Peer>,
    iteration: std::cell::Cell<u32>,
}

/// A rank that this one is connected to.
pub(super) struct Peer {
    rank: u32,
    pub(super) connections: Vec<Connection>,
    semaphores: Vec<Host2HostSemaphore>,
    /// The peer's inbox if data is written, its source if it is read.
    pub(super) remote: RegisteredMemory,
    /// Offset in `remote` of what this rank writes to or reads.
    pub(super) at: usize,
    /// Offset in the inbox of the data of the peer.
    from: usize,
    /// Whether this rank writes to the peer or reads from it.
    pub(super) acts: bool,
    /// Whether data of the peer arrives here.
    receives: bool,
}

impl Turn {
    /// Parts of these lengths.
    pub(super) fn new(sizes: impl IntoIterator<Item = usize>) -> Self {
        let mut bytes = 0;
        let place = |size: usize| {
            let part = (bytes, size);
            bytes += size;
            part
        };
        let parts = sizes.into_iter().map(place).collect();
        Self { parts, bytes }
    }

    /// Number of writes or reads.
    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    /// For the writes or reads of `window` turns: their number, offset and length.
    pub(super) fn operations(&self, window: u32) -> impl Iterator<Item = (usize, usize, usize)> {
        let all = (0..window as usize).flat_map(|_| &self.parts).enumerate();
        all.map(|(number, &(offset, len))| (number, offset, len))
    }

    /// The same bytes in as many parts as there are connections, if it is only one part.
    fn over(&self, connections: usize) -> Self {
        match self.parts[..] {
            [(0, bytes)] => {
                let part = bytes.div_ceil(connections).max(1);
                Self::new((0..connections).map(|index| part.min(bytes.saturating_sub(index * part))))
            }
            _ => self.clone(),
        }
    }
}

impl Connections {
    /// Connects to all peers of the pattern, for turns of up to `most` bytes. Collective.
    pub(super) fn prepare(rank: &Rank, args: &Args, way: Way, most: usize) -> Result<Self> {
        let (me, size, comm) = (rank.bootstrap.rank(), rank.bootstrap.size(), &rank.comm);
        let slot = (most + GUARD).next_multiple_of(256);
        let all = args.pattern == Pattern::AllToAll;
        // Start with the next rank, so that not all ranks begin with the same one.
        let peers: Vec<u32> =
            if all { (1..size).map(|step| (me + step) % size).collect() } else { vec![me ^ 1] };
        let target = args.peer_memory.unwrap_or(args.memory);
        // Host memory needs no kernel.
        let host = args.memory == Memory::Host && target == Memory::Host;
        let check_by = if host { CheckBy::Host } else { args.check_by };
        let checker = Checker::prepare(rank, check_by, Kind::Byte, Reduction::Sum)?;
        let source = memory(rank, args, args.memory, slot)?;
        let inbox = memory(rank, args, target, if all { slot * size as usize } else { slot })?;
        let mut pending = Vec::new();
        for &peer in &peers {
            comm.send_memory(if way == Way::Write { &inbox } else { &source }, peer, 0)?;
            let remote = comm.recv_memory(peer, 0)?;
            let mut ways = Vec::new();
            for tag in 0..u64::from(args.connections) {
                let connection = comm.connect(peer, tag, args.transport)?;
                let semaphore = comm.build_host2host_semaphore(&connection, tag)?;
                ways.push((connection, semaphore));
            }
            pending.push((peer, remote, ways));
        }
        comm.setup(rank.deadline())?;
        let place = |rank: u32| if all { slot * rank as usize } else { 0 };
        let both = args.pattern != Pattern::Pairs;
        let (even, odd) = (me.is_multiple_of(2), !me.is_multiple_of(2));
        let peers = pending
            .into_iter()
            .map(|(peer, remote, ways)| {
                Ok(Peer {
                    rank: peer,
                    connections: ways.iter().map(|(c, _)| c.get()).collect::<aqueduct::Result<_>>()?,
                    semaphores: ways.iter().map(|(_, s)| s.get()).collect::<aqueduct::Result<_>>()?,
                    remote: remote.get()?,
                    // A source has the same data for every peer.
                    at: if way == Way::Write { place(me) } else { 0 },
                    from: place(peer),
                    acts: both || even,
                    receives: both || if way == Way::Write { odd } else { even },
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self { me, way, checker, source, inbox, peers, iteration: std::cell::Cell::new(0) })
    }

    /// Number of ranks that this one writes to or reads from.
    pub(super) fn acted_on(&self) -> usize {
        self.peers.iter().filter(|peer| peer.acts).count()
    }

    /// The peers that this rank writes to or reads from, each with the connection for operation `number`.
    pub(super) fn acting(&self, number: usize) -> impl Iterator<Item = (&Peer, &Connection)> {
        self.peers
            .iter()
            .filter(|peer| peer.acts)
            .map(move |peer| (peer, &peer.connections[number % peer.connections.len()]))
    }

    /// Moves fresh data over all connections, a part over each. Returns the number of wrong bytes in the data that
    /// arrived here and in the guard behind it.
    pub(super) fn check(&self, rank: &Rank, turn: &Turn) -> Result<u64> {
        let (iteration, bytes) = (self.iteration.get() + 1, turn.bytes);
        self.iteration.set(iteration);
        self.fill(rank, bytes, Expected::bytes(self.me, iteration))?;
        for peer in self.peers.iter().filter(|peer| peer.receives) {
            clear(rank, &self.inbox, peer.from, bytes + GUARD)?;
        }
        rank.barrier()?;
        for peer in self.peers.iter().filter(|peer| peer.acts) {
            for (number, offset, len) in turn.over(peer.connections.len()).operations(1) {
                self.start(peer, &peer.connections[number % peer.connections.len()], offset, len)?;
            }
            if self.way == Way::Write {
                peer.semaphores.iter().try_for_each(Host2HostSemaphore::signal)?;
            }
        }
        if self.way == Way::Read {
            self.flush(rank)?;
        }
        let mut wrong = 0;
        for peer in self.peers.iter().filter(|peer| peer.receives) {
            if self.way == Way::Write {
                peer.semaphores.iter().try_for_each(|semaphore| semaphore.wait(rank.deadline()))?;
            }
            wrong += self.wrong(rank, peer.from, bytes, Expected::bytes(peer.rank, iteration))?;
        }
        self.flush(rank)?;
        rank.barrier()?;
        Ok(wrong)
    }

    /// Fills the source.
    fn fill(&self, rank: &Rank, bytes: usize, data: Expected) -> Result<()> {
        match self.source.host() {
            Some(host) => self.checker.fill_parts(bytes, data, |at, part| Ok(host.write(at, part)?)),
            None => self.checker.fill(rank, &self.source.slice()?.slice(..bytes)?, data),
        }
    }

    /// Number of wrong bytes in the data that arrived at offset `from` and in the guard behind it.
    fn wrong(&self, rank: &Rank, from: usize, bytes: usize, data: Expected) -> Result<u64> {
        let (end, mut guard) = (from + bytes, [0; GUARD]);
        let wrong = match self.inbox.host() {
            Some(host) => {
                host.read(end, &mut guard)?;
                self.checker.wrong_parts(bytes, data, 0, |at, part| Ok(host.read(from + at, part)?))?
            }
            None => {
                let inbox = self.inbox.slice()?;
                inbox.download(end, &mut guard, rank.deadline())?;
                self.checker.wrong(rank, &inbox.slice(from..end)?, data, 0)?
            }
        };
        Ok(wrong + touched(&guard))
    }

    /// How data is checked, for the head.
    pub(super) fn checks(&self) -> &'static str {
        self.checker.meaning()
    }

    /// Starts one write or read.
    fn start(&self, peer: &Peer, connection: &Connection, offset: usize, len: usize) -> Result<()> {
        let (inbox, at) = (&self.inbox, peer.at + offset);
        match self.way {
            Way::Write => connection.write(&peer.remote, at, &self.source, offset, len),
            Way::Read => connection.read(inbox, peer.from + offset, &peer.remote, at, len),
        }?;
        Ok(())
    }

    /// Makes `window` turns with every peer, over its connections in turn, and flushes.
    pub(super) fn window(&self, rank: &Rank, turn: &Turn, window: u32) -> Result<()> {
        self.post(turn, window)?;
        self.flush(rank)
    }

    /// The same without the flush.
    pub(super) fn post(&self, turn: &Turn, window: u32) -> Result<()> {
        for (number, offset, len) in turn.operations(window) {
            for (peer, connection) in self.acting(number) {
                self.start(peer, connection, offset, len)?;
            }
        }
        Ok(())
    }

    fn flush(&self, rank: &Rank) -> Result<()> {
        let connections = self.peers.iter().filter(|peer| peer.acts).flat_map(|peer| &peer.connections);
        for connection in connections {
            connection.flush(rank.deadline())?;
        }
        Ok(())
    }

    /// Local and remote address of what this rank moves to or from each peer.
    pub(super) fn addresses(&self) -> aqueduct::Result<Vec<(u64, u64)>> {
        let mut addresses = Vec::new();
        for (peer, _) in self.acting(0) {
            let local = match self.way {
                Way::Write => self.source.slice()?.ptr(),
                Way::Read => self.inbox.slice()?.ptr() + peer.from as u64,
            };
            addresses.push((local, peer.remote.slice()?.ptr() + peer.at as u64));
        }
        Ok(addresses)
    }

    /// The owners of all memory at [`addresses`](Self::addresses), for a stream to retain.
    pub(super) fn memories(&self) -> Vec<KeepAlive> {
        let local = [&self.source, &self.inbox];
        local.into_iter().chain(self.peers.iter().map(|peer| &peer.remote)).map(|m| m.keep_alive()).collect()
    }

    pub(super) fn way(&self) -> Way {
        self.way
    }

    /// Bounces a write and a signal `count` times. Returns half a round trip in microseconds.
    pub(super) fn bounce(&self, rank: &Rank, bytes: usize, count: u32) -> Result<f64> {
        let peer = &self.peers[0];
        let (connection, semaphore, begins) = (&peer.connections[0], &peer.semaphores[0], peer.acts);
        let deadline = rank.deadline();
        let send = || -> Result<()> {
            // The batch sends both with one system call or one doorbell.
            let _batch = connection.batch();
            self.start(peer, connection, 0, bytes)?;
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
        let (start, turn) = (Instant::now(), Turn::new([bytes]));
        for _ in 0..count {
            self.window(rank, &turn, 1)?;
        }
        Ok(if self.acted_on() > 0 { micros(start, count) } else { 0.0 })
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

/// Sets memory to bytes that no data is expected to leave.
fn clear(rank: &Rank, memory: &RegisteredMemory, from: usize, len: usize) -> Result<()> {
    const PART: usize = 1 << 16;
    let Some(host) = memory.host() else {
        return Ok(memory.slice()?.slice(from..from + len)?.fill(GUARD_BYTE, rank.deadline())?);
    };
    for at in (0..len).step_by(PART) {
        host.write(from + at, &[GUARD_BYTE; PART][..PART.min(len - at)])?;
    }
    Ok(())
}

/// Microseconds since `start`, divided by `count`.
pub(super) fn micros(start: Instant, count: u32) -> f64 {
    start.elapsed().as_secs_f64() * 1e6 / f64::from(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::as_two_ranks;

    #[test]
    fn parts_of_a_turn_lie_one_behind_the_other() {
        let turn = Turn::new([64, 4096, 8]);
        assert_eq!((turn.bytes, turn.len()), (4168, 3));
        let all: Vec<_> = turn.operations(2).collect();
        assert_eq!(all[..4], [(0, 0, 64), (1, 64, 4096), (2, 4160, 8), (3, 0, 64)]);
        assert_eq!(all.len(), 6);
        assert_eq!(turn.over(2), turn);
    }

    #[test]
    fn one_part_is_checked_over_all_connections() {
        for (bytes, connections) in [(0, 1), (1, 4), (10, 3), (4096, 4)] {
            let parts = Turn::new([bytes]).over(connections);
            assert_eq!((parts.bytes, parts.len()), (bytes, connections), "{parts:?}");
        }
        assert_eq!(Turn::new([10]).over(3).parts, [(0, 4), (4, 4), (8, 2)]);
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// Rank 0 writes a byte more than rank 1 expects.
    #[test]
    fn a_write_behind_the_data_is_found() {
        for memory in ["host", "device"] {
            let line = ["write", "--transport", "Ethernet", "--memory", memory];
            let args = <Line as clap::Parser>::parse_from(line).args;
            let wrong = as_two_ranks(|rank| {
                let connections = Connections::prepare(rank, &args, Way::Write, 1024).unwrap();
                let more = 1 - rank.bootstrap.rank() as usize;
                [0, more].map(|more| connections.check(rank, &Turn::new([64 + more])).unwrap())
            });
            assert_eq!(wrong, [[0, 0], [0, 1]], "{memory}");
        }
    }
}
