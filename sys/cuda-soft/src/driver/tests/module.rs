use std::ffi::{CString, c_char, c_int, c_void};

use cuda_driver_sys::{
    CUfunction, CUfunction_attribute, CUjit_option, CUjitInputType, CUmodule, CUpointer_attribute, CUresult,
};

use super::*;

const HEAD: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";

/// Stores `value` plus the thread's index to consecutive words at `to`.
const STORE: &str = ".visible .global .align 4 .u32 counter = 41;
.const .align 4 .u32 hidden = 7;
.visible .entry store(.param .u64 to, .param .u32 value)
{
    .reg .b64 %rd<4>;
    .reg .b32 %r<4>;
    ld.param.u64 %rd1, [to];
    ld.param.u32 %r1, [value];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd3, %rd1, %rd2;
    add.u32 %r3, %r1, %r2;
    st.global.u32 [%rd3], %r3;
    ret;
}
";

pub(super) fn load(t: &DriverTable, text: &str) -> CUmodule {
    let text = CString::new(text).expect("no NUL");
    let mut module = std::ptr::null_mut();
    // SAFETY: a NUL-terminated text.
    assert_eq!(unsafe { (t.cuModuleLoadData)(&raw mut module, text.as_ptr().cast()) }, OK);
    module
}

pub(super) fn function(t: &DriverTable, module: CUmodule, name: &std::ffi::CStr) -> CUfunction {
    let mut f = std::ptr::null_mut();
    // SAFETY: handles are live.
    assert_eq!(unsafe { (t.cuModuleGetFunction)(&raw mut f, module, name.as_ptr()) }, OK);
    f
}

/// Launches `store` with one block.
pub(super) fn store(
    t: &DriverTable,
    f: CUfunction,
    threads: u32,
    s: CUstream,
    to: u64,
    value: u32,
) -> CUresult {
    let (mut to, mut value) = (to, value);
    let mut params: [*mut c_void; 2] = [(&raw mut to).cast(), (&raw mut value).cast()];
    // SAFETY: a pointer per parameter.
    unsafe { (t.cuLaunchKernel)(f, 1, 1, 1, threads, 1, 1, 0, s, params.as_mut_ptr(), std::ptr::null_mut()) }
}

#[test]
fn a_kernel_runs_with_both_forms_of_parameters_and_in_graphs() {
    let t = on(0);
    let (s, module, p) = (stream(&t), load(&t, &format!("{HEAD}{STORE}")), alloc(&t, 400));
    let f = function(&t, module, c"store");
    let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: handles and addresses are live.
    unsafe {
        assert_eq!(store(&t, f, 100, s, p, 5), OK);
        assert_eq!((t.cuStreamSynchronize)(s), OK);
        assert_eq!(read::<u32>(&t, p, 100), (5..105).collect::<Vec<u32>>());

        let mut packed = [0u8; 12];
        packed[..8].copy_from_slice(&p.to_le_bytes());
        packed[8..].copy_from_slice(&9u32.to_le_bytes());
        let mut size = packed.len();
        let word = |n: usize| std::ptr::without_provenance_mut::<c_void>(n);
        let (one, two) = (word(1), word(2));
        let mut extra =
            [one, packed.as_mut_ptr().cast(), two, (&raw mut size).cast::<c_void>(), std::ptr::null_mut()];
        let null = std::ptr::null_mut();
        assert_eq!((t.cuLaunchKernel)(f, 1, 1, 1, 4, 1, 1, 0, s, null, extra.as_mut_ptr()), OK);
        assert_eq!((t.cuStreamSynchronize)(s), OK);
        assert_eq!(read::<u32>(&t, p, 5), [9, 10, 11, 12, 9]);

        let local = cuda_driver_sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        assert_eq!((t.cuStreamBeginCapture_v2)(s, local), OK);
        assert_eq!(store(&t, f, 2, s, p, 70), OK);
        assert_eq!((t.cuStreamEndCapture)(s, &raw mut graph), OK);
        assert_eq!((t.cuGraphInstantiateWithFlags)(&raw mut exec, graph, 0), OK);
        for _ in 0..3 {
            write(&t, p, &[0u32; 4]);
            assert_eq!((t.cuGraphLaunch)(exec, s), OK);
            assert_eq!((t.cuStreamSynchronize)(s), OK);
            assert_eq!(read::<u32>(&t, p, 3), [70, 71, 0]);
        }
    }
}

