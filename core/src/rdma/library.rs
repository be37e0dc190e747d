//! libibverbs as a value.

use std::fmt;
use std::sync::{Arc, LazyLock};

use rdma_core_sys::{VerbsTable, ibv_fork_status};

use super::status::errno_of;
use crate::error::{Error, ErrorKind, Result};
use crate::fork::Creator;
use crate::sync::{Mutex, lock};

/// libibverbs, or what stands in for it. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Verbs {
    inner: Arc<Inner>,
}

/// Two are equal if they are clones of one.
impl PartialEq for Verbs {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Verbs {}

struct Inner {
    table: VerbsTable,
    provenance: Provenance,
    creator: Creator,
}

/// Origin of the functions of a [`Verbs`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Provenance {
    /// A shared library: the name or path that dlopen(3) accepted.
    Library(String),
    /// A table handed in by the program, under the name it gave.
    Table(String),
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(name) | Self::Table(name) => f.write_str(name),
        }
    }
}

impl Verbs {
    /// Loads libibverbs from `path`, or from where dlopen(3) finds it.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] with every path tried.
    pub fn load(path: Option<&str>) -> Result<Self> {
        let loaded = rdma_core_sys::load(path)
            .map_err(|error| Error::new(ErrorKind::Unsupported, "dlopen", error.to_string()))?;
        Ok(Self::new(loaded.table, Provenance::Library(loaded.library)))
    }

    /// libibverbs given as a table, for static builds and stand-ins; `name` says what it is.
    pub fn from_table(table: VerbsTable, name: impl Into<String>) -> Self {
        Self::new(table, Provenance::Table(name.into()))
    }

    fn new(table: VerbsTable, provenance: Provenance) -> Self {
        let verbs = Self { inner: Arc::new(Inner { table, provenance, creator: Creator::current() }) };
        verbs.protect_from_fork();
        verbs
    }

    /// Registered pages are pinned, not shared: after fork(2) the parent's next write would move it to a copy, and the NIC
    /// would go on with the old page. Since Linux 5.12 the kernel gives the copy to the child. Before, libibverbs can
    /// exclude registered pages from the child, but must be told before anything else, at some cost per registration. It is
    /// told here, so that `IBV_FORK_SAFE` need not be set.
    fn protect_from_fork(&self) {
        // libibverbs takes no lock before it has its own: of two threads that tell it at once, one's bookkeeping is lost.
        static TELLING: LazyLock<Mutex<()>> = LazyLock::new(Mutex::default);
        let _alone = lock(&TELLING);
        let table = self.table();
        // SAFETY: the function has no precondition.
        let status = table.ibv_is_fork_initialized.map(|status| unsafe { status() });
        if matches!(status, Some(ibv_fork_status::IBV_FORK_ENABLED | ibv_fork_status::IBV_FORK_UNNEEDED)) {
            return;
        }
        // SAFETY: the function has no precondition; too late is one of its errors.
        if let Err(errno) = errno_of(unsafe { (table.ibv_fork_init)() })
            && errno != libc::EOPNOTSUPP
        {
            let reason = std::io::Error::from_raw_os_error(errno);
            log::warn!("memory registered with a NIC is not protected from fork(2): {reason}; do not fork");
        }
    }

    /// The library or table that its functions come from.
    pub fn provenance(&self) -> &Provenance {
        &self.inner.provenance
    }

    /// The optional functions that it lacks.
    pub fn missing(&self) -> Vec<&'static str> {
        self.inner.table.missing()
    }

    pub(super) fn table(&self) -> &VerbsTable {
        &self.inner.table
    }

    /// Refuses to go on in a forked child.
    pub(super) fn check(&self, op: &'static str) -> Result<()> {
        if !self.forked() {
            return Ok(());
        }
        let message = format!(
            "a NIC opened before fork(2) is not usable in the child; process {} opened it: open it after forking",
            self.inner.creator.pid
        );
        Err(Error::usage(op, message))
    }

    pub(super) fn forked(&self) -> bool {
        self.inner.creator.forked()
    }

    /// For `Drop`: destroys something unless it belongs to the parent of this forked child. Whether it is gone.
    pub(super) fn destroy(&self, what: &str, destroy: impl FnOnce(&VerbsTable) -> std::ffi::c_int) -> bool {
        if self.forked() {
            return false;
        }
        match errno_of(destroy(self.table())) {
            Ok(()) => true,
            Err(errno) => {
                log::warn!("{what} cannot be destroyed: {}", std::io::Error::from_raw_os_error(errno));
                false
            }
        }
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verbs").field("provenance", self.provenance()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rdma_core_sys::{VerbsTable, ibv_fork_status};

    use super::Verbs;
    use crate::sync::raw::{AtomicU32, Ordering};

    static TOLD: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C" fn tell() -> i32 {
        TOLD.fetch_add(1, Ordering::Relaxed);
        libc::EINVAL
    }

    unsafe extern "C" fn unneeded() -> ibv_fork_status {
        ibv_fork_status::IBV_FORK_UNNEEDED
    }

    unsafe extern "C" fn disabled() -> ibv_fork_status {
        ibv_fork_status::IBV_FORK_DISABLED
    }

    static INSIDE: AtomicU32 = AtomicU32::new(0);
    static MOST_INSIDE: AtomicU32 = AtomicU32::new(0);

    /// Gives another thread time to come in.
    unsafe extern "C" fn tell_slowly() -> i32 {
        let inside = INSIDE.fetch_add(1, Ordering::AcqRel) + 1;
        MOST_INSIDE.fetch_max(inside, Ordering::AcqRel);
        std::thread::sleep(std::time::Duration::from_millis(20));
        INSIDE.fetch_sub(1, Ordering::AcqRel);
        0
    }

    #[test]
    fn the_library_is_told_about_forks_by_one_thread_at_a_time() {
        let table = VerbsTable { ibv_fork_init: tell_slowly, ..VerbsTable::not_supported() };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| Verbs::from_table(table, "threads"));
            }
        });
        assert_eq!(MOST_INSIDE.load(Ordering::Acquire), 1);
    }

    #[test]
    fn the_library_is_told_about_forks_unless_the_kernel_takes_care() {
        let told = |ibv_is_fork_initialized| {
            let before = TOLD.load(Ordering::Relaxed);
            let table =
                VerbsTable { ibv_fork_init: tell, ibv_is_fork_initialized, ..VerbsTable::not_supported() };
            // Too late to be told is a warning, not an error.
            let verbs = Verbs::from_table(table, "forks");
            assert_eq!(
                verbs.missing().contains(&"ibv_is_fork_initialized"),
                ibv_is_fork_initialized.is_none()
            );
            TOLD.load(Ordering::Relaxed) - before
        };
        assert_eq!((told(Some(unneeded)), told(Some(disabled)), told(None)), (0, 1, 1));
    }
}
