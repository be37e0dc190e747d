//! The calls for modules. Loading and unloading wait for all work of the context, as they may on hardware.

use std::ffi::{c_char, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Instant;

use cuda_driver_sys::{CUdeviceptr, CUfunction, CUjit_option, CUmodule, CUresult};

use super::{INVALID_VALUE, context, entries, unsafe_call};
use crate::abi::Result;
use crate::handles;
use crate::jit::Jit;
use crate::machine::{limits, machine};
use crate::module::{self, Kernel, image};

entries! {
    fn cuModuleLoadData(to: *mut CUmodule => out, data: *const c_void) {
        // SAFETY: an image is what the API says, by contract.
        to.set(load(unsafe { read(data) }?, &Jit::default())?);
        Ok(())
    }

    fn cuModuleLoadDataEx(
        to: *mut CUmodule => out,
        data: *const c_void,
        n: c_uint,
        options: *mut CUjit_option,
        values: *mut *mut c_void,
    ) {
        // SAFETY: the arrays have n elements, by contract.
        let jit = unsafe { Jit::read(n, options, values) }?;
        // SAFETY: an image is what the API says, by contract.
        to.set(load(unsafe { read(data) }?, &jit)?);
        Ok(())
    }

    fn cuModuleUnload(handle: CUmodule) {
        let (machine, _) = unsafe_call()?;
        let loaded = machine.modules.get(handle)?;
        context::wait_idle(&machine.devices[loaded.device]);
        machine.modules.remove(handle)?;
        for kernel in loaded.kernels.lock().values() {
            let _ = machine.kernels.remove_number(*kernel);
        }
        Ok(())
    }

    fn cuModuleGetFunction(function: *mut CUfunction => out, handle: CUmodule, name: *const c_char => cstr) {
        let machine = machine()?;
        context::current(machine)?;
        let loaded = machine.modules.get(handle)?;
        let index = loaded.image.code.kernel(&name).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        let shared = loaded.image.code.functions[index].shared_size;
        let mut kernels = loaded.kernels.lock();
        let known = kernels.entry(index).or_insert_with(|| {
            let max_dynamic = AtomicU32::new(limits::SHARED.saturating_sub(shared));
            let large_clusters = AtomicBool::new(false);
            machine.kernels.add(Arc::new(Kernel { loaded: Arc::clone(&loaded), index, max_dynamic, large_clusters }))
        });
        function.set(handles::pointer(*known));
        Ok(())
    }

    fn cuModuleGetGlobal_v2(dptr: *mut CUdeviceptr, bytes: *mut usize, handle: CUmodule, name: *const c_char => cstr) {
        let machine = machine()?;
        context::current(machine)?;
        let loaded = machine.modules.get(handle)?;
        let image = &loaded.image;
        let index = image.code.global(&name).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        if !dptr.is_null() {
            // SAFETY: not null, hence valid for one address.
            unsafe { dptr.write(image.globals[index]) };
        }
        if !bytes.is_null() {
            // SAFETY: not null, hence valid for one size.
            unsafe { bytes.write(image.code.globals[index].size as usize) };
        }
        Ok(())
    }
}

/// Reads the PTX texts of an image.
///
/// # Safety
/// `data` is null, a NUL-terminated text, a cubin, a fat binary, or an image from `cuLinkComplete`.
///
/// # Errors
/// `CUDA_ERROR_NO_BINARY_FOR_GPU` for machine code, `CUDA_ERROR_INVALID_IMAGE` for anything unknown.
unsafe fn read(data: *const c_void) -> Result<Vec<String>> {
    const FATBIN: [&[u8]; 2] = [&[0x50, 0xed, 0x55, 0xba], &[0xb1, 0x43, 0x62, 0x46]];
    if data.is_null() {
        return Err(INVALID_VALUE);
    }
    let at = data.cast::<u8>();
    let mut first = Vec::with_capacity(16);
    while first.len() < 16 {
        // SAFETY: the bytes read so far match the beginning of a binary image, which is longer than 16 bytes. A text
        // differs from that beginning before its NUL, which ends the loop.
        let byte = unsafe { at.add(first.len()).read() };
        first.push(byte);
        if first.starts_with(b"\x7fELF") || FATBIN.iter().any(|m| first.starts_with(m)) {
            return Err(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
        }
        let partial = FATBIN.iter().chain([&&b"\x7fELF"[..]]).any(|m| m.starts_with(&first));
        if !image::may_begin_with(&first) && !partial {
            break;
        }
    }
    if let Some(total) = first.first_chunk().and_then(image::total) {
        // SAFETY: the header of the image holds its total size.
        let bytes = unsafe { std::slice::from_raw_parts(at, total) };
        return image::decode(bytes).ok_or(CUresult::CUDA_ERROR_INVALID_IMAGE);
    }
    if !first[0].is_ascii_graphic() && !first[0].is_ascii_whitespace() {
        return Err(CUresult::CUDA_ERROR_INVALID_IMAGE);
    }
    // SAFETY: `data` is no other kind of image, hence a NUL-terminated text.
    let text = unsafe { std::ffi::CStr::from_ptr(data.cast()) };
    let text = text.to_str().map_err(|_| CUresult::CUDA_ERROR_INVALID_PTX)?;
    Ok(vec![text.to_owned()])
}

fn load(texts: Vec<String>, jit: &Jit) -> Result<CUmodule> {
    let (machine, device) = unsafe_call()?;
    let begun = Instant::now();
    let compiled = match module::compile(machine.config.compute_capability, &texts) {
        Ok(compiled) => compiled,
        Err((code, why)) => {
            jit.report("", &why, begun.elapsed().as_secs_f32());
            return Err(code);
        }
    };
    context::wait_idle(device);
    if compiled.uses_heap() {
        device.provide_heap(&machine.allocations)?;
    }
    let loaded = module::load(&machine.allocations, device.ordinal, &device.memory, compiled)?;
    jit.report("", "", begun.elapsed().as_secs_f32());
    Ok(handles::pointer(machine.modules.add(Arc::new(loaded))))
}
