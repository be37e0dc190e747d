//! A team of both devices: memory of each that has a multicast address, too.

use std::ptr;

use cuda_driver_sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUmulticastObjectProp, DriverTable,
};

use super::ok;

/// Bytes of each device: one granule.
const BYTES: usize = 2 << 20;

pub(crate) struct Team {
    /// Each device's memory at its own address.
    pub(crate) own: [u64; 2],
    /// The multicast address of both.
    pub(crate) all: u64,
    handles: [CUmemGenericAllocationHandle; 3],
}

impl Team {
    pub(crate) fn new(table: &DriverTable) -> Self {
        let types = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let object =
            CUmulticastObjectProp { numDevices: 2, size: BYTES, handleTypes: types.0.into(), flags: 0 };
        let mut team = 0;
        // SAFETY: live outputs and inputs, and handles that were made here.
        unsafe {
            ok((table.cuMulticastCreate.unwrap())(&raw mut team, &raw const object));
            ok((table.cuMulticastAddDevice.unwrap())(team, 0));
            ok((table.cuMulticastAddDevice.unwrap())(team, 1));
        }
        let memories = [0, 1].map(|device| {
            let prop = CUmemAllocationProp {
                type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
                requestedHandleTypes: types,
                location: place(device),
                ..CUmemAllocationProp::default()
            };
            let mut memory = 0;
            // SAFETY: as above.
            unsafe {
                ok((table.cuMemCreate.unwrap())(&raw mut memory, BYTES, &raw const prop, 0));
                ok((table.cuMulticastBindMem.unwrap())(team, 0, memory, 0, BYTES, 0));
            }
            memory
        });
        let own = [map(table, memories[0]), map(table, memories[1])];
        Self { own, all: map(table, team), handles: [memories[0], memories[1], team] }
    }

    pub(crate) fn leave(self, table: &DriverTable) {
        // SAFETY: mapped and made in `new`; no kernel runs any more.
        unsafe {
            for address in [self.all, self.own[0], self.own[1]] {
                ok((table.cuMemUnmap.unwrap())(address, BYTES));
                ok((table.cuMemAddressFree.unwrap())(address, BYTES));
            }
            for handle in self.handles {
                ok((table.cuMemRelease.unwrap())(handle));
            }
        }
    }
}

fn place(device: i32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

/// Maps memory for both devices.
fn map(table: &DriverTable, handle: CUmemGenericAllocationHandle) -> u64 {
    let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let access = [0, 1].map(|device| CUmemAccessDesc { location: place(device), flags });
    let mut address = 0;
    // SAFETY: live outputs and inputs; the range is as long as the memory, and nothing is mapped there yet.
    unsafe {
        ok((table.cuMemAddressReserve.unwrap())(&raw mut address, BYTES, 0, 0, 0));
        ok((table.cuMemMap.unwrap())(address, BYTES, 0, handle, 0));
        ok((table.cuMemSetAccess.unwrap())(address, BYTES, ptr::from_ref(&access).cast(), access.len()));
    }
    address
}
