//! Errors that destroy a context: each case runs in a process of its own.

use aqueduct_tests::ranks;
use cuda_driver_sys::*;

use super::dut::Dut;

/// Launches `kernel` and expects `code` from the next synchronisation and from every later call.
fn sticky(d: &Dut, kernel: &str, parameters: &[u64], code: CUresult) {
    let stream = d.stream();
    let function = d.function(d.module(), kernel);
    d.launch(function, 1, 1, stream, parameters);
    // SAFETY: live handles; the driver refuses everything on a lost context without using it.
    unsafe {
        assert_eq!((d.t.cuStreamSynchronize)(stream), code);
        assert_eq!((d.t.cuStreamSynchronize)(stream), code, "the error stays");
        assert_eq!((d.t.cuCtxSynchronize)(), code);
        let mut pointer = 0;
        assert_eq!((d.t.cuMemAlloc_v2)(&raw mut pointer, 16), code);
    }
}

pub(super) fn wild_store_is_sticky(d: &Dut) {
    let Some(_) = ranks::start(1, d.test) else { return };
    sticky(d, "store_u32", &[0x7f00_0000_0000], CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
}

pub(super) fn misaligned_access_is_sticky(d: &Dut) {
    let Some(_) = ranks::start(1, d.test) else { return };
    let a = d.alloc(64);
    sticky(d, "store_u32", &[a + 2], CUresult::CUDA_ERROR_MISALIGNED_ADDRESS);
}

pub(super) fn trap_is_sticky(d: &Dut) {
    let Some(_) = ranks::start(1, d.test) else { return };
    sticky(d, "fail", &[], CUresult::CUDA_ERROR_LAUNCH_FAILED);
}
