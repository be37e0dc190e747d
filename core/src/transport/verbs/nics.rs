//! The RDMA NICs of a rank: opened when first named, and memory registered with them.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Weak};

use cuda_driver_sys::CUdevice_attribute;

use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{self, KeepAlive};
use crate::memory::Place;
use crate::memory::transports::MAX_NICS;
use crate::net::{Interest, Next, Pollable, Reactor};
use crate::rdma::{
    self, Access, AsyncEvent, Context, Device, Distance, MemoryRegion, Port, ProtectionDomain, Settings,
    Verbs,
};
use crate::sync::{Mutex, lock};

/// All NICs of this host that the user wants, in their order.
pub(crate) struct Nics {
    devices: Vec<Device>,
    open: Mutex<HashMap<u8, Arc<Nic>>>,
}

/// One NIC in use.
pub(crate) struct Nic {
    number: u8,
    pub(crate) context: Context,
    pub(crate) domain: ProtectionDomain,
    watchers: Mutex<Vec<Weak<dyn Watcher>>>,
}

/// Receives the events of a NIC.
pub(crate) trait Watcher: Send + Sync {
    /// The NIC reports `event`; called on the service thread.
    fn heard(&self, event: &AsyncEvent);
}

impl Nics {
    /// Lists the NICs of `verbs`, or of libibverbs: those of `names`, or all.
    pub(crate) fn discover(verbs: Option<&Verbs>, names: Option<&str>) -> Result<Self> {
        let verbs = match verbs {
            Some(verbs) => verbs.clone(),
            None => Verbs::load(None)?,
        };
        Ok(Self { devices: verbs.devices(names)?, open: Mutex::default() })
    }

    /// NIC `number`, opened at the first call and watched by `reactor`.
    pub(crate) fn nic(&self, number: u8, reactor: &Reactor) -> Result<Arc<Nic>> {
        let mut open = lock(&self.open);
        if let Some(nic) = open.get(&number) {
            return Ok(nic.clone());
        }
        let Some(device) = self.devices.get(usize::from(number)) else {
            return Err(self.none(&format!("Ib{number}")));
        };
        let context = device.open()?;
        let domain = context.protection_domain()?;
        let nic = Arc::new(Nic { number, context, domain, watchers: Mutex::default() });
        reactor.reserve().serve(nic.clone());
        open.insert(number, nic.clone());
        Ok(nic)
    }

    /// The number of the NIC nearest to the device with the PCI address `gpu`, by what is mounted at `sysfs`.
    pub(crate) fn nearest(&self, sysfs: &Path, gpu: &str, turn: usize) -> Result<(u8, Distance)> {
        let nameable = &self.devices[..self.devices.len().min(usize::from(MAX_NICS))];
        let (index, distance) =
            rdma::nearest(sysfs, gpu, nameable, turn).ok_or_else(|| self.none("RDMA NIC near the device"))?;
        Ok((index as u8, distance))
    }

    fn none(&self, wanted: &str) -> Error {
        let names: Vec<String> =
            self.devices.iter().enumerate().map(|(i, d)| format!("Ib{i} = {}", d.name())).collect();
        let there = if names.is_empty() { "no RDMA NIC at all".to_owned() } else { names.join(", ") };
        let message = format!(
            "there is no {wanted}; this host has {there} (see ibv_devices; AQUEDUCT_IB_DEVICES chooses)"
        );
        Error::usage("rdma", message)
    }
}

impl Nic {
    /// Its number at this rank.
    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    /// The port to use.
    pub(crate) fn port(&self, settings: &Settings) -> Result<Port> {
        self.context.active_port(settings)
    }

    /// Tells `watcher` of events.
    pub(crate) fn watch(&self, watcher: Weak<dyn Watcher>) {
        let mut watchers = lock(&self.watchers);
        watchers.retain(|known| known.strong_count() > 0);
        watchers.push(watcher);
    }

