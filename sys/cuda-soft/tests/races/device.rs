//! Two software devices with the race detector on.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use cuda_driver_sys::{CUcontext, CUfunction, CUresult, CUstream, CUstreamCaptureMode, DriverTable};
use cuda_soft::{Check, Config};

use team::Team;

// A target that borrows this file has no such module of its own.
#[path = "team.rs"]
mod team;

/// The machine. Tests use it one after another, because a race loses the context of its device.
pub(crate) struct Devices {
    pub(crate) table: DriverTable,
    pub(crate) contexts: [CUcontext; 2],
    pub(crate) streams: [CUstream; 2],
    /// Zeroed memory, which both access: device 0's, or the host's.
    pub(crate) data: u64,
    pinned: *mut c_void,
    /// Memory of both devices, in place of `data`.
    team: Option<Team>,
    _turn: MutexGuard<'static, ()>,
}

pub(crate) const DATA_BYTES: usize = 1 << 16;

pub(crate) fn ok(code: CUresult) {
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}

/// The text of a kernel `k`. It has `%data`, and `%flag`, 4 KiB behind it; `%tid`, `%block`, and `%rank`, the device. On a team `%data`
/// is the device's own memory, and `%all` the multicast address of that of both.
pub(crate) fn kernel(body: &str) -> String {
    format!(
        ".version 8.6
.target sm_90
.address_size 64
.visible .entry k(.param .u64 memory, .param .u32 device, .param .u64 team)
{{
    .shared .align 16 .b8 shared[1024];
    .reg .u64 %data, %flag, %all, %at, %d<8>;
    .reg .u32 %tid, %block, %rank, %r<8>;
    .reg .pred %p<8>;
    ld.param.u64 %data, [memory];
    ld.param.u64 %all, [team];
    ld.param.u32 %rank, [device];
    add.u64 %flag, %data, 4096;
    mov.u32 %tid, %tid.x;
    mov.u32 %block, %ctaid.x;
{body}
DONE:
    ret;
}}
"
    )
}

/// Runs `run` on fresh devices, waits for them, and returns the races that were found.
pub(crate) fn races(run: impl FnOnce(&Devices)) -> Vec<String> {
    races_of(&Devices::new(), run)
}

/// The same, with data in memory of the host.
pub(crate) fn races_on_host(run: impl FnOnce(&Devices)) -> Vec<String> {
    races_of(&Devices::on_host(), run)
}

/// The same, on a team.
pub(crate) fn races_on_team(run: impl FnOnce(&Devices)) -> Vec<String> {
    let mut devices = Devices::new();
    devices.team = Some(Team::new(&devices.table));
    races_of(&devices, run)
}

fn races_of(devices: &Devices, run: impl FnOnce(&Devices)) -> Vec<String> {
    let before = cuda_soft::races().len();
    run(devices);
    devices.finish(before)
}

impl Devices {
    pub(crate) fn new() -> Self {
        // A kernel whose partner has found a race waits in vain.
        Self::of(Config { watchdog: Some(Duration::from_millis(300)), ..Config::default() })
    }

