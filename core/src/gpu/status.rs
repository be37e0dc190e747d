//! Error messages for `CUresult` codes: the name, the driver's text, and a hint what to do about it.

use std::ffi::{CStr, c_char};

use cuda_driver_sys::{CUresult, DriverTable};

use crate::descriptors;
use crate::error::{Error, ErrorKind};

/// The error of `function` having returned `result`. The code is kept ([`Error::code`]); a driver that says "not
/// supported" gives [`ErrorKind::Unsupported`], a process without file descriptors [`ErrorKind::Exhausted`], everything
/// else [`ErrorKind::Cuda`].
pub(crate) fn error(table: &DriverTable, software: bool, function: &'static str, result: CUresult) -> Error {
    let code = result.0.cast_signed();
    if let Some(why) = missing_descriptors(result) {
        let message = format!("{why} ({function} returned {code})");
        return Error::new(ErrorKind::Exhausted, function, message).with_code(code);
    }
    let kind = match result {
        CUresult::CUDA_ERROR_NOT_SUPPORTED => ErrorKind::Unsupported,
        _ => ErrorKind::Cuda,
    };
    let name = lookup(table.cuGetErrorName, result).unwrap_or_else(|| "an unknown error".into());
    let text = lookup(table.cuGetErrorString, result).unwrap_or_else(|| "no description".into());
    let mut message = format!("{function} returned {name} ({}): {text}", result.0);
    if software && function == "cuInit" && result == CUresult::CUDA_ERROR_INVALID_VALUE {
        message.push_str(
            "; a variable AQUEDUCT_SOFT_* has a bad value: standard error names it and what it takes",
        );
    } else if function == "cuInit" && result == CUresult::CUDA_ERROR_NOT_INITIALIZED {
        message.push_str("; CUDA does not work in a forked child of a process that has used it: start another program there");
    } else if let Some(hint) = hint(result, software) {
        message.push_str("; ");
        message.push_str(hint);
    }
    Error::new(kind, function, message).with_code(code)
}

/// Why the driver could not open a file, if `result` is one of those that it returns then and no file can be opened.
fn missing_descriptors(result: CUresult) -> Option<String> {
    match result {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY
        | CUresult::CUDA_ERROR_OPERATING_SYSTEM
        | CUresult::CUDA_ERROR_NOT_INITIALIZED
        | CUresult::CUDA_ERROR_MAP_FAILED
        | CUresult::CUDA_ERROR_UNKNOWN => descriptors::exhausted(),
        _ => None,
    }
}

/// Whether `code` (of an [`Error`]) says that the context is lost: every later call in it will fail as well.
pub(crate) fn is_sticky(code: i32) -> bool {
    const STICKY: [CUresult; 12] = [
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
        CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
        CUresult::CUDA_ERROR_ASSERT,
        CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
        CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
        CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
        CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
        CUresult::CUDA_ERROR_INVALID_PC,
        CUresult::CUDA_ERROR_LAUNCH_FAILED,
        CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
        CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
        CUresult::CUDA_ERROR_EXTERNAL_DEVICE,
    ];
    STICKY.iter().any(|s| s.0.cast_signed() == code)
}

