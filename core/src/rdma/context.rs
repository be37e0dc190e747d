//! An opened NIC, and the protection domain.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_core_sys::{ibv_atomic_cap, ibv_context, ibv_device_attr, ibv_device_cap_flags, ibv_pd};

use super::device::Device;
use super::library::Verbs;
use super::status::{errno_of, failed, last_errno, text_of};
use crate::error::{Error, Result};
use crate::sync::{AtomicU64, Ordering};

/// An opened NIC. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    raw: NonNull<ibv_context>,
    attributes: DeviceAttributes,
}

// SAFETY: libibverbs is thread-safe for one context; the pointer is freed once, by the last owner.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// With respect to which other accesses the NIC's atomics are atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Atomics {
    /// The NIC has none.
    None,
    /// Only other atomics through the same NIC.
    Nic,
    /// Also the CPU's.
    Global,
}

/// Limits and identity of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// Version of its firmware, as the vendor writes it.
    pub firmware: String,
    /// Vendor and part number.
    pub vendor: (u32, u32),
    /// Ports, numbered from 1.
    pub ports: u8,
    /// Largest memory region in bytes.
    pub max_region: u64,
    /// Most memory regions.
    pub max_regions: u32,
    /// Most queue pairs.
    pub max_queue_pairs: u32,
    /// Most outstanding work requests per queue; some NICs cannot do as many with inline data.
    pub max_work_requests: u32,
    /// Most entries of a completion queue.
    pub max_completions: u32,
    /// Most reads and atomics that a queue pair can serve at once.
    pub max_read_atomic_in: u8,
    /// Most reads and atomics that a queue pair can have outstanding.
    pub max_read_atomic_out: u8,
    /// Whether and how atomics work.
    pub atomics: Atomics,
    /// Most memory windows of type 2, which a queue pair binds and invalidates; 0 if it has none.
    pub max_windows: u32,
}

impl DeviceAttributes {
    fn new(attr: &ibv_device_attr) -> Self {
        let unsigned = |value: i32| u32::try_from(value).unwrap_or(0);
        let small = |value: i32| u8::try_from(value.clamp(0, 255)).unwrap_or(255);
        let windows = ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A.0
            | ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
        Self {
            firmware: text_of(&attr.fw_ver),
            vendor: (attr.vendor_id, attr.vendor_part_id),
            ports: attr.phys_port_cnt,
            max_region: attr.max_mr_size,
            max_regions: unsigned(attr.max_mr),
            max_queue_pairs: unsigned(attr.max_qp),
            max_work_requests: unsigned(attr.max_qp_wr),
            max_completions: unsigned(attr.max_cqe),
            max_read_atomic_in: small(attr.max_qp_rd_atom),
            max_read_atomic_out: small(attr.max_qp_init_rd_atom),
            atomics: match attr.atomic_cap {
                ibv_atomic_cap::IBV_ATOMIC_NONE => Atomics::None,
                ibv_atomic_cap::IBV_ATOMIC_GLOB => Atomics::Global,
                _ => Atomics::Nic,
            },
            max_windows: if attr.device_cap_flags & windows == 0 { 0 } else { unsigned(attr.max_mw) },
        }
    }
}

impl Device {
    /// Opens it.
    ///
    /// # Errors
    /// [`ErrorKind::Verbs`](crate::ErrorKind::Verbs) with the system's reason, for instance missing rights.
    pub fn open(&self) -> Result<Context> {
        Context::open(self)
    }
}

