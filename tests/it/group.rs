//! Starts ranks that have joined a communicator: threads of one process, or processes.

use std::cell::OnceCell;
use std::net::Ipv4Addr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aqueduct::Deadline;
use aqueduct::bootstrap::{self, Bootstrap, Rendezvous, UniqueId};
use aqueduct::comm::{Communicator, CommunicatorConfig};
use aqueduct::gpu::{CaptureMode, Context, Device, Driver, GpuBuffer, GraphExec, Stream};
use aqueduct_tests::ranks;

/// A deadline that no correct test reaches, even on a busy machine: 90 s, or what `AQUEDUCT_TEST_PATIENCE` says where a world is slow on
/// purpose.
pub(crate) fn soon() -> Deadline {
    let given = std::env::var("AQUEDUCT_TEST_PATIENCE").ok();
    let seconds = given.map_or(90, |seconds| seconds.parse().expect("AQUEDUCT_TEST_PATIENCE: seconds"));
    Deadline::after(Duration::from_secs(seconds))
}

/// The devices that the ranks use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    /// The software device.
    Software,
    /// NVIDIA GPUs. Ranks share them if there are fewer GPUs than ranks.
    Hardware,
}

impl Machine {
    /// The one value of this process, which all ranks share that are its threads: host memory of one is not freed while a
    /// kernel of another waits.
    pub(crate) fn driver(self) -> Driver {
        static SOFTWARE: OnceLock<Driver> = OnceLock::new();
        static HARDWARE: OnceLock<Driver> = OnceLock::new();
        let driver = match self {
            Self::Software => SOFTWARE.get_or_init(|| {
                Driver::software(cuda_soft::driver_table()).expect("the software device always works")
            }),
            Self::Hardware => {
                HARDWARE.get_or_init(|| Driver::load(None).expect("the hardware instance needs libcuda"))
            }
        };
        driver.clone()
    }
}

/// One rank.
pub(crate) struct Rank {
    pub(crate) comm: Communicator,
    pub(crate) bootstrap: Arc<dyn Bootstrap>,
}

impl Rank {
    fn join(machine: Machine, bootstrap: Arc<dyn Bootstrap>) -> Self {
        Self::join_with(machine, bootstrap, config())
    }

    fn join_with(machine: Machine, bootstrap: Arc<dyn Bootstrap>, config: CommunicatorConfig) -> Self {
        let context = context(&machine.driver(), bootstrap.rank());
        let comm = Communicator::new(&bootstrap, &context, config, soon()).expect("the ranks connect");
        Self { comm, bootstrap }
    }

    pub(crate) fn me(&self) -> u32 {
        self.comm.rank()
    }

    /// Waits for all ranks.
    pub(crate) fn barrier(&self) {
        self.bootstrap.barrier(soon()).expect("all ranks reach the barrier");
    }

    /// Captures when all ranks do, with the strictest rules: where ranks are threads, none may allocate while another captures.
    pub(crate) fn capture(
        &self,
        stream: &Stream,
        record: impl FnOnce(&Stream) -> aqueduct::Result<()>,
    ) -> GraphExec {
        self.barrier();
        let graph = GraphExec::capture(stream, CaptureMode::Global, record).expect("it can be captured");
        self.barrier();
        graph
    }

    pub(crate) fn buffer(&self, len: usize) -> Arc<GpuBuffer> {
        Arc::new(GpuBuffer::new(self.comm.context(), len).expect("there is memory"))
    }
}

/// A context on the device for `rank`. Ranks share a device only if there are more ranks than devices.
pub(crate) fn context(driver: &Driver, rank: u32) -> Context {
    let devices = Device::count(driver).expect("devices can be counted");
    assert!(devices > 0, "the machine has no device");
    Context::new(&Device::new(driver, rank % devices).expect("the device exists"))
        .expect("a context can be made")
}

