//! Cost of a write through a communicator's connection: checks, tracking of memory in use, and the lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct::bootstrap::{self, Bootstrap, LocalBootstrap};
use aqueduct::comm::{Communicator, CommunicatorConfig, Connection, HostBuffer, RegisteredMemory, Transport};
use aqueduct::gpu::{Context, Device, Driver};
use aqueduct::internals::rdma::Verbs;
use aqueduct::{Deadline, Error, Result};

use crate::{REQUESTS, ROUNDS, standin};

/// Median, minimum and maximum time in nanoseconds per 8-byte write, in batches of `batch`, with a flush at the end of
/// a round.
pub(crate) fn writes(batch: u64) -> Result<[f64; 3]> {
    let mut ranks = bootstrap::local(2);
    let other = ranks.pop().ok_or_else(|| Error::usage("bench", "two ranks"))?;
    let peer = std::thread::spawn(move || End::new(&other)?.wait(&other));
    let own = ranks.remove(0);
    let end = End::new(&own)?;
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 0..=ROUNDS {
        let start = Instant::now();
        end.round(batch)?;
        // The first round is the warm-up.
        if round > 0 {
            times.push(start.elapsed().as_secs_f64() * 1e9 / REQUESTS as f64);
        }
    }
    end.wait(&own)?;
    peer.join().map_err(|_| Error::usage("bench", "the other rank panicked"))??;
    times.sort_by(f64::total_cmp);
    Ok([times[ROUNDS / 2], times[0], times[ROUNDS - 1]])
}

struct End {
    connection: Connection,
    source: RegisteredMemory,
    target: RegisteredMemory,
    _inbox: RegisteredMemory,
    _comm: Communicator,
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

impl End {
    fn new(bootstrap: &LocalBootstrap) -> Result<Self> {
        let driver = Driver::software(cuda_soft::driver_table())?;
        let context = Context::new(&Device::new(&driver, 0)?)?;
        let verbs = Verbs::from_table(standin::table(), "stand-in");
        let number = verbs.devices(None)?.iter().position(|device| device.name() == "null0");
        let transport = Transport::Ib(u8::try_from(number.unwrap_or(0)).unwrap_or(0));
        let config = CommunicatorConfig::default().with_verbs(verbs);
        let comm = Communicator::new(bootstrap, &context, config, soon())?;
        let memory = || comm.register_host(&Arc::new(HostBuffer::new(&context, 4096)?), transport);
        let (source, inbox, peer) = (memory()?, memory()?, 1 - comm.rank());
        comm.send_memory(&inbox, peer, 0)?;
        let target = comm.recv_memory(peer, 0)?;
        let connection = comm.connect(peer, 0, transport)?;
        comm.setup(soon())?;
        Ok(Self { connection: connection.get()?, source, target: target.get()?, _inbox: inbox, _comm: comm })
    }

    fn round(&self, batch: u64) -> Result<()> {
        for _ in 0..REQUESTS / batch {
            let _together = self.connection.batch();
            for _ in 0..batch {
                self.connection.write(&self.target, 0, &self.source, 0, 8)?;
            }
        }
        self.connection.flush(soon())
    }

    /// Waits until both ranks are done.
    fn wait(&self, bootstrap: &LocalBootstrap) -> Result<()> {
        bootstrap.barrier(soon())
    }
}
