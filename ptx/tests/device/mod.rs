//! Several devices of one process as ranks, for tests of kernels: on the software device, or with
//! `AQUEDUCT_DRIVER=cuda` on GPUs.
//!
//! On a machine with fewer devices than a test has ranks, ranks share devices.

use std::ffi::{CString, c_int, c_uint, c_void};
use std::io::Write as _;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Once;
use std::time::{Duration, Instant};

use aqueduct_ptx::abi::{ABORT_WORD_RUN, AbortClaim, AbortHandle, AbortRecord, DeviceStruct};
use aqueduct_ptx::{Target, instantiate};
use cuda_driver_sys::{
    CUcontext, CUdevice_attribute_enum as Attribute, CUfunction, CUmodule, CUresult, CUstream, DriverTable,
};

/// Grid and block of a launch, both one-dimensional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchShape {
    /// Blocks.
    pub(crate) grid: u32,
    /// Threads in a block, a multiple of 32.
    pub(crate) block: u32,
}

/// How long a test waits for kernels before it sets the abort word and fails: a minute, or as many seconds as
/// `AQUEDUCT_TEST_PATIENCE` says.
pub(crate) fn patience() -> Duration {
    let given = std::env::var("AQUEDUCT_TEST_PATIENCE").ok();
    Duration::from_secs(given.map_or(60, |seconds| seconds.parse().expect("AQUEDUCT_TEST_PATIENCE: seconds")))
}

/// Pinned host memory that every device can reach: portable and mapped.
const HOST_FLAGS: c_uint = 1 | 2;

/// Streams that do not wait for the default stream.
const NON_BLOCKING: c_uint = 1;

/// Ranks and what they were given. Nothing is freed before the process ends: tests are short, and a rank that failed
/// may still be read by its peers.
pub(crate) struct Machine {
    table: DriverTable,
    ranks: Vec<Rank>,
    target: Target,
    abort_word: *mut u32,
}

struct Rank {
    context: CUcontext,
    stream: CUstream,
    /// Pinned; written by kernels.
    record: *mut AbortRecord,
    /// Device memory that leads to it.
    claim: u64,
}

/// Arguments of a launch, by value.
#[derive(Default)]
pub(crate) struct Args(Vec<Box<[u64]>>);

impl Args {
    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.push([u64::from(value)].into());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.push([value].into());
        self
    }

    pub(crate) fn structure<T: DeviceStruct>(self, value: &T) -> Self {
        self.bytes(value.as_bytes())
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        let words = bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        });
        self.0.push(words.collect());
        self
    }
}

fn check(call: &str, result: CUresult) {
    assert_eq!(result, CUresult::CUDA_SUCCESS, "{call}");
}

/// `call!(self.cuSomething(args))`: fails the test unless it succeeds.
macro_rules! call {
    ($table:expr, $name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: tests pass live handles, addresses they allocated and locals that outlive the call.
        check(stringify!($name), unsafe { ($table.$name)($($arg),*) })
    };
}

/// Where there are GPUs, says once that these tests do not run on them: whoever expects that sees it.
fn tell_of_gpus() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if Path::new("/dev/nvidiactl").exists() {
            let line = "NOT RUN: ptx/tests on GPUs: these run on the software device; set AQUEDUCT_DRIVER=cuda, or soft\n";
            // Not by `eprintln`, which the test harness keeps.
            std::io::stderr().write_all(line.as_bytes()).expect("standard error");
        }
    });
}

