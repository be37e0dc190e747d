//! GPUs: what is there and what each can do.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::path::Path;

use cuda_driver_sys::{CUdevice, CUdevice_P2PAttribute, CUdevice_attribute, CUresult, CUuuid};

use super::driver::{Driver, Provenance, call};
use crate::error::{Error, Result};

/// A GPU of one driver, by ordinal. Cheap to clone; it holds no resource of the device.
#[derive(Clone, Debug)]
pub struct Device {
    driver: Driver,
    ordinal: u32,
    raw: CUdevice,
}

/// The compute capability: which PTX `.target` runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// The generation.
    pub major: u32,
    /// The revision within it.
    pub minor: u32,
}

impl ComputeCapability {
    /// As in `sm_90`: ten times the major number plus the minor.
    pub fn sm(self) -> u32 {
        self.major * 10 + self.minor
    }
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// How one device reaches the memory of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLink {
    /// Loads and stores work.
    pub access: bool,
    /// Atomics on the peer's memory are native.
    pub native_atomics: bool,
    /// The driver's relative rank of the link: lower is faster.
    pub performance_rank: i32,
}

impl Device {
    /// How many devices `driver` has.
    ///
    /// # Errors
    /// An error of `cuDeviceGetCount`.
    pub fn count(driver: &Driver) -> Result<u32> {
        let mut count = 0;
        // SAFETY: `count` is a live output.
        unsafe { call!(driver, cuDeviceGetCount(&raw mut count)) }?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The device with number `ordinal`, counted from 0 among the visible ones.
    ///
    /// # Errors
    /// Invalid usage, naming what exists, if there is no such device.
    pub fn new(driver: &Driver, ordinal: u32) -> Result<Self> {
        let count = Self::count(driver)?;
        if ordinal >= count {
            return Err(Self::no_such(driver, ordinal, count));
        }
        let mut raw = 0;
        // SAFETY: `raw` is a live output and `ordinal` was just checked.
        unsafe { call!(driver, cuDeviceGet(&raw mut raw, ordinal.cast_signed())) }?;
        Ok(Self { driver: driver.clone(), ordinal, raw })
    }

    /// The device of the process with number `local_rank` on this host: the devices are given out in turn.
    ///
    /// # Errors
    /// `InvalidUsage` if there is no device.
    pub fn of_rank(driver: &Driver, local_rank: u32) -> Result<Self> {
        match Self::count(driver)? {
            0 => Err(Self::no_such(driver, 0, 0)),
            count => Self::new(driver, local_rank % count),
        }
    }

    /// Every device of `driver`, in ordinal order.
    ///
    /// # Errors
    /// A driver error.
    pub fn all(driver: &Driver) -> Result<Vec<Self>> {
        (0..Self::count(driver)?).map(|ordinal| Self::new(driver, ordinal)).collect()
    }

    fn no_such(driver: &Driver, ordinal: u32, count: u32) -> Error {
        let names: Vec<String> = Self::all(driver)
            .unwrap_or_default()
            .iter()
            .map(|d| format!("{} ({})", d.ordinal, d.name().unwrap_or_else(|_| "unnamed".into())))
            .collect();
        let message = match count {
            0 => format!("there is no device {ordinal}: {} has no device at all", driver.provenance()),
            _ => format!("there is no device {ordinal}; the devices are {}", names.join(", ")),
        };
        Error::usage("device", message)
    }

    /// The driver it belongs to.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Its number among the visible devices.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The driver's handle of it.
    pub(crate) fn raw(&self) -> CUdevice {
        self.raw
    }

    /// The product name.
    ///
    /// # Errors
    /// A driver error.
    pub fn name(&self) -> Result<String> {
        // SAFETY: buffer and length belong together; the driver terminates the name within them.
        self.text(|text, len| unsafe { call!(&self.driver, cuDeviceGetName(text, len, self.raw)) })
    }

    /// The PCI address as `domain:bus:device.function`.
    ///
    /// # Errors
    /// A driver error.
    pub fn pci_bus_id(&self) -> Result<String> {
        // SAFETY: as for the name.
        self.text(|text, len| unsafe { call!(&self.driver, cuDeviceGetPCIBusId(text, len, self.raw)) })
    }

    /// The identity that is the same in every process on every host.
    ///
    /// # Errors
    /// Unsupported on drivers before CUDA 11.4.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        let mut uuid = CUuuid::default();
        // SAFETY: `uuid` is a live output.
        unsafe { call!(&self.driver, optional cuDeviceGetUuid_v2(&raw mut uuid, self.raw)) }?;
        Ok(uuid.bytes.map(|b| u8::from_ne_bytes(b.to_ne_bytes())))
    }

