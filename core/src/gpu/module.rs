//! Modules: PTX loaded into a context, and the kernels in it.

use std::collections::HashMap;
use std::ffi::CString;
use std::ptr;
use std::sync::{Arc, Weak};

use cuda_driver_sys::{
    CUdevice_attribute, CUdeviceptr, CUfunction, CUfunction_attribute, CUmodule, CUresult,
};

use super::context::Context;
use super::device::ComputeCapability;
use super::disposal::Users;
use super::driver::call;
use super::jit::{JitLog, explain};
use super::params::{Declared, Sizes};
use crate::error::{Error, Result};
use crate::sync::{Mutex, lock};

/// Loaded PTX. Cheap to clone; unloaded when the last clone and the last [`Function`] are gone.
#[derive(Clone, Debug)]
pub struct Module {
    inner: Arc<ModuleInner>,
}

#[derive(Debug)]
struct ModuleInner {
    raw: CUmodule,
    context: Context,
    declared: Declared,
}

// SAFETY: `raw` is the only field that is not Send: an opaque handle, accepted by the driver on any thread.
unsafe impl Send for ModuleInner {}
// SAFETY: the handle never changes, and looking into a module from several threads is the driver's to serialise.
unsafe impl Sync for ModuleInner {}

/// The modules of one context that can be found again. Each has a lock of its own, so that threads load different ones at a time.
#[derive(Default)]
struct ModuleCache(Mutex<HashMap<String, Arc<Mutex<Weak<ModuleInner>>>>>);

impl ModuleCache {
    /// The place of `key`, made now if there is none.
    fn place(&self, key: &str) -> Arc<Mutex<Weak<ModuleInner>>> {
        let mut modules = lock(&self.0);
        if !modules.contains_key(key) {
            // One that only the map holds is not being loaded, and nobody can begin to: that takes the map's lock.
            modules.retain(|_, place| Arc::strong_count(place) > 1 || lock(place).strong_count() > 0);
        }
        Arc::clone(modules.entry(key.to_owned()).or_default())
    }
}

impl Module {
    /// Compiles and loads `ptx`.
    ///
    /// # Errors
    /// PTX that does not assemble gives an error with the compiler's log and the line it complains about.
    pub fn load_ptx(context: &Context, ptx: &str) -> Result<Self> {
        let image = CString::new(ptx)
            .map_err(|_| Error::usage("Module::load_ptx", "the PTX text contains a NUL byte"))?;
        context.reap();
        let driver = context.driver();
        let _entered = context.enter()?;
        let mut log = JitLog::new();
        let (count, options, values) = log.options();
        let mut raw = ptr::null_mut();
        // SAFETY: the image is NUL-terminated text; options and values are two arrays of 4 entries, the log buffers as
        // long as they say; all of them live during the call. What is loaded is unloaded once, after the last holder.
        let result = unsafe {
            call!(driver, raw cuModuleLoadDataEx(&raw mut raw, image.as_ptr().cast(), count, options, values))
        }?;
        if result != CUresult::CUDA_SUCCESS {
            let error = context.note(driver.error("cuModuleLoadDataEx", result));
            return Err(explain(&error, ptx, &log.errors()));
        }
        log.tell("loading");
        Ok(Self::of(context, raw, [ptx].into_iter()))
    }

