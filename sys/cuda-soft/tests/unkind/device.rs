//! One software device as the environment has it, with one stream.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_driver_sys::{
    CUevent, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationProp, CUmemAllocationType, CUmemLocationType,
    CUresult, CUstream, DriverTable,
};
use cuda_soft::Config;

pub(crate) const KIB: usize = 1 << 10;
pub(crate) const MIB: usize = 1 << 20;

pub(crate) struct Device {
    table: DriverTable,
    stream: CUstream,
    event: CUevent,
}

fn ok(code: CUresult) {
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}

impl Device {
    /// The device of this process. Call it once.
    pub(crate) fn new() -> Self {
        cuda_soft::configure(Config { devices: 1, ..Config::from_env().unwrap() }).unwrap();
        let table = cuda_soft::driver_table();
        let (mut context, mut stream, mut event) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        // SAFETY: all pointers are to locals.
        unsafe {
            ok((table.cuInit)(0));
            ok((table.cuDevicePrimaryCtxRetain)(&raw mut context, 0));
            ok((table.cuCtxSetCurrent)(context));
            ok((table.cuStreamCreate)(&raw mut stream, 1));
            ok((table.cuEventCreate)(&raw mut event, 2));
        }
        Self { table, stream, event }
    }

    pub(crate) fn alloc(&self, bytes: usize) -> u64 {
        let mut at = 0;
        // SAFETY: the output is a local.
        ok(unsafe { (self.table.cuMemAlloc_v2)(&raw mut at, bytes) });
        at
    }

    pub(crate) fn free(&self, at: u64) {
        // SAFETY: nothing uses the memory.
        ok(unsafe { (self.table.cuMemFree_v2)(at) });
    }

    /// Pinned memory of the host, which is never freed.
    pub(crate) fn pinned(&self, bytes: usize) -> u64 {
        let mut at = ptr::null_mut();
        // SAFETY: the output is a local.
        ok(unsafe { (self.table.cuMemHostAlloc)(&raw mut at, bytes, 3) });
        at as u64
    }

    /// Memory of `cuMemCreate`, mapped, which is never freed.
    pub(crate) fn map(&self, bytes: usize) -> u64 {
        let mut properties = CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            ..CUmemAllocationProp::default()
        };
        properties.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        let access = CUmemAccessDesc {
            location: properties.location,
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let (mut handle, mut at) = (0, 0);
        // SAFETY: the pointers are to locals, and the size is a multiple of the granularity.
        unsafe {
            ok((self.table.cuMemCreate.unwrap())(&raw mut handle, bytes, &raw const properties, 0));
            ok((self.table.cuMemAddressReserve.unwrap())(&raw mut at, bytes, 0, 0, 0));
            ok((self.table.cuMemMap.unwrap())(at, bytes, 0, handle, 0));
            ok((self.table.cuMemSetAccess.unwrap())(at, bytes, &raw const access, 1));
        }
        at
    }

    pub(crate) fn read(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        // SAFETY: the vector has as many bytes.
        ok(unsafe { (self.table.cuMemcpyDtoH_v2)(read.as_mut_ptr().cast(), at, bytes) });
        read
    }

    /// A word of pinned memory.
    fn word(&self, at: u64) -> &AtomicU32 {
        // SAFETY: the tests pass aligned words of `pinned`, which lives as long as the process.
        unsafe { &*(at as *const AtomicU32) }
    }

    pub(crate) fn store(&self, at: u64, value: u32) {
        self.word(at).store(value, Ordering::SeqCst);
    }

    pub(crate) fn load(&self, at: u64) -> u32 {
        self.word(at).load(Ordering::SeqCst)
    }

    pub(crate) fn copy(&self, to: u64, from: u64, bytes: usize) {
        // SAFETY: both ranges are pinned memory.
        ok(unsafe { (self.table.cuMemcpyAsync)(to, from, bytes, self.stream) });
    }

    pub(crate) fn fill(&self, to: u64, value: u32, words: usize) {
        // SAFETY: the range is pinned memory.
        ok(unsafe { (self.table.cuMemsetD32Async)(to, value, words, self.stream) });
    }

    pub(crate) fn write_value(&self, to: u64, value: u32) {
        // SAFETY: an aligned word of pinned memory.
        ok(unsafe { (self.table.cuStreamWriteValue32_v2.unwrap())(self.stream, to, value, 0) });
    }

    /// What follows waits until the word has this value, or a larger one.
    pub(crate) fn wait_for_value(&self, at: u64, value: u32) {
        let wait = self.table.cuStreamWaitValue32_v2.unwrap();
        // SAFETY: the word is aligned, and alive until the process ends.
        ok(unsafe { wait(self.stream, at, value, 0) });
    }

    /// Runs one warp of the kernel `k` with an address.
    pub(crate) fn launch(&self, ptx: &str, mut address: u64) {
        let text = CString::new(ptx).unwrap();
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        let mut params: [*mut c_void; 1] = [(&raw mut address).cast()];
        let (params, none) = (params.as_mut_ptr(), ptr::null_mut());
        // SAFETY: the text ends with NUL, and there is one pointer per parameter.
        unsafe {
            ok((self.table.cuModuleLoadData)(&raw mut module, text.as_ptr().cast()));
            ok((self.table.cuModuleGetFunction)(&raw mut function, module, c"k".as_ptr()));
            ok((self.table.cuLaunchKernel)(function, 1, 1, 1, 32, 1, 1, 0, self.stream, params, none));
        }
    }

    pub(crate) fn wait(&self) {
        // SAFETY: the stream is alive.
        ok(unsafe { (self.table.cuStreamSynchronize)(self.stream) });
    }

    /// Whether the stream says that its work is over.
    pub(crate) fn is_ready(&self) -> bool {
        // SAFETY: the stream is alive.
        ready(unsafe { (self.table.cuStreamQuery)(self.stream) })
    }

    /// Records the event. Returns whether it says at once that this is done.
    pub(crate) fn records(&self) -> bool {
        // SAFETY: the event and the stream are alive.
        unsafe {
            ok((self.table.cuEventRecord)(self.event, self.stream));
            ready((self.table.cuEventQuery)(self.event))
        }
    }
}

fn ready(code: CUresult) -> bool {
    assert!(matches!(code, CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_NOT_READY), "{code:?}");
    code == CUresult::CUDA_SUCCESS
}