    /// Bytes of device memory.
    ///
    /// # Errors
    /// A driver error.
    pub fn total_memory(&self) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: `bytes` is a live output.
        unsafe { call!(&self.driver, cuDeviceTotalMem_v2(&raw mut bytes, self.raw)) }?;
        Ok(bytes)
    }

    /// Any attribute, as the driver gives it.
    ///
    /// # Errors
    /// A driver error; an older driver refuses attributes it does not know.
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32> {
        let mut value = 0;
        // SAFETY: `value` is a live output.
        unsafe { call!(&self.driver, cuDeviceGetAttribute(&raw mut value, attribute, self.raw)) }?;
        Ok(value)
    }

    /// A yes-or-no attribute; `false` also where the driver is too old to know it.
    ///
    /// # Errors
    /// A driver error, unless it is that the driver does not know the attribute.
    pub fn can(&self, attribute: CUdevice_attribute) -> Result<bool> {
        // How a driver refuses an attribute younger than itself.
        const UNKNOWN: i32 = CUresult::CUDA_ERROR_INVALID_VALUE.0.cast_signed();
        match self.attribute(attribute) {
            Ok(value) => Ok(value != 0),
            Err(error) if error.code() == UNKNOWN => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The compute capability.
    ///
    /// # Errors
    /// A driver error.
    pub fn compute_capability(&self) -> Result<ComputeCapability> {
        Ok(ComputeCapability {
            major: self.unsigned(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            minor: self.unsigned(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        })
    }

    /// The number of streaming multiprocessors.
    ///
    /// # Errors
    /// A driver error.
    pub fn sm_count(&self) -> Result<u32> {
        self.unsigned(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
    }

    /// The largest block, in threads.
    ///
    /// # Errors
    /// A driver error.
    pub fn max_threads_per_block(&self) -> Result<u32> {
        self.unsigned(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
    }

    /// The largest grid in x, y and z, in blocks.
    ///
    /// # Errors
    /// A driver error.
    pub(crate) fn max_grid(&self) -> Result<[u32; 3]> {
        Ok([
            self.unsigned(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
            self.unsigned(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
            self.unsigned(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
        ])
    }

    /// The most shared memory a block may have, in bytes, when the kernel opts in.
    ///
    /// # Errors
    /// A driver error.
    pub(crate) fn max_shared_per_block(&self) -> Result<u32> {
        self.unsigned(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
    }

    /// Whether grid barriers can be launched.
    ///
    /// # Errors
    /// As [`Device::can`].
    pub(crate) fn can_launch_cooperatively(&self) -> Result<bool> {
        self.can(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)
    }

    /// Whether memory can be reserved, created and mapped separately (`cuMemCreate` and its family).
    ///
    /// # Errors
    /// As [`Device::can`].
    pub(crate) fn supports_vmm(&self) -> Result<bool> {
        Ok(self.driver.table().cuMemCreate.is_some()
            && self.can(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?)
    }

    /// Whether an allocation can be exported as a file descriptor.
    ///
    /// # Errors
    /// As [`Device::can`].
    pub fn supports_fd_handles(&self) -> Result<bool> {
        self.can(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)
    }

    /// Whether an allocation may be exported to other hosts of the device's NVLink domain: the hardware can, and with the
    /// NVIDIA driver this host or container has an IMEX channel. Whether this process may use the channel, only an
    /// allocation tells.
    ///
    /// # Errors
    /// As [`Device::can`].
    pub fn supports_fabric_handles(&self) -> Result<bool> {
        let can = self.can(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)?;
        Ok(can && allows_fabric(self.driver.provenance(), Path::new(IMEX_CHANNELS)))
    }

    /// Whether devices like this one have multicast objects.
    ///
    /// # Errors
    /// As [`Device::can`].
    pub(crate) fn supports_multicast(&self) -> Result<bool> {
        self.can(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED)
    }

    /// Whether `cuStreamWriteValue64` works.
    ///
    /// # Errors
    /// As [`Device::can`].
    pub fn supports_64_bit_stream_values(&self) -> Result<bool> {
        self.can(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)
    }

    /// Whether this device can load from and store to memory of `peer`.
    ///
    /// # Errors
    /// A driver error.
    pub(crate) fn can_access_peer(&self, peer: &Self) -> Result<bool> {
        if self.raw == peer.raw {
            return Ok(true);
        }
        let mut can = 0;
        // SAFETY: `can` is a live output.
        unsafe { call!(&self.driver, cuDeviceCanAccessPeer(&raw mut can, self.raw, peer.raw)) }?;
        Ok(can != 0)
    }

    /// How this device reaches the memory of another device, `peer`.
    ///
    /// # Errors
    /// A driver error, for example when both are the same device.
    pub fn peer_link(&self, peer: &Self) -> Result<PeerLink> {
        let get = |attribute| {
            let mut value = 0;
            // SAFETY: `value` is a live output.
            unsafe {
                call!(&self.driver, cuDeviceGetP2PAttribute(&raw mut value, attribute, self.raw, peer.raw))
            }?;
            Ok::<_, Error>(value)
        };
        Ok(PeerLink {
            access: self.can_access_peer(peer)?,
            native_atomics: get(CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)? != 0,
            performance_rank: get(CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)?,
        })
    }

    /// The host memory node this device is attached to, if the system says.
    pub fn numa_node(&self) -> Option<u32> {
        let id = self.pci_bus_id().ok()?.to_lowercase();
        let text = std::fs::read_to_string(format!("/sys/bus/pci/devices/{id}/numa_node")).ok()?;
        text.trim().parse().ok()
    }

    fn unsigned(&self, attribute: CUdevice_attribute) -> Result<u32> {
        Ok(u32::try_from(self.attribute(attribute)?).unwrap_or(0))
    }

    fn text(&self, get: impl FnOnce(*mut c_char, i32) -> Result<()>) -> Result<String> {
        let mut text: [c_char; 256] = [0; 256];
        get(text.as_mut_ptr(), 255)?;
        // SAFETY: the last byte is 0 whatever the driver wrote into the 255 before it.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }
}

/// Where the NVIDIA driver lists the IMEX channels of this host or container.
const IMEX_CHANNELS: &str = "/dev/nvidia-caps-imex-channels";

/// Whether the driver may give fabric handles: the NVIDIA library refuses them where `channels` is missing or empty.
fn allows_fabric(provenance: &Provenance, channels: &Path) -> bool {
    let listed = || std::fs::read_dir(channels).is_ok_and(|mut entries| entries.next().is_some());
    !matches!(provenance, Provenance::Library(_)) || listed()
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.driver.is_same(&other.driver) && self.ordinal == other.ordinal
    }
}

impl Eq for Device {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nvidia_library_needs_an_imex_channel_for_fabric_handles() {
        let channels = std::env::temp_dir().join(format!("aqueduct-imex-{}", std::process::id()));
        let library = Provenance::Library("libcuda.so.1".into());
        for other in [Provenance::Software, Provenance::Table("other".into())] {
            assert!(allows_fabric(&other, &channels));
        }
        assert!(!allows_fabric(&library, &channels), "no folder");
        std::fs::create_dir(&channels).unwrap();
        let empty = allows_fabric(&library, &channels);
        std::fs::write(channels.join("channel0"), b"").unwrap();
        let one = allows_fabric(&library, &channels);
        std::fs::remove_dir_all(&channels).unwrap();
        assert!(!empty && one);
    }
}
