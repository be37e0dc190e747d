//! Shared memory into which reads go.
#![forbid(unsafe_code)]

use super::device::{ReadTarget, Resource, Target, Underway};
use super::revocation::before_writing;
use super::shared::SharedMemory;
use crate::error::{Error, Result};

/// A part of [`SharedMemory`]: memory into which [`Peer::read_into`](super::Peer::read_into) reads. It keeps the memory.
#[derive(Clone, Debug)]
pub struct SharedPart {
    memory: SharedMemory,
    offset: usize,
    length: usize,
}

impl SharedMemory {
    /// The part of `length` bytes at `offset`, for [`Peer::read_into`](super::Peer::read_into).
    ///
    /// # Errors
    /// `InvalidUsage` if it is not all inside.
    pub fn part(&self, offset: usize, length: usize) -> Result<SharedPart> {
        if offset.checked_add(length).is_none_or(|end| end > self.len()) {
            let text =
                format!("{length} bytes at {offset} are not all inside memory of {} bytes", self.len());
            return Err(Error::usage("part", text));
        }
        Ok(SharedPart { memory: self.clone(), offset, length })
    }
}

impl SharedPart {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl From<SharedPart> for Target {
    fn from(part: SharedPart) -> Self {
        Self::new(Box::new(part))
    }
}

impl From<&SharedMemory> for Target {
    /// All of the memory.
    fn from(memory: &SharedMemory) -> Self {
        memory.part(0, memory.len()).expect("all of it").into()
    }
}

impl From<SharedMemory> for Target {
    fn from(memory: SharedMemory) -> Self {
        (&memory).into()
    }
}

impl ReadTarget for SharedPart {
    fn len(&self) -> usize {
        self.length
    }

    fn prepare(&mut self) -> Result<Option<Resource>> {
        // An RDMA device may be the next to write.
        before_writing();
        Ok(None)
    }

    fn placing(&self) -> Option<(&SharedMemory, usize)> {
        Some((&self.memory, self.offset))
    }

    fn put(&self, at: usize, bytes: &[u8]) -> Result<Option<Box<dyn Underway>>> {
        self.memory.write(self.offset + at, bytes)?;
        Ok(Some(Box::new(Written)))
    }

    fn device(&self) -> Option<usize> {
        None
    }
}

/// A copy by the processor, which has ended.
struct Written;

impl Underway for Written {
    fn is_done(&mut self) -> Result<bool> {
        Ok(true)
    }

    fn is_told(&self) -> bool {
        true
    }
}
