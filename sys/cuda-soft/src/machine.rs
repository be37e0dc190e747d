//! The software machine of this process: devices, memory, engine and every live handle.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cuda_driver_sys::CUresult;
use parking_lot::Mutex;

use crate::config::{self, Config};
use crate::exec::{Engine, Residency, Watchdog};
use crate::handles::Handles;
use crate::mem::Space;
use crate::mem::allocation::Allocations;
use crate::mem::physical::{Physical, Reservations};
use crate::module::{Kernel, LinkState, Loaded};
use crate::stream::capture::Captures;
use crate::stream::graph::{Graph, GraphExec, Node};
use crate::stream::host::HostThread;
use crate::stream::user_object::Held;
use crate::stream::{Event, Stream, Streams};

/// What a driver call yields.
pub(crate) type Result<T = ()> = std::result::Result<T, CUresult>;

/// Everything `cuInit` makes. Lives until the process ends.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) config: &'static Config,
    pub(crate) space: Arc<Space>,
    pub(crate) engine: Engine,
    pub(crate) devices: Vec<Device>,
    pub(crate) allocations: Allocations,
    pub(crate) reservations: Mutex<Reservations>,
    pub(crate) host: HostThread,
    pub(crate) captures: Captures,
    pub(crate) streams: Handles<Stream>,
    pub(crate) events: Handles<Event>,
    pub(crate) modules: Handles<Loaded>,
    pub(crate) kernels: Handles<Kernel>,
    pub(crate) links: Handles<LinkState>,
    pub(crate) graphs: Handles<Graph>,
    pub(crate) nodes: Handles<Node>,
    pub(crate) execs: Handles<GraphExec>,
    pub(crate) user_objects: Handles<Held>,
    pub(crate) physical: Handles<Physical>,
}

/// One device with its primary context.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) ordinal: usize,
    /// How often the primary context is retained; 0 means it does not exist.
    pub(crate) retained: Mutex<u32>,
    active: AtomicBool,
    /// The sticky error of the context, 0 for none.
    error: AtomicU32,
    /// Bytes of device memory in use.
    pub(crate) used: Arc<AtomicU64>,
    /// The streams of the context.
    pub(crate) streams: Streams,
    /// Devices whose memory this context may access.
    pub(crate) peers: Mutex<u64>,
}

/// The machine after `cuInit`.
///
/// # Errors
/// `CUDA_ERROR_NOT_INITIALIZED` before `cuInit` and in a forked child.
pub(crate) fn machine() -> Result<&'static Machine> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(CUresult::CUDA_ERROR_NOT_INITIALIZED);
    }
    MACHINE.get().ok_or(CUresult::CUDA_ERROR_NOT_INITIALIZED)
}

/// `cuInit`: makes the machine once.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` when the environment describes an impossible machine (said on standard error),
/// `CUDA_ERROR_NO_DEVICE` when it has none, `CUDA_ERROR_NOT_INITIALIZED` in a forked child.
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

/// Runs in a forked child, where neither the threads nor the locks of the machine are worth anything.
extern "C" fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

impl Machine {
    fn new(config: &'static Config) -> Self {
        let space = Arc::new(Space::new());
        let cores = match config.cores {
            0 => std::thread::available_parallelism().map_or(2, usize::from).min(8),
            n => n,
        };
        let watchdog = Watchdog {
            report_after: config.watchdog.map_or(Duration::from_secs(60), |limit| limit / 2),
            fault_after: config.watchdog,
            ..Watchdog::default()
        };
        Self {
            config,
            engine: Engine::new(cores, watchdog),
            devices: (0..config.devices).map(Device::new).collect(),
            allocations: Allocations::new(Arc::clone(&space)),
            space,
            reservations: Mutex::default(),
            host: HostThread::default(),
            captures: Captures::default(),
            streams: Handles::new(1),
            events: Handles::new(2),
            modules: Handles::new(3),
            kernels: Handles::new(4),
            links: Handles::new(5),
            graphs: Handles::new(6),
            nodes: Handles::new(7),
            execs: Handles::new(8),
            physical: Handles::new(9),
            user_objects: Handles::new(10),
        }
    }

    /// The device of this number.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_DEVICE`.
    pub(crate) fn device(&self, ordinal: i32) -> Result<&Device> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|i| self.devices.get(i))
            .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// What one device holds.
    pub(crate) fn residency(&self) -> Residency {
        Residency {
            sms: self.config.sms,
            threads_per_sm: 2048,
            blocks_per_sm: 32,
            shared_per_sm: limits::SHARED_PER_SM,
            registers_per_sm: 0,
        }
    }
}

impl Device {
    fn new(ordinal: usize) -> Self {
        Self {
            ordinal,
            retained: Mutex::new(0),
            active: AtomicBool::new(false),
            error: AtomicU32::new(0),
            used: Arc::default(),
            streams: Streams::new(ordinal),
            peers: Mutex::new(0),
        }
    }

    /// The sticky error, if the context has met one.
    pub(crate) fn check(&self) -> Result {
        match self.error.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(CUresult(code)),
        }
    }

    /// Makes the context fail with `code` from now on; the first error stays.
    pub(crate) fn poison(&self, code: CUresult) {
        let _ = self.error.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Begins or ends the life of the primary context; a new one has no error.
    pub(crate) fn set_active(&self, active: bool) {
        self.error.store(0, Ordering::Release);
        self.active.store(active, Ordering::Release);
    }
}

/// Numbers of the modelled device, those of an H100 where that makes sense.
pub(crate) mod limits {
    /// Threads of a block.
    pub(crate) const THREADS: u32 = 1024;
    /// Block dimensions.
    pub(crate) const BLOCK: [u32; 3] = [1024, 1024, 64];
    /// Grid dimensions.
    pub(crate) const GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];
    /// Shared memory of a block without opting in.
    pub(crate) const SHARED: u32 = 48 << 10;
    /// Shared memory of a block after opting in.
    pub(crate) const SHARED_OPTIN: u32 = 227 << 10;
    /// Shared memory of a multiprocessor.
    pub(crate) const SHARED_PER_SM: u32 = 228 << 10;
    /// Constant memory of a module.
    pub(crate) const CONSTANT: u32 = 64 << 10;
    /// Parameters of a kernel.
    #[allow(dead_code, reason = "the parser enforces it")]
    pub(crate) const PARAMS: u32 = 32764;
    /// What `cuFuncGetAttribute` says about registers: the interpreter has no register file to run out of.
    pub(crate) const REGISTERS: u32 = 32;
}
