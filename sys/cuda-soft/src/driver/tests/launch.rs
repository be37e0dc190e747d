use std::ffi::{CString, c_void};

use cuda_driver_sys::{CUlaunchAttribute, CUlaunchAttributeID as Id, CUlaunchConfig};

use super::*;

/// A kernel that may begin before the one before it has ended is refused, because its waits are not followed. The same attribute can
/// also say that the kernel may not.
#[test]
fn programmatic_launches_are_refused() {
    let t = on(0);
    let text =
        CString::new(".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n{\nret;\n}\n");
    let text = text.expect("no NUL");
    let (mut module, mut function, s) = (std::ptr::null_mut(), std::ptr::null_mut(), stream(&t));
    // SAFETY: the texts end with NUL, and pointers are to locals.
    unsafe {
        assert_eq!((t.cuModuleLoadData)(&raw mut module, text.as_ptr().cast::<c_void>()), OK);
        assert_eq!((t.cuModuleGetFunction)(&raw mut function, module, c"k".as_ptr()), OK);
    }
    let launch = |attribute: &mut CUlaunchAttribute| {
        // SAFETY: a structure of plain data, for which zeros are valid.
        let mut config: CUlaunchConfig = unsafe { std::mem::zeroed() };
        (config.gridDimX, config.gridDimY, config.gridDimZ) = (1, 1, 1);
        (config.blockDimX, config.blockDimY, config.blockDimZ) = (1, 1, 1);
        (config.hStream, config.numAttrs, config.attrs) = (s, 1, std::ptr::from_mut(attribute));
        let call = t.cuLaunchKernelEx.expect("the device has it");
        // SAFETY: the kernel has no parameters, and there is one attribute.
        unsafe { call(&raw const config, function, std::ptr::null_mut(), std::ptr::null_mut()) }
    };
    // SAFETY: a union of plain data, for which zeros are valid.
    let mut attribute: CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    assert_eq!(launch(&mut attribute), OK, "it asks for the order of the stream");
    attribute.value.programmaticStreamSerializationAllowed = 1;
    assert_eq!(launch(&mut attribute), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    attribute.id = Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
    assert_eq!(launch(&mut attribute), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    // SAFETY: the stream is live.
    assert_eq!(unsafe { (t.cuStreamSynchronize)(s) }, OK);
}