impl Machine {
    /// `ranks` ranks on as many devices as there are, all of which can reach each other.
    pub(crate) fn new(ranks: usize) -> Self {
        let table = match std::env::var("AQUEDUCT_DRIVER").as_deref() {
            Ok("cuda") => {
                cuda_driver_sys::load(None).expect("AQUEDUCT_DRIVER=cuda needs the NVIDIA driver").table
            }
            Ok("soft") => cuda_soft::driver_table(),
            _ => {
                tell_of_gpus();
                cuda_soft::driver_table()
            }
        };
        call!(table, cuInit(0));
        let (mut devices, mut version) = (0, 0);
        call!(table, cuDeviceGetCount(&raw mut devices));
        call!(table, cuDriverGetVersion(&raw mut version));
        let attribute = |attribute| {
            let mut value = 0;
            call!(table, cuDeviceGetAttribute(&raw mut value, attribute, 0));
            value.unsigned_abs()
        };
        let target = Target::for_device(
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
            version.unsigned_abs(),
        )
        .expect("sm_70 and CUDA 9 or newer");
        let contexts: Vec<CUcontext> = (0..ranks)
            .map(|rank| {
                let mut context = null_mut();
                let device = c_int::try_from(rank).expect("few ranks") % devices;
                call!(table, cuDevicePrimaryCtxRetain(&raw mut context, device));
                context
            })
            .collect();
        for &context in &contexts {
            call!(table, cuCtxSetCurrent(context));
            for &peer in contexts.iter().filter(|&&peer| peer != context) {
                // SAFETY: both contexts are retained above and never released.
                let result = unsafe { (table.cuCtxEnablePeerAccess)(peer, 0) };
                assert!(
                    [CUresult::CUDA_SUCCESS, CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED]
                        .contains(&result),
                    "cuCtxEnablePeerAccess: {result:?}"
                );
            }
        }
        let mut machine = Self { table, ranks: Vec::new(), target, abort_word: null_mut() };
        machine.abort_word = machine.host(64).cast();
        for context in contexts {
            call!(machine.table, cuCtxSetCurrent(context));
            let mut stream = null_mut();
            call!(machine.table, cuStreamCreate(&raw mut stream, NON_BLOCKING));
            let record = machine.host(size_of::<AbortRecord>()).cast();
            machine.ranks.push(Rank { context, stream, record, claim: 0 });
            let rank = machine.ranks.len() - 1;
            let claim = AbortClaim { record: record as u64, ..AbortClaim::default() };
            machine.ranks[rank].claim = machine.alloc(rank, size_of::<AbortClaim>());
            machine.write(rank, machine.ranks[rank].claim, claim.as_bytes());
        }
        machine
    }

    /// The same with kernels made for devices of compute capability `sm`, which newer ones run, too.
    #[allow(dead_code, reason = "most tests take the kernels made for the device")]
    pub(crate) fn with_kernels_for(mut self, sm: u32) -> Self {
        self.target = Target::new(sm);
        self
    }

    /// Zeroed pinned memory that host and all devices reach at the same address.
    pub(crate) fn host(&self, bytes: usize) -> *mut c_void {
        let mut memory = null_mut();
        call!(self.table, cuMemHostAlloc(&raw mut memory, bytes, HOST_FLAGS));
        // SAFETY: just allocated with this size; no other code has the address yet.
        unsafe { memory.cast::<u8>().write_bytes(0, bytes) };
        memory
    }

    fn enter(&self, rank: usize) -> &Rank {
        let rank = &self.ranks[rank];
        call!(self.table, cuCtxSetCurrent(rank.context));
        rank
    }

    /// Device memory of `rank`, zeroed.
    pub(crate) fn alloc(&self, rank: usize, bytes: usize) -> u64 {
        self.enter(rank);
        let mut address = 0;
        call!(self.table, cuMemAlloc_v2(&raw mut address, bytes.max(1)));
        call!(self.table, cuMemsetD8_v2(address, 0, bytes.max(1)));
        call!(self.table, cuCtxSynchronize());
        address
    }

    pub(crate) fn write(&self, rank: usize, address: u64, data: &[u8]) {
        self.enter(rank);
        if !data.is_empty() {
            call!(self.table, cuMemcpyHtoD_v2(address, data.as_ptr().cast(), data.len()));
            // The call may return before the last bytes of pageable memory have arrived ("API synchronization behavior" of the
            // driver API), and a kernel that runs may look at once.
            call!(self.table, cuStreamSynchronize(null_mut()));
        }
    }

    /// A stream writes a word, while kernels may run.
    #[allow(dead_code, reason = "not every suite does this")]
    pub(crate) fn write_value(&self, rank: usize, address: u64, value: u32) {
        self.enter(rank);
        let write = self.table.cuStreamWriteValue32_v2.expect("every driver that has these kernels has it");
        // SAFETY: the context is current, and the address is that of a word of it.
        let code = unsafe { write(null_mut(), address, value, 0) };
        assert_eq!(code, CUresult::CUDA_SUCCESS, "cuStreamWriteValue32");
        call!(self.table, cuStreamSynchronize(null_mut()));
    }

    #[allow(dead_code, reason = "not every suite does this")]
    pub(crate) fn read(&self, rank: usize, address: u64, bytes: usize) -> Vec<u8> {
        self.enter(rank);
        let mut data = vec![0u8; bytes];
        if bytes > 0 {
            call!(self.table, cuMemcpyDtoH_v2(data.as_mut_ptr().cast(), address, bytes));
        }
        data
    }

