//! Modules, the JIT log, linking, functions.

use std::ffi::{CStr, c_void};

use aqueduct_tests::not_run;
use cuda_driver_sys::*;

use super::dut::{Dut, ok, refused};

/// Loads `text` with log buffers and returns the result and the error log.
fn load_with_log(d: &Dut, text: &CStr) -> (CUresult, String) {
    let mut log = vec![0u8; 4096];
    let mut options =
        [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
    let mut module = std::ptr::null_mut();
    // SAFETY: two options with their two values; the log buffer outlives the call.
    let result = unsafe {
        (d.t.cuModuleLoadDataEx)(
            &raw mut module,
            text.as_ptr().cast(),
            2,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
    (result, String::from_utf8_lossy(&log[..end]).into_owned())
}

pub(super) fn log_of_bad_text(d: &Dut) {
    let text = c".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k()\n{\n    frobnicate.u32 1;\n    ret;\n}\n";
    let (result, log) = load_with_log(d, text);
    assert_eq!(result, CUresult::CUDA_ERROR_INVALID_PTX, "{log}");
    assert!(log.contains("line 6"), "the log names the line: {log}");
    assert!(log.contains("frobnicate"), "the log names the word: {log}");
    let (result, log) = load_with_log(d, c".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k()\n{\n    mov.u32 %nobody, 1;\n    ret;\n}\n");
    assert_eq!(result, CUresult::CUDA_ERROR_INVALID_PTX, "{log}");
    assert!(log.contains("nobody"), "{log}");
}

pub(super) fn globals_and_functions(d: &Dut) {
    let module = d.module();
    let (mut address, mut size) = (0, 0);
    ok!((d.t.cuModuleGetGlobal_v2)(&raw mut address, &raw mut size, module, c"tuned".as_ptr()));
    assert_eq!((size, d.download_u32(address, 1)[0]), (4, 42));
    d.upload(address, &1234u32.to_le_bytes());
    let out = d.alloc(4);
    d.launch(d.function(module, "read_global"), 1, 1, std::ptr::null_mut(), &[out]);
    ok!((d.t.cuCtxSynchronize)());
    assert_eq!(d.download_u32(out, 1), [1234]);
    ok!((d.t.cuModuleGetGlobal_v2)(&raw mut address, &raw mut size, module, c"room".as_ptr()));
    assert_eq!(size, 64);
    let mut function = std::ptr::null_mut();
    refused!((d.t.cuModuleGetFunction)(&raw mut function, module, c"nobody".as_ptr()), CUDA_ERROR_NOT_FOUND);
    refused!(
        (d.t.cuModuleGetGlobal_v2)(&raw mut address, &raw mut size, module, c"nobody".as_ptr()),
        CUDA_ERROR_NOT_FOUND
    );
    ok!((d.t.cuModuleUnload)(module));
    d.free(out);
}

pub(super) fn linked_pieces(d: &Dut) {
    let callee = c".version 7.0\n.target sm_70\n.address_size 64\n.visible .func (.reg .u32 %r) twice(.reg .u32 %x)\n{\n    shl.b32 %r, %x, 1;\n    ret;\n}\n";
    let caller = c".version 7.0\n.target sm_70\n.address_size 64\n.extern .func (.reg .u32 %r) twice(.reg .u32 %x);\n.visible .entry k(.param .u64 out)\n{\n    .reg .u64 %out;\n    .reg .u32 %v;\n    ld.param.u64 %out, [out];\n    mov.u32 %v, 21;\n    call.uni (%v), twice, (%v);\n    st.global.u32 [%out], %v;\n    ret;\n}\n";
    let mut link = std::ptr::null_mut();
    ok!((d.t.cuLinkCreate_v2)(0, std::ptr::null_mut(), std::ptr::null_mut(), &raw mut link));
    for (text, name) in [(caller, c"caller"), (callee, c"callee")] {
        ok!((d.t.cuLinkAddData_v2)(
            link,
            CUjitInputType::CU_JIT_INPUT_PTX,
            text.as_ptr().cast_mut().cast(),
            text.to_bytes_with_nul().len(),
            name.as_ptr(),
            0,
            std::ptr::null_mut(),
            std::ptr::null_mut()
        ));
    }
    let (mut image, mut size) = (std::ptr::null_mut(), 0);
    ok!((d.t.cuLinkComplete)(link, &raw mut image, &raw mut size));
    assert!(size > 0);
    let mut module = std::ptr::null_mut();
    ok!((d.t.cuModuleLoadData)(&raw mut module, image));
    ok!((d.t.cuLinkDestroy)(link));
    let out = d.alloc(4);
    d.launch(d.function(module, "k"), 1, 1, std::ptr::null_mut(), &[out]);
    ok!((d.t.cuCtxSynchronize)());
    assert_eq!(d.download_u32(out, 1), [42]);
    d.free(out);
}

pub(super) fn attributes_and_occupancy(d: &Dut) {
    let function = d.function(d.module(), "block_sum");
    let get = |attribute| {
        let mut value = -1;
        ok!((d.t.cuFuncGetAttribute)(&raw mut value, attribute, function));
        value
    };
    assert_eq!(get(CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), 1024);
    assert!(get(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) >= 256);
    let mut blocks = 0;
    ok!((d.t.cuOccupancyMaxActiveBlocksPerMultiprocessor)(&raw mut blocks, function, 256, 0));
    assert!(blocks >= 1);
    ok!((d.t.cuOccupancyMaxActiveBlocksPerMultiprocessor)(&raw mut blocks, function, 256, 40_000));
    assert!(blocks >= 1);
}

pub(super) fn shared_memory_on_request(d: &Dut) {
    let function = d.function(d.module(), "indices");
    let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    let most = d.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    let plain = d.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    assert!(plain <= most);
    let a = d.alloc(4096);
    let launch = |bytes: i32| {
        let (mut out, mut bias) = (a, 0u64);
        let mut parameters: [*mut c_void; 2] = [(&raw mut out).cast(), (&raw mut bias).cast()];
        let (stream, extra) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: one live value per parameter, copied before the call returns.
        unsafe {
            (d.t.cuLaunchKernel)(
                function,
                1,
                1,
                1,
                32,
                1,
                1,
                bytes as u32,
                stream,
                parameters.as_mut_ptr(),
                extra,
            )
        }
    };
    assert_eq!(launch(plain), CUresult::CUDA_SUCCESS);
    if most > plain {
        assert_eq!(launch(most), CUresult::CUDA_ERROR_INVALID_VALUE, "not asked for yet");
    }
    ok!((d.t.cuFuncSetAttribute)(function, attribute, most));
    let mut seen = 0;
    ok!((d.t.cuFuncGetAttribute)(&raw mut seen, attribute, function));
    assert_eq!(seen, most);
    assert_eq!(launch(most), CUresult::CUDA_SUCCESS);
    refused!((d.t.cuFuncSetAttribute)(function, attribute, most + 1), CUDA_ERROR_INVALID_VALUE);
    ok!((d.t.cuCtxSynchronize)());
    d.free(a);
}

pub(super) fn sizes_of_parameters(d: &Dut) {
    let Some(get) = d.t.cuFuncGetParamInfo else {
        return not_run(d.test, "this driver has no cuFuncGetParamInfo, which came with CUDA 12.4");
    };
    let text = c".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry none() { ret; }\n.visible .entry k(.param .u32 a, .param .u64 b, .param .align 8 .b8 c[120], .param .u8 d, .param .align 4 .b8 e[12])\n{\n    ret;\n}\n";
    let mut module = std::ptr::null_mut();
    ok!((d.t.cuModuleLoadData)(&raw mut module, text.as_ptr().cast()));
    let function = d.function(module, "k");
    let (mut offset, mut size) = (0, 0);
    for (index, expected) in [(0, 4), (8, 8), (16, 120), (136, 1), (140, 12)].into_iter().enumerate() {
        ok!(get(function, index, &raw mut offset, &raw mut size));
        assert_eq!((offset, size), expected, "parameter {index}");
    }
    ok!(get(function, 1, &raw mut offset, std::ptr::null_mut()));
    assert_eq!(offset, 8);
    // The first refused index tells a caller the number of parameters.
    for index in [5, 6, usize::MAX] {
        refused!(get(function, index, &raw mut offset, &raw mut size), CUDA_ERROR_INVALID_VALUE);
    }
    refused!(get(d.function(module, "none"), 0, &raw mut offset, &raw mut size), CUDA_ERROR_INVALID_VALUE);
    ok!((d.t.cuModuleUnload)(module));
}

pub(super) fn images_are_told_apart(d: &Dut) {
    let mut module = std::ptr::null_mut();
    let empty = c"";
    refused!(
        (d.t.cuModuleLoadData)(&raw mut module, empty.as_ptr().cast()),
        CUDA_ERROR_INVALID_IMAGE | CUDA_ERROR_INVALID_PTX
    );
    let future = c".version 7.0\n.target sm_999\n.address_size 64\n.visible .entry k() { ret; }\n";
    let (result, log) = load_with_log(d, future);
    assert!(result != CUresult::CUDA_SUCCESS, "{log}");
}
