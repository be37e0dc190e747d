//! Loads files of the corpus and launches their kernels.

use std::ffi::{CString, c_void};
use std::path::Path;

use cuda_driver_sys::{CUfunction, CUmodule, CUresult, DriverTable};

/// A loaded file of the corpus.
#[derive(Debug)]
pub(crate) struct Corpus {
    table: DriverTable,
    module: CUmodule,
}

/// Device memory with values of type `T`. Never freed, because the process ends soon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer<T> {
    pub(crate) address: u64,
    length: usize,
    kind: std::marker::PhantomData<T>,
}

fn done(code: CUresult, what: &str) {
    assert_eq!(code, CUresult::CUDA_SUCCESS, "{what}");
}

impl Corpus {
    /// Loads `tests/corpus/<name>.ptx` on device 0.
    pub(crate) fn load(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(format!("{name}.ptx"));
        Self::text(&std::fs::read_to_string(&path).expect("readable"), name)
    }

    /// Loads this text on device 0.
    pub(crate) fn text(text: &str, name: &str) -> Self {
        let text = CString::new(text).expect("no NUL");
        let table = cuda_soft::driver_table();
        let (mut context, mut module) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the pointers are to locals, the text ends with NUL.
        unsafe {
            done((table.cuInit)(0), "cuInit");
            done((table.cuDevicePrimaryCtxRetain)(&raw mut context, 0), "retain");
            done((table.cuCtxSetCurrent)(context), "current");
            done((table.cuModuleLoadData)(&raw mut module, text.as_ptr().cast()), name);
        }
        Self { table, module }
    }

    /// Allocates device memory with these values.
    pub(crate) fn buffer<T: Copy>(&self, values: &[T]) -> Buffer<T> {
        let mut address = 0;
        // SAFETY: the pointer is to a local, the slice is what is copied.
        unsafe {
            done((self.table.cuMemAlloc_v2)(&raw mut address, size_of_val(values)), "alloc");
            done((self.table.cuMemcpyHtoD_v2)(address, values.as_ptr().cast(), size_of_val(values)), "write");
        }
        Buffer { address, length: values.len(), kind: std::marker::PhantomData }
    }

    /// Reads the values in the memory.
    pub(crate) fn read<T: Copy + Default>(&self, buffer: Buffer<T>) -> Vec<T> {
        let mut values = vec![T::default(); buffer.length];
        let bytes = buffer.length * size_of::<T>();
        // SAFETY: the vector has room for what is copied.
        done(
            unsafe { (self.table.cuMemcpyDtoH_v2)(values.as_mut_ptr().cast(), buffer.address, bytes) },
            "read",
        );
        values
    }

    /// Launches a kernel and waits for it. Each parameter is passed as eight bytes, of which the kernel takes as many as it
    /// declares.
    pub(crate) fn run(&self, kernel: &str, grid: u32, block: u32, shared: u32, parameters: &[u64]) {
        self.launch(kernel, (grid, 1), (block, 1), shared, parameters, false);
    }

    /// Starts a kernel.
    pub(crate) fn start(&self, kernel: &str, grid: u32, block: u32, parameters: &[u64]) {
        self.begin(kernel, (grid, 1), (block, 1), 0, parameters, false);
    }

    /// Asks for the state of the legacy stream until it is not busy.
    pub(crate) fn poll(&self) -> CUresult {
        loop {
            // SAFETY: a context is current.
            match unsafe { (self.table.cuStreamQuery)(std::ptr::null_mut()) } {
                CUresult::CUDA_ERROR_NOT_READY => std::thread::yield_now(),
                code => return code,
            }
        }
    }

    /// Waits for all work of the context.
    pub(crate) fn synchronize(&self) -> Result<(), CUresult> {
        // SAFETY: a context is current.
        match unsafe { (self.table.cuCtxSynchronize)() } {
            CUresult::CUDA_SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    /// Like [`Self::run`], with two dimensions.
    pub(crate) fn run2(&self, kernel: &str, grid: (u32, u32), block: (u32, u32), parameters: &[u64]) {
        self.launch(kernel, grid, block, 0, parameters, false);
    }

    /// Like [`Self::run`], as a cooperative launch.
    pub(crate) fn run_cooperative(&self, kernel: &str, grid: u32, block: u32, parameters: &[u64]) {
        self.launch(kernel, (grid, 1), (block, 1), 0, parameters, true);
    }

    fn launch(
        &self,
        kernel: &str,
        grid: (u32, u32),
        block: (u32, u32),
        shared: u32,
        parameters: &[u64],
        cooperative: bool,
    ) {
        self.begin(kernel, grid, block, shared, parameters, cooperative);
        self.synchronize().unwrap_or_else(|code| panic!("{kernel}: {code:?}"));
    }

    fn begin(
        &self,
        kernel: &str,
        grid: (u32, u32),
        block: (u32, u32),
        shared: u32,
        parameters: &[u64],
        cooperative: bool,
    ) {
        let name = CString::new(kernel).expect("no NUL");
        let mut function: CUfunction = std::ptr::null_mut();
        let mut values = parameters.to_vec();
        let mut places: Vec<*mut c_void> = values.iter_mut().map(|v| std::ptr::from_mut(v).cast()).collect();
        let (t, stream) = (&self.table, std::ptr::null_mut());
        // SAFETY: a pointer per parameter, each to eight bytes that outlive the call.
        unsafe {
            done((t.cuModuleGetFunction)(&raw mut function, self.module, name.as_ptr()), kernel);
            let places = places.as_mut_ptr();
            let code = if cooperative {
                let call = t.cuLaunchCooperativeKernel;
                call(function, grid.0, grid.1, 1, block.0, block.1, 1, shared, stream, places)
            } else {
                let extra = std::ptr::null_mut();
                (t.cuLaunchKernel)(
                    function, grid.0, grid.1, 1, block.0, block.1, 1, shared, stream, places, extra,
                )
            };
            done(code, kernel);
        }
    }
}
