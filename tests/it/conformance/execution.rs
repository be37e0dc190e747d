//! Kernel launches: parameters, limits, cooperative launches, memory ordering.

use std::ffi::c_void;
use std::time::Duration;

use cuda_driver_sys::*;

use super::dut::{Dut, ok};
use super::streams::release;

pub(super) fn threads_see_their_indices(d: &Dut) {
    let function = d.function(d.module(), "indices");
    for (grid, block) in [(1, 1), (3, 33), (70, 1024), (1000, 32)] {
        let n = (grid * block) as usize;
        let a = d.alloc(n * 4);
        d.launch(function, grid, block, std::ptr::null_mut(), &[a, 7]);
        ok!((d.t.cuCtxSynchronize)());
        assert!(d.download_u32(a, n).iter().enumerate().all(|(i, &v)| v == i as u32 + 7), "{grid} x {block}");
        d.free(a);
    }
}

pub(super) fn shared_memory_and_barriers(d: &Dut) {
    let a = d.alloc(50 * 4);
    d.launch(d.function(d.module(), "block_sum"), 50, 256, std::ptr::null_mut(), &[a]);
    ok!((d.t.cuCtxSynchronize)());
    assert_eq!(d.download_u32(a, 50), [255 * 256 / 2; 50]);
    d.free(a);
}

pub(super) fn atomics_count_exactly(d: &Dut) {
    let a = d.alloc(8);
    ok!((d.t.cuMemsetD8_v2)(a, 0, 8));
    d.launch(d.function(d.module(), "count"), 300, 96, std::ptr::null_mut(), &[a]);
    ok!((d.t.cuCtxSynchronize)());
    assert_eq!(d.download(a, 8), (300u64 * 96).to_le_bytes());
    d.free(a);
}

/// Parameters in one buffer, as `CU_LAUNCH_PARAM_BUFFER_POINTER` passes them.
pub(super) fn extra_parameters(d: &Dut) {
    let a = d.alloc(128);
    let mut buffer = [a.to_le_bytes(), 3u64.to_le_bytes()].concat();
    let mut size = buffer.len();
    let mut extra: [*mut c_void; 5] = [
        std::ptr::without_provenance_mut(1), // CU_LAUNCH_PARAM_BUFFER_POINTER
        buffer.as_mut_ptr().cast(),
        std::ptr::without_provenance_mut(2), // CU_LAUNCH_PARAM_BUFFER_SIZE
        (&raw mut size).cast(),
        std::ptr::null_mut(), // CU_LAUNCH_PARAM_END
    ];
    let function = d.function(d.module(), "indices");
    ok!((d.t.cuLaunchKernel)(
        function,
        1,
        1,
        1,
        32,
        1,
        1,
        0,
        std::ptr::null_mut(),
        std::ptr::null_mut(),
        extra.as_mut_ptr()
    ));
    ok!((d.t.cuCtxSynchronize)());
    assert_eq!(d.download_u32(a, 32)[31], 34);
    d.free(a);
}

pub(super) fn limits_are_checked(d: &Dut) {
    let function = d.function(d.module(), "indices");
    let a = d.alloc(4096 * 4);
    let null = std::ptr::null_mut();
    assert_eq!(d.try_launch(function, 1, 1025, null, &[a, 0]), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(d.try_launch(function, 0, 32, null, &[a, 0]), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(d.try_launch(function, 1, 0, null, &[a, 0]), CUresult::CUDA_ERROR_INVALID_VALUE);
    // A refused launch leaves the context usable.
    d.launch(function, 1, 32, null, &[a, 0]);
    ok!((d.t.cuCtxSynchronize)());
    d.free(a);
}

fn cooperative(d: &Dut, function: CUfunction, grid: u32, parameters: &[u64]) -> CUresult {
    let mut values = parameters.to_vec();
    let mut pointers: Vec<*mut c_void> = values.iter_mut().map(|v| (&raw mut *v).cast()).collect();
    // SAFETY: one live value per parameter, copied before the call returns.
    unsafe {
        (d.t.cuLaunchCooperativeKernel)(
            function,
            grid,
            1,
            1,
            256,
            1,
            1,
            0,
            std::ptr::null_mut(),
            pointers.as_mut_ptr(),
        )
    }
}

pub(super) fn cooperative_limit(d: &Dut) {
    let function = d.function(d.module(), "grid_barrier");
    let mut per_sm = 0;
    ok!((d.t.cuOccupancyMaxActiveBlocksPerMultiprocessor)(&raw mut per_sm, function, 256, 0));
    let sms = d.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    let most = u32::try_from(per_sm * sms).unwrap();
    let (counter, out) = (d.alloc(4), d.alloc(most as usize * 4));
    assert_eq!(
        cooperative(d, function, most + 1, &[counter, out]),
        CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
    );
    for grid in [1, most] {
        ok!((d.t.cuMemsetD8_v2)(counter, 0, 4));
        assert_eq!(cooperative(d, function, grid, &[counter, out]), CUresult::CUDA_SUCCESS);
        ok!((d.t.cuCtxSynchronize)());
        assert!(d.download_u32(out, grid as usize).iter().all(|&seen| seen == grid));
    }
    d.free(counter);
    d.free(out);
}

pub(super) fn host_releases_a_spinning_kernel(d: &Dut) {
    let stream = d.stream();
    let (host, word) = d.pinned(16);
    d.launch(d.function(d.module(), "wait_for"), 1, 1, stream, &[word, 99, word + 8]);
    for value in [1, 50, 99] {
        std::thread::sleep(Duration::from_millis(3));
        release(host, value);
    }
    d.sync(stream);
    // SAFETY: the kernel has ended; sixteen bytes are pinned.
    assert_eq!(unsafe { host.cast::<u64>().add(1).read() }, 99);
    ok!((d.t.cuStreamDestroy_v2)(stream));
    ok!((d.t.cuMemFreeHost)(host));
}

pub(super) fn message_passing_between_kernels(d: &Dut) {
    let (first, second) = (d.stream(), d.stream());
    let module = d.module();
    let (ping, pong) = (d.function(module, "ping"), d.function(module, "pong"));
    let a = d.alloc(4096);
    ok!((d.t.cuMemsetD8_v2)(a, 0, 4096));
    ok!((d.t.cuCtxSynchronize)());
    let (data, flag, echo, wrong) = (a, a + 1024, a + 2048, a + 3072);
    let rounds = 500;
    d.launch(pong, 1, 1, second, &[data, flag, echo, rounds, wrong]);
    d.launch(ping, 1, 1, first, &[data, flag, echo, rounds]);
    d.sync(first);
    d.sync(second);
    assert_eq!(d.download(wrong, 8), [0; 8]);
    assert_eq!(d.download(data, 8), rounds.to_le_bytes());
    for stream in [first, second] {
        ok!((d.t.cuStreamDestroy_v2)(stream));
    }
    d.free(a);
}
