//! Tests of the calls of the table, by family.
//!
//! All tests of a process share one machine. A test that causes a sticky error, fills the memory of a device or waits for
//! a whole context uses a device that no other test uses ([`SPOILED`] and up).

mod capture;
mod constant;
mod launch;
mod memory;
mod module;
mod process;
mod stream;
mod vmm;

use std::sync::Once;

use cuda_driver_sys::{CUcontext, CUdevice, CUresult, CUstream, DriverTable};

use crate::{Config, configure, driver_table};

const OK: CUresult = CUresult::CUDA_SUCCESS;

/// The first device for tests that disturb others on the same device.
const SPOILED: CUdevice = 8;

/// Configures and initialises the machine, makes the context of `device` current, and returns the table.
fn on(device: CUdevice) -> DriverTable {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let config = Config { devices: 16, sms: 4, memory: 256 << 20, ..Config::default() };
        configure(config).expect("configured once");
    });
    let t = driver_table();
    let mut context: CUcontext = std::ptr::null_mut();
    // SAFETY: the pointers are to locals.
    unsafe {
        assert_eq!((t.cuInit)(0), OK);
        assert_eq!((t.cuDevicePrimaryCtxRetain)(&raw mut context, device), OK);
        assert_eq!((t.cuCtxSetCurrent)(context), OK);
    }
    t
}

/// Creates a non-blocking stream.
fn stream(t: &DriverTable) -> CUstream {
    let mut stream = std::ptr::null_mut();
    // SAFETY: the pointer is to a local.
    assert_eq!(unsafe { (t.cuStreamCreate)(&raw mut stream, 1) }, OK);
    stream
}

/// Allocates device memory.
fn alloc(t: &DriverTable, size: usize) -> u64 {
    let mut p = 0;
    // SAFETY: the pointer is to a local.
    assert_eq!(unsafe { (t.cuMemAlloc_v2)(&raw mut p, size) }, OK);
    p
}

/// Reads device memory.
fn read<T: Copy + Default>(t: &DriverTable, from: u64, n: usize) -> Vec<T> {
    let mut to = vec![T::default(); n];
    // SAFETY: the vector has room for what is copied.
    let code = unsafe { (t.cuMemcpyDtoH_v2)(to.as_mut_ptr().cast(), from, n * size_of::<T>()) };
    assert_eq!(code, OK);
    to
}

/// Writes device memory.
fn write<T: Copy>(t: &DriverTable, to: u64, from: &[T]) {
    // SAFETY: the slice is what is copied.
    assert_eq!(unsafe { (t.cuMemcpyHtoD_v2)(to, from.as_ptr().cast(), size_of_val(from)) }, OK);
}
