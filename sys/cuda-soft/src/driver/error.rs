//! Names and descriptions of all result codes.

use std::ffi::CStr;

use cuda_driver_sys::CUresult;

/// Name and description of a code; `None` for a number that is not a code.
pub(super) fn find(code: CUresult) -> Option<(&'static CStr, &'static CStr)> {
    CODES.iter().find(|(c, ..)| *c == code).map(|(_, name, says)| (*name, *says))
}

/// Each row has the constant and its description.
macro_rules! codes {
    ($($name:ident $says:literal)*) => {
        &[$((
            CUresult::$name,
            // Evaluated at compile time.
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(text) => text,
                Err(_) => panic!("a name has no NUL"),
            },
            match CStr::from_bytes_with_nul(concat!($says, "\0").as_bytes()) {
                Ok(text) => text,
                Err(_) => panic!("a sentence has no NUL"),
            },
        )),*]
    };
}

const CODES: &[(CUresult, &CStr, &CStr)] = codes! {
    CUDA_SUCCESS "no error"
    CUDA_ERROR_INVALID_VALUE "invalid argument"
    CUDA_ERROR_OUT_OF_MEMORY "out of memory"
    CUDA_ERROR_NOT_INITIALIZED "the driver is not initialised in this process"
    CUDA_ERROR_DEINITIALIZED "the driver is shutting down"
    CUDA_ERROR_PROFILER_DISABLED "profiler disabled"
    CUDA_ERROR_PROFILER_NOT_INITIALIZED "profiler not initialized"
    CUDA_ERROR_PROFILER_ALREADY_STARTED "profiler already started"
    CUDA_ERROR_PROFILER_ALREADY_STOPPED "profiler already stopped"
    CUDA_ERROR_STUB_LIBRARY "stub library"
    CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER "call requires newer driver"
    CUDA_ERROR_DEVICE_UNAVAILABLE "device unavailable"
    CUDA_ERROR_NO_DEVICE "there is no device"
    CUDA_ERROR_INVALID_DEVICE "there is no such device"
    CUDA_ERROR_DEVICE_NOT_LICENSED "device not licensed"
    CUDA_ERROR_INVALID_IMAGE "the module image is not valid"
    CUDA_ERROR_INVALID_CONTEXT "no valid context is current"
    CUDA_ERROR_CONTEXT_ALREADY_CURRENT "context already current"
    CUDA_ERROR_MAP_FAILED "mapping the memory failed"
    CUDA_ERROR_UNMAP_FAILED "unmap failed"
    CUDA_ERROR_ARRAY_IS_MAPPED "array is mapped"
    CUDA_ERROR_ALREADY_MAPPED "already mapped"
    CUDA_ERROR_NO_BINARY_FOR_GPU "the image holds no code for this device"
    CUDA_ERROR_ALREADY_ACQUIRED "already acquired"
    CUDA_ERROR_NOT_MAPPED "not mapped"
    CUDA_ERROR_NOT_MAPPED_AS_ARRAY "not mapped as array"
    CUDA_ERROR_NOT_MAPPED_AS_POINTER "not mapped as pointer"
    CUDA_ERROR_ECC_UNCORRECTABLE "ecc uncorrectable"
    CUDA_ERROR_UNSUPPORTED_LIMIT "unsupported limit"
    CUDA_ERROR_CONTEXT_ALREADY_IN_USE "context already in use"
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED "these devices cannot access each other"
    CUDA_ERROR_INVALID_PTX "the PTX did not compile"
    CUDA_ERROR_INVALID_GRAPHICS_CONTEXT "invalid graphics context"
    CUDA_ERROR_NVLINK_UNCORRECTABLE "nvlink uncorrectable"
    CUDA_ERROR_JIT_COMPILER_NOT_FOUND "jit compiler not found"
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION "unsupported ptx version"
    CUDA_ERROR_JIT_COMPILATION_DISABLED "jit compilation disabled"
    CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY "unsupported exec affinity"
    CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC "unsupported devside sync"
    CUDA_ERROR_CONTAINED "contained"
    CUDA_ERROR_INVALID_SOURCE "invalid source"
    CUDA_ERROR_FILE_NOT_FOUND "file not found"
    CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND "shared object symbol not found"
    CUDA_ERROR_SHARED_OBJECT_INIT_FAILED "shared object init failed"
    CUDA_ERROR_OPERATING_SYSTEM "operating system"
    CUDA_ERROR_INVALID_HANDLE "the handle is not valid"
    CUDA_ERROR_ILLEGAL_STATE "illegal state"
    CUDA_ERROR_LOSSY_QUERY "lossy query"
    CUDA_ERROR_NOT_FOUND "the named symbol was not found"
    CUDA_ERROR_NOT_READY "the work has not completed yet"
    CUDA_ERROR_ILLEGAL_ADDRESS "a kernel accessed an address it may not access"
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES "the launch needs more resources than a multiprocessor has"
    CUDA_ERROR_LAUNCH_TIMEOUT "a kernel made no progress for too long and was ended"
    CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING "launch incompatible texturing"
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED "peer access already enabled"
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED "peer access not enabled"
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE "primary context active"
    CUDA_ERROR_CONTEXT_IS_DESTROYED "the current context has been destroyed"
    CUDA_ERROR_ASSERT "an assertion failed in a kernel"
    CUDA_ERROR_TOO_MANY_PEERS "too many peers"
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED "host memory already registered"
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED "host memory not registered"
    CUDA_ERROR_HARDWARE_STACK_ERROR "hardware stack error"
    CUDA_ERROR_ILLEGAL_INSTRUCTION "illegal instruction"
    CUDA_ERROR_MISALIGNED_ADDRESS "a kernel accessed a misaligned address"
    CUDA_ERROR_INVALID_ADDRESS_SPACE "invalid address space"
    CUDA_ERROR_INVALID_PC "invalid pc"
    CUDA_ERROR_LAUNCH_FAILED "a kernel failed"
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE "the cooperative grid is larger than the device can hold at once"
    CUDA_ERROR_TENSOR_MEMORY_LEAK "tensor memory leak"
    CUDA_ERROR_NOT_PERMITTED "the operation is not permitted here"
    CUDA_ERROR_NOT_SUPPORTED "the operation is not supported on this device"
    CUDA_ERROR_SYSTEM_NOT_READY "system not ready"
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH "system driver mismatch"
    CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE "compat not supported on device"
    CUDA_ERROR_MPS_CONNECTION_FAILED "mps connection failed"
    CUDA_ERROR_MPS_RPC_FAILURE "mps rpc failure"
    CUDA_ERROR_MPS_SERVER_NOT_READY "mps server not ready"
    CUDA_ERROR_MPS_MAX_CLIENTS_REACHED "mps max clients reached"
    CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED "mps max connections reached"
    CUDA_ERROR_MPS_CLIENT_TERMINATED "mps client terminated"
    CUDA_ERROR_CDP_NOT_SUPPORTED "cdp not supported"
    CUDA_ERROR_CDP_VERSION_MISMATCH "cdp version mismatch"
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED "the operation is not permitted while a stream captures"
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED "an earlier error has invalidated the capture"
    CUDA_ERROR_STREAM_CAPTURE_MERGE "the operation would merge two captures"
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED "the capture did not begin on this stream"
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED "the capture forked to a stream that was not joined again"
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION "the capture would depend on work outside it"
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT "the legacy stream would implicitly depend on a capturing stream"
    CUDA_ERROR_CAPTURED_EVENT "the event was last recorded in a capturing stream"
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD "the capture began in another thread"
    CUDA_ERROR_TIMEOUT "timeout"
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE "graph exec update failure"
    CUDA_ERROR_EXTERNAL_DEVICE "external device"
    CUDA_ERROR_INVALID_CLUSTER_SIZE "invalid cluster size"
    CUDA_ERROR_FUNCTION_NOT_LOADED "function not loaded"
    CUDA_ERROR_INVALID_RESOURCE_TYPE "invalid resource type"
    CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION "invalid resource configuration"
    CUDA_ERROR_KEY_ROTATION "key rotation"
    CUDA_ERROR_UNKNOWN "an unknown error, which is a defect of the software device"
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_named() {
        for (i, (code, name, says)) in CODES.iter().enumerate() {
            assert!(CODES[..i].iter().all(|(c, ..)| c != code), "{name:?}");
            assert!(name.to_bytes().starts_with(b"CUDA_") && !says.is_empty());
        }
        assert_eq!(find(CUresult::CUDA_ERROR_NOT_READY).map(|(n, _)| n), Some(c"CUDA_ERROR_NOT_READY"));
        assert_eq!(find(CUresult(12345)), None);
    }
}
