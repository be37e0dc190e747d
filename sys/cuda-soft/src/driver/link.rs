//! The calls that link PTX texts.

use std::ffi::{c_char, c_uint, c_void};
use std::sync::Arc;
use std::time::Instant;

use cuda_driver_sys::{CUjit_option, CUjitInputType as Input, CUlinkState, CUresult};
use parking_lot::Mutex;

use super::{INVALID_VALUE, context, entries};
use crate::handles;
use crate::jit::Jit;
use crate::machine::machine;
use crate::module::{self, LinkInputs, LinkState, image};

entries! {
    fn cuLinkCreate_v2(n: c_uint, options: *mut CUjit_option, values: *mut *mut c_void, state: *mut CUlinkState => out) {
        let machine = machine()?;
        context::current(machine)?;
        // SAFETY: the arrays have n elements and, by the API, stay good until the link is destroyed.
        let jit = unsafe { Jit::read(n, options, values) }?;
        let link = LinkState { jit, inputs: Mutex::new(LinkInputs::default()) };
        state.set(handles::pointer(machine.links.add(Arc::new(link))));
        Ok(())
    }

    fn cuLinkAddData_v2(
        state: CUlinkState,
        kind: Input,
        data: *mut c_void,
        size: usize,
        _name: *const c_char,
        n: c_uint,
        options: *mut CUjit_option,
        values: *mut *mut c_void,
    ) {
        let machine = machine()?;
        let link = machine.links.get(state)?;
        // SAFETY: the arrays have n elements, by contract.
        unsafe { Jit::read(n, options, values) }?;
        match kind {
            Input::CU_JIT_INPUT_PTX => {}
            Input::CU_JIT_INPUT_CUBIN
            | Input::CU_JIT_INPUT_FATBINARY
            | Input::CU_JIT_INPUT_OBJECT
            | Input::CU_JIT_INPUT_LIBRARY => return Err(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU),
            Input::CU_JIT_INPUT_NVVM => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
            _ => return Err(INVALID_VALUE),
        }
        if data.is_null() || size == 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and `size` bytes by contract.
        let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) };
        let bytes = bytes.split(|b| *b == 0).next().unwrap_or_default();
        let text = std::str::from_utf8(bytes).map_err(|_| CUresult::CUDA_ERROR_INVALID_PTX)?;
        if let Err((code, why)) = module::parse(machine.config.compute_capability, text) {
            link.jit.report("", &why, 0.0);
            return Err(code);
        }
        let mut inputs = link.inputs.lock();
        if inputs.image.is_some() {
            return Err(INVALID_VALUE);
        }
        inputs.texts.push(text.to_owned());
        Ok(())
    }

    fn cuLinkComplete(state: CUlinkState, data: *mut *mut c_void => out, size: *mut usize) {
        let machine = machine()?;
        let link = machine.links.get(state)?;
        let begun = Instant::now();
        let mut inputs = link.inputs.lock();
        if inputs.texts.is_empty() {
            return Err(INVALID_VALUE);
        }
        if let Err((code, why)) = module::compile(machine.config.compute_capability, &inputs.texts) {
            link.jit.report("", &why, begun.elapsed().as_secs_f32());
            return Err(code);
        }
        link.jit.report("", "", begun.elapsed().as_secs_f32());
        let texts = std::mem::take(&mut inputs.texts);
        // The link owns the image, so the pointer is valid until the link is destroyed.
        let image = inputs.image.insert(image::encode(&texts));
        data.set(image.as_mut_ptr().cast());
        if !size.is_null() {
            // SAFETY: not null, hence valid for one size.
            unsafe { size.write(image.len()) };
        }
        Ok(())
    }

    fn cuLinkDestroy(state: CUlinkState) {
        machine()?.links.remove(state).map(|_| ())
    }
}