/// Runs `size` ranks as threads of one new process: this binary again, running only the test with the full name `test`.
/// They need a process of their own because freeing memory waits for all kernels on the device: those of another test's
/// ranks might wait for ranks that in turn wait for memory of this test.
pub(crate) fn threads(machine: Machine, size: u32, test: &str, run: impl Fn(Rank) + Sync) {
    if ranks::start(1, test).is_none() {
        return;
    }
    std::thread::scope(|scope| {
        for bootstrap in bootstrap::local(size) {
            let run = &run;
            scope.spawn(move || run(Rank::join(machine, Arc::new(bootstrap))));
        }
    });
}

/// Like [`threads`], a rank for each of `hosts`, whose name it takes for that of its host: ranks of different hosts map nothing of each
/// other, and talk over TCP.
pub(crate) fn threads_on_hosts(machine: Machine, hosts: &[&str], test: &str, run: impl Fn(Rank) + Sync) {
    threads_on_hosts_with(machine, hosts, test, &config(), run);
}

/// The same with a configuration.
pub(crate) fn threads_on_hosts_with(
    machine: Machine,
    hosts: &[&str],
    test: &str,
    config: &CommunicatorConfig,
    run: impl Fn(Rank) + Sync,
) {
    if ranks::start(1, test).is_none() {
        return;
    }
    std::thread::scope(|scope| {
        for bootstrap in bootstrap::local(hosts.len() as u32) {
            let run = &run;
            let config = config.clone().with_host_id(hosts[bootstrap.rank() as usize]);
            scope.spawn(move || run(Rank::join_with(machine, Arc::new(bootstrap), config)));
        }
    });
}

/// Configuration of the tests' communicators.
pub(crate) fn config() -> CommunicatorConfig {
    CommunicatorConfig::from_env()
        .expect("the environment is valid")
        .with_local_address(Ipv4Addr::LOCALHOST.into())
        .with_max_semaphores(64)
}

/// Like [`threads`], with environment variables and a configuration.
pub(crate) fn threads_with(
    machine: Machine,
    size: u32,
    test: &str,
    config: &CommunicatorConfig,
    environment: &[(&str, &str)],
    run: impl Fn(Rank) + Sync,
) {
    let prepare = |_: u32, command: &mut std::process::Command| {
        // Tests allocate much memory and touch little of it.
        command.env("AQUEDUCT_SOFT_MEMORY", "64G").envs(environment.iter().copied());
    };
    if ranks::start_with(1, test, prepare).is_none() {
        return;
    }
    std::thread::scope(|scope| {
        for bootstrap in bootstrap::local(size) {
            let run = &run;
            scope.spawn(move || run(Rank::join_with(machine, Arc::new(bootstrap), config.clone())));
        }
    });
}

/// Runs `size` ranks as processes: this binary again, running only the test with the full name `test`.
pub(crate) fn processes(machine: Machine, size: u32, test: &str, run: impl Fn(Rank) + Sync) {
    processes_with(machine, size, test, config(), run);
}

/// Like [`processes`], with a configuration.
pub(crate) fn processes_with(
    machine: Machine,
    size: u32,
    test: &str,
    config: CommunicatorConfig,
    run: impl Fn(Rank) + Sync,
) {
    processes_each(machine, size, test, config, |_| Vec::new(), run);
}

