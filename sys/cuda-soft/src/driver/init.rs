//! `cuInit`, the driver version, and the names of error codes.

use std::ffi::{c_char, c_int, c_uint};

use cuda_driver_sys::{CUDA_VERSION, CUresult};

use super::{INVALID_VALUE, entries, error};
use crate::machine;

entries! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        machine::init()
    }

    fn cuDriverGetVersion(version: *mut c_int => out) {
        version.set(CUDA_VERSION as c_int);
        Ok(())
    }

    fn cuGetErrorName(code: CUresult, text: *mut *const c_char => out) {
        let found = error::find(code);
        text.set(found.map_or(std::ptr::null(), |(name, _)| name.as_ptr()));
        found.map(|_| ()).ok_or(INVALID_VALUE)
    }

    fn cuGetErrorString(code: CUresult, text: *mut *const c_char => out) {
        let found = error::find(code);
        text.set(found.map_or(std::ptr::null(), |(_, says)| says.as_ptr()));
        found.map(|_| ()).ok_or(INVALID_VALUE)
    }
}
