//! The bare loop that CudaIpc is compared with: the driver's copies on as many streams, timed by the same events.

use anyhow::{Result, bail};
use aqueduct::comm::Connection;
use aqueduct::gpu::{Event, Stream};

use super::connections::{Connections, Turn, Way};
use crate::job::Rank;

pub(super) struct Bare {
    /// One stream per peer and connection.
    streams: Vec<Stream>,
    connections: usize,
    /// The stream on which the start and the end of a measurement are recorded.
    clock: Stream,
    start: Event,
    end: Event,
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
            clock: Stream::new(context)?,
            start: Event::timed(context)?,
            end: Event::timed(context)?,
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
        self.start.record(&self.clock)?;
        used.iter().try_for_each(|connection| connection.wait_event(&self.start))?;
        connections.post(turn, window)?;
        for connection in used {
            connection.record_event(&self.join)?;
            self.clock.wait_event(&self.join)?;
        }
        self.elapsed(rank)
    }

    /// Device time of as many copies by the driver between the same addresses, in microseconds.
    pub(super) fn time_copies(
        &self,
        rank: &Rank,
        connections: &Connections,
        turn: &Turn,
        window: u32,
    ) -> Result<f64> {
        let (driver, context) = (rank.context.driver(), &rank.context);
        let addresses = connections.addresses()?;
        let streams = &self.streams[..addresses.len() * self.connections];
        self.start.record(&self.clock)?;
        streams.iter().try_for_each(|stream| stream.wait_event(&self.start))?;
        {
            let _entered = context.enter()?;
            let copy = driver.table().cuMemcpyAsync;
            for (number, offset, len) in turn.operations(window) {
                for (index, &(local, remote)) in addresses.iter().enumerate() {
                    let stream = &streams[index * self.connections + number % self.connections];
                    let (local, remote) = (local + offset as u64, remote + offset as u64);
                    let (to, from) =
                        if connections.way() == Way::Write { (remote, local) } else { (local, remote) };
                    // SAFETY: both ranges lie in memories that `connections` keeps until after the wait below.
                    let code = unsafe { copy(to, from, len, stream.raw()) };
                    if code.0 != 0 {
                        bail!("cuMemcpyAsync failed with {code:?}");
                    }
                }
            }
        }
        for stream in streams {
            self.join.record(stream)?;
            self.clock.wait_event(&self.join)?;
        }
        self.elapsed(rank)
    }

    fn elapsed(&self, rank: &Rank) -> Result<f64> {
        self.end.record(&self.clock)?;
        self.end.synchronize(rank.deadline())?;
        Ok(f64::from(self.end.elapsed_ms(&self.start)?) * 1e3)
    }
}
