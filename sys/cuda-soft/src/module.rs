//! Loaded modules: compiled code, and variables in device memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use cuda_driver_sys::CUresult;
use parking_lot::Mutex;

use crate::abi::Result;
use crate::code::op::{CallTarget, Service};
use crate::code::{self, Op, Symbol};
use crate::exec::Image;
use crate::jit::Jit;
use crate::lower;
use crate::mem::allocation::{Allocations, Owned};
use crate::mem::budget::Budget;
use crate::ptx::{self, ast};

/// One module of a context.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) device: usize,
    pub(crate) image: Arc<Image>,
    /// What `CU_FUNC_ATTRIBUTE_PTX_VERSION` says: the number of the architecture in `.target`, despite its name.
    pub(crate) ptx_version: u32,
    /// Bytes of `.const` variables.
    pub(crate) constant: u64,
    /// Handles of kernels that callers have, by function index.
    pub(crate) kernels: Mutex<HashMap<usize, u64>>,
    /// The memory of the variables, freed with the module.
    _variables: Vec<Owned>,
}

/// One kernel of a module: the object of a `CUfunction`.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) index: usize,
    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
    pub(crate) max_dynamic: AtomicU32,
    /// `CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED`.
    pub(crate) large_clusters: AtomicBool,
}

/// A link in progress.
#[derive(Debug)]
pub(crate) struct LinkState {
    pub(crate) jit: Jit,
    pub(crate) inputs: Mutex<LinkInputs>,
}

/// The inputs of a link, and its result.
#[derive(Debug, Default)]
pub(crate) struct LinkInputs {
    pub(crate) texts: Vec<String>,
    pub(crate) image: Option<Box<[u8]>>,
}

/// Compiled code, not loaded yet.
#[derive(Debug)]
pub(crate) struct Compiled {
    code: code::Module,
    ptx_version: u32,
}

/// The error of a compilation: the result code, and the text of the JIT log.
pub(crate) type Refusal = (CUresult, String);

impl Compiled {
    /// Whether a function calls `malloc`.
    pub(crate) fn uses_heap(&self) -> bool {
        let allocates = |inst: &code::Inst| match &inst.op {
            Op::Call(call) => matches!(call.target, CallTarget::Service(Service::Malloc)),
            _ => false,
        };
        self.code.functions.iter().any(|f| f.code.iter().any(allocates))
    }
}

impl Kernel {
    pub(crate) fn function(&self) -> &code::Function {
        &self.loaded.image.code.functions[self.index]
    }
}

/// Parses one PTX text for devices of this compute capability.
///
/// # Errors
/// `CUDA_ERROR_INVALID_PTX`, `CUDA_ERROR_UNSUPPORTED_PTX_VERSION`.
pub(crate) fn parse(capability: (u32, u32), text: &str) -> std::result::Result<ast::Module, Refusal> {
    let module = ptx::parse(text).map_err(|d| {
        let code = if d.unsupported_version {
            CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
        } else {
            CUresult::CUDA_ERROR_INVALID_PTX
        };
        (code, d.to_string())
    })?;
    let (major, minor) = capability;
    let here = major * 10 + minor;
    let runs = match module.sm_suffix {
        None => module.sm <= here,
        Some('f') => module.sm / 10 == major && module.sm <= here,
        Some(_) => module.sm == here,
    };
    if !runs {
        let suffix = module.sm_suffix.map(String::from).unwrap_or_default();
        let why = format!(
            "The software device, of compute capability {major}.{minor} (see AQUEDUCT_SOFT_CC), does not run .target \
             sm_{}{suffix}",
            module.sm
        );
        return Err((CUresult::CUDA_ERROR_INVALID_PTX, why));
    }
    Ok(module)
}

/// Compiles and links PTX texts for devices of this compute capability.
///
/// # Errors
/// The errors of [`parse`].
pub(crate) fn compile(capability: (u32, u32), texts: &[String]) -> std::result::Result<Compiled, Refusal> {
    let modules = texts.iter().map(|t| parse(capability, t)).collect::<std::result::Result<Vec<_>, _>>()?;
    let ptx_version = modules.iter().map(|m| m.sm).max().unwrap_or(0);
    let code = lower::compile(&modules).map_err(|d| (CUresult::CUDA_ERROR_INVALID_PTX, d.to_string()))?;
    Ok(Compiled { code, ptx_version })
}