#[test]
fn variables_have_addresses_and_unloaded_modules_have_nothing() {
    let t = on(0);
    let module = load(&t, &format!("{HEAD}{STORE}"));
    let f = function(&t, module, c"store");
    assert_eq!(function(&t, module, c"store"), f);
    let (mut at, mut size, mut other) = (0, 0, std::ptr::null_mut());
    // SAFETY: handles are live until unloaded; dead ones are refused.
    unsafe {
        assert_eq!((t.cuModuleGetGlobal_v2)(&raw mut at, &raw mut size, module, c"counter".as_ptr()), OK);
        assert_eq!((size, read::<u32>(&t, at, 1)), (4, vec![41]));
        // As on hardware, a static variable of C++ has an address too: nvcc declares it without `.visible`.
        let (mut hidden, null) = (0, std::ptr::null_mut());
        assert_eq!((t.cuModuleGetGlobal_v2)(&raw mut hidden, null, module, c"hidden".as_ptr()), OK);
        assert_eq!(read::<u32>(&t, hidden, 1), [7]);
        assert_eq!((t.cuMemFree_v2)(at), CUresult::CUDA_ERROR_INVALID_VALUE);
        let missing = (t.cuModuleGetFunction)(&raw mut other, module, c"nothing".as_ptr());
        assert_eq!(missing, CUresult::CUDA_ERROR_NOT_FOUND);
        assert_eq!((t.cuModuleUnload)(module), OK);
        assert_eq!(store(&t, f, 1, std::ptr::null_mut(), at, 0), CUresult::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!((t.cuModuleUnload)(module), CUresult::CUDA_ERROR_INVALID_HANDLE);
        // Another test may have been given the address by now; not every time.
        let is_gone = || {
            let (module, mut at, mut local) = (load(&t, &format!("{HEAD}{STORE}")), 0, 0u32);
            assert_eq!((t.cuModuleGetGlobal_v2)(&raw mut at, null, module, c"counter".as_ptr()), OK);
            assert_eq!((t.cuModuleUnload)(module), OK);
            (t.cuMemcpyDtoH_v2)((&raw mut local).cast(), at, 4) == CUresult::CUDA_ERROR_INVALID_VALUE
        };
        assert!((0..50).any(|_| is_gone()), "a variable outlives its module");
    }
}

#[test]
fn what_does_not_compile_says_where() {
    let t = on(0);
    let mut log = vec![0u8; 500];
    let mut options =
        [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
    let mut module = std::ptr::null_mut();
    let load =
        |text: &[u8], options: &mut [CUjit_option; 2], values: &mut [*mut c_void; 2], m: &mut CUmodule| {
            // SAFETY: an image of the kind its first bytes say; arrays of two.
            unsafe {
                (t.cuModuleLoadDataEx)(m, text.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr())
            }
        };
    let text = format!("{HEAD}.visible .entry k()\n{{\n    frobnicate.u32 %r1, %r2;\n    ret;\n}}\n\0");
    let code = load(text.as_bytes(), &mut options, &mut values, &mut module);
    assert_eq!(code, CUresult::CUDA_ERROR_INVALID_PTX);
    let said = String::from_utf8_lossy(&log[..values[1] as usize]).into_owned();
    assert!(said.contains("line 6") && said.contains("frobnicate"), "{said}");

    let newer = ".version 8.0\n.target sm_100\n.address_size 64\n\0";
    values[1] = log.len() as *mut c_void;
    assert_eq!(
        load(newer.as_bytes(), &mut options, &mut values, &mut module),
        CUresult::CUDA_ERROR_INVALID_PTX
    );
    assert!(String::from_utf8_lossy(&log).contains("sm_100"));
    values[1] = log.len() as *mut c_void;
    let elf = load(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0", &mut options, &mut values, &mut module);
    assert_eq!(elf, CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    values[1] = log.len() as *mut c_void;
    assert_eq!(load(b"\x01\0", &mut options, &mut values, &mut module), CUresult::CUDA_ERROR_INVALID_IMAGE);
    assert!(module.is_null());
}

#[test]
fn texts_that_call_each_other_are_linked() {
    let t = on(0);
    let callee = format!(
        "{HEAD}.visible .func (.param .b32 r) twice(.param .b32 x)\n{{\n.reg .b32 %r<3>;\nld.param.u32 %r1, [x];\n\
         add.u32 %r2, %r1, %r1;\nst.param.b32 [r], %r2;\nret;\n}}\n"
    );
    let caller = format!(
        "{HEAD}.extern .func (.param .b32 r) twice(.param .b32 x);\n.visible .entry k(.param .u64 to)\n{{\n\
         .reg .b64 %rd<2>;\n.reg .b32 %r<3>;\nld.param.u64 %rd1, [to];\nmov.u32 %r1, 21;\n{{\n.param .b32 a;\n\
         .param .b32 b;\nst.param.b32 [a], %r1;\ncall.uni (b), twice, (a);\nld.param.b32 %r2, [b];\n}}\n\
         st.global.u32 [%rd1], %r2;\nret;\n}}\n"
    );
    let (mut state, mut image, mut size) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
    let (none, nothing) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mut module = std::ptr::null_mut();
    let mut p = alloc(&t, 4);
    let to = p;
    // SAFETY: texts are given with their sizes; handles are live.
    unsafe {
        let add = |state, text: &str| {
            let name: *const c_char = c"input".as_ptr();
            let kind = CUjitInputType::CU_JIT_INPUT_PTX;
            let data = text.as_ptr().cast_mut().cast();
            (t.cuLinkAddData_v2)(state, kind, data, text.len(), name, 0, none, nothing)
        };
        assert_eq!((t.cuLinkCreate_v2)(0, none, nothing, &raw mut state), OK);
        assert_eq!(add(state, &caller), OK);
        let unresolved = (t.cuLinkComplete)(state, &raw mut image, &raw mut size);
        assert_eq!(unresolved, CUresult::CUDA_ERROR_INVALID_PTX);
        assert_eq!(add(state, &callee), OK);
        assert_eq!((t.cuLinkComplete)(state, &raw mut image, &raw mut size), OK);
        assert_eq!((t.cuModuleLoadData)(&raw mut module, image), OK);
        assert_eq!((t.cuLinkDestroy)(state), OK);
        let f = function(&t, module, c"k");
        let mut params: [*mut c_void; 1] = [(&raw mut p).cast()];
        let null = std::ptr::null_mut();
        assert_eq!((t.cuLaunchKernel)(f, 1, 1, 1, 1, 1, 1, 0, null, params.as_mut_ptr(), null.cast()), OK);
    }
    assert_eq!(read::<u32>(&t, to, 1), [42]);
}

#[test]
fn launches_that_cannot_be_are_refused() {
    let t = on(12);
    let module = load(&t, &format!("{HEAD}{STORE}"));
    let f = function(&t, module, c"store");
    let null = std::ptr::null_mut();
    let (mut to, mut value, mut blocks): (u64, u32, c_int) = (alloc(&t, 4096), 0, 0);
    let mut params: [*mut c_void; 2] = [(&raw mut to).cast(), (&raw mut value).cast()];
    let mut go = |grid: u32, block: u32, shared: u32| {
        let params = params.as_mut_ptr();
        // SAFETY: a pointer per parameter.
        unsafe { (t.cuLaunchCooperativeKernel)(f, grid, 1, 1, block, 1, 1, shared, null, params) }
    };
    assert_eq!(go(0, 32, 0), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(go(1, 1025, 0), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(go(1, 32, 100 << 10), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(go(8, 1024, 0), OK);
    assert_eq!(go(9, 1024, 0), CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    // SAFETY: handles are live, pointers are to locals.
    unsafe {
        let occupancy = t.cuOccupancyMaxActiveBlocksPerMultiprocessor;
        assert_eq!(occupancy(&raw mut blocks, f, 1024, 0), OK);
        assert_eq!(blocks, 2);
        let opt_in = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        assert_eq!((t.cuFuncSetAttribute)(f, opt_in, 228 << 10), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!((t.cuFuncSetAttribute)(f, opt_in, 100 << 10), OK);
        assert_eq!(occupancy(&raw mut blocks, f, 32, 100 << 10), OK);
        assert_eq!(blocks, 2);
        assert_eq!((t.cuLaunchKernel)(f, 1, 1, 1, 1, 1, 1, 0, null, null.cast(), null.cast()), INVALID);
        assert_eq!((t.cuCtxSynchronize)(), OK);
    }
    assert_eq!(go(1, 32, 100 << 10), OK);
}

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

#[test]
fn a_wild_store_fails_the_context_for_good_and_no_other() {
    let t = on(SPOILED + 2);
    let (module, p) = (load(&t, &format!("{HEAD}{STORE}")), alloc(&t, 16));
    let f = function(&t, module, c"store");
    let null = std::ptr::null_mut();
    let mut dptr = 0;
    assert_eq!(store(&t, f, 5, null, p, 0), OK);
    // SAFETY: handles are live, pointers are to locals.
    unsafe {
        let illegal = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
        assert_eq!((t.cuCtxSynchronize)(), illegal, "thread 4 stores behind the end");
        assert_eq!((t.cuMemAlloc_v2)(&raw mut dptr, 8), illegal);
        assert_eq!((t.cuStreamQuery)(null), illegal);
        assert_eq!(store(&t, f, 1, null, p, 0), illegal);
        let t = on(1);
        assert_eq!((t.cuCtxSynchronize)(), OK);
        let q = alloc(&t, 8);
        write(&t, q, &[1u64]);
        // The last release destroys the context; the next retain creates a new one.
        assert_eq!((t.cuDevicePrimaryCtxRelease_v2)(SPOILED + 2), OK);
        let t = on(SPOILED + 2);
        assert_eq!((t.cuCtxSynchronize)(), OK);
        // Another test may have got the address since.
        let mut device: c_int = -1;
        let ordinal = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        let known = (t.cuPointerGetAttribute)((&raw mut device).cast(), ordinal, p);
        assert!(known == INVALID || device != SPOILED + 2, "its memory went with it");
    }
}

#[test]
fn a_text_that_is_too_new_has_an_error_of_its_own() {
    let t = on(0);
    let text = c".version 99.0\n.target sm_70\n.address_size 64\n";
    let mut module = std::ptr::null_mut();
    // SAFETY: a NUL-terminated text.
    let code = unsafe { (t.cuModuleLoadData)(&raw mut module, text.as_ptr().cast()) };
    assert_eq!(code, CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
}

/// CUB chooses on the host, by this number, the sizes that the kernel was compiled with.
#[test]
fn the_ptx_version_of_a_function_is_its_target() {
    let t = on(0);
    let body = ".address_size 64\n.visible .entry k()\n{\nret;\n}\n";
    for (head, expected) in [(".version 7.8\n.target sm_52\n", 52), (".version 6.4\n.target sm_70\n", 70)] {
        let f = function(&t, load(&t, &format!("{head}{body}")), c"k");
        let mut version = 0;
        // SAFETY: the handle is live, the pointer is to a local.
        let code = unsafe {
            (t.cuFuncGetAttribute)(&raw mut version, CUfunction_attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION, f)
        };
        assert_eq!((code, version), (OK, expected));
    }
}

#[test]
fn occupancy_counts_the_gap_before_dynamic_shared_memory() {
    const PER_SM: c_int = 228 << 10;
    // Four static bytes; the dynamic part begins at 16. With `dynamic` bytes two blocks fit only without the gap.
    let kernel = ".visible .entry k()\n{\n.shared .align 4 .b8 s[4];\n.reg .b32 %r<2>;\nld.shared.u32 %r1, [s];\nret;\n}\n";
    let dynamic = PER_SM / 2 - 8;
    let t = on(13);
    let f = function(&t, load(&t, &format!("{HEAD}{kernel}")), c"k");
    let (attribute, mut blocks) = (CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 0);
    // SAFETY: handles are live, pointers are to locals.
    unsafe {
        assert_eq!((t.cuFuncSetAttribute)(f, attribute, dynamic), OK);
        let occupancy = t.cuOccupancyMaxActiveBlocksPerMultiprocessor;
        assert_eq!(occupancy(&raw mut blocks, f, 32, dynamic as usize), OK);
        assert_eq!(blocks, 1);
        let null = std::ptr::null_mut();
        let shared = dynamic.cast_unsigned();
        // The machine of these tests has four multiprocessors, hence room for four blocks.
        assert_eq!((t.cuLaunchCooperativeKernel)(f, 4, 1, 1, 32, 1, 1, shared, null, null.cast()), OK);
        let too_large = CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
        assert_eq!((t.cuLaunchCooperativeKernel)(f, 5, 1, 1, 32, 1, 1, shared, null, null.cast()), too_large);
        assert_eq!((t.cuCtxSynchronize)(), OK);
    }
}

#[test]
fn a_cluster_launch_needs_a_grid_of_whole_clusters() {
    use cuda_driver_sys::{CUlaunchAttribute, CUlaunchAttributeID, CUlaunchConfig};
    let t = on(0);
    let text = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 to)\n{\n.reg .b64 %d<4>;\n\
        .reg .b32 %r<4>;\nld.param.u64 %d1, [to];\nmov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %cluster_ctarank;\n\
        mul.wide.u32 %d2, %r1, 4;\nadd.s64 %d3, %d1, %d2;\nst.global.u32 [%d3], %r2;\nret;\n}\n";
    let (s, f) = (stream(&t), function(&t, load(&t, text), c"k"));
    let mut to = alloc(&t, 64);
    let launch = |to: &mut u64, blocks: u32, cluster: u32| {
        // SAFETY: a union and structures of plain data, for which zeros are valid.
        let (mut attribute, mut config): (CUlaunchAttribute, CUlaunchConfig) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        attribute.id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        // SAFETY: a plain structure in a union of plain data.
        let size = unsafe { &mut attribute.value.clusterDim };
        (size.x, size.y, size.z) = (cluster, 1, 1);
        (config.gridDimX, config.gridDimY, config.gridDimZ) = (blocks, 1, 1);
        (config.blockDimX, config.blockDimY, config.blockDimZ) = (32, 1, 1);
        (config.hStream, config.numAttrs, config.attrs) = (s, 1, &raw mut attribute);
        let mut params: [*mut c_void; 1] = [std::ptr::from_mut(to).cast()];
        let call = t.cuLaunchKernelEx.expect("the device has it");
        // SAFETY: a pointer per parameter, and one attribute.
        unsafe { call(&raw const config, f, params.as_mut_ptr(), std::ptr::null_mut()) }
    };
    assert_eq!(launch(&mut to, 12, 3), OK);
    // SAFETY: the stream is live.
    assert_eq!(unsafe { (t.cuStreamSynchronize)(s) }, OK);
    assert_eq!(read::<u32>(&t, to, 12), [0, 1, 2].repeat(4));
    let refused = CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE;
    assert_eq!(launch(&mut to, 10, 3), refused, "not a multiple");
    assert_eq!((launch(&mut to, 16, 16), launch(&mut to, 4, 0)), (refused, refused));
    let large = CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
    // SAFETY: the function is live.
    assert_eq!(unsafe { (t.cuFuncSetAttribute)(f, large, 1) }, OK);
    assert_eq!(launch(&mut to, 16, 16), OK);
    // SAFETY: the stream is live.
    assert_eq!(unsafe { (t.cuStreamSynchronize)(s) }, OK);
    assert_eq!(read::<u32>(&t, to, 16), (0..16).collect::<Vec<u32>>());
}

/// Runs texts for compute capability 10.0, the only one of this process's devices.
pub(super) fn run_targets_of_sm_100() {
    configure(Config { devices: 1, compute_capability: (10, 0), ..Config::default() })
        .expect("configured once");
    let (t, mut context) = (driver_table(), std::ptr::null_mut());
    // SAFETY: the pointer is to a local.
    unsafe {
        assert_eq!((t.cuInit)(0), OK);
        assert_eq!((t.cuDevicePrimaryCtxRetain)(&raw mut context, 0), OK);
        assert_eq!((t.cuCtxSetCurrent)(context), OK);
    }
    let (s, p) = (stream(&t), alloc(&t, 16));
    for (value, target) in [(5, "sm_100"), (6, "sm_100a"), (7, "sm_100f"), (8, "sm_90")] {
        let module = load(&t, &format!(".version 8.8\n.target {target}\n.address_size 64\n{STORE}"));
        assert_eq!(store(&t, function(&t, module, c"store"), 4, s, p, value), OK);
        // SAFETY: the stream is live.
        assert_eq!(unsafe { (t.cuStreamSynchronize)(s) }, OK);
        assert_eq!(read::<u32>(&t, p, 4), (value..value + 4).collect::<Vec<u32>>(), "{target}");
    }
    for target in ["sm_90a", "sm_103", "sm_103f", "sm_120"] {
        let text = CString::new(format!(".version 8.8\n.target {target}\n.address_size 64\n{STORE}"));
        let (text, mut module) = (text.expect("no NUL"), std::ptr::null_mut());
        // SAFETY: a NUL-terminated text.
        let code = unsafe { (t.cuModuleLoadData)(&raw mut module, text.as_ptr().cast()) };
        assert_eq!(code, CUresult::CUDA_ERROR_INVALID_PTX, "{target}");
    }
}

#[test]
fn a_device_of_compute_capability_10_0_runs_texts_for_sm_100_and_its_suffixes() {
    process::alone("sm_100");
}
