//! Starts groups of ranks, and makes data that depends on the rank.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use aqueduct::Deadline;
use aqueduct::bootstrap::{self, Bootstrap, Rendezvous};
use aqueduct::comm::{Communicator, CommunicatorConfig, RegisteredMemory, Transport};
use aqueduct::gpu::{BufferOptions, Context, Device, Driver, GpuBuffer, HandlePolicy};

/// A deadline that no correct test reaches, even on a busy machine.
pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// A deadline that the test expects to pass, long enough for everything that must happen before.
pub(crate) fn shortly() -> Deadline {
    Deadline::after(Duration::from_secs(3))
}

pub(crate) fn context(driver: &Driver, ordinal: u32) -> Context {
    Context::new(&Device::new(driver, ordinal).unwrap()).unwrap()
}

pub(crate) fn driver() -> Driver {
    Driver::software(cuda_soft::driver_table()).unwrap()
}

pub(crate) fn config() -> CommunicatorConfig {
    CommunicatorConfig::from_env()
        .expect("the environment is valid")
        .with_local_address(std::net::Ipv4Addr::LOCALHOST.into())
        .with_max_semaphores(64)
}

/// One rank in a test.
pub(crate) struct Rank {
    pub(crate) comm: Communicator,
    pub(crate) bootstrap: Arc<dyn Bootstrap>,
}

impl Rank {
    pub(crate) fn join(bootstrap: Arc<dyn Bootstrap>, context: &Context, config: CommunicatorConfig) -> Self {
        let comm = Communicator::new(&bootstrap, context, config, soon()).unwrap();
        Self { comm, bootstrap }
    }

    pub(crate) fn me(&self) -> u32 {
        self.comm.rank()
    }

    pub(crate) fn barrier(&self) {
        self.bootstrap.barrier(soon()).unwrap();
    }

    /// A buffer filled with this rank's pattern.
    pub(crate) fn buffer(&self, len: usize, handles: HandlePolicy) -> Arc<GpuBuffer> {
        let options = BufferOptions { zeroed: true, handles };
        let buffer = GpuBuffer::with_options(self.comm.context(), len, options).unwrap();
        buffer.upload(0, &paint(len, self.me()), soon()).unwrap();
        Arc::new(buffer)
    }

    pub(crate) fn registered(&self, len: usize) -> RegisteredMemory {
        self.comm.register_memory(&self.buffer(len, HandlePolicy::Auto), Transport::CudaIpc).unwrap()
    }
}

/// `len` bytes that depend on offset and rank.
pub(crate) fn paint(len: usize, rank: u32) -> Vec<u8> {
    (0..len).map(|i| ((i * 7 + rank as usize * 31 + 5) % 251) as u8).collect()
}

pub(crate) fn bytes(memory: &RegisteredMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.slice().unwrap().download(0, &mut bytes, soon()).unwrap();
    bytes
}

/// `size` ranks as threads of this process, each with a device of its own.
pub(crate) fn threads(size: u32, run: impl Fn(Rank) + Sync) {
    let driver = driver();
    std::thread::scope(|s| {
        for bootstrap in bootstrap::local(size) {
            let (driver, run) = (&driver, &run);
            s.spawn(move || {
                let context = context(driver, bootstrap.rank());
                run(Rank::join(Arc::new(bootstrap), &context, config()));
            });
        }
    });
}

/// How a rank's process is expected to end.
pub(crate) type Expected = fn(rank: u32, killed: bool, success: bool) -> bool;

pub(crate) fn all_succeed(_: u32, _: bool, success: bool) -> bool {
    success
}

/// Runs `size` ranks as processes: this test binary again, running the test `name`.
pub(crate) fn processes(size: u32, name: &str, expected: Expected, run: impl FnOnce(Rank)) {
    const INSIDE: &str = "COMM_RANKS_TEST";
    if std::env::var(INSIDE).is_ok_and(|inside| inside == name) {
        let bootstrap = bootstrap::from_env().unwrap().expect("the test sets the environment of its ranks");
        let context = context(&driver(), bootstrap.rank());
        return run(Rank::join(bootstrap, &context, config()));
    }
    let rendezvous = Rendezvous::start(Some(size)).unwrap();
    let ranks: Vec<Child> = (0..size)
        .map(|rank| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name, "--nocapture", "--test-threads=1"])
                .env(INSIDE, name)
                .env("AQUEDUCT_RANK", rank.to_string())
                .env("AQUEDUCT_WORLD_SIZE", size.to_string())
                .env("AQUEDUCT_UNIQUE_ID", rendezvous.unique_id().to_text().expose())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut failures = Vec::new();
    for (rank, child) in (0..size).zip(ranks) {
        let output = end_of(child);
        let killed = std::os::unix::process::ExitStatusExt::signal(&output.0) == Some(9);
        let ran = output.1.contains("1 passed") || killed;
        let rank_ok = expected(rank, killed, output.0.success() && ran);
        if !rank_ok {
            failures.push(format!("---- rank {rank}: {}\n{}", output.0, output.1));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn end_of(mut child: Child) -> (std::process::ExitStatus, String) {
    let deadline = Deadline::after(Duration::from_secs(120));
    let mut pipes: Vec<Box<dyn Read + Send>> =
        vec![Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
    let readers: Vec<_> = pipes
        .drain(..)
        .map(|mut pipe| {
            std::thread::spawn(move || {
                let mut text = String::new();
                pipe.read_to_string(&mut text).map(|_| text).unwrap_or_default()
            })
        })
        .collect();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if deadline.expired() => {
                child.kill().unwrap();
                break child.wait().unwrap();
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    (status, readers.into_iter().map(|reader| reader.join().unwrap()).collect())
}
