//! The driver as a value: the function table, the hooks around each call, and where it came from.

use std::any::Any;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use cuda_driver_sys::{CUresult, DriverTable};

use super::slots::Slots;
use super::status;
use crate::env::HandlePolicy;
use crate::error::{Error, ErrorKind, Result};
use crate::fault::DriverFaults;
use crate::fork::Creator;

/// Watches the driver calls of one [`Driver`], and may answer in the driver's place.
///
/// Both methods run on the calling thread and must not use this driver, nor anything made with it.
pub trait Hooks: Send + Sync + 'static {
    /// Before `function` is called. `Some(result)` replaces the call: the driver never sees it.
    fn before(&self, function: &'static str) -> Option<CUresult> {
        let _ = function;
        None
    }

    /// As [`before`](Self::before), for a function that allocates `bytes`. The provided method calls `before`.
    fn before_allocation(&self, function: &'static str, bytes: usize) -> Option<CUresult> {
        let _ = bytes;
        self.before(function)
    }

    /// After `function` returned `result`, or was replaced by it.
    fn after(&self, function: &'static str, result: CUresult) {
        let _ = (function, result);
    }
}

impl Hooks for DriverFaults {
    fn before(&self, function: &'static str) -> Option<CUresult> {
        self.decide(function, None)
    }

    fn before_allocation(&self, function: &'static str, bytes: usize) -> Option<CUresult> {
        self.decide(function, Some(bytes))
    }
}

/// The origin of a [`Driver`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Provenance {
    /// A driver library: the name or path that dlopen(3) accepted.
    Library(String),
    /// The software device.
    Software,
    /// A table handed in by the program, under the name it gave.
    Table(String),
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(path) => f.write_str(path),
            Self::Software => f.write_str("software"),
            Self::Table(name) => f.write_str(name),
        }
    }
}

/// An initialised CUDA driver. Cheap to clone; clones share everything.
///
/// Load it once per process and clone it: dropping host memory never waits for work of any context that came from the
/// same value, and knows nothing of the contexts of another.
///
/// `Send + Sync`: the driver API may be called from any thread.
#[derive(Clone)]
pub struct Driver {
    inner: Arc<Inner>,
}

struct Inner {
    table: DriverTable,
    hooks: Option<Arc<dyn Hooks>>,
    provenance: Provenance,
    version: i32,
    reason: String,
    handles: HandlePolicy,
    creator: Creator,
    slots: Slots,
}

/// Calls one function of a driver's table by its ABI name, inside the caller's `unsafe`.
///
/// `call!(driver, cuX(a, b))` gives `Result<()>`; with `optional` before the name a missing function is an error that
/// names it; `allocate N` tells the hooks that N bytes are asked for; with `raw` the result is `Result<CUresult>`, for
/// functions whose codes are answers.
macro_rules! call {
    ($driver:expr, allocate $bytes:expr, optional $function:ident($($arg:expr),* $(,)?)) => {{
        let driver: &$crate::gpu::Driver = $driver;
        match driver.table().$function {
            Some(function) => driver.allocate(stringify!($function), $bytes, || function($($arg),*)),
            None => Err(driver.lacks(stringify!($function))),
        }
    }};
    ($driver:expr, allocate $bytes:expr, $function:ident($($arg:expr),* $(,)?)) => {{
        let driver: &$crate::gpu::Driver = $driver;
        driver.allocate(stringify!($function), $bytes, || (driver.table().$function)($($arg),*))
    }};
    ($driver:expr, optional $function:ident($($arg:expr),* $(,)?)) => {{
        let driver: &$crate::gpu::Driver = $driver;
        match driver.table().$function {
            Some(function) => driver.check(stringify!($function), || function($($arg),*)),
            None => Err(driver.lacks(stringify!($function))),
        }
    }};
    ($driver:expr, raw $function:ident($($arg:expr),* $(,)?)) => {{
        let driver: &$crate::gpu::Driver = $driver;
        driver.invoke(stringify!($function), || (driver.table().$function)($($arg),*))
    }};
    ($driver:expr, $function:ident($($arg:expr),* $(,)?)) => {{
        let driver: &$crate::gpu::Driver = $driver;
        driver.check(stringify!($function), || (driver.table().$function)($($arg),*))
    }};
}
pub(crate) use call;