    /// Lets the NIC access the memory of `place`.
    pub(crate) fn register(&self, place: &Place, access: Access) -> Result<MemoryRegion> {
        match place {
            Place::Host(host, _) => {
                let memory = host.memory();
                // SAFETY: the slice keeps the memory mapped, and the region keeps the slice.
                unsafe {
                    self.domain.register(
                        memory.as_ptr(),
                        memory.len(),
                        access,
                        Arc::new(host.clone()) as KeepAlive,
                    )
                }
            }
            Place::Device(slice) => self.register_device(slice, access),
            Place::Elsewhere => {
                Err(Error::new(ErrorKind::Internal, "register_memory", "memory that is not mapped here"))
            }
        }
    }

    /// By dma-buf where driver, kernel and NIC can, otherwise by address: with nvidia_peermem on hardware, and as the host
    /// memory that it is on the software device.
    fn register_device(&self, slice: &gpu::DeviceSlice, access: Access) -> Result<MemoryRegion> {
        check_ordering(slice.context().device())?;
        let why = match self.register_dmabuf(slice, access) {
            Ok(Some(region)) => return Ok(region),
            Ok(None) => None,
            Err(error) => Some(error),
        };
        let at = std::ptr::with_exposed_provenance_mut(slice.ptr() as usize);
        // SAFETY: the slice keeps the memory, and the region keeps the slice; whether the NIC can reach it, the kernel says.
        let made = unsafe { self.domain.register(at, slice.len(), access, Arc::new(slice.clone())) };
        let name = self.context.device().name();
        if let (Ok(_), Some(why)) = (&made, &why) {
            log::debug!("{name}: device memory is registered by its address; not by dma-buf: {why}");
        }
        made.map_err(|error| {
            let by_dmabuf = why.map(|e| format!("; by dma-buf: {}", e.message())).unwrap_or_default();
            let message = format!(
                "{name} cannot access device memory: load nvidia_peermem, or use a kernel (5.12) and driver with dma-buf \
                 ({}{by_dmabuf})",
                error.message()
            );
            Error::new(error.kind(), "register_memory", message).with_code(error.code()).with_source(error)
        })
    }

    /// None if the driver or the device has no dma-buf. No hardware has confirmed this way so far.
    fn register_dmabuf(&self, slice: &gpu::DeviceSlice, access: Access) -> Result<Option<MemoryRegion>> {
        let Some(dmabuf) = gpu::DmaBuf::export(slice)? else { return Ok(None) };
        let (fd, offset, keep) = (dmabuf.fd(), dmabuf.offset(), Arc::new(slice.clone()));
        // SAFETY: the descriptor is of the memory of `slice`, which the region keeps.
        unsafe { self.domain.register_dmabuf(fd, offset, slice.len(), slice.ptr(), access, keep) }.map(Some)
    }

    fn tell(&self, event: &AsyncEvent) {
        log::warn!("{}: {event}", self.context.device().name());
        let watchers: Vec<_> = lock(&self.watchers).iter().filter_map(Weak::upgrade).collect();
        watchers.iter().for_each(|watcher| watcher.heard(event));
    }
}

impl Pollable for Nic {
    fn fd(&self) -> BorrowedFd<'_> {
        self.context.as_fd()
    }

    fn progress(&self) -> Next {
        loop {
            match self.context.next_event() {
                Ok(Some(event)) => self.tell(&event),
                Ok(None) => return Next::Wait(Interest { read: true, write: false }),
                Err(error) => {
                    log::error!(
                        "{}: its events cannot be read any more: {error}",
                        self.context.device().name()
                    );
                    return Next::Done;
                }
            }
        }
    }

    fn unserved(&self, why: &Error) {
        log::error!("{}: its events are not served: {why}", self.context.device().name());
    }
}

impl fmt::Debug for Nics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.devices.iter().map(Device::name)).finish()
    }
}

