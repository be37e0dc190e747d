//! Linking several PTX texts into one module.

use std::ffi::CString;
use std::path::Path;
use std::ptr;

use cuda_driver_sys::{CUjitInputType, CUlinkState, CUresult};

use super::context::Context;
use super::disk_cache::{DiskCache, Key};
use super::driver::{Driver, call};
use super::jit::{JitLog, explain};
use super::module::Module;
use super::params::Declared;
use crate::error::{Error, Result};

/// The name of a kept kernel. Its text would do, too, but takes longer to write than the code takes to load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptKernel<'a> {
    /// Digest of everything from which the text is written.
    pub(crate) described: [u8; 32],
    /// Names the build of whatever writes the text: another one may write another text.
    pub(crate) writer: &'a str,
    /// Its entry point, and the bytes of the one parameter.
    pub(crate) symbol: &'a str,
    pub(crate) param_bytes: usize,
}

impl Module {
    /// Compiles texts that call each other's functions, links them (`cuLink*`) and loads the result. Each part is a
    /// name for messages, and its text.
    ///
    /// # Errors
    /// PTX that does not assemble, and functions that nobody defines, give an error with the linker's log.
    pub fn link_ptx(context: &Context, parts: &[(&str, &str)]) -> Result<Self> {
        Self::link_seen(context, parts, |_| ())
    }

    /// Loads a kernel as [`Module::load_ptx`] does, with compiled code kept in the folder `cache`: what an earlier call, also of
    /// another process, has compiled for this driver and device is loaded from there, and the `text` is not written.
    ///
    /// # Errors
    /// As for [`Module::load_ptx`], and those of `text`. Nothing about the folder is an error.
    pub(crate) fn load_kept(
        context: &Context,
        cache: &Path,
        kernel: &KeptKernel<'_>,
        text: impl FnOnce() -> Result<String>,
    ) -> Result<Self> {
        let cache = DiskCache::new(cache);
        let driver = context.driver();
        let made_by = format!("{} {:?}", driver.provenance(), driver.version());
        let capability = context.device().compute_capability()?.to_string();
        let KeptKernel { described, writer, .. } = kernel;
        let key = Key::of(&[
            env!("CARGO_PKG_VERSION"),
            &made_by,
            &capability,
            writer,
            &format!("{described:02x?}"),
        ]);
        if let Some(image) = cache.read(key) {
            match Self::load_image(context, &image, kernel) {
                Ok(module) => {
                    log::debug!("a compiled kernel was found in the cache");
                    return Ok(module);
                }
                // The driver is not the one that made it, after all.
                Err(error) => log::debug!("a kernel in the cache is compiled anew: {error}"),
            }
        }
        Self::linked_or_loaded(context, &text()?, |image| cache.write(key, image))
    }

    /// Loads a kernel as [`Module::load_ptx`] does, for threads that do so at a time. `cuModuleLoadDataEx` compiles for one of them
    /// after the other, `cuLink*` for all in parallel (driver 580.159 on an H200: 16 kernels take one thread 3.7 s by either, four threads
    /// 3.0 and 0.9 s). The driver's own cache serves both.
    ///
    /// # Errors
    /// As for [`Module::load_ptx`].
    pub(crate) fn load_beside_others(context: &Context, text: &str) -> Result<Self> {
        Self::linked_or_loaded(context, text, |_| ())
    }

    fn linked_or_loaded(context: &Context, text: &str, see: impl FnOnce(&[u8])) -> Result<Self> {
        match Self::link_seen(context, &[("kernel", text)], see) {
            Ok(module) => Ok(module),
            // A driver that links nothing; and the complaint of the compiler alone is the better one.
            Err(error) => {
                log::debug!("a kernel could not be linked and is compiled alone: {error}");
                Self::load_ptx(context, text)
            }
        }
    }

    /// Loads code that was compiled from the kernel's text.
    fn load_image(context: &Context, image: &[u8], kernel: &KeptKernel<'_>) -> Result<Self> {
        context.reap();
        let driver = context.driver();
        let _entered = context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the image is one that a link has completed and a digest has found whole; it says how long it is, and lives
        // during the call, which copies it. What is loaded is unloaded once, after the last holder.
        context.noted(unsafe { call!(driver, cuModuleLoadData(&raw mut raw, image.as_ptr().cast())) })?;
        Ok(Self::with(context, raw, Declared::one(kernel.symbol, kernel.param_bytes)))
    }