impl Driver {
    /// Loads the NVIDIA driver from `path`, or from where dlopen(3) finds it, and initialises it.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] with every path tried if there is none or it is too old, [`ErrorKind::Cuda`] if it
    /// does not initialise (no GPU, mismatched kernel module).
    pub fn load(path: Option<&Path>) -> Result<Self> {
        let loaded = cuda_driver_sys::load(path)
            .map_err(|error| Error::new(ErrorKind::Unsupported, "Driver::load", error.to_string()))?;
        let reason = "the driver library was asked for".into();
        Self::initialise(loaded.table, Provenance::Library(loaded.library), reason)
    }

    /// Initialises a driver given as a table, for static builds and other implementations; `name` says what it is.
    ///
    /// # Errors
    /// [`ErrorKind::Cuda`] or [`ErrorKind::Unsupported`] if it does not initialise.
    pub fn from_table(table: DriverTable, name: impl Into<String>) -> Result<Self> {
        Self::initialise(table, Provenance::Table(name.into()), "a table was handed in".into())
    }

    /// As [`Driver::load`], with a table in place of the library.
    #[cfg(test)]
    pub(super) fn as_library(table: DriverTable) -> Result<Self> {
        Self::initialise(table, Provenance::Library("libcuda.so.1".into()), "a test asked for it".into())
    }

    /// Initialises the software device from its table.
    ///
    /// # Errors
    /// As for [`Driver::from_table`].
    pub fn software(table: DriverTable) -> Result<Self> {
        Self::initialise(table, Provenance::Software, "the software device was asked for".into())
    }

    /// The same driver with `hooks` around each call. Contexts are not shared with the driver without them.
    #[must_use]
    #[doc(hidden)]
    pub fn with_hooks(&self, hooks: Arc<dyn Hooks>) -> Self {
        self.changed(|inner| inner.hooks = Some(hooks))
    }

    /// The same driver with another policy for the handles of buffers that name none. Contexts are not shared with it.
    #[must_use]
    pub fn with_handle_policy(&self, handles: HandlePolicy) -> Self {
        self.changed(|inner| inner.handles = handles)
    }

    /// By which kind of handle buffers that name none can be shared.
    pub fn handle_policy(&self) -> HandlePolicy {
        self.inner.handles
    }

    fn changed(&self, change: impl FnOnce(&mut Inner)) -> Self {
        let Inner { table, hooks, provenance, version, reason, handles, creator, .. } = &*self.inner;
        let mut inner = Inner {
            table: *table,
            hooks: hooks.clone(),
            provenance: provenance.clone(),
            version: *version,
            reason: reason.clone(),
            handles: *handles,
            creator: *creator,
            slots: Slots::default(),
        };
        change(&mut inner);
        Self { inner: Arc::new(inner) }
    }

    /// Where it came from.
    pub fn provenance(&self) -> &Provenance {
        &self.inner.provenance
    }

    /// Whether this is the software device, whose times say nothing about GPUs.
    pub fn is_software(&self) -> bool {
        self.inner.provenance == Provenance::Software
    }

    /// Why this driver and no other was chosen.
    pub fn reason(&self) -> &str {
        &self.inner.reason
    }

    /// The CUDA version the driver implements, as (major, minor).
    pub fn version(&self) -> (i32, i32) {
        (self.inner.version / 1000, self.inner.version % 1000 / 10)
    }

