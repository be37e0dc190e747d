//! Options of the just-in-time compiler, of which only the logs have an effect.

use std::ffi::{c_char, c_uint, c_void};

use cuda_driver_sys::{CUjit_option as Opt, CUresult};

use crate::abi::{INVALID_VALUE, Result, put_str};

/// The log buffers of a call. The pointers are valid until the call, or the link, has ended.
#[derive(Debug, Default)]
pub(crate) struct Jit {
    info: Log,
    error: Log,
    wall_time: Option<*mut *mut c_void>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Log {
    buffer: Option<*mut c_char>,
    size: usize,
    /// The option value that receives the number of bytes written.
    filled: Option<*mut *mut c_void>,
}

// SAFETY: by the contract of the API the caller keeps the buffers valid and unused by others until the link is
// destroyed, and uses a link from one thread at a time.
unsafe impl Send for Jit {}
// SAFETY: as above.
unsafe impl Sync for Jit {}

impl Jit {
    /// Reads the option arrays of a call.
    ///
    /// # Safety
    /// The arrays are null or have `n` elements; each buffer has the size given with it.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for unknown options, `CUDA_ERROR_NOT_SUPPORTED` for options that would change the
    /// meaning of the code.
    pub(crate) unsafe fn read(n: c_uint, options: *mut Opt, values: *mut *mut c_void) -> Result<Self> {
        let mut jit = Self::default();
        if n != 0 && (options.is_null() || values.is_null()) {
            return Err(INVALID_VALUE);
        }
        for i in 0..n as usize {
            // SAFETY: i < n.
            let (option, slot) = unsafe { (options.add(i).read(), values.add(i)) };
            // SAFETY: as above.
            let value = unsafe { slot.read() };
            match option {
                Opt::CU_JIT_INFO_LOG_BUFFER => jit.info.buffer = Some(value.cast()),
                Opt::CU_JIT_ERROR_LOG_BUFFER => jit.error.buffer = Some(value.cast()),
                Opt::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES => {
                    jit.info = Log { size: value as u32 as usize, filled: Some(slot), ..jit.info };
                }
                Opt::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => {
                    jit.error = Log { size: value as u32 as usize, filled: Some(slot), ..jit.error };
                }
                Opt::CU_JIT_WALL_TIME => jit.wall_time = Some(slot),
                Opt::CU_JIT_GLOBAL_SYMBOL_NAMES
                | Opt::CU_JIT_GLOBAL_SYMBOL_ADDRESSES
                | Opt::CU_JIT_GLOBAL_SYMBOL_COUNT
                | Opt::CU_JIT_OVERRIDE_DIRECTIVE_VALUES => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
                known if known.0 < Opt::CU_JIT_NUM_OPTIONS.0 => {}
                _ => return Err(INVALID_VALUE),
            }
        }
        Ok(jit)
    }

    /// Fills the logs. Call it while the pointers are valid.
    pub(crate) fn report(&self, info: &str, error: &str, seconds: f32) {
        self.info.write(info);
        self.error.write(error);
        if let Some(slot) = self.wall_time {
            // SAFETY: an element of the caller's array of option values; the API stores a float in milliseconds there.
            unsafe { slot.cast::<f32>().write(seconds * 1e3) };
        }
    }
}

impl Log {
    fn write(&self, text: &str) {
        let mut filled = 0;
        if let Some(buffer) = self.buffer.filter(|b| !b.is_null() && self.size > 0) {
            let len = i32::try_from(self.size).unwrap_or(i32::MAX);
            // SAFETY: the buffer has `size` bytes, by contract of the options.
            if unsafe { put_str(buffer, len, text) }.is_ok() {
                filled = text.len().min(self.size - 1);
            }
        }
        if let Some(slot) = self.filled {
            // SAFETY: an element of the caller's array of option values.
            unsafe { slot.write(std::ptr::without_provenance_mut(filled)) };
        }
    }
}
