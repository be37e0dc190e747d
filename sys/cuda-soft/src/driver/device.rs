//! Devices: their number, names and attributes.

use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

use cuda_driver_sys::{
    CUdevice, CUdevice_P2PAttribute as P2p, CUdevice_attribute as Attribute, CUresult, CUuuid,
};

use super::{INVALID_VALUE, entries};
use crate::abi::Result;
use crate::abi::put_str;
use crate::machine::{Machine, limits, machine};

entries! {
    fn cuDeviceGetCount(count: *mut c_int => out) {
        count.set(machine()?.devices.len() as c_int);
        Ok(())
    }

    fn cuDeviceGet(device: *mut CUdevice => out, ordinal: c_int) {
        device.set(machine()?.device(ordinal)?.ordinal as CUdevice);
        Ok(())
    }

    fn cuDeviceGetName(name: *mut c_char, len: c_int, dev: CUdevice) {
        machine()?.device(dev)?;
        // SAFETY: the API says that `name` has room for `len` bytes.
        unsafe { put_str(name, len, "aqueduct software device") }
    }

    fn cuDeviceGetUuid_v2(uuid: *mut CUuuid => out, dev: CUdevice) {
        let device = machine()?.device(dev)?;
        uuid.set(CUuuid { bytes: identity(device.ordinal).map(|b| b as c_char) });
        Ok(())
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize => out, dev: CUdevice) {
        let machine = machine()?;
        machine.device(dev)?;
        bytes.set(machine.config.memory as usize);
        Ok(())
    }

    fn cuDeviceGetAttribute(value: *mut c_int => out, attribute: Attribute, dev: CUdevice) {
        let machine = machine()?;
        let device = machine.device(dev)?;
        value.set(attribute_of(machine, device.ordinal, attribute).ok_or(INVALID_VALUE)?);
        Ok(())
    }

    fn cuDeviceGetPCIBusId(text: *mut c_char, len: c_int, dev: CUdevice) {
        let device = machine()?.device(dev)?;
        // SAFETY: the API says that `text` has room for `len` bytes.
        unsafe { put_str(text, len, &bus_id(device.ordinal)) }
    }

    fn cuDeviceGetByPCIBusId(device: *mut CUdevice => out, text: *const c_char => cstr) {
        let machine = machine()?;
        let same = |ordinal: &usize| {
            let id = bus_id(*ordinal);
            let text = text.to_ascii_uppercase();
            text == id || id.strip_prefix("0000:").is_some_and(|short| text == short)
        };
        let found = (0..machine.devices.len()).find(same).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
        device.set(found as CUdevice);
        Ok(())
    }

    fn cuDeviceCanAccessPeer(can: *mut c_int => out, dev: CUdevice, peer: CUdevice) {
        let machine = machine()?;
        let (dev, peer) = (machine.device(dev)?.ordinal, machine.device(peer)?.ordinal);
        can.set(can_access(machine, dev, peer).into());
        Ok(())
    }

    fn cuDeviceGetP2PAttribute(value: *mut c_int => out, attribute: P2p, src: CUdevice, dst: CUdevice) {
        let machine = machine()?;
        let (src, dst) = (machine.device(src)?.ordinal, machine.device(dst)?.ordinal);
        if src == dst {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        let can = c_int::from(can_access(machine, src, dst));
        value.set(match attribute {
            P2p::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK => 0,
            P2p::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED => can,
            P2p::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED if machine.config.lacks.native_atomics => 0,
            P2p::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED => can,
            P2p::CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED
            | P2p::CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED => 0,
            _ => return Err(INVALID_VALUE),
        });
        Ok(())
    }
}

/// Whether peer access from `dev` to `peer` can be enabled. A device is not its own peer.
pub(super) fn can_access(machine: &Machine, dev: usize, peer: usize) -> bool {
    dev != peer && !machine.config.lacks.p2p
}

/// The PCI bus id of a device, with the domain.
fn bus_id(ordinal: usize) -> String {
    format!("0000:{:02X}:00.0", PCI_BUS + ordinal as i32)
}

const PCI_BUS: i32 = 0x80;

/// The UUID of a device. It is the same in every process on one host and differs between hosts: processes that see
/// equal UUIDs can share memory.
fn identity(ordinal: usize) -> [u8; 16] {
    static HOST: OnceLock<u64> = OnceLock::new();
    let host = HOST.get_or_init(|| {
        let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        // FNV-1a
        id.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
    });
    let mut bytes = *b"aqsoft\0\0\0\0\0\0\0\0\0\0";
    bytes[6..8].copy_from_slice(&(ordinal as u16).to_be_bytes());
    bytes[8..].copy_from_slice(&host.to_be_bytes());
    bytes
}

fn attribute_of(machine: &Machine, ordinal: usize, attribute: Attribute) -> Option<c_int> {
    use Attribute as A;
    let config = machine.config;
    let lacks = config.lacks;
    let ops = !lacks.stream_mem_ops;
    Some(match attribute {
        A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK => limits::THREADS as c_int,
        A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X => limits::BLOCK[0] as c_int,
        A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y => limits::BLOCK[1] as c_int,
        A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z => limits::BLOCK[2] as c_int,
        A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X => limits::GRID[0] as c_int,
        A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y => limits::GRID[1] as c_int,
        A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z => limits::GRID[2] as c_int,
        A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK => limits::SHARED as c_int,
        A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => limits::SHARED_OPTIN as c_int,
        A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => limits::SHARED_PER_SM as c_int,
        A::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK => {
            (limits::SHARED_PER_SM - limits::SHARED_OPTIN) as c_int
        }
        A::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY => limits::CONSTANT as c_int,
        A::CU_DEVICE_ATTRIBUTE_WARP_SIZE => 32,
        A::CU_DEVICE_ATTRIBUTE_MAX_PITCH => c_int::MAX,
        A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK
        | A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR => 65536,
        A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE | A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE => 1_000_000,
        A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH => 64,
        A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE => 32 << 20,
        A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => config.sms as c_int,
        A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR => machine.residency().threads_per_sm as c_int,
        A::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR => machine.residency().blocks_per_sm as c_int,
        A::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT => config.watchdog.is_some().into(),
        A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => config.compute_capability.0 as c_int,
        A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => config.compute_capability.1 as c_int,
        A::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID | A::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID => 0,
        A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => PCI_BUS + ordinal as c_int,
        A::CU_DEVICE_ATTRIBUTE_GPU_OVERLAP
        | A::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY
        | A::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS
        | A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
        | A::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        | A::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT
        | A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED => 1,
        A::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH => (config.compute_capability >= (9, 0)).into(),
        A::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT => 2,
        A::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH => (!lacks.cooperative).into(),
        A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED => (!lacks.vmm).into(),
        A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED => {
            (!lacks.vmm && !lacks.posix_fd).into()
        }
        A::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1
        | A::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
        | A::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1
        | A::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR
        | A::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1
        | A::CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES => ops.into(),
        // Device memory is host memory, so kernels see all writes without a flush.
        A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS => 1,
        A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING if lacks.rdma_ordering => 0,
        A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING => 200,
        A::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED => config.has_multicast().into(),
        A::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED => (!lacks.dma_buf).into(),
        A::CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO => 2,
        A::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT | A::CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT => 512,
        A::CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT => 32,
        A::CU_DEVICE_ATTRIBUTE_NUMA_ID | A::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID => -1,
        // All other attributes of the API describe features that this device does not have.
        other if (1..Attribute::CU_DEVICE_ATTRIBUTE_MAX.0).contains(&other.0) => 0,
        _ => return None,
    })
}

/// Returns an error unless `dev` can access the memory of `peer`.
pub(super) fn require_peer(machine: &Machine, dev: usize, peer: usize) -> Result {
    if dev == peer || can_access(machine, dev, peer) {
        Ok(())
    } else {
        Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)
    }
}
