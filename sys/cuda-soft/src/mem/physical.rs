//! Virtual memory management: physical memory with handles, and reserved addresses.

use std::collections::BTreeMap;
use std::sync::Arc;

use cuda_driver_sys::{
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType, CUmemLocation, CUmemLocationType,
};
use parking_lot::Mutex;

use super::allocation::Charge;
use super::mapping::Mapping;
use super::object::Object;

/// Memory made by `cuMemCreate` or imported. Lives while a handle, a mapping, or another process holds it.
#[derive(Debug)]
pub(crate) struct Physical {
    /// Its handle, whether live or not.
    pub(crate) handle: u64,
    /// How often the handle must be released; 0 when it is not live.
    pub(crate) references: Mutex<u32>,
    pub(crate) object: Arc<Object>,
    pub(crate) prop: Properties,
    /// Memory made here counts against its device; imported memory counts where it was made.
    pub(crate) _charge: Option<Charge>,
}

/// `CUmemAllocationProp` as far as it means anything here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    pub(crate) device: usize,
    pub(crate) handle_types: u32,
    pub(crate) rdma: bool,
}

/// Reserved address ranges by base.
pub(crate) type Reservations = BTreeMap<u64, (u64, Mapping)>;

impl Properties {
    /// As the C API gives them back.
    pub(crate) fn to_c(self) -> CUmemAllocationProp {
        let mut prop = CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: CUmemAllocationHandleType(self.handle_types),
            location: CUmemLocation {
                type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: self.device as i32,
            },
            ..CUmemAllocationProp::default()
        };
        prop.allocFlags.gpuDirectRDMACapable = self.rdma.into();
        prop
    }
}
