//! The list of RDMA devices.

use std::fmt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_core_sys::{ibv_device, ibv_transport_type};

use super::library::Verbs;
use super::status::{failed, last_errno, text_of, words};
use crate::error::{Error, Result};

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
struct DeviceList {
    verbs: Verbs,
    raw: NonNull<*mut ibv_device>,
    count: usize,
}

// SAFETY: the array is never written after it was returned; freeing it is thread-safe.
unsafe impl Send for DeviceList {}
// SAFETY: as above.
unsafe impl Sync for DeviceList {}

impl DeviceList {
    fn query(verbs: &Verbs) -> Result<Arc<Self>> {
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

    fn devices(self: &Arc<Self>) -> Vec<Device> {
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

impl Verbs {
    /// The RDMA devices of this host, in the order in which `Ib0`, `Ib1`, ... count them: by name, numbers in names as
    /// numbers; with `names` (separated by commas), those alone and in that order.
    ///
    /// # Errors
    /// [`ErrorKind::Verbs`](crate::ErrorKind::Verbs) if they cannot be listed; `InvalidUsage` for a name that no device has, with
    /// those present.
    pub fn devices(&self, names: Option<&str>) -> Result<Vec<Device>> {
        self.check("ibv_get_device_list")?;
        let mut all = DeviceList::query(self)?.devices();
        all.sort_by_cached_key(|device| natural(device.name()));
        let Some(names) = names else { return Ok(all) };
        let wanted = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        wanted
            .map(|name| all.iter().find(|d| d.name() == name).cloned().ok_or_else(|| none(name, &all)))
            .collect()
    }

    /// The device `name`.
    ///
    /// # Errors
    /// As for [`devices`](Self::devices).
    pub fn device(&self, name: &str) -> Result<Device> {
        let all = self.devices(None)?;
        all.iter().find(|device| device.name() == name).cloned().ok_or_else(|| none(name, &all))
    }
}

fn none(name: &str, all: &[Device]) -> Error {
    let present = match all {
        [] => "this host has none; is the driver of the NIC loaded (`rdma link` lists them)?".to_owned(),
        _ => format!("there are {}", all.iter().map(Device::name).collect::<Vec<_>>().join(", ")),
    };
    Error::usage("ibv_get_device_list", format!("there is no RDMA device `{name}`: {present}"))
}

/// `mlx5_10` after `mlx5_9`: text and numbers in turn.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let text = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (head, tail) = rest.split_at(text);
        let digits = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let (number, tail) = tail.split_at(digits);
        parts.push((head.to_owned(), number.parse().unwrap_or(u64::MAX)));
        rest = tail;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::natural;

    #[test]
    fn names_are_ordered_as_people_count() {
        let mut names = ["mlx5_10", "rxe0", "mlx5_9", "mlx5_bond_0", "mlx4_0"];
        names.sort_by_cached_key(|name| natural(name));
        assert_eq!(names, ["mlx4_0", "mlx5_9", "mlx5_10", "mlx5_bond_0", "rxe0"]);
    }
}
