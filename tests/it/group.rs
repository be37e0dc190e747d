//! Ranks that have joined a communicator: threads of this process, or processes of their own.

use std::cell::OnceCell;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use aqueduct::Deadline;
use aqueduct::bootstrap::{self, Bootstrap, Rendezvous, UniqueId};
use aqueduct::comm::{Communicator, CommunicatorConfig};
use aqueduct::gpu::{Context, Device, Driver, GpuBuffer};
use aqueduct_tests::ranks;

/// Long enough on a busy machine; nothing waits that long when all is well.
pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(90))
}

/// Whose devices the ranks use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    /// The software device.
    Software,
    /// NVIDIA GPUs, fewer than ranks if need be.
    Hardware,
}

impl Machine {
    pub(crate) fn driver(self) -> Driver {
        match self {
            Self::Software => {
                Driver::software(cuda_soft::driver_table()).expect("the software device always works")
            }
            Self::Hardware => Driver::load(None).expect("the hardware instance needs libcuda"),
        }
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
        let comm = Communicator::new(&*bootstrap, &context, config, soon()).expect("the ranks meet");
        Self { comm, bootstrap }
    }

    pub(crate) fn me(&self) -> u32 {
        self.comm.rank()
    }

    /// Waits for all ranks.
    pub(crate) fn barrier(&self) {
        self.bootstrap.barrier(soon()).expect("all ranks come to the barrier");
    }

    pub(crate) fn buffer(&self, len: usize) -> Arc<GpuBuffer> {
        Arc::new(GpuBuffer::new(self.comm.context(), len).expect("there is memory"))
    }
}

/// The context of the device for `rank`: as many ranks as there are devices have one each.
pub(crate) fn context(driver: &Driver, rank: u32) -> Context {
    let devices = Device::count(driver).expect("devices can be counted");
    assert!(devices > 0, "the machine has no device");
    Context::new(&Device::new(driver, rank % devices).expect("the device exists"))
        .expect("a context can be made")
}

/// Runs `size` ranks as threads of one process: this binary again, in its test of the full name `test`, which calls this.
/// A process of its own, because freeing memory waits for whatever else runs on the device: kernels of another test's
/// ranks, which may be waiting for ranks that wait for this test's.
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

/// What the tests' communicators have in common.
pub(crate) fn config() -> CommunicatorConfig {
    CommunicatorConfig::default().with_interface(Ipv4Addr::LOCALHOST.into()).with_semaphores(64)
}

/// [`threads`] in an `environment`, whose communicators are made with `config`.
pub(crate) fn threads_with(
    machine: Machine,
    size: u32,
    test: &str,
    config: &CommunicatorConfig,
    environment: &[(&str, &str)],
    run: impl Fn(Rank) + Sync,
) {
    let prepare = |_: u32, command: &mut std::process::Command| {
        // Memory of which most is never touched.
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

/// Runs `size` ranks as processes: this binary again, in its test of the full name `test`, which calls this.
pub(crate) fn processes(machine: Machine, size: u32, test: &str, run: impl FnOnce(Rank)) {
    processes_with(machine, size, test, config(), run);
}

/// [`processes`], whose communicators are made with `config`.
pub(crate) fn processes_with(
    machine: Machine,
    size: u32,
    test: &str,
    config: CommunicatorConfig,
    run: impl FnOnce(Rank),
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
    run: impl FnOnce(Rank),
) {
    let meeting = OnceCell::new();
    let started = ranks::start_with(size, test, |rank, command| {
        command.envs(environment(rank));
        let meeting = meeting.get_or_init(|| meet(Some(size)));
        command
            .env("AQUEDUCT_RANK", rank.to_string())
            .env("AQUEDUCT_WORLD_SIZE", size.to_string())
            // Memory of which most is never touched.
            .env("AQUEDUCT_SOFT_MEMORY", "64G")
            .env("AQUEDUCT_UNIQUE_ID", meeting.unique_id().to_string());
    });
    if started.is_some() {
        let bootstrap =
            bootstrap::from_env().expect("the ranks meet").expect("the environment names the job");
        run(Rank::join_with(machine, bootstrap, config));
    }
}

/// A rendezvous on the loopback interface, for `size` ranks if that is known.
pub(crate) fn meet(size: Option<u32>) -> Rendezvous {
    let mut interfaces = aqueduct::net::interfaces().expect("interfaces can be listed");
    interfaces.retain(|interface| interface.loopback);
    Rendezvous::start_on(&interfaces, size).expect("loopback can be listened on")
}

/// Asks every rank of a new job, each on a thread, to join as `(rank, size)`; what came of it, in this order.
pub(crate) fn join_as(numbers: &[(u32, u32)], patience: Duration) -> Vec<aqueduct::Result<()>> {
    let meeting = meet(None);
    let id: &UniqueId = meeting.unique_id();
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

/// Whether `bytes` of memory can be registered with the NIC of this machine, if there is one: every page is locked then.
/// Elsewhere only those that are touched exist.
pub(crate) fn can_lock(bytes: usize) -> bool {
    let mut nics = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten();
    if nics.next().is_none() {
        return true;
    }
    let all = std::fs::read_to_string("/proc/meminfo").expect("the system says how much memory it has");
    let line = all.lines().find(|line| line.starts_with("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    kib.is_some_and(|kib: u64| kib << 10 >= bytes as u64)
}

/// Lets this process open at least `count` files.
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
