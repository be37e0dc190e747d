//! The software machine of this process: devices, memory, engine and every live handle.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cuda_driver_sys::CUresult;
use parking_lot::Mutex;

use crate::abi::Result;
use crate::check::{Chance, Checker};
use crate::config::{self, Config, Weak};
use crate::exec::{Engine, Residency, Services, Watchdog};
use crate::handles::Handles;
use crate::mem::Space;
use crate::mem::allocation::{Allocations, Owned};
use crate::mem::budget::Budget;
use crate::mem::heap;
use crate::mem::import::Import;
use crate::mem::physical::{Physical, Reservations};
use crate::module::{Kernel, LinkState, Loaded};
use crate::sticky::StickyError;
use crate::stream::capture::Captures;
use crate::stream::event::Event;
use crate::stream::graph::Graphs;
use crate::stream::graph_exec::GraphExec;
use crate::stream::host::HostThread;
use crate::stream::op::Op;
use crate::stream::runtime::Runtime;
use crate::stream::streams::{Stream, Streams};
use crate::stream::user_object::Held;
use crate::stream::work::Work;

/// The machine that `cuInit` creates. It exists until the process ends.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) config: &'static Config,
    pub(crate) space: Arc<Space>,
    pub(crate) devices: Vec<Device>,
    pub(crate) allocations: Arc<Allocations>,
    pub(crate) reservations: Mutex<Reservations>,
    /// Memory opened through legacy IPC.
    pub(crate) imports: Mutex<Vec<Import>>,
    pub(crate) captures: Captures,
    pub(crate) streams: Handles<Stream>,
    pub(crate) events: Handles<Event>,
    pub(crate) modules: Handles<Loaded>,
    pub(crate) kernels: Handles<Kernel>,
    pub(crate) links: Handles<LinkState>,
    pub(crate) graphs: Arc<Graphs>,
    pub(crate) execs: Handles<GraphExec>,
    pub(crate) user_objects: Handles<Held>,
    pub(crate) physical: Handles<Physical>,
}

/// One device and its primary context.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) ordinal: usize,
    /// How often the primary context is retained; 0 if it does not exist.
    pub(crate) retained: Mutex<u32>,
    active: AtomicBool,
    runtime: Arc<Runtime>,
    pub(crate) memory: Budget,
    /// The streams of the context.
    pub(crate) streams: Streams,
    /// The devices whose memory this context may access, as a mask.
    pub(crate) peers: Mutex<u64>,
    /// The memory of the heap of kernels, once a module that uses it was loaded.
    heap: Mutex<Option<Owned>>,
}

/// Returns the machine.
///
/// # Errors
/// `CUDA_ERROR_NOT_INITIALIZED` before `cuInit`, and in a forked child.
pub(crate) fn machine() -> Result<&'static Machine> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(CUresult::CUDA_ERROR_NOT_INITIALIZED);
    }
    MACHINE.get().ok_or(CUresult::CUDA_ERROR_NOT_INITIALIZED)
}

/// `cuInit`: creates the machine, once.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if the environment is invalid (standard error has the reason), `CUDA_ERROR_NO_DEVICE` if
/// the machine has no devices, `CUDA_ERROR_NOT_INITIALIZED` in a forked child.
pub(crate) fn init() -> Result {
    if FORKED.load(Ordering::Relaxed) {
        return Err(CUresult::CUDA_ERROR_NOT_INITIALIZED);
    }
    let config = config::current().map_err(|why| {
        eprintln!("cuda-soft: {why}");
        CUresult::CUDA_ERROR_INVALID_VALUE
    })?;
    if config.devices == 0 {
        return Err(CUresult::CUDA_ERROR_NO_DEVICE);
    }
    MACHINE.get_or_init(|| {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        Machine::new(config)
    });
    Ok(())
}

static MACHINE: OnceLock<Machine> = OnceLock::new();
static FORKED: AtomicBool = AtomicBool::new(false);

/// Runs in a forked child, which has none of the machine's threads and cannot trust its locks.
extern "C" fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

impl Machine {
    fn new(config: &'static Config) -> Self {
        let space = Arc::new(Space::new());
        let chance = config.check.weak.map(|rules| Arc::new(Chance::new(rules)));
        let checker = config.check.races.then(|| Arc::new(Checker::new(chance.clone(), config.shadow)));
        if let Some(checker) = &checker {
            space.report_to(Arc::clone(checker));
        }
        let cores = match config.cores {
            // One thread, so that a seed determines what happens.
            0 if chance.is_some() => 1,
            0 => std::thread::available_parallelism().map_or(2, usize::from).min(8),
            n => n,
        };
        let watchdog = Watchdog {
            report_after: config.watchdog.map_or(Duration::from_secs(60), |limit| limit / 2),
            fault_after: config.watchdog,
            ..Watchdog::default()
        };
        let allocations = Arc::new(Allocations::new(Arc::clone(&space)));
        let runtime = Arc::new(Runtime {
            engine: Engine::in_any_order(cores, watchdog, chance),
            space: Arc::clone(&space),
            allocations: Arc::clone(&allocations),
            host: HostThread::default(),
            errors: (0..config.devices).map(|_| StickyError::default()).collect(),
            services: (0..config.devices).map(|_| Arc::default()).collect(),
            checker,
        });
        let graphs = Arc::new(Graphs::new(Handles::new(6), Handles::new(7)));
        Self {
            config,
            devices: (0..config.devices).map(|i| Device::new(&runtime, i, config.memory)).collect(),
            allocations,
            space,
            reservations: Mutex::default(),
            imports: Mutex::default(),
            captures: Captures::new(Arc::clone(&graphs)),
            streams: Handles::new(1),
            events: Handles::new(2),
            modules: Handles::new(3),
            kernels: Handles::new(4),
            links: Handles::new(5),
            graphs,
            execs: Handles::new(8),
            physical: Handles::new(9),
            user_objects: Handles::new(10),
        }
    }

