//! The list of RDMA devices.

use std::fmt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_core_sys::{ibv_device, ibv_transport_type};

use super::context::Context;
use super::library::Verbs;
use super::status::{failed, last_errno, text_of, words};
use crate::error::Result;

/// One RDMA device (NIC, HCA) of this host, not opened yet. Cheap to clone.
#[derive(Clone)]
pub struct Device {
    list: Arc<DeviceList>,
    raw: NonNull<ibv_device>,
    name: Arc<str>,
}

// SAFETY: a device is read-only after it was listed, and the list keeps it alive; ibv_open_device is thread-safe.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// Owner of what ibv_get_device_list returned.
pub(super) struct DeviceList {
    verbs: Verbs,
    raw: NonNull<*mut ibv_device>,
    count: usize,
}

// SAFETY: the array is never written after it was returned; freeing it is thread-safe.
unsafe impl Send for DeviceList {}
// SAFETY: as above.
unsafe impl Sync for DeviceList {}

impl DeviceList {
    pub(super) fn query(verbs: &Verbs) -> Result<Arc<Self>> {
        const OP: &str = "ibv_get_device_list";
        let mut count = 0;
        // SAFETY: `count` is a live output.
        let list = unsafe { (verbs.table().ibv_get_device_list)(&raw mut count) };
        let Some(raw) = NonNull::new(list) else {
            return Err(match last_errno() {
                libc::ENOSYS => failed(
                    OP,
                    libc::ENOSYS,
                    "the kernel has no RDMA support: load its module with `modprobe ib_uverbs`",
                ),
                errno => failed(OP, errno, "RDMA devices cannot be listed"),
            });
        };
        let count = usize::try_from(count).unwrap_or(0);
        Ok(Arc::new(Self { verbs: verbs.clone(), raw, count }))
    }

    pub(super) fn devices(self: &Arc<Self>) -> Vec<Device> {
        (0..self.count).filter_map(|i| self.get(i)).collect()
    }

    fn get(self: &Arc<Self>, index: usize) -> Option<Device> {
        // SAFETY: the library returned `count` entries, which live as long as `self`.
        let raw = NonNull::new(unsafe { *self.raw.as_ptr().add(index) })?;
        // SAFETY: the device is live; its name is a C string inside it.
        let name = unsafe { words((self.verbs.table().ibv_get_device_name)(raw.as_ptr())) };
        Some(Device { list: self.clone(), raw, name: name.into() })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if !self.verbs.forked() {
            // SAFETY: the list came from this library and no `Device` is left; opened contexts do not need it.
            unsafe { (self.verbs.table().ibv_free_device_list)(self.raw.as_ptr()) };
        }
    }
}

impl Device {
    /// The kernel's name, e.g. `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The node GUID, 0 if the device is gone.
    pub fn guid(&self) -> u64 {
        // SAFETY: the device is live.
        u64::from_be(unsafe { (self.list.verbs.table().ibv_get_device_guid)(self.raw.as_ptr()) })
    }

    /// Whether it speaks InfiniBand's transport (also over Ethernet: RoCE), the only one used here.
    pub fn is_infiniband_transport(&self) -> bool {
        // SAFETY: the device is live and not written.
        let transport = unsafe { (*self.raw.as_ptr()).transport_type };
        transport == ibv_transport_type::IBV_TRANSPORT_IB
    }

    /// Its directory in sysfs, normally `/sys/class/infiniband/NAME`.
    pub fn sysfs(&self) -> PathBuf {
        // SAFETY: the device is live and not written.
        PathBuf::from(text_of(unsafe { &(*self.raw.as_ptr()).ibdev_path }))
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`ErrorKind::Verbs`](crate::ErrorKind::Verbs) with what the system says, for instance about rights.
    pub fn open(&self) -> Result<Context> {
        Context::open(self)
    }

    pub(super) fn verbs(&self) -> &Verbs {
        &self.list.verbs
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_device {
        self.raw.as_ptr()
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name).finish_non_exhaustive()
    }
}
