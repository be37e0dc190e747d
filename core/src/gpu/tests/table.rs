//! Hooks and errors, on tables made by hand: no device is needed.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use cuda_driver_sys::{CUresult, DriverTable};

use crate::ErrorKind;
use crate::gpu::driver::call;
use crate::gpu::{Device, Driver, Hooks};
use crate::sync::{Mutex, lock};

unsafe extern "C" fn init(_: c_uint) -> CUresult {
    CUresult::CUDA_SUCCESS
}

unsafe extern "C" fn version(out: *mut c_int) -> CUresult {
    // SAFETY: the caller gives a live output.
    unsafe { *out = 11_020 };
    CUresult::CUDA_SUCCESS
}

unsafe extern "C" fn count(out: *mut c_int) -> CUresult {
    // SAFETY: the caller gives a live output.
    unsafe { *out = 0 };
    CUresult::CUDA_SUCCESS
}

fn driver() -> Driver {
    let table = DriverTable {
        cuInit: init,
        cuDriverGetVersion: version,
        cuDeviceGetCount: count,
        ..DriverTable::not_supported()
    };
    Driver::from_table(table, "by hand").unwrap()
}

/// Notes every call, and answers `cuDeviceGetCount` with an error while there is one.
#[derive(Default)]
struct Notes {
    calls: Mutex<Vec<(&'static str, CUresult)>>,
    fault: Mutex<Option<CUresult>>,
}

impl Hooks for Notes {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        if function == "cuDeviceGetCount" { *lock(&self.fault) } else { None }
    }

    fn after(&self, function: &'static str, result: CUresult) {
        lock(&self.calls).push((function, result));
    }
}

#[test]
fn a_missing_optional_function_names_itself_and_the_driver() {
    let driver = driver();
    let release = |driver: &Driver| {
        // SAFETY: the function is missing: nothing is called.
        unsafe { call!(driver, optional cuMemRelease(0)) }
    };
    let error = release(&driver).unwrap_err();
    assert_eq!((error.kind(), error.op()), (ErrorKind::Unsupported, "cuMemRelease"));
    assert!(error.message().contains("by hand, CUDA 11.2"), "{error}");
    assert!(driver.missing().contains(&"cuMemRelease") && !driver.missing().contains(&"cuMemAlloc_v2"));
}

#[test]
fn hooks_see_every_call_and_can_answer_it() {
    let (plain, notes) = (driver(), Arc::new(Notes::default()));
    let hooked = plain.with_hooks(notes.clone());
    assert_eq!(Device::count(&hooked).unwrap(), 0);
    *lock(&notes.fault) = Some(CUresult::CUDA_ERROR_NO_DEVICE);
    let error = Device::count(&hooked).unwrap_err();
    assert_eq!(error.code(), CUresult::CUDA_ERROR_NO_DEVICE.0.cast_signed());
    assert!(error.message().contains("CUDA_VISIBLE_DEVICES"), "{error}");
    assert_eq!(Device::count(&plain).unwrap(), 0, "the driver without hooks is not touched");
    let expected =
        [("cuDeviceGetCount", CUresult::CUDA_SUCCESS), ("cuDeviceGetCount", CUresult::CUDA_ERROR_NO_DEVICE)];
    assert_eq!(*lock(&notes.calls), expected);
}

#[test]
fn a_device_that_does_not_exist_is_named() {
    let error = Device::new(&driver(), 3).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUsage);
    assert!(error.message().contains("there is no device 3: by hand has no device at all"), "{error}");
}

#[test]
fn in_a_forked_child_calls_fail_without_entering_the_driver() {
    let notes = Arc::new(Notes::default());
    let driver = driver().with_hooks(notes.clone());
    // SAFETY: the child makes no call of the driver, allocates (glibc allows it after fork), and leaves with _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = Device::count(&driver).is_err_and(|e| e.message().contains("does not survive fork"));
        let code = if refused && lock(&notes.calls).is_empty() { 7 } else { 1 };
        // SAFETY: _exit is async-signal-safe.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `child` is ours and `status` is a live output.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 7);
    assert!(Device::count(&driver).is_ok());
}