    /// The owner of a module just loaded into `context` from these texts.
    pub(super) fn of<'a>(context: &Context, raw: CUmodule, texts: impl Iterator<Item = &'a str>) -> Self {
        Self::with(context, raw, Declared::by(texts))
    }

    /// The owner of a module just loaded into `context`, whose kernels have these parameters.
    pub(super) fn with(context: &Context, raw: CUmodule, declared: Declared) -> Self {
        Self { inner: Arc::new(ModuleInner { raw, context: context.clone(), declared }) }
    }

    /// The module that was loaded into `context` under `key` and is still in use; otherwise the one that `load` gives.
    ///
    /// # Errors
    /// An error of `load`.
    pub(crate) fn load_cached(
        context: &Context,
        key: &str,
        load: impl FnOnce() -> Result<Self>,
    ) -> Result<Self> {
        let place = context.slot::<ModuleCache>().place(key);
        // Held while loading, so that no other thread loads the same text.
        let mut found = lock(&place);
        if let Some(inner) = found.upgrade() {
            return Ok(Self { inner });
        }
        let module = load()?;
        *found = Arc::downgrade(&module.inner);
        Ok(module)
    }

    /// The kernel `name`, ready to launch: its code is loaded now, not at the first launch.
    ///
    /// # Errors
    /// Invalid usage if there is none of this name; a driver error.
    pub fn function(&self, name: &str) -> Result<Function> {
        let context = &self.inner.context;
        let driver = context.driver();
        let c_name = CString::new(name)
            .map_err(|_| Error::usage("Module::function", "a name cannot contain a NUL byte"))?;
        let _entered = context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a live output; module and name are alive.
        match unsafe {
            call!(driver, raw cuModuleGetFunction(&raw mut raw, self.inner.raw, c_name.as_ptr()))
        }? {
            CUresult::CUDA_SUCCESS => {}
            CUresult::CUDA_ERROR_NOT_FOUND => {
                return Err(Error::usage(
                    "Module::function",
                    format!("the module has no kernel named {name}"),
                ));
            }
            other => return Err(context.note(driver.error("cuModuleGetFunction", other))),
        }
        Function::new(self.clone(), raw, name)
    }

    /// Address and bytes of the module's global variable `name`.
    ///
    /// # Errors
    /// Invalid usage if there is none of this name; a driver error.
    pub fn global(&self, name: &str) -> Result<(CUdeviceptr, usize)> {
        let context = &self.inner.context;
        let driver = context.driver();
        let c_name = CString::new(name)
            .map_err(|_| Error::usage("Module::global", "a name cannot contain a NUL byte"))?;
        let _entered = context.enter()?;
        let (mut ptr, mut size) = (0, 0);
        // SAFETY: both are live outputs; module and name are alive.
        match unsafe {
            call!(driver, raw cuModuleGetGlobal_v2(&raw mut ptr, &raw mut size, self.inner.raw, c_name.as_ptr()))
        }? {
            CUresult::CUDA_SUCCESS => Ok((ptr, size)),
            CUresult::CUDA_ERROR_NOT_FOUND => {
                Err(Error::usage("Module::global", format!("the module has no global variable named {name}")))
            }
            other => Err(context.note(driver.error("cuModuleGetGlobal_v2", other))),
        }
    }

    /// The context it was loaded into.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }
}

impl Drop for ModuleInner {
    fn drop(&mut self) {
        // As an address: a raw pointer is not Send.
        let raw = self.raw.expose_provenance();
        self.context.dispose(
            Users::OWN,
            Box::new(move |driver| {
                let raw: CUmodule = ptr::with_exposed_provenance_mut(raw);
                // SAFETY: ours, unloaded once; the context is quiet when this runs, so none of its kernels does.
                unsafe { call!(driver, cuModuleUnload(raw)) }
            }),
        );
    }
}

/// The resources that a kernel needs, as compiled for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionAttributes {
    /// The largest block it can be launched with, in threads.
    pub max_threads_per_block: u32,
    /// Registers per thread.
    pub registers: u32,
    /// Shared memory declared in the code, in bytes per block.
    pub static_shared_bytes: u32,
    /// Local memory in bytes per thread: more than 0 means spilling or arrays.
    pub local_bytes: u32,
}

/// A kernel. Cheap to clone; keeps its module loaded.
#[derive(Clone, Debug)]
pub struct Function {
    pub(super) inner: Arc<FunctionInner>,
}

#[derive(Debug)]
pub(super) struct FunctionInner {
    pub(super) raw: CUfunction,
    pub(super) name: String,
    pub(super) attributes: FunctionAttributes,
    pub(super) device: DeviceLimits,
    /// The bytes of each parameter; `None` if neither the driver nor the text says.
    pub(super) params: Option<Sizes>,
    /// Per (threads per block, dynamic shared bytes): how many blocks are resident on the whole device.
    resident: Mutex<Option<(u32, u32, u32)>>,
    module: Module,
}

// SAFETY: `raw` is the only field that is not Send: an opaque handle of the module, accepted on any thread.
unsafe impl Send for FunctionInner {}
// SAFETY: the handle never changes; the rest is immutable or behind a mutex.
unsafe impl Sync for FunctionInner {}

/// Limits of the device that every launch is checked against.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceLimits {
    pub(super) sm_count: u32,
    pub(super) max_grid: [u32; 3],
    pub(super) max_block: [u32; 3],
    pub(super) shared_per_block: u32,
    pub(super) cooperative: bool,
    pub(super) capability: ComputeCapability,
}

