//! The RDMA NICs of a rank: opened when first named, and memory registered with them.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use cuda_driver_sys::CUdevice_attribute;

use super::memory::Place;
use crate::env::IbEnv;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{self, KeepAlive};
use crate::net::{Interest, Next, Pollable, Reactor};
use crate::rdma::{
    Access, AsyncEvent, Context, Device, MemoryRegion, Port, ProtectionDomain, Settings, Verbs,
};
use crate::sync::{Mutex, lock};

/// All NICs of this host that the user wants, in their order.
pub(super) struct Nics {
    devices: Vec<Device>,
    settings: Settings,
    open: Mutex<HashMap<u8, Arc<Nic>>>,
}

/// One NIC in use.
pub(super) struct Nic {
    number: u8,
    pub(super) context: Context,
    pub(super) domain: ProtectionDomain,
    watchers: Mutex<Vec<Weak<dyn Watcher>>>,
}

/// Who wants to know what happens to a NIC.
pub(super) trait Watcher: Send + Sync {
    /// Something has happened; called on the service thread.
    fn heard(&self, event: &AsyncEvent);
}

impl Nics {
    /// Lists the NICs of `verbs`, or of libibverbs.
    pub(super) fn discover(verbs: Option<&Verbs>, env: &IbEnv) -> Result<Self> {
        let verbs = match verbs {
            Some(verbs) => verbs.clone(),
            None => Verbs::load(None)?,
        };
        let devices = verbs.devices(env.devices.as_deref())?;
        Ok(Self { devices, settings: settings(env)?, open: Mutex::default() })
    }

    /// The settings of the environment.
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// NIC `number`, opened at the first call and watched by `reactor`.
    pub(super) fn nic(&self, number: u8, reactor: &Reactor) -> Result<Arc<Nic>> {
        let mut open = lock(&self.open);
        if let Some(nic) = open.get(&number) {
            return Ok(nic.clone());
        }
        let Some(device) = self.devices.get(usize::from(number)) else {
            let names: Vec<String> =
                self.devices.iter().enumerate().map(|(i, d)| format!("Ib{i} = {}", d.name())).collect();
            let there = if names.is_empty() { "no RDMA NIC at all".to_owned() } else { names.join(", ") };
            let message = format!(
                "there is no Ib{number}; this host has {there} (see ibv_devices; AQUEDUCT_IB_DEVICES chooses)"
            );
            return Err(Error::usage("rdma", message));
        };
        let context = device.open()?;
        let domain = context.protection_domain()?;
        let nic = Arc::new(Nic { number, context, domain, watchers: Mutex::default() });
        reactor.reserve().serve(nic.clone());
        open.insert(number, nic.clone());
        Ok(nic)
    }
}

impl Nic {
    /// Its number at this rank.
    pub(super) fn number(&self) -> u8 {
        self.number
    }

    /// The port to use.
    pub(super) fn port(&self, settings: &Settings) -> Result<Port> {
        self.context.active_port(settings)
    }

    /// Tells `watcher` of events.
    pub(super) fn watch(&self, watcher: Weak<dyn Watcher>) {
        let mut watchers = lock(&self.watchers);
        watchers.retain(|known| known.strong_count() > 0);
        watchers.push(watcher);
    }

    /// Lets the NIC access the memory of `place`.
    pub(super) fn register(&self, place: &Place, access: Access) -> Result<MemoryRegion> {
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

    /// By dma-buf where driver and kernel can, otherwise by address: with nvidia_peermem on hardware, and as the host
    /// memory that it is on the software device.
    fn register_device(&self, slice: &gpu::DeviceSlice, access: Access) -> Result<MemoryRegion> {
        check_ordering(slice.context().device())?;
        let keep: KeepAlive = Arc::new(slice.clone());
        let mut dmabuf_error = None;
        if let Some(dmabuf) = gpu::DmaBuf::export(slice)? {
            // SAFETY: the descriptor is of the memory of `slice`, which the region keeps.
            let made = unsafe {
                self.domain.register_dmabuf(
                    dmabuf.fd(),
                    dmabuf.offset(),
                    slice.len(),
                    slice.ptr(),
                    access,
                    Arc::clone(&keep),
                )
            };
            match made {
                Ok(region) => return Ok(region),
                Err(error) => dmabuf_error = Some(error),
            }
        }
        let at = std::ptr::with_exposed_provenance_mut(slice.ptr() as usize);
        // SAFETY: the slice keeps the memory, and the region keeps the slice; whether the NIC can reach it, the kernel says.
        let made = unsafe { self.domain.register(at, slice.len(), access, keep) };
        made.map_err(|error| {
            let by_dmabuf = dmabuf_error.map(|e| format!("; by dma-buf: {}", e.message())).unwrap_or_default();
            let message = format!(
                "{} cannot access device memory: load nvidia_peermem, or use a kernel (5.12) and driver with dma-buf \
                 ({}{by_dmabuf})",
                self.context.device().name(),
                error.message()
            );
            Error::new(error.kind(), "register_memory", message).with_code(error.code()).with_source(error)
        })
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

/// That what a NIC writes is seen by kernels in order. Where it is not, only the host could flush it, and a kernel that
/// waits for a signal would see the signal without the data.
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

fn settings(env: &IbEnv) -> Result<Settings> {
    let small = |name: &str, value: Option<u32>, default: u8| match value {
        None => Ok(default),
        Some(value) => u8::try_from(value)
            .map_err(|_| Error::usage("environment", format!("AQUEDUCT_IB_{name}={value} is above 255"))),
    };
    let default = Settings::default();
    let mut settings = Settings {
        gid_index: env.gid_index,
        service_level: small("SL", env.service_level, default.service_level)?,
        traffic_class: small("TC", env.traffic_class, default.traffic_class)?,
        timeout: small("TIMEOUT", env.timeout, default.timeout)?,
        retry_count: small("RETRY_CNT", env.retry_count, default.retry_count)?,
        ..default
    };
    if env.port.is_some() {
        settings.port = Some(small("PORT", env.port, 1)?);
    }
    if let Some(pkey) = env.pkey {
        let wrong = |_| Error::usage("environment", format!("AQUEDUCT_IB_PKEY={pkey} is above 65535"));
        settings.pkey_index = u16::try_from(pkey).map_err(wrong)?;
    }
    settings.check()?;
    Ok(settings)
}