    /// The machine, whose other properties the first call chooses.
    pub(crate) fn of(config: Config) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        static TABLE: OnceLock<()> = OnceLock::new();
        let turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        TABLE.get_or_init(|| {
            let check = Check { races: true, ..Check::default() };
            cuda_soft::configure(Config { devices: 2, multicast: true, check, ..config }).unwrap();
        });
        let table = cuda_soft::driver_table();
        let (mut contexts, mut streams, mut data) = ([ptr::null_mut(); 2], [ptr::null_mut(); 2], 0);
        // SAFETY: all pointers are to locals.
        unsafe {
            ok((table.cuInit)(0));
            for ordinal in [0, 1] {
                ok((table.cuDevicePrimaryCtxRetain)(&raw mut contexts[ordinal], ordinal as i32));
                ok((table.cuCtxSetCurrent)(contexts[ordinal]));
                ok((table.cuStreamCreate)(&raw mut streams[ordinal], 1));
            }
            ok((table.cuCtxEnablePeerAccess)(contexts[0], 0));
            ok((table.cuCtxSetCurrent)(contexts[0]));
            ok((table.cuMemAlloc_v2)(&raw mut data, DATA_BYTES));
            ok((table.cuMemsetD8_v2)(data, 0, DATA_BYTES));
            ok((table.cuCtxSynchronize)());
        }
        Self { table, contexts, streams, data, pinned: ptr::null_mut(), team: None, _turn: turn }
    }

    fn on_host() -> Self {
        let mut devices = Self::new();
        // SAFETY: the output is a field; the memory is as large as what is filled.
        unsafe {
            ok((devices.table.cuMemHostAlloc)(&raw mut devices.pinned, DATA_BYTES, 3));
            devices.data = devices.pinned as u64;
            ok((devices.table.cuMemsetD8_v2)(devices.data, 0, DATA_BYTES));
            ok((devices.table.cuCtxSynchronize)());
        }
        devices
    }

    /// The host stores a word of its memory.
    pub(crate) fn store(&self, offset: usize, value: u32) {
        assert!(!self.pinned.is_null() && offset.is_multiple_of(4) && offset < DATA_BYTES);
        // SAFETY: the word is inside the memory, aligned, and atomic for everyone who accesses it meanwhile.
        unsafe { &*self.pinned.byte_add(offset).cast::<AtomicU32>() }.store(value, Ordering::SeqCst);
    }

    pub(crate) fn enter(&self, device: usize) {
        // SAFETY: the context is alive.
        ok(unsafe { (self.table.cuCtxSetCurrent)(self.contexts[device]) });
    }

    /// The host waits for the stream of `device`.
    pub(crate) fn wait(&self, device: usize) {
        self.enter(device);
        // SAFETY: the stream is alive.
        ok(unsafe { (self.table.cuStreamSynchronize)(self.streams[device]) });
    }

    /// Another stream of `device`, which ends with the context.
    pub(crate) fn stream(&self, device: usize) -> CUstream {
        self.enter(device);
        let mut stream = ptr::null_mut();
        // SAFETY: the output is a local.
        ok(unsafe { (self.table.cuStreamCreate)(&raw mut stream, 1) });
        stream
    }

    /// The stream of `device` writes a word of the memory.
    pub(crate) fn stream_writes(&self, device: usize, offset: u64, value: u32) {
        self.enter(device);
        let write = self.table.cuStreamWriteValue32_v2.unwrap();
        // SAFETY: the memory is alive until `self` is dropped, and the word is aligned.
        ok(unsafe { write(self.streams[device], self.data + offset, value, 0) });
    }

    /// Launches the [`kernel`] with this body on a stream of `device`.
    pub(crate) fn launch(&self, body: &str, device: usize, grid: u32, block: u32) {
        self.launch_text(&kernel(body), device, grid, block);
    }

    /// Launches the kernel `k` of `ptx` on a stream of `device`, with the addresses of the memory and the device's
    /// number.
    pub(crate) fn launch_text(&self, ptx: &str, device: usize, grid: u32, block: u32) {
        self.launch_loaded(self.load(ptx, device), device, grid, block);
    }

    /// Loads the kernel `k` of `ptx`. This waits for the work of `device`.
    pub(crate) fn load(&self, ptx: &str, device: usize) -> CUfunction {
        self.enter(device);
        let text = CString::new(ptx).unwrap();
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the text ends with NUL, and the outputs are locals.
        unsafe {
            let code = (self.table.cuModuleLoadData)(&raw mut module, text.as_ptr().cast());
            assert_eq!(code, CUresult::CUDA_SUCCESS, "{ptx}");
            ok((self.table.cuModuleGetFunction)(&raw mut function, module, c"k".as_ptr()));
        }
        function
    }

    /// Launches a kernel that was loaded for `device`.
    pub(crate) fn launch_loaded(&self, function: CUfunction, device: usize, grid: u32, block: u32) {
        self.launch_on(self.streams[device], function, device, grid, block);
    }

    /// The same, on another stream of that device.
    pub(crate) fn launch_on(
        &self,
        stream: CUstream,
        function: CUfunction,
        device: usize,
        grid: u32,
        block: u32,
    ) {
        self.enter(device);
        let (mut data, mut all) = match &self.team {
            Some(team) => (team.own[device], team.all),
            None => (self.data, 0),
        };
        let mut rank = device as u32;
        let mut params: [*mut c_void; 3] =
            [(&raw mut data).cast(), (&raw mut rank).cast(), (&raw mut all).cast()];
        let (params, none) = (params.as_mut_ptr(), ptr::null_mut());
        // SAFETY: there is one pointer per parameter.
        ok(unsafe {
            (self.table.cuLaunchKernel)(function, grid, 1, 1, block, 1, 1, 0, stream, params, none)
        });
    }

    /// Launches what `work` submits to the stream of device 0 as a graph.
    pub(crate) fn launch_as_graph(&self, work: impl FnOnce()) {
        self.enter(0);
        let stream = self.streams[0];
        let (mut graph, mut exec) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the stream is alive, and the outputs are locals.
        unsafe {
            // Kernels may be loaded meanwhile, by calls that other modes forbid.
            let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            ok((self.table.cuStreamBeginCapture_v2)(stream, mode));
            work();
            ok((self.table.cuStreamEndCapture)(stream, &raw mut graph));
            ok((self.table.cuGraphInstantiateWithFlags)(&raw mut exec, graph, 0));
            ok((self.table.cuGraphLaunch)(exec, stream));
        }
    }

    /// Waits for both devices. Returns the races found since `before`.
    pub(crate) fn finish(&self, before: usize) -> Vec<String> {
        let codes = [0, 1].map(|device| {
            self.enter(device);
            // SAFETY: no pointers are passed.
            unsafe { (self.table.cuCtxSynchronize)() }
        });
        let races = cuda_soft::races().split_off(before);
        let failed = codes.contains(&CUresult::CUDA_ERROR_LAUNCH_FAILED);
        assert_eq!(failed, !races.is_empty(), "{codes:?} {races:?}");
        if races.is_empty() {
            assert_eq!(codes, [CUresult::CUDA_SUCCESS; 2]);
        }
        races
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        if let Some(team) = self.team.take() {
            team.leave(&self.table);
        }
        if !self.pinned.is_null() {
            // SAFETY: allocated in `on_host`; no kernel runs any more.
            unsafe { (self.table.cuMemFreeHost)(self.pinned) };
        }
        for device in [0, 1] {
            // SAFETY: retained once in `new`. The next test gets a new context, without the error of this one.
            unsafe { (self.table.cuDevicePrimaryCtxRelease_v2)(device) };
        }
    }
}