/// Checks that kernels see a NIC's writes in order. Otherwise only the host could flush them, and a waiting kernel
/// could see the signal before the data.
fn check_ordering(device: &gpu::Device) -> Result<()> {
    let ordering = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING;
    match device.attribute(ordering) {
        Ok(0) => {
            let message = "this GPU does not order what NICs write for its kernels \
                           (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING is NONE): use host memory";
            Err(Error::new(ErrorKind::Unsupported, "register_memory", message))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::standin;

    fn nics(devices: &str) -> Nics {
        let verbs = Verbs::from_table(standin::table(), "stand-in");
        Nics::discover(Some(&verbs), Some(devices)).unwrap()
    }

    /// A host with a GPU and `null0` below one switch, `bare0` below the next, and `null1` below another root.
    struct Sysfs(std::path::PathBuf);

    impl Sysfs {
        fn new() -> Self {
            let root = std::env::temp_dir().join(format!("aqueduct-nearest-{}", std::process::id()));
            let sysfs = Self(root);
            let gpu = sysfs.device("pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:19:00.0");
            sysfs.link("bus/pci/devices/0000:19:00.0", &gpu);
            for (name, path) in [
                ("null0", "pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:01.0/0000:1a:00.0"),
                ("bare0", "pci0000:16/0000:16:03.0/0000:1c:00.0"),
                ("null1", "pci0000:80/0000:80:01.0/0000:81:00.0"),
                ("dark0", "pci0000:80/0000:80:01.0/0000:81:00.1"),
            ] {
                let nic = sysfs.device(path);
                sysfs.link(&format!("class/infiniband/{name}/device"), &nic);
                sysfs.state(name, "4: ACTIVE\n");
            }
            sysfs
        }

        fn device(&self, path: &str) -> std::path::PathBuf {
            let device = self.0.join("devices").join(path);
            std::fs::create_dir_all(&device).unwrap();
            device
        }

        fn link(&self, from: &str, to: &Path) {
            let from = self.0.join(from);
            std::fs::create_dir_all(from.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(to, from).unwrap();
        }

        fn state(&self, nic: &str, text: &str) {
            let port = self.0.join("class/infiniband").join(nic).join("ports/1");
            std::fs::create_dir_all(&port).unwrap();
            std::fs::write(port.join("state"), text).unwrap();
        }
    }

    impl Drop for Sysfs {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn those_that_are_gone_are_not_told_any_more() {
        struct Hears(crate::sync::AtomicU64);
        impl Watcher for Hears {
            fn heard(&self, _: &AsyncEvent) {
                self.0.fetch_add(1, crate::sync::Ordering::Relaxed);
            }
        }
        let context = nics("null0").devices[0].open().unwrap();
        let domain = context.protection_domain().unwrap();
        let nic = Nic { number: 0, context, domain, watchers: Mutex::default() };
        let watch = || {
            let watcher = Arc::new(Hears(crate::sync::AtomicU64::new(0)));
            let watches: Arc<dyn Watcher> = watcher.clone();
            nic.watch(Arc::downgrade(&watches));
            watcher
        };
        let first = watch();
        (0..10).for_each(|_| drop(watch()));
        let last = watch();
        assert_eq!(lock(&nic.watchers).len(), 2);
        let kind = rdma::EventKind::DEVICE_FATAL;
        nic.tell(&AsyncEvent { kind, about: rdma::About::Device, words: String::new() });
        let heard = [&first, &last].map(|watcher| watcher.0.load(crate::sync::Ordering::Relaxed));
        assert_eq!(heard, [1, 1]);
    }

    #[test]
    fn the_nearest_nic_unless_told_otherwise() {
        let sysfs = Sysfs::new();
        let nearest =
            |devices: &str, turn| nics(devices).nearest(&sysfs.0, "00000000:19:00.0", turn).unwrap();
        let switch = Distance::Switch(2);
        assert_eq!(nearest("null1,bare0,null0", 0), (2, switch), "by its number among those asked for");
        assert_eq!(nearest("null1,null0", 0), (1, switch));
        assert_eq!(nearest("null1,bare0", 5), (1, Distance::RootComplex), "the others are not considered");
        let far: Vec<u8> = (0..4).map(|turn| nearest("null1,dark0", turn).0).collect();
        assert_eq!(far, [0, 1, 0, 1], "equally far ones in turn");
        sysfs.state("null0", "1: DOWN\n");
        assert_eq!(nearest("null1,bare0,null0", 0).0, 1, "no cable: the next one");
        assert_eq!(nearest("null0", 0).0, 0, "if there is no other");
        let none = nics("").nearest(&sysfs.0, "0000:19:00.0", 0).unwrap_err();
        assert!(none.message().contains("no RDMA NIC at all"), "{none}");
    }
}
