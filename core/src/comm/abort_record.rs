//! The record of the first kernel that leaves early, and the claim to write it.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_ptx::abi::{ABORT_RECORD_COMPLETE, AbortClaim, AbortRecord, DeviceStruct};

use crate::abort::AbortRecordCell;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::gpu::{BufferOptions, Context, GpuBuffer, HandlePolicy, PinnedBuffer};

/// The memory in which the first kernel that leaves early records what it waited for: the record in pinned host memory,
/// which the host reads, and in device memory the claim, which decides which thread writes the record.
///
/// Kernels that know the claim's address need both, so streams retain this as a whole.
#[derive(Debug)]
pub(crate) struct AbortRecordMemory {
    claim: GpuBuffer,
    record: AbortRecordCell<AbortRecord>,
}

/// Limit for writing the claim, into memory that no kernel uses yet.
const WRITING: Duration = Duration::from_secs(30);

impl AbortRecordMemory {
    /// Bytes of a record.
    pub(crate) const BYTES: usize = size_of::<AbortRecord>();

    /// A record at byte `at` of `pinned`, which is zero there and used for nothing else. Kernels of `context` may
    /// write it.
    ///
    /// # Errors
    /// A driver error.
    ///
    /// # Panics
    /// If the record does not fit into `pinned`, or `at` is not aligned for it.
    pub(crate) fn new(context: &Context, pinned: &Arc<PinnedBuffer>, at: usize) -> Result<Arc<Self>> {
        assert!(at.is_multiple_of(align_of::<AbortRecord>()), "a record that is not aligned");
        assert!(at + Self::BYTES <= pinned.len(), "a record behind its buffer");
        let plain = BufferOptions { zeroed: false, handles: HandlePolicy::Legacy };
        let buffer = GpuBuffer::with_options(context, size_of::<AbortClaim>(), plain)?;
        let claim = AbortClaim { record: pinned.device_ptr() + at as u64, ..AbortClaim::default() };
        buffer.upload(0, claim.as_bytes(), Deadline::after(WRITING))?;
        // SAFETY: inside the buffer, as asserted.
        let record = unsafe { pinned.host_ptr().add(at) }.cast::<AbortRecord>();
        // SAFETY: aligned (asserted), inside the buffer that the `Arc` keeps, beginning with the state word, all
        // integers; written by kernels only.
        let record = unsafe { AbortRecordCell::from_ptr(record, pinned.clone()) };
        Ok(Arc::new(Self { claim: buffer, record }))
    }

    /// The address of the [`AbortClaim`], for kernels.
    pub(crate) fn claim_ptr(&self) -> u64 {
        self.claim.ptr()
    }

    /// The record, once a kernel has completed it.
    pub(crate) fn read(&self) -> Option<AbortRecord> {
        self.record.read(ABORT_RECORD_COMPLETE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{Device, Driver, MemoryKind, PointerInfo};

    #[test]
    fn the_claim_lies_in_device_memory_and_leads_to_the_record_in_host_memory() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let pinned = Arc::new(PinnedBuffer::new(&context, 256 + AbortRecordMemory::BYTES).unwrap());
        let memory = AbortRecordMemory::new(&context, &pinned, 256).unwrap();
        let kind = |address| PointerInfo::of(&context, address).unwrap().kind;
        assert_eq!(kind(memory.claim_ptr()), MemoryKind::Device);
        let mut claim = [0_u64; 2];
        memory.claim.download(0, &mut claim, WRITING).unwrap();
        assert_eq!(claim, [0, pinned.device_ptr() + 256]);
        assert_eq!(kind(claim[1]), MemoryKind::Host);
        assert!(memory.read().is_none());
    }
}
