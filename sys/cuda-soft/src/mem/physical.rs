//! Physical memory of virtual memory management, and reserved addresses.

use std::collections::BTreeMap;
use std::sync::Arc;

use cuda_driver_sys::{
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType, CUmemLocation, CUmemLocationType,
};
use parking_lot::Mutex;

use super::budget::Charge;
use super::mapping::Mapping;
use super::multicast::Team;
use super::object::Object;

/// Memory from `cuMemCreate`, or imported. It is freed when no handle, no mapping and no other process holds it.
#[derive(Debug)]
pub(crate) struct Physical {
    /// Its handle, which may have been released.
    pub(crate) handle: u64,
    /// How often the handle must be released; 0 if it has been.
    pub(crate) references: Mutex<u32>,
    pub(crate) object: Arc<Object>,
    pub(crate) prop: Properties,
    /// For a multicast object, its team; `object` is then the team's table.
    pub(crate) team: Option<Arc<Team>>,
    /// Its share of the device's memory. Imported memory has none: it counts in the process that created it.
    pub(crate) _charge: Option<Charge>,
}

impl Physical {
    pub(crate) fn new(
        handle: u64,
        object: Arc<Object>,
        prop: Properties,
        team: Option<Arc<Team>>,
        charge: Option<Charge>,
    ) -> Self {
        Self { handle, references: Mutex::new(1), object, prop, team, _charge: charge }
    }

    /// Bytes that can be mapped.
    pub(crate) fn size(&self) -> usize {
        self.team.as_ref().map_or(self.object.size(), |team| team.size() as usize)
    }
}

/// The parts of `CUmemAllocationProp` that have an effect on this device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    pub(crate) device: usize,
    pub(crate) handle_types: u32,
    pub(crate) rdma: bool,
}

/// Reserved address ranges: base to (size, range).
pub(crate) type Reservations = BTreeMap<u64, (u64, Mapping)>;

impl Properties {
    /// Converts to the struct of the C API.
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
