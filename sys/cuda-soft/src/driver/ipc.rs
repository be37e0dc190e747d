//! Legacy IPC: a handle of 64 bytes lets another process of the same user open an allocation.
//!
//! The handle names the exporting process and its file descriptor. The importer opens the descriptor through `/proc`,
//! so nothing is left behind in the file system. The handle also holds the start time of the process and the identity
//! of the object, so that a process id or descriptor number that was reused since is refused.

use std::ffi::{c_char, c_uint};
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use cuda_driver_sys::{CUdeviceptr, CUevent, CUipcEventHandle, CUipcMem_flags, CUipcMemHandle, CUresult};

use super::{INVALID_VALUE, context, device, entries, unsafe_call};
use crate::abi::Result;
use crate::machine::{Machine, machine};
use crate::mem::Rights;
use crate::mem::allocation::{Origin, lacks_descriptors};
use crate::mem::import::Import;
use crate::mem::object::{Kind, Object};

entries! {
    fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle => out, dptr: CUdeviceptr) {
        let machine = machine()?;
        context::current(machine)?;
        supported(machine)?;
        // As on hardware the handle stands for the whole allocation: opening it returns the base.
        let found = machine.allocations.find(dptr).ok_or(INVALID_VALUE)?;
        let object = found.backing.object().filter(|_| matches!(found.origin, Origin::Device)).ok_or(INVALID_VALUE)?;
        let ticket = Ticket {
            pid: std::process::id(),
            started: start_time(std::process::id())?.ok_or(CUresult::CUDA_ERROR_OPERATING_SYSTEM)?,
            fd: object.fd().as_raw_fd() as u32,
            device: found.device as u32,
            size: found.size,
            identity: object.identity(),
        };
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
        if ticket.pid == std::process::id() {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        let owner = ticket.device as usize;
        machine.devices.get(owner).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
        device::require_peer(machine, current.ordinal, owner)?;
        let mut opened = machine.imports.lock();
        let known = opened.iter_mut().find(|o| o.identity == ticket.identity && o.device == current.ordinal);
        if let Some(known) = known {
            known.opens += 1;
            dptr.set(known.base);
            return Ok(());
        }
        let object = ticket.open()?;
        let size = ticket.size;
        if object.facts().kind != Kind::Plain || size == 0 || size > object.size() as u64 {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        let backing = object.map(object.size(), None).map_err(|_| CUresult::CUDA_ERROR_MAP_FAILED)?;
        // The opening device may access the memory, and so may every peer of the owner.
        let rights = Rights::Lent { owner, to: current.ordinal };
        let allocation = machine.allocations.add(backing, size, Origin::Ipc, current.ordinal, rights, None)?;
        opened.push(Import {
            identity: ticket.identity,
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
    pid: u32,
    started: u64,
    fd: u32,
    device: u32,
    size: u64,
    identity: [u64; 2],
}

const MAGIC: [u8; 8] = *b"aqsipc01";

impl Ticket {
    fn encode(&self) -> [c_char; 64] {
        let mut bytes = [0u8; 64];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.pid.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.fd.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.device.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.started.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.size.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.identity[0].to_le_bytes());
        bytes[48..56].copy_from_slice(&self.identity[1].to_le_bytes());
        bytes.map(|b| b as c_char)
    }

    fn decode(handle: &[c_char; 64]) -> Option<Self> {
        let bytes = handle.map(|c| c as u8);
        let word = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let long = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        if bytes[..8] != MAGIC {
            return None;
        }
        Some(Self {
            pid: word(8)?,
            fd: word(12)?,
            device: word(16)?,
            started: long(24)?,
            size: long(32)?,
            identity: [long(40)?, long(48)?],
        })
    }

    /// Opens the object, if the process and its allocation still exist.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` if one of them is gone, `CUDA_ERROR_MAP_FAILED` if this process has no permission to
    /// open descriptors of the other, `CUDA_ERROR_OPERATING_SYSTEM` if it has no descriptors left.
    fn open(&self) -> Result<std::sync::Arc<Object>> {
        if start_time(self.pid)? != Some(self.started) {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        let path = format!("/proc/{}/fd/{}", self.pid, self.fd);
        let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(path);
        let file = opened.map_err(|e| match e.kind() {
            _ if lacks_descriptors(&e) => CUresult::CUDA_ERROR_OPERATING_SYSTEM,
            std::io::ErrorKind::PermissionDenied => CUresult::CUDA_ERROR_MAP_FAILED,
            _ => CUresult::CUDA_ERROR_INVALID_HANDLE,
        })?;
        let object = Object::open(OwnedFd::from(file)).map_err(|_| CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        if object.identity() == self.identity { Ok(object) } else { Err(CUresult::CUDA_ERROR_INVALID_HANDLE) }
    }
}

/// The start time of a process (field 22 of `stat` in proc(5)). Together with the process id it identifies a process,
/// even after the id is reused. `None` if the process has ended.
///
/// # Errors
/// `CUDA_ERROR_OPERATING_SYSTEM` if this process has no descriptors left.
fn start_time(pid: u32) -> Result<Option<u64>> {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => Ok(started(&stat)),
        Err(error) if lacks_descriptors(&error) => Err(CUresult::CUDA_ERROR_OPERATING_SYSTEM),
        Err(_) => Ok(None),
    }
}

fn started(stat: &str) -> Option<u64> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    // A zombie has no descriptors left to open.
    let mut fields = after_name.split_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_round_trip_and_others_are_refused() {
        let t = Ticket { pid: 7, started: 1 << 40, fd: 12, device: 3, size: 4096, identity: [5, u64::MAX] };
        let mut bytes = t.encode();
        assert_eq!(Ticket::decode(&bytes), Some(t));
        bytes[0] ^= 1;
        assert_eq!(Ticket::decode(&bytes), None);
        assert_eq!(Ticket::decode(&[0; 64]), None);
    }

    #[test]
    fn a_dead_process_has_no_start_time() {
        let mut child = std::process::Command::new("/bin/true").spawn().expect("spawn");
        let pid = child.id();
        child.wait().expect("wait");
        assert_eq!(start_time(pid), Ok(None));
        assert!(start_time(std::process::id()).is_ok_and(|time| time.is_some()));
    }
}
