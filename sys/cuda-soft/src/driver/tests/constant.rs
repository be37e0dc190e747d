use super::module::{function, load, store};
use super::*;

/// Kernels of the same parameters: `reads` stores the constant, the others try to change it.
const TEXT: &str = ".version 7.0
.target sm_70
.address_size 64
.const .align 4 .u32 four = 4;
.visible .global .align 4 .u32 beside = 1;
.visible .entry reads(.param .u64 to, .param .u32 value)
{
    .reg .b64 %d<3>; .reg .b32 %r;
    ld.param.u64 %d1, [to];
    cvta.const.u64 %d2, four;
    ld.u32 %r, [%d2];
    st.global.u32 [%d1], %r;
    st.global.u32 [beside], %r;
    ret;
}
.visible .entry stores(.param .u64 to, .param .u32 value)
{
    .reg .b64 %d;
    cvta.const.u64 %d, four;
    st.u32 [%d], 1;
    ret;
}
.visible .entry looks(.param .u64 at, .param .u32 value)
{
    .reg .b64 %d; .reg .b32 %r;
    ld.param.u64 %d, [at];
    ld.u32 %r, [%d];
    st.global.u32 [beside], %r;
    ret;
}
.visible .entry adds(.param .u64 to, .param .u32 value)
{
    .reg .b64 %d;
    cvta.const.u64 %d, four;
    red.add.u32 [%d], 1;
    ret;
}
";

#[test]
fn kernels_read_constants_and_the_host_writes_them() {
    let t = on(0);
    let (module, to) = (load(&t, TEXT), alloc(&t, 4));
    let (reads, mut at, mut size) = (function(&t, module, c"reads"), 0, 0);
    // SAFETY: the handle is live, the pointers are to locals.
    let found = unsafe { (t.cuModuleGetGlobal_v2)(&raw mut at, &raw mut size, module, c"four".as_ptr()) };
    assert_eq!((found, size), (OK, 4));
    let s = stream(&t);
    for value in [4_u32, 5] {
        write(&t, at, &[value]);
        assert_eq!(store(&t, reads, 1, s, to, 0), OK);
        // SAFETY: the handle is live.
        assert_eq!(unsafe { (t.cuStreamSynchronize)(s) }, OK);
        assert_eq!(read::<u32>(&t, to, 1), [value]);
    }
}

#[test]
fn a_peer_may_read_constants() {
    let variable = |t: &DriverTable, module, name: &std::ffi::CStr| {
        let (mut at, mut size) = (0, 0);
        // SAFETY: the handle is live, the pointers are to locals.
        let found = unsafe { (t.cuModuleGetGlobal_v2)(&raw mut at, &raw mut size, module, name.as_ptr()) };
        assert_eq!((found, size), (OK, 4));
        at
    };
    let t = on(6);
    let four = variable(&t, load(&t, TEXT), c"four");
    let t = on(7);
    let (module, mut owner) = (load(&t, TEXT), std::ptr::null_mut());
    // SAFETY: the handles are live, and the output is a local. The context of `on(6)` stays.
    unsafe {
        assert_eq!((t.cuDevicePrimaryCtxRetain)(&raw mut owner, 6), OK);
        assert_eq!((t.cuCtxEnablePeerAccess)(owner, 0), OK);
        assert_eq!(store(&t, function(&t, module, c"looks"), 1, std::ptr::null_mut(), four, 0), OK);
        assert_eq!((t.cuCtxSynchronize)(), OK);
        assert_eq!((t.cuCtxDisablePeerAccess)(owner), OK);
    }
    assert_eq!(read::<u32>(&t, variable(&t, module, c"beside"), 1), [4]);
}

#[test]
fn a_kernel_that_changes_a_constant_is_ended() {
    for (name, device) in [(c"stores", SPOILED + 6), (c"adds", SPOILED + 7)] {
        let t = on(device);
        let f = function(&t, load(&t, TEXT), name);
        assert_eq!(store(&t, f, 1, std::ptr::null_mut(), 0, 0), OK);
        // SAFETY: no pointers are passed.
        assert_eq!(unsafe { (t.cuCtxSynchronize)() }, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, "{name:?}");
    }
}