impl Function {
    fn new(module: Module, raw: CUfunction, name: &str) -> Result<Self> {
        let context = module.context().clone();
        let get = |attribute| {
            let mut value = 0;
            // SAFETY: `value` is a live output and the function belongs to a loaded module.
            unsafe { call!(context.driver(), cuFuncGetAttribute(&raw mut value, attribute, raw)) }?;
            Ok::<_, Error>(u32::try_from(value).unwrap_or(0))
        };
        // These attributes exist only for compiled code, so asking for them makes a lazily loading driver load it.
        let attributes = FunctionAttributes {
            max_threads_per_block: get(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            registers: get(CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            static_shared_bytes: get(CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            local_bytes: get(CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        };
        let params = module.inner.declared.get(name).cloned();
        let device = context.device();
        let unsigned = |attribute| Ok::<_, Error>(u32::try_from(device.attribute(attribute)?).unwrap_or(0));
        let limits = DeviceLimits {
            sm_count: device.sm_count()?,
            max_grid: device.max_grid()?,
            max_block: [
                unsigned(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?,
                unsigned(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?,
                unsigned(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?,
            ],
            shared_per_block: device.max_shared_per_block()?,
            cooperative: device.can_launch_cooperatively()?,
            capability: device.compute_capability()?,
        };
        let (name, resident) = (name.to_owned(), Mutex::default());
        Ok(Self {
            inner: Arc::new(FunctionInner {
                raw,
                name,
                attributes,
                device: limits,
                params,
                resident,
                module,
            }),
        })
    }

    /// Its name in the module.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The resources it needs.
    pub fn attributes(&self) -> FunctionAttributes {
        self.inner.attributes
    }

    /// The driver's handle, valid as long as this value.
    pub(crate) fn raw(&self) -> CUfunction {
        self.inner.raw
    }

    /// The context it is loaded in.
    pub fn context(&self) -> &Context {
        self.inner.module.context()
    }

    /// Lets launches ask for up to `bytes` of dynamic shared memory. Needed above 48 KiB.
    ///
    /// # Errors
    /// Invalid usage if the device has not as much for a block; a driver error.
    pub fn allow_shared(&self, bytes: u32) -> Result<()> {
        let have =
            self.inner.device.shared_per_block.saturating_sub(self.inner.attributes.static_shared_bytes);
        let (Ok(value), true) = (i32::try_from(bytes), bytes <= have) else {
            let message = format!("kernel {}: {bytes} bytes of shared memory; there are {have}", self.name());
            return Err(Error::usage("allow_shared", message));
        };
        let context = self.context();
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let _entered = context.enter()?;
        // SAFETY: the function belongs to a loaded module.
        context.noted(unsafe { call!(context.driver(), cuFuncSetAttribute(self.raw(), attribute, value)) })
    }

    /// The most dynamic shared memory that a launch may ask for: 48 KiB less the static part, or what
    /// [`allow_shared`](Self::allow_shared) has set.
    pub(super) fn allowed_shared(&self) -> Result<u32> {
        let context = self.context();
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let mut value = 0;
        let _entered = context.enter()?;
        // SAFETY: `value` is a live output and the function belongs to a loaded module.
        let asked =
            unsafe { call!(context.driver(), cuFuncGetAttribute(&raw mut value, attribute, self.raw())) };
        context.noted(asked)?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// How many blocks of `threads` threads and `shared_bytes` of dynamic shared memory the whole device runs at once:
    /// the largest grid that may meet at a grid barrier.
    ///
    /// # Errors
    /// A driver error.
    pub fn max_resident_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u32> {
        if let Some((t, s, blocks)) = *lock(&self.inner.resident)
            && (t, s) == (threads, shared_bytes)
        {
            return Ok(blocks);
        }
        let context = self.context();
        let (mut per_sm, block) = (0, i32::try_from(threads).unwrap_or(i32::MAX));
        let shared = shared_bytes as usize;
        let _entered = context.enter()?;
        // SAFETY: `per_sm` is a live output and the function belongs to a loaded module.
        context.noted(unsafe {
            call!(
                context.driver(),
                cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut per_sm, self.raw(), block, shared)
            )
        })?;
        let blocks = u32::try_from(per_sm).unwrap_or(0).saturating_mul(self.inner.device.sm_count);
        *lock(&self.inner.resident) = Some((threads, shared_bytes, blocks));
        Ok(blocks)
    }
}