impl Context {
    fn open(device: &Device) -> Result<Self> {
        const OP: &str = "ibv_open_device";
        let verbs = device.verbs();
        verbs.check(OP)?;
        let name = device.name();
        if !device.is_infiniband_transport() {
            let message = format!(
                "device {name} does not speak InfiniBand's transport (iWARP or another); name another"
            );
            return Err(Error::new(crate::ErrorKind::Unsupported, OP, message));
        }
        // SAFETY: the device is live.
        let raw = unsafe { (verbs.table().ibv_open_device)(device.as_ptr()) };
        let Some(raw) = NonNull::new(raw) else {
            let errno = last_errno();
            let hint = match errno {
                libc::EACCES | libc::EPERM => ": may this user open /dev/infiniband/uverbs*?",
                libc::ENODEV | libc::ENOENT => {
                    ": is /dev/infiniband there (in a container it must be passed in), and was the device removed?"
                }
                _ => "",
            };
            return Err(failed(OP, errno, format!("device {name} cannot be opened{hint}")));
        };
        let mut inner =
            Inner { device: device.clone(), raw, attributes: DeviceAttributes::new(&Default::default()) };
        let mut attr = ibv_device_attr::default();
        // SAFETY: the context is live, `attr` is a live output.
        errno_of(unsafe { (verbs.table().ibv_query_device)(raw.as_ptr(), &raw mut attr) })
            .map_err(|errno| failed("ibv_query_device", errno, format!("device {name} does not answer")))?;
        inner.attributes = DeviceAttributes::new(&attr);
        inner.make_events_nonblocking()?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The device it was opened from.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Limits and identity.
    pub fn attributes(&self) -> &DeviceAttributes {
        &self.inner.attributes
    }

    /// The partition key at `index` of a port's table, 0 if the entry is not set.
    ///
    /// # Errors
    /// The error of libibverbs.
    pub fn pkey(&self, port: u8, index: u16) -> Result<u16> {
        const OP: &str = "ibv_query_pkey";
        self.verbs().check(OP)?;
        let mut pkey = 0;
        // SAFETY: the context is live, `pkey` is a live output.
        let result = unsafe {
            (self.verbs().table().ibv_query_pkey)(self.as_ptr(), port, index.into(), &raw mut pkey)
        };
        errno_of(result).map_err(|errno| {
            failed(OP, errno, format!("port {port} has no partition key at index {index}"))
        })?;
        Ok(u16::from_be(pkey))
    }

    /// A new protection domain: regions and queue pairs of one work together.
    ///
    /// # Errors
    /// The error of libibverbs.
    pub fn protection_domain(&self) -> Result<ProtectionDomain> {
        const OP: &str = "ibv_alloc_pd";
        self.verbs().check(OP)?;
        // SAFETY: the context is live.
        let raw = unsafe { (self.verbs().table().ibv_alloc_pd)(self.as_ptr()) };
        let Some(raw) = NonNull::new(raw) else {
            let message = format!("device {} gives no protection domain", self.device().name());
            return Err(failed(OP, last_errno(), message));
        };
        let registered = AtomicU64::new(0);
        Ok(ProtectionDomain { inner: Arc::new(PdInner { context: self.clone(), raw, registered }) })
    }

    pub(super) fn verbs(&self) -> &Verbs {
        self.inner.device.verbs()
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_context {
        self.inner.raw.as_ptr()
    }
}

impl Inner {
    fn make_events_nonblocking(&self) -> Result<()> {
        let failed = |error| Error::system("fcntl", "asynchronous events cannot be made nonblocking", error);
        nonblocking(self.as_fd()).map_err(failed)
    }
}

/// The descriptor of asynchronous events: readable when [`Context::next_event`] has one. Nonblocking.
impl AsFd for Inner {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the library keeps the descriptor open as long as the context lives.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) }
    }
}

/// The descriptor of asynchronous events: readable when [`Context::next_event`] has one. Nonblocking.
impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let raw = self.raw.as_ptr();
        // SAFETY: everything made in the context held it alive and is gone; it is closed once.
        self.device.verbs().destroy("an RDMA context", |table| unsafe { (table.ibv_close_device)(raw) });
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", self.device()).finish_non_exhaustive()
    }
}

/// A protection domain. Cheap to clone; clones are one domain.
#[derive(Clone)]
pub struct ProtectionDomain {
    inner: Arc<PdInner>,
}

struct PdInner {
    context: Context,
    raw: NonNull<ibv_pd>,
    registered: AtomicU64,
}

// SAFETY: libibverbs is thread-safe for one domain; the pointer is freed once, by the last owner.
unsafe impl Send for PdInner {}
// SAFETY: as above.
unsafe impl Sync for PdInner {}

impl ProtectionDomain {
    /// The NIC it belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Memory regions registered in it so far, those that are gone included.
    pub fn registered(&self) -> u64 {
        self.inner.registered.load(Ordering::Relaxed)
    }

    /// Where libibverbs has it.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn address(&self) -> usize {
        self.as_ptr().addr()
    }

    /// Counts a region.
    pub(super) fn count_region(&self) {
        self.inner.registered.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_pd {
        self.inner.raw.as_ptr()
    }

    pub(super) fn verbs(&self) -> &Verbs {
        self.inner.context.verbs()
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        let raw = self.raw.as_ptr();
        // SAFETY: regions and queue pairs held the domain alive and are gone; it is freed once.
        self.context.verbs().destroy("a protection domain", |table| unsafe { (table.ibv_dealloc_pd)(raw) });
    }
}

impl PartialEq for ProtectionDomain {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for ProtectionDomain {}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain").field("device", self.context().device()).finish_non_exhaustive()
    }
}

pub(super) fn nonblocking(fd: BorrowedFd<'_>) -> std::io::Result<()> {
    // SAFETY: the descriptor is open and no pointers are passed.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}
