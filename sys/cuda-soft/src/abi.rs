//! The C boundary: results, output pointers, inputs and strings.

use std::ffi::{CStr, c_char};
use std::ptr::NonNull;

use cuda_driver_sys::CUresult;

/// The result of a driver call.
pub(crate) type Result<T = ()> = std::result::Result<T, CUresult>;

/// The most frequent error.
pub(crate) const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// The error of what the device does not have, after standard error has said what that is.
pub(crate) fn not_supported(what: &str) -> CUresult {
    eprintln!("cuda-soft: not supported: {what}");
    CUresult::CUDA_ERROR_NOT_SUPPORTED
}

/// The output pointer of a driver call.
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    pub(crate) fn set(&self, value: T) {
        // SAFETY: the caller of `out` vouches for the pointer until the end of the driver call.
        unsafe { self.0.write(value) }
    }
}

/// Takes an output pointer.
///
/// # Safety
/// `p` is null, or valid for writes of one `T` until the driver call ends.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if `p` is null.
pub(crate) unsafe fn out<T>(p: *mut T) -> Result<Out<T>> {
    NonNull::new(p).map(Out).ok_or(INVALID_VALUE)
}

/// Reads an input.
///
/// # Safety
/// `p` is null, or valid for reads of one `T`.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if `p` is null.
pub(crate) unsafe fn input<T: Copy>(p: *const T) -> Result<T> {
    if p.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, hence valid for reads by contract.
    Ok(unsafe { p.read() })
}

/// Reads a string.
///
/// # Safety
/// `p` is null or a NUL-terminated string.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if `p` is null.
pub(crate) unsafe fn cstr(p: *const c_char) -> Result<String> {
    if p.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, hence a C string by contract.
    Ok(unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned())
}

/// Writes a string to a buffer of the caller, truncated to `len` bytes including its NUL.
///
/// # Safety
/// `to` is null or valid for writes of `len` bytes.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if `to` is null or `len` is not positive.
pub(crate) unsafe fn put_str(to: *mut c_char, len: i32, text: &str) -> Result {
    let len = usize::try_from(len).ok().filter(|n| *n > 0 && !to.is_null()).ok_or(INVALID_VALUE)?;
    let n = text.len().min(len - 1);
    // SAFETY: `to` has room for `len` >= n + 1 bytes, and the text has at least n bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, n);
        to.add(n).write(0);
    }
    Ok(())
}