    /// As [`link_ptx`](Self::link_ptx). Shows `see` the linked code.
    fn link_seen(context: &Context, parts: &[(&str, &str)], see: impl FnOnce(&[u8])) -> Result<Self> {
        context.reap();
        let driver = context.driver();
        let _entered = context.enter()?;
        let mut linker = Linker::new(driver)?;
        for (name, ptx) in parts {
            let result = linker.add(name, ptx)?;
            if result != CUresult::CUDA_SUCCESS {
                let error = context.note(driver.error("cuLinkAddData_v2", result));
                let message = format!("{name}: {}", error.message());
                let error = Error::new(error.kind(), error.op(), message).with_code(error.code());
                return Err(explain(&error, ptx, &linker.log.errors()));
            }
        }
        let (mut image, mut bytes) = (ptr::null_mut(), 0);
        // SAFETY: both are live outputs, the link is alive.
        let result =
            unsafe { call!(driver, raw cuLinkComplete(linker.state, &raw mut image, &raw mut bytes)) }?;
        if result != CUresult::CUDA_SUCCESS {
            let error = context.note(driver.error("cuLinkComplete", result));
            return Err(explain(&error, "", &linker.log.errors()));
        }
        linker.log.tell("linking");
        let mut raw = ptr::null_mut();
        // SAFETY: the image belongs to the link, which lives until this returns. What is loaded is unloaded once, after
        // the last holder.
        context.noted(unsafe { call!(driver, cuModuleLoadData(&raw mut raw, image)) })?;
        // SAFETY: the driver gave this pointer and length; the link, which owns the image, lives until this returns, and
        // nobody writes to it.
        see(unsafe { std::slice::from_raw_parts(image.cast_const().cast(), bytes) });
        Ok(Self::of(context, raw, parts.iter().map(|(_, ptx)| *ptx)))
    }
}

/// A link under way, in the current context.
struct Linker<'a> {
    driver: &'a Driver,
    state: CUlinkState,
    /// The driver writes to it until the link is destroyed.
    log: JitLog,
}

impl<'a> Linker<'a> {
    fn new(driver: &'a Driver) -> Result<Self> {
        let mut log = JitLog::new();
        let (count, options, values) = log.options();
        let mut state = ptr::null_mut();
        // SAFETY: two arrays of so many entries, to whose values and to whose buffers the driver writes until the link
        // is destroyed: they belong to the log, which outlives it.
        unsafe { call!(driver, cuLinkCreate_v2(count, options, values, &raw mut state)) }?;
        Ok(Self { driver, state, log })
    }

    fn add(&mut self, name: &str, ptx: &str) -> Result<CUresult> {
        let terminated = |text| {
            CString::new(text)
                .map_err(|_| Error::usage("Module::link_ptx", "a name or text contains a NUL byte"))
        };
        let (name, text) = (terminated(name)?, terminated(ptx)?);
        let bytes = text.as_bytes_with_nul();
        let (kind, data) = (CUjitInputType::CU_JIT_INPUT_PTX, bytes.as_ptr().cast_mut().cast());
        let (none, nothing) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: `bytes` and `name` are NUL-terminated and live during the call, which copies and does not write them.
        unsafe {
            call!(
                self.driver,
                raw cuLinkAddData_v2(self.state, kind, data, bytes.len(), name.as_ptr(), 0, none, nothing)
            )
        }
    }
}

impl Drop for Linker<'_> {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once; the module that was loaded from its image is a copy.
        if let Err(error) = unsafe { call!(self.driver, cuLinkDestroy(self.state)) } {
            log::warn!("a link could not be destroyed: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::gpu::{Device, KernelArg, LaunchConfig, Stream, arg};

    const PTX: &str = ".version 7.0\n.target sm_70\n.address_size 64\n\
        .visible .entry nothing(.param .u64 p)\n{\n    ret;\n}\n";

    /// Code that is kept is found by the description, the writer and nothing else, and the text is then not written.
    #[test]
    fn a_kept_kernel_is_loaded_without_its_text() {
        let folder = std::env::temp_dir().join(format!("aqueduct-kept-{}", std::process::id()));
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::all(&driver).unwrap()[0]).unwrap();
        let load = |described: u8, writer: &str| {
            let kernel = KeptKernel { described: [described; 32], writer, symbol: "nothing", param_bytes: 8 };
            let written = Cell::new(false);
            let text = || {
                written.set(true);
                Ok(PTX.to_owned())
            };
            let function =
                Module::load_kept(&context, &folder, &kernel, text).unwrap().function("nothing").unwrap();
            // The size of its parameter is known either way.
            let stream = Stream::new(&context).unwrap();
            let launch = |arg: KernelArg<'_>| {
                // SAFETY: the kernel touches no memory.
                unsafe { function.launch(&stream, &LaunchConfig::linear(1, 1), &[arg]) }
            };
            (launch(arg(&7_u64)).is_ok() && launch(arg(&7_u32)).is_err(), written.get())
        };
        assert_eq!(load(1, "a build"), (true, true));
        assert_eq!(load(1, "a build"), (true, false));
        assert_eq!(load(2, "a build"), (true, true));
        assert_eq!(load(1, "another build"), (true, true));
        assert_eq!(load(1, "a build"), (true, false));
        context.settle();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
