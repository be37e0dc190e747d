//! Buffers that are exposed: staged through pinned memory, or handed to other processes of this host.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::blocks::Block;
use super::copies::Copy;
use super::mapped::Description;
use super::pool::Pool;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::GpuBuffer;
use crate::gpu::vmm::HandleTypes;
use crate::message::device::{DeviceMemory, Handle, Resource, Staged};
use crate::sync::OnceLock;

/// A buffer that is exposed.
#[derive(Debug)]
pub(super) struct Source {
    buffer: Arc<GpuBuffer>,
    pool: OnceLock<Arc<Pool>>,
}

impl Source {
    pub(super) fn new(buffer: &Arc<GpuBuffer>) -> Self {
        Self { buffer: buffer.clone(), pool: OnceLock::default() }
    }
}

impl DeviceMemory for Source {
    fn len(&self) -> usize {
        self.buffer.len()
    }

    fn prepare(&self) -> Result<Resource> {
        let pool = Pool::of(self.buffer.context())?;
        // Fails if it was exposed before: then it is the same pool.
        let _ = self.pool.set(pool.clone());
        Ok(pool)
    }

    fn stage(&self, offset: usize, length: usize) -> Result<Option<Box<dyn Staged>>> {
        let Some(pool) = self.pool.get() else {
            return Err(Error::new(ErrorKind::Internal, "read", "memory was exposed without a pool"));
        };
        let Some(block) = pool.block() else { return Ok(None) };
        let copy = pool.fetch(&self.buffer.slice(offset..offset + length)?, &block)?;
        Ok(copy.map(|copy| Box::new(Part { copy, block, length }) as Box<dyn Staged>))
    }

    fn is_mappable(&self) -> bool {
        let types = self.buffer.allocation().map(|allocation| allocation.handle_types());
        types.is_some_and(|types| types.is_ok_and(|types| types.contains(HandleTypes::FD)))
    }

    fn export(&self) -> Result<Handle> {
        let Some(allocation) = self.buffer.allocation() else {
            return Err(Error::new(ErrorKind::Unsupported, "expose", "the buffer has no descriptor"));
        };
        let description = Description { size: allocation.size() as u64, length: self.len() as u64 };
        Ok(Handle { descriptor: allocation.export_fd()?, description: description.encode() })
    }
}

/// A part on its way to the host.
struct Part {
    copy: Copy,
    block: Arc<Block>,
    length: usize,
}

impl Staged for Part {
    fn poll(&mut self) -> Result<Option<Vec<u8>>> {
        if !self.copy.is_done()? {
            return Ok(None);
        }
        Ok(Some(self.block.bytes(self.length)))
    }
}
