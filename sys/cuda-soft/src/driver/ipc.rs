//! Legacy IPC: a handle of 64 bytes lets another process of the same user open an allocation.
//!
//! The handle names the exporting process and its file descriptor, as a [`Place`].

use std::ffi::{c_char, c_uint};

use cuda_driver_sys::{CUdeviceptr, CUevent, CUipcEventHandle, CUipcMem_flags, CUipcMemHandle, CUresult};

use super::{INVALID_VALUE, context, device, entries, unsafe_call};
use crate::abi::Result;
use crate::machine::{Machine, machine};
use crate::mem::Rights;
use crate::mem::allocation::Origin;
use crate::mem::backing::Backing;
use crate::mem::import::Import;
use crate::mem::object::Kind;
use crate::mem::place::Place;

entries! {
    fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle => out, dptr: CUdeviceptr) {
        let machine = machine()?;
        context::current(machine)?;
        supported(machine)?;
        // As on hardware the handle stands for the whole allocation: opening it returns the base.
        let found = machine.allocations.find(dptr).ok_or(INVALID_VALUE)?;
        let object = found.backing.object().filter(|_| matches!(found.origin, Origin::Device)).ok_or(INVALID_VALUE)?;
        let ticket = Ticket { place: Place::of(object)?, device: found.device as u32, size: found.size };
        handle.set(CUipcMemHandle { reserved: ticket.encode() });
        Ok(())
    }

    fn cuIpcOpenMemHandle_v2(dptr: *mut CUdeviceptr => out, handle: CUipcMemHandle, flags: c_uint) {
        let (machine, current) = unsafe_call()?;
        supported(machine)?;
        if flags != CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0 {
            return Err(INVALID_VALUE);
        }
        let ticket = Ticket::decode(&handle.reserved).ok_or(INVALID_VALUE)?;
        if ticket.place.pid == std::process::id() {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        let owner = ticket.device as usize;
        machine.devices.get(owner).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
        device::require_peer(machine, current.ordinal, owner)?;
        let mut opened = machine.imports.lock();
        let known = opened.iter_mut().find(|o| o.identity == ticket.place.identity && o.device == current.ordinal);
        if let Some(known) = known {
            known.opens += 1;
            dptr.set(known.base);
            return Ok(());
        }
        let object = ticket.place.open()?;
        let size = ticket.size;
        if object.facts().kind != Kind::Plain || size == 0 || size > object.size() as u64 {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        let backing = Backing::of(&object, object.size(), None).map_err(|_| CUresult::CUDA_ERROR_MAP_FAILED)?;
        // The opening device may access the memory, and so may every peer of the owner.
        let rights = Rights::Lent { owner, to: current.ordinal };
        let allocation = machine.allocations.add(backing, size, Origin::Ipc, current.ordinal, rights, None)?;
        opened.push(Import {
            identity: ticket.place.identity,
            device: current.ordinal,
            base: allocation.base,
            opens: 1,
        });
        dptr.set(allocation.base);
        Ok(())
    }

    fn cuIpcCloseMemHandle(dptr: CUdeviceptr) {
        let (machine, _) = unsafe_call()?;
        let mut opened = machine.imports.lock();
        let index = opened.iter().position(|o| o.base == dptr).ok_or(INVALID_VALUE)?;
        opened[index].opens -= 1;
        if opened[index].opens == 0 {
            for device in machine.devices.iter().filter(|d| d.is_active()) {
                context::wait_idle(device);
            }
            opened.swap_remove(index);
            machine.allocations.remove(dptr).ok_or(INVALID_VALUE)?;
        }
        Ok(())
    }

    fn cuIpcGetEventHandle(handle: *mut CUipcEventHandle => out, _event: CUevent) {
        let _ = handle;
        machine()?;
        Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
    }

    fn cuIpcOpenEventHandle(event: *mut CUevent => out, _handle: CUipcEventHandle) {
        let _ = event;
        machine()?;
        Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
    }
}

fn supported(machine: &Machine) -> Result {
    if machine.config.lacks.ipc { Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) } else { Ok(()) }
}

/// The content of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticket {
    place: Place,
    device: u32,
    size: u64,
}

const MAGIC: [u8; 8] = *b"aqsipc01";

impl Ticket {
    fn encode(&self) -> [c_char; 64] {
        let mut bytes = [0u8; 64];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.place.pid.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.place.fd.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.device.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.place.started.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.size.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.place.identity[0].to_le_bytes());
        bytes[48..56].copy_from_slice(&self.place.identity[1].to_le_bytes());
        bytes.map(|b| b as c_char)
    }

    fn decode(handle: &[c_char; 64]) -> Option<Self> {
        let bytes = handle.map(|c| c as u8);
        let word = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let long = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        if bytes[..8] != MAGIC {
            return None;
        }
        let identity = [long(40)?, long(48)?];
        let place = Place { pid: word(8)?, started: long(24)?, fd: word(12)?, identity };
        Some(Self { place, device: word(16)?, size: long(32)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_round_trip_and_others_are_refused() {
        let place = Place { pid: 7, started: 1 << 40, fd: 12, identity: [5, u64::MAX] };
        let t = Ticket { place, device: 3, size: 4096 };
        let mut bytes = t.encode();
        assert_eq!(Ticket::decode(&bytes), Some(t));
        bytes[0] ^= 1;
        assert_eq!(Ticket::decode(&bytes), None);
        assert_eq!(Ticket::decode(&[0; 64]), None);
    }
}