/// A hint what to do about `result`, where there is more to say than the driver's own text. `software` is the software
/// device.
fn hint(result: CUresult, software: bool) -> Option<&'static str> {
    Some(match result {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY if software => {
            "the software device's memory is used up: use smaller buffers, or give it more with AQUEDUCT_SOFT_MEMORY \
             (8G unless set), as far as the host has it"
        }
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            "free device memory, use smaller buffers, or see with nvidia-smi who else uses this GPU"
        }
        CUresult::CUDA_ERROR_NO_DEVICE if software => {
            "the software machine has none: AQUEDUCT_SOFT_DEVICES is 0; leave it out, or give a number up to 64"
        }
        CUresult::CUDA_ERROR_NO_DEVICE => {
            "no GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES, or set AQUEDUCT_DRIVER=soft"
        }
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
            "libcuda and the kernel module are of different versions: reboot after the driver update, or mount the \
             host's libcuda into the container"
        }
        CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "a forward-compatibility libcuda was loaded on a GPU that does not allow it: remove cuda-compat from \
             LD_LIBRARY_PATH"
        }
        CUresult::CUDA_ERROR_SYSTEM_NOT_READY => {
            "start nvidia-fabricmanager (NVSwitch machines need it) and look at dmesg"
        }
        CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => {
            "the GPU is in exclusive or prohibited compute mode and in use: nvidia-smi -c DEFAULT changes it"
        }
        CUresult::CUDA_ERROR_NOT_PERMITTED => {
            "the driver or the container forbids this: fabric handles need access to an IMEX channel, peer memory \
             needs the GPUs in one container"
        }
        CUresult::CUDA_ERROR_NOT_SUPPORTED => {
            "this device or driver cannot do it: update the driver or choose another transport"
        }
        CUresult::CUDA_ERROR_LAUNCH_FAILED | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS if software => {
            "a kernel or copy failed before this call, and standard error has the access; this context is lost and the process has to \
             be restarted"
        }
        CUresult::CUDA_ERROR_LAUNCH_FAILED | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS => {
            "a kernel failed before this call; this context is lost and the process has to be restarted \
             (compute-sanitizer finds the access)"
        }
        CUresult::CUDA_ERROR_ECC_UNCORRECTABLE => {
            "the GPU's memory is damaged: this context is lost; see nvidia-smi -q -d ECC and drain the node"
        }
        CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE => {
            "all blocks of a grid barrier must be resident at once: launch fewer blocks"
        }
        CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED => {
            "these GPUs cannot reach each other's memory: see `aqueduct info` for the peer matrix"
        }
        CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            "this driver is older than the PTX: update the driver or assemble for a lower .version"
        }
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => "the PTX's .target is newer than this GPU",
        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED | CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => {
            "this cannot be captured into a graph: do it before the capture begins; for launches, call prepare() then"
        }
        CUresult::CUDA_ERROR_DEINITIALIZED => "the process is exiting and the driver has shut down",
        CUresult::CUDA_ERROR_OPERATING_SYSTEM => {
            "the driver could not open a file or device: check the limit of open files (ulimit -n), and that the \
             container has /dev/nvidia* and /proc"
        }
        CUresult::CUDA_ERROR_MPS_CONNECTION_FAILED => {
            "the MPS daemon does not answer: restart it or unset CUDA_MPS_PIPE_DIRECTORY"
        }
        _ => return None,
    })
}

type Lookup = unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult;

fn lookup(get: Lookup, result: CUresult) -> Option<String> {
    let mut text = std::ptr::null();
    // SAFETY: `text` is a live output; both functions accept any code and keep nothing.
    let status = unsafe { get(result, &raw mut text) };
    if status != CUresult::CUDA_SUCCESS || text.is_null() {
        return None;
    }
    // SAFETY: on success the driver gives a NUL-terminated string of static life.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn name(_: CUresult, out: *mut *const c_char) -> CUresult {
        // SAFETY: `lookup` gives a live output.
        unsafe { *out = c"CUDA_ERROR_OUT_OF_MEMORY".as_ptr() };
        CUresult::CUDA_SUCCESS
    }

    #[test]
    fn an_error_names_function_code_and_remedy() {
        let table = DriverTable { cuGetErrorName: name, ..DriverTable::not_supported() };
        let of_software = error(&table, true, "cuMemCreate", CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert!(of_software.message().contains("AQUEDUCT_SOFT_MEMORY"), "{of_software}");
        assert!(!of_software.message().contains("nvidia-smi"), "{of_software}");
        for lost in [CUresult::CUDA_ERROR_LAUNCH_FAILED, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS] {
            let [real, software] =
                [false, true].map(|software| error(&table, software, "cuMemcpyHtoDAsync", lost));
            assert!(real.message().contains("compute-sanitizer"), "{real}");
            assert!(software.message().contains("standard error has the access"), "{software}");
            assert!(!software.message().contains("compute-sanitizer"), "{software}");
        }
        let e = error(&table, false, "cuMemCreate", CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!((e.kind(), e.op(), e.code()), (ErrorKind::Cuda, "cuMemCreate", 2));
        assert!(
            e.message().starts_with(
                "cuMemCreate returned CUDA_ERROR_OUT_OF_MEMORY (2): no description; free device memory"
            ),
            "{e}"
        );
    }

    #[test]
    fn an_unknown_code_and_a_driver_without_texts_still_make_a_sentence() {
        let table = DriverTable::not_supported();
        let e = error(&table, false, "cuInit", CUresult(987_654));
        assert_eq!(e.message(), "cuInit returned an unknown error (987654): no description");
        assert_eq!(
            error(&table, false, "cuInit", CUresult::CUDA_ERROR_NOT_SUPPORTED).kind(),
            ErrorKind::Unsupported
        );
    }

    #[test]
    fn only_errors_that_lose_the_context_are_sticky() {
        assert!(is_sticky(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS.0.cast_signed()));
        for code in
            [CUresult::CUDA_SUCCESS, CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_NOT_READY]
        {
            assert!(!is_sticky(code.0.cast_signed()));
        }
    }
}
