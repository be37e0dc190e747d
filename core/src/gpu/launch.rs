//! Launching kernels: typed parameters, and a configuration checked against the device.

use std::ffi::c_void;
use std::marker::PhantomData;

use super::driver::call;
use super::keep::KeepAlive;
use super::module::Function;
use super::stream::Stream;
use crate::error::{Error, ErrorKind, Result};

/// A value that can be a kernel parameter.
///
/// # Safety
/// The type must have the size, alignment and layout of the PTX parameter it stands for: a number, or a `repr(C)`
/// struct of such, without padding whose content matters.
pub unsafe trait KernelParam: Copy {}

macro_rules! param {
    ($($t:ty)*) => {
        $(
            // SAFETY: a number is a `.param` of the same size and alignment (PTX ISA, "Kernel Function Parameters").
            unsafe impl KernelParam for $t {}
        )*
    };
}
param!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

// SAFETY: an array is a `.param .align` array of its elements.
unsafe impl<T: KernelParam, const N: usize> KernelParam for [T; N] {}

/// One parameter of a launch: see [`arg`].
#[derive(Clone, Copy, Debug)]
pub struct KernelArg<'a> {
    value: *const c_void,
    bytes: usize,
    borrow: PhantomData<&'a ()>,
}

/// `value` as a parameter; it is copied at the launch.
pub fn arg<T: KernelParam>(value: &T) -> KernelArg<'_> {
    let value: *const T = value;
    KernelArg { value: value.cast(), bytes: size_of::<T>(), borrow: PhantomData }
}

/// The bytes of a `.param .align 8 .b8` array of any length as a parameter; they are copied at the launch.
pub(crate) fn bytes(value: &[u64]) -> KernelArg<'_> {
    KernelArg { value: value.as_ptr().cast(), bytes: size_of_val(value), borrow: PhantomData }
}

/// Shared memory per block that every kernel may use; more must be allowed first (CUDA C++ Programming Guide, "Shared Memory").
const SHARED_UNASKED: u32 = 48 << 10;

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory per block, in bytes.
    pub shared_bytes: u32,
    /// Whether all blocks must be resident at once, because they meet at a grid barrier.
    pub cooperative: bool,
}

impl LaunchConfig {
    /// `blocks` blocks of `threads` threads.
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        Self { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0, cooperative: false }
    }

    /// With a grid barrier.
    #[must_use]
    pub const fn cooperative(self) -> Self {
        Self { cooperative: true, ..self }
    }

    /// With dynamic shared memory per block, in bytes.
    #[must_use]
    pub const fn with_shared_bytes(self, bytes: u32) -> Self {
        Self { shared_bytes: bytes, ..self }
    }

    fn threads(&self) -> u64 {
        self.block.iter().map(|&n| u64::from(n)).product()
    }

    fn blocks(&self) -> u128 {
        self.grid.iter().map(|&n| u128::from(n)).product()
    }
}

/// The most parameters a launch may have.
const MAX_ARGS: usize = 64;

impl Function {
    /// Enqueues the kernel on `stream`.
    ///
    /// The number and the sizes of `args` must be those of the kernel's parameters, which the driver tells since CUDA
    /// 12.4. With an older driver they come from the PTX text, and a kernel is not checked whose text gives the length of
    /// an array as an expression.
    ///
    /// # Safety
    /// - `args` must be the kernel's parameters, in number, order and type.
    /// - Every address the kernel computes from them must be valid for what it does there until it has finished:
    ///   [`Stream::retain`] what owns the memory.
    /// - The kernel must not write what Rust code holds references to.
    /// - Blocks that wait for one another need [`LaunchConfig::cooperative`]; a kernel that waits for a peer needs a way
    ///   to give up.
    ///
    /// # Errors
    /// Invalid usage if the shape does not fit the kernel or the device, or if the number of arguments or the size of
    /// one is wrong; nothing is then enqueued. A driver error, including failures of earlier work.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        config: &LaunchConfig,
        args: &[KernelArg<'_>],
    ) -> Result<()> {
        // SAFETY: the caller's promises are those that are asked for, with nothing to keep.
        unsafe { self.launch_keeping(stream, config, args, []) }
    }