/// Loads a module for `device`: allocates and initialises its variables.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) fn load(
    allocations: &Arc<Allocations>,
    device: usize,
    memory: &Budget,
    compiled: Compiled,
) -> Result<Loaded> {
    let Compiled { code, ptx_version } = compiled;
    let mut globals = vec![0; code.globals.len()];
    let mut variables = Vec::new();
    for constant in [false, true] {
        let mut end = 0u64;
        let here = || code.globals.iter().enumerate().filter(|(_, global)| global.constant == constant);
        for (index, global) in here() {
            globals[index] = end.next_multiple_of(global.align.max(16));
            end = globals[index].checked_add(global.size).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        }
        if end != 0 {
            let memory = allocations.variables(device, memory, end, constant)?;
            here().for_each(|(index, _)| globals[index] += memory.base());
            variables.push(memory);
        }
    }
    for (global, at) in code.globals.iter().zip(&globals) {
        let write = |offset: u64, bytes: &[u8]| {
            let length = bytes.len() as u64;
            assert!(
                offset.checked_add(length).is_some_and(|end| end <= global.size),
                "initial bytes outside"
            );
            // SAFETY: the bytes are inside the variable, and no other code knows the new memory yet.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (at + offset) as *mut u8, bytes.len()) };
        };
        global.init.iter().for_each(|(offset, bytes)| write(*offset, bytes));
        for r in &global.relocations {
            let address = match r.symbol {
                Symbol::Global(i) => globals[i as usize],
                Symbol::Function(i) => code::function_address(i),
            };
            let value = address.wrapping_add_signed(r.addend).to_le_bytes();
            write(r.offset, &value[..usize::from(r.size)]);
        }
    }
    let constant = code.globals.iter().filter(|g| g.constant).map(|g| g.size).sum();
    let image = Arc::new(Image::new(Arc::new(code), globals));
    Ok(Loaded { device, image, ptx_version, constant, kernels: Mutex::default(), _variables: variables })
}

/// The image that `cuLinkComplete` returns. It contains the PTX texts, which are compiled again when it is loaded.
pub(crate) mod image {
    /// No text, cubin or fat binary begins like this.
    const MAGIC: [u8; 8] = *b"\x7fAQSOFT\x01";
    const HEADER: usize = 16;

    /// Packs texts into an image.
    pub(crate) fn encode(texts: &[String]) -> Box<[u8]> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([0; 8]);
        for text in texts {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        let total = (bytes.len() as u64).to_le_bytes();
        bytes[8..HEADER].copy_from_slice(&total);
        bytes.into()
    }

    /// The total size of the image that begins with these bytes; `None` if it is not an image.
    pub(crate) fn total(header: &[u8; 16]) -> Option<usize> {
        let size: [u8; 8] = header[8..].try_into().ok()?;
        header.starts_with(&MAGIC).then(|| usize::try_from(u64::from_le_bytes(size)).ok()).flatten()
    }

    /// Whether an image may begin with these bytes.
    pub(crate) fn may_begin_with(first: &[u8]) -> bool {
        MAGIC.starts_with(&first[..first.len().min(MAGIC.len())])
    }

    /// Unpacks the texts of an image; `None` if it is damaged.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Vec<String>> {
        let mut rest = bytes.get(HEADER..)?;
        let mut texts = Vec::new();
        while !rest.is_empty() {
            let (size, after) = rest.split_first_chunk::<8>()?;
            let (text, after) = after.split_at_checked(usize::try_from(u64::from_le_bytes(*size)).ok()?)?;
            texts.push(String::from_utf8(text.to_vec()).ok()?);
            rest = after;
        }
        Some(texts)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn images_round_trip_and_damage_is_noticed() {
            let texts = vec!["one".to_owned(), String::new(), "three".to_owned()];
            let bytes = encode(&texts);
            assert_eq!(total(bytes.first_chunk().expect("header")), Some(bytes.len()));
            assert_eq!(decode(&bytes), Some(texts));
            assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
            assert!(!may_begin_with(b".version") && may_begin_with(b"\x7fAQ") && !may_begin_with(b"\x7fELF"));
        }
    }
}
