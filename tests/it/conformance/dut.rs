//! The device under test: a driver table, device 0 and its primary context.

use std::ffi::{CString, c_void};

use cuda_driver_sys::*;

/// PTX of the suite's kernels.
pub(crate) const KERNELS: &str = include_str!("kernels.ptx");

/// Asserts `CUDA_SUCCESS`.
macro_rules! ok {
    ($call:expr) => {{
        // SAFETY: the suite passes live pointers and handles of the right types, or (where a case says so) values the
        // driver must refuse without using them.
        let result = unsafe { $call };
        assert_eq!(result, CUresult::CUDA_SUCCESS, "{}", stringify!($call));
    }};
}
pub(crate) use ok;

/// Asserts one of the given error codes.
macro_rules! refused {
    ($call:expr, $($code:ident)|+) => {{
        // SAFETY: as for `ok!`.
        let result = unsafe { $call };
        assert!([$(CUresult::$code),+].contains(&result), "{} gave {result:?}", stringify!($call));
    }};
}
pub(crate) use refused;

/// A driver table with device 0's primary context current on the calling thread.
pub(crate) struct Dut {
    pub(crate) t: DriverTable,
    pub(crate) device: CUdevice,
    pub(crate) context: CUcontext,
    /// This test's full name, for cases that start this binary again.
    pub(crate) test: &'static str,
}

impl Dut {
    pub(crate) fn soft(test: &'static str) -> Self {
        Self::new(cuda_soft::driver_table(), test)
    }

    pub(crate) fn hardware(test: &'static str) -> Self {
        Self::new(load(None).expect("the hardware instance needs libcuda").table, test)
    }

    fn new(t: DriverTable, test: &'static str) -> Self {
        let (mut device, mut context) = (0, std::ptr::null_mut());
        ok!((t.cuInit)(0));
        ok!((t.cuDeviceGet)(&raw mut device, 0));
        ok!((t.cuDevicePrimaryCtxRetain)(&raw mut context, device));
        ok!((t.cuCtxPushCurrent_v2)(context));
        Self { t, device, context, test }
    }

    pub(crate) fn devices(&self) -> i32 {
        let mut count = 0;
        ok!((self.t.cuDeviceGetCount)(&raw mut count));
        count
    }

    pub(crate) fn attribute(&self, attribute: CUdevice_attribute) -> i32 {
        let mut value = 0;
        ok!((self.t.cuDeviceGetAttribute)(&raw mut value, attribute, self.device));
        value
    }

    pub(crate) fn alloc(&self, bytes: usize) -> CUdeviceptr {
        let mut pointer = 0;
        ok!((self.t.cuMemAlloc_v2)(&raw mut pointer, bytes));
        pointer
    }

    pub(crate) fn free(&self, pointer: CUdeviceptr) {
        ok!((self.t.cuMemFree_v2)(pointer));
    }

    pub(crate) fn upload(&self, to: CUdeviceptr, bytes: &[u8]) {
        ok!((self.t.cuMemcpyHtoD_v2)(to, bytes.as_ptr().cast(), bytes.len()));
    }

    pub(crate) fn download(&self, from: CUdeviceptr, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xEE; len];
        ok!((self.t.cuMemcpyDtoH_v2)(bytes.as_mut_ptr().cast(), from, len));
        bytes
    }

    pub(crate) fn download_u32(&self, from: CUdeviceptr, count: usize) -> Vec<u32> {
        let bytes = self.download(from, count * 4);
        bytes.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().expect("four bytes"))).collect()
    }

    /// Pinned, mapped host memory, with the device address that the driver reports. It is zeroed here: the driver promises
    /// nothing about its contents.
    pub(crate) fn pinned(&self, bytes: usize) -> (*mut c_void, CUdeviceptr) {
        let (mut host, mut device) = (std::ptr::null_mut(), 0);
        ok!((self.t.cuMemHostAlloc)(
            &raw mut host,
            bytes,
            CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP
        ));
        // SAFETY: `bytes` bytes have just been allocated there, and nobody else knows them.
        unsafe { host.cast::<u8>().write_bytes(0, bytes) };
        ok!((self.t.cuMemHostGetDevicePointer_v2)(&raw mut device, host, 0));
        (host, device)
    }

    pub(crate) fn stream(&self) -> CUstream {
        let mut stream = std::ptr::null_mut();
        ok!((self.t.cuStreamCreate)(&raw mut stream, CUstream_flags::CU_STREAM_NON_BLOCKING.0));
        stream
    }

    pub(crate) fn event(&self) -> CUevent {
        let mut event = std::ptr::null_mut();
        ok!((self.t.cuEventCreate)(&raw mut event, CUevent_flags::CU_EVENT_DEFAULT.0));
        event
    }

    pub(crate) fn sync(&self, stream: CUstream) {
        ok!((self.t.cuStreamSynchronize)(stream));
    }

    pub(crate) fn module(&self) -> CUmodule {
        let text = CString::new(KERNELS).expect("PTX holds no NUL");
        let mut module = std::ptr::null_mut();
        ok!((self.t.cuModuleLoadData)(&raw mut module, text.as_ptr().cast()));
        module
    }

    pub(crate) fn function(&self, module: CUmodule, name: &str) -> CUfunction {
        let name = CString::new(name).expect("no NUL");
        let mut function = std::ptr::null_mut();
        ok!((self.t.cuModuleGetFunction)(&raw mut function, module, name.as_ptr()));
        function
    }

    /// Launches `function` with 64-bit parameters and returns the driver's result.
    pub(crate) fn try_launch(
        &self,
        function: CUfunction,
        grid: u32,
        block: u32,
        stream: CUstream,
        parameters: &[u64],
    ) -> CUresult {
        let mut values = parameters.to_vec();
        let mut pointers: Vec<*mut c_void> = values.iter_mut().map(|v| (&raw mut *v).cast()).collect();
        // SAFETY: `pointers` names one live value per parameter; the driver copies them before it returns.
        unsafe {
            (self.t.cuLaunchKernel)(
                function,
                grid,
                1,
                1,
                block,
                1,
                1,
                0,
                stream,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
    }

    pub(crate) fn launch(
        &self,
        function: CUfunction,
        grid: u32,
        block: u32,
        stream: CUstream,
        parameters: &[u64],
    ) {
        assert_eq!(self.try_launch(function, grid, block, stream, parameters), CUresult::CUDA_SUCCESS);
    }
}