    /// As [`launch`](Self::launch), and the stream [retains](Stream::retain) each of `keep` for the kernel. Prefer this
    /// to two calls: another thread cannot end a capture in between.
    ///
    /// # Safety
    /// As for [`launch`](Self::launch); addresses may be kept valid by `keep`.
    ///
    /// # Errors
    /// As for [`launch`](Self::launch), and for [`Stream::retain`].
    pub(crate) unsafe fn launch_keeping(
        &self,
        stream: &Stream,
        config: &LaunchConfig,
        args: &[KernelArg<'_>],
        keep: impl IntoIterator<Item = KeepAlive>,
    ) -> Result<()> {
        self.validate(config)?;
        let context = self.context();
        if stream.context() != context {
            let message = format!(
                "kernel {} and the stream belong to different contexts; make both from one Context",
                self.name()
            );
            return Err(Error::usage("launch", message));
        }
        self.check_args(args)?;
        let mut params = [std::ptr::null_mut(); MAX_ARGS];
        let Some(params) = params.get_mut(..args.len()) else {
            let message =
                format!("kernel {}: {} parameters; at most {MAX_ARGS} are passed", self.name(), args.len());
            return Err(Error::usage("launch", message));
        };
        for (param, arg) in params.iter_mut().zip(args) {
            *param = arg.value.cast_mut();
        }
        let LaunchConfig { grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes: shared, cooperative } =
            *config;
        let (driver, f, queue, params) = (context.driver(), self.raw(), stream.handle(), params.as_mut_ptr());
        let enqueue = || {
            if cooperative {
                // SAFETY: function and stream are alive and of the current context; the caller vouches for the
                // parameters, which the driver copies during the call.
                unsafe {
                    call!(driver, cuLaunchCooperativeKernel(f, gx, gy, gz, bx, by, bz, shared, queue, params))
                }
            } else {
                let extra = std::ptr::null_mut();
                // SAFETY: as above.
                unsafe {
                    call!(driver, cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, queue, params, extra))
                }
            }
        };
        stream.enqueue(keep, enqueue)
    }

    /// Returns an error unless `args` have the number and the sizes of the kernel's parameters, or these are not known.
    fn check_args(&self, args: &[KernelArg<'_>]) -> Result<()> {
        let Some(sizes) = &self.inner.params else { return Ok(()) };
        if args.len() == sizes.len() && args.iter().zip(sizes).all(|(arg, &size)| arg.bytes == size) {
            return Ok(());
        }
        Err(self.wrong_args(args, sizes))
    }

    #[cold]
    fn wrong_args(&self, args: &[KernelArg<'_>], sizes: &[usize]) -> Error {
        let (name, arguments, parameters) = (self.name(), args.len(), sizes.len());
        let wrong = args.iter().zip(sizes).position(|(arg, &size)| arg.bytes != size);
        let message = match wrong {
            Some(nth) if arguments == parameters => format!(
                "kernel {name}: argument {} of {arguments} has {} bytes, its parameter has {}",
                nth + 1,
                args[nth].bytes,
                sizes[nth]
            ),
            _ => format!(
                "kernel {name}: arguments: {arguments}, parameters: {parameters}; pass one argument for each parameter"
            ),
        };
        Error::usage("launch", message)
    }

    /// Whether `config` fits the kernel and the device. A launch checks it too; a plan can check it earlier.
    ///
    /// # Errors
    /// Invalid usage that names the limit; unsupported if the device has no grid barriers.
    pub(crate) fn validate(&self, config: &LaunchConfig) -> Result<()> {
        let limits = &self.inner.device;
        let refuse = |text: String| Err(Error::usage("launch", format!("kernel {}: {text}", self.name())));
        if config.grid.contains(&0) || config.block.contains(&0) {
            return refuse(format!("grid {:?} and block {:?} must not contain 0", config.grid, config.block));
        }
        for (what, have, max) in
            [("grid", config.grid, limits.max_grid), ("block", config.block, limits.max_block)]
        {
            if have.iter().zip(max).any(|(&have, max)| have > max) {
                return refuse(format!("{what} {have:?} exceeds the device's {max:?}"));
            }
        }
        let max = self.inner.attributes.max_threads_per_block;
        if config.threads() > u64::from(max) {
            let registers = self.inner.attributes.registers;
            let threads = config.threads();
            return refuse(format!(
                "{threads} threads per block; with its {registers} registers it can have {max}"
            ));
        }
        let fixed = self.inner.attributes.static_shared_bytes;
        if config.shared_bytes.saturating_add(fixed) > limits.shared_per_block {
            return refuse(format!(
                "{} + {fixed} bytes of shared memory per block; the device has {}",
                config.shared_bytes, limits.shared_per_block
            ));
        }
        if config.shared_bytes.saturating_add(fixed) > SHARED_UNASKED {
            let allowed = self.allowed_shared()?;
            if config.shared_bytes > allowed {
                return refuse(format!(
                    "{0} bytes of dynamic shared memory per block; {allowed} are allowed: call allow_shared({0}) before the launch",
                    config.shared_bytes
                ));
            }
        }
        if !config.cooperative {
            return Ok(());
        }
        if !limits.cooperative {
            let message =
                format!("a device of compute capability {} has no grid barriers", limits.capability);
            return Err(Error::new(ErrorKind::Unsupported, "launch", message));
        }
        let threads = u32::try_from(config.threads()).unwrap_or(u32::MAX);
        let resident = self.max_resident_blocks(threads, config.shared_bytes)?;
        if config.blocks() > u128::from(resident) {
            return refuse(format!(
                "a grid barrier over {} blocks of {threads} threads; this device runs {resident} of them at once \
                 ({} SMs): launch at most {resident} blocks",
                config.blocks(),
                limits.sm_count
            ));
        }
        Ok(())
    }
}
