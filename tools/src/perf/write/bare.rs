//! The bare loop that CudaIpc is compared with: the driver's copies on as many streams, timed by the same events.

use anyhow::Result;
use aqueduct::comm::Connection;
use aqueduct::gpu::{Event, Stream};

use super::connections::{Connections, Turn, Way};
use crate::job::Rank;
use crate::perf::copies::bare_copy;
use crate::perf::timing::StreamClock;

pub(super) struct Bare {
    /// One stream per peer and connection.
    streams: Vec<Stream>,
    connections: usize,
    clock: StreamClock,
    /// Makes the clock's stream wait for another stream.
    join: Event,
}

impl Bare {
    pub(super) fn new(rank: &Rank, connections: u32) -> Result<Self> {
        let context = &rank.context;
        let streams = (1..rank.bootstrap.size() * connections.max(1)).map(|_| Stream::new(context));
        let one = Stream::new(context)?;
        Ok(Self {
            streams: std::iter::once(Ok(one)).chain(streams).collect::<aqueduct::Result<_>>()?,
            connections: connections as usize,
            clock: StreamClock::new(rank)?,
            join: Event::new(context)?,
        })
    }

    /// Device time of a window over connections, in microseconds.
    pub(super) fn time_connections(
        &self,
        rank: &Rank,
        connections: &Connections,
        turn: &Turn,
        window: u32,
    ) -> Result<f64> {
        let used: Vec<&Connection> =
            connections.peers.iter().filter(|peer| peer.acts).flat_map(|peer| &peer.connections).collect();
        self.clock.time(rank, [], |clock, start| {
            used.iter().try_for_each(|connection| connection.wait_event(start))?;
            connections.post(turn, window)?;
            for connection in used {
                connection.record_event(&self.join)?;
                clock.wait_event(&self.join)?;
            }
            Ok(())
        })
    }

    /// Device time of as many copies by the driver between the same addresses, in microseconds.
    pub(super) fn time_copies(
        &self,
        rank: &Rank,
        connections: &Connections,
        turn: &Turn,
        window: u32,
    ) -> Result<f64> {
        let addresses = connections.addresses()?;
        let streams = &self.streams[..addresses.len() * self.connections];
        self.clock.time(rank, connections.memories(), |clock, start| {
            streams.iter().try_for_each(|stream| stream.wait_event(start))?;
            {
                let _entered = rank.context.enter()?;
                for (number, offset, len) in turn.operations(window) {
                    for (index, &(local, remote)) in addresses.iter().enumerate() {
                        let stream = &streams[index * self.connections + number % self.connections];
                        let (local, remote) = (local + offset as u64, remote + offset as u64);
                        let (to, from) =
                            if connections.way() == Way::Write { (remote, local) } else { (local, remote) };
                        // SAFETY: the context was entered above; the memories of `connections` hold both ranges, and the
                        // clock's stream, which waits for these streams, retains them.
                        unsafe { bare_copy(stream, to, from, len) }?;
                    }
                }
            }
            for stream in streams {
                self.join.record(stream)?;
                clock.wait_event(&self.join)?;
            }
            Ok(())
        })
    }
}