    /// The device with this ordinal.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_DEVICE`.
    pub(crate) fn device(&self, ordinal: i32) -> Result<&Device> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|i| self.devices.get(i))
            .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// The capacity of one device.
    pub(crate) fn residency(&self) -> Residency {
        Residency {
            sms: self.config.sms,
            threads_per_sm: 2048,
            blocks_per_sm: 32,
            shared_per_sm: limits::SHARED_PER_SM,
            registers_per_sm: 0,
        }
    }

    /// Submits work to a stream. Returns its operation, or `None` if the stream captured the work.
    ///
    /// # Errors
    /// The errors of stream capture.
    pub(crate) fn submit(&self, stream: &Stream, work: Work) -> Result<Option<Arc<Op>>> {
        self.devices[stream.device].streams.submit(stream, &[], work)
    }

    /// The unfinished operations of a stream, as [`Streams::pending_in`] returns them.
    ///
    /// # Errors
    /// The errors of stream capture.
    pub(crate) fn pending(&self, stream: &Stream) -> Result<Vec<Arc<Op>>> {
        self.devices[stream.device].streams.pending_in(stream)
    }
}

impl Device {
    fn new(runtime: &Arc<Runtime>, ordinal: usize, memory: u64) -> Self {
        Self {
            ordinal,
            retained: Mutex::new(0),
            active: AtomicBool::new(false),
            runtime: Arc::clone(runtime),
            memory: Budget::new(memory),
            streams: Streams::new(Arc::clone(runtime), ordinal),
            peers: Mutex::new(0),
            heap: Mutex::new(None),
        }
    }

    /// # Errors
    /// The sticky error of the context, if there is one.
    pub(crate) fn check(&self) -> Result {
        let result = self.runtime.errors[self.ordinal].check();
        if result.is_err() {
            // Whichever call reports the failure of a kernel also writes out the assertion that failed it.
            self.flush();
        }
        result
    }

    /// Writes out what kernels have printed, as the driver does at synchronisations, launches and the like.
    pub(crate) fn flush(&self) {
        self.services().console.flush();
    }

    /// [`Self::check`] after the caller has waited for work.
    pub(crate) fn synchronized(&self) -> Result {
        self.flush();
        self.check()
    }

    /// The output and the heap of the device's kernels.
    pub(crate) fn services(&self) -> &Arc<Services> {
        &self.runtime.services[self.ordinal]
    }

    /// Makes sure that kernels have a heap.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub(crate) fn provide_heap(&self, allocations: &Arc<Allocations>) -> Result {
        let mut heap = self.heap.lock();
        if heap.is_none() {
            let memory = allocations.variables(self.ordinal, &self.memory, heap::SIZE, false)?;
            self.services().heap.reset(memory.base(), heap::SIZE);
            *heap = Some(memory);
        }
        Ok(())
    }

    /// Takes the heap away, when the context ends.
    pub(crate) fn remove_heap(&self) {
        self.services().heap.reset(0, 0);
        *self.heap.lock() = None;
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Marks the primary context as created or destroyed. A new context has no sticky error.
    pub(crate) fn set_active(&self, active: bool) {
        self.runtime.errors[self.ordinal].clear();
        self.active.store(active, Ordering::Release);
    }
}

/// Limits of the device: those of an H100 where applicable.
pub(crate) mod limits {
    /// Maximum threads in a block.
    pub(crate) const THREADS: u32 = 1024;
    /// Maximum block dimensions.
    pub(crate) const BLOCK: [u32; 3] = [1024, 1024, 64];
    /// Maximum grid dimensions.
    pub(crate) const GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];
    /// Maximum blocks in a cluster, with and without opting in.
    pub(crate) const CLUSTER: u32 = 16;
    pub(crate) const PORTABLE_CLUSTER: u32 = 8;
    /// Bytes of shared memory of a block without opting in.
    pub(crate) const SHARED: u32 = 48 << 10;
    /// Bytes of shared memory of a block after opting in.
    pub(crate) const SHARED_OPTIN: u32 = 227 << 10;
    /// Bytes of shared memory of a multiprocessor.
    pub(crate) const SHARED_PER_SM: u32 = 228 << 10;
    /// Bytes of constant memory.
    pub(crate) const CONSTANT: u32 = 64 << 10;
    /// Registers per thread, as `cuFuncGetAttribute` reports them. The interpreter has no limit.
    pub(crate) const REGISTERS: u32 = 32;
}

/// The data races that this process has found so far ([`Check::races`](crate::Check::races)), as they were printed.
#[must_use]
pub fn races() -> Vec<String> {
    checker().map_or_else(Vec::new, Checker::races)
}

/// Begins the choices of [`Check::weak`](crate::Check::weak) anew, so that one process can try many seeds. Call it after
/// `cuInit`, while no work runs. Without weak loads nothing happens.
pub fn weaken(rules: Weak) {
    if let Some(chance) = checker().and_then(Checker::chance) {
        chance.begin(rules);
    }
}

fn checker() -> Option<&'static Checker> {
    MACHINE.get()?.devices.first()?.runtime.checker.as_deref()
}
