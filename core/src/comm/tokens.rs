//! The words of semaphores: slots of one allocation per communicator, so that a peer maps it once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::endpoint::Transports;
use super::memory::{self, RegisteredMemory};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Context, GpuBuffer};
use crate::sync::{Mutex, lock};

/// Bytes of a slot: the word that the peer writes, and the words that only this rank uses, in cache lines apart.
pub(super) const SLOT_BYTES: usize = 256;
/// Where in a slot the inbound counter is.
pub(super) const INBOUND: usize = 0;
/// Where the expected inbound counter is.
pub(super) const EXPECTED_INBOUND: usize = 128;
/// Where the outbound counter is.
pub(super) const OUTBOUND: usize = 136;

/// How long zeroing a slot may take before the device counts as stuck.
const ZEROING: Duration = Duration::from_secs(30);

/// All slots of one communicator.
#[derive(Debug)]
pub(super) struct TokenPool {
    memory: RegisteredMemory,
    /// In order of release, so that a slot rests as long as possible before its next use.
    free: Mutex<VecDeque<u32>>,
    count: u32,
}

/// A slot in use; free again when the semaphore here and the peer's are both gone.
#[derive(Debug)]
pub(super) struct TokenSlot {
    pool: Arc<TokenPool>,
    slot: u32,
}

impl TokenPool {
    pub(super) fn new(context: &Context, count: u32) -> Result<Arc<Self>> {
        let bytes = SLOT_BYTES * (count as usize).max(1);
        let buffer = Arc::new(GpuBuffer::new(context, bytes)?);
        let memory = memory::register_buffer(&buffer, 0, bytes, Transports::CUDA_IPC)?;
        Ok(Arc::new(Self { memory, free: Mutex::new((0..count).collect()), count }))
    }

    /// A slot whose words are zero.
    pub(super) fn claim(self: &Arc<Self>) -> Result<Arc<TokenSlot>> {
        let Some(slot) = lock(&self.free).pop_front() else {
            let message = format!(
                "all {} semaphores of this communicator are in use; drop some, or raise CommunicatorConfig::semaphores",
                self.count
            );
            return Err(Error::new(ErrorKind::InvalidUsage, "build_semaphore", message));
        };
        let slot = Arc::new(TokenSlot { pool: self.clone(), slot });
        slot.memory()?.slice().fill(0, Deadline::after(ZEROING))?;
        Ok(slot)
    }
}

impl TokenSlot {
    pub(super) fn number(&self) -> u64 {
        u64::from(self.slot)
    }

    /// Its bytes, as memory that can be sent.
    pub(super) fn memory(&self) -> Result<RegisteredMemory> {
        self.pool.memory.range(self.slot as usize * SLOT_BYTES, SLOT_BYTES)
    }
}

impl Drop for TokenSlot {
    fn drop(&mut self) {
        lock(&self.pool.free).push_back(self.slot);
    }
}
