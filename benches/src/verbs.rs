//! CPU time of a work request, without a NIC: `cargo run --release -p aqueduct-benches --bin verbs [WORD]` runs all
//! subjects, or those with this word in their name.
//!
//! Requests go to the stand-in provider of `sys/rdma-core-sys/tests`: first as a null provider, which only accepts and
//! completes them, then as one that also checks them and copies their data. Prints one line per subject: nanoseconds
//! per request, including the provider's share (median, minimum and maximum over its rounds; on a machine under other
//! load the minimum is most reliable), requests per doorbell and per completion.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::time::Instant;

use aqueduct::Result;
use aqueduct::internals::rdma::{
    Access, Batch, CompletionQueue, MemoryRegion, QpOptions, QueuePair, ReadyToSend, RemoteRegion, Settings,
    Verbs, Window,
};

mod connection;
#[path = "../../sys/rdma-core-sys/tests/standin/mod.rs"]
mod standin;

const ROUNDS: usize = 201;
/// Requests per round. A round is short enough to end within one time slice of the scheduler.
const REQUESTS: u64 = 8 * 1024;
const BYTES: usize = 4096;

fn main() -> Result<()> {
    let rig = Rig::new()?;
    let word = std::env::args().nth(1).unwrap_or_default();
    for (provider, null) in [("a null provider", true), ("a provider that copies", false)] {
        standin::swallow(null);
        println!(
            "# {provider:<52} {:>9} {:>7} {:>7} {:>12} {:>14}",
            "median ns", "min", "max", "per doorbell", "per completion"
        );
        for (doorbell, signal) in [(1, 1), (1, 16), (16, 16), (64, 64)] {
            let name = |what: &str| format!("{what}, {doorbell} per doorbell, {signal} per completion");
            for (name, kind) in
                [(name("8 bytes inline"), Kind::Inline), (name("8 bytes registered"), Kind::Registered(8))]
            {
                if name.contains(&word) {
                    rig.report(&name, doorbell, signal, kind)?;
                }
            }
        }
        for batch in [1, 16, 64] {
            let name = format!("Connection::write, 8 bytes, {batch} per doorbell");
            if name.contains(&word) {
                let [median, min, max] = connection::writes(batch)?;
                println!("  {name:<52} {median:>9.1} {min:>7.1} {max:>7.1}");
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Kind {
    Inline,
    Registered(u64),
}

/// A queue pair connected to itself, and memory to write to.
struct Rig {
    qp: QueuePair<ReadyToSend>,
    cq: CompletionQueue,
    local: MemoryRegion,
    remote: RemoteRegion,
}

/// Memory that only the provider touches.
struct Memory(Box<[UnsafeCell<u8>]>);
// SAFETY: nobody in this program reads or writes it; the provider copies under its lock.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Rig {
    fn new() -> Result<Self> {
        let settings = Settings::default();
        let context = Verbs::from_table(standin::table(), "stand-in").device("null0")?.open()?;
        let (pd, cq) = (context.protection_domain()?, context.completion_queue(4096)?);
        let qp = pd.queue_pair(&QpOptions::default(), &cq, &cq)?;
        let qp = qp.init(&context.active_port(&settings)?, &settings, Access::FLAGS)?;
        let own = qp.address();
        let qp = qp.connect(&own)?.ready_to_send()?;
        let memory = Arc::new(Memory((0..BYTES).map(|_| UnsafeCell::new(0)).collect()));
        let start = memory.0[0].get();
        // SAFETY: the region keeps the memory, which nobody else touches.
        let local = unsafe { pd.register(start, BYTES, Access::FLAGS, memory) }?;
        let remote = local.remote();
        Ok(Self { qp, cq, local, remote })
    }

    fn report(&self, name: &str, doorbell: usize, signal: u32, kind: Kind) -> Result<()> {
        let before = standin::counts(self.qp.number());
        let mut times = Vec::with_capacity(ROUNDS);
        for round in 0..=ROUNDS {
            let start = Instant::now();
            self.run(doorbell, signal, kind)?;
            // The first round is the warm-up.
            if round > 0 {
                times.push(start.elapsed().as_secs_f64() * 1e9 / REQUESTS as f64);
            }
        }
        times.sort_by(f64::total_cmp);
        let after = standin::counts(self.qp.number());
        let requests = (after.requests - before.requests) as f64;
        let per = |now: u64, then: u64| requests / (now - then) as f64;
        println!(
            "  {name:<52} {:>9.1} {:>7.1} {:>7.1} {:>12.1} {:>14.1}",
            times[ROUNDS / 2],
            times[0],
            times[ROUNDS - 1],
            per(after.doorbells, before.doorbells),
            per(after.completions, before.completions),
        );
        Ok(())
    }

    /// The work of a transport: number a request, fill it in, post it, poll for its completion.
    fn run(&self, doorbell: usize, signal: u32, kind: Kind) -> Result<()> {
        let mut window = Window::new(self.qp.max_send(), signal);
        let mut batch = Batch::with_capacity(doorbell);
        for value in 0..REQUESTS {
            let (id, signal) = loop {
                match window.take() {
                    Some(next) => break next,
                    None => self.poll(&mut window)?,
                }
            };
            let request = match kind {
                Kind::Inline => batch.write_inline(&value.to_le_bytes(), self.remote.range(0, 8)?)?,
                Kind::Registered(bytes) => {
                    batch.write(self.local.range(0, bytes)?, self.remote.range(0, bytes)?)?
                }
            };
            request.id(id).signalled_if(signal);
            if batch.len() == doorbell {
                self.qp.post(&mut batch)?;
                self.poll(&mut window)?;
            }
        }
        self.qp.post(&mut batch)?;
        while window.outstanding() > 0 {
            self.poll(&mut window)?;
        }
        Ok(())
    }

    fn poll(&self, window: &mut Window) -> Result<()> {
        let mut failure = None;
        self.cq.poll(64, |completion| match completion.result {
            Ok(_) => window.complete(completion.id),
            Err(failed) => failure = Some(failed),
        })?;
        failure.map_or(Ok(()), |failed| Err(failed.to_error("write")))
    }
}