    /// The entry `index` of a variant of a catalog row, loaded for `rank`.
    pub(crate) fn function(
        &self,
        rank: usize,
        kernel: &str,
        params: &[(&str, &str)],
        index: usize,
    ) -> CUfunction {
        let instance = instantiate(kernel, self.target, params).unwrap_or_else(|error| panic!("{error}"));
        self.load(rank, &instance.text, &instance.entries[index])
    }

    /// An entry of a module's text, loaded for `rank`.
    pub(crate) fn load(&self, rank: usize, text: &str, entry: &str) -> CUfunction {
        self.load_all(rank, text, &[entry])[0]
    }

    /// Several entries of a module's text, loaded for `rank`.
    pub(crate) fn load_all(&self, rank: usize, text: &str, entries: &[impl AsRef<str>]) -> Vec<CUfunction> {
        self.enter(rank);
        let text = CString::new(text).expect("no zero in PTX");
        let mut module: CUmodule = null_mut();
        call!(self.table, cuModuleLoadData(&raw mut module, text.as_ptr().cast()));
        let entry = |name: &str| {
            let name = CString::new(name).expect("no zero in a symbol");
            let mut function: CUfunction = null_mut();
            call!(self.table, cuModuleGetFunction(&raw mut function, module, name.as_ptr()));
            function
        };
        entries.iter().map(|name| entry(name.as_ref())).collect()
    }

    /// Starts a kernel on the stream of `rank`.
    pub(crate) fn launch(&self, rank: usize, function: CUfunction, shape: LaunchShape, args: &Args) {
        let stream = self.enter(rank).stream;
        let mut pointers: Vec<*mut c_void> =
            args.0.iter().map(|arg| arg.as_ptr().cast_mut().cast()).collect();
        let (grid, block) = (shape.grid, shape.block);
        call!(
            self.table,
            cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, pointers.as_mut_ptr(), null_mut())
        );
    }

    /// Waits for all ranks; a test that takes too long is aborted, so that it fails and does not hang.
    pub(crate) fn finish(&self) {
        let start = Instant::now();
        for rank in 0..self.ranks.len() {
            let stream = self.enter(rank).stream;
            loop {
                // SAFETY: the stream lives as long as the machine.
                match unsafe { (self.table.cuStreamQuery)(stream) } {
                    CUresult::CUDA_SUCCESS => break,
                    CUresult::CUDA_ERROR_NOT_READY if start.elapsed() < patience() => {
                        std::thread::yield_now()
                    }
                    result => {
                        self.abort();
                        std::thread::sleep(Duration::from_millis(200));
                        panic!("rank {rank}: {result:?}; it recorded {:?}", self.record(rank));
                    }
                }
            }
        }
    }

    /// Whether work of `rank` has not ended.
    #[allow(dead_code, reason = "most tests look at what a kernel writes")]
    pub(crate) fn is_busy(&self, rank: usize) -> bool {
        let stream = self.enter(rank).stream;
        // SAFETY: the stream lives as long as the machine.
        match unsafe { (self.table.cuStreamQuery)(stream) } {
            CUresult::CUDA_SUCCESS => false,
            CUresult::CUDA_ERROR_NOT_READY => true,
            result => panic!("rank {rank}: {result:?}"),
        }
    }

    /// Asks all waiting kernels to leave.
    pub(crate) fn abort(&self) {
        // SAFETY: pinned memory that lives as long as the process; kernels only read it.
        unsafe { self.abort_word.write_volatile(ABORT_WORD_RUN + 1) };
    }

    /// The abort record of the first kernel of `rank` that left early.
    pub(crate) fn record(&self, rank: usize) -> AbortRecord {
        // SAFETY: pinned memory that lives as long as the process; any bytes are valid.
        unsafe { self.ranks[rank].record.read_volatile() }
    }

    /// Where that record lies, for kernels.
    #[allow(dead_code, reason = "most tests read the record")]
    pub(crate) fn record_address(&self, rank: usize) -> u64 {
        self.ranks[rank].record as u64
    }

    /// For waits of `rank` for `peer`, or for [`NO_PEER`](aqueduct_ptx::abi::NO_PEER) in particular.
    pub(crate) fn abort_handle(&self, rank: usize, peer: u32) -> AbortHandle {
        AbortHandle {
            word: self.abort_word as u64,
            claim: self.ranks[rank].claim,
            rank: u32::try_from(rank).expect("few ranks"),
            peer,
        }
    }
}
