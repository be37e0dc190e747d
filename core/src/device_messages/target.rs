//! Device memory into which reads go.
#![forbid(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::copies::Copy;
use super::mapped::Mapped;
use super::pool::Pool;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::DeviceSlice;
use crate::message::device::{DeviceMapping, ReadTarget, Resource, Underway};

/// A range of memory into which a read goes.
pub(super) struct Slice {
    slice: DeviceSlice,
    pool: Option<Arc<Pool>>,
}

impl Slice {
    pub(super) fn new(slice: DeviceSlice) -> Self {
        Self { slice, pool: None }
    }

    fn pool(&self) -> Result<&Pool> {
        let unprepared = || Error::new(ErrorKind::Internal, "read", "memory is read into without a pool");
        self.pool.as_deref().ok_or_else(unprepared)
    }
}

impl ReadTarget for Slice {
    fn len(&self) -> usize {
        self.slice.len()
    }

    fn prepare(&mut self) -> Result<Option<Resource>> {
        let pool = Pool::of(self.slice.context())?;
        self.pool = Some(pool.clone());
        Ok(Some(pool))
    }

    fn put(&self, at: usize, bytes: &[u8]) -> Result<Option<Box<dyn Underway>>> {
        let (pool, to) = (self.pool()?, self.slice.slice(at..at + bytes.len())?);
        let Some(block) = pool.block() else { return Ok(None) };
        block.fill(bytes);
        Ok(pool.store(&to, block)?.map(under_way))
    }

    fn device(&self) -> Option<usize> {
        Some(self.slice.context().raw().addr())
    }

    fn map(&self, descriptor: BorrowedFd<'_>, description: &[u8]) -> Result<Arc<dyn DeviceMapping>> {
        Ok(Arc::new(Mapped::open(self.slice.context(), descriptor, description)?))
    }

    fn copy(
        &self,
        at: usize,
        from: &Arc<dyn DeviceMapping>,
        offset: u64,
        length: usize,
    ) -> Result<Option<Box<dyn Underway>>> {
        let Some(mapped) = from.as_any().downcast_ref::<Mapped>() else {
            return Err(Error::new(ErrorKind::Internal, "read", "memory was mapped by something else"));
        };
        let to = self.slice.slice(at..at + length)?;
        Ok(self.pool()?.copy(&to, &mapped.slice(offset, length)?)?.map(under_way))
    }
}

fn under_way(copy: Copy) -> Box<dyn Underway> {
    Box::new(copy)
}
