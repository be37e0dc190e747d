//! Two software devices with the race detector on.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use cuda_driver_sys::{CUcontext, CUresult, CUstream, DriverTable};
use cuda_soft::{Check, Config};

/// The machine. Tests use it one after another, because a race loses the context of its device.
pub(crate) struct Devices {
    pub(crate) table: DriverTable,
    pub(crate) contexts: [CUcontext; 2],
    pub(crate) streams: [CUstream; 2],
    /// Zeroed memory of device 0, which both access.
    pub(crate) data: u64,
    _turn: MutexGuard<'static, ()>,
}

pub(crate) const DATA_BYTES: usize = 1 << 16;

fn ok(code: CUresult) {
    assert_eq!(code, CUresult::CUDA_SUCCESS);
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
            cuda_soft::configure(Config { devices: 2, check, ..config }).unwrap();
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
        Self { table, contexts, streams, data, _turn: turn }
    }

    pub(crate) fn enter(&self, device: usize) {
        // SAFETY: the context is alive.
        ok(unsafe { (self.table.cuCtxSetCurrent)(self.contexts[device]) });
    }

    /// Launches the kernel `k` of `ptx` on a stream of `device`, with the address of the memory and the device's number.
    pub(crate) fn launch(&self, ptx: &str, device: usize, grid: u32, block: u32) {
        self.enter(device);
        let text = CString::new(ptx).unwrap();
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        let (mut data, mut rank) = (self.data, device as u32);
        let mut params: [*mut c_void; 2] = [(&raw mut data).cast(), (&raw mut rank).cast()];
        // SAFETY: the text ends with NUL, and there is one pointer per parameter.
        unsafe {
            assert_eq!(
                (self.table.cuModuleLoadData)(&raw mut module, text.as_ptr().cast()),
                CUresult::CUDA_SUCCESS,
                "{ptx}"
            );
            ok((self.table.cuModuleGetFunction)(&raw mut function, module, c"k".as_ptr()));
            let (stream, params) = (self.streams[device], params.as_mut_ptr());
            ok((self.table.cuLaunchKernel)(
                function,
                grid,
                1,
                1,
                block,
                1,
                1,
                0,
                stream,
                params,
                ptr::null_mut(),
            ));
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
        for device in [0, 1] {
            // SAFETY: retained once in `new`. The next test gets a new context, without the error of this one.
            unsafe { (self.table.cuDevicePrimaryCtxRelease_v2)(device) };
        }
    }
}
