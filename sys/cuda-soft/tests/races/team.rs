//! A team of both devices: memory of each that has a multicast address, too.

use std::ptr;

use cuda_driver_sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUmulticastObjectProp, DriverTable,
};

use super::ok;

/// Bytes of each device: one granule.
const BYTES: usize = 2 << 20;
/// Where they lie in each device's memory object, and in the multicast object: not at one place.
const MEMORY_OFFSET: usize = 2 * BYTES;
const TEAM_OFFSET: usize = BYTES;
const MEMORY_BYTES: usize = MEMORY_OFFSET + BYTES;
const TEAM_BYTES: usize = TEAM_OFFSET + BYTES;

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
            CUmulticastObjectProp { numDevices: 2, size: TEAM_BYTES, handleTypes: types.0.into(), flags: 0 };
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
                ok((table.cuMemCreate.unwrap())(&raw mut memory, MEMORY_BYTES, &raw const prop, 0));
                ok((table.cuMulticastBindMem.unwrap())(team, TEAM_OFFSET, memory, MEMORY_OFFSET, BYTES, 0));
            }
            memory
        });
        let own = memories.map(|memory| map(table, memory, MEMORY_BYTES) + MEMORY_OFFSET as u64);
        let all = map(table, team, TEAM_BYTES) + TEAM_OFFSET as u64;
        Self { own, all, handles: [memories[0], memories[1], team] }
    }

    pub(crate) fn leave(self, table: &DriverTable) {
        // SAFETY: mapped and made in `new`; no kernel runs any more.
        unsafe {
            let [first, second] = self.own.map(|own| (own, MEMORY_OFFSET, MEMORY_BYTES));
            for (address, offset, bytes) in [(self.all, TEAM_OFFSET, TEAM_BYTES), first, second] {
                let address = address - offset as u64;
                ok((table.cuMemUnmap.unwrap())(address, bytes));
                ok((table.cuMemAddressFree.unwrap())(address, bytes));
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

/// Maps `bytes` of memory for both devices.
fn map(table: &DriverTable, handle: CUmemGenericAllocationHandle, bytes: usize) -> u64 {
    let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let access = [0, 1].map(|device| CUmemAccessDesc { location: place(device), flags });
    let mut address = 0;
    // SAFETY: live outputs and inputs; the range is as long as the memory, and nothing is mapped there yet.
    unsafe {
        ok((table.cuMemAddressReserve.unwrap())(&raw mut address, bytes, 0, 0, 0));
        ok((table.cuMemMap.unwrap())(address, bytes, 0, handle, 0));
        ok((table.cuMemSetAccess.unwrap())(address, bytes, ptr::from_ref(&access).cast(), access.len()));
    }
    address
}
