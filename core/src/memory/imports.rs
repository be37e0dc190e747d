//! The allocations of other processes that are mapped here, each once.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::host::HostBuffer;
use crate::gpu::CUdeviceptr;
use crate::gpu::ipc::LegacyMapping;
use crate::gpu::vmm::Mapping;
use crate::group::Group;
use crate::ledger::receipt::Receipt;
use crate::sync::{Mutex, lock};

/// The live imports of a communicator, by the rank that exported the allocation and its number for it. The rank is who proved
/// to be it on the link; what a message says about its sender is never part of the name, or one rank could pass its memory off
/// as another's.
#[derive(Debug, Default)]
pub(crate) struct Imports {
    pub(super) live: Mutex<HashMap<ImportName, Weak<Import>>>,
}

/// The exporting rank, its number for the allocation, and whether the mapping can be written.
pub(super) type ImportName = (u32, u64, bool);

/// One allocation of another process, mapped here.
#[derive(Debug)]
pub(super) struct Import {
    /// The communicator lives as long as memory received by it.
    pub(super) _group: Group,
    pub(super) size: usize,
    /// Receipts for what the exporter keeps alive because of this mapping.
    pub(super) receipts: Mutex<Vec<Receipt>>,
    pub(super) mapped: Option<Mapped>,
}

#[derive(Debug)]
pub(super) enum Mapped {
    Physical(Mapping),
    Legacy(LegacyMapping),
    Host(Arc<HostBuffer>),
}

impl Import {
    pub(super) fn base(&self) -> CUdeviceptr {
        match &self.mapped {
            Some(Mapped::Physical(mapping)) => mapping.ptr(),
            Some(Mapped::Legacy(mapping)) => mapping.ptr(),
            Some(Mapped::Host(_)) | None => 0,
        }
    }

    pub(super) fn host(&self) -> Option<&Arc<HostBuffer>> {
        match &self.mapped {
            Some(Mapped::Host(buffer)) => Some(buffer),
            _ => None,
        }
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        let Some(Mapped::Legacy(mapping)) = self.mapped.take() else { return };
        let receipts = std::mem::take(&mut *lock(&self.receipts));
        // Only once it is really closed, which may be later, may the exporter free it.
        mapping.close_then(move || drop(receipts));
    }
}