/// [`processes_with`], each rank in an environment of its own.
pub(crate) fn processes_each(
    machine: Machine,
    size: u32,
    test: &str,
    config: CommunicatorConfig,
    environment: impl Fn(u32) -> Vec<(&'static str, String)>,
    run: impl Fn(Rank) + Sync,
) {
    // The race detector sees one process.
    if std::env::var("AQUEDUCT_TEST_RANKS").is_ok_and(|how| how == "threads") {
        let environment = environment(0);
        let environment: Vec<_> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        return threads_with(machine, size, test, &config, &environment, run);
    }
    let rendezvous = OnceCell::new();
    let started = ranks::start_with(size, test, |rank, command| {
        command.envs(environment(rank));
        let rendezvous = rendezvous.get_or_init(|| start_rendezvous(Some(size)));
        command
            .env("AQUEDUCT_RANK", rank.to_string())
            .env("AQUEDUCT_WORLD_SIZE", size.to_string())
            // Tests allocate much memory and touch little of it.
            .env("AQUEDUCT_SOFT_MEMORY", "64G")
            .env("AQUEDUCT_UNIQUE_ID", rendezvous.unique_id().to_text().expose());
    });
    if started.is_some() {
        let bootstrap =
            bootstrap::from_env().expect("the ranks connect").expect("the environment names the job");
        run(Rank::join_with(machine, bootstrap, config));
    }
}

/// Starts a rendezvous on the loopback interface, for `size` ranks if that is given.
pub(crate) fn start_rendezvous(size: Option<u32>) -> Rendezvous {
    let mut interfaces = aqueduct::internals::net::interfaces().expect("interfaces can be listed");
    interfaces.retain(|interface| interface.loopback);
    Rendezvous::start_on(&interfaces, size).expect("the rendezvous can listen on loopback")
}

/// Starts a job in which each thread joins as the given `(rank, size)`. Returns the results in this order.
pub(crate) fn join_as(numbers: &[(u32, u32)], patience: Duration) -> Vec<aqueduct::Result<()>> {
    let rendezvous = start_rendezvous(None);
    let id: &UniqueId = rendezvous.unique_id();
    std::thread::scope(|scope| {
        let ranks: Vec<_> = numbers
            .iter()
            .map(|&(rank, size)| {
                scope.spawn(move || {
                    bootstrap::TcpBootstrap::new(rank, size, id, Deadline::after(patience)).map(drop)
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("joining does not panic")).collect()
    })
}

/// Whether `bytes` of memory can be registered. A NIC locks every page;
/// without a NIC only the touched pages take memory.
pub(crate) fn can_lock(bytes: usize) -> bool {
    let mut nics = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten();
    if nics.next().is_none() {
        return true;
    }
    let all = std::fs::read_to_string("/proc/meminfo").expect("the size of memory can be read");
    let line = all.lines().find(|line| line.starts_with("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    kib.is_some_and(|kib: u64| kib << 10 >= bytes as u64)
}

/// Raises this process's limit on open files to at least `count`.
pub(crate) fn allow_files(count: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is live in both calls.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
    assert!(limit.rlim_max >= count, "raise the hard limit of `ulimit -n` to {count}");
}

/// Tests of `run(&rank)` for groups of these sizes, whose ranks are threads or processes, on the software device and on GPUs.
/// `$room` is the path of the calling module.
macro_rules! groups_of_ranks {
    ($room:literal: $($ranks:literal $threads:ident $processes:ident $need:literal,)+) => {
        mod soft {
            use super::run;
            use crate::group::{Machine, processes, threads};
            $(#[test]
            fn $threads() {
                let name = concat!($room, "::soft::", stringify!($threads));
                threads(Machine::Software, $ranks, name, |rank| run(&rank));
            }
            #[test]
            fn $processes() {
                let name = concat!($room, "::soft::", stringify!($processes));
                processes(Machine::Software, $ranks, name, |rank| run(&rank));
            })+
        }
        mod hardware {
            use super::run;
            use crate::group::{Machine, processes, threads};
            $(#[test]
            #[ignore = $need]
            fn $threads() {
                let name = concat!($room, "::hardware::", stringify!($threads));
                threads(Machine::Hardware, $ranks, name, |rank| run(&rank));
            }
            #[test]
            #[ignore = $need]
            fn $processes() {
                let name = concat!($room, "::hardware::", stringify!($processes));
                processes(Machine::Hardware, $ranks, name, |rank| run(&rank));
            })+
        }
    };
}
pub(crate) use groups_of_ranks;