    /// The optional functions this driver lacks.
    pub fn missing(&self) -> Vec<&'static str> {
        self.inner.table.missing()
    }

    /// The raw function table. Calls made through it bypass hooks and checks.
    #[doc(hidden)]
    pub fn table(&self) -> &DriverTable {
        &self.inner.table
    }

    /// Whether both are the same driver value (a clone of one another).
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    fn initialise(table: DriverTable, provenance: Provenance, reason: String) -> Result<Self> {
        let software = provenance == Provenance::Software;
        let creator = Creator::current();
        let slots = Slots::default();
        let handles = HandlePolicy::default();
        let mut inner = Inner { table, hooks: None, provenance, version: 0, reason, handles, creator, slots };
        let checked = |function, result: CUresult| match result {
            CUresult::CUDA_SUCCESS => Ok(()),
            other => Err(status::error(&table, software, function, other)),
        };
        // SAFETY: cuInit takes flags, which must be 0.
        checked("cuInit", unsafe { (table.cuInit)(0) })?;
        // SAFETY: `version` is a live output.
        checked("cuDriverGetVersion", unsafe { (table.cuDriverGetVersion)(&raw mut inner.version) })?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The same driver, chosen for `reason`. Only for a driver that nobody else holds yet.
    pub(super) fn because(mut self, reason: String) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.reason = reason;
        }
        self
    }

    /// The one value of type `T` that belongs to this driver.
    pub(super) fn slot<T: Any + Send + Sync + Default>(&self) -> &T {
        self.inner.slots.get()
    }

    /// Whether this process is a forked child of the one that initialised the driver.
    #[inline]
    pub(crate) fn forked(&self) -> bool {
        self.inner.creator.forked()
    }

    /// Runs one call between the hooks. Fails only in a forked child, where the driver must not be entered.
    pub(crate) fn invoke(&self, function: &'static str, f: impl FnOnce() -> CUresult) -> Result<CUresult> {
        self.between(function, |hooks| hooks.before(function), f)
    }

    /// [`check`](Self::check) for a call that allocates `bytes`.
    pub(crate) fn allocate(
        &self,
        function: &'static str,
        bytes: usize,
        f: impl FnOnce() -> CUresult,
    ) -> Result<()> {
        match self.between(function, |hooks| hooks.before_allocation(function, bytes), f)? {
            CUresult::CUDA_SUCCESS => Ok(()),
            other => Err(self.error(function, other)),
        }
    }

    fn between(
        &self,
        function: &'static str,
        before: impl FnOnce(&dyn Hooks) -> Option<CUresult>,
        f: impl FnOnce() -> CUresult,
    ) -> Result<CUresult> {
        if self.forked() {
            return Err(self.in_child(function));
        }
        match &self.inner.hooks {
            None => Ok(f()),
            Some(hooks) => {
                let result = before(hooks.as_ref()).unwrap_or_else(f);
                hooks.after(function, result);
                Ok(result)
            }
        }
    }

    /// Runs one call and turns every result but success into an error.
    pub(crate) fn check(&self, function: &'static str, f: impl FnOnce() -> CUresult) -> Result<()> {
        match self.invoke(function, f)? {
            CUresult::CUDA_SUCCESS => Ok(()),
            other => Err(self.error(function, other)),
        }
    }

    #[cold]
    pub(crate) fn error(&self, function: &'static str, result: CUresult) -> Error {
        status::error(&self.inner.table, self.is_software(), function, result)
    }

    #[cold]
    pub(crate) fn lacks(&self, function: &'static str) -> Error {
        let (major, minor) = self.version();
        Error::new(
            ErrorKind::Unsupported,
            function,
            format!(
                "this driver ({}, CUDA {major}.{minor}) has no {function}; update the NVIDIA driver",
                self.provenance()
            ),
        )
    }

    #[cold]
    fn in_child(&self, function: &'static str) -> Error {
        Error::usage(
            function,
            format!(
                "the CUDA driver was initialised in process {} and does not survive fork; start CUDA after the fork, \
                 or exec in the child",
                self.inner.creator.pid
            ),
        )
    }

    /// Logs a call that failed in a `Drop`, except at process exit, when the driver has shut down.
    pub(crate) fn note_drop(&self, result: Result<()>) {
        if let Err(error) = result
            && error.code() != CUresult::CUDA_ERROR_DEINITIALIZED.0.cast_signed()
        {
            log::error!("while dropping: {error}");
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("provenance", &self.inner.provenance)
            .field("version", &self.inner.version)
            .field("hooks", &self.inner.hooks.is_some())
            .finish_non_exhaustive()
    }
}
